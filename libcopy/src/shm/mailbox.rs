// SPDX-License-Identifier: MIT OR Apache-2.0

//! What ranks say to each other: headers of one cache line, with bytes behind them.
//!
//! Every rank has a ring to each other rank and one that all others read ("cast"). Operations
//! are called in the same order everywhere, so the next header of a ring always belongs to the
//! operation that a rank is in; if it does not, the ranks disagree, and that is an error for all.

use std::cell::Cell;
use std::sync::Arc;

use super::claims::End;
use super::doorbell::Doorbell;
use super::ring::{Counter, Head, ReaderState, WriterState};
use super::segment::{LINE, Segment};
use super::sync::Ordering;
use super::wait::Waiter;
use crate::error::{Error, Result};
use crate::memcpy;
use crate::op::{Call, Op};

/// Whom a message is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// One rank.
    One(usize),
    /// All other ranks.
    All,
}

impl Target {
    /// Whether a rank that is not our own reads what is for this target.
    fn includes(self, rank: usize) -> bool {
        match self {
            Target::One(one) => rank == one,
            Target::All => true,
        }
    }
}

/// Source where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// What a rank told us alone.
    One(usize),
    /// What a rank told all.
    Cast(usize),
}

impl Source {
    pub(crate) fn rank(self) -> usize {
        match self {
            Source::One(rank) | Source::Cast(rank) => rank,
        }
    }
}

/// What a header announces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Step {
    /// The message itself: inline if it is short, behind the header otherwise.
    Message = 1,
    /// Ready to receive (or to be read from): "I am here, with this length."
    Rtr = 2,
    /// Ready to send: "All fits"; the words say through which transport, and where.
    Rts = 3,
    /// Finished: "I have copied" (word 0 is zero), or "I could not, stream it".
    Fin = 4,
}

/// Bytes that travel inside a header.
pub(crate) const INLINE: usize = 8 * WORDS;

const WORDS: usize = 6;
const MAGIC: u64 = 0xC0B7;

/// One cache line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) step: Step,
    pub(crate) call: Call,
    pub(crate) sequence: u16,
    pub(crate) words: [u64; WORDS],
}

impl Header {
    fn encode(&self) -> [u64; 8] {
        let first = MAGIC << 48
            | u64::from(self.sequence) << 32
            | (self.call.root as u64 & 0xFFFF) << 16
            | (self.call.op as u64) << 8
            | self.step as u64;
        let [a, b, c, d, e, f] = self.words;
        [first, self.call.len, a, b, c, d, e, f]
    }

    fn decode([first, len, a, b, c, d, e, f]: [u64; 8]) -> Result<Self> {
        let corrupt = || Error::corrupt("a message header", first);
        if first >> 48 != MAGIC {
            return Err(corrupt());
        }
        let step = match first & 0xFF {
            1 => Step::Message,
            2 => Step::Rtr,
            3 => Step::Rts,
            4 => Step::Fin,
            _ => return Err(corrupt()),
        };
        let op = Op::from_number((first >> 8) as u8).ok_or_else(corrupt)?;
        let call = Call {
            op,
            root: (first >> 16) as u16 as usize,
            len,
        };
        let words = [a, b, c, d, e, f];
        Ok(Header {
            step,
            call,
            sequence: (first >> 32) as u16,
            words,
        })
    }
}

/// Bytes of a ring from one to all that are used at first: enough for headers and short messages.
/// More are used when a message needs them.
const FIRST_CAST: usize = 16 << 10;

/// A ring grows to this many messages, so that a writer that is ahead of its readers need not wait
/// ...
const AHEAD: usize = 8;
/// ... up to this many bytes, unless two messages have more.
const ROOMY_PAIR: usize = 256 << 10;
const ROOMY_CAST: usize = 1 << 20;

/// How far a source's writer is; `None` as long as it has not written anything.
fn head(segment: &Segment, from: Source) -> Option<&Head> {
    match from {
        Source::One(rank) => segment.pair_head_if_open(rank),
        Source::Cast(rank) => segment.cast_head_if_open(rank),
    }
}

/// Rounds up to what a payload occupies.
fn padded(len: usize) -> usize {
    len.next_multiple_of(LINE)
}

