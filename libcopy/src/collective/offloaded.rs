// SPDX-License-Identifier: MIT OR Apache-2.0

//! Collectives that return early: a copy engine moves what can be guarded, and the guard holds
//! threads that come too soon (Copy Engines 2023, sections 3.2 and 3.3).
//!
//! Leaves say that they are here as they do without engines, since only the root knows which way
//! this call goes. The root opens its buffer and tells each leaf which bytes of the leaf's part are
//! whole pages that the root can guard. The leaf narrows that to whole pages of its own buffer,
//! gives them to an engine, copies the few bytes at the two edges itself, and tells the root the
//! request. Then both guard their buffers and return. The root has waited for its leaves, but for
//! no copy.

use super::division::Division;
use crate::device::RegionId;
use crate::device::request::{Request, RequestId, Submission};
use crate::error::{Boxed, Error};
use crate::offload::Part;
use crate::offload::guard::{self, Kind};
use crate::op::{Call, Op};
use crate::policy::Executor;
use crate::policy::monitor::Site;
use crate::shm::mailbox::{Source, Step, Target};
use crate::team::{Decision, Team};
use crate::transport::TransportKind;
use crate::transport::remote_key::RemoteKey;
use crate::transport::stream::{Receiving, Sending, exchange};
use crate::uapi;

use super::cooperative::Direction;

/// What a root tells a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OffloadRts {
    /// The root's memory, if it could be opened.
    pub(super) region: Option<RegionId>,
    /// Where in it the part starts.
    pub(super) offset: u64,
    /// The bytes of the part that the root can guard.
    pub(super) low: u64,
    pub(super) high: u64,
    pub(super) executor: Executor,
}

/// Tells an order from what a root says when CPUs copy, whose last word is 0.
const OFFLOAD_RTS: u64 = 1;

impl OffloadRts {
    pub(super) fn to_words(self) -> [u64; 6] {
        [
            self.executor.number(),
            self.region.map_or(0, |region| region.get().into()),
            self.offset,
            self.low,
            self.high,
            OFFLOAD_RTS,
        ]
    }

    /// Whether these words are an order.
    pub(super) fn is_in(words: &[u64; 6]) -> bool {
        words[5] == OFFLOAD_RTS
    }

    pub(super) fn from_words([executor, region, offset, low, high, _]: [u64; 6]) -> Boxed<Self> {
        let id = |number| RegionId::new(u32::try_from(number).ok()?).ok();
        let corrupt = Error::corrupt("a region id", region);
        Ok(OffloadRts {
            region: match region {
                0 => None,
                number => Some(id(number).ok_or(corrupt)?),
            },
            offset,
            low,
            high,
            executor: Executor::from_number(executor)
                .ok_or(Error::corrupt("who is to move bytes", executor))?,
        })
    }
}

/// What became of a part, as its worker tells the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It is in place.
    Here,
    /// Bytes `low..high` are an engine's, the rest is in place.
    Pending {
        id: RequestId,
        low: usize,
        high: usize,
    },
    /// It must go through shared memory.
    Stream,
}

impl Outcome {
    fn to_words(self) -> [u64; 6] {
        match self {
            Outcome::Here => [1, 0, 0, 0, 0, 0],
            Outcome::Pending { id, low, high } => {
                [2, id.get().into(), low as u64, high as u64, 0, 0]
            }
            Outcome::Stream => [3, 0, 0, 0, 0, 0],
        }
    }

    fn from_words([what, id, low, high, ..]: [u64; 6], len: usize) -> Boxed<Self> {
        let corrupt = |value| Error::corrupt("a report of a part", value);
        match what {
            1 => Ok(Outcome::Here),
            2 if low <= high && high <= len as u64 => Ok(Outcome::Pending {
                id: RequestId::new(id as u32).map_err(|_| corrupt(id))?,
                low: low as usize,
                high: high as usize,
            }),
            3 => Ok(Outcome::Stream),
            other => Err(corrupt(other).into()),
        }
    }

