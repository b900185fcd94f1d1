// SPDX-License-Identifier: MIT OR Apache-2.0

//! `MPI_Init` and `MPI_Finalize`: the ranks agree on what they do together.

use std::ffi::c_int;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;
use std::sync::{Once, OnceLock};
use std::time::{Duration, Instant};

use libcopy::TeamKey;
use libcopy::config::{self, Setting};
use libcopy::datatype::Layout;
use libcopy::p2p::header::Header;
use libcopy::p2p::segment::UNCOUNTED;
use libcopy::p2p::{
    Context, DeviceCopy, DeviceHandle, Endpoint, Owner, Protocol, Registration, Segment, View,
};
use libcopy::transport::process_memory;

use crate::bootstrap::own_collectives::allgather;
use crate::bootstrap::{MOST_MEMBERS, Meeting, feature};
use crate::collectives::nonblocking;
use crate::comm::processes::{WORLD, World, world};
use crate::decide::active::active;
use crate::decide::prior::Choice;
use crate::decide::{active, environment};
use crate::library::abi::{Abi, complain};
use crate::library::stats::Wanted;
use crate::library::threads;
use crate::library::tools::Feature;
use crate::library::{
    abi, forked, pmpi, profile, progress, stats, times, tools, unusual, world_model,
};
use crate::messages::{committed, lengths, remote, requests, waiting};
use crate::types::fortran_names;
use crate::{bootstrap, gpu, rdma};

/// Variables that have to be the same on all ranks: otherwise some would take part in what others
/// forward.
static SETTINGS: [&Setting; 5] = [
    &config::MPI_MIN,
    &config::MPI_NODE_RANKS,
    &config::MPI_EVERYWHERE,
    &config::RDMA,
    &config::REDUCTIONS,
];

/// What the owner of the bootstrap table says about the segment.
#[derive(Clone, Copy, Default)]
struct Offer {
    magic: [u64; 2],
    pid: i32,
    fd: i32,
    /// Processes that the segment has room for; 0 if there is none.
    members: u64,
    /// From how many bytes on messages are intercepted: senders and receivers have to judge alike.
    least: [u64; 2],
    /// Of the kernel module's domain, if there is one.
    key: Option<[u8; 16]>,
}

impl Offer {
    fn words(self) -> bootstrap::Offer {
        let key = u128::from_ne_bytes(self.key.unwrap_or_default());
        [
            self.magic[0],
            self.magic[1],
            self.pid as u64,
            self.fd as u64,
            self.members,
            self.least[0],
            self.least[1],
            self.key.is_some().into(),
            key as u64,
            (key >> 64) as u64,
            0,
            0,
        ]
    }

    fn of(words: bootstrap::Offer) -> Offer {
        let key = u128::from(words[8]) | u128::from(words[9]) << 64;
        Offer {
            magic: [words[0], words[1]],
            pid: words[2] as i32,
            fd: words[3] as i32,
            members: words[4],
            least: [words[5], words[6]],
            key: (words[7] != 0).then(|| key.to_ne_bytes()),
        }
    }
}

/// What is known of messages here beside their headers.
#[derive(Debug)]
struct Matching;

impl Owner for Matching {
    fn layout(&self, header: &Header) -> Option<Layout> {
        committed::layout(header)
    }

    fn reach(
        &self,
        from: (i32, &Header),
        handle: &DeviceHandle,
        layout: Option<&Layout>,
        to: &View,
    ) -> Option<Box<dyn DeviceCopy>> {
        gpu::reach(from, handle, layout, to)
    }
}

/// What the owner has made.
struct Made {
    segment: Segment,
    /// Open until the others have opened it.
    file: File,
    registration: Option<Registration>,
}

/// Before `MPI_Init`: has the other ranks know of this one.
pub fn announce() {
    if active().is_some() {
        abi::permit_peers();
        times::setup(|| bootstrap::announce(SETTINGS.map(|setting| setting.value())));
    }
}

/// After `MPI_Init`, with its answer: the ranks agree on what they do together.
pub fn start(code: c_int) {
    static ONCE: Once = Once::new();
    match code {
        0 => ONCE.call_once(|| {
            times::setup(start_once);
            profile::run_begins();
        }),
        _ => bootstrap::withdraw(),
    }
}

fn start_once() {
    if let Some(abi) = active() {
        meet(abi);
        active::relearn();
        forked::watch(forget);
    }
    lengths::learn(world().map(|world| world.least));
    if let Some(abi) = active() {
        remote::start(abi);
        world_model::watch_end(abi);
    }
}

/// Whether several threads may call at the same time, and the library is an MPICH whose
/// `MPI_Request_get_status` makes progress without the lock that its other functions take: 4.0 does
/// (UCX ends the program: `worker->inprogress++ == 0`), 5.0 does not.
fn has_unsafe_threads(abi: &Abi) -> bool {
    !abi.is_open_mpi() && threads::are_several(abi) && !pmpi::is_mpi_5()
}

