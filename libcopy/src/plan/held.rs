// SPDX-License-Identifier: MIT OR Apache-2.0

//! Who holds which bytes of a result on the way, and from when on.

use std::ops::Range;

use super::stage::{After, Buffer, Source, Span};

/// Bytes that a rank holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Held {
    /// Which bytes of the result.
    pub range: Range<usize>,
    /// Who holds them, in which buffer; they begin at `at` there.
    pub span: Span,
    /// When all of them are there. None: from the beginning.
    pub after: Option<After>,
    /// Whether each byte before the last one is there one byte of progress earlier.
    pub in_order: bool,
}

impl Held {
    /// A rank's contribution.
    pub fn own(range: Range<usize>, rank: usize, buffer: Buffer, at: usize) -> Held {
        Held {
            range,
            span: Span { rank, buffer, at },
            after: None,
            in_order: true,
        }
    }

    /// A part of it.
    pub fn part(&self, range: Range<usize>) -> Held {
        let mut part = self.clone();
        part.span.at += range.start - self.range.start;
        if let Some(after) = part.after.as_mut().filter(|_| self.in_order) {
            after.progress.bytes -= self.range.end - range.end;
        }
        part.range = range;
        part
    }

    /// It as the source of a piece.
    pub fn source(&self) -> Source {
        Source {
            span: self.span,
            after: self.after,
            in_order: self.in_order,
        }
    }

    /// The part of it that is in a range.
    pub fn within(&self, range: &Range<usize>) -> Option<Held> {
        let start = self.range.start.max(range.start);
        let end = self.range.end.min(range.end);
        (start < end).then(|| self.part(start..end))
    }
}

/// Bytes that one holder of each of some lists has.
pub(super) struct Cell {
    /// Which bytes.
    pub range: Range<usize>,
    /// The holders, one of each list, in the order of the lists.
    pub held: Vec<Held>,
}

/// Cuts lists, each of which covers the same bytes in order, at all their borders.
pub(super) fn cells(lists: &[&[Held]]) -> Vec<Cell> {
    let mut next = vec![0; lists.len()];
    let mut cells = Vec::new();
    let Some(mut start) = lists
        .first()
        .and_then(|list| list.first())
        .map(|it| it.range.start)
    else {
        return cells;
    };
    loop {
        let current: Option<Vec<&Held>> = lists
            .iter()
            .zip(&next)
            .map(|(list, next)| list.get(*next))
            .collect();
        let Some(current) = current else { return cells };
        let end = current
            .iter()
            .map(|held| held.range.end)
            .min()
            .unwrap_or(start);
        if start < end {
            cells.push(Cell {
                range: start..end,
                held: current.iter().map(|held| held.part(start..end)).collect(),
            });
        }
        for (held, next) in current.iter().zip(&mut next) {
            *next += usize::from(held.range.end == end);
        }
        start = end;
    }
}
