// SPDX-License-Identifier: MIT OR Apache-2.0

//! The fault matrix: every fault that the modelled engines can have, against every way to move
//! bytes with them. A cell is "right" or a clear error, never wrong bytes. A way is one function:
//! what comes later is one more line in [`WAYS`].

use std::time::Duration;

use nix::errno::Errno;

use crate::abi::*;
use crate::device::{Answer, Device};
use crate::harness::{Context, Outcome, skip};
use crate::kernel::Stats;
use crate::region::Scattered;
use crate::request_setup::{
    HANG_NS, Pair, Parameter, all_in_service, ask, choose, modelled, request,
};
use crate::rng::Rng;
use crate::sys::PAGE;
use crate::{check, check_eq, tests};

tests!(matrix:
    engines_count_the_same_bytes(60), faults(600), nothing_is_queued_behind_a_lost_copy(60),
);

/// A fault, as the model is asked for it.
struct Fault {
    name: &'static str,
    /// Whether only verification finds it.
    silent: bool,
}

const FAULTS: &[Fault] = &[
    Fault::told("read-error"),
    Fault::told("write-error"),
    Fault::told("halt"),
    Fault::told("hang"),
    Fault::told("lost-interrupt"),
    Fault::told("delay=700"),
    Fault {
        name: "corrupt",
        silent: true,
    },
];

impl Fault {
    const fn told(name: &'static str) -> Self {
        Self {
            name,
            silent: false,
        }
    }

    /// Flags that a request needs for this fault to be found.
    fn flags(&self) -> u32 {
        if self.silent { SUBMIT_VERIFY } else { 0 }
    }
}

/// Faults that drivers report or that deadlines find.
pub fn told() -> Vec<&'static str> {
    let told = FAULTS.iter().filter(|fault| !fault.silent);
    told.map(|fault| fault.name).collect()
}

/// What one way to move bytes came to; wrong bytes fail the test.
enum Cell {
    Right,
    Error(Errno),
}

impl std::fmt::Display for Cell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Right => f.pad("right"),
            Self::Error(errno) => f.pad(&format!("{errno:?}")),
        }
    }
}

/// A way to move bytes: its name, how many copies go well before the fault strikes, and what moves
/// them. Moves until everything has ended, and looks at every byte.
struct Way {
    name: &'static str,
    after: u32,
    run: fn(&Device, &Fault, &mut Rng) -> Outcome<Cell>,
}

const WAYS: &[Way] = &[
    Way {
        name: "first page",
        after: 0,
        run: |device, fault, _| whole(device, fault, 1),
    },
    Way {
        name: "pages",
        after: 40,
        run: |device, fault, _| whole(device, fault, 1),
    },
    Way {
        name: "8 pages",
        after: 5,
        run: |device, fault, _| whole(device, fault, 8),
    },
    Way {
        name: "unaligned",
        after: 9,
        run: scattered,
    },
    Way {
        name: "switch",
        after: 20,
        run: |device, fault, _| switched(device, fault),
    },
    Way {
        name: "bcast",
        after: 10,
        run: |_, fault, _| collective(0, fault),
    },
    Way {
        name: "gather",
        after: 20,
        run: |_, fault, _| collective(1, fault),
    },
    Way {
        name: "scatter",
        after: 30,
        run: |_, fault, _| collective(2, fault),
    },
    Way {
        name: "allgather",
        after: 40,
        run: |_, fault, _| collective(3, fault),
    },
];

/// Three ranks whose collectives return early; looking at their buffers is all they do.
fn collective(op: u64, fault: &Fault) -> Outcome<Cell> {
    crate::offload::under_a_fault(op, fault.silent)?;
    Ok(Cell::Right)
}

/// Waits for the end and forgets; a request that hangs fails the test.
fn end(device: &Device, id: u32) -> Outcome<Answer<()>> {
    let (answer, left) = device.await_request(id, REQUEST_RELEASE, HANG_NS);
    check!(answer != Err(Errno::ETIMEDOUT), "{left:?}");
    Ok(answer)
}

