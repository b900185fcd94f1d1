// SPDX-License-Identifier: MIT OR Apache-2.0

//! `libcopy_mpi.so`: with `LD_PRELOAD`, an MPI program that was never compiled for it has the
//! collectives inside a machine done by libcopy.
//!
//! Intercepted are broadcasts, gathers, scatters, allgathers, alltoalls (with their `v` and `w`
//! forms), alltoalls between neighbours and reductions with predefined operations, on
//! intracommunicators whose ranks are all on one machine, from the size on from which libcopy is
//! faster ([`decide::prior`]). Everything else is forwarded unchanged: to the next library that has
//! the function's `MPI` name, which is the MPI library or a tool between the two. Features whose
//! functions a tool wraps, in front of us or behind, are off ([`library::tools`]). What decides is
//! the same on all ranks: the number of bytes, which MPI demands to agree or which the ranks agree
//! on now and then, and the communicator. Datatypes that are not dense are packed and unpacked by
//! the MPI library there. `MPI_Pack` and `MPI_Unpack` are intercepted where libcopy's datatype
//! engine is faster ([`packing`]), their relatives for external32 too ([`packing::external32`]).
//!
//! Nonblocking collectives on communicators whose ranks have met in a blocking one are intercepted
//! as well ([`collectives::nonblocking`]), and so is what persistent requests start
//! ([`exports::persistent`]); `LIBCOPY_MPI_NONBLOCKING=0` forwards both.
//!
//! With `LIBCOPY_ASYNC` blocking collectives return while a copy engine still moves their bytes,
//! where there is one ([`library::async_guard`]).
//!
//! Messages between two processes of a machine are intercepted as well, those of derived datatypes
//! and long ones ([`messages`]); `LIBCOPY_MPI_MESSAGES=0` forwards them. Short ones of derived
//! datatypes are packed here and sent as bytes (`LIBCOPY_MPI_PACKED=0`: as they are).
//!
//! Blocking collectives, messages and packing that cost more than forwarded are forwarded after a
//! trial ([`collectives::governor`]); `LIBCOPY_GOVERNOR=0` leaves it to the thresholds.
//!
//! `LIBCOPY_DISABLE=1` forwards everything; `LIBCOPY_STATS=1` has rank 0 print at `MPI_Finalize`
//! whether libcopy helped, how many calls were intercepted, and how many were forwarded for each
//! reason ([`libcopy_report`]); `ranks` has each rank print its own; with a file's name every rank
//! adds a line to that file, which `libcopy mpi report` reads. `LIBCOPY_STATS=profile` has the
//! program's calls profiled ([`library::profile`]), whoever does them.
//! `LIBCOPY_MPI_MIN=BYTES`, the same for all ranks, intercepts everything from this size on, faster
//! or not.
//!
//! All that concerns several ranks is done only if all of them have this library, which they find
//! out in `MPI_Init` ([`bootstrap`]).

// Without a feature, parts of other folders have no caller.
#![cfg_attr(not(all(feature = "gpu", feature = "rdma")), allow(dead_code))]

mod bootstrap;
mod collectives;
mod comm;
mod decide;
mod exports;
#[cfg(feature = "gpu")]
mod gpu;
#[cfg(not(feature = "gpu"))]
#[path = "gpu/none.rs"]
mod gpu;
mod library;
mod messages;
mod packing;
#[cfg(feature = "rdma")]
mod rdma;
#[cfg(not(feature = "rdma"))]
#[path = "rdma/none.rs"]
mod rdma;
mod types;

use crate::library::panics::caught;
use bootstrap::{feature, own_collectives};
use collectives::{governor, nonblocking};
#[cfg(feature = "gpu")]
use comm::processes;
use comm::{communicator, hierarchy};
use decide::classes::{self, Totals};
use library::stats::Wanted;
use library::{
    abi, async_guard, fallback, forked, per_thread, pmpi, profile, progress, stats, times, tools,
    world_model,
};
use std::ffi::c_int;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use libcopy::refusal;
use libcopy_report::{Job, NotAReport, Profile, Rank};
use serde::Serialize;

/// Says what was intercepted and forwarded, as `LIBCOPY_STATS` asks for it. Where all ranks ask for
/// one report, rank 0 makes it: all of them come here, in `MPI_Finalize`.
fn tell(wanted: &Wanted) {
    if let Wanted::Profile(file) = wanted {
        return tell_profile(file.as_deref());
    }
    let mut totals = governor::totals();
    messages::add_classes(&mut totals);
    let own = own_report(&totals);
    match wanted {
        Wanted::Job => match job(&own) {
            Some(Ok(job)) => refusal::say(&job.to_string()),
            Some(Err(error)) => abi::complain(&format!("LIBCOPY_STATS: {error}")),
            None => {}
        },
        Wanted::Ranks => refusal::say(&in_words(&own, &totals)),
        Wanted::File(path) => append(path, &line(&own)),
        // Done above.
        Wanted::Profile(_) => {}
    }
}

/// Adds a line to a file.
fn append(path: &Path, line: &str) {
    let file = OpenOptions::new().append(true).create(true).open(path);
    // One call, so that the lines of ranks do not mix.
    let written =
        file.and_then(|mut file| refusal::without_signal(|| file.write_all(line.as_bytes())));
    if let Err(error) = written {
        abi::complain(&format!("LIBCOPY_STATS, {}: {error}", path.display()));
    }
}

/// Says where the time went: for all ranks if they have agreed on one report, else for this one.
fn tell_profile(file: Option<&Path>) {
    let (host, program) = stats::place();
    let (rank, library) = rank_and_library();
    let line = line(&profile::report(rank, host, program, library));
    if let Some(path) = file {
        return append(path, &line);
    }
    let all = gathered(&line).unwrap_or(line);
    if !all.is_empty() {
        match Profile::read(&all) {
            Ok(profile) => refusal::say(&profile.to_string()),
            Err(error) => abi::complain(&format!("LIBCOPY_STATS: {error}")),
        }
    }
}

