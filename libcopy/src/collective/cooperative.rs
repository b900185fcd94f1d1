// SPDX-License-Identifier: MIT OR Apache-2.0

//! One copy, two workers: where either side can reach the other's memory, the root does not wait
//! idly while a leaf copies. Both claim pieces, from either end, until none is left; the faster one
//! does more, and if one of them has no processor, the other does all.
//!
//! CMA reaches every address at no cost; through the module a leaf has to open its buffer for
//! that. The policy says where sharing pays; otherwise the leaf copies alone.

use super::division::Division;
use crate::error::Boxed;
use crate::op::Call;
use crate::policy::Path;
use crate::shm::mailbox::{Source, Step, Target};
use crate::team::{Decision, Team};
use crate::transport::TransportKind;
use crate::transport::remote_key::RemoteKey;

/// Which way the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    /// From the root's memory to the leaf.
    ToLeaf,
    /// From the leaf to the root's memory.
    ToRoot,
}

/// How the bytes go, as the root tells a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rts {
    /// The root's memory; without a key, the bytes go through shared memory.
    pub(super) key: Option<RemoteKey>,
    /// Where in it the leaf's part starts.
    pub(super) offset: u64,
    /// Whether the root takes part in the copy.
    pub(super) shared: bool,
}

impl Rts {
    /// Through shared memory.
    pub(super) const STREAM: Rts = Rts {
        key: None,
        offset: 0,
        shared: false,
    };

    /// For a leaf that copies alone, from the beginning of the memory on.
    pub(super) fn at(key: Option<RemoteKey>) -> Rts {
        Rts { key, ..Rts::STREAM }
    }

    pub(super) fn to_words(self) -> [u64; 6] {
        let [kind, a, b] = RemoteKey::to_words(self.key);
        [kind, a, b, self.offset, u64::from(self.shared), 0]
    }

    pub(super) fn from_words([kind, a, b, offset, shared, _]: [u64; 6]) -> Boxed<Self> {
        Ok(Rts {
            key: RemoteKey::from_words([kind, a, b])?,
            offset,
            shared: shared != 0,
        })
    }
}

/// A leaf's memory, as it tells the root when it arrives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Rtr {
    /// How CMA finds it.
    cma: Option<RemoteKey>,
    /// How the module finds it, if the leaf opened it.
    kmod: Option<RemoteKey>,
}

impl Rtr {
    fn to_words(self) -> [u64; 6] {
        let [a, b, c] = RemoteKey::to_words(self.cma);
        let [d, e, f] = RemoteKey::to_words(self.kmod);
        [a, b, c, d, e, f]
    }

    fn from_words([a, b, c, d, e, f]: [u64; 6]) -> Boxed<Self> {
        Ok(Rtr {
            cma: RemoteKey::from_words([a, b, c])?,
            kmod: RemoteKey::from_words([d, e, f])?,
        })
    }

    fn key(&self, kind: TransportKind) -> Option<RemoteKey> {
        let key = match kind {
            TransportKind::Kmod => self.kmod,
            TransportKind::Cma => self.cma,
            TransportKind::Shm => None,
        };
        key.filter(|key| key.kind() == kind)
    }
}

/// The root's view of what it shares with a leaf.
#[derive(Debug)]
pub(super) struct LeafCopy {
    pub(super) leaf: usize,
    pub(super) call: Call,
    decision: Decision,
    /// What the leaf told when it arrived, if it did.
    rtr: Option<Rtr>,
    /// The root's memory.
    pub(super) base: *mut u8,
    pub(super) len: usize,
}

impl LeafCopy {
    /// `rtr` is what the leaf told when it arrived, if it did.
    pub(super) fn new(
        (leaf, call, decision): (usize, Call, Decision),
        rtr: Option<Rtr>,
        base: *mut u8,
        len: usize,
    ) -> Self {
        LeafCopy {
            leaf,
            call,
            decision,
            rtr,
            base,
            len,
        }
    }

    /// The leaf's memory as a one-sided transport finds it, if it does.
    fn key(&self, kind: TransportKind) -> Option<RemoteKey> {
        self.rtr.as_ref()?.key(kind)
    }

    /// Whether the root should take part in a copy through `kind`, and can.
    pub(super) fn is_shareable(&self, kind: TransportKind) -> bool {
        self.decision.shares && self.key(kind).is_some()
    }
}

/// Pieces of a copy at most: [`Claims`](crate::shm::claims::Claims) has sixteen bits for those of
/// either side, and one attempt too many.
const MOST_PIECES: usize = 1 << 14;

/// Bytes per piece: large enough for a system call to be worth it, small enough for the two to
/// end at about the same time. Short messages are cut in halves.
fn piece(len: usize) -> usize {
    let smallest = len.div_ceil(2).clamp(16 << 10, 64 << 10);
    let usual = (len / 4).max(smallest).min(256 << 10);
    usual.max(len.div_ceil(MOST_PIECES)).next_multiple_of(4096)
}

/// Pieces of a copy.
fn pieces(len: usize) -> usize {
    len.div_ceil(piece(len))
}

