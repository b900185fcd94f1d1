// SPDX-License-Identifier: MIT OR Apache-2.0

//! The thread of a process that does the CPU work of its requests: it counts in the limits of the
//! process, nobody waits for it, and it ends by itself.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nix::errno::Errno;

use crate::abi::*;
use crate::death::soon;
use crate::device::{Answer, Device};
use crate::harness::{Context, Outcome, Stop};
use crate::kernel::wait_balanced;
use crate::request_copier::{Cgroup, workers};
use crate::request_setup::{
    LONG, Pair, any_engine, choose, engines_count, request, software_engine,
};
use crate::sys::{self, Child, PAGE, SharedCounters};
use crate::{check, check_eq, tests};

tests!(request:
    files_share_a_worker(120), workers_count_in_limits(120), closing_waits_for_no_stranger(120), worker_killed_while_copying(120),
    a_killed_helper_spoils_nothing(120), an_idle_worker_ends(120), workers_and_threads_freeze(120),
);

/// Files that each test of limits opens.
const FILES: usize = 24;

fn verified(device: &Device, pair: &Pair) -> Answer<u32> {
    let length = pair.from.len() as u64;
    let what = RequestSubmit {
        flags: SUBMIT_VERIFY,
        ..request((pair.source, 0), (pair.destination, 0), length)
    };
    device.submit_with(what).map(|answer| answer.id)
}

/// Threads of a process, user workers included.
fn threads(pid: i32) -> Outcome<usize> {
    Ok(fs::read_dir(format!("/proc/{pid}/task"))?.count())
}

fn opened() -> Outcome<Vec<Device>> {
    (0..FILES).map(|_| Ok(Device::open()?)).collect()
}

/// Whatever files a process submits through, it has one worker; and closing some of them ends
/// nothing of the others.
fn files_share_a_worker(context: &Context) -> Outcome {
    let _chosen = choose(any_engine())?;
    sys::in_child(|| {
        let me = std::process::id() as i32;
        let mut all = Vec::new();
        for device in opened()? {
            device.create()?;
            let pair = Pair::new(&device, 64 * PAGE)?;
            let id = verified(&device, &pair)?;
            check_eq!(threads(me)?, 2, "threads with {} files", all.len() + 1);
            all.push((device, pair, id));
        }
        let mut number = 0;
        all.retain(|_| {
            number += 1;
            number % 2 == 0
        });
        check_eq!(all.len(), FILES / 2);
        for (device, pair, id) in &all {
            device.complete(*id)?;
            pair.check()?;
        }
        check_eq!(threads(me)?, 2, "threads while files are open");
        drop(all);
        soon(context, || threads(me).is_ok_and(|count| count == 1))?;
        // Files that come later have one again.
        let (device, _) = Device::domain()?;
        let pair = Pair::new(&device, PAGE)?;
        let id = verified(&device, &pair)?;
        check_eq!(threads(me)?, 2);
        device.complete(id)?;
        pair.check()
    })
}

/// Submits in as many files: all are refused if there may be one thread only, and none if there may
/// be two.
fn stays_within(files: Vec<Device>, allowed: usize) -> Outcome {
    let me = std::process::id() as i32;
    let all = files
        .into_iter()
        .map(|device| {
            device.create()?;
            let pair = Pair::new(&device, PAGE)?;
            Ok((device, pair))
        })
        .collect::<Outcome<Vec<_>>>()?;
    let answers: Vec<_> = all
        .iter()
        .map(|(device, pair)| verified(device, pair))
        .collect();
    let count = threads(me)?;
    check!(count <= allowed, "{count} threads, {allowed} are allowed");
    let refused = answers.iter().filter(|answer| answer.is_err()).count();
    check_eq!(refused, if allowed == 1 { FILES } else { 0 });
    for ((device, pair), answer) in all.iter().zip(answers) {
        match answer {
            Ok(id) => device.complete(id)?,
            Err(Errno::EAGAIN) => {
                // As the library does: this CPU copies.
                device.copy(
                    pair.source,
                    COPY_FROM_REGION,
                    0,
                    PAGE as u64,
                    &[pair.to.piece()],
                )?;
            }
            Err(errno) => return Err(Stop::Fail(format!("{errno} instead of EAGAIN"))),
        }
        pair.check()?;
    }
    Ok(())
}