/// The rank in `MPI_COMM_WORLD`, -1 where that is not known, and the MPI library's name.
fn rank_and_library() -> (i64, &'static str) {
    let abi = abi::get();
    let mut rank = -1;
    if let Ok(abi) = abi {
        // SAFETY: a communicator that is there until MPI_Finalize, and a writable output.
        unsafe { pmpi::comm_rank(abi.world, &mut rank) };
    }
    let library = abi.map_or("no library that we know", |abi| abi.name);
    (i64::from(rank), library)
}

/// What this rank says.
fn own_report(totals: &Totals) -> Rank {
    let (rank, library) = rank_and_library();
    let named = |numbers: &[(&str, u64)]| {
        let numbers = numbers.iter();
        numbers.map(|(name, n)| ((*name).to_owned(), *n)).collect()
    };
    let off = tools::switched_off();
    let off = off.map(|(name, why)| (name.to_owned(), why.to_string()));
    Rank {
        messages: named(&messages::numbers()),
        early: named(&async_guard::numbers(nonblocking::parts())),
        off: off.chain(messages::why_off()).collect(),
        bootstrap: bootstrap::summary(),
        classes: classes::listed(totals),
        ..stats::rank(rank, library)
    }
}

fn line(rank: &impl Serialize) -> String {
    let mut line = serde_json::to_string(rank).unwrap_or_default();
    line.push('\n');
    line
}

/// What all ranks say together, if this one is to say it. Ranks that have not agreed on one report
/// say each its own.
fn job(own: &Rank) -> Option<Result<Job, NotAReport>> {
    let line = line(own);
    let all = gathered(&line).unwrap_or(line);
    (!all.is_empty()).then(|| Job::read(&all))
}

/// The lines of all ranks for one of them, none for the others. `None` where each rank says its
/// own: they have not agreed on one report, or the MPI library fails.
fn gathered(line: &str) -> Option<String> {
    let world = bootstrap::world().filter(|world| world.has(feature::REPORT))?;
    let abi = abi::get().ok()?;
    if world.is_whole() || world.everywhere {
        own_collectives::gather(abi, abi.world, line, world.size)
    } else {
        // One of each machine: others may not have this library.
        own_collectives::among(abi, &world.ranks, |comm| {
            own_collectives::gather(abi, comm, line, world.ranks.len())
        })
        .flatten()
    }
}

/// What this rank says, for people.
fn in_words(own: &Rank, totals: &Totals) -> String {
    let mut text = stats::report(own);
    text.push_str(&format!("\nlibcopy_mpi: {}", own.bootstrap));
    let off = own.off.iter();
    let off = off.map(|(name, why)| format!("libcopy_mpi: {name} off: {why}"));
    let lines = [
        messages::report(),
        refused(),
        #[cfg(feature = "rdma")]
        rdma::report(),
        #[cfg(feature = "gpu")]
        gpu::report(),
        async_guard::report(nonblocking::parts()),
    ]
    .into_iter()
    .flatten();
    for line in lines.chain(classes::report(totals)).chain(off) {
        text.push('\n');
        text.push_str(&line);
    }
    text.push('\n');
    text
}

/// A line for the report about what the kernel has refused; nothing if it has not.
fn refused() -> Option<String> {
    let refused = refusal::refused().map(|(call, times, errno)| {
        let error = std::io::Error::from_raw_os_error(errno);
        format!(" {call} {times} times, first: {error};")
    });
    let list: String = refused.collect();
    let list = list.strip_suffix(';')?;
    Some(format!("libcopy_mpi: refused by the kernel:{list}"))
}

/// `MPI_Finalize`
///
/// # Safety
///
/// As the MPI standard says.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn MPI_Finalize() -> c_int {
    begin_end();
    // SAFETY: the caller's promise.
    let code = unsafe { pmpi::forward::finalize() };
    end();
    code
}

/// What comes before the MPI library's `MPI_Finalize`, once: a tool's may come here again.
fn begin_end() {
    static BEGUN: AtomicBool = AtomicBool::new(false);
    // A forked child that calls this is not the rank.
    if forked::is_child() {
        return;
    }
    let is_known = abi::get().is_ok();
    if (is_known && !world_model::is_active()) || BEGUN.swap(true, Ordering::Relaxed) {
        return;
    }
    let _ = caught(|| {
        gpu::finish();
        messages::finish();
        if let Some(wanted) = stats::wanted() {
            tell(wanted);
        }
        fallback::finish();
        progress::finish();
        hierarchy::finish();
        communicator::clear();
        bootstrap::close();
    });
}

/// What comes behind it: sessions may go on, without us.
fn end() {
    if forked::is_child() {
        return;
    }
    world_model::end();
    let _ = caught(|| {
        messages::leave();
        communicator::clear();
        types::datatype::clear();
    });
}

/// Says what lower layers call back: run when the library is loaded, as a tool may wrap whatever
/// comes first.
extern "C" fn register() {
    per_thread::set_main();
    if let Some(wanted) = stats::wanted() {
        let is_profile = matches!(wanted, Wanted::Profile(_));
        if is_profile {
            profile::start();
        }
        times::start(is_profile);
    }
    world_model::register(begin_end, end);
    progress::register(messages::progress_all);
    messages::register();
    #[cfg(feature = "gpu")]
    gpu::register(gpu::Messages {
        is_special: messages::is_special,
        may_be_header: messages::may_be_header,
        arrived: messages::arrived_elsewhere,
        pack_all: messages::pack_all,
        found_driver: processes::stop_counting,
    });
}

#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = register;