    /// The request, as part of a buffer in which this part starts at `at`.
    pub(super) fn pending(self, at: usize, ours: bool, source: bool) -> Option<Part> {
        match self {
            Outcome::Pending { id, low, high } => Some(Part {
                at: at + low,
                len: high - low,
                id,
                ours,
                source,
            }),
            _ => None,
        }
    }
}

/// A buffer, and a part of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) base: *mut u8,
    pub(super) len: usize,
    /// Where the part starts.
    pub(super) at: usize,
    /// Its length.
    pub(super) part: usize,
}

impl Piece {
    /// The bytes of the part that can be guarded.
    pub(super) fn guarded(&self) -> (usize, usize) {
        let (start, end) = guard::interior(self.base as usize, self.len);
        let from = self.base as usize + self.at;
        let low = start.saturating_sub(from).min(self.part);
        let high = end.saturating_sub(from).min(self.part);
        (low, high.max(low))
    }
}

/// A root's leaves that may return early.
#[derive(Debug)]
pub(super) struct StartedRoot {
    base: *mut u8,
    len: usize,
    direction: Direction,
    /// Rank, call, how its part moves, where that starts.
    leaves: Vec<(usize, Call, Decision, usize)>,
}

impl Team {
    /// Who moves the bytes of this call.
    pub(super) fn executor(&mut self, op: Op, root: usize, base: *mut u8, len: usize) -> Executor {
        match &mut self.offload {
            Some(offload) => {
                let site = Site {
                    op,
                    root,
                    bytes: len as u64,
                    place: base as usize,
                };
                offload.choose(site)
            }
            None => Executor::Cpu,
        }
    }

    /// [`Team::start_root`] with those leaves of `others` whose decision is to offload, if any;
    /// these are taken out of `others` unless CPUs are to copy.
    ///
    /// # Safety
    ///
    /// As for [`Team::start_root`].
    pub(super) unsafe fn start_offloading_root(
        &mut self,
        op: Op,
        buffer: (*mut u8, usize),
        division: Division<'_>,
        others: &mut Vec<(usize, Decision)>,
        direction: Direction,
    ) -> Boxed<Option<StartedRoot>> {
        let offloads = |(_, decision): &(usize, Decision)| decision.offloads;
        let leaves: Vec<_> = others.iter().copied().filter(offloads).collect();
        if leaves.is_empty() {
            return Ok(None);
        }
        // SAFETY: the caller's promise.
        let started = unsafe { self.start_root(op, buffer, division, leaves, direction) }?;
        if started.is_some() {
            others.retain(|other| !offloads(other));
        }
        Ok(started)
    }

    /// The root's first half: opens the buffer and tells the leaves. `None`: CPUs are to copy, and
    /// everybody goes the ordinary way.
    ///
    /// # Safety
    ///
    /// The buffer is readable, and writable if the bytes go to the root, and its owner can be made
    /// to wait for it; the division was checked against it.
    pub(super) unsafe fn start_root(
        &mut self,
        op: Op,
        (base, len): (*mut u8, usize),
        division: Division<'_>,
        leaves: Vec<(usize, Decision)>,
        direction: Direction,
    ) -> Boxed<Option<StartedRoot>> {
        let me = self.rank();
        let executor = self.executor(op, me, base, len);
        if executor == Executor::Cpu {
            return Ok(None);
        }
        // SAFETY: the caller's promise.
        let opened = unsafe { self.open_region(base, len, direction == Direction::ToRoot) };
        let rts = |at, part| {
            let piece = Piece {
                base,
                len,
                at,
                part,
            };
            let (low, high) = piece.guarded();
            OffloadRts {
                region: opened,
                offset: at as u64,
                low: low as u64,
                high: high as u64,
                executor,
            }
        };
        let mut started = StartedRoot {
            base,
            len,
            direction,
            leaves: Vec::with_capacity(leaves.len()),
        };
        if op == Op::Bcast {
            let call = Call::new(op, me, len);
            let words = rts(0, len).to_words();
            self.mailbox.tell(Target::All, Step::Rts, call, words)?;
            let leaf = |(leaf, decision)| (leaf, call, decision, 0);
            started.leaves = leaves.into_iter().map(leaf).collect();
        } else {
            for (leaf, decision) in leaves {
                let (at, part) = division.part(leaf);
                let call = Call::new(op, me, part);
                let words = rts(at, part).to_words();
                self.mailbox
                    .tell(Target::One(leaf), Step::Rts, call, words)?;
                started.leaves.push((leaf, call, decision, at));
            }
        }
        Ok(Some(started))
    }

