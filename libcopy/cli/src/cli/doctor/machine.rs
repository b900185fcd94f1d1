// SPDX-License-Identifier: MIT OR Apache-2.0

//! What this machine, this container and this user's limits let ranks do. What ranks have tried
//! counts; settings say why it failed.

use std::collections::BTreeSet;
use std::fs;

use libcopy::config::{self, SETTINGS};
use libcopy::device::Device;
use libcopy::topology::Topology;
use libcopy::tune::Profile;
use libcopy::{Error, TransportKind, calibration, uapi};
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};

use super::super::ranks::{LOCKED, RANKS, Ranks, Report, refused};
use super::finding::{Finding, Status};

/// What processes lose that cannot read each other's memory.
const NO_READING: &str = "large messages are copied twice, through shared memory, and libcopy_mpi.so forwards \
     messages and reductions";

/// The module, and whether this user may use it.
pub fn device(ranks: &Ranks) -> Finding {
    let check = "device";
    let opened = Device::open().and_then(|device| Ok((device.info()?, device.engines()?)));
    let (info, engines) = match opened {
        Ok(both) => both,
        Err(error) if is_missing(&error) => {
            return Status::Absent.because(
                check,
                format!("no {}", uapi::DEVICE_PATH),
                "the module is not loaded, and nothing needs it",
                "modprobe libcopy (docs/install.md says what it adds)",
            );
        }
        Err(error) => {
            let remedy = match error.errno() {
                Some(libc::EACCES | libc::EPERM) => {
                    "the rule for udev of docs/install.md, \"Who may open the device\""
                }
                _ => "a module of this version: docs/install.md",
            };
            let meaning = "the module is not used";
            return Status::Slow.because(check, error.report(), meaning, remedy);
        }
    };
    let found = format!(
        "{}, ABI {}, copy engines: {}",
        uapi::DEVICE_PATH,
        info.abi_version,
        engines.len()
    );
    match ranks
        .team()
        .and_then(|team| team.transport(TransportKind::Kmod))
    {
        Some((false, why)) => Status::Slow.because(
            check,
            format!("{found}; {why}"),
            "ranks do not use the module",
            "docs/install.md, \"Who may open the device\", for all ranks",
        ),
        _ => Finding::ok(check, found),
    }
}

fn is_missing(error: &Error) -> bool {
    [Some(libc::ENOENT), Some(libc::ENXIO), Some(libc::ENODEV)].contains(&error.errno())
}

/// The first error of what ranks have tried.
fn failed(ranks: &Ranks, tried: impl Fn(&Report) -> i32) -> Option<i32> {
    ranks.reports.iter().map(tried).find(|errno| *errno != 0)
}

/// Memory that may be locked, which is what may be pinned.
pub fn memlock(ranks: &Ranks) -> Finding {
    let check = "memlock";
    let limit = match getrlimit(Resource::RLIMIT_MEMLOCK) {
        Ok((soft, _)) if soft != RLIM_INFINITY => format!("{} KiB", soft >> 10),
        Ok(_) => "unlimited".to_owned(),
        Err(error) => error.to_string(),
    };
    let found = format!("ulimit -l is {limit}");
    match failed(ranks, |report| report.locked) {
        None if ranks.reports.is_empty() => skipped(check, found, ranks),
        None => Finding::ok(
            check,
            format!("{found}, and {} MiB were locked", LOCKED >> 20),
        ),
        Some(errno) => Status::Slow.because(
            check,
            format!(
                "{found}, and {} MiB cannot be locked ({})",
                LOCKED >> 20,
                said(errno)
            ),
            "the module and RDMA devices pin no such buffers, which go another way then",
            "ulimit -l unlimited, for all in /etc/security/limits.d (docs/install.md, \"The memlock limit\"); \
             Docker: --ulimit memlock=-1; Slurm: PropagateResourceLimitsExcept=MEMLOCK",
        ),
    }
}

