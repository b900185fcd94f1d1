// SPDX-License-Identifier: MIT OR Apache-2.0

//! Nonblocking sends whose bytes are still being packed when the call returns (TEMPI, "MPI_Isend /
//! MPI_Irecv": pack, event, start).
//!
//! The program gets the handle of a persistent request of the library's that is started when the
//! kernel is done: by the next call of the program's that comes through here. Messages must not
//! overtake each other, so they are started in the order of their calls, and before any other send.
//! Whoever waits for another rank waits for the kernels first and starts them all: that rank may be
//! waiting for such a message. Where calls that wait go past us nothing is delayed
//! ([`crate::gpu::waiting_functions`]).

use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use libcopy::lock::lock;

use crate::gpu::elements::Started;
use crate::gpu::{elements, watch};
use crate::library::abi::{self, Word};

/// A function that gets the variable of a request.
pub type OnRequest = unsafe extern "C-unwind" fn(*mut c_void) -> c_int;

/// Functions of the program's, which come through here, for requests of ours.
#[derive(Clone, Copy, Debug)]
pub struct Functions {
    /// `MPI_Start`
    pub start: OnRequest,
    /// `MPI_Request_free`
    pub free: OnRequest,
}

/// A send that is not started yet.
#[derive(Debug)]
pub struct Waiting {
    /// The persistent request.
    pub handle: Word,
    /// What has to be done before.
    pub packing: Vec<Started>,
    /// `MPI_Start`
    pub start: OnRequest,
    /// Whether the library is handed device memory.
    pub is_handed_over: bool,
}

/// The oldest first.
static QUEUE: Mutex<VecDeque<Waiting>> = Mutex::new(VecDeque::new());

/// How many there are.
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// Requests that were not started, since packing has failed, and why.
static FAILED: Mutex<Vec<(Word, c_int)>> = Mutex::new(Vec::new());

/// Whether any send is not started yet.
#[inline(always)]
pub fn any() -> bool {
    WAITING.load(Ordering::Relaxed) != 0
}

/// One more, behind all others.
pub fn push(waiting: Waiting) {
    let mut queue = lock(&QUEUE);
    queue.push_back(waiting);
    WAITING.store(queue.len(), Ordering::Relaxed);
}

/// Whether this request is not started yet.
pub fn is_waiting(handle: Word) -> bool {
    any() && lock(&QUEUE).iter().any(|waiting| waiting.handle == handle)
}

/// Why this request was not started, once.
pub fn failure(handle: Word) -> Option<c_int> {
    let mut failed = lock(&FAILED);
    let at = failed.iter().position(|(of, _)| *of == handle)?;
    Some(failed.swap_remove(at).1)
}

/// Whether all is packed.
///
/// # Errors
///
/// The code of packing that failed.
pub fn are_done(packing: &mut [Started]) -> Result<bool, c_int> {
    for part in packing {
        if !part.is_done()? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Starts those whose bytes are packed, up to the first one whose are not.
pub fn poll() {
    if any() {
        go_through(are_done);
    }
}

/// Starts all, after their bytes are packed.
pub fn flush() {
    if any() {
        go_through(|packing| elements::wait(packing).map(|()| true));
    }
}

#[cold]
fn go_through(is_done: impl Fn(&mut [Started]) -> Result<bool, c_int>) {
    // What a start calls may come here again.
    if !watch::is_outside() {
        return;
    }
    let mut queue = lock(&QUEUE);
    while let Some(first) = queue.front_mut() {
        let code = match is_done(&mut first.packing) {
            Ok(false) => break,
            Ok(true) => start(first),
            Err(code) => code,
        };
        if code != 0 {
            lock(&FAILED).push((first.handle, code));
        }
        queue.pop_front();
        WAITING.store(queue.len(), Ordering::Relaxed);
    }
}

fn start(waiting: &Waiting) -> c_int {
    let Ok(abi) = abi::get() else {
        return 0;
    };
    let mut variable: Word = 0;
    let at = (&raw mut variable).cast();
    // SAFETY: a persistent request of ours, in a variable with room for either kind of handle; it
    // stays the same.
    watch::with(waiting.is_handed_over, || unsafe {
        abi.set_handle(at, waiting.handle);
        (waiting.start)(at)
    })
}