    /// The root's second half: hears what became of the parts, and guards the buffer.
    ///
    /// # Safety
    ///
    /// As for [`Team::start_root`]; nothing else touches the buffer any more.
    pub(super) unsafe fn finish_root(&mut self, started: StartedRoot) -> Boxed<()> {
        let StartedRoot {
            base,
            len,
            direction,
            leaves,
        } = started;
        let source = direction == Direction::ToLeaf;
        let (mut parts, mut streams) = (Vec::new(), Vec::new());
        for (leaf, call, decision, at) in leaves {
            // Where its memory is does not matter here.
            self.arrival(call, decision, leaf)?;
            // To map pages for an engine takes a leaf longer than it takes us to fall asleep.
            self.mailbox.waiter.be_patient(true);
            let header = self.mailbox.expect(Source::One(leaf), call, &[Step::Fin]);
            self.mailbox.waiter.be_patient(false);
            let header = header?;
            if let Some(offload) = &mut self.offload {
                offload.heard(header.words[4]);
            }
            let part = call.len as usize;
            match Outcome::from_words(header.words, part)? {
                Outcome::Stream => streams.push((leaf, at, part)),
                outcome => parts.extend(outcome.pending(at, false, source)),
            }
        }
        if !streams.is_empty() {
            self.invalidate(TransportKind::Kmod);
            let flow = self.flow(streams.iter().map(|(_, _, part)| part).sum());
            let (mut sending, mut receiving) = (Vec::new(), Vec::new());
            for (leaf, at, part) in streams {
                // SAFETY: the part is inside the buffer, which outlives the stream.
                unsafe {
                    let from = base.add(at);
                    if source {
                        sending.push(Sending::new(Target::One(leaf), from, part))
                    } else {
                        receiving.push(Receiving::new(Source::One(leaf), from, part))
                    }
                }
            }
            exchange(&mut self.mailbox, flow, &mut sending, &mut receiving)?;
        }
        let kind = if source {
            Kind::Source
        } else {
            Kind::Destination
        };
        // SAFETY: the caller's promise.
        unsafe { self.hold(base, len, kind, parts) }
    }

    /// A leaf's side; `words` are the root's order.
    ///
    /// # Safety
    ///
    /// `base` is readable for the length of the call, writable if the bytes go to the leaf, and its
    /// owner can be made to wait for it.
    pub(super) unsafe fn run_leaf(
        &mut self,
        call: Call,
        base: *mut u8,
        direction: Direction,
        words: [u64; 6],
    ) -> Boxed<()> {
        let (root, len) = (call.root, call.len as usize);
        let rts = OffloadRts::from_words(words)?;
        let piece = Piece {
            base,
            len,
            at: 0,
            part: len,
        };
        // SAFETY: the caller's promise.
        let outcome = unsafe { self.submit(root, rts, piece, direction) };
        self.report(root, call, outcome)?;
        if outcome == Outcome::Stream {
            let flow = self.flow(len.saturating_mul(self.size()));
            // SAFETY: the memory outlives the streams.
            unsafe {
                match direction {
                    Direction::ToLeaf => {
                        let stream = Receiving::new(Source::One(root), base, len);
                        stream.run(&mut self.mailbox, flow)
                    }
                    Direction::ToRoot => {
                        let mut stream = Sending::new(Target::One(root), base, len);
                        stream.run(&mut self.mailbox, flow, 0)
                    }
                }
            }?;
            return Ok(());
        }
        let source = direction == Direction::ToRoot;
        let kind = if source {
            Kind::Source
        } else {
            Kind::Destination
        };
        let parts = outcome.pending(0, true, source).into_iter().collect();
        // SAFETY: the caller's promise.
        unsafe { self.hold(base, len, kind, parts) }
    }

