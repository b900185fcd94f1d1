// SPDX-License-Identifier: MIT OR Apache-2.0

//! Two copies through a shared ring, overlapped: the sender fills chunks while receivers empty
//! those before. Always there, between any two peers.

use std::ops::Range;

use libcopy_datatype::Layout;

use super::kind::{TransportKind, TransportReport};
use crate::error::Result;
use crate::memcpy;
use crate::shm::mailbox::{Mailbox, Source, Target};

/// Where bytes are that are sent or received.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place<'a> {
    /// One behind the other.
    Dense(*mut u8),
    /// In the elements of a layout, whose displacements count from the address.
    Typed(&'a Layout, *mut u8),
}

impl Place<'_> {
    /// Copies some of the bytes, one behind the other.
    ///
    /// # Safety
    ///
    /// There are these bytes, and they are readable; `to` is writable for as many.
    pub(crate) unsafe fn pack(self, range: Range<usize>, to: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Place::Dense(base) => memcpy::cached(to, base.add(range.start), range.len()),
                Place::Typed(layout, origin) => {
                    layout.pack_raw(origin, range.start as u64..range.end as u64, to)
                }
            }
        }
    }

    /// Writes some of the bytes; `streaming` past the cache, if they are dense.
    ///
    /// # Safety
    ///
    /// There are these bytes, and they are writable; `from` has as many.
    pub(crate) unsafe fn unpack(self, from: *const u8, range: Range<usize>, streaming: bool) {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Place::Dense(base) => {
                    let to = base.add(range.start);
                    memcpy::either(to, from, range.len(), streaming)
                }
                Place::Typed(layout, origin) => {
                    layout.unpack_raw(from, range.start as u64..range.end as u64, origin)
                }
            }
        }
    }
}

/// How bytes are handed over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flow {
    /// Bytes at a time, at first.
    pub(crate) chunk: usize,
    /// Bytes at a time, later.
    pub(crate) largest: usize,
    /// Whether received bytes bypass the cache.
    pub(crate) streaming: bool,
}

/// The first chunks are small, so that the other side starts early; later ones grow, since each
/// hand-over costs, most of all where the two do not really run at the same time.
fn ramp(done: usize, flow: Flow) -> usize {
    let grown = (done / 32).next_multiple_of(64).min(flow.largest);
    flow.chunk.max(grown)
}

/// Bytes under way to one target.
#[derive(Debug)]
pub(crate) struct Sending<'a> {
    pub(crate) target: Target,
    from: Place<'a>,
    len: usize,
    done: usize,
}

impl<'a> Sending<'a> {
    /// # Safety
    ///
    /// `from` stays readable for `len` bytes as long as this lives.
    pub(crate) unsafe fn new(target: Target, from: *const u8, len: usize) -> Self {
        // SAFETY: the caller's promise.
        unsafe { Sending::out_of(target, Place::Dense(from.cast_mut()), len) }
    }

    /// # Safety
    ///
    /// `from` has `len` bytes, which stay readable as long as this lives.
    pub(crate) unsafe fn out_of(target: Target, from: Place<'a>, len: usize) -> Self {
        Sending {
            target,
            from,
            len,
            done: 0,
        }
    }

    pub(crate) fn finished(&self) -> bool {
        self.done == self.len
    }

    /// Bytes that are not in the ring yet.
    pub(crate) fn left(&self) -> usize {
        self.len - self.done
    }

    /// Hands the next chunk over if there is room.
    pub(crate) fn step(&mut self, mailbox: &mut Mailbox, flow: Flow) -> Result<bool> {
        if self.finished() {
            return Ok(false);
        }
        self.step_by(mailbox, ramp(self.done, flow))
    }

    fn step_by(&mut self, mailbox: &mut Mailbox, chunk: usize) -> Result<bool> {
        let (from, done) = (self.from, self.done);
        let n = mailbox.push_with(self.target, self.left(), chunk, |place, n| {
            // SAFETY: `done + n` is at most `len`, and `out_of` was promised that many bytes; the
            // ring has room.
            unsafe { from.pack(done..done + n, place) }
        })?;
        self.done += n;
        Ok(n > 0)
    }