/// Has the ranks agree, and makes what messages need.
fn meet(abi: &'static Abi) {
    let (mut rank, mut size) = (0, 0);
    // SAFETY: writable outputs.
    let answers = unsafe {
        [
            pmpi::comm_rank(abi.world, &mut rank),
            pmpi::comm_size(abi.world, &mut size),
        ]
    };
    if rank == 0 {
        config::warn_unknown();
    }
    let size = usize::try_from(size).unwrap_or(0);
    if answers != [0; 2] || size == 0 {
        return bootstrap::withdraw();
    }
    let mut why = if config::MPI_MESSAGES.is_on(true) {
        None
    } else {
        Some("LIBCOPY_MPI_MESSAGES is 0".to_owned())
    };
    let (mut offer, mut made) = (Offer::default(), None);
    if why.is_none() && size > 1 && bootstrap::is_owner() {
        match make(abi, size.min(MOST_MEMBERS)) {
            Ok((new, about)) => (made, offer) = (Some(new), about),
            Err(error) => why = Some(error),
        }
    }
    let idle = || progress::library(abi);
    let Some(meeting) = bootstrap::meet(rank, size, offer.words(), idle) else {
        across(abi, size, None);
        return;
    };
    let offer = Offer::of(meeting.offer());
    let is_ours = |feature| tools::wrapped(feature).is_none();
    let vote = |feature: u64, is_ours: bool| if is_ours { feature } else { 0 };
    let is_wanted = matches!(stats::wanted(), Some(Wanted::Job | Wanted::Profile(None)));
    let is_nonblocking = is_ours(Feature::Nonblocking)
        && nonblocking::is_wanted_here()
        && !fortran_names::has_other_functions(abi);
    let mut own = vote(feature::REPORT, is_wanted)
        | vote(feature::COLLECTIVES, is_ours(Feature::Collectives))
        | vote(feature::NONBLOCKING, is_nonblocking);
    let mut used = None;
    if why.is_none() {
        match prepare(abi, &meeting, &offer, made) {
            Ok(prepared) => used = Some(prepared),
            Err(error) => why = Some(error),
        }
    }
    if let Some((_, _, registration)) = &used {
        own |= feature::MESSAGES | vote(feature::MODULE, registration.is_some());
    }
    let mut agreed = meeting.agree(own, idle);
    if !agreed.is_whole() {
        let (everywhere, report) = across(abi, size, Some(&agreed));
        agreed.everywhere = everywhere;
        if everywhere && !report {
            agreed.features &= !feature::REPORT;
        }
    }
    let agreed = bootstrap::open(agreed);
    progress::library(abi);
    match used {
        Some((segment, _file, registration)) if agreed.has(feature::MESSAGES) => {
            let world = Box::new(World {
                abi,
                agreed,
                ranks: agreed.ranks.clone(),
                choice: Choice::of(abi),
                least: offer.least,
                // SAFETY: all of them opened the segment that the offer names, whose random number
                // nobody else knows, and each has said which process it is.
                endpoint: Endpoint::new(unsafe {
                    Context::new(
                        (agreed.me, agreed.pids.clone()),
                        (offer.magic, segment),
                        (
                            environment::asked(),
                            registration.filter(|_| agreed.has(feature::MODULE)),
                        ),
                        Box::new(Matching),
                    )
                }),
            });
            // Those of `requests` are counted from now on; not those that receive into device
            // memory.
            let uncounted = if gpu::is_loaded() { UNCOUNTED } else { 0 };
            let requests = world.segment.receive_requests(world.me);
            requests.store(1 + uncounted, Ordering::Relaxed);
            WORLD.store(Box::into_raw(world), Ordering::Release);
        }
        _ => {
            let why = why.unwrap_or("another rank cannot take part".to_owned());
            // Who did not ask for messages need not hear of it, but for the report.
            if config::MPI_MESSAGES.is_on(false) {
                complain(&format!("{why}; messages are forwarded"));
            }
            let _ = WHY_OFF.set(why);
        }
    }
}

/// Why messages are forwarded, although ranks have agreed to work together.
static WHY_OFF: OnceLock<String> = OnceLock::new();

/// The same for the report, with the name of what is off.
pub fn why_off() -> Option<(String, String)> {
    Some(("messages".to_owned(), WHY_OFF.get()?.clone()))
}

/// What the owner of the bootstrap table has for the others.
fn make(abi: &'static Abi, members: usize) -> Result<(Made, Offer), String> {
    let key = TeamKey::random().map_err(|error| error.report())?;
    let word = u128::from_ne_bytes(key.to_bytes());
    let magic = [word as u64, (word >> 64) as u64];
    let made = Segment::create(members, magic);
    let (segment, file) = made.map_err(|error| format!("no shared memory: {error}"))?;
    let (mut registration, mut key, protocol) = (None, None, environment::asked());
    if protocol != Protocol::Pipelined {
        (registration, key) = Registration::create(protocol == Protocol::Mapped).unzip();
    }
    let offer = Offer {
        magic,
        pid: std::process::id() as i32,
        fd: file.as_raw_fd(),
        members: members as u64,
        least: Choice::of(abi).least(),
        key,
    };
    let made = Made {
        segment,
        file,
        registration,
    };
    Ok((made, offer))
}

