// SPDX-License-Identifier: GPL-2.0

//! [`Held`]: the hardware that a channel has acquired, and how it proves itself after a failure.
//!
//! It is protected by a mutex, the second in the order of engines.rs; drivers are called under it,
//! which may sleep. Nobody submits while the hardware is stopped or tried out: the channel sees to
//! that.

use crate::abstractions::shim::now;
use crate::base::params;
use crate::engine::dma_device::DmaDevice;
use crate::engine::dmaengine::Hardware;
use crate::engine::trial::Trial;
use kernel::prelude::*;
use kernel::sync::Arc;

/// First and last pause between two attempts of a channel to prove itself, in milliseconds.
const FIRST_PAUSE: u32 = 500;
const LAST_PAUSE: u32 = 60_000;

/// The hardware of a channel and what belongs to it.
pub(crate) struct Held {
    hardware: Option<Hardware>,
    device: Option<Arc<DmaDevice>>,
    /// When the next attempt to prove itself is due, and how long the pause after it will be.
    attempt: i64,
    pause: u32,
}

impl Held {
    /// Nothing yet.
    pub(crate) fn new() -> Self {
        Self {
            hardware: None,
            device: None,
            attempt: 0,
            pause: FIRST_PAUSE,
        }
    }

    /// The device, from when the channel was first acquired until the device leaves.
    pub(crate) fn device(&self) -> Option<&Arc<DmaDevice>> {
        self.device.as_ref()
    }

    /// The device is known.
    pub(crate) fn set_device(&mut self, device: Arc<DmaDevice>) {
        self.device = Some(device);
    }

    /// Hardware that works.
    pub(crate) fn hold(&mut self, hardware: Hardware) {
        self.hardware = Some(hardware);
        self.pause = FIRST_PAUSE;
    }

    /// Stops the hardware, into which nobody submits any more: as its driver says, or by giving it
    /// back, which resets it. With `release` it is given back in any case, and the device is left.
    pub(crate) fn stop(&mut self, release: bool) {
        let stopped = match &self.hardware {
            Some(hardware) => hardware.terminate().is_ok(),
            None => true,
        };
        if !stopped || release {
            self.hardware = None;
        }
        if release {
            self.device = None;
        }
    }

    /// The next attempt is due at once.
    pub(crate) fn try_soon(&mut self) {
        self.attempt = now();
    }

    /// Whether the next attempt is due.
    pub(crate) fn is_due(&self) -> bool {
        self.attempt <= now()
    }

    /// Makes the next attempt due after a pause, which is returned, in milliseconds; the one after
    /// it is twice as long.
    pub(crate) fn postpone(&mut self) -> u32 {
        let pause = self.pause;
        self.attempt = now() + i64::from(pause) * 1_000_000;
        self.pause = u32::min(pause * 2, LAST_PAUSE);
        pause
    }

    /// Has the hardware, acquired again if it was given back, copy a page. Nothing is submitted
    /// meanwhile. What fails gives the hardware back; the error comes with the step that failed.
    pub(crate) fn try_out(
        &mut self,
        acquire: impl FnOnce() -> Result<Hardware>,
    ) -> Result<Hardware, (&'static str, Error)> {
        let device = self
            .device
            .clone()
            .ok_or(("its device is not known", ENODEV))?;
        let hardware = match self.hardware.take() {
            Some(hardware) => hardware,
            None => acquire().map_err(|error| ("its driver does not give it", error))?,
        };
        let trial = Trial::new(device.device(), self.pause as u8)
            .map_err(|error| ("no memory can be mapped for a trial", error))?;
        let limit = (params::engine_deadline() / 1_000_000) as u32;
        if let Err(error) = trial.run(&hardware, limit) {
            // In this order: what is given back writes no more.
            drop(hardware);
            drop(trial);
            return Err(("it does not copy a page right", error));
        }
        Ok(hardware)
    }
}