/// Our ends of all rings.
#[derive(Debug)]
pub(crate) struct Mailbox {
    segment: Arc<Segment>,
    pub(crate) waiter: Waiter,
    rank: usize,
    size: usize,
    /// Counts operations; the same on every rank.
    pub(crate) sequence: u64,
    out: Vec<WriterState>,
    cast: WriterState,
    /// Bytes of the rings that we write that have memory; 0: nobody looks at them.
    out_memory: Vec<usize>,
    cast_memory: usize,
    inbox: Vec<ReaderState>,
    casts: Vec<ReaderState>,
    epoch: u64,
}

/// Our end of the ring for a target.
struct Outlet<'a, T> {
    waiter: &'a Waiter,
    segment: &'a Segment,
    ring: &'a mut WriterState,
    /// How far its readers are.
    tails: T,
}

impl Mailbox {
    pub(crate) fn new(segment: Arc<Segment>, rank: usize, size: usize) -> Self {
        let (pair, cast) = (segment.pair_ring(), segment.bcast_ring());
        let first_pair = segment.first_pair_ring();
        Mailbox {
            waiter: Waiter::new(segment.clone(), rank, size),
            rank,
            size,
            sequence: 0,
            out: (0..size)
                .map(|_| WriterState::new(first_pair, pair, LINE))
                .collect(),
            cast: WriterState::new(cast.min(FIRST_CAST), cast, LINE),
            out_memory: vec![0; size],
            cast_memory: 0,
            inbox: (0..size)
                .map(|_| ReaderState::new(first_pair, pair, LINE))
                .collect(),
            casts: (0..size)
                .map(|_| ReaderState::new(cast.min(FIRST_CAST), cast, LINE))
                .collect(),
            epoch: 0,
            segment,
        }
    }

    pub(crate) fn rank(&self) -> usize {
        self.rank
    }

    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Returns when all ranks have called it.
    pub(crate) fn barrier(&mut self) -> Result<()> {
        self.epoch += 1;
        let barrier = &self.segment.preamble().barrier;
        if barrier.arrive(self.epoch, self.size) {
            self.ring_others();
            return Ok(());
        }
        let epoch = self.epoch;
        self.wait_listening(|_| true, || (), || barrier.passed(epoch))
    }

    /// Waits until `ready`, with a note as in [`Waiter::wait_noted`]. Fails if a rank has sent
    /// something for the operation with our number that is of another call: it may have gone on
    /// further than its records of calls reach ([`Waiter::wait`] compares these).
    pub(crate) fn wait_listening(
        &self,
        from: impl Fn(usize) -> bool,
        note: impl Fn(),
        ready: impl Fn() -> bool,
    ) -> Result<()> {
        let (heard, mine) = (Cell::new(None), self.waiter.call());
        let differs = |call: &Call| (call.op, call.root) != (mine.op, mine.root);
        let listen = || {
            if self.waiter.is_due() {
                let mut others = (0..self.size).filter(|rank| *rank != self.rank);
                let call = |rank| Some((rank, self.unread(rank).filter(differs)?));
                heard.set(others.find_map(call));
            }
        };
        let note = || {
            note();
            listen();
        };
        self.waiter.wait_noted(from, note, || match heard.take() {
            _ if ready() => Ok(Some(())),
            Some((rank, theirs)) => Err(self.waiter.mismatch(rank, theirs, mine)),
            None => Ok(None),
        })
    }

    /// Opens the copy that we share with a leaf; before it is told.
    pub(crate) fn open_claims(&mut self, leaf: usize) -> Result<()> {
        self.reserve(Target::One(leaf), 0)?;
        self.segment.claims(self.rank, leaf).open(self.sequence);
        Ok(())
    }

    /// Has the ring for a target have memory for the first `bytes` bytes, and for as many as it
    /// uses. Until it has some, readers take it for empty.
    #[inline]
    fn reserve(&mut self, to: Target, bytes: usize) -> Result<()> {
        let (memory, ring) = match to {
            Target::One(rank) => (&mut self.out_memory[rank], &self.out[rank]),
            Target::All => (&mut self.cast_memory, &self.cast),
        };
        let wanted = bytes.max(ring.capacity());
        if wanted > *memory {
            match to {
                Target::One(rank) => {
                    if *memory == 0 {
                        self.segment.open_pair(rank)?;
                        *memory = self.segment.first_pair_ring();
                    }
                    if wanted > *memory {
                        self.segment.grow_pair(rank, wanted)?;
                    }
                }
                Target::All => self.segment.open_cast(wanted)?,
            }
            *memory = wanted;
        }
        Ok(())
    }

