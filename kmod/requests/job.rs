// SPDX-License-Identifier: GPL-2.0

//! [`Job`]: what a channel sees of a request.

use crate::memory::mapping::Mapping;
use crate::requests::fragments::Worker;
use kernel::sync::Arc;

/// A transfer in fragments, which workers claim one by one.
pub(crate) trait Job: Send + Sync + 'static {
    /// Whether an engine might still get something.
    fn wants_engine(&self) -> bool;

    /// Whether the owner of a region died, so that the job is to fail.
    fn is_orphan(&self) -> bool;

    /// Claims up to `most` fragments: the first, and how many. Ends nothing, so that it may be
    /// called under a spinlock.
    fn claim(&self, worker: Worker, most: u64) -> Option<(u64, u64)>;

    /// Offsets in the source and in the destination, and length, of fragments.
    fn span(&self, first: u64, many: u64) -> (u64, u64, u64);

    /// Bytes that must be multiples of an engine's alignment for it to copy every fragment.
    fn alignment(&self) -> u64;

    /// Memory to read.
    fn source(&self) -> &Mapping;

    /// Memory to write.
    fn destination(&self) -> &Mapping;

    /// A claimed fragment is in place. Does not sleep.
    fn finish(this: &Arc<Self>, fragment: u64, worker: Worker);

    /// Copies claimed fragments by a CPU, on behalf of `worker`, and finishes them; returns their
    /// bytes if they are in place. If the caller is killed meanwhile, they are lost
    /// ([`Self::lose`]). May sleep.
    fn copy(this: &Arc<Self>, first: u64, many: u64, worker: Worker) -> u64;

    /// A claimed fragment is not in place, and its engine will not copy it any more: has a CPU do
    /// that, in the submitter's thread. May sleep.
    fn lose(this: &Arc<Self>, fragment: u64);

    /// Fails a job that [`Self::is_orphan`]. Does not sleep.
    fn fail_orphan(this: &Arc<Self>);

    /// Has another channel go on, because the one that was chosen does not work any more; a CPU if
    /// there is none. Does not sleep.
    fn pass_on(this: &Arc<Self>);

    /// Has a CPU do what is left, because no engine will. Does not sleep.
    fn take_over(this: &Arc<Self>);
}