/// A process that submits in many files has no more threads than its limits allow: submitting says
/// so.
fn workers_count_in_limits(_: &Context) -> Outcome {
    let _chosen = choose(any_engine())?;
    for allowed in [1, 2] {
        sys::in_child(|| {
            let files = opened()?;
            sys::become_user(1000)?;
            let limit = libc::rlimit {
                rlim_cur: allowed as u64,
                rlim_max: allowed as u64,
            };
            // SAFETY: `limit` outlives the call.
            sys::result(unsafe { libc::setrlimit(libc::RLIMIT_NPROC, &limit) }.into())?;
            stays_within(files, allowed)
        })?;
        let group = Cgroup::new("few")?;
        group.limit_threads(allowed)?;
        sys::in_child(|| {
            group.enter()?;
            stays_within(opened()?, allowed)
        })?;
    }
    Ok(())
}

/// A file that was passed on is closed at once, though the worker of who submitted through it
/// cannot go on.
fn closing_waits_for_no_stranger(context: &Context) -> Outcome {
    let _chosen = choose(any_engine())?;
    let (ours, theirs) = UnixStream::pair()?;
    let counters = SharedCounters::new()?;
    let child = Child::spawn(|| {
        let (device, _) = Device::domain()?;
        let pair = Pair::new(&device, LONG)?;
        sys::send_fd(theirs.as_fd(), device.as_fd())?;
        for _ in 0..8 {
            verified(&device, &pair)?;
        }
        drop(device);
        counters.set(0, 1);
        std::thread::sleep(Duration::from_secs(600));
        Ok(())
    })?;
    let device = Device::from(sys::receive_fd(ours.as_fd())?);
    counters.await_at_least(0, 1)?;
    sys::signal(child.pid, libc::SIGSTOP);
    let stopped =
        || sys::is_stopped(child.pid) && workers(child.pid).is_ok_and(|all| all.len() == 1);
    soon(context, stopped)?;
    // Returns at all.
    drop(device);
    check_eq!(
        workers(child.pid)?.len(),
        1,
        "workers of a process that is stopped"
    );
    // And has ended everything, so that nothing stays pinned meanwhile.
    wait_balanced(context.second()).map_err(Stop::Fail)?;
    sys::signal(child.pid, libc::SIGCONT);
    soon(context, || {
        workers(child.pid).is_ok_and(|all| all.is_empty())
    })?;
    check_eq!(threads(child.pid)?, 1);
    child.kill_at_once(context)
}

/// Has CPUs copy what an engine was asked for: it goes out of use.
fn leave_to_cpus() -> Outcome {
    fs::write(crate::request_setup::PARAMETER, "off")?;
    Device::open()?.info()?;
    Ok(())
}

/// A process is killed while its worker copies or compares, which ends at once and leaves nothing.
fn worker_killed_while_copying(context: &Context) -> Outcome {
    let mut rng = context.rng();
    for round in 0..4 {
        let _chosen = choose(software_engine())?;
        let counters = SharedCounters::new()?;
        let child = Child::spawn(|| {
            let (device, _) = Device::domain()?;
            let pair = Pair::new(&device, LONG)?;
            for _ in 0..8 {
                device.submit_with(RequestSubmit {
                    flags: if round % 2 == 0 { 0 } else { SUBMIT_VERIFY },
                    fragment_pages: if round % 4 < 2 { MAX_FRAGMENT_PAGES } else { 1 },
                    ..request((pair.source, 0), (pair.destination, 0), LONG as u64)
                })?;
            }
            counters.set(0, 1);
            std::thread::sleep(Duration::from_secs(600));
            Ok(())
        })?;
        counters.await_at_least(0, 1)?;
        leave_to_cpus()?;
        std::thread::sleep(Duration::from_micros(rng.below(10_000)));
        child.kill_at_once(context)?;
        wait_balanced(context.second()).map_err(Stop::Fail)?;
    }
    Ok(())
}

