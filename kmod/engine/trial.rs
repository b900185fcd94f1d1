// SPDX-License-Identifier: GPL-2.0

//! [`Trial`]: what a channel has to do right before it is used again.

use crate::abstractions::shim;
use crate::engine::device::Device;
use crate::engine::dmaengine::{self, DmaResult, Hardware};
use kernel::ffi::c_void;
use kernel::prelude::*;
use kernel::sync::atomic::{Acquire, Atomic, Full, Relaxed};
use kernel::sync::Arc;

/// Two pages that a channel copies to each other to prove itself. If that fails, the channel may
/// still write to them, so that they are kept until it has been stopped.
pub(crate) struct Trial {
    pages: [KVec<u8>; 2],
    addresses: [u64; 2],
    device: Arc<Device>,
    ended: Atomic<u32>,
}

/// Bytes of a trial; a page's worth, so that it lies in one.
const TRIAL: usize = 4096;

impl Trial {
    /// Prepares pages that differ.
    pub(crate) fn new(device: &Arc<Device>, seed: u8) -> Result<KBox<Self>> {
        let mut pages = [
            KVec::from_elem(0, TRIAL, GFP_KERNEL)?,
            KVec::from_elem(0, TRIAL, GFP_KERNEL)?,
        ];
        for (at, byte) in pages[0].iter_mut().enumerate() {
            *byte = (at as u8).wrapping_mul(7).wrapping_add(seed | 1);
        }
        let mut addresses = [0; 2];
        for (at, page) in pages.iter_mut().enumerate() {
            let data: *mut u8 = page.as_mut_ptr();
            // SAFETY: Our own memory, in the direct map.
            let mapped = unsafe { dmaengine::map(device.as_ptr(), data, TRIAL, true) };
            if mapped.is_err() && at == 1 {
                // SAFETY: Mapped in the first round.
                unsafe { dmaengine::unmap(device.as_ptr(), addresses[0], TRIAL, true) };
            }
            addresses[at] = mapped?;
        }
        device.enter();
        Ok(KBox::new(
            Self {
                pages,
                addresses,
                device: device.clone(),
                ended: Atomic::new(0),
            },
            GFP_KERNEL,
        )?)
    }

    /// # Safety
    ///
    /// `param` is the trial, which lives until this was called or the channel was stopped; `result`
    /// is valid or null.
    unsafe extern "C" fn done(param: *mut c_void, result: *const DmaResult) {
        // SAFETY: The trial lives until the callback came or the channel was stopped.
        let this = unsafe { &*param.cast::<Self>() };
        // SAFETY: The driver calls this with a result that is valid or null.
        let outcome = if unsafe { dmaengine::succeeded(result) } {
            1
        } else {
            2
        };
        this.ended.xchg(outcome, Full);
    }

    /// Lets `hardware` copy one page to the other within the given milliseconds. The trial may be
    /// dropped when this succeeds, or when the hardware has been stopped.
    pub(crate) fn run(&self, hardware: &Hardware, milliseconds: u32) -> Result {
        for address in self.addresses {
            // SAFETY: Mapped by `new`.
            unsafe { dmaengine::sync_for_device(self.device.as_ptr(), address, TRIAL, true) };
        }
        // SAFETY: Both pages are mapped until the trial is dropped, which is after the end.
        unsafe {
            dmaengine::submit(
                hardware.as_ptr(),
                self.addresses[1],
                self.addresses[0],
                TRIAL,
                true,
                Self::done,
                core::ptr::from_ref(self).cast_mut().cast(),
            )?;
            dmaengine::issue(hardware.as_ptr());
        }
        for _ in 0..milliseconds.div_ceil(2) {
            if self.ended.load(Acquire) != 0 {
                break;
            }
            shim::nap(2);
        }
        match self.ended.load(Relaxed) {
            0 => return Err(ETIMEDOUT),
            1 => {}
            _ => return Err(EIO),
        }
        for address in self.addresses {
            // SAFETY: Mapped by `new`.
            unsafe { dmaengine::sync_for_cpu(self.device.as_ptr(), address, TRIAL, true) };
        }
        for (left, right) in self.pages[0].iter().zip(&self.pages[1]) {
            // SAFETY: Valid references; the device wrote behind the compiler's back, so that the
            // bytes are read anew.
            if unsafe { core::ptr::read_volatile(left) != core::ptr::read_volatile(right) } {
                return Err(EIO);
            }
        }
        Ok(())
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        for address in self.addresses {
            // SAFETY: Mapped by `new`, unmapped once.
            unsafe { dmaengine::unmap(self.device.as_ptr(), address, TRIAL, true) };
        }
        self.device.exit();
    }
}
