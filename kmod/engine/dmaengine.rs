// SPDX-License-Identifier: GPL-2.0

//! Safe faces of `dma.c` and `unbind.c`: dmaengine's channels, the DMA API, devices that lose their
//! drivers.

use crate::abstractions::declarations as raw;
pub(crate) use crate::abstractions::declarations::{
    dma_chan as DmaChan, dmaengine_result as DmaResult, libcopy_dma_info as Info,
};
use core::ptr::NonNull;
use kernel::bindings;
use kernel::error::to_result;
use kernel::ffi::c_void;
use kernel::prelude::*;

/// Called when a descriptor has ended.
pub(crate) type Done = unsafe extern "C" fn(*mut c_void, *const DmaResult);

/// An acquired dmaengine channel, which nobody else uses; dropping releases it, which stops the
/// hardware: after that no descriptor is worked on and no callback comes.
///
/// # Invariants
///
/// The pointer is an exclusively acquired channel.
pub(crate) struct Hardware(NonNull<DmaChan>);

// SAFETY: dmaengine's functions may be called from any thread.
unsafe impl Send for Hardware {}
// SAFETY: As above; drivers have their own locks.
unsafe impl Sync for Hardware {}

impl Hardware {
    /// Offers every free channel to `accept` and acquires the first one that it accepts. `accept`
    /// must not sleep long, nor use dmaengine: its list of devices is locked.
    pub(crate) fn request<F: FnMut(&Info) -> bool>(mut accept: F) -> Option<Self> {
        /// # Safety
        ///
        /// `data` is the closure of the call, `info` is valid.
        unsafe extern "C" fn call<F: FnMut(&Info) -> bool>(
            data: *mut c_void,
            info: *const Info,
        ) -> bool {
            // SAFETY: `data` is the closure below, `info` is valid for the call.
            unsafe { (*data.cast::<F>())(&*info) }
        }
        // SAFETY: `call` is given what it expects, and is not called any more after this returns.
        let chan = unsafe {
            raw::libcopy_dma_request(Some(call::<F>), core::ptr::from_mut(&mut accept).cast())
        };
        // INVARIANT: The channel was acquired for us.
        NonNull::new(chan).map(Self)
    }

    /// The raw channel.
    pub(crate) fn as_ptr(&self) -> *mut DmaChan {
        self.0.as_ptr()
    }

    /// Stops the channel and waits for its callbacks; fails if the driver cannot.
    pub(crate) fn terminate(&self) -> Result {
        // SAFETY: Valid by the invariant; all callers may sleep.
        to_result(unsafe { raw::libcopy_dma_terminate(self.as_ptr()) })
    }

    /// The device that does the transfers.
    pub(crate) fn device(&self) -> *mut bindings::device {
        // SAFETY: Valid by the invariant.
        unsafe { raw::libcopy_dma_device(self.as_ptr()) }
    }

    /// Whether descriptors may end in another order than they were submitted in.
    pub(crate) fn unordered(&self) -> bool {
        // SAFETY: Valid by the invariant.
        unsafe { raw::libcopy_dma_unordered(self.as_ptr()) }
    }
}

impl Drop for Hardware {
    fn drop(&mut self) {
        // SAFETY: By the invariant it is ours to release; this is done where sleeping is allowed.
        unsafe { raw::libcopy_dma_release(self.as_ptr()) }
    }
}

/// Submits one descriptor; `done` is called exactly once if this succeeds, unless the channel is
/// stopped before.
///
/// - `EAGAIN`: the driver has no descriptor for this, because its ring is full or because it wants
///   shorter ones; `done` is not called.
/// - `EIO`: the driver did not accept it; `done` may be called or not until the channel is stopped.
///
/// # Safety
///
/// `chan` is acquired and stays so for the call; the addresses are mapped for its device until
/// `done` was called or the channel was stopped; `param` is what `done` expects.
pub(crate) unsafe fn submit(
    chan: *mut DmaChan,
    to: u64,
    from: u64,
    len: usize,
    interrupt: bool,
    done: Done,
    param: *mut c_void,
) -> Result {
    // SAFETY: The channel is acquired and the rest stays as it must, as this function asks for.
    to_result(unsafe { raw::libcopy_dma_submit(chan, to, from, len, interrupt, Some(done), param) })
}

/// Makes the hardware look at what was submitted.
///
/// # Safety
///
/// `chan` is acquired and stays so for the call.
pub(crate) unsafe fn issue(chan: *mut DmaChan) {
    // SAFETY: The channel stays acquired for the call.
    unsafe { raw::libcopy_dma_issue(chan) }
}

