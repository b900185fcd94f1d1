// SPDX-License-Identifier: MIT OR Apache-2.0

//! How processes come into a team and go out of it: those that cannot join, forked children, those
//! that die; and how many system calls it takes to know of that.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use libcopy::policy::Async;
use libcopy::{ANY_SOURCE, ANY_TAG, Error, Parts, Result, Team, TeamKey, TransportKind, team};

/// What a rank does; `LIBCOPY_TEST` says which.
const SCRIPT: &str = "LIBCOPY_TEST";

fn program(script: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "a_rank", "--nocapture", "--quiet"])
        .env(SCRIPT, script)
        .env("LIBCOPY_PROFILE", "none")
        .stdout(std::process::Stdio::null());
    command
}

fn run(size: usize, script: &str, change: impl Fn(usize, &mut Command)) -> Vec<ExitStatus> {
    team::launch(size, |rank| {
        let mut command = program(script);
        change(rank, &mut command);
        command
    })
    .unwrap()
}

fn run_well(size: usize, script: &str, change: impl Fn(usize, &mut Command)) {
    let statuses = run(size, script, change);
    assert!(statuses.iter().all(ExitStatus::success), "{statuses:?}");
}

/// The body of a rank; as a test of its own it does nothing.
#[test]
fn a_rank() {
    let Ok(script) = std::env::var(SCRIPT) else {
        return;
    };
    if let Some(("4", "Cannot allocate memory")) = script.split_once(' ')
        && std::env::var("LIBCOPY_RANK").as_deref() == Ok("4")
    {
        limit_memory();
    }
    if std::env::var("LIBCOPY_KEY").is_err() {
        return;
    }
    let started = Instant::now();
    let joined = Team::from_env();
    let took = started.elapsed();
    match script.as_str() {
        "meets" => meets(&mut joined.unwrap()),
        "takes" => takes_little(&mut joined.unwrap()),
        "forks" => forks(joined.unwrap()),
        "waits" => waits(&mut joined.unwrap()),
        "dies" => dies(&mut joined.unwrap()),
        script => {
            let (rank, cause) = script.split_once(' ').unwrap();
            fails(joined.map(drop), took, rank.parse().unwrap(), cause);
        }
    }
}

/// Rank `failed` cannot join, and says why; the others hear of it soon.
fn fails(joined: Result<()>, took: Duration, failed: usize, cause: &str) {
    let error = joined.unwrap_err();
    assert!(error.report().contains(cause), "{}", error.report());
    let me: usize = std::env::var("LIBCOPY_RANK").unwrap().parse().unwrap();
    match error {
        Error::Join { rank, .. } => assert_eq!(rank, failed),
        error => assert_eq!(me, failed, "{error}"),
    }
    // Those that were started last may be late; nobody waits for 30 s.
    assert!(took < Duration::from_secs(10), "{took:?}");
}

#[test]
fn a_directory_that_is_not_there_is_one_error_for_all() {
    run_well(6, "0 No such file", |_, command| {
        command.env("LIBCOPY_SHM_DIR", "/nonexistent/directory");
    });
}

/// The mapping of the segment fails on one rank.
#[test]
fn a_rank_that_cannot_join_is_an_error_for_all() {
    run_well(6, "4 Cannot allocate memory", |_, _| {});
}

/// Leaves this process no address space for a segment.
fn limit_memory() {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = pages.split(' ').next().unwrap().parse().unwrap();
    let limit = libc::rlimit {
        rlim_cur: (pages << 12) + (1 << 20),
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: a valid limit.
    let answer = unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) };
    assert_eq!(answer, 0);
}

/// Ranks that got together, whatever they see of each other's files.
fn meets(team: &mut Team) {
    let (me, size) = (team.rank(), team.size());
    let mut all = vec![0; size];
    team.allgather(&[me as u8], &mut all).unwrap();
    assert!(
        all.iter()
            .enumerate()
            .all(|(rank, byte)| rank == *byte as usize)
    );
    let (mut bytes, right) = (vec![0; 100_000], (me + 1) % size);
    let from = (me + size - 1) % size;
    let sent = vec![me as u8; 100_000];
    team.sendrecv(&sent, (right, 0), &mut bytes, (from, 0))
        .unwrap();
    assert_eq!(bytes, vec![from as u8; 100_000]);
}