/// Offset and length of one of them.
fn range(index: usize, len: usize) -> (usize, usize) {
    let start = index * piece(len);
    (start, piece(len).min(len - start))
}

/// How the root of a gather or scatter serves the leaves that are not eager.
#[derive(Debug)]
pub(super) struct Plan {
    /// The one-sided transport of `jobs`.
    pub(super) kind: TransportKind,
    /// Leaves that copy from or to what the root opened.
    pub(super) jobs: Vec<LeafCopy>,
    /// Whether the root takes part in these copies.
    pub(super) shared: bool,
    /// Leaves that are served through shared memory.
    pub(super) streams: Vec<LeafCopy>,
}

/// The one-sided transport that serves the leaves of an operation: the most preferred of those that
/// the policy names for any part.
pub(super) fn one_sided_kind<'a>(
    decisions: impl IntoIterator<Item = &'a Decision>,
) -> Option<TransportKind> {
    decisions
        .into_iter()
        .filter_map(|decision| match decision.path {
            Path::Via(kind) if kind != TransportKind::Shm => Some(kind),
            _ => None,
        })
        .min()
}

impl Team {
    /// Tells each of the `leaves` how its part goes: from or to the root's memory, if that
    /// was opened and the policy wants it for this part, or else through shared memory.
    ///
    /// # Safety
    ///
    /// The buffer at `base` holds all parts.
    pub(super) unsafe fn direct(
        &mut self,
        division: Division<'_>,
        base: *mut u8,
        key: Option<RemoteKey>,
        leaves: &[(usize, Call, Decision, Option<Rtr>)],
    ) -> Boxed<Plan> {
        let (mut jobs, mut streams) = (Vec::new(), Vec::new());
        for &(leaf, call, decision, rtr) in leaves {
            let (offset, len) = division.part(leaf);
            // SAFETY: the part is inside the buffer.
            let base = unsafe { base.add(offset) };
            let job = LeafCopy::new((leaf, call, decision), rtr, base, len);
            match decision.path {
                Path::Via(kind) if kind != TransportKind::Shm => jobs.push(job),
                _ => streams.push(job),
            }
        }
        let kind = key.map_or(TransportKind::Shm, |key| key.kind());
        if key.is_none() {
            streams.append(&mut jobs);
        }
        // All these leaves share their copies with us, or none does.
        let shared = jobs.iter().all(|job| job.is_shareable(kind));
        for job in &jobs {
            let rts = Rts {
                key,
                offset: division.part(job.leaf).0 as u64,
                shared,
            };
            self.mailbox.open_claims(job.leaf)?;
            self.mailbox
                .tell(Target::One(job.leaf), Step::Rts, job.call, rts.to_words())?;
        }
        for job in &streams {
            let words = Rts::STREAM.to_words();
            self.mailbox
                .tell(Target::One(job.leaf), Step::Rts, job.call, words)?;
        }
        Ok(Plan {
            kind,
            jobs,
            shared,
            streams,
        })
    }

    /// Tells the root, if it waits for that, that we are here and how it can reach our memory.
    ///
    /// # Safety
    ///
    /// Until the operation is over, `base` is readable for the length of the call, writable if
    /// the bytes go to the leaf, and used by nobody else.
    pub(super) unsafe fn arrive(
        &mut self,
        call: Call,
        decision: Decision,
        base: *mut u8,
        direction: Direction,
    ) -> Boxed<()> {
        if !decision.announces {
            return Ok(());
        }
        let mut rtr = Rtr {
            cma: Some(RemoteKey::Cma {
                base: base as u64,
                len: call.len,
            }),
            kmod: None,
        };
        if decision.path == Path::Via(TransportKind::Kmod) && decision.shares {
            let len = call.len as usize;
            // SAFETY: the caller's promise.
            rtr.kmod = unsafe { self.open_leaf(base, len, direction == Direction::ToLeaf) };
        }
        Ok(self
            .mailbox
            .tell(Target::One(call.root), Step::Rtr, call, rtr.to_words())?)
    }

    /// Waits until a leaf says that it is here, if it does.
    pub(super) fn arrival(
        &mut self,
        call: Call,
        decision: Decision,
        leaf: usize,
    ) -> Boxed<Option<Rtr>> {
        if !decision.announces {
            return Ok(None);
        }
        let source = Source::One(leaf);
        let header = self.mailbox.expect(source, call, &[Step::Rtr])?;
        Rtr::from_words(header.words).map(Some)
    }

