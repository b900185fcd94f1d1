// SPDX-License-Identifier: MIT OR Apache-2.0

//! Which way is the fastest for two layouts.

use super::super::form::Node;
use super::super::layout::Layout;
use super::super::named::Named;
use super::super::signature::Signature;
use super::bounce::{ONCE, bounce};
use super::fill::{fill, suits};
use super::joint::Joint;
use super::pairs::{Pair, pairs};
use super::stage::{STAGE, is_staged, staged};
use super::thresholds::{FEW, MUCH, SHORT};
use crate::{Error, Result};

/// Bytes that are packed and unpacked at a time where the pieces of both sides are short: they
/// never leave the second-level cache, and starting anew in the middle costs little.
const CHUNK: u64 = 64 << 10;

/// Pieces that are worth finding one by one: below, finding takes longer than moving.
const LONG: u64 = 4096;

/// Copies the packed stream of `from` at `source` to that of `to` at `target`.
///
/// ```text
/// one side dense                   it is the packed form of the other side
/// both regular, counts fit         one loop nest over both (Joint)
/// one side equal blocks, and the   these are filled or emptied one after the other, see [`suits`]
///   other side's much shorter or longer
/// both regular                     by a pattern of fragments that repeats, see [`weave`]
/// both regular, blocks not short   fragment by fragment, as blocks end on one side or the other
/// a few regular parts              the same for each of them
/// one side equal blocks, the other lists or long rows, few bytes
///                                  over a buffer in the first-level cache, see [`Stage`]
/// long pieces on one side          each is the packed form of a part of the other side
/// anything else                    through a buffer that stays in the cache
/// the target's nests overlap       the same: the last piece of the type map wins
/// ```
///
/// # Safety
///
/// Both layouts have the same size; the source's bytes are readable, the target's writable, and
/// no byte is both.
unsafe fn copy(from: &Layout, source: *const u8, to: &Layout, target: *mut u8) {
    let size = from.size();
    let read = source.wrapping_offset(from.form().offset() as isize);
    let write = target.wrapping_offset(to.form().offset() as isize);
    // SAFETY (all calls): the caller's promise; the ranges are those of the pieces, which make up
    // the whole stream.
    match (from.form().nodes(), to.form().nodes()) {
        // SAFETY: see above.
        ([Node::Dense { .. }], _) => return unsafe { to.unpack_raw(read, 0..size, target) },
        // SAFETY: see above.
        (_, [Node::Dense { .. }]) => return unsafe { from.pack_raw(source, 0..size, write) },
        // A small copy takes less time than looking for the best way. The first node of a regular
        // layout is its block.
        ([Node::Dense { len: a }, ..], [Node::Dense { len: b }, ..])
            if size <= FEW && a != b && *a.min(b) < SHORT =>
        {
            // SAFETY: see above.
            return unsafe { bounce(from, source, to, target, 0..size, CHUNK) };
        }
        _ => {}
    }
    let mut chunk = CHUNK;
    if !to.form().is_free() {
        // Only unpacking keeps to the order of the type map, in which the last piece wins.
        // SAFETY: see above.
        return unsafe { bounce(from, source, to, target, 0..size, CHUNK) };
    }
    let pairs = pairs(from.form(), to.form())
        // Parts that share bytes are written in order by all other ways.
        .filter(|pairs| pairs.len() == 1 || to.form().is_disjoint());
    let is_joint = |pairs: &Vec<Pair>| {
        let mut pairs = pairs.iter();
        pairs.all(|pair| Joint::of(pair.from, pair.to).is_some())
    };
    if !pairs.as_ref().is_some_and(is_joint) {
        // SAFETY: see above.
        let done = unsafe { fill(from.form(), read, to.form(), write, suits) };
        if done {
            return;
        }
    }
    let is_done = || {
        let (from, to) = (from.form(), to.form());
        // SAFETY: see above.
        (MUCH..=ONCE).contains(&size) && unsafe { staged(from, read, to, write, STAGE, is_staged) }
    };
    if let Some(pairs) = pairs {
        // Where what has not been copied begins.
        let mut left = 0;
        for pair in &pairs {
            let (read, write) = (
                read.wrapping_offset(pair.from_at as isize),
                write.wrapping_offset(pair.to_at as isize),
            );
            // SAFETY: see above.
            if unsafe { pair.run(read, write, size, &mut chunk) } {
                // SAFETY: see above.
                unsafe { bounce(from, source, to, target, left..pair.range.start, chunk) };
                left = pair.range.end;
            }
        }
        // SAFETY: see above.
        unsafe {
            if left > 0 || chunk != CHUNK || !is_done() {
                bounce(from, source, to, target, left..size, chunk);
            }
        }
        return;
    }
    let mean = |layout: &Layout| layout.size() / layout.form().segments().max(1);
    let (read, write) = (mean(from), mean(to));
    if read.max(write) < LONG {
        // SAFETY: see above.
        unsafe {
            if !is_done() {
                bounce(from, source, to, target, 0..size, chunk);
            }
        }
        return;
    }
    let (mut at, by_target) = (0, write >= read);
    let mut pieces = if by_target {
        to.cursor()
    } else {
        from.cursor()
    };
    while let Some(piece) = pieces.next_segment(u64::MAX) {
        let range = at..at + piece.len;
        at = range.end;
        let place = piece.offset as isize;
        // SAFETY: see above.
        unsafe {
            if by_target {
                from.pack_raw(source, range, target.wrapping_offset(place));
            } else {
                to.unpack_raw(source.wrapping_offset(place), range, target);
            }
        }
    }
}

