// SPDX-License-Identifier: MIT OR Apache-2.0

//! How often each function was taken or passed on, and why.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

use libcopy::collective::Op;

/// What became of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// libcopy did it.
    Taken,
    /// The message is one that the MPI library moves as fast.
    Small,
    /// The communicator spans several machines, is an intercommunicator, or has one rank.
    Communicator,
    /// The arguments are not ours to judge: the MPI library says what is wrong with them.
    Arguments,
    /// No team could be made of the ranks.
    NoTeam,
    /// `LIBCOPY_DISABLE` is set, or the MPI library is an unknown one.
    Disabled,
}

const FATES: [(Fate, &str); 6] = [
    (Fate::Taken, "taken"),
    (Fate::Small, "small"),
    (Fate::Communicator, "communicator"),
    (Fate::Arguments, "arguments"),
    (Fate::NoTeam, "no team"),
    (Fate::Disabled, "disabled"),
];

static COUNTS: [[AtomicU64; FATES.len()]; Op::ALL.len()] =
    [const { [const { AtomicU64::new(0) }; FATES.len()] }; Op::ALL.len()];
static BYTES: AtomicU64 = AtomicU64::new(0);

/// Counts a call; `bytes` is what this rank sent or received, for calls that were taken.
pub fn count(op: Op, fate: Fate, bytes: u64) {
    if let Some(row) = Op::ALL.iter().position(|known| *known == op) {
        COUNTS[row][fate as usize].fetch_add(1, Ordering::Relaxed);
        if bytes != 0 {
            BYTES.fetch_add(bytes, Ordering::Relaxed);
        }
    }
}

/// The table, a line per function that was called.
pub fn report(library: &str) -> String {
    let mut text = format!(
        "libcopy_mpi: {library}, {} bytes taken\nlibcopy_mpi: {:<14}",
        BYTES.load(Ordering::Relaxed),
        "function"
    );
    for (_, name) in FATES {
        let _ = write!(text, " {name:>12}");
    }
    for (op, counts) in Op::ALL.iter().zip(&COUNTS) {
        let counts: Vec<u64> = counts.iter().map(|n| n.load(Ordering::Relaxed)).collect();
        if counts.iter().any(|n| *n != 0) {
            let _ = write!(text, "\nlibcopy_mpi: {:<14}", format!("MPI_{}", title(*op)));
            for n in counts {
                let _ = write!(text, " {n:>12}");
            }
        }
    }
    text
}

fn title(op: Op) -> String {
    let name = op.to_string();
    let (first, rest) = name.split_at(1);
    format!("{}{rest}", first.to_ascii_uppercase())
}
