// SPDX-License-Identifier: MIT OR Apache-2.0

//! What calls return that go wrong: a class of our own, whose string says what happened, where no class of
//! the MPI standard is for it; and whether the library refuses what we could do.

use std::ffi::{CString, c_int, c_void};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::abi::{Abi, Word};
use crate::{pmpi, world_model};

/// Bytes of a string that every library keeps (`MPI_MAX_ERROR_STRING` is at least 256).
const MOST: usize = 200;

/// The class, once there is one.
static CLASS: Mutex<Option<c_int>> = Mutex::new(None);

/// A code of that class with this text, which replaces the one before; `MPI_ERR_OTHER` if the library makes
/// no class.
pub fn failure(abi: &Abi, text: &str) -> c_int {
    let mut class = CLASS.lock().unwrap_or_else(PoisonError::into_inner);
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

/// Whether the library refuses a collective that receives where it sends, as some do that check their
/// arguments: found out by trying it, alone.
fn refuses(abi: &Abi, collective: impl FnOnce(Word) -> c_int) -> bool {
    let mut comm = 0;
    if !world_model::is_active() {
        return false;
    }
    // SAFETY: only this process has to be here; a word has room for either kind of handle.
    unsafe {
        if pmpi::comm_split(abi.alone, 0, 0, &mut comm) != 0 {
            return false;
        }
        pmpi::comm_set_errhandler(comm, abi.errors_return);
        let answer = collective(comm);
        pmpi::comm_free(&mut comm);
        answer != 0
    }
}

/// The same of one that moves bytes.
#[cold]
pub fn refuses_aliases(abi: &Abi) -> bool {
    static REFUSES: OnceLock<bool> = OnceLock::new();
    *REFUSES.get_or_init(|| {
        refuses(abi, |comm| {
            let mut byte = [0u8];
            let buffer = (&raw mut byte).cast::<c_void>();
            // SAFETY: one byte.
            unsafe { pmpi::allgather(buffer, 1, abi.byte, buffer, 1, abi.byte, comm) }
        })
    })
}

/// The same of one that combines; `size` is that of an element.
#[cold]
pub fn refuses_reductions(abi: &Abi, (datatype, op): (Word, Word), size: usize) -> bool {
    static REFUSES: OnceLock<bool> = OnceLock::new();
    // Open MPI looks from two elements on.
    let mut elements = [0u128; 4];
    if 2 * size > size_of_val(&elements) {
        return false;
    }
    *REFUSES.get_or_init(|| {
        refuses(abi, |comm| {
            let buffer = elements.as_mut_ptr().cast();
            // SAFETY: room for two elements.
            unsafe { pmpi::allreduce(buffer, buffer, 2, datatype, op, comm) }
        })
    })
}
