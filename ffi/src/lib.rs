// SPDX-License-Identifier: MIT OR Apache-2.0

//! The C API. `include/libcopy.h` is generated from the functions with the attribute `c_api`, and
//! begins with the next two sections.
//!
//! # Errors
//!
//! A function returns 0 or a negative `LIBCOPY_E*`, unless its text says otherwise. A null pointer
//! is an error, `LIBCOPY_EINVAL`, unless the text of the function allows it or no bytes or entries
//! are asked for there; so is an array that is longer than memory can be.
//!
//! # What the caller guarantees
//!
//! - A handle came from this library and was not freed. Types may be used by several threads at the
//!   same time, a cursor by one at a time. A team is for one at a time, with its requests; others
//!   get `LIBCOPY_EBUSY`.
//! - A string ends with a zero. An array has as many entries, and memory as many bytes, as the
//!   function is told. An output is a variable of its type.
//! - `count` elements of a type are at `buffer`: the bytes that its displacements name from there.
//! - Until the function returns, what it reads is readable, what it writes is writable, nobody else
//!   changes either, and what it writes overlaps nothing else that it is given.
//!
//! # How to add a function
//!
//! Write it in Rust, in a file that `tests/headers.rs` names, then run
//! `LIBCOPY_BLESS=1 cargo test -p libcopy-ffi --test headers`:
//!
//! ```ignore
//! /// The number of dense pieces of `count` elements.
//! #[c_api]
//! pub fn libcopy_type_segment_count(
//!     count: u64,
//!     datatype: &libcopy_type_t,
//!     segments: Out<u64>,
//! ) -> Result {
//!     segments.put(datatype.layout(count)?.segment_count())
//! }
//! ```
//!
//! The attribute makes `int libcopy_type_segment_count(uint64_t count, const libcopy_type_t
//! *datatype, uint64_t *segments)` of it. That checks and converts the arguments, calls the body,
//! keeps the detail of a failure, and turns a panic into `LIBCOPY_EINTERNAL`. Outputs come last.
//! The types of parameters are those of the file `arguments`:
//!
//! | in Rust | in C | what it is |
//! |---|---|---|
//! | `u64`, `*const T`, `*mut T` and so on | the same | a number, an address that is not checked |
//! | `&T`, `&mut T` | `const T *`, `T *` | a handle, a structure |
//! | `Shared<T>` | `T *` | a handle that other threads may use meanwhile |
//! | `&CStr` | `const char *` | a string |
//! | `Option<P>` | that of `P` | null is allowed |
//! | `Out<T>`, `New<T>` | `T *`, `T **` | an output, a new handle |
//! | `Option<Box<T>>`, `Option<Arc<T>>` | `T *` | a handle to be freed |
//! | `InOut<T>` | `T **` | a variable with a handle, which may be freed |
//! | `#[len(n)] &[T]`, `#[len(n)] &mut [T]` | `const T *`, `T *` | an array of `n` entries |
//! | `#[len(n)] Room<T>` | `T *` | an array with room for up to `n` entries |
//! | `#[bytes(n)] &[u8]`, `#[bytes(n)] &mut [u8]` | `const void *`, `void *` | `n` bytes |
//! | `#[bytes(n)] Memory` | `void *` | `n` bytes, which may overlap what is sent |
//! | `#[bytes(n, t)] SendBuffer`, `RecvBuffer` | `const void *`, `void *` | `n` elements of type `t` |
//!
//! `n` is an expression of other parameters. The text of the function says what a C programmer has
//! to know beyond the sections above.

mod arguments;
mod datatype;
mod error;
mod exchange;
mod messages;
mod nic;
mod offload;
mod team;
mod wrappers;

pub use datatype::*;
pub use error::*;
pub use exchange::*;
pub use messages::*;
pub use nic::*;
pub use offload::*;
pub use team::*;
