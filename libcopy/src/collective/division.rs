// SPDX-License-Identifier: MIT OR Apache-2.0

//! How a buffer is divided among the ranks.

use std::borrow::Cow;

use crate::error::{Allowed, Error, Result, Value};
use crate::plan;

/// How a buffer is divided among the ranks, where the parts may differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts<'a> {
    /// Elements of each rank's part: bytes, if the buffer is one of bytes.
    pub counts: &'a [usize],
    /// Where each rank's part starts in the buffer.
    pub offsets: &'a [usize],
}

impl<'a> Parts<'a> {
    /// The same parts in bytes, of a buffer whose elements are `T`.
    pub(super) fn scaled<T>(self) -> Result<Scaled<'a>> {
        Ok(Scaled {
            counts: in_bytes::<T>(self.counts)?,
            offsets: in_bytes::<T>(self.offsets)?,
        })
    }
}

/// Parts in bytes.
pub(super) struct Scaled<'a> {
    counts: Cow<'a, [usize]>,
    offsets: Cow<'a, [usize]>,
}

impl Scaled<'_> {
    pub(super) fn parts(&self) -> Parts<'_> {
        Parts {
            counts: &self.counts,
            offsets: &self.offsets,
        }
    }
}

/// Numbers of elements as numbers of bytes.
pub(super) fn in_bytes<T>(elements: &[usize]) -> Result<Cow<'_, [usize]>> {
    if size_of::<T>() == 1 {
        return Ok(Cow::Borrowed(elements));
    }
    let bytes = |count: &usize| {
        let too_large = || Error::argument("a part", *count, ..usize::MAX / size_of::<T>());
        count.checked_mul(size_of::<T>()).ok_or_else(too_large)
    };
    Ok(Cow::Owned(
        elements.iter().map(bytes).collect::<Result<_>>()?,
    ))
}

/// A buffer's division, checked against the buffer.
#[derive(Clone, Copy, Debug)]
pub(super) enum Division<'a> {
    Equal(usize),
    Parts(Parts<'a>),
    /// Parts that follow each other without gaps, the same on all ranks.
    Slices(Parts<'a>),
}

impl<'a> Division<'a> {
    pub(super) fn equal(whole: usize, size: usize, what: &'static str) -> Result<Self> {
        match whole % size {
            0 => Ok(Division::Equal(whole / size)),
            _ => Err(Error::argument(
                what,
                whole,
                Allowed::MultipleOf(size as u64),
            )),
        }
    }

    /// `exclusive`: the parts are written to, so they must not overlap.
    pub(super) fn parts(
        parts: Parts<'a>,
        whole: usize,
        size: usize,
        exclusive: bool,
    ) -> Result<Self> {
        for (what, given) in [
            ("number of counts", parts.counts.len()),
            ("number of offsets", parts.offsets.len()),
        ] {
            if given != size {
                return Err(Error::argument(what, given, size));
            }
        }
        let mut ranges: Vec<(usize, usize)> = Vec::with_capacity(size);
        for (&offset, &count) in parts.offsets.iter().zip(parts.counts) {
            match offset.checked_add(count) {
                Some(end) if end <= whole => ranges.push((offset, end)),
                _ => {
                    return Err(Error::argument(
                        "a part",
                        Value::span(offset, count),
                        0..whole,
                    ));
                }
            }
        }
        if exclusive {
            ranges.retain(|(start, end)| start < end);
            ranges.sort_unstable();
            if let Some(pair) = ranges.windows(2).find(|pair| pair[0].1 > pair[1].0) {
                return Err(Error::argument(
                    "a part that is received",
                    Value::span(pair[1].0, pair[1].1 - pair[1].0),
                    format!("behind the end of another at {}", pair[0].1),
                ));
            }
        }
        Ok(Division::Parts(parts))
    }

    /// Offset and length of a rank's part.
    pub(super) fn part(&self, rank: usize) -> (usize, usize) {
        match self {
            Division::Equal(len) => (rank * len, *len),
            Division::Parts(parts) | Division::Slices(parts) => {
                (parts.offsets[rank], parts.counts[rank])
            }
        }
    }
}

/// Counts and offsets, in bytes, of slices of about the same number of elements: those that ranks
/// combine in plans without groups.
pub(super) fn slices(len: usize, element: usize, size: usize) -> (Vec<usize>, Vec<usize>) {
    let slices = (0..size).map(|rank| plan::share(&(0..len), size, rank, plan::granule(element)));
    slices.map(|slice| (slice.len(), slice.start)).unzip()
}

/// Checks the length of the root's own part.
pub(super) fn own_part(send: usize, count: usize) -> Result<()> {
    if send != count {
        return Err(Error::argument(
            "length of the root's own part",
            send,
            count,
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divisions_stay_inside_the_buffer() {
        let check = |counts: &[usize], offsets: &[usize], exclusive| {
            Division::parts(Parts { counts, offsets }, 10, 2, exclusive).is_ok()
        };
        assert!(check(&[5, 5], &[0, 5], true));
        assert!(check(&[5, 5], &[5, 0], true));
        assert!(!check(&[5, 6], &[0, 5], true));
        assert!(!check(&[6, 5], &[0, 5], true));
        assert!(check(&[6, 5], &[0, 5], false));
        assert!(
            check(&[0, 10], &[3, 0], true),
            "an empty part overlaps nothing"
        );
        assert!(!check(&[usize::MAX, 1], &[1, 0], false));
        assert!(!check(&[5], &[0], false));
        assert!(!check(&[5, 5], &[0], false));
        assert!(Division::equal(10, 3, "x").is_err());
        assert_eq!(Division::equal(12, 3, "x").unwrap().part(2), (8, 4));
    }

    #[test]
    fn slices_cover_all_elements_once() {
        for (elements, size) in [(0, 3), (2, 3), (7, 3), (9, 3), (1000, 7)] {
            let (counts, offsets) = slices(8 * elements, 8, size);
            let mut end = 0;
            for (count, offset) in counts.iter().zip(offsets) {
                assert_eq!(offset, end);
                assert_eq!(count % 8, 0);
                end += count;
            }
            assert_eq!(end, 8 * elements);
            let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
            assert!(most - least <= 64, "whole cache lines");
        }
    }
}
