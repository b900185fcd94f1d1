// SPDX-License-Identifier: MIT OR Apache-2.0

//! What is intercepted before anything is learned, as `traces.txt` has it: which a change of the
//! table that is to decide as before leaves alone.

use std::fmt::Write as _;

use libcopy::collective::Op;
use libcopy::policy::Oversubscription;

use super::choice::{MPICH_4, MPICH_5, OPEN_MPI_4, OPEN_MPI_5};
use crate::library::against_mpi::{MpiImplementation, is_beaten_across};

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
    for (op, library) in Op::ALL
        .into_iter()
        .flat_map(|op| libraries.map(|library| (op, library)))
    {
        for under in Oversubscription::ALL {
            let is_over = under != Oversubscription::None;
            let blocking = flips(|bytes| library.is_beaten(op, bytes, under));
            let fixed = flips(|bytes| library.is_beaten_in_fixed_order(op, bytes, under));
            let nonblocking = flips(|bytes| library.is_beaten_nonblocking(op, bytes, is_over));
            let both =
                flips(|bytes| library.is_beaten_nonblocking_in_fixed_order(op, bytes, is_over));
            let _ = writeln!(
                text,
                "{library:?} {op} {under:?}:{blocking}, fixed{fixed}, \
                 nonblocking{nonblocking}, fixed{both}"
            );
        }
        let least = [library.least(op), library.least_nonblocking(op)];
        let across = flips(|bytes| is_beaten_across(op, bytes));
        let _ = writeln!(text, "{library:?} {op}: least {least:?}, across{across}");
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
            library.below()
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