/// Whether a descriptor ended well.
///
/// # Safety
///
/// `result` is what the callback was given.
pub(crate) unsafe fn succeeded(result: *const DmaResult) -> bool {
    // SAFETY: The driver gave the callback a valid pointer or null.
    unsafe { raw::libcopy_dma_succeeded(result) }
}

/// Whether a callback, which calls this, runs in a thread: then the driver's submission may sleep,
/// and may wait for what that thread does next.
pub(crate) fn callback_sleeps() -> bool {
    // SAFETY: No preconditions.
    unsafe { raw::libcopy_dma_callback_sleeps() }
}

/// Hears when devices lose their drivers, and when the machine sleeps; dropping ends that.
pub(crate) struct Watching(());

impl Watching {
    /// Starts; `leaves` is called before a device loses its driver, and with `true` when it has
    /// lost it, `sleeps` before the machine goes to sleep, and with `false` when it has woken up;
    /// both may sleep.
    pub(crate) fn start(
        leaves: unsafe extern "C" fn(*mut bindings::device, bool),
        sleeps: extern "C" fn(bool),
    ) -> Result<Self> {
        // SAFETY: Both stay until the module is unloaded, which is after `drop`.
        to_result(unsafe { raw::libcopy_dma_watch_start(Some(leaves), Some(sleeps)) })?;
        Ok(Self(()))
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        // SAFETY: No preconditions; waits for calls under way.
        unsafe { raw::libcopy_dma_watch_stop() }
    }
}

/// Most bytes that can be mapped at a time.
///
/// # Safety
///
/// `dev` is valid.
pub(crate) unsafe fn max_mapping(dev: *mut bindings::device) -> usize {
    // SAFETY: `dev` is valid by this function's clause.
    unsafe { raw::libcopy_dma_max_mapping(dev) }
}

/// Maps memory of the direct map for a device.
///
/// # Safety
///
/// `dev` is valid; `addr` is contiguous memory of `len` bytes that stays until it is unmapped.
pub(crate) unsafe fn map(
    dev: *mut bindings::device,
    addr: *mut u8,
    len: usize,
    write: bool,
) -> Result<u64> {
    let mut address = 0;
    // SAFETY: As this function's clause says; `address` outlives the call.
    if unsafe { raw::libcopy_dma_map(dev, addr.cast(), len, write, &mut address) } {
        Ok(address)
    } else {
        Err(EIO)
    }
}

/// Takes back what [`map`] mapped.
///
/// # Safety
///
/// The arguments are those of [`map`] and what it returned; nobody uses the address any more.
pub(crate) unsafe fn unmap(dev: *mut bindings::device, address: u64, len: usize, write: bool) {
    // SAFETY: As this function's clause says.
    unsafe { raw::libcopy_dma_unmap(dev, address, len, write) }
}

/// Hands a part of mapped memory to the device.
///
/// # Safety
///
/// The range is mapped for `dev`, with `write`.
pub(crate) unsafe fn sync_for_device(
    dev: *mut bindings::device,
    address: u64,
    len: usize,
    write: bool,
) {
    // SAFETY: As this function's clause says.
    unsafe { raw::libcopy_dma_sync_for_device(dev, address, len, write) }
}

/// Takes a part of mapped memory back from the device.
///
/// # Safety
///
/// The range is mapped for `dev`, with `write`.
pub(crate) unsafe fn sync_for_cpu(
    dev: *mut bindings::device,
    address: u64,
    len: usize,
    write: bool,
) {
    // SAFETY: As this function's clause says.
    unsafe { raw::libcopy_dma_sync_for_cpu(dev, address, len, write) }
}

/// Whether `dev` is `whole` or a part of it.
///
/// # Safety
///
/// Both are valid.
pub(crate) unsafe fn part_of(dev: *mut bindings::device, whole: *mut bindings::device) -> bool {
    // SAFETY: Both are valid by this function's clause.
    unsafe { raw::libcopy_dma_part_of(dev, whole) }
}

/// Makes sure that we hear when the device goes. Called without locks.
///
/// # Safety
///
/// `dev` is valid.
pub(crate) unsafe fn watch(dev: *mut bindings::device) -> Result {
    // SAFETY: `dev` is valid by this function's clause.
    to_result(unsafe { raw::libcopy_dma_watch(dev) })
}
