// SPDX-License-Identifier: MIT OR Apache-2.0

//! What is intercepted before anything is learned, as `traces.txt` has it: which a change of the
//! table that is to decide as before leaves alone.

use std::fmt::Write as _;

use libcopy::collective::Op;
use libcopy::policy::Oversubscription;

use super::prior::{
    MPICH_4, MPICH_5, OPEN_MPI_4, OPEN_MPI_5, Order, Prior, between, is_faster_across, least,
};
use crate::library::abi::MpiImplementation;
use crate::library::stats::Function;

/// The sizes at which an answer changes: `+` if it is yes from there on, `-` if it is no.
fn flips(is_ours: impl Fn(u64) -> bool) -> String {
    let powers = (0..36u32).map(|power| 1u64 << power);
    let around = powers.flat_map(|bytes| [bytes - 1, bytes, bytes + 1]);
    let (mut text, mut last) = (String::new(), false);
    // Where thresholds are no powers of two.
    let mut sizes: Vec<u64> = around.chain((0..64_000).step_by(125)).collect();
    sizes.sort_unstable();
    for bytes in sizes {
        if is_ours(bytes) != last {
            last = !last;
            let _ = write!(text, " {}{bytes}", if last { '+' } else { '-' });
        }
    }
    if text.is_empty() {
        " never".to_owned()
    } else {
        text
    }
}

fn collectives(text: &mut String) {
    let libraries = [MpiImplementation::OpenMpi, MpiImplementation::Mpich];
    let each = Op::ALL.into_iter().chain(Op::REDUCTIONS);
    for (op, library) in each.flat_map(|op| libraries.map(|library| (op, library))) {
        let functions = [false, true].map(|is_nonblocking| {
            let is_it = |function: &Function| {
                function.op() == Some(op) && function.is_nonblocking() == is_nonblocking
            };
            Function::all().find(is_it)
        });
        for under in Oversubscription::ALL {
            let line = |ranks| {
                let [blocking, fixed, nonblocking, both] = [
                    (functions[0], Order::Free),
                    (functions[0], Order::Fixed),
                    (functions[1], Order::Free),
                    (functions[1], Order::Fixed),
                ]
                .map(|(function, order)| {
                    flips(|bytes| {
                        let prior = function.map(|function| Prior::of(library, function, bytes));
                        prior.is_some_and(|it| it.among(ranks).is_under(Some(under), order))
                    })
                });
                format!("{blocking}, fixed{fixed}, nonblocking{nonblocking}, fixed{both}")
            };
            let [few, many, most] = [4, 64, 128].map(line);
            let _ = writeln!(text, "{library:?} {op} {under:?}:{few}");
            if few != many {
                let _ = writeln!(text, "{library:?} {op} {under:?}, many ranks:{many}");
            }
            if many != most {
                let _ = writeln!(text, "{library:?} {op} {under:?}, 128 ranks:{most}");
            }
        }
        let least = functions.map(|function| {
            let least = function.map(|function| least(library, function, None));
            least.filter(|least| *least < u64::MAX)
        });
        let is_across =
            |bytes| functions[0].is_some_and(|function| is_faster_across(function, bytes));
        let across = flips(is_across);
        let suits_pairs = |bytes| {
            let prior = functions[0].map(|it| Prior::of_known(library, it, bytes, None));
            prior.is_some_and(|prior| prior.is_anywhere() && prior.suits(2))
        };
        let pairs = flips(suits_pairs);
        let _ = writeln!(
            text,
            "{library:?} {op}: least {least:?}, across{across}, pairs that share processors{pairs}"
        );
    }
}

fn messages(text: &mut String) {
    let libraries = [&OPEN_MPI_4, &OPEN_MPI_5, &MPICH_4, &MPICH_5];
    for (library, name) in
        libraries
            .into_iter()
            .zip(["openmpi 4", "openmpi 5", "mpich 4", "mpich 5"])
    {
        let tolls = [0, 512, 3999, 8000].map(|bytes| library.toll(bytes));
        let _ = writeln!(
            text,
            "{name}: least {:?}, packed below {}, toll {tolls:?}",
            library.least(),
            (0..)
                .find(|bytes| *bytes > 0 && !library.packs(*bytes, 2))
                .unwrap_or(0)
        );
        for is_regular in [false, true] {
            for each in (2..16).map(|power| 1u64 << power) {
                let fast = flips(|bytes| library.is_fast(is_regular, bytes, bytes / each));
                let _ = writeln!(
                    text,
                    "{name}, pieces of {each}, {is_regular}: forwarded{fast}"
                );
            }
        }
        for total in [100, 16 << 10, 20 << 10] {
            let said = [true, false].map(|is_dense| library.truncated(is_dense, total, 64));
            let _ = writeln!(text, "{name}, {total} bytes cut to 64: {said:?}");
        }
    }
}

#[test]
fn the_prior_is_as_recorded() {
    let mut found = String::new();
    collectives(&mut found);
    messages(&mut found);
    assert_eq!(found, include_str!("traces.txt"));
}

/// What [`crate::decide::threshold`] forwards is what the prior forwards.
#[test]
fn what_is_forwarded_at_once_is_never_faster() {
    let mut gaps = [0; 4];
    let libraries = [MpiImplementation::OpenMpi, MpiImplementation::Mpich];
    let each = Oversubscription::ALL.map(Some);
    for (index, known) in [None].into_iter().chain(each).enumerate() {
        for (function, library) in Function::all().flat_map(|it| libraries.map(|other| (it, other)))
        {
            let is_ours = |bytes| Prior::of_known(library, function, bytes, known).is_anywhere();
            let least = least(library, function, known);
            let between = between(library, function, known);
            let powers = (0..36u32).map(|power| 1u64 << power);
            let around = powers.flat_map(|bytes| [bytes - 1, bytes, bytes + 1]);
            for bytes in around.chain((0..64_000).step_by(125)) {
                let is_at_once = bytes < least || between.contains(&bytes);
                assert!(!(is_at_once && is_ours(bytes)), "{function:?} {bytes}");
            }
            if !between.is_empty() {
                // All of it: the sizes next to it are ours.
                assert!(is_ours(between.start - 1));
                assert!(between.end == u64::MAX || is_ours(between.end));
                gaps[index] += 1;
            }
        }
    }
    // Irregular alltoalls of both libraries; there also exclusive scans and reduces of Open MPI
    // where each rank has a processor. Where ranks share them irregular alltoalls of MPICH, and
    // scatters of both libraries; with more than two for a processor alltoalls of Open MPI, too.
    assert_eq!(gaps, [4, 6, 4, 5]);
}