/// What somebody who helps had claimed when he was killed is copied by the submitter's worker.
fn a_killed_helper_spoils_nothing(context: &Context) -> Outcome {
    let mut rng = context.rng();
    for _ in 0..context.rounds(4, 2) {
        let _chosen = choose(software_engine())?;
        let (device, key) = Device::domain()?;
        let pair = Pair::new(&device, LONG)?;
        let id = device
            .submit_with(RequestSubmit {
                fragment_pages: MAX_FRAGMENT_PAGES / 4,
                ..request((pair.source, 0), (pair.destination, 0), LONG as u64)
            })?
            .id;
        let counters = SharedCounters::new()?;
        let child = Child::spawn(|| {
            let peer = Device::member(key)?;
            counters.set(0, 1);
            let _ = peer.switch(id, SWITCH_HELP);
            Ok(())
        })?;
        counters.await_at_least(0, 1)?;
        std::thread::sleep(Duration::from_micros(rng.below(6_000)));
        child.kill_at_once(context)?;
        device.complete(id)?;
        pair.check()?;
    }
    Ok(())
}

/// A worker ends when its process submits nothing more, and another one starts when it does; who
/// inherits the file has one of its own.
fn an_idle_worker_ends(context: &Context) -> Outcome {
    let _chosen = choose(any_engine())?;
    let me = std::process::id() as i32;
    let (device, _) = Device::domain()?;
    for round in 0..2 {
        let pair = Pair::new(&device, PAGE)?;
        let submitted = Instant::now();
        let id = verified(&device, &pair)?;
        let found = workers(me)?.len();
        // Unless this took longer than workers stay.
        if submitted.elapsed() < Duration::from_secs(1) {
            check_eq!(found, 1, "workers in round {round}");
        }
        device.complete(id)?;
        pair.check()?;
        soon(context, || workers(me).is_ok_and(|all| all.is_empty()))
            .or_else(|_| soon(context, || workers(me).is_ok_and(|all| all.is_empty())))
            .or_else(|_| soon(context, || workers(me).is_ok_and(|all| all.is_empty())))
            .or_else(|_| soon(context, || workers(me).is_ok_and(|all| all.is_empty())))?;
    }
    sys::in_child(|| {
        let me = std::process::id() as i32;
        let pair = Pair::new(&device, PAGE)?;
        let id = verified(&device, &pair)?;
        check!(workers(me)?.len() <= 1, "{:?}", workers(me)?);
        device.complete(id)?;
        pair.check()
    })?;
    check_eq!(workers(me)?.len(), 0, "workers of who did not submit");
    Ok(())
}

/// A process with a worker can be frozen, and the module's kernel threads can.
fn workers_and_threads_freeze(context: &Context) -> Outcome {
    /// Of `include/linux/sched.h`.
    const PF_NOFREEZE: u64 = 0x8000;
    let _chosen = choose(software_engine())?;
    let group = Cgroup::new("freeze")?;
    let counters = SharedCounters::new()?;
    let child = Child::spawn(|| {
        group.enter()?;
        let (device, _) = Device::domain()?;
        let pair = Pair::new(&device, LONG)?;
        loop {
            let id = verified(&device, &pair)?;
            counters.bump(0);
            // Being frozen interrupts the wait.
            while let Err(errno) = device.complete(id) {
                check_eq!(errno, Errno::EINTR);
            }
        }
    })?;
    for round in 1..4 {
        counters.await_at_least(0, 2 * round)?;
        fs::write(group.file("cgroup.freeze"), "1")?;
        let frozen = || fs::read_to_string(group.file("cgroup.events")).unwrap_or_default();
        soon(context, || frozen().contains("frozen 1"))?;
        fs::write(group.file("cgroup.freeze"), "0")?;
    }
    let mut seen = 0;
    for entry in fs::read_dir("/proc")?.flatten() {
        let read = |file: &str| fs::read_to_string(entry.path().join(file)).unwrap_or_default();
        if !read("comm").starts_with("libcopy/") {
            continue;
        }
        let stat = read("stat");
        let flags = stat
            .split_whitespace()
            .nth(8)
            .and_then(|word| word.parse::<u64>().ok());
        check!(
            flags.is_some_and(|flags| flags & PF_NOFREEZE == 0),
            "cannot be frozen: {stat}"
        );
        seen += 1;
    }
    check!(
        seen > 0 || !engines_count(),
        "no kernel thread of the module"
    );
    child.kill_at_once(context)
}