/// Whether something forbids the system calls.
pub fn seccomp(ranks: &Ranks) -> Finding {
    let check = "seccomp";
    let mode = status_word("Seccomp:");
    let filter = match mode.as_deref() {
        Some("0") | None => "no filter of system calls",
        _ => "a filter of system calls",
    };
    let remedy = "have the filter allow process_vm_readv and process_vm_writev; Docker: --cap-add SYS_PTRACE, or \
                  --security-opt seccomp=FILE";
    if ranks.signal == Some(libc::SIGSYS) {
        let found = format!("{filter} kills ranks (SIGSYS)");
        let meaning = "programs end";
        return Status::Broken.because(check, found, meaning, remedy);
    }
    match failed(ranks, |report| report.own_read) {
        None if ranks.reports.is_empty() => skipped(check, filter, ranks),
        None if mode.as_deref() == Some("0") => Finding::ok(check, filter),
        None => Finding::ok(check, format!("{filter} lets process_vm_readv through")),
        Some(errno) if mode.as_deref() == Some("0") => Status::Slow.because(
            check,
            format!("{filter}, and process_vm_readv fails: {}", said(errno)),
            NO_READING,
            "a kernel with CONFIG_CROSS_MEMORY_ATTACH",
        ),
        Some(errno) => Status::Slow.because(
            check,
            format!("{filter}: process_vm_readv fails: {}", said(errno)),
            NO_READING,
            remedy,
        ),
    }
}

/// Why ranks that may use the system call do not read each other: what the team says, if it is so.
fn unread(ranks: &Ranks) -> Option<&str> {
    let is_permitted = ranks.reports.iter().all(|report| report.own_read == 0);
    match ranks.team()?.transport(TransportKind::Cma) {
        Some((false, why)) if is_permitted => Some(why),
        _ => None,
    }
}

/// Yama's restriction of who may look into a process.
fn ptrace_scope() -> Option<u32> {
    let text = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope");
    text.ok()?.trim().parse().ok()
}

/// Whether Yama forbids ranks to read each other.
pub fn yama(ranks: &Ranks) -> Finding {
    let check = "yama";
    match (ptrace_scope(), unread(ranks)) {
        (None, _) => Finding::ok(check, "this kernel has no Yama, or it is not active"),
        (Some(scope @ 2..), Some(why)) => Status::Slow.because(
            check,
            format!("kernel.yama.ptrace_scope is {scope}: {why}"),
            NO_READING,
            "sysctl kernel.yama.ptrace_scope=1 (3 lasts until the machine is started again), or CAP_SYS_PTRACE",
        ),
        (Some(scope), _) => Finding::ok(check, format!("kernel.yama.ptrace_scope is {scope}")),
    }
}

/// Whether ranks that may read each other's memory by all settings see each other.
pub fn namespaces(ranks: &Ranks) -> Finding {
    let check = "namespaces";
    let is_yamas = ptrace_scope().is_some_and(|scope| scope >= 2);
    let own = own_namespaces();
    let found = match &own[..] {
        [] => "those of the machine".to_owned(),
        some => format!("a container's, or others of their own: {}", some.join(", ")),
    };
    match unread(ranks).filter(|_| !is_yamas) {
        Some(why) => Status::Slow.because(
            check,
            format!("{found}; {why}"),
            NO_READING,
            "have all ranks of a machine in one container, or in containers with a common process and user \
             namespace (Docker: --pid=container:NAME)",
        ),
        None if ranks.team().is_none() => skipped(check, found, ranks),
        None => Finding::ok(check, found),
    }
}

/// The namespaces of this process that are not the first of the machine: these have fixed numbers
/// (include/linux/proc_ns.h of the kernel).
fn own_namespaces() -> Vec<&'static str> {
    const FIRST: [(&str, u32); 3] = [
        ("user", 0xEFFF_FFFD),
        ("pid", 0xEFFF_FFFC),
        ("ipc", 0xEFFF_FFFF),
    ];
    let is_own = |(name, number): &&(&str, u32)| {
        let link = fs::read_link(format!("/proc/self/ns/{name}"));
        link.is_ok_and(|link| link.to_string_lossy() != format!("{name}:[{number}]"))
    };
    let own = FIRST.iter().filter(is_own);
    own.map(|(name, _)| *name).collect()
}

/// The memory that ranks share, made as a team makes it.
pub fn shared_memory(ranks: &Ranks) -> Finding {
    let check = "shared-memory";
    let directory = config::SHM_DIR.or_default();
    let Some(team) = ranks.team() else {
        if ranks.signal == Some(libc::SIGSYS) {
            return skipped(check, directory, ranks);
        }
        return Status::Broken.because(
            check,
            format!("two ranks form no team: {}", ranks.why()),
            "programs that use libcopy end with this error, and libcopy_mpi.so forwards collectives",
            "give /dev/shm more room (Docker: --shm-size 1g; mount -o remount,size=1g /dev/shm), or name another tmpfs \
             with LIBCOPY_SHM_DIR",
        );
    };
    let kib = team.shared >> 10;
    match &team.file {
        Some(file) => {
            let directory = file.parent().unwrap_or(file).display();
            Finding::ok(check, format!("{kib} KiB of {RANKS} ranks in {directory}"))
        }
        None => Status::Slow.because(
            check,
            format!(
                "{kib} KiB of {RANKS} ranks do not fit into {directory}, which has room for {}",
                room(&directory)
            ),
            "libcopy's ranks share memory without a name instead; MPI libraries may fail or be slower",
            "Docker: --shm-size 1g; mount -o remount,size=1g /dev/shm; or another tmpfs in LIBCOPY_SHM_DIR",
        ),
    }
}