/// As containers have a `/dev/shm` each.
#[test]
fn ranks_with_directories_of_their_own_meet() {
    let own = |parity: usize| {
        let name = format!("libcopy-test-{}-{parity}", std::process::id());
        let path = std::path::Path::new("/dev/shm").join(name);
        std::fs::create_dir(&path).unwrap();
        path
    };
    let directories = [own(0), own(1)];
    run_well(5, "meets", |rank, command| {
        command.env("LIBCOPY_SHM_DIR", &directories[rank % 2]);
    });
    for directory in directories {
        // Nothing was left in it.
        std::fs::remove_dir(directory).unwrap();
    }
}

/// As in a container that has too little of it.
#[test]
fn a_directory_without_room_is_not_needed() {
    let (program, arguments) = (
        std::env::current_exe().unwrap(),
        ["--exact", "is_small", "--nocapture"],
    );
    let script = "mount -t tmpfs -o size=256k none /dev/shm && exec \"$@\"";
    let status = Command::new("unshare")
        .args(["-m", "sh", "-c", script, "sh"])
        .arg(program)
        .args(arguments)
        .env(SCRIPT, "is small")
        .status();
    match status {
        Ok(status) if status.code() == Some(101) => panic!("{status}"),
        Ok(status) if status.success() => {}
        other => eprintln!("skipped: no file system can be mounted: {other:?}"),
    }
}

/// The body of that, where the directory is small; as a test of its own it does nothing.
/// Short and long calls without pairs.
fn takes_little(team: &mut Team) {
    let (rank, size) = (team.rank() as u64, team.size() as u64);
    for root in [0, team.size() - 1] {
        let mut data = vec![rank; 100];
        team.bcast(&mut data, root).unwrap();
        assert_eq!(data, vec![root as u64; 100]);
    }
    let mut sums = vec![0; 5000];
    let add = |from: &[u64], into: &mut [u64]| {
        from.iter().zip(into).for_each(|(term, sum)| *sum += term);
    };
    team.allreduce(Some(&vec![rank; 5000]), &mut sums, add)
        .unwrap();
    assert_eq!(sums, vec![size * (size - 1) / 2; 5000]);
    let sent: Vec<u64> = (0..8 * size).map(|i| rank * 10_000 + i).collect();
    let mut received = vec![0; sent.len()];
    team.alltoall(&sent, &mut received).unwrap();
    for (i, value) in (0..).zip(&received) {
        assert_eq!(*value, i / 8 * 10_000 + rank * 8 + i % 8);
    }
    team.barrier().unwrap();
    let (bytes, most) = (team.shared_memory().0, team.size() << 17);
    assert!(bytes <= most, "{bytes} of {most}");
    team.barrier().unwrap();
    // Each pair of ranks has a ring from here on.
    let counts = vec![3; team.size()];
    let places: Vec<usize> = (0..team.size()).map(|rank| 3 * rank).collect();
    let sent: Vec<u64> = (0..3 * size).map(|i| rank * 10_000 + i).collect();
    let mut received = vec![0; sent.len()];
    let parts = Parts {
        counts: &counts,
        offsets: &places,
    };
    team.alltoallv((&sent, parts), (&mut received, parts))
        .unwrap();
    for (i, value) in (0..).zip(&received) {
        assert_eq!(*value, i / 3 * 10_000 + rank * 3 + i % 3);
    }
    team.barrier().unwrap();
    let (bytes, most) = (team.shared_memory().0, most + 2560 * team.size().pow(2));
    assert!(bytes <= most, "{bytes} of {most}");
    team.barrier().unwrap();
}

/// 16 MiB for 128 ranks, and 40 MiB more where each has sent to each; with 8 KiB for each ring it
/// would be 140 MiB more.
#[test]
fn the_memory_of_a_team_grows_with_its_ranks() {
    run_well(128, "takes", |_, _| {});
}