/// Two requests at a time, each a mebibyte.
fn whole(device: &Device, fault: &Fault, pages: u32) -> Outcome<Cell> {
    const LENGTH: usize = 1 << 20;
    let pairs = [Pair::new(device, LENGTH)?, Pair::new(device, LENGTH)?];
    let mut ids = Vec::new();
    for pair in &pairs {
        ids.push(submit(device, pair, fault, pages)?);
    }
    let mut cell = Cell::Right;
    for (pair, id) in pairs.iter().zip(ids) {
        match end(device, id)? {
            Ok(()) => pair.check()?,
            Err(errno) => cell = Cell::Error(errno),
        }
        device.unpin(pair.source)?;
        device.unpin(pair.destination)?;
    }
    Ok(cell)
}

fn submit(device: &Device, pair: &Pair, fault: &Fault, pages: u32) -> Answer<u32> {
    let length = pair.from.len() as u64;
    let submission = RequestSubmit {
        fragment_pages: pages,
        flags: fault.flags(),
        ..request((pair.source, 0), (pair.destination, 0), length)
    };
    device.submit_with(submission).map(|answer| answer.id)
}

/// Pieces of any length at any address, several requests one after the other.
fn scattered(device: &Device, fault: &Fault, rng: &mut Rng) -> Outcome<Cell> {
    let mut cell = Cell::Right;
    for _ in 0..6 {
        let pair = Scattered::new(device, rng, 48, 3 * PAGE)?;
        let submission = RequestSubmit {
            flags: fault.flags(),
            ..request(pair.source_at, pair.target_at, pair.length as u64)
        };
        let id = device.submit_with(submission)?.id;
        match end(device, id)? {
            Ok(()) => pair.check(device, 1)?,
            Err(errno) => cell = Cell::Error(errno),
        }
    }
    Ok(cell)
}

/// A process that cannot wait any longer while the engine fails.
fn switched(device: &Device, fault: &Fault) -> Outcome<Cell> {
    let pair = Pair::new(device, 1 << 20)?;
    let id = submit(device, &pair, fault, 1)?;
    device.await_front(id, 16 * PAGE as u64)?;
    let cell = match device.switch(id, 0).0 {
        Ok(()) => Cell::Right,
        Err(errno) => Cell::Error(errno),
    };
    match end(device, id)? {
        Ok(()) => pair.check()?,
        Err(errno) => check!(matches!(cell, Cell::Error(_)), "{errno:?}"),
    }
    device.unpin(pair.source)?;
    device.unpin(pair.destination)?;
    Ok(cell)
}

/// What the module says that engines have moved is what they have counted themselves.
fn engines_count_the_same_bytes(context: &Context) -> Outcome {
    if !modelled() {
        return skip("no model of copy engines (scripts/vm --ioat)");
    }
    const LENGTH: u64 = 8 << 20;
    let _chosen = choose("auto")?;
    let _deadline = Parameter::set("engine_deadline_ms", 60_000 * context.scale)?;
    let (device, _) = Device::domain()?;
    let moved = || -> Outcome<u64> {
        let totals: serde_json::Value =
            serde_json::from_str(&ask(&["totals"])?).map_err(|e| e.to_string())?;
        totals["bytes"]
            .as_u64()
            .ok_or_else(|| format!("no counter bytes: {totals}").into())
    };
    let stats = Stats::read()?;
    let before = moved()?;
    let pair = Pair::new(&device, LENGTH as usize)?;
    let id = submit(&device, &pair, &FAULTS[0], 8)?;
    device.await_request(id, 0, -1).0?;
    let info = device.request_info(id)?;
    device.complete(id)?;
    pair.check()?;
    let after = Stats::read()?;
    if after.since(&stats, "channels_quarantined")? > 0 {
        return skip("the machine was too slow for its engines: CPUs did a part");
    }
    check_eq!(info.engine_bytes, LENGTH);
    check_eq!(moved()? - before, LENGTH);
    check_eq!(after.since(&stats, "bytes_engine")?, LENGTH as i64);
    Ok(())
}