/// What a file system has left, in words.
fn room(directory: &str) -> String {
    match nix::sys::statvfs::statvfs(directory) {
        Ok(all) => format!(
            "{} KiB",
            (all.blocks_available() * all.fragment_size()) >> 10
        ),
        Err(error) => error.to_string(),
    }
}

/// The variables of the environment.
pub fn variables(ranks: &Ranks) -> Finding {
    let check = "variables";
    let wrong = refused();
    if !wrong.is_empty() {
        return Status::Broken.because(
            check,
            wrong.join("; "),
            "programs end with this error, or ignore the variable and say so",
            "unset it, or see `libcopy info` for what it takes",
        );
    }
    if let Some(found) = ranks.refused_transport() {
        let meaning = "programs end with this error";
        return Status::Broken.because(check, found, meaning, "unset LIBCOPY_TRANSPORT");
    }
    let unknown = config::unknown();
    if let Some((name, nearest)) = unknown.first() {
        let remedy = nearest.map_or_else(
            || format!("unset {name}; `libcopy info --all` lists those that there are"),
            |nearest| format!("{nearest} may be meant"),
        );
        let found = format!("{name} is no variable of libcopy");
        return Status::Slow.because(check, found, "it has no effect", remedy);
    }
    let set: Vec<&str> = SETTINGS
        .iter()
        .filter(|setting| setting.value_os().is_some())
        .map(|setting| setting.name)
        .collect();
    let found = match &set[..] {
        [] => "none is set".to_owned(),
        some => format!("all of these can be used: {}", some.join(", ")),
    };
    Finding::ok(check, found)
}

/// The profile of `libcopy tune`, and whether it is still this machine's.
pub fn profile(ranks: &Ranks) -> Finding {
    let check = "profile";
    let tune = "libcopy tune";
    let machine = Topology::current().machine();
    let machines = match Profile::machines() {
        Ok(machines) => machines,
        Err(error) => {
            let meaning = "programs that use libcopy end with this error";
            return Status::Broken.because(check, error.report(), meaning, tune);
        }
    };
    let path =
        Profile::path().map_or_else(|| "no file".to_owned(), |path| path.display().to_string());
    let stale = |found: String| {
        let meaning = "stale: what was measured is not used, or is no longer so";
        Status::Slow.because(check, found, meaning, tune)
    };
    let profile = match Profile::load(&machine) {
        Ok(Some(profile)) => profile,
        _ if machines.is_empty() => {
            let meaning = "built-in thresholds are used";
            return Status::Absent.because(check, format!("none ({path})"), meaning, tune);
        }
        _ => {
            return stale(format!(
                "{path} has none of this machine ({machine}), but of {}",
                machines.join("; ")
            ));
        }
    };
    let bands = &profile.policy.gather;
    let all = bands.dedicated.iter().chain(&bands.oversubscribed);
    let measured: BTreeSet<TransportKind> = all.flat_map(|band| band.prefer.clone()).collect();
    let missing = ranks.team().and_then(|team: &Report| {
        let mut usable = team.transports.iter().filter(|(_, usable, _)| *usable);
        usable.find(|(name, ..)| measured.iter().all(|kind| kind.name() != name))
    });
    if let Some((name, ..)) = missing {
        return stale(format!(
            "{path} was measured without {name}, which ranks can use now"
        ));
    }
    if calibration::is_stale() {
        return stale("the kernels' table is of another machine, kernel or version".to_owned());
    }
    Finding::ok(check, format!("{path}, measured on this machine"))
}

/// What could not be tried, since the ranks said nothing.
fn skipped(check: &'static str, found: impl Into<String>, ranks: &Ranks) -> Finding {
    let meaning = format!("not tried: {}", ranks.why());
    let remedy = "what is broken comes first";
    Status::Skipped.because(check, found, meaning, remedy)
}

fn said(errno: i32) -> String {
    std::io::Error::from_raw_os_error(errno).to_string()
}

/// A word of `/proc/self/status`.
fn status_word(name: &str) -> Option<String> {
    let text = fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim().to_owned())
}