#[test]
fn is_small() {
    if std::env::var(SCRIPT).is_ok_and(|script| script == "is small") {
        run_well(8, "meets", |_, _| {});
    }
}

type Fork = fn() -> libc::pid_t;

/// The C library's, which calls handlers, and the system call, which does not.
const FORKS: [Fork; 2] = [
    // SAFETY: the child only does what its thread does.
    || unsafe { libc::fork() },
    // SAFETY: as above; without a stack the child goes on with a copy of ours.
    || unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as libc::pid_t },
];

/// Runs `work` in a forked child, and says whether it ended well.
fn in_child(fork: Fork, work: impl FnOnce()) {
    match fork() {
        0 => {
            let work = std::panic::AssertUnwindSafe(work);
            let done = std::panic::catch_unwind(work);
            // SAFETY: ends the child, and nothing of its parent's.
            unsafe { libc::_exit(i32::from(done.is_err())) }
        }
        child => {
            let mut status = -1;
            // SAFETY: our own child, a writable output.
            let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
            assert_eq!((ended, status), (child, 0), "the child has failed");
        }
    }
}

/// All ranks have a child, which tries whatever the team offers; then they go on.
fn forks(mut team: Team) {
    let me = team.rank();
    for (round, fork) in FORKS.into_iter().enumerate() {
        let tag = round as i32;
        let (sent, mut received) = (vec![7 + me as u8; 3 << 20], vec![0u8; 3 << 20]);
        // Long enough to be read out of the sender's memory while its child has a copy of it.
        // SAFETY: both buffers live until the requests are complete.
        let request = unsafe { team.isend((&sent).into(), 1 - me, tag) }.unwrap();
        team.barrier().unwrap();
        let mut kept = Some((team, sent, request));
        in_child(fork, || is_forked(kept.take().unwrap()));
        let (mut parents, sent, request) = kept.take().unwrap();
        parents.barrier().unwrap();
        parents.recv(&mut received, 1 - me, tag).unwrap();
        assert_eq!(received, vec![8 - me as u8; 3 << 20], "another's bytes");
        parents.wait(request).unwrap();
        drop(sent);
        assert!(!parents.usage().is_broken() && !parents.usage().is_retired());
        assert!(parents.usage().is_idle());
        team = parents;
    }
    meets(&mut team);
}

/// What a child may not do with its parent's team, which it then drops.
fn is_forked((mut team, mut sent, request): (Team, Vec<u8>, libcopy::p2p::Request)) {
    fn refused<T>(result: Result<T>) {
        let Err(error) = result else {
            panic!("a child has done something")
        };
        let parent = std::os::unix::process::parent_id();
        assert!(
            matches!(error, Error::Forked { owner, .. } if owner == parent),
            "{error}"
        );
    }
    sent.fill(0);
    let (mut two, mut other) = ([1u8; 2], [0u8; 2]);
    refused(team.barrier());
    refused(team.bcast(&mut two, 0));
    refused(team.gather_in_place(&mut two, 0));
    refused(team.scatter_in_place(&mut two, 0));
    refused(team.allgather_in_place(&mut two));
    refused(team.alltoall(&two, &mut other));
    refused(team.allreduce(Some(&two), &mut other, |_, _| {}));
    refused(team.send(&two, 1 - team.rank(), 9));
    refused(team.send(&two, team.rank(), 9));
    refused(team.recv(&mut two, ANY_SOURCE, ANY_TAG));
    refused(team.iprobe(ANY_SOURCE, ANY_TAG));
    refused(team.sendrecv(&two, (0, 9), &mut other, (0, 9)));
    refused(team.messages_in(|messages| messages.isend(&two, 0, 9)));
    refused(team.set_transport(Some(TransportKind::Shm)));
    refused(team.set_async(Async::Off));
    refused(team.wait(request));
    let usage = team.usage();
    usage.lend(5);
    usage.give_back();
    usage.retire();
    team.resumption().failed(1);
    assert!(!team.resumption().goes_past(1, Duration::ZERO, || {}));
    team.give_up();
    refused(team.barrier());
    drop(team);
    // It may have teams of its own.
    let mut own = Team::join(&TeamKey::random().unwrap(), 0, 1).unwrap();
    own.barrier().unwrap();
    own.send(&two, 0, 1).unwrap();
}

