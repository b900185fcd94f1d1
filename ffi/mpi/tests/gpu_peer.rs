// SPDX-License-Identifier: MIT OR Apache-2.0

//! Messages that receivers copy out of the sender's device memory, run by Open MPI and by MPICH
//! with a stand-in for the CUDA driver: exactly those that qualify are copied, and where that
//! cannot be done the right bytes arrive all the same.

// Other tests use other parts of it.
#[allow(dead_code)]
mod common;
#[path = "../../../libcopy/gpu/tests/common/compile.rs"]
mod compile;
#[path = "common/device.rs"]
mod device;

use std::time::Instant;

use common::{LIMIT, Mpi, is_full, noted, text, turn};
use device::{environment, numbers, programs, run};

const CASES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/device_cases.c");
const PEER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/device_peer.c");

const PEERS: (&str, &str) = ("LIBCOPY_GPU_METHOD", "peer");
const DELAYED: (&str, &str) = ("FAKECUDA_DELAYED", "1");

/// What became of the messages of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Messages {
    offered: u64,
    copied: u64,
    packed: u64,
}

/// Runs cases of `device_peer.c`: what the library says became of the messages, and which the
/// program knows can be copied, or have to be packed.
fn peers(names: &[&str], more: &[(&str, &str)], check: impl Fn(Messages, Messages, &str)) {
    peers_of(programs(PEER), names, more, check);
}

/// The same of these programs.
fn peers_of(
    programs: Vec<Mpi>,
    names: &[&str],
    more: &[(&str, &str)],
    check: impl Fn(Messages, Messages, &str),
) {
    let _turn = turn();
    for program in programs {
        let (printed, report) = run(&program, 2, names, more);
        let said = |what: &str| -> u64 {
            let lines = printed.lines().filter_map(|line| line.strip_prefix(what));
            lines.map(|line| line.trim().parse::<u64>().unwrap()).sum()
        };
        for name in names {
            let right = printed
                .lines()
                .filter(|line| line.ends_with(&format!(": {name}")));
            let times = names.iter().filter(|other| *other == name).count();
            assert_eq!(right.count(), 2 * times, "{}: {printed}", program.name);
        }
        let expected = Messages {
            offered: said("copied") + said("packed"),
            copied: said("copied"),
            packed: said("packed"),
        };
        let counted = Messages {
            offered: numbers(&report, "messages offered to peers"),
            copied: numbers(&report, "peer copies"),
            packed: numbers(&report, "offered in vain"),
        };
        // Both sides count.
        assert_eq!(
            noted(&report, "bytes by peer copies") > 0,
            counted.copied > 0
        );
        check(counted, expected, &format!("{}: {report}", program.name));
    }
}

/// The same where each message's fate is known.
fn exactly(names: &[&str], more: &[(&str, &str)]) {
    peers(names, more, as_expected);
}

fn as_expected(counted: Messages, expected: Messages, report: &str) {
    assert!(expected.offered > 0, "{report}");
    assert_eq!(counted, expected, "{report}");
}

/// Runs a case that takes long with streams that are in time, and with late ones: unless all
/// repetitions are asked for, one MPI library has these and the other one those.
fn in_time_and_late(case: &str, check: impl Fn(Messages, Messages, &str)) {
    for (more, library) in [(&[PEERS][..], "openmpi"), (&[PEERS, DELAYED], "mpich")] {
        let mut chosen = programs(PEER);
        let is_there = chosen.iter().any(|program| program.name == library);
        chosen.retain(|program| is_full() || !is_there || program.name == library);
        peers_of(chosen, &[case], more, &check);
    }
}

#[test]
fn messages_between_all_layouts_by_all_functions_are_copied() {
    in_time_and_late("functions", as_expected);
}

#[test]
fn messages_of_one_call_are_copied_at_the_same_time() {
    exactly(&["together"], &[PEERS]);
    exactly(&["together"], &[PEERS, DELAYED]);
}

#[test]
fn no_call_returns_before_copies_that_were_begun_are_done() {
    in_time_and_late("under_way", |counted, _, report| {
        assert!(counted.copied > 0, "{report}");
        assert_eq!(counted.offered, counted.copied + counted.packed, "{report}");
    });
}

#[test]
fn memory_that_is_allocated_again_is_not_mistaken() {
    exactly(&["recycled"], &[PEERS]);
}

