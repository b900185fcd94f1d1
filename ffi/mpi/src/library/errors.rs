// SPDX-License-Identifier: MIT OR Apache-2.0

//! What calls that go wrong return: a class of our own, whose string says what happened, where the
//! MPI standard has no class for it; and whether the library refuses arguments that we could work
//! with.

use std::ffi::{CString, c_int, c_void};
use std::sync::{Mutex, OnceLock};

use libcopy::lock::lock;

use crate::library::abi::{Abi, Word};
use crate::library::stats::{FUNCTIONS, Function};
use crate::library::{abi, pmpi, progress, world_model};

/// Bytes of a string that every library keeps (`MPI_MAX_ERROR_STRING` is at least 256).
const MOST: usize = 200;

/// The class, once there is one.
static CLASS: Mutex<Option<c_int>> = Mutex::new(None);

/// The code of a call that has no room for its bytes.
#[cold]
pub fn no_room(error: libcopy::Error) -> c_int {
    match abi::get() {
        Ok(abi) => failure(abi, &error.report()),
        // Nobody gets here: without a library there are no calls.
        Err(_) => 1,
    }
}

/// A code of that class with this text, which replaces the one before; `MPI_ERR_OTHER` if the
/// library makes no class.
pub fn failure(abi: &Abi, text: &str) -> c_int {
    let mut class = lock(&CLASS);
    if class.is_none() && !world_model::is_active() {
        // Some libraries make classes only there.
        return abi.error;
    }
    if class.is_none() {
        let mut made = 0;
        // SAFETY: a writable output.
        if unsafe { pmpi::add_error_class(&mut made) } != 0 {
            return abi.error;
        }
        *class = Some(made);
    }
    let Some(code) = *class else {
        return abi.error;
    };
    let mut text = format!("libcopy: {text}").replace('\0', "");
    while text.len() > MOST {
        text.pop();
    }
    let Ok(text) = CString::new(text) else {
        return code;
    };
    // SAFETY: a class of our own, and a string that ends.
    unsafe { pmpi::add_error_string(code, text.as_ptr()) };
    code
}

/// Has a communicator's error handler hear of an error.
pub fn raise(comm: Word, code: c_int) -> c_int {
    // SAFETY: the communicator was in use a moment ago.
    unsafe { pmpi::comm_call_errhandler(comm, code) };
    code
}

/// Whether the library accepts elements of this datatype; not if the program has not committed it.
#[cold]
pub fn accepts(datatype: Word) -> bool {
    let Some(comm) = progress::alone() else {
        return true;
    };
    let (mut nothing, mut position) = (0u8, 0);
    let buffer = (&raw mut nothing).cast::<c_void>();
    // SAFETY: no elements, and room for their bytes.
    unsafe { pmpi::pack(buffer, 0, datatype, buffer, 1, &mut position, comm) == 0 }
}

/// Whether the library refuses a collective that receives where it sends, as some do that check
/// their arguments: found out once for each function by trying it on a communicator of this process
/// alone.
fn tried(function: Function, collective: impl FnOnce(Word) -> c_int) -> bool {
    static REFUSES: [OnceLock<bool>; FUNCTIONS] = [const { OnceLock::new() }; FUNCTIONS];
    *REFUSES[function as usize].get_or_init(|| match progress::alone() {
        Some(comm) => collective(comm) != 0,
        None => false,
    })
}

/// Whether the library refuses a collective that moves bytes and receives where it sends.
/// Nonblocking and persistent ones are taken to check what the blocking one does.
#[cold]
pub fn refuses(abi: &Abi, function: Function) -> bool {
    tried(function, |comm| {
        let (mut byte, kind, one, place) = (0u8, abi.byte, &(1 as c_int), &(0 as c_int));
        let at = (&raw mut byte).cast::<c_void>();
        // SAFETY: one byte, of one rank.
        unsafe {
            match function {
                Function::Gather | Function::Igather | Function::GatherInit => {
                    pmpi::gather(at, *one, kind, at, *one, kind, 0, comm)
                }
                Function::Gatherv | Function::Igatherv => {
                    pmpi::gatherv(at, *one, kind, at, one, place, kind, 0, comm)
                }
                Function::Scatter | Function::Iscatter | Function::ScatterInit => {
                    pmpi::scatter(at, *one, kind, at, *one, kind, 0, comm)
                }
                Function::Scatterv | Function::Iscatterv => {
                    pmpi::scatterv(at, one, place, kind, at, *one, kind, 0, comm)
                }
                Function::Allgather | Function::Iallgather | Function::AllgatherInit => {
                    pmpi::allgather(at, *one, kind, at, *one, kind, comm)
                }
                Function::Allgatherv | Function::Iallgatherv => {
                    pmpi::allgatherv(at, *one, kind, at, one, place, kind, comm)
                }
                Function::Alltoall | Function::Ialltoall | Function::AlltoallInit => {
                    pmpi::alltoall(at, *one, kind, at, *one, kind, comm)
                }
                Function::Alltoallv | Function::Ialltoallv => {
                    pmpi::alltoallv(at, one, place, kind, at, one, place, kind, comm)
                }
                _ => 0,
            }
        }
    })
}

/// Whether the library refuses a reduction that receives where it sends; `size` is that of an
/// element.
#[cold]
pub fn refuses_reduction(function: Function, (datatype, op): (Word, Word), size: usize) -> bool {
    // Open MPI looks from two elements on.
    let mut elements = [0u128; 4];
    if 2 * size > size_of_val(&elements) {
        return false;
    }
    tried(function, |comm| {
        let (at, count) = (elements.as_mut_ptr().cast::<c_void>(), 2 as c_int);
        // SAFETY: room for two elements, of one rank.
        unsafe {
            match function {
                Function::Reduce | Function::Ireduce | Function::ReduceInit => {
                    pmpi::reduce(at, at, count, datatype, op, 0, comm)
                }
                Function::Allreduce | Function::Iallreduce | Function::AllreduceInit => {
                    pmpi::allreduce(at, at, count, datatype, op, comm)
                }
                Function::ReduceScatter | Function::IreduceScatter => {
                    pmpi::reduce_scatter(at, at, &count, datatype, op, comm)
                }
                Function::ReduceScatterBlock | Function::IreduceScatterBlock => {
                    pmpi::reduce_scatter_block(at, at, count, datatype, op, comm)
                }
                Function::Scan | Function::Iscan => pmpi::scan(at, at, count, datatype, op, comm),
                Function::Exscan | Function::Iexscan => {
                    pmpi::exscan(at, at, count, datatype, op, comm)
                }
                _ => 0,
            }
        }
    })
}