    /// The root's side of copies that leaves make from or to its memory, sharing them if so
    /// agreed; returns the jobs whose copy failed, when nobody uses that memory any more. What the
    /// root does `meanwhile` comes before its help: then only what the leaves have not begun until
    /// then costs the root a system call, and changes hands between two caches.
    ///
    /// # Safety
    ///
    /// Each job's `base` is readable for `len` bytes, and writable if they go to the root.
    pub(super) unsafe fn copy_as_root(
        &mut self,
        kind: TransportKind,
        jobs: Vec<LeafCopy>,
        direction: Direction,
        shared: bool,
        meanwhile: impl FnOnce(),
    ) -> Boxed<Vec<LeafCopy>> {
        let mut failed = vec![false; jobs.len()];
        meanwhile();
        if shared {
            // SAFETY: the caller's promise.
            unsafe { self.help(kind, &jobs, direction, &mut failed) }?;
            for (job, failed) in jobs.iter().zip(&failed) {
                let words = [u64::from(*failed), 0, 0, 0, 0, 0];
                self.mailbox
                    .tell(Target::One(job.leaf), Step::Fin, job.call, words)?;
            }
        }
        let mut again: Vec<LeafCopy> = Vec::new();
        for (job, failed) in jobs.into_iter().zip(failed) {
            let header = self
                .mailbox
                .expect(Source::One(job.leaf), job.call, &[Step::Fin])?;
            if failed || header.words[0] != 0 {
                again.push(job);
            }
        }
        if !again.is_empty() {
            self.invalidate(kind);
        }
        Ok(again)
    }

    /// Claims pieces of all jobs in turn until nothing is left.
    ///
    /// # Safety
    ///
    /// As for [`Team::copy_as_root`].
    unsafe fn help(
        &mut self,
        kind: TransportKind,
        jobs: &[LeafCopy],
        direction: Direction,
        failed: &mut [bool],
    ) -> Boxed<()> {
        let root = self.rank();
        let mut open = vec![true; jobs.len()];
        while open.contains(&true) {
            for (index, job) in jobs.iter().enumerate() {
                if !open[index] {
                    continue;
                }
                let pieces = pieces(job.len);
                let Some(claimed) = self.mailbox.claim(root, job.leaf, pieces)? else {
                    open[index] = false;
                    continue;
                };
                let (start, len) = range(claimed, job.len);
                let at = start as u64;
                // SAFETY: the piece is inside what the caller vouches for.
                let copied = job.key(kind).map(|key| unsafe {
                    let base = job.base.add(start);
                    match direction {
                        Direction::ToLeaf => self.push(job.leaf, key, at, base, len),
                        Direction::ToRoot => self.pull(job.leaf, key, at, base, len),
                    }
                });
                if !matches!(copied.transpose()?, Some(Ok(()))) {
                    failed[index] = true;
                    open[index] = false;
                }
            }
        }
        Ok(())
    }

    /// A leaf's side; returns whether the copy worked, on both sides if it is shared.
    ///
    /// # Safety
    ///
    /// `base` is readable for the length of the call, and writable if the bytes go to the leaf.
    pub(super) unsafe fn copy_as_leaf(
        &mut self,
        call: Call,
        rts: Rts,
        key: RemoteKey,
        base: *mut u8,
        direction: Direction,
    ) -> Boxed<bool> {
        let (me, root, whole) = (self.rank(), call.root, call.len as usize);
        let mut copied = Ok(());
        let mut alone = Some((0, whole));
        while copied.is_ok() {
            let piece = if rts.shared {
                let claimed = self.mailbox.claim(root, me, pieces(whole))?;
                claimed.map(|index| range(index, whole))
            } else {
                alone.take()
            };
            let Some((start, len)) = piece else { break };
            let at = rts.offset + start as u64;
            // SAFETY: the piece is inside what the caller vouches for.
            copied = unsafe {
                match direction {
                    Direction::ToLeaf => self.pull(root, key, at, base.add(start), len),
                    Direction::ToRoot => self.push(root, key, at, base.add(start), len),
                }
            }?;
        }
        let words = [u64::from(copied.is_err()), 0, 0, 0, 0, 0];
        self.mailbox
            .tell(Target::One(root), Step::Fin, call, words)?;
        let mut worked = copied.is_ok();
        if rts.shared {
            let header = self.mailbox.expect(Source::One(root), call, &[Step::Fin])?;
            worked &= header.words[0] == 0;
        }
        if !worked {
            self.invalidate(key.kind());
        }
        Ok(worked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::RegionId;

    #[test]
    fn what_root_and_leaf_tell_each_other_survives_words() {
        let kmod = Some(RemoteKey::unmapped(RegionId::new(3).unwrap()));
        let cma = Some(RemoteKey::Cma { base: 9, len: 10 });
        for key in [None, kmod, cma] {
            let rts = Rts {
                key,
                offset: 11,
                shared: key.is_some(),
            };
            assert_eq!(Rts::from_words(rts.to_words()).unwrap(), rts);
            let rtr = Rtr { cma, kmod: key };
            assert_eq!(Rtr::from_words(rtr.to_words()).unwrap(), rtr);
        }
        // A key counts only for its own transport.
        let swapped = Rtr {
            cma: kmod,
            kmod: cma,
        };
        assert_eq!(swapped.key(TransportKind::Kmod), None);
        assert_eq!(swapped.key(TransportKind::Cma), None);
    }

    #[test]
    fn pieces_are_the_whole() {
        for len in [0, 1, 4095, 65536, 65537, 1 << 20, (5 << 20) + 3, 5 << 30] {
            let mut end = 0;
            for index in 0..pieces(len) {
                let (start, n) = range(index, len);
                assert!(start == end && n > 0, "{len} bytes, piece {index}");
                end += n;
            }
            assert_eq!(end, len);
            assert!(pieces(len) <= MOST_PIECES);
        }
    }
}
