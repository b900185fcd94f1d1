// SPDX-License-Identifier: MIT OR Apache-2.0

//! Buffers in the memory of a GPU, which a processor must not touch.
//!
//! In a program that has loaded the CUDA driver ([`watch`]), each intercepted function asks what
//! its buffers are ([`elements`]). Those in device memory are replaced by host memory that their
//! bytes are packed into, or unpacked from ([`staging`]), and the function is called again with
//! these ([`call`], [`collective`]): whatever it does with host memory, in this process and the
//! others, it does for device memory as well. An MPI library that takes device memory may be handed
//! that instead ([`method`]). What is received by a request is unpacked when the request is
//! complete ([`requests`]); nonblocking sends may return before their bytes are packed
//! ([`delayed`]).
//!
//! Without the feature `gpu` none of this is compiled; `none.rs` answers then.
//!
//! Messages between two processes of a machine need no host memory where the receiver's GPU reaches
//! the sender's ([`peer`], [`landing`]).

/// Code that is only there with the feature.
macro_rules! with_gpu {
    ($($code:tt)*) => { $($code)* };
}
pub(crate) use with_gpu;

pub mod call;
pub mod collective;
pub mod delayed;
pub mod elements;
pub mod external;
pub mod landing;
pub mod method;
pub mod packing;
pub mod peer;
pub mod report;
pub mod requests;
pub mod staging;
pub mod upcalls;
pub mod waiting_functions;
pub mod watch;

pub use call::Call;
pub use collective::Collective;
pub use delayed::{Functions, flush as start_delayed};
pub use external::external;
pub use packing::packed;
pub use peer::{Offer, may_be_left, note_offered, offer, reach};
pub use report::report;
pub use requests::{
    any as has_requests, ask, before_cancel, before_start, complete, finish, free, get_on,
    get_status, offer_started, pack_started, wait_for_others,
};
pub use upcalls::{Messages, before_waiting, register};
pub use watch::{inside, is_handed_over, is_loaded, is_outside, may_be_loaded};
