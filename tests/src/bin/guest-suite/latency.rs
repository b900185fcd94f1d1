// SPDX-License-Identifier: MIT OR Apache-2.0

//! How long the module keeps a CPU from anything else. These are times, so they are there only
//! where the guest's clock counts instructions (`scripts/vm --accel icount`), one a nanosecond, and
//! a slow or busy host makes no difference. What they do is what the tests of the proven faults do,
//! which check counts.

use std::time::Duration;

use crate::device::Device;
use crate::harness::{Context, Outcome};
use crate::{check, pinning, request_faults, tests};

tests!(latency: interrupts_are_not_off_for_long(600), invalidations_are_short(300));

/// A million instructions.
const LONGEST: Duration = Duration::from_millis(1);

/// Attempts: softirqs of the kernel's own hold a CPU, too, but not each time.
const ATTEMPTS: u32 = 3;

/// Measures until what the module does is not too long; the last attempt says what was seen.
fn soon_short(what: &str, measure: impl Fn() -> Outcome<Duration>) -> Outcome {
    for attempt in 1..=ATTEMPTS {
        let longest = measure()?;
        if longest <= LONGEST {
            return Ok(());
        }
        check!(
            attempt < ATTEMPTS,
            "{what} {longest:?} in attempt {attempt}"
        );
    }
    Ok(())
}

/// A thread of the highest priority is woken in time by its timer, while forty thousand requests
/// are submitted and their process is killed: interrupts and preemption were not off for longer.
fn interrupts_are_not_off_for_long(context: &Context) -> Outcome {
    soon_short("a CPU stood still for", || {
        request_faults::many_requests(context)
    })
}

/// Changing a page takes the same time beside 800 regions of 2 pieces and of 1,024, and beside
/// 60,000 that have it.
fn invalidations_are_short(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    soon_short("an invalidation took", || {
        let beside = pinning::invalidations(&device)?.map(|(_, longest)| longest);
        let shared = pinning::changes_of_shared_pages()?;
        Ok(beside.into_iter().chain(shared).max().unwrap_or_default())
    })
}
