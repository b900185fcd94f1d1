// SPDX-License-Identifier: MIT OR Apache-2.0

//! Whether MPI's world model is there (MPI 4.1, section 11.2): `MPI_COMM_WORLD` and `MPI_COMM_SELF`
//! exist from `MPI_Init` to `MPI_Finalize` only, and so do attributes that outlive sessions. A
//! program may use sessions alone, before, beside and after; whatever needs the world asks here
//! first, and is forwarded where it is not there.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use crate::library::abi::{Abi, Word};
use crate::library::{abi, attributes, pmpi, tools};

/// Nobody has seen it yet.
const UNSEEN: u8 = 0;
const ACTIVE: u8 = 1;
const ENDED: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(UNSEEN);

/// What comes before and behind the MPI library's `MPI_Finalize`.
static END: OnceLock<[fn(); 2]> = OnceLock::new();

/// Whether it is there.
#[inline]
pub fn is_active() -> bool {
    match STATE.load(Ordering::Acquire) {
        ACTIVE => true,
        UNSEEN => look(),
        _ => false,
    }
}

#[cold]
fn look() -> bool {
    let (mut begun, mut ended) = (0, 0);
    // SAFETY: both may be called at any time (MPI 4.1, section 11.2.3); writable outputs.
    let answers = unsafe { [pmpi::initialized(&mut begun), pmpi::finalized(&mut ended)] };
    let is_there = answers == [0; 2] && begun != 0 && ended == 0;
    if is_there {
        let _ = STATE.compare_exchange(UNSEEN, ACTIVE, Ordering::AcqRel, Ordering::Relaxed);
    }
    is_there
}

/// It has ended.
pub fn end() {
    STATE.store(ENDED, Ordering::Release);
}

/// Says what is done before and behind the MPI library's `MPI_Finalize`.
pub fn register(begin: fn(), end: fn()) {
    let _ = END.set([begin, end]);
}

/// What comes before the MPI library's `MPI_Finalize`.
pub fn begin_end() {
    if let Some([begin, _]) = END.get() {
        begin();
    }
}

/// What comes behind the MPI library's `MPI_Finalize`.
pub fn finish_end() {
    if let Some([_, end]) = END.get() {
        end();
    }
}

/// Has both be done before it ends where `MPI_Finalize` goes past us, because a tool in front of us
/// wraps it: the first thing that the MPI library does there is to delete the attributes of
/// `MPI_COMM_SELF` (MPI 4.1, section 11.2.4).
pub fn watch_end(abi: &Abi) {
    static WATCHED: AtomicBool = AtomicBool::new(false);
    if WATCHED.swap(true, Ordering::Relaxed) || tools::in_front("MPI_Finalize").is_none() {
        return;
    }
    let mut keyval = 0;
    // SAFETY: functions of the types that the standard asks for, a writable output, and a
    // communicator that is there.
    unsafe {
        if pmpi::comm_create_keyval(
            attributes::copy_attribute,
            delete,
            &mut keyval,
            ptr::null_mut(),
        ) == 0
        {
            pmpi::comm_set_attr(abi.alone, keyval, ptr::null_mut());
        }
    }
}

unsafe extern "C-unwind" fn delete(
    _comm: Word,
    _keyval: c_int,
    _value: *mut c_void,
    _extra: *mut c_void,
) -> c_int {
    for work in END.get().into_iter().flatten() {
        work();
    }
    0
}

/// Has the error handler of `MPI_COMM_WORLD` hear of an error that belongs to no communicator, if
/// there is one.
pub fn raise(code: c_int) {
    if let (true, Ok(abi)) = (is_active(), abi::get()) {
        // SAFETY: a communicator that is there.
        unsafe { pmpi::comm_call_errhandler(abi.world, code) };
    }
}