type Prepared = (Segment, Option<File>, Option<Registration>);

/// Opens what the owner has made, and tries whether this process can read the others' memory.
fn prepare(
    abi: &'static Abi,
    meeting: &Meeting,
    offer: &Offer,
    made: Option<Made>,
) -> Result<Prepared, String> {
    if let Some(wrapped) = tools::wrapped(Feature::Messages) {
        return Err(wrapped.to_string());
    }
    if fortran_names::has_other_functions(abi) {
        return Err("Fortran's functions go past this library".to_owned());
    }
    if has_unsafe_threads(abi) {
        return Err(
            "several threads may call (MPI_THREAD_MULTIPLE), which this MPICH does not let ask about \
             each other's requests; MPICH 5 does, and a program of which one thread at a time calls \
             MPI can ask for MPI_THREAD_SERIALIZED (mpi4py: MPI4PY_RC_THREAD_LEVEL=serialized)"
                .to_owned(),
        );
    }
    let members = usize::try_from(offer.members).unwrap_or(0);
    if meeting.world().ranks.len() > members {
        return Err("there is no shared memory for messages".to_owned());
    }
    let prepared = match made {
        Some(made) => (made.segment, Some(made.file), made.registration),
        None => {
            let segment = Segment::open(offer.pid, offer.fd, members, offer.magic);
            let segment =
                segment.map_err(|error| format!("the shared memory for messages: {error}"))?;
            let eager = environment::asked() == Protocol::Mapped;
            let registration = offer.key.and_then(|key| Registration::join(key, eager));
            (segment, None, registration)
        }
    };
    for (member, (pid, address, word)) in meeting.probes().enumerate() {
        let mut found = 0u64;
        // SAFETY: eight bytes.
        let read = unsafe { process_memory::read(pid, address, (&raw mut found).cast(), 8) };
        if read.is_err() || found != word {
            let rank = meeting.world().ranks[member];
            return Err(format!("the memory of rank {rank} cannot be read"));
        }
    }
    Ok(prepared)
}

/// Whether the ranks of all machines have agreed, each on its own. Only where the user says that
/// all of them have this library (`LIBCOPY_MPI_EVERYWHERE=1`): then all of them come here, whatever
/// they have decided. Also, whether all of them want one report.
fn across(abi: &Abi, size: usize, agreed: Option<&bootstrap::World>) -> (bool, bool) {
    if size < 2 || !config::MPI_EVERYWHERE.is_on(false) {
        return (false, false);
    }
    /// Beside what has to be the same everywhere: one report is wanted.
    const REPORT: u8 = 1 << 7;
    // What they do together depends on this one, too.
    let fine = u8::from(agreed.is_some()) | remote::wanted() << 1;
    let report = agreed.is_some_and(|agreed| agreed.has(feature::REPORT));
    let mine = fine | if report { REPORT } else { 0 };
    // All ranks are here, as the user says.
    let Some(all) = allgather(abi, abi.world, mine, size) else {
        return (false, false);
    };
    let is_same = all.iter().all(|other| other & !REPORT == fine);
    let everywhere = agreed.is_some() && is_same;
    let report = all.iter().all(|other| other & REPORT != 0);
    (everywhere, everywhere && report)
}

/// In a forked child, which takes part in nothing.
fn forget() {
    active::forget();
    remote::forget();
    requests::forget_all();
    leave();
    bootstrap::close();
}

/// After `MPI_Finalize`: sessions may go on, without messages of ours.
pub fn leave() {
    WORLD.store(std::ptr::null_mut(), Ordering::Release);
    lengths::learn(None);
}

/// Before `MPI_Finalize`: what was sent is there before anybody's memory goes.
pub fn finish() {
    let Some(world) = world() else {
        return;
    };
    // Requests that were freed while they were under way; a receive that nothing comes for stays.
    let started = Instant::now();
    while unusual::has_orphans() && started.elapsed() < Duration::from_secs(1) {
        waiting::progress(world);
        std::thread::yield_now();
    }
    rdma::finish(|| waiting::progress(world));
    world.agreed.depart(|| waiting::progress(world));
    nonblocking::persistent::clear();
    if let Some(registration) = &world.registration {
        registration.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where a tool wraps one of them on some ranks only, these would go another way.
    #[test]
    fn tools_are_looked_for_at_all_functions_that_are_intercepted() {
        for function in stats::Function::all() {
            assert!(tools::is_watched(function.name()), "{function:?}");
        }
    }
}