    /// Tells the owner of a part what became of it.
    pub(super) fn report(&mut self, owner: usize, call: Call, outcome: Outcome) -> Boxed<()> {
        let mut words = outcome.to_words();
        words[4] = self.offload.as_ref().map_or(0, |offload| offload.touched());
        Ok(self
            .mailbox
            .tell(Target::One(owner), Step::Fin, call, words)?)
    }

    /// Hears what became of our part at another rank.
    pub(super) fn reported(&mut self, from: usize, call: Call) -> Boxed<Outcome> {
        let header = self.mailbox.expect(Source::One(from), call, &[Step::Fin])?;
        Outcome::from_words(header.words, call.len as usize)
    }

    /// Guards a buffer until its parts are in place.
    ///
    /// # Safety
    ///
    /// The memory's owner can be made to wait for it, and nobody touches it in between.
    pub(super) unsafe fn hold(
        &mut self,
        base: *mut u8,
        len: usize,
        kind: Kind,
        parts: Vec<Part>,
    ) -> Boxed<()> {
        match &self.offload {
            // SAFETY: the caller's promise.
            Some(offload) => unsafe { Ok(offload.guard(base, len, kind, parts)?) },
            None if parts.is_empty() => Ok(()),
            // We have no eyes for requests: somebody who has them finishes them for us.
            None => parts.iter().try_for_each(|part| self.finish(part.id)),
        }
    }

    fn finish(&self, id: RequestId) -> Boxed<()> {
        match self.domain() {
            Some(domain) => Ok(domain.switch_request(id).map(|_| ())?),
            None => Ok(()),
        }
    }

    /// Moves a part between our buffer and its owner's, by an engine as far as possible.
    ///
    /// # Safety
    ///
    /// As for [`Team::run_leaf`].
    pub(super) unsafe fn submit(
        &mut self,
        owner: usize,
        rts: OffloadRts,
        piece: Piece,
        direction: Direction,
    ) -> Outcome {
        let Some(region) = rts.region else {
            return Outcome::Stream;
        };
        let (low, high) = piece.guarded();
        let low = low.max(rts.low as usize);
        let high = high.min(rts.high as usize);
        let mut request = None;
        if rts.executor != Executor::Cpu && low < high && self.offload.is_some() {
            // SAFETY: the caller's promise.
            request =
                unsafe { self.submit_request(region, rts.offset, piece, (low, high), direction) };
        }
        let copied = match request {
            // SAFETY: the ranges are inside the part.
            Some(_) => unsafe {
                self.copy_range(owner, region, rts.offset, piece, (0, low), direction)
                    .and_then(|()| {
                        let tail = (high, piece.part);
                        self.copy_range(owner, region, rts.offset, piece, tail, direction)
                    })
            },
            // SAFETY: as above.
            None => unsafe {
                let all = (0, piece.part);
                self.copy_range(owner, region, rts.offset, piece, all, direction)
            },
        };
        if copied.is_err() {
            if let (Some(id), Some(domain)) = (request, self.domain()) {
                // Whatever comes of it, nobody writes for it afterwards.
                crate::device::request::release(std::os::fd::AsFd::as_fd(domain), id);
            }
            self.invalidate(TransportKind::Kmod);
            return Outcome::Stream;
        }
        match (request, self.domain()) {
            (Some(id), Some(domain)) => {
                if rts.executor == Executor::Both {
                    // If this fails, the engine does it alone.
                    let _ = domain.help_request(id);
                }
                Outcome::Pending { id, low, high }
            }
            _ => Outcome::Here,
        }
    }

