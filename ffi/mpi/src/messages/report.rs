// SPDX-License-Identifier: MIT OR Apache-2.0

//! What happened to messages, for statistics.

use std::fmt::Write as _;

use libcopy::p2p::events::{EVENTS, counts};
use libcopy::refusal::refused;

use crate::comm::processes::world;
use crate::types::{datatype, earned};

/// The numbers for a report; none where messages are not intercepted.
pub fn numbers() -> Vec<(&'static str, u64)> {
    if world().is_none() {
        return Vec::new();
    }
    let types = [
        ("layouts made", datatype::made()),
        ("uses of fresh types", earned::forwarded()),
        (
            "refused by the kernel",
            refused().map(|(_, times, _)| times).sum(),
        ),
        ("types read differently", datatype::read_differently()),
    ];
    let names = EVENTS.iter().map(|(_, name)| *name);
    names.zip(counts()).chain(types).collect()
}

/// A line of numbers for the report; nothing where messages are not intercepted.
pub fn report() -> Option<String> {
    world()?;
    let mut text = "libcopy_mpi: messages:".to_owned();
    for (name, number) in numbers() {
        let _ = write!(text, " {name} {number},");
    }
    text.pop();
    Some(text)
}