impl Layout {
    /// Copies from this layout in `buffer` to another one in `target`, without packing in between.
    /// Where pieces of the target overlap, the last one in the type map wins.
    ///
    /// # Errors
    ///
    /// Data outside one of the buffers; layouts that do not have the same signature, unless one
    /// of them consists of plain bytes (`MPI_BYTE`, `MPI_PACKED`, characters).
    pub fn copy(
        &self,
        buffer: &[u8],
        origin: isize,
        to: &Layout,
        target: &mut [u8],
        target_origin: isize,
    ) -> Result<()> {
        if self.size() != to.size() || !self.fits(to) {
            return Err(Error::argument(
                "the target's signature",
                format!(
                    "{} elements, {} bytes",
                    to.signature().elements(),
                    to.size()
                ),
                format!(
                    "the source's ({} elements, {} bytes)",
                    self.signature().elements(),
                    self.size()
                ),
            ));
        }
        self.check(buffer.len(), origin, 0, 0)?;
        to.check(target.len(), target_origin, 0, 0)?;
        let from = buffer.as_ptr().wrapping_offset(origin);
        let target = target.as_mut_ptr().wrapping_offset(target_origin);
        // SAFETY: all data of both lies within slices that do not overlap.
        unsafe { self.copy_raw(from, to, target) };
        Ok(())
    }

    /// As [`Layout::copy`], without a check; both origins are the addresses that displacements
    /// count from.
    ///
    /// # Safety
    ///
    /// Both layouts have the same size; the bytes of this layout at `origin` are readable, those
    /// of `to` at `target` writable, and no byte is both.
    pub unsafe fn copy_raw(&self, origin: *const u8, to: &Layout, target: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { copy(self, origin, to, target) }
    }

