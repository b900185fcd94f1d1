// SPDX-License-Identifier: MIT OR Apache-2.0

//! The operations of a team, and what a rank says about the one that it calls.

use std::fmt;

use crate::transport::TransportKind;

/// What ranks do together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Op {
    /// [`crate::Team::bcast`].
    Bcast = 1,
    /// [`crate::Team::gather`] and its relatives.
    Gather = 2,
    /// [`crate::Team::scatter`] and its relatives.
    Scatter = 3,
    /// [`crate::Team::allgather`] and its relatives.
    Allgather = 4,
    /// [`crate::Team::set_transport`].
    Control = 5,
    /// [`crate::Team::barrier`].
    Barrier = 6,
    /// [`crate::Team::alltoall`] and its relatives.
    Alltoall = 7,
    /// [`crate::Team::reduce`].
    Reduce = 8,
    /// [`crate::Team::allreduce`].
    Allreduce = 9,
    /// [`crate::Team::reduce_scatter`].
    ReduceScatter = 10,
    /// [`crate::Team::scan`].
    Scan = 11,
    /// [`crate::Team::exscan`].
    Exscan = 12,
}

impl Op {
    /// Those that move data as it is; they have transports of their own in a policy.
    pub const ALL: [Op; 5] = [
        Op::Bcast,
        Op::Gather,
        Op::Scatter,
        Op::Allgather,
        Op::Alltoall,
    ];

    /// Those that combine data.
    pub const REDUCTIONS: [Op; 5] = [
        Op::Reduce,
        Op::Allreduce,
        Op::ReduceScatter,
        Op::Scan,
        Op::Exscan,
    ];

    pub(crate) fn from_number(number: u8) -> Option<Self> {
        Op::ALL
            .into_iter()
            .chain(Op::REDUCTIONS)
            .chain([Op::Control, Op::Barrier])
            .find(|op| *op as u8 == number)
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Op::Bcast => "bcast",
            Op::Gather => "gather",
            Op::Scatter => "scatter",
            Op::Allgather => "allgather",
            Op::Alltoall => "alltoall",
            Op::Reduce => "reduce",
            Op::Allreduce => "allreduce",
            Op::ReduceScatter => "reduce_scatter",
            Op::Scan => "scan",
            Op::Exscan => "exscan",
            Op::Control => "set_transport",
            Op::Barrier => "barrier",
        })
    }
}

/// What a rank called, as far as another rank can check it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) op: Op,
    pub(crate) root: usize,
    /// Bytes that the two ranks exchange.
    pub(crate) len: u64,
}

/// Stands for a length where only the operations are compared.
pub(crate) const UNSAID: usize = usize::MAX;

impl Call {
    pub(crate) fn new(op: Op, root: usize, len: usize) -> Self {
        Call {
            op,
            root,
            len: len as u64,
        }
    }

    pub(crate) fn to_words(self) -> [u64; 2] {
        [(self.root as u64) << 8 | self.op as u64, self.len]
    }

    pub(crate) fn from_words([first, len]: [u64; 2]) -> Self {
        let op = Op::from_number(first as u8).unwrap_or(Op::Control);
        Call {
            op,
            root: (first >> 8) as usize,
            len,
        }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.op {
            Op::Control => match TransportKind::from_number(self.len) {
                Some(kind) => write!(f, "set_transport({kind})"),
                None => write!(f, "set_transport(none)"),
            },
            Op::Barrier => f.write_str("barrier"),
            op @ (Op::Allgather
            | Op::Alltoall
            | Op::Allreduce
            | Op::ReduceScatter
            | Op::Scan
            | Op::Exscan) => {
                if self.len == UNSAID as u64 {
                    write!(f, "{op}")
                } else {
                    write!(f, "{op} with {} bytes", self.len)
                }
            }
            op if self.len == UNSAID as u64 => write!(f, "{op} with root {}", self.root),
            op => write!(f, "{op} with {} bytes and root {}", self.len, self.root),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_survive_words() {
        let call = Call::new(Op::Scatter, 7, 123);
        assert_eq!(Call::from_words(call.to_words()), call);
        assert_eq!(call.to_string(), "scatter with 123 bytes and root 7");
    }
}
