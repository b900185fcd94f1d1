// SPDX-License-Identifier: MIT OR Apache-2.0

//! How long the module keeps a CPU from anything else. These are times, so they are there only where the guest's
//! clock counts instructions (`scripts/vm --accel icount`), one a nanosecond, and a slow or busy host makes no
//! difference. What they do is what the tests of the proven faults do, which check counts.

use std::time::Duration;

use crate::device::Device;
use crate::harness::{Context, Outcome};
use crate::{check, pinning, request_faults, tests};

tests!(latency: interrupts_are_not_off_for_long(600), invalidations_are_short(300));

/// A million instructions.
const LONGEST: Duration = Duration::from_millis(1);

/// A thread of the highest priority is woken in time by its timer, while forty thousand requests are submitted and
/// their process is killed: interrupts and preemption were not off for longer.
fn interrupts_are_not_off_for_long(context: &Context) -> Outcome {
    let gap = request_faults::many_requests(context)?;
    check!(gap <= LONGEST, "a CPU stood still for {gap:?}");
    Ok(())
}

/// Changing a page takes the same time beside 800 regions of 2 pieces and of 1,024.
fn invalidations_are_short(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    for (_, longest) in pinning::invalidations(&device)? {
        check!(longest <= LONGEST, "an invalidation of {longest:?}");
    }
    Ok(())
}