    /// Claims one of `pieces` of a copy that a root and a leaf share, if any is left.
    pub(crate) fn claim(&self, root: usize, leaf: usize, pieces: usize) -> Result<Option<usize>> {
        let claims = self.segment.claims(root, leaf);
        let end = if self.rank == root {
            End::Back
        } else {
            End::Front
        };
        // Relaxed: the bytes are handed over by the messages before and after, not by this.
        let claimed = claims.claim(self.sequence, end, pieces as u64, Ordering::Relaxed);
        let what = "a claim";
        let claimed = claimed.map_err(|value| Error::Corrupt { what, value })?;
        Ok(claimed.map(|piece| piece as usize))
    }

    /// The ring for a target, and what belongs to it.
    #[inline(always)]
    fn outlet(&mut self, to: Target) -> Outlet<'_, impl Iterator<Item = &Counter> + Clone> {
        let Mailbox {
            waiter,
            segment,
            out,
            cast,
            size,
            rank: me,
            ..
        } = self;
        let (segment, me) = (&**segment, *me);
        let (ring, readers) = match to {
            Target::One(rank) => (&mut out[rank], rank..rank + 1),
            Target::All => (cast, 0..*size),
        };
        let others = readers.filter(move |rank| *rank != me);
        Outlet {
            waiter,
            segment,
            ring,
            tails: others.map(move |rank| match to {
                Target::One(_) => segment.pair_tail(me, rank),
                Target::All => segment.cast_tail(me, rank),
            }),
        }
    }

    /// Free bytes towards `to`, without wrapping around.
    fn room(&mut self, to: Target, wanted: usize) -> Result<usize> {
        let Outlet { ring, tails, .. } = self.outlet(to);
        ring.room(wanted, tails)
    }

    fn place(&self, to: Target) -> *mut u8 {
        let (base, position) = match to {
            Target::One(rank) => {
                let ring = &self.out[rank];
                let base = self.segment.pair_bytes(self.rank, rank, ring.capacity());
                (base, ring.position())
            }
            Target::All => (self.segment.cast_bytes(self.rank), self.cast.position()),
        };
        // SAFETY: a position is inside its ring.
        unsafe { base.add(position) }
    }

    fn advance(&mut self, to: Target, n: usize) {
        match to {
            Target::One(rank) => self.out[rank].advance(n),
            Target::All => self.cast.advance(n),
        }
    }

    /// Shows what was written to those who may wait for it.
    fn publish(&mut self, to: Target) {
        match to {
            Target::One(rank) => {
                self.out[rank].publish(self.segment.pair_head(self.rank, rank));
                self.segment.block(rank).bell.ring();
            }
            Target::All => {
                self.cast.publish(self.segment.cast_head(self.rank));
                self.ring_others();
            }
        }
    }

    /// Tells all others that something they may wait for has changed.
    fn ring_others(&self) {
        let others = (0..self.size).filter(|rank| *rank != self.rank);
        Doorbell::ring_all(others.map(|rank| &self.segment.block(rank).bell));
    }

    fn wait_room(&mut self, to: Target, wanted: usize) -> Result<usize> {
        let room = self.room(to, wanted)?;
        if room > 0 {
            return Ok(room);
        }
        let Outlet {
            waiter,
            ring,
            tails,
            ..
        } = self.outlet(to);
        waiter.wait(
            |rank| to.includes(rank),
            || {
                let room = ring.room(wanted, tails.clone())?;
                Ok((room > 0).then_some(room))
            },
        )
    }

    /// Gives the ring memory for two messages of `len` bytes and their headers, if it has less and
    /// is empty; returns whether it has enough for one now. With room for one a writer waits for
    /// its reader each time: gathers of 64 KiB of four ranks on two processors took 58 us then, and
    /// 11 with more.
    fn grow(&mut self, to: Target, len: usize) -> Result<bool> {
        let needed = LINE + padded(len);
        let (ring, roomy) = match to {
            Target::One(rank) => (&self.out[rank], ROOMY_PAIR),
            Target::All => (&self.cast, ROOMY_CAST),
        };
        let (is_short, two) = (ring.is_short(needed), needed.saturating_mul(2));
        if !ring.is_short(two) {
            return Ok(true);
        }
        let wanted = two.max(needed.saturating_mul(AHEAD).min(roomy));
        let capacity = ring.capacity_for(wanted);
        self.reserve(to, capacity)?;
        let me = self.rank;
        let Outlet {
            segment,
            ring,
            tails,
            ..
        } = self.outlet(to);
        let head = match to {
            Target::One(rank) => segment.pair_head(me, rank),
            Target::All => segment.cast_head(me),
        };
        Ok(ring.grow(wanted, head, tails)? || !is_short)
    }

    /// Gives the ring memory for a message of `len` bytes and its header before the header is
    /// written, waiting for readers: what is in the ring belongs to earlier operations, of which
    /// nothing depends on us any more.
    pub(crate) fn prepare(&mut self, to: Target, len: usize) -> Result<()> {
        while !self.grow(to, len)? {
            let Outlet {
                waiter,
                ring,
                tails,
                ..
            } = self.outlet(to);
            waiter.wait(
                |rank| to.includes(rank),
                || Ok(ring.is_empty(tails.clone())?.then_some(())),
            )?;
        }
        Ok(())
    }

    /// Writes a header; readers see it with the next publication.
    fn put_header(
        &mut self,
        to: Target,
        step: Step,
        call: Call,
        words: [u64; WORDS],
    ) -> Result<()> {
        self.reserve(to, 0)?;
        self.wait_room(to, LINE)?;
        let line = Header {
            step,
            call,
            sequence: self.sequence as u16,
            words,
        }
        .encode();
        // SAFETY: a line is free at `place`, which is aligned to a line.
        unsafe { self.place(to).cast::<[u64; 8]>().write(line) };
        self.advance(to, LINE);
        Ok(())
    }

    /// Sends a header without bytes behind it.
    pub(crate) fn tell(
        &mut self,
        to: Target,
        step: Step,
        call: Call,
        words: [u64; WORDS],
    ) -> Result<()> {
        self.put_header(to, step, call, words)?;
        self.publish(to);
        Ok(())
    }

    /// Announces a message whose bytes follow with [`Self::push_with`]; not yet shown to anybody.
    pub(crate) fn announce(
        &mut self,
        to: Target,
        step: Step,
        call: Call,
        words: [u64; 6],
    ) -> Result<()> {
        self.put_header(to, step, call, words)
    }

    /// Sends a whole message, inline if it is short.
    pub(crate) fn send(&mut self, to: Target, call: Call, bytes: &[u8]) -> Result<()> {
        let mut words = [0; WORDS];
        if bytes.len() <= INLINE {
            for (word, piece) in words.iter_mut().zip(bytes.chunks(8)) {
                let mut eight = [0; 8];
                eight[..piece.len()].copy_from_slice(piece);
                *word = u64::from_ne_bytes(eight);
            }
            return self.tell(to, Step::Message, call, words);
        }
        self.prepare(to, bytes.len())?;
        self.put_header(to, Step::Message, call, words)?;
        let mut sent = 0;
        while sent < bytes.len() {
            let left = bytes.len() - sent;
            let n = self.push_with(to, left, left, |place, n| {
                // SAFETY: at most `left` bytes are asked for, and the ring has room for them.
                unsafe { memcpy::cached(place, bytes.as_ptr().add(sent), n) }
            })?;
            if n == 0 {
                self.wait_room(to, LINE)?;
            }
            sent += n;
        }
        Ok(())
    }

    /// Has `fill` write as many of `len` bytes as there is room for, at most `chunk`: it gets the
    /// address and how many. Returns how many. When the last of them is written, the next header
    /// can follow.
    pub(crate) fn push_with(
        &mut self,
        to: Target,
        len: usize,
        chunk: usize,
        fill: impl FnOnce(*mut u8, usize),
    ) -> Result<usize> {
        // Where a header is not published yet, the ring is not empty.
        self.grow(to, len)?;
        let n = len.min(chunk).min(self.room(to, len.min(chunk))?);
        let n = if n == len { n } else { n - n % LINE };
        if n == 0 {
            return Ok(0);
        }
        fill(self.place(to), n);
        // `room` is a multiple of the line, so the padding is free too.
        self.advance(to, if n == len { padded(n) } else { n });
        self.publish(to);
        Ok(n)
    }

    /// Bytes that are there, without wrapping around.
    fn available(&mut self, from: Source, wanted: usize) -> Result<usize> {
        let ring = match from {
            Source::One(rank) => &mut self.inbox[rank],
            Source::Cast(rank) => &mut self.casts[rank],
        };
        match head(&self.segment, from) {
            Some(head) => ring.available(wanted, head),
            None => Ok(0),
        }
    }

    fn source(&self, from: Source) -> *const u8 {
        let (base, position) = match from {
            Source::One(rank) => {
                let ring = &self.inbox[rank];
                let base = self.segment.pair_bytes(rank, self.rank, ring.capacity());
                (base, ring.position())
            }
            Source::Cast(rank) => (self.segment.cast_bytes(rank), self.casts[rank].position()),
        };
        // SAFETY: a position is inside its ring.
        unsafe { base.add(position) }
    }

    /// Takes `n` bytes, which the writer gets back with the next release.
    fn skip(&mut self, from: Source, n: usize) {
        match from {
            Source::One(rank) => self.inbox[rank].advance(n),
            Source::Cast(rank) => self.casts[rank].advance(n),
        }
    }

    /// Gives `n` bytes back to the writer, and those that were skipped.
    fn release(&mut self, from: Source, n: usize) {
        self.skip(from, n);
        let rank = from.rank();
        match from {
            Source::One(_) => self.inbox[rank].release(self.segment.pair_tail(rank, self.rank)),
            Source::Cast(_) => self.casts[rank].release(self.segment.cast_tail(rank, self.rank)),
        }
        self.segment.block(rank).bell.ring();
    }

    /// Waits until one of `sources` has something, or one of `targets` has room.
    pub(crate) fn wait_any(
        &mut self,
        sources: impl Fn(usize) -> Option<Source>,
        targets: impl Fn(usize) -> Option<Target>,
    ) -> Result<()> {
        let Mailbox {
            waiter,
            segment,
            out,
            cast,
            inbox,
            casts,
            size,
            rank,
            ..
        } = self;
        let (me, size) = (*rank, *size);
        waiter.wait(
            |rank| sources(rank).is_some() || targets(rank).is_some(),
            || {
                for rank in (0..size).filter(|rank| *rank != me) {
                    let bytes = match sources(rank) {
                        Some(from) => {
                            let ring = match from {
                                Source::One(r) => &mut inbox[r],
                                Source::Cast(r) => &mut casts[r],
                            };
                            let head = head(segment, from);
                            head.map_or(Ok(0), |head| ring.available(1, head))?
                        }
                        None => 0,
                    };
                    let room = match targets(rank) {
                        Some(Target::One(r)) => out[r].room(1, [segment.pair_tail(me, r)])?,
                        Some(Target::All) => {
                            let others = (0..size).filter(|r| *r != me);
                            cast.room(1, others.map(|r| segment.cast_tail(me, r)))?
                        }
                        None => 0,
                    };
                    if bytes + room > 0 {
                        return Ok(Some(()));
                    }
                }
                Ok(None)
            },
        )
    }

    /// Waits for the next header, which the writer gets back with the next release.
    fn take(&mut self, from: Source) -> Result<Header> {
        while self.available(from, LINE)? == 0 {
            let rank = from.rank();
            let is_there = || self.peek(from).is_some();
            self.wait_listening(|other| other == rank, || (), is_there)?;
        }
        // SAFETY: a line is there, and `source` is aligned to it. A peer that writes to it now is
        // buggy; whatever is read is checked.
        let line = unsafe { self.source(from).cast::<[u64; 8]>().read_volatile() };
        self.skip(from, LINE);
        Header::decode(line)
    }

    /// Where the next header is, if it is there. Nothing is taken.
    fn peek(&self, from: Source) -> Option<*const u8> {
        let head = head(&self.segment, from)?;
        let (base, position) = match from {
            Source::One(rank) => {
                let (capacity, position) = self.inbox[rank].peek(LINE, head)?;
                let base = self.segment.pair_bytes(rank, self.rank, capacity);
                (base, position)
            }
            Source::Cast(rank) => {
                let (_, position) = self.casts[rank].peek(LINE, head)?;
                (self.segment.cast_bytes(rank), position)
            }
        };
        // SAFETY: a position is inside its ring.
        Some(unsafe { base.add(position) })
    }

    /// What a rank has called, if it has sent something for our operation that we have not taken.
    pub(crate) fn unread(&self, rank: usize) -> Option<Call> {
        let places = [Source::Cast(rank), Source::One(rank)].map(|from| self.peek(from));
        let headers = places.into_iter().flatten().filter_map(|place| {
            // SAFETY: a line is at the place, which is aligned to a line.
            let line = unsafe { place.cast::<[u64; 8]>().read() };
            Header::decode(line).ok()
        });
        let mut ours = headers.filter(|header| header.sequence == self.sequence as u16);
        ours.next().map(|header| header.call)
    }

    /// Waits for the next header and checks that it belongs to `call`.
    pub(crate) fn expect(&mut self, from: Source, call: Call, steps: &[Step]) -> Result<Header> {
        let header = self.next(from, call, steps)?;
        self.release(from, 0);
        Ok(header)
    }

    /// Waits for the header of a message, which has to be received next from there.
    pub(crate) fn expect_message(&mut self, from: Source, call: Call) -> Result<Header> {
        self.next(from, call, &[Step::Message])
    }

    fn next(&mut self, from: Source, call: Call, steps: &[Step]) -> Result<Header> {
        let header = self.take(from)?;
        if header.sequence != self.sequence as u16 {
            return Err(self.waiter.mismatch_before(from.rank(), header.call, call));
        }
        if header.call != call {
            return Err(self.waiter.mismatch(from.rank(), header.call, call));
        }
        if !steps.contains(&header.step) {
            // Same call, other idea of how it goes: only a damaged policy can do that.
            return Err(Error::corrupt("a step", header.step as u64));
        }
        Ok(header)
    }

    /// Receives the bytes of a message whose header was taken, waiting for them.
    ///
    /// # Safety
    ///
    /// `to` is writable for the length of the header's call.
    pub(crate) unsafe fn receive(
        &mut self,
        from: Source,
        header: &Header,
        to: *mut u8,
    ) -> Result<()> {
        let len = header.call.len as usize;
        if len <= INLINE {
            // SAFETY: `len` is at most the size of the words.
            unsafe { memcpy::cached(to, header.words.as_ptr().cast(), len) };
            self.release(from, 0);
            return Ok(());
        }
        let mut done = 0;
        while done < len {
            let left = len - done;
            let n = self.pull_with(from, left, left, |bytes, n| {
                // SAFETY: at most `left` bytes are handed over, for which `to` has room behind
                // `done`.
                unsafe { memcpy::cached(to.add(done), bytes, n) }
            })?;
            if n == 0 {
                // The writer may wait for the header's line.
                self.release(from, 0);
                let only = from.rank();
                self.wait_any(|rank| (rank == only).then_some(from), |_| None)?;
            }
            done += n;
        }
        Ok(())
    }

    /// Has `take` read as many of `len` bytes as are there, at most `chunk`: it gets their address
    /// and how many. Returns how many.
    pub(crate) fn pull_with(
        &mut self,
        from: Source,
        len: usize,
        chunk: usize,
        take: impl FnOnce(*const u8, usize),
    ) -> Result<usize> {
        let n = len.min(chunk).min(self.available(from, len.min(chunk))?);
        let n = if n == len { n } else { n - n % LINE };
        if n == 0 {
            return Ok(0);
        }
        take(self.source(from), n);
        self.release(from, if n == len { padded(n) } else { n });
        Ok(n)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn headers_survive_the_line() {
        let call = Call {
            op: Op::Gather,
            root: 1023,
            len: u64::MAX,
        };
        let header = Header {
            step: Step::Rts,
            call,
            sequence: 65535,
            words: [1, 2, 3, 4, 5, u64::MAX],
        };
        assert_eq!(Header::decode(header.encode()).unwrap(), header);
    }

    #[test]
    fn damaged_headers_are_errors() {
        assert!(Header::decode([0; 8]).is_err());
        assert!(Header::decode([MAGIC << 48; 8]).is_err());
        assert!(Header::decode([MAGIC << 48 | 99 << 8 | 1; 8]).is_err());
    }
}
