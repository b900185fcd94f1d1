// SPDX-License-Identifier: MIT OR Apache-2.0

//! What of a request is the work of a thread of the submitter's: checksums, and what engines leave.

use std::fs;
use std::time::Duration;

use nix::errno::Errno;

use crate::abi::*;
use crate::death::soon;
use crate::device::Device;
use crate::harness::{Context, Outcome, Stop, skip};
use crate::kernel::{Stats, wait_balanced};
use crate::request_setup::{
    HANG_NS, Pair, Table, all_in_service, ask, choose, modelled, request, software_engine,
    with_each,
};
use crate::sys::{self, Child, PAGE, SharedCounters};
use crate::{check, check_eq, tests};

tests!(request:
    checksums_are_the_submitters_work(120), a_copy_ends_with_its_request(60),
    a_copier_that_never_ran_leaves_nothing(120), what_an_engine_loses_is_the_submitters_work(120),
);

/// A cgroup of its own; gone when this is dropped, if nobody is in it any more.
pub struct Cgroup {
    root: String,
    path: String,
}

impl Cgroup {
    pub fn new(name: &str) -> Outcome<Self> {
        let root = format!("/tmp/{name}.{}", std::process::id());
        fs::create_dir_all(&root)?;
        sys::mount("none", &root, "cgroup2")?;
        let path = format!("{root}/{name}");
        fs::create_dir_all(&path)?;
        Ok(Self { root, path })
    }

    /// The path of one of its files.
    pub fn file(&self, name: &str) -> String {
        format!("{}/{name}", self.path)
    }

    /// Moves the calling process into it.
    pub fn enter(&self) -> Outcome {
        Ok(fs::write(self.file("cgroup.procs"), "0")?)
    }

    /// Lets it have `count` threads at most.
    pub fn limit_threads(&self, count: usize) -> Outcome {
        fs::write(format!("{}/cgroup.subtree_control", self.root), "+pids")?;
        Ok(fs::write(self.file("pids.max"), count.to_string())?)
    }

    /// Takes the group away; fails while somebody is in it.
    fn remove(&self) -> std::io::Result<()> {
        fs::remove_dir(&self.path)
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = self.remove();
        let _ = nix::mount::umount2(&*self.root, nix::mount::MntFlags::MNT_DETACH);
        let _ = fs::remove_dir(&self.root);
    }
}

/// User workers of a process.
pub fn workers(pid: i32) -> Outcome<Vec<i32>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/task"))?.flatten() {
        let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
        let number = entry.file_name();
        let number = number.to_str().and_then(|name| name.parse().ok());
        if let (Some(number), "libcopy/copier") = (number, name.trim()) {
            found.push(number);
        }
    }
    Ok(found)
}

/// User workers of this process in the cgroup `group`, with the nanoseconds that each has run.
fn copiers(group: &str) -> Outcome<Vec<(i32, u64)>> {
    let mut found = Vec::new();
    for worker in workers(std::process::id() as i32)? {
        let path = format!("/proc/self/task/{worker}");
        let read = |file: &str| fs::read_to_string(format!("{path}/{file}")).unwrap_or_default();
        if read("cgroup").trim() != group {
            continue;
        }
        let ran = read("schedstat")
            .split_whitespace()
            .next()
            .and_then(|word| word.parse().ok());
        // A kernel without CONFIG_SCHED_INFO has only what its ticks saw: `stime`, the 15th field,
        // in hundredths of a second. The name has no blank.
        let ticks = || -> Option<u64> { read("stat").split_whitespace().nth(14)?.parse().ok() };
        let ran = ran.or_else(|| Some(ticks()? * 10_000_000));
        found.push((worker, ran.unwrap_or(0)));
    }
    Ok(found)
}

/// Comparing what an engine has moved is work of a thread in the submitter's cgroup, for which the
/// submitter's container pays, and which does not outlive it.
fn checksums_are_the_submitters_work(context: &Context) -> Outcome {
    /// Requests after which the thread has run for long enough to be seen, whatever kernel and
    /// machine.
    const ROUNDS: u32 = 100;
    // Where every byte is checked, filling the buffers would take minutes.
    let len = (16 << 20) / context.scale as usize / PAGE * PAGE;
    with_each(|| {
        let group = Cgroup::new("verify")?;
        let counters = SharedCounters::new()?;
        let submit_on_and_on = || -> Outcome {
            group.enter()?;
            let (device, _) = Device::domain()?;
            let pair = Pair::new(&device, len)?;
            let mine = fs::read_to_string("/proc/self/cgroup")?.trim().to_owned();
            check!(mine.ends_with("/verify"), "in the group {mine:?}");
            for round in 1.. {
                let id = device
                    .submit_with(RequestSubmit {
                        flags: SUBMIT_VERIFY,
                        fragment_pages: 256,
                        ..request((pair.source, 0), (pair.destination, 0), len as u64)
                    })?
                    .id;
                if round >= 3 && counters.get(0) == 0 {
                    // Two milliseconds: 64 MiB take longer even on a fast processor.
                    let ran: u64 = copiers(&mine)?.iter().map(|(_, ran)| ran).sum();
                    check!(
                        round < ROUNDS,
                        "after {ROUNDS} requests threads of the group have run for {ran} ns"
                    );
                    if ran > 2_000_000 {
                        counters.set(0, 1);
                    }
                }
                // After that one request after the other, until the end.
                device.complete(id)?;
            }
            Ok(())
        };
        let child = Child::spawn(|| {
            let ended = submit_on_and_on();
            counters.set(0, 2);
            ended
        })?;
        if counters.await_at_least(0, 1).is_ok_and(|seen| seen == 1) {
            child.kill_at_once(context)?;
        } else {
            return child.join();
        }
        // The thread is gone when the group can be.
        soon(context, || group.remove().is_ok())
    })
}