/// Every fault against every way. The channels come back each time, and all counters that failure
/// is told by have grown in the end.
///
/// Each fault meets a third of the ways unless all repetitions are asked for, and where a channel
/// takes minutes to come back (`--scale`) one; the seed chooses.
fn faults(context: &Context) -> Outcome {
    if !modelled() {
        return skip("no model of copy engines (scripts/vm --ioat)");
    }
    let _chosen = choose("auto")?;
    let _deadline = Parameter::set("engine_deadline_ms", 300 * context.scale)?;
    let (device, _) = Device::domain()?;
    // A request that loses the only channel is handed over to none.
    let mut has_others = false;
    for index in 0..device.info()?.engines {
        has_others |= device.engine(index)?.channels > 1;
    }
    let before = Stats::read()?;
    let mut rng = context.rng();
    print!("\n    {:<16}", "");
    for way in WAYS {
        print!("{:>12}", way.name);
    }
    println!();
    for (row, fault) in FAULTS.iter().enumerate() {
        print!("    {:<16}", fault.name);
        for (column, way) in WAYS.iter().enumerate() {
            let chosen = row + context.seed as usize;
            let is_left_out = if context.scale > 1 {
                column != chosen % WAYS.len()
            } else {
                let parts = context.rounds(1, 3);
                column % parts != chosen % parts
            };
            if is_left_out {
                print!("{:>12}", "-");
                continue;
            }
            let after = format!("after={}", way.after);
            ask(&["fault", "*", fault.name, &after, "count=1"])?;
            let cell = (way.run)(&device, fault, &mut rng).map_err(|stop| match stop {
                crate::harness::Stop::Fail(message) => {
                    format!("{}, {}: {message}", fault.name, way.name).into()
                }
                other => other,
            });
            ask(&["clear-faults", "*"])?;
            print!("{:>12}", cell?);
            all_in_service(context, &device)?;
        }
        println!();
    }
    let after = Stats::read()?;
    for counter in [
        "engine_failures",
        "engine_deadlines",
        "channels_quarantined",
        "channels_restored",
        "handovers",
        "takeovers",
        "verify_failures",
    ] {
        let grown = after.since(&before, counter)?;
        println!("    {counter} {grown}");
        check!(
            grown > 0 || (counter == "handovers" && !has_others),
            "{counter} did not grow"
        );
    }
    check_eq!(after.since(&before, "requests_failed")?, 0);
    check_eq!(
        after.since(&before, "channels_quarantined")?,
        after.since(&before, "channels_restored")?
    );
    // And it is the engine that works afterwards.
    let pair = Pair::new(&device, 1 << 20)?;
    let id = pair.submit(&device)?;
    device.await_request(id, 0, -1).0?;
    check_eq!(device.request_info(id)?.engine_bytes, 1 << 20);
    device.complete(id)?;
    pair.check()
}

/// A driver that resets a halted channel behind our back may take for done what was submitted next.
/// Small requests, submitted while the deadline is far away: the bytes of those that succeed must
/// be right.
fn nothing_is_queued_behind_a_lost_copy(context: &Context) -> Outcome {
    if !modelled() {
        return skip("no model of copy engines (scripts/vm --ioat)");
    }
    let _chosen = choose("auto")?;
    let _deadline = Parameter::set("engine_deadline_ms", 1500)?;
    let _depth = Parameter::set("engine_depth", 1)?;
    let (device, _) = Device::domain()?;
    for fault in ["halt", "hang"] {
        let pairs: Vec<Pair> = (0..24)
            .map(|_| Pair::new(&device, PAGE))
            .collect::<Outcome<_>>()?;
        ask(&["fault", "*", fault, "after=3", "count=1"])?;
        let before = Stats::read()?;
        let mut ids = Vec::new();
        for pair in &pairs {
            ids.push(pair.submit(&device)?);
            std::thread::sleep(Duration::from_millis(40));
        }
        for (pair, id) in pairs.iter().zip(ids) {
            let answer = end(&device, id)?;
            check!(answer.is_ok(), "{fault}: {answer:?}");
            pair.check()?;
            device.unpin(pair.source)?;
            device.unpin(pair.destination)?;
        }
        // Nobody calls back for a descriptor that is lost.
        let given_up = Stats::read()?.since(&before, "engine_deadlines")?;
        check!(given_up > 0, "{fault} has not struck");
        ask(&["clear-faults", "*"])?;
        all_in_service(context, &device)?;
    }
    Ok(())
}
