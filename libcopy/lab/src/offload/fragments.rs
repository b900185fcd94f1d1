// SPDX-License-Identifier: MIT OR Apache-2.0

//! Section 3.4: what n, the pages of a fragment, costs and buys. Large fragments need fewer
//! callbacks; small ones are sooner at their end when a process touches its buffer and CPUs take
//! over.
//!
//! In these rows `bytes` is the size of a fragment.

use super::experiment::{Process, Run, STATS, counter, micros};
use anyhow::Result;
use libcopy::device::{Request, StatusTable, Submission};
use libcopy_measure::report::Row;
use std::time::Instant;

const PAGE: usize = 4096;
/// n.
const PAGES: [u32; 6] = [1, 2, 4, 8, 16, 64];

/// Callbacks so far, and nanoseconds in them.
fn callbacks() -> Option<(u64, u64)> {
    Some((counter("engine_callbacks")?, counter("engine_callback_ns")?))
}

/// Waits until the first bytes are in place, or until the request has ended.
fn wait_for_front(status: &StatusTable, request: &Request<'_>, bytes: u64) {
    let is_short = || {
        let progress = status.progress(request.id());
        progress.is_some_and(|its| !its.ended && its.front < bytes)
    };
    while is_short() {
        std::thread::yield_now();
    }
}

/// Fills in the rows.
pub fn run(run: &mut Run) -> Result<()> {
    let bytes: usize = if run.quick { 2 << 20 } else { 8 << 20 };
    let mut counted = callbacks().is_some();
    if !counted {
        run.notes.push(format!(
            "left out: callback: {STATS} cannot be read (debugfs, root)"
        ));
    }
    run.notes.push(format!(
        "fragments: messages of {} MiB; size = bytes of a fragment; callback: one call, in which the \
         next fragment is submitted; stop: from the decision until the engine writes no more, a tenth \
         on the way; switch: until CPUs have done the rest",
        bytes >> 20
    ));
    for pages in PAGES {
        run.step(&format!("n = {pages}"));
        let size = pages as usize * PAGE;
        let mut processes = Process::several(run, 1, bytes)?;
        let (mut alone, mut switch, mut stop, mut calls) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        {
            let (source, target, domain) = processes[0].share()?;
            let submission =
                Submission::new(source.id(), target.id(), bytes as u64).fragment_pages(pages);
            let (status, tenth) = (domain.status_table()?, bytes as u64 / 10);
            for round in 0..=run.rounds {
                let request = domain.submit(&submission)?;
                wait_for_front(&status, &request, tenth);
                let start = Instant::now();
                let progress = request.cancel()?;
                let time = micros(start.elapsed());
                if round > 0 && !progress.complete {
                    stop.push(time);
                }

                let request = domain.submit(&submission)?;
                wait_for_front(&status, &request, tenth);
                let start = Instant::now();
                request.switch_to_cpu()?;
                let time = micros(start.elapsed());
                drop(request);
                if round > 0 {
                    switch.push(time);
                }

                let before = callbacks();
                let start = Instant::now();
                let request = domain.submit(&submission)?;
                request.wait(None)?;
                let time = micros(start.elapsed());
                drop(request);
                if let (Some(before), Some(after)) = (before, callbacks()) {
                    if after.0 > before.0 {
                        let each = (after.1 - before.1) as f64 / (after.0 - before.0) as f64;
                        calls.push(each / 1e3);
                    }
                }
                if round > 0 {
                    alone.push(time);
                }
            }
        }
        let right = processes[0].right(0);
        if calls.is_empty() {
            // Kernel threads have no callbacks.
            counted = false;
        }
        if counted {
            run.rows
                .push(Row::timed("callback", size, 1, "engine", &calls, right)?);
        }
        run.rows
            .push(Row::timed("message", size, 1, "engine", &alone, right)?);
        run.rows
            .push(Row::timed("message", size, 1, "switch", &switch, right)?);
        if !stop.is_empty() {
            run.rows
                .push(Row::timed("stop", size, 1, "engine", &stop, right)?);
        }
    }
    Ok(())
}