    fn fits(&self, other: &Layout) -> bool {
        let bytes = || Signature::of_named(Named::Byte).repeat(self.size());
        self.signature() == other.signature()
            || (self.signature().elements() == self.size()
                || other.signature().elements() == self.size())
                && (*self.signature() == bytes() || *other.signature() == bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::typed_copy::bounce::gcd;
    use crate::typed_copy::regular::Regular;
    use crate::typed_copy::weave::weave;
    use crate::{Datatype, Segment};

    fn layout(expression: &str) -> Layout {
        Layout::new(&expression.parse::<Datatype>().unwrap(), 1).unwrap()
    }

    /// Copies by [`fill`] alone, and by [`staged`], to be compared with a copy piece by piece, gaps
    /// included.
    fn compare(from: &str, to: &str) {
        let (a, b) = (layout(from), layout(to));
        assert_eq!(a.size(), b.size(), "{from} {to}");
        let room = |layout: &Layout| {
            let bounds = layout.bounds();
            ((bounds.end - bounds.start) as usize, -bounds.start as isize)
        };
        let ((read, origin), (written, target_origin)) = (room(&a), room(&b));
        let source: Vec<u8> = (0..read).map(|i| (i * 167 / 5) as u8).collect();
        let mut target = vec![0xa5; written];
        let mut expected = target.clone();
        let bytes = a.segments().flat_map(|s| s.offset..s.offset + s.len as i64);
        let places = b.segments().flat_map(|s| s.offset..s.offset + s.len as i64);
        for (i, k) in bytes.zip(places) {
            expected[(k as isize + target_origin) as usize] =
                source[(i as isize + origin) as usize];
        }
        let read = source
            .as_ptr()
            .wrapping_offset(origin + a.form().offset() as isize);
        let write = target
            .as_mut_ptr()
            .wrapping_offset(target_origin + b.form().offset() as isize);
        // SAFETY: both buffers hold all bytes of their layouts.
        let done = unsafe { fill(a.form(), read, b.form(), write, |_, _| true) };
        assert!(done, "{from} to {to} is not for it");
        assert!(target == expected, "{from} to {to}");
        target.fill(0xa5);
        // Little enough that it is filled several times.
        let longest = a.segments().chain(b.segments()).map(|s| s.len).max();
        let capacity = 8 * longest.unwrap() as usize;
        // SAFETY: as above.
        let done = unsafe { staged(a.form(), read, b.form(), write, capacity, |_| true) };
        assert!(done, "{from} to {to} is not for it");
        assert!(target == expected, "{from} over a stage to {to}");
        // Whatever is chosen gives the same.
        target.fill(0xa5);
        a.copy(&source, origin, &b, &mut target, target_origin)
            .unwrap();
        assert!(target == expected, "{from} to {to}");
    }

    /// Copies by [`weave`] alone, if it does that; whether so.
    fn compare_woven(from: &str, to: &str) -> bool {
        let (a, b) = (layout(from), layout(to));
        assert_eq!(a.size(), b.size(), "{from} {to}");
        let regular = |layout: &Layout| {
            let form = layout.form();
            Regular::of(form, form.root().unwrap()).unwrap()
        };
        // Exactly as long as they must be, to their first and last byte.
        let room = |layout: &Layout| {
            let at = |segment: Segment| (segment.offset, segment.offset + segment.len as i64);
            let ends = layout.segments().map(at);
            ends.fold((i64::MAX, i64::MIN), |(low, high), (start, end)| {
                (low.min(start), high.max(end))
            })
        };
        let (read, written) = (room(&a), room(&b));
        let source: Vec<u8> = (read.0..read.1).map(|i| (i * 167 / 5) as u8).collect();
        let mut target = vec![0xa5; (written.1 - written.0) as usize];
        let mut expected = target.clone();
        let bytes = a.segments().flat_map(|s| s.offset..s.offset + s.len as i64);
        let places = b.segments().flat_map(|s| s.offset..s.offset + s.len as i64);
        for (i, k) in bytes.zip(places) {
            expected[(k - written.0) as usize] = source[(i - read.0) as usize];
        }
        let first = |layout: &Layout, low: i64| (layout.form().offset() - low) as usize;
        let read = source.as_ptr().wrapping_add(first(&a, read.0));
        let write = target.as_mut_ptr().wrapping_add(first(&b, written.0));
        let size = a.size() as i64;
        // SAFETY: both buffers hold all bytes of their layouts.
        let done = unsafe { weave(&regular(&a), read, &regular(&b), write, size) };
        assert!(!done || target == expected, "{from} {to}");
        done
    }

    #[test]
    fn repeated_patterns_are_woven() {
        let lengths: &[usize] = if cfg!(miri) {
            &[12, 33, 64]
        } else {
            &[4, 12, 20, 47, 64, 92, 129, 200]
        };
        let mut woven = 0;
        for &a in lengths {
            for &b in lengths.iter().filter(|b| **b != a) {
                let unit = a * b / gcd(a as u64, b as u64) as usize;
                // A few bytes more than whole patterns.
                let all = unit * 5;
                let (n, m) = (all / a, all / b);
                for (gap, apart) in [(4, 4), (1, 200), (32, 16), (112, 4), (-1000, 8), (8, -1000)] {
                    let step = |len: usize, gap: i64| len as i64 + gap;
                    let from = format!("vector({n},{a},{},byte)", step(a, gap));
                    let to = format!("vector({m},{b},{},byte)", step(b, apart));
                    woven += usize::from(compare_woven(&from, &to));
                    // Planes of rows, few and many.
                    for (planes, rows) in [(2, 5 * b), (8 * b, 3)] {
                        let bytes = planes * rows * a;
                        let plane = (step(a, gap) * rows as i64).abs() + 333;
                        let deep = format!(
                            "hvector({planes},1,{plane},vector({rows},{a},{},byte))",
                            step(a, gap)
                        );
                        let flat = format!("vector({},{b},{},byte)", bytes / b, step(b, apart));
                        woven += usize::from(compare_woven(&deep, &flat));
                        woven += usize::from(compare_woven(&flat, &deep));
                    }
                }
            }
        }
        assert!(woven > 20, "{woven}");
    }

    /// `count` times `length`, in this order, at places that nothing is regular about.
    fn places(count: usize, length: usize) -> String {
        let mut at = 7;
        let mut list = Vec::new();
        for i in 0..count {
            at += length + 1 + i * i % 3;
            list.push(at);
        }
        // Some of them backwards.
        list[count / 3..count / 2].reverse();
        let list: Vec<String> = list.iter().map(usize::to_string).collect();
        list.join(",")
    }

    #[test]
    fn blocks_are_filled_and_emptied_with_all_kinds_of_layouts() {
        let lengths: &[usize] = if cfg!(miri) {
            &[3, 12]
        } else {
            &[1, 4, 7, 12, 24, 47, 64, 129, 700]
        };
        let blocks: &[usize] = if cfg!(miri) {
            &[1, 5, 12]
        } else {
            &[1, 3, 5, 8, 12, 17, 32, 33, 64, 96, 128, 256, 513, 3000]
        };
        for &length in lengths {
            for &block in blocks {
                // As many bytes as make whole blocks on both sides.
                let unit = length * block / gcd(length as u64, block as u64) as usize;
                let count = (200_usize.div_ceil(unit)).max(4) / 4 * 4 * unit / length;
                let (rows, all) = (count / 2, count * length);
                let others = [
                    format!("vector({count},{length},{},byte)", length + 5),
                    format!("vector({count},{length},{},byte)", -(length as i64) - 600),
                    format!(
                        "hvector(2,1,100000,vector({rows},{length},{},byte))",
                        length + 520
                    ),
                    format!("indexed_block({length},[{}],byte)", places(count, length)),
                    format!(
                        "hvector(2,1,-90000,indexed_block({length},[{}],byte))",
                        places(rows, length)
                    ),
                    format!(
                        "struct([1,1],[3,-200000],[vector({rows},{length},{},byte),\
                         indexed_block({length},[{}],byte)])",
                        length + 1,
                        places(count - rows, length)
                    ),
                    // Pieces of two lengths.
                    format!(
                        "indexed([{}],[{}],byte)",
                        [length + 1, length - 1].map(|n| n.to_string()).join(",")
                            + &format!(",{length}").repeat(count - 2),
                        places(count, length + 1)
                    ),
                ];
                let n = all / block;
                for apart in [block as i64 + 1, -(block as i64) - 9] {
                    if n < 2 {
                        continue;
                    }
                    let flat = format!("vector({n},{block},{apart},byte)");
                    for other in &others {
                        compare(other, &flat);
                        compare(&flat, other);
                    }
                }
            }
        }
    }
}
