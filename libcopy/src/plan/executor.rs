// SPDX-License-Identifier: MIT OR Apache-2.0

//! Runs one rank's plan, chunk by chunk, as far as the other ranks are.
//!
//! [`Execution::poll`] never waits, so a caller may wait its own way, or do something else
//! meanwhile. What is moved and who tells whom is the [`Transport`]'s: the check's has made-up
//! memory.

use super::stage::{After, Piece, Plan, Progress, Source};

/// How a rank's plan reaches the other ranks and the memory.
pub trait Transport {
    /// Why bytes could not be moved.
    type Error;

    /// Whether a rank has begun the call: its `Send` is there, and its memory may be written to.
    fn has_begun(&self, rank: usize) -> bool;

    /// Whether a rank has come so far in the call.
    fn has_come(&self, after: &After) -> bool;

    /// Tells the others how far this rank is. What it has moved must be seen by whoever sees this.
    fn tell(&mut self, progress: Progress);

    /// How many bytes of a piece to move next, from `start` on; not more than there are.
    fn chunk(&mut self, piece: &Piece, start: usize) -> usize;

    /// Moves bytes of a piece: copies its only source, or combines its sources in their order.
    ///
    /// # Errors
    ///
    /// The bytes could not be moved.
    fn transfer(&mut self, piece: &Piece, start: usize, bytes: usize) -> Result<(), Self::Error>;
}

/// What a poll has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Something was done; there may be more to do at once.
    Moved,
    /// Another rank must do something first.
    Waits,
    /// The plan has ended: the rank may return.
    Ended,
}

/// How far a rank is with its plan.
#[derive(Clone, Debug)]
pub struct Execution<'a> {
    plan: &'a Plan,
    progress: Progress,
    /// Whether what must be before the stage has come.
    is_open: bool,
    /// The next piece of the stage, and what is done of it.
    piece: usize,
    start: usize,
    /// What the next transfer moves, once it is decided.
    chunk: usize,
}

impl<'a> Execution<'a> {
    /// A plan from the beginning.
    pub fn new(plan: &'a Plan) -> Self {
        Execution {
            plan,
            progress: Progress { stage: 0, bytes: 0 },
            is_open: false,
            piece: 0,
            start: 0,
            chunk: 0,
        }
    }

    /// How far the rank is.
    pub fn progress(&self) -> Progress {
        self.progress
    }

    /// Whether the plan has ended.
    pub fn has_ended(&self) -> bool {
        self.progress.stage == self.plan.stages.len()
    }

    /// A rank without which the next poll can do nothing; None if it can do something.
    pub fn missing<T: Transport>(&self, transport: &T) -> Option<usize> {
        let stage = self.plan.stages.get(self.progress.stage)?;
        if !self.is_open {
            let mut absent = stage.after.iter().filter(|it| !transport.has_come(it));
            return absent.next().map(|after| after.rank);
        }
        let piece = stage.pieces.get(self.piece).filter(|_| self.chunk > 0)?;
        let end = self.start + self.chunk;
        let mut sources = piece.from.iter();
        let absent = sources.find(|it| !is_there(transport, it, end, piece.bytes));
        let absent = absent.map(|it| it.after.map_or(it.span.rank, |after| after.rank));
        absent.or_else(|| (!transport.has_begun(piece.to.rank)).then_some(piece.to.rank))
    }

    /// Does the next thing, if it can be done: moves a chunk, or begins the next stage.
    ///
    /// # Errors
    ///
    /// What the transport says. The execution stays where it is.
    pub fn poll<T: Transport>(&mut self, transport: &mut T) -> Result<Step, T::Error> {
        let Some(stage) = self.plan.stages.get(self.progress.stage) else {
            return Ok(Step::Ended);
        };
        if !self.is_open {
            if self.missing(transport).is_some() {
                return Ok(Step::Waits);
            }
            self.is_open = true;
        }
        let Some(piece) = stage.pieces.get(self.piece) else {
            self.end_stage(transport);
            return Ok(Step::Moved);
        };
        if piece.bytes == 0 {
            self.piece += 1;
            return Ok(Step::Moved);
        }
        if self.chunk == 0 {
            let rest = piece.bytes - self.start;
            self.chunk = transport.chunk(piece, self.start).clamp(1, rest);
        }
        if self.missing(transport).is_some() {
            return Ok(Step::Waits);
        }
        let end = self.start + self.chunk;
        transport.transfer(piece, self.start, self.chunk)?;
        self.start = end;
        self.progress.bytes += self.chunk;
        self.chunk = 0;
        if self.start == piece.bytes {
            (self.piece, self.start) = (self.piece + 1, 0);
        }
        if self.piece == stage.pieces.len() {
            self.end_stage(transport);
        } else {
            transport.tell(self.progress);
        }
        Ok(Step::Moved)
    }

    fn end_stage<T: Transport>(&mut self, transport: &mut T) {
        self.progress = Progress {
            stage: self.progress.stage + 1,
            bytes: 0,
        };
        (self.is_open, self.piece, self.start) = (false, 0, 0);
        transport.tell(self.progress);
    }
}

/// Whether a source has the bytes of a piece up to `end`.
fn is_there<T: Transport>(transport: &T, source: &Source, end: usize, bytes: usize) -> bool {
    let Some(mut after) = source.after else {
        return transport.has_begun(source.span.rank);
    };
    if source.in_order {
        after.progress.bytes = after.progress.bytes.saturating_sub(bytes - end);
    }
    transport.has_come(&after)
}