    /// Hands chunks over until at most `keep` bytes are left.
    pub(crate) fn run(&mut self, mailbox: &mut Mailbox, flow: Flow, keep: usize) -> Result<()> {
        while self.left() > keep {
            // Whole lines, as long as something follows.
            let most = match keep {
                0 => self.left(),
                keep => (self.left() - keep)
                    .next_multiple_of(64)
                    .min(self.left() - 1),
            };
            if !self.step_by(mailbox, ramp(self.done, flow).min(most).max(64))? {
                let target = self.target;
                mailbox.wait_any(
                    |_| None,
                    |rank| match target {
                        Target::One(one) => (one == rank).then_some(target),
                        Target::All => Some(target),
                    },
                )?;
            }
        }
        Ok(())
    }
}

/// Bytes under way from one source.
#[derive(Debug)]
pub(crate) struct Receiving<'a> {
    pub(crate) source: Source,
    to: Place<'a>,
    len: usize,
    done: usize,
}

impl<'a> Receiving<'a> {
    /// # Safety
    ///
    /// `to` stays writable for `len` bytes as long as this lives.
    pub(crate) unsafe fn new(source: Source, to: *mut u8, len: usize) -> Self {
        // SAFETY: the caller's promise.
        unsafe { Receiving::into(source, Place::Dense(to), len) }
    }

    /// # Safety
    ///
    /// `to` has `len` bytes, which stay writable as long as this lives.
    pub(crate) unsafe fn into(source: Source, to: Place<'a>, len: usize) -> Self {
        Receiving {
            source,
            to,
            len,
            done: 0,
        }
    }

    pub(crate) fn finished(&self) -> bool {
        self.done == self.len
    }

    /// Takes the next chunk if there is one.
    pub(crate) fn step(&mut self, mailbox: &mut Mailbox, flow: Flow) -> Result<bool> {
        if self.finished() {
            return Ok(false);
        }
        let (left, chunk) = (self.len - self.done, ramp(self.done, flow));
        let (to, done) = (self.to, self.done);
        let n = mailbox.pull_with(self.source, left, chunk, |bytes, n| {
            // SAFETY: `done + n` is at most `len`, and `into` was promised that many bytes; the
            // ring has them.
            unsafe { to.unpack(bytes, done..done + n, flow.streaming) }
        })?;
        self.done += n;
        Ok(n > 0)
    }

    /// Takes chunks until all are there.
    pub(crate) fn run(mut self, mailbox: &mut Mailbox, flow: Flow) -> Result<()> {
        while !self.finished() {
            if !self.step(mailbox, flow)? {
                let source = self.source;
                mailbox.wait_any(|rank| (rank == source.rank()).then_some(source), |_| None)?;
            }
        }
        Ok(())
    }
}

/// Moves several streams at a time, none of which waits for another.
pub(crate) fn exchange(
    mailbox: &mut Mailbox,
    flow: Flow,
    sending: &mut [Sending<'_>],
    receiving: &mut [Receiving<'_>],
) -> Result<()> {
    loop {
        let mut moved = false;
        for stream in sending.iter_mut() {
            moved |= stream.step(mailbox, flow)?;
        }
        for stream in receiving.iter_mut() {
            moved |= stream.step(mailbox, flow)?;
        }
        if moved {
            continue;
        }
        if sending.iter().all(Sending::finished) && receiving.iter().all(Receiving::finished) {
            return Ok(());
        }
        mailbox.wait_any(
            |rank| {
                let open = receiving
                    .iter()
                    .find(|r| r.source.rank() == rank && !r.finished());
                open.map(|r| r.source)
            },
            |rank| {
                let open = sending.iter().find(|s| {
                    !s.finished() && (s.target == Target::All || s.target == Target::One(rank))
                });
                open.map(|s| s.target)
            },
        )?;
    }
}

/// Shared memory works wherever a team could be formed at all.
pub(crate) fn report() -> TransportReport {
    TransportKind::Shm.report(true, "always there; two copies, overlapped")
}
