// SPDX-License-Identifier: MIT OR Apache-2.0

//! What one rank says.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The version of these words.
pub const VERSION: u32 = 2;

/// What one rank says: a line of the file that `LIBCOPY_STATS` names.
#[derive(Serialize, Deserialize, Clone, Debug, Default)]
pub struct Rank {
    /// [`VERSION`].
    pub report: u32,
    /// The rank in `MPI_COMM_WORLD`; -1 where that is not known.
    pub rank: i64,
    /// The machine's name.
    #[serde(default)]
    pub host: String,
    /// The file that the process runs.
    #[serde(default)]
    pub program: String,
    /// The process.
    #[serde(default)]
    pub pid: u32,
    /// The MPI library.
    pub library: String,
    /// Bytes that this rank sent or received in calls that were intercepted.
    #[serde(default)]
    pub bytes: u64,
    /// Where the time went.
    #[serde(default)]
    pub time: Time,
    /// Calls by function and by what became of them.
    #[serde(default)]
    pub functions: BTreeMap<String, BTreeMap<String, u64>>,
    /// Numbers about messages.
    #[serde(default)]
    pub messages: BTreeMap<String, u64>,
    /// Numbers about collectives that returned early.
    #[serde(default)]
    pub early: BTreeMap<String, u64>,
    /// What is off, and why.
    #[serde(default)]
    pub off: BTreeMap<String, String>,
    /// Who takes part.
    #[serde(default)]
    pub bootstrap: String,
    /// What the governor knows.
    #[serde(default)]
    pub classes: Vec<Class>,
}

/// Nanoseconds. In MPI: in functions that libcopy looks at, including the time that they wait for
/// other ranks.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq)]
#[serde(default)]
pub struct Time {
    /// From the start of the process to `MPI_Finalize`.
    pub elapsed_ns: u64,
    /// In collectives that libcopy did.
    pub intercepted_ns: u64,
    /// In collectives that were forwarded.
    pub forwarded_ns: u64,
    /// In functions that send, receive, probe or complete requests.
    pub messages_ns: u64,
    /// In functions that pack and unpack.
    pub packing_ns: u64,
    /// What libcopy itself took to find the other ranks and to make teams of them.
    pub setup_ns: u64,
}

impl Time {
    /// In MPI.
    pub fn mpi_ns(&self) -> u64 {
        self.intercepted_ns + self.forwarded_ns + self.messages_ns + self.packing_ns
    }

    /// Adds another rank's.
    pub(crate) fn add(&mut self, other: &Time) {
        self.elapsed_ns += other.elapsed_ns;
        self.intercepted_ns += other.intercepted_ns;
        self.forwarded_ns += other.forwarded_ns;
        self.messages_ns += other.messages_ns;
        self.packing_ns += other.packing_ns;
        self.setup_ns += other.setup_ns;
    }
}

/// A class of calls about which the governor decides: one function, one power of two of bytes, on
/// all communicators of one size.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct Class {
    /// The function.
    pub function: String,
    /// Ranks of the communicators.
    pub ranks: u64,
    /// The shortest message of the class.
    pub bytes: u64,
    /// What messages have: dense elements, or pieces.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub elements: String,
    /// Calls that libcopy did.
    pub intercepted: u64,
    /// Calls that the MPI library did.
    pub forwarded: u64,
    /// Trials of both ways.
    pub trials: u64,
    /// Communicators (of `MPI_Pack` and `MPI_Unpack`: numbers of elements of a type).
    pub communicators: u64,
    /// Communicators on which calls are forwarded by the last decision.
    pub forwarding: u64,
    /// Of the intercepted calls, those of which nothing is known about what they would have taken
    /// forwarded.
    #[serde(default)]
    pub unmeasured: u64,
    /// What the others took: nanoseconds, by the mean of those that were measured.
    #[serde(default)]
    pub took_ns: i64,
    /// What they would have taken more if they had been forwarded; negative if less.
    #[serde(default)]
    pub saved_ns: i64,
    /// The standard error of that.
    #[serde(default)]
    pub error_ns: i64,
    /// Reports with intercepted calls of the class. Each of these ranks has spent the time, and
    /// saved it.
    #[serde(default, skip_deserializing, skip_serializing_if = "is_zero")]
    pub callers: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Class {
    /// What is called.
    pub fn name(&self) -> String {
        match self.elements.as_str() {
            "" => self.function.clone(),
            elements => format!("{}, {elements}", self.function),
        }
    }

    /// Whether the other class is the same one on another rank.
    pub(crate) fn is(&self, other: &Class) -> bool {
        let key = |class: &Class| (class.ranks, class.bytes);
        key(self) == key(other)
            && self.function == other.function
            && self.elements == other.elements
    }

    /// Adds another rank's. The ranks' errors are those of the same trials, so they add up.
    pub(crate) fn add(&mut self, other: &Class) {
        self.intercepted += other.intercepted;
        self.forwarded += other.forwarded;
        self.trials += other.trials;
        self.communicators += other.communicators;
        self.forwarding += other.forwarding;
        self.unmeasured += other.unmeasured;
        self.took_ns += other.took_ns;
        self.saved_ns += other.saved_ns;
        self.error_ns += other.error_ns;
        self.callers += other.callers;
    }
}
