// SPDX-License-Identifier: MIT OR Apache-2.0

//! Programs of which a test is a row of a table: how the program is started, in which environments
//! with the library, and what it and its report say there. What it prints is the same in each of
//! them, and without the library.

use crate::common::{BOTH, C, intercepted, library, mpi, noted, text, turn};
use crate::taken_of;

/// A variable of the environment.
type Setting = (&'static str, &'static str);

struct Row {
    /// The C program, and its flags besides the usual ones.
    source: &'static str,
    flags: &'static [&'static str],
    /// The MPI libraries; empty for all.
    libraries: &'static [&'static str],
    ranks: usize,
    arguments: &'static [&'static str],
    /// Whether it runs without the library, too.
    has_plain: bool,
    /// The environments with the library, besides that.
    environments: &'static [&'static [Setting]],
    /// Whether what it prints is right, in any run.
    said: fn(&str) -> bool,
    /// Whether its report is as it has to be.
    reported: fn(&str) -> bool,
}

const ROW: Row = Row {
    source: "",
    flags: &[],
    libraries: &[],
    ranks: 2,
    arguments: &[],
    has_plain: true,
    environments: &[&[STATS]],
    said: |_| true,
    reported: |_| true,
};

const STATS: Setting = ("LIBCOPY_STATS", "ranks");
const NO_GOVERNOR: Setting = ("LIBCOPY_GOVERNOR", "0");

/// Has messages intercepted from a size on that headers are only just shorter than.
const MESSAGES: &[Setting] = &[
    ("LIBCOPY_MPI_MESSAGES", "1"),
    ("LIBCOPY_MPI_MIN", "4096"),
    STATS,
];
/// The same, whatever they take.
const UNGOVERNED_MESSAGES: &[Setting] = &[MESSAGES[0], MESSAGES[1], STATS, NO_GOVERNOR];

fn run(row: &Row) {
    let _turn = turn();
    let asked = |name| row.libraries.is_empty() || row.libraries.contains(&name);
    let flags = [C.1, row.flags].concat();
    let preload = ("LD_PRELOAD", library().to_str().expect("a plain path"));
    for (name, launcher) in BOTH.into_iter().filter(|(name, _)| asked(name)) {
        let Some(mpi) = mpi(name, launcher, row.source, (C.0, &flags)) else {
            continue;
        };
        let plain = row.has_plain.then(|| {
            let plain = text(&mpi.run(row.ranks, row.arguments, &[]).stdout);
            assert!((row.said)(&plain), "{name}, without the library: {plain}");
            plain
        });
        for settings in row.environments {
            let environment = [&[preload], *settings].concat();
            let ours = mpi.run(row.ranks, row.arguments, &environment);
            let (said, report) = (text(&ours.stdout), text(&ours.stderr));
            let what = format!("{name} {settings:?}: {said}{report}");
            if let Some(plain) = &plain {
                assert_eq!(plain, &said, "{what}");
            }
            assert!((row.said)(&said), "{what}");
            assert!((row.reported)(&report), "{what}");
        }
    }
}

/// The sum of the ranks' counts of calls that were intercepted.
fn taken(report: &str, function: &'static str) -> u64 {
    taken_of(report, &[function])[0].1
}

