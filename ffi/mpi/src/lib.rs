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
//! `LIBCOPY_DISABLE=1` forwards everything; `LIBCOPY_STATS=1` prints at `MPI_Finalize` how many
//! calls were intercepted, and how many were forwarded for each reason; with a file's name in place
//! of 1 every rank adds a line to that file, which `libcopy mpi report` reads.
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

use collectives::{governor, nonblocking};
#[cfg(feature = "gpu")]
use comm::processes;
use comm::{communicator, hierarchy};
use decide::classes;
use library::{abi, async_guard, fallback, forked, pmpi, progress, stats, tools, world_model};
use std::ffi::c_int;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::panic::catch_unwind;
use std::sync::atomic::{AtomicBool, Ordering};

use libcopy::refusal;

/// Prints what was intercepted and forwarded, or adds it to the file that `LIBCOPY_STATS` names.
fn tell() {
    let abi = abi::get();
    let library = abi.map_or("no library that we know", |abi| abi.name);
    let mut rank = -1;
    if let Ok(abi) = abi {
        // SAFETY: a communicator that is there until MPI_Finalize, and a writable output.
        unsafe { pmpi::comm_rank(abi.world, &mut rank) };
    }
    let own = stats::Identity::own(i64::from(rank), library);
    let mut totals = governor::totals();
    messages::add_classes(&mut totals);
    let Some(path) = stats::file() else {
        let mut text = stats::report(&own);
        text.push_str(&format!("\nlibcopy_mpi: {}", bootstrap::summary()));
        let off =
            tools::switched_off().map(|(name, why)| format!("libcopy_mpi: {name} off: {why}"));
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
        for line in lines.chain(classes::report(&totals)).chain(off) {
            text.push('\n');
            text.push_str(&line);
        }
        text.push('\n');
        refusal::say(&text);
        return;
    };
    let off: Vec<_> = tools::switched_off()
        .map(|(name, why)| (name, why.to_string()))
        .collect();
    let line = stats::line(
        &own,
        &messages::numbers(),
        &async_guard::numbers(nonblocking::parts()),
        &off,
        &bootstrap::summary(),
        &format!("[{}]", classes::json(&totals).join(",")),
    );
    let file = OpenOptions::new().append(true).create(true).open(&path);
    // One call, so that the lines of ranks do not mix.
    let written =
        file.and_then(|mut file| refusal::without_signal(|| file.write_all(line.as_bytes())));
    if let Err(error) = written {
        abi::complain(&format!("LIBCOPY_STATS, {}: {error}", path.display()));
    }
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
pub unsafe extern "C" fn MPI_Finalize() -> c_int {
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
    let _ = catch_unwind(|| {
        if stats::wanted() {
            tell();
        }
        gpu::finish();
        messages::finish();
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
    let _ = catch_unwind(|| {
        messages::leave();
        communicator::clear();
        types::datatype::clear();
    });
}

/// Says what lower layers call back: run when the library is loaded, as a tool may wrap whatever
/// comes first.
extern "C" fn register() {
    async_guard::attach();
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