/// A fragment that an engine was given and does not copy is copied by the thread in the submitter's
/// cgroup that compares checksums, not by the supervisor, which serves everybody.
fn what_an_engine_loses_is_the_submitters_work(context: &Context) -> Outcome {
    if !modelled() {
        return skip("no model of copy engines (scripts/vm --ioat)");
    }
    let _chosen = choose("auto")?;
    let group = Cgroup::new("lost")?;
    Child::spawn(|| {
        group.enter()?;
        let mine = fs::read_to_string("/proc/self/cgroup")?.trim().to_owned();
        let (device, _) = Device::domain()?;
        let before = Stats::read()?;
        // One fragment, which the engine claims when it is submitted: nothing is left for a
        // take-over.
        let pair = Pair::new(&device, PAGE)?;
        ask(&["fault", "*", "hang", "after=0", "count=1"])?;
        let (answer, left) = device.await_request(pair.submit(&device)?, 0, HANG_NS);
        ask(&["clear-faults", "*"])?;
        check!(answer.is_ok(), "{answer:?} {left:?}");
        pair.check()?;
        let info = device.request_info(left.id)?;
        check_eq!((info.engine_bytes, info.cpu_bytes), (0, PAGE as u64));
        check_eq!(Stats::read()?.since(&before, "takeovers")?, 0);
        check_eq!(copiers(&mine)?.len(), 1, "threads in the group {mine:?}");
        device.complete(left.id)?;
        all_in_service(context, &device)
    })?
    .join()?;
    // The thread is gone when the group can be.
    soon(context, || group.remove().is_ok())
}

/// What a CPU is copying for a request that is cancelled is not copied to its end: a fragment may
/// have 16 MiB.
fn a_copy_ends_with_its_request(_: &Context) -> Outcome {
    const LEN: usize = MAX_FRAGMENT_PAGES as usize * PAGE;
    let _chosen = choose(software_engine())?;
    let (device, _) = Device::domain()?;
    let pair = Pair::new(&device, LEN)?;
    let table = Table::of(&device)?;
    for _ in 0..50 {
        let id = device
            .submit_with(RequestSubmit {
                fragment_pages: MAX_FRAGMENT_PAGES,
                ..request((pair.source, 0), (pair.destination, 0), LEN as u64)
            })?
            .id;
        while table.entry(id).next == 0 && table.state(id) == REQUEST_RUNNING {
            std::hint::spin_loop();
        }
        // The buffer need not start at a page of its own: then it has two fragments.
        let claimed = table.entry(id).next;
        let left = device.cancel(id)?;
        if claimed != 0 && left.state == REQUEST_FAILED && left.done == 0 {
            check_eq!(table.entry(id).error, Errno::ECANCELED as i32);
            return Ok(());
        }
    }
    Err("50 cancelled requests were copied to their end"
        .to_owned()
        .into())
}

/// The submitter leaves while the thread for its checksums is being started, and has not run yet.
fn a_copier_that_never_ran_leaves_nothing(context: &Context) -> Outcome {
    with_each(|| {
        // New threads wait for a processor.
        let hogs: Vec<Child> = (0..2 * num_cpus())
            .map(|_| {
                Child::spawn(|| {
                    loop {
                        std::hint::spin_loop();
                    }
                })
            })
            .collect::<Outcome<_>>()?;
        let mut rng = context.rng();
        for _ in 0..(200 / context.scale).max(20) {
            let (device, _) = Device::domain()?;
            let pair = Pair::new(&device, PAGE)?;
            device.submit_with(RequestSubmit {
                flags: SUBMIT_VERIFY,
                ..request((pair.source, 0), (pair.destination, 0), PAGE as u64)
            })?;
            std::thread::sleep(Duration::from_micros(rng.word() % 1000));
            drop(device);
        }
        for hog in hogs {
            hog.kill_at_once(context)?;
        }
        wait_balanced(context.second()).map_err(Stop::Fail)
    })
}

fn num_cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
