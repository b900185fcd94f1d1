// SPDX-License-Identifier: MIT OR Apache-2.0

//! Which transports an operation prefers, by the size of its messages.

use serde::{Deserialize, Serialize};

use crate::transport::TransportKind;

/// Bands that fit into the words for one operation and one kind of machine.
pub(crate) const MAX_BANDS: usize = 4;

/// From a size on, the transports in order of preference; the first that is usable is taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Band {
    /// Smallest message, in bytes of the largest part that one rank sends or receives.
    pub from: u64,
    /// Most preferred first; what is missing comes last, in the usual order.
    pub prefer: Vec<TransportKind>,
}

/// The bands of one operation, for a machine with a processor per rank and for one with fewer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bands {
    /// Where every rank has a processor. Ordered by size; the first starts at 0.
    #[serde(alias = "spacious")]
    pub dedicated: Vec<Band>,
    /// Where ranks outnumber processors.
    #[serde(alias = "crowded")]
    pub oversubscribed: Vec<Band>,
}

impl Bands {
    /// Small parts through shared memory, large ones with one copy.
    pub(super) fn one_copy() -> Self {
        use TransportKind::{Cma, Kmod, Shm};
        let bands = |from| {
            [(0, [Kmod, Shm, Cma]), (from, [Kmod, Cma, Shm])]
                .map(|(from, prefer)| Band {
                    from,
                    prefer: prefer.to_vec(),
                })
                .to_vec()
        };
        Bands {
            dedicated: bands(32 << 10),
            oversubscribed: bands(128 << 10),
        }
    }
}