macro_rules! rows {
    ($($(#[doc = $doc:literal])* $name:ident: $row:expr;)*) => {$(
        $(#[doc = $doc])*
        #[test]
        fn $name() {
            const OWN: Row = $row;
            run(&OWN);
        }
    )*};
}

rows! {
    requests_that_are_asked_again_and_again_say_the_same: Row {
        source: source!("polled.c"),
        environments: &[MESSAGES],
        said: |said| !said.contains("WRONG") && said.lines().count() == 3 * 28,
        ..ROW
    };

    // Without statistics, for which each call is looked at.
    what_a_rank_has_seen_does_not_decide: Row {
        source: source!("unseen.c"),
        flags: &["-Wno-unused-function"],
        arguments: &["20000"],
        environments: &[&[]],
        said: |said| said == "40000 of 40000 right\n",
        ..ROW
    };

    // Without statistics, for which each call is looked at.
    ranks_count_the_same_calls_that_wait_for_a_team: Row {
        source: source!("waits.c"),
        arguments: &["5000"],
        environments: &[&[]],
        said: |said| said == "0 wrong\n0 wrong\n",
        ..ROW
    };

    // Two of these have more communicators, and no place for others. Not under MPICH, which polls.
    ranks_that_know_more_communicators_count_the_same_calls: Row {
        source: source!("waits.c"),
        libraries: &["openmpi"],
        ranks: 4,
        arguments: &["5000"],
        environments: &[&[]],
        said: |said| said == "0 wrong\n".repeat(4),
        ..ROW
    };

    requests_that_were_freed_are_completed: Row {
        source: source!("orphans.c"),
        has_plain: false,
        environments: &[MESSAGES],
        said: |said| {
            said.lines().count() == 50 && said.lines().all(|line| line.ends_with(": 0 wrong"))
        },
        reported: |report| noted(report, "received") >= 60,
        ..ROW
    };

    // Messages are intercepted from more than what is received on. Each of those that are truncated
    // has given its slot back.
    what_is_too_long_is_truncated_in_whichever_call_completes_it: Row {
        source: source!("truncated.c"),
        ranks: 3,
        environments: &[&[
            ("LIBCOPY_MPI_MESSAGES", "1"),
            ("LIBCOPY_MPI_MIN", "12288"),
            STATS,
        ]],
        said: |said| {
            said.matches("truncate (").count() == 20 && said.matches("in status (").count() == 12
        },
        reported: |report| {
            noted(report, "truncated") == 162 && noted(report, "without a slot") == 0
        },
        ..ROW
    };

    // All but the one with different lengths are intercepted, on both ranks.
    what_a_rank_exchanges_with_itself_is_copied_from_layout_to_layout: Row {
        source: source!("alone.c"),
        said: |said| said.starts_with("0 wrong"),
        reported: |report| taken(report, "MPI_Alltoallw") == 2 * 40,
        ..ROW
    };

    /// Parts of one array that are sent and received are not taken for parts that are exchanged in
    /// place.
    alltoalls_within_one_array_are_the_same: Row {
        source: source!("within.c"),
        environments: &[&[STATS, NO_GOVERNOR]],
        said: |said| said == "0 wrong\n",
        reported: |report| {
            taken(report, "MPI_Alltoallw") >= 20 && taken(report, "MPI_Alltoallv") >= 20
        },
        ..ROW
    };

    /// Without the module and an engine nothing returns early, but everything that comes before
    /// such a buffer is used runs; scripts/early-in-guest runs the same program with engines.
    what_collectives_return_can_be_used_by_anybody: Row {
        source: source!("early.c"),
        arguments: &["300000", "12", "3"],
        environments: &[&[("LIBCOPY_ASYNC", "1"), STATS]],
        said: |said| said.lines().count() == 24,
        reported: |report| !report.contains("has no effect"),
        ..ROW
    };

    /// Where calls go past us, nothing returns early.
    programs_that_call_past_us_do_not_return_early: Row {
        source: source!("early.c"),
        flags: &["-DPAST_US"],
        arguments: &["100000", "1", "3"],
        has_plain: false,
        environments: &[&[("LIBCOPY_ASYNC", "engine"), ("LIBCOPY_MPI_MIN", "0")]],
        reported: |report| {
            let why = "LIBCOPY_ASYNC has no effect: the program uses MPI_Buffer_attach_c";
            report.contains(why)
        },
        ..ROW
    };

    /// A call like one before is done without the questions that were answered for that one, in
    /// place or not.
    calls_in_place_are_like_others: Row {
        source: source!("in_place.c"),
        ranks: 3,
        environments: &[&[STATS, ("LIBCOPY_MPI_MIN", "1")]],
        said: |said| said == "192 calls: 0 wrong\n",
        reported: |report| {
            let functions = ["MPI_Gather", "MPI_Scatter", "MPI_Allgather", "MPI_Alltoall"];
            functions.iter().all(|function| taken(report, function) == 3 * 24)
                && taken(report, "MPI_Allreduce") == 3 * 24
        },
        ..ROW
    };

    // A rank that has lost its processor is helped; most of the time both are there.
    ranks_that_send_to_each_other_copy_what_they_receive: Row {
        source: source!("exchanges.c"),
        has_plain: false,
        environments: &[UNGOVERNED_MESSAGES],
        said: |said| said == "150 exchanges: 0 wrong\n",
        reported: |report| noted(report, "bytes by put") < noted(report, "bytes by get") / 2,
        ..ROW
    };

    /// A receiver reads the bytes that do not fit into the lane if its sender is in no call.
    dense_messages_need_no_sender: Row {
        source: source!("away.c"),
        has_plain: false,
        environments: &[UNGOVERNED_MESSAGES],
        said: |said| said == "10 messages: 0 wrong\n",
        reported: |report| {
            let (read, sent) = (noted(report, "bytes by get"), noted(report, "bytes pipelined"));
            (read, sent) == (10 * (500_000 - (256 << 10)), 10 * (256 << 10))
        },
        ..ROW
    };

    /// A header arrives in elements of a type that the MPI library packs in a way of its own, and
    /// receives as MPI defines.
    what_is_received_is_read_as_it_came: Row {
        source: source!("packing.c"),
        flags: &["-DINT"],
        arguments: &["between"],
        environments: &[&[STATS, NO_GOVERNOR, ("LIBCOPY_MPI_MIN", "512")]],
        said: |said| said.ends_with("\n0 wrong\n"),
        reported: |report| noted(report, "received") > 0,
        ..ROW
    };

    /// mpi4py makes all its types so, where the library has these functions. A message of each
    /// type, made in either way: none is forwarded.
    types_that_were_made_with_large_counts_are_known: Row {
        source: source!("large_types.c"),
        libraries: &["mpich"],
        has_plain: false,
        environments: &[MESSAGES],
        said: |said| said.lines().filter(|line| line.ends_with(": 0 wrong")).count() == 11,
        reported: |report| report.contains("messages: sent 22,"),
        ..ROW
    };

    more_bytes_than_an_int_counts_go_at_once: Row {
        source: source!("large.c"),
        libraries: &["mpich"],
        has_plain: false,
        said: |said| {
            let right = said.lines().filter(|line| line.ends_with("code 0, 0 wrong"));
            right.count() == 4
        },
        // By one of the ranks at least, as each counts its own calls.
        reported: |report| {
            let counts = intercepted(report);
            ["MPI_Bcast", "MPI_Allgatherv"]
                .iter()
                .all(|function| counts.contains(&(*function, 1)))
        },
        ..ROW
    };

    disabled_it_passes_everything_on: Row {
        source: source!("differential.c"),
        arguments: &["10", "1", "200000"],
        has_plain: false,
        environments: &[&[STATS, ("LIBCOPY_DISABLE", "1")]],
        reported: |report| {
            let counts = intercepted(report);
            counts.iter().all(|(_, count)| *count == 0) && report.contains(" disabled")
        },
        ..ROW
    };
}