#[test]
fn what_a_receiver_cannot_copy_is_packed() {
    for case in ["to_host", "refused_receiver", "away", "left_out"] {
        exactly(&[case], &[PEERS]);
        exactly(&[case], &[PEERS, DELAYED]);
    }
}

#[test]
fn what_cannot_be_exported_or_reached_as_one_is_not_offered() {
    for case in ["refused_sender", "scattered"] {
        peers(&[case], &[PEERS], |counted, _, report| {
            assert_eq!(counted.offered, 0, "{report}");
        });
    }
}

#[test]
fn messages_for_which_there_is_no_slot_keep_their_order() {
    for more in [&[PEERS][..], &[PEERS, DELAYED]] {
        peers(&["many"], more, |counted, _, report| {
            assert!(counted.copied > 0, "{report}");
            assert_eq!(counted.offered, counted.copied + counted.packed, "{report}");
        });
    }
}

#[test]
fn messages_that_are_too_long_are_errors_and_give_their_slots_back() {
    peers(&["truncated"; 6], &[PEERS], |counted, expected, report| {
        assert_eq!(counted.copied, expected.copied, "{report}");
        // Of the others the receiver gets the first bytes, which their sender packs.
        assert_eq!(
            (counted.offered, counted.packed),
            (2 * expected.copied, expected.copied),
            "{report}"
        );
    });
}

#[test]
fn nobody_waits_for_a_receiver_that_is_elsewhere() {
    for method in ["peer", "auto"] {
        let more = [("LIBCOPY_GPU_METHOD", method)];
        peers(&["late"], &more, |counted, _, report| {
            assert!(counted.offered > 0, "{report}");
            assert_eq!(counted.offered, counted.copied + counted.packed, "{report}");
        });
    }
}

#[test]
fn each_start_of_a_persistent_send_is_copied() {
    for case in ["persistent", "halo", "persistent_left"] {
        exactly(&[case], &[PEERS]);
        exactly(&[case], &[PEERS, DELAYED]);
    }
}

/// If a message were not packed when its receiver does not begin, the ranks would wait for each
/// other for ever.
#[test]
fn no_persistent_send_waits_for_a_receiver_that_is_elsewhere() {
    exactly(&["persistent_late"; 3], &[PEERS]);
    exactly(&["persistent_late"], &[]);
}

/// Unless that is asked for, messages are offered less and less to a receiver that cannot copy
/// them.
#[test]
fn messages_are_not_offered_in_vain_for_ever() {
    peers(&["to_host"; 3], &[], |counted, expected, report| {
        assert!(counted.offered > 0, "{report}");
        assert!(3 * counted.offered < expected.packed, "{report}");
        assert_eq!(counted.copied, 0, "{report}");
    });
}

#[test]
fn freed_and_cancelled_requests_wildcards_and_fork_with_peer_copies() {
    let _turn = turn();
    let names = ["freed", "cancelled", "wildcards", "recycled", "forked"];
    for program in programs(CASES) {
        for more in [
            &[PEERS][..],
            &[PEERS, DELAYED],
            &[PEERS, ("LIBCOPY_MPI_MIN", "1")],
        ] {
            let (_, report) = run(&program, 3, &names, more);
            assert!(numbers(&report, "peer copies") > 0, "{report}");
        }
    }
}

#[test]
fn threads_with_peer_copies() {
    let _turn = turn();
    for program in programs(CASES) {
        for more in [&[PEERS][..], &[PEERS, DELAYED]] {
            let (_, report) = run(&program, 2, &["threads"], more);
            // Messages of MPICH 4 are the library's where several threads may call, and the report
            // says so.
            let are_ours = !report.contains("which this MPICH does not let ask about");
            assert!(are_ours || program.name == "mpich", "{report}");
            assert_eq!(numbers(&report, "peer copies") > 0, are_ours, "{report}");
        }
    }
}

#[test]
fn a_rank_that_is_killed_on_either_side_ends_the_program() {
    let _turn = turn();
    for program in programs(PEER) {
        for case in ["killed_sender", "killed_receiver"] {
            let started = Instant::now();
            let (_, output) = program.output(2, &[case], &environment(&[PEERS]));
            let (name, printed) = (program.name, text(&output.stdout));
            assert!(printed.contains("rank 0: message 0"), "{name}: {printed}");
            assert!(!output.status.success(), "{name}: {printed}");
            assert!(started.elapsed() < LIMIT, "{name} hung");
        }
    }
}
