// SPDX-License-Identifier: MIT OR Apache-2.0

//! What the policy says of one part of an operation.

use crate::policy::Path;

/// How a part moves. Asked for once per part and call, and handed down: both ranks of a part come
/// to the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Decision {
    /// The way of the bytes.
    pub(crate) path: Path,
    /// Whether copy engines may move them: a rank that cannot use an engine copies with its CPU.
    pub(crate) offloads: bool,
    /// Whether root and leaf share the copy.
    pub(crate) shares: bool,
    /// Whether a leaf says that it is here before anything moves: where the root shares its copy,
    /// and where the bytes go through shared memory, whose end the root keeps back until all have
    /// turned out to mean the same operation. Otherwise the root opens its memory, tells so, and
    /// leaves copy whenever they come, which saves a round of context switches where ranks
    /// outnumber processors. There, a broadcast through shared memory does not keep its end back
    /// either: leaves that have had a processor would wait for those that have not, and all would
    /// end as late as the last.
    ///
    /// Where engines always move the bytes, nobody announces anything.
    pub(crate) announces: bool,
}
