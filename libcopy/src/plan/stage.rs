// SPDX-License-Identifier: MIT OR Apache-2.0

//! What a plan consists of.

/// Memory of a rank that others may read or write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Buffer {
    /// What the rank contributes. Nobody writes to it.
    Send,
    /// What the rank receives. A broadcast's buffer is one, the root's too.
    Receive,
    /// For results on the way, where `Receive` has no room for them.
    Scratch,
}

/// Where bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Whose.
    pub rank: usize,
    /// In which of its buffers.
    pub buffer: Buffer,
    /// Bytes from the buffer's start, where parts of an irregular operation are counted as if they
    /// followed each other in the order of ranks.
    pub at: usize,
}

/// How far a rank must be: it has ended all stages before `stage`, and moved `bytes` in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Progress {
    /// The stage.
    pub stage: usize,
    /// Bytes of it, in the order of its pieces.
    pub bytes: usize,
}

/// Progress of a rank that is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct After {
    /// The rank.
    pub rank: usize,
    /// How far it must be.
    pub progress: Progress,
}

/// What a piece is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// Where it starts.
    pub span: Span,
    /// When its last byte is there. None: when the rank that holds it has begun the call.
    pub after: Option<After>,
    /// Whether each byte before the last one is there one byte of progress earlier, as far as that
    /// is in the same stage; otherwise all are there when the last one is.
    pub in_order: bool,
}

/// Bytes that are moved from one place, or combined from several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Where they go.
    pub to: Span,
    /// How many.
    pub bytes: usize,
    /// One source is copied; several are combined in this order.
    pub from: Vec<Source>,
}

/// A step of a plan. Its pieces are moved one after the other, each in chunks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stage {
    /// What must be before the first piece.
    pub after: Vec<After>,
    /// What is moved.
    pub pieces: Vec<Piece>,
}

impl Stage {
    /// One that moves these pieces, as soon as the stage before has ended.
    pub fn moving(pieces: impl IntoIterator<Item = Piece>) -> Stage {
        Stage {
            after: Vec::new(),
            pieces: pieces.into_iter().collect(),
        }
    }

    /// One that waits and moves nothing.
    pub fn waiting(after: impl IntoIterator<Item = After>) -> Stage {
        Stage {
            after: after.into_iter().collect(),
            pieces: Vec::new(),
        }
    }

    /// Bytes of its pieces.
    pub fn bytes(&self) -> usize {
        self.pieces.iter().map(|piece| piece.bytes).sum()
    }
}

/// One rank's part of a collective. The rank may return once its last stage has ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The stages, in order.
    pub stages: Vec<Stage>,
}

impl Plan {
    /// Bytes of [`Buffer::Scratch`] that a rank needs: the range that is written.
    pub fn scratch(&self, rank: usize) -> std::ops::Range<usize> {
        let pieces = self.stages.iter().flat_map(|stage| &stage.pieces);
        let own = pieces.filter(|it| it.to.rank == rank && it.to.buffer == Buffer::Scratch);
        own.fold(0..0, |all, piece| {
            let end = piece.to.at + piece.bytes;
            if all.is_empty() {
                piece.to.at..end
            } else {
                all.start.min(piece.to.at)..all.end.max(end)
            }
        })
    }
}