#[test]
fn a_forked_child_does_not_touch_its_parents_team() {
    for transport in ["", "shm"] {
        run_well(2, "forks", |_, command| {
            if !transport.is_empty() {
                command.env("LIBCOPY_TRANSPORT", transport);
            }
        });
    }
}

/// A team of one has nobody to ask.
#[test]
fn a_team_of_one_does_not_go_to_a_child_either() {
    let mut team = Team::join(&TeamKey::random().unwrap(), 0, 1).unwrap();
    in_child(FORKS[0], || {
        assert!(matches!(team.barrier(), Err(Error::Forked { .. })));
    });
}

/// How often this process has asked who holds a lock.
static ASKED: AtomicUsize = AtomicUsize::new(0);

/// The C library's function, for this program: it counts.
///
/// # Safety
///
/// As for `fcntl(2)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn fcntl(fd: libc::c_int, command: libc::c_int, argument: usize) -> libc::c_int {
    if command == libc::F_GETLK {
        ASKED.fetch_add(1, Ordering::Relaxed);
    }
    // SAFETY: the caller's promise.
    unsafe { libc::syscall(libc::SYS_fcntl, fd, command, argument) as libc::c_int }
}

/// All wait for the last rank, for many periods. Each asks for the others' locks about once in
/// each.
fn waits(team: &mut Team) {
    const PERIODS: usize = 8;
    let (me, size) = (team.rank(), team.size());
    team.barrier().unwrap();
    let (before, started) = (ASKED.load(Ordering::Relaxed), Instant::now());
    if me == size - 1 {
        std::thread::sleep(Duration::from_millis(200) * PERIODS as u32);
    }
    team.barrier().unwrap();
    let took = started.elapsed().as_millis() as usize;
    let asked = (ASKED.load(Ordering::Relaxed) - before) as u64;
    let mut all = vec![0; 8 * size];
    team.allgather(&asked.to_ne_bytes(), &mut all).unwrap();
    let asked = all
        .chunks(8)
        .map(|word| u64::from_ne_bytes(word.try_into().unwrap()));
    let (asked, periods) = (asked.sum::<u64>() as usize, took / 200 + 1);
    assert!(
        asked <= size * (periods + 1),
        "{asked} calls of {size} ranks in {periods} periods"
    );
    assert!(asked >= size, "nobody looks: {asked}");
}

#[test]
fn all_who_wait_look_at_each_other_once() {
    run_well(48, "waits", |_, _| {});
}

/// Some ranks die, most compute: the only one that waits hears of it.
fn dies(team: &mut Team) {
    let me = team.rank();
    team.barrier().unwrap();
    match me {
        3 => {
            let started = Instant::now();
            let error = team.barrier().unwrap_err();
            let took = started.elapsed();
            assert!(
                matches!(error, Error::PeerDied { rank } if rank % 5 == 4),
                "{error}"
            );
            assert!(took < Duration::from_secs(5), "{took:?}");
        }
        // SAFETY: ends this process.
        rank if rank % 5 == 4 => unsafe {
            libc::kill(libc::getpid(), libc::SIGKILL);
        },
        _ => {
            let started = Instant::now();
            while started.elapsed() < Duration::from_secs(5) && !team.usage().is_broken() {
                std::thread::sleep(Duration::from_millis(5));
            }
            assert!(team.usage().is_broken());
        }
    }
}

#[test]
fn who_waits_alone_hears_of_those_that_die_together() {
    let statuses = run(20, "dies", |_, _| {});
    for (rank, status) in statuses.iter().enumerate() {
        let died = status.signal() == Some(libc::SIGKILL);
        assert_eq!(died, rank % 5 == 4, "rank {rank}: {status}");
        assert!(died || status.success(), "rank {rank}: {status}");
    }
}
