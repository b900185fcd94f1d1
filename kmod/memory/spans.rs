// SPDX-License-Identifier: GPL-2.0

//! [`Spans`]: the pages that pieces of memory touch, each once, sorted.
//!
//! The number of pieces, their order and how they overlap are the user's choice. What is done per
//! page (pinning), and what is done while somebody else's change of an address space waits
//! (invalidation), goes by spans: a page is pinned once however many pieces name it, and an address
//! is found by bisection.

use crate::base::few::Few;
use crate::uapi::Piece;
use core::ops::Range;
use kernel::page::PAGE_SHIFT;
use kernel::prelude::*;

/// Pages that follow each other in the address space, by number.
#[derive(Clone, Copy)]
pub(crate) struct Span {
    pub(crate) start: usize,
    /// The first page behind it.
    pub(crate) end: usize,
    /// Pages in the spans before this one.
    pub(crate) before: usize,
}

/// Spans that neither overlap nor touch, in ascending order.
pub(crate) struct Spans {
    spans: Few<Span>,
    /// Whether the pieces, one after the other, touch the pages in this very order.
    in_order: bool,
}

/// The pages that a piece touches, by number; none if it is empty.
pub(crate) fn page_range(piece: &Piece) -> Range<usize> {
    let first = piece.base as usize >> PAGE_SHIFT;
    match piece.len {
        0 => first..first,
        len => first..((piece.base + (len - 1)) as usize >> PAGE_SHIFT) + 1,
    }
}

impl Spans {
    /// The spans of pieces of which none wraps around the address space.
    pub(crate) fn new(pieces: &[Piece]) -> Result<Self> {
        // Nearly always there is one piece.
        if let [piece] = pieces {
            let Range { start, end } = page_range(piece);
            let before = 0;
            let spans = if start < end {
                Few::One([Span { start, end, before }])
            } else {
                Few::new()
            };
            return Ok(Self {
                spans,
                in_order: true,
            });
        }
        let mut spans: Few<Span> = Few::with_capacity(pieces.len(), GFP_KERNEL_ACCOUNT)?;
        let (mut in_order, mut end) = (true, 0);
        for pages in pieces
            .iter()
            .map(page_range)
            .filter(|pages| !pages.is_empty())
        {
            in_order &= pages.start >= end;
            end = pages.end;
            let span = Span {
                start: pages.start,
                end: pages.end,
                before: 0,
            };
            spans.push(span, GFP_KERNEL_ACCOUNT)?;
        }
        if !in_order {
            spans.sort_unstable_by_key(|span| span.start);
        }
        let mut used = 0;
        for index in 0..spans.len() {
            let span = spans[index];
            match used {
                1.. if span.start <= spans[used - 1].end => {
                    spans[used - 1].end = usize::max(spans[used - 1].end, span.end);
                }
                _ => {
                    spans[used] = span;
                    used += 1;
                }
            }
        }
        spans.truncate(used);
        if used < pieces.len() / 2 {
            // What is left is looked at often, and should not take up room for pieces.
            spans = Few::first(&spans, used, GFP_KERNEL_ACCOUNT)?;
        }
        let mut before = 0;
        for span in spans.iter_mut() {
            span.before = before;
            before += span.end - span.start;
        }
        Ok(Self { spans, in_order })
    }

    /// The spans.
    pub(crate) fn as_slice(&self) -> &[Span] {
        &self.spans
    }

    /// Whether the pieces touch the pages in ascending order, and none twice.
    pub(crate) fn in_order(&self) -> bool {
        self.in_order
    }

    /// Pages in all spans.
    pub(crate) fn pages(&self) -> usize {
        self.spans
            .last()
            .map_or(0, |span| span.before + span.end - span.start)
    }

    /// Where a page is among all pages of the spans, in ascending order.
    pub(crate) fn index(&self, page: usize) -> Option<usize> {
        let at = self.spans.partition_point(|span| span.end <= page);
        let span = self.spans.get(at).filter(|span| span.start <= page)?;
        Some(span.before + page - span.start)
    }

    /// Whether any page of `start..end` is in a span. The logarithm of the number of spans in
    /// steps.
    pub(crate) fn touches(&self, start: usize, end: usize) -> bool {
        let at = self.spans.partition_point(|span| span.end <= start);
        self.spans.get(at).is_some_and(|span| span.start < end)
    }
}