    /// Gives bytes of a part to an engine, if there is one that takes them.
    ///
    /// # Safety
    ///
    /// As for [`Team::run_leaf`].
    unsafe fn submit_request(
        &mut self,
        region: RegionId,
        offset: u64,
        piece: Piece,
        (low, high): (usize, usize),
        direction: Direction,
    ) -> Option<RequestId> {
        // SAFETY: the caller's promise.
        let ours =
            unsafe { self.open_region(piece.base, piece.len, direction == Direction::ToLeaf) }?;
        let there = offset + low as u64;
        let here = (piece.at + low) as u64;
        let len = (high - low) as u64;
        let what = match direction {
            Direction::ToLeaf => Submission::new(region, ours, len).offsets(there, here),
            Direction::ToRoot => Submission::new(ours, region, len).offsets(here, there),
        };
        let pages = self.policy().offload_pages;
        let what = what.fragment_pages(pages.min(uapi::MAX_FRAGMENT_PAGES.into()) as u32);
        let what = match self.policy().offload_verify {
            0 => what,
            _ => what.verify(),
        };
        let domain = self.domain()?;
        match domain.submit(&what).map(Request::detach) {
            Ok(id) => Some(id),
            Err(error) => {
                if error.errno() == Some(libc::ESTALE) {
                    // The kept region is not our memory any more.
                    self.invalidate(TransportKind::Kmod);
                }
                None
            }
        }
    }

    /// Copies bytes of a part with this CPU.
    ///
    /// # Safety
    ///
    /// As for [`Team::run_leaf`]; the range is inside the part.
    unsafe fn copy_range(
        &self,
        owner: usize,
        region: RegionId,
        offset: u64,
        piece: Piece,
        (low, high): (usize, usize),
        direction: Direction,
    ) -> Boxed<()> {
        if low >= high {
            return Ok(());
        }
        let key = RemoteKey::unmapped(region);
        let at = offset + low as u64;
        // SAFETY: the caller's promise.
        unsafe {
            let here = piece.base.add(piece.at + low);
            Ok(match direction {
                Direction::ToLeaf => self.pull(owner, key, at, here, high - low)?,
                Direction::ToRoot => self.push(owner, key, at, here, high - low)?,
            }?)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::cooperative::Rts;
    use super::*;

    #[test]
    fn orders_and_reports_survive_words() {
        let rts = OffloadRts {
            region: RegionId::new(77).ok(),
            offset: 5,
            low: 6,
            high: 7000,
            executor: Executor::Both,
        };
        assert_eq!(OffloadRts::from_words(rts.to_words()).unwrap(), rts);
        assert!(OffloadRts::is_in(&rts.to_words()));
        assert!(!OffloadRts::is_in(&Rts::STREAM.to_words()));
        assert!(OffloadRts::from_words([0; 6]).is_err());
        let id = RequestId::new(9).unwrap();
        for outcome in [
            Outcome::Here,
            Outcome::Stream,
            Outcome::Pending {
                id,
                low: 10,
                high: 90,
            },
        ] {
            assert_eq!(
                Outcome::from_words(outcome.to_words(), 100).unwrap(),
                outcome
            );
        }
        assert!(Outcome::from_words([2, 9, 10, 101, 0, 0], 100).is_err());
        assert!(Outcome::from_words([0; 6], 100).is_err());
    }

    #[test]
    fn what_is_guarded_is_inside_the_part_and_the_pages() {
        let page = guard::interior(1, 1 << 20).0;
        let piece = |base: usize, len, at, part| Piece {
            base: base as *mut u8,
            len,
            at,
            part,
        };
        assert_eq!(piece(page, 4 * page, 0, 4 * page).guarded(), (0, 4 * page));
        assert_eq!(
            piece(page + 1, 4 * page, 0, 4 * page).guarded(),
            (page - 1, 4 * page - 1)
        );
        // A part in the middle may be an engine's as a whole: the pages are all the buffer's.
        assert_eq!(piece(page, 9 * page, 5, page).guarded(), (0, page));
        assert_eq!(piece(page + 7, 100, 0, 100).guarded().0, 100);
    }
}
