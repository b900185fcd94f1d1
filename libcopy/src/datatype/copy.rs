// SPDX-License-Identifier: MIT OR Apache-2.0

//! From one layout straight to another one, without packing in between.

use super::canonical::{Form, Node};
use super::cursor::Strip;
use super::execute::Mover;
use super::kernel::{self, Dim};
use super::layout::Layout;

/// A dense piece of one side that is at least so many times longer than the other side's blocks
/// is the packed form of a part of the other side: then the kernels for packing do it.
const PACK_RATIO: i64 = 4;

/// Copies the packed stream of `from` at `source` to that of `to` at `target`.
///
/// # Safety
///
/// Both layouts have the same size; the source's bytes are readable, the target's writable, and
/// no byte is both.
pub(super) unsafe fn copy(from: &Layout, source: *const u8, to: &Layout, target: *mut u8) {
    if let Some(mut joint) = Joint::of(from.form(), to.form()) {
        let read = source.wrapping_offset(from.form().offset() as isize);
        let write = target.wrapping_offset(to.form().offset() as isize);
        let dims = &mut joint.dims[..joint.n];
        // SAFETY: the nest visits the blocks of both streams, in pairs.
        return unsafe { kernel::nest(write, read, joint.len, dims) };
    }
    let (mut a, mut b) = (from.cursor(), to.cursor());
    let read = |offset: i64| source.wrapping_offset(offset as isize);
    let write = |offset: i64| target.wrapping_offset(offset as isize);
    while let (Some(s), Some(t)) = (a.strip(), b.strip()) {
        let single = |strip: &Strip| strip.count == 1;
        let done = if s.len == t.len {
            let n = s.count.min(t.count);
            let (to, from) = (write(t.offset), read(s.offset));
            let (len, n_blocks) = (s.len as usize, n as usize);
            // SAFETY: here and below, both cursors say where the next bytes of the same part of
            // the stream are, and no more than both strips have are moved.
            unsafe {
                kernel::blocks(
                    to,
                    t.stride as isize,
                    from,
                    s.stride as isize,
                    len,
                    n_blocks,
                );
            }
            n * s.len
        } else if single(&s) && s.len >= PACK_RATIO * t.len {
            let end = (b.position() as i64 + s.len).min(to.size() as i64);
            let low = b.position() as i64;
            if let Some(root) = to.form().root() {
                let origin = write(to.form().offset());
                let from = read(s.offset).cast_mut();
                // SAFETY: see above.
                unsafe { Mover::<false>::new(to.form()).range(root, origin, low, end, from) };
            }
            a.advance(end - low);
            b.go_to(end as u64);
            continue;
        } else if single(&t) && t.len >= PACK_RATIO * s.len {
            let low = a.position() as i64;
            let end = (low + t.len).min(from.size() as i64);
            if let Some(root) = from.form().root() {
                let origin = read(from.form().offset()).cast_mut();
                let to = write(t.offset);
                // SAFETY: see above.
                unsafe { Mover::<true>::new(from.form()).range(root, origin, low, end, to) };
            }
            b.advance(end - low);
            a.go_to(end as u64);
            continue;
        } else if s.len > t.len {
            // One block of the source feeds several of the target.
            let n = (s.len / t.len).min(t.count);
            // SAFETY: see above.
            unsafe {
                let (to, from) = (write(t.offset), read(s.offset));
                let len = t.len as usize;
                kernel::blocks(to, t.stride as isize, from, t.len as isize, len, n as usize);
            }
            n * t.len
        } else {
            let n = (t.len / s.len).min(s.count);
            // SAFETY: see above.
            unsafe {
                let (to, from) = (write(t.offset), read(s.offset));
                let len = s.len as usize;
                kernel::blocks(to, s.len as isize, from, s.stride as isize, len, n as usize);
            }
            n * s.len
        };
        a.advance(done);
        b.advance(done);
    }
}

/// Most dimensions that two regular layouts may have together; more go strip by strip.
const DIMS: usize = 8;

/// Two regular layouts as one loop nest that walks both.
///
/// ```text
/// from   Stream 6 × Dense 16             dims of 16 bytes:  6
/// to     Stream 2 × Stream 3 × Dense 16                     3, then 2
/// both   3 (inner), 2 (outer), 16 bytes
/// ```
struct Joint {
    len: usize,
    dims: [Dim; DIMS],
    n: usize,
}

/// A regular layout: the length of its blocks, and counts and strides, the innermost first.
struct Regular {
    len: i64,
    dims: [(i64, i64); DIMS],
    n: usize,
}

impl Regular {
    fn of(form: &Form) -> Option<Regular> {
        let mut regular = Regular {
            len: 0,
            dims: [(0, 0); DIMS],
            n: 0,
        };
        let mut id = form.root()?;
        loop {
            match form.node(id) {
                Node::Dense { len } => {
                    regular.len = *len;
                    regular.dims[..regular.n].reverse();
                    return Some(regular);
                }
                Node::Stream {
                    count,
                    stride,
                    child,
                } if regular.n < DIMS => {
                    regular.dims[regular.n] = (*count, *stride);
                    regular.n += 1;
                    id = *child;
                }
                _ => return None,
            }
        }
    }

    /// Cuts the blocks into shorter ones.
    fn cut(&mut self, len: i64) -> Option<()> {
        if len < self.len {
            if self.len % len != 0 || self.n == DIMS {
                return None;
            }
            self.dims.copy_within(..self.n, 1);
            self.dims[0] = (self.len / len, len);
            self.n += 1;
            self.len = len;
        }
        Some(())
    }
}

impl Joint {
    fn of(from: &Form, to: &Form) -> Option<Joint> {
        let (mut a, mut b) = (Regular::of(from)?, Regular::of(to)?);
        let len = a.len.min(b.len);
        a.cut(len)?;
        b.cut(len)?;
        let mut joint = Joint {
            len: len as usize,
            dims: [Dim::default(); DIMS],
            n: 0,
        };
        let (mut i, mut k) = (0, 0);
        while i < a.n && k < b.n {
            let ((n, from), (m, to)) = (a.dims[i], b.dims[k]);
            let count = n.min(m);
            if n % count != 0 || m % count != 0 || joint.n == DIMS {
                return None;
            }
            joint.dims[joint.n] = Dim {
                count: count as usize,
                to: to as isize,
                from: from as isize,
            };
            joint.n += 1;
            match n / count {
                1 => i += 1,
                rest => a.dims[i] = (rest, from * count),
            }
            match m / count {
                1 => k += 1,
                rest => b.dims[k] = (rest, to * count),
            }
        }
        joint.order();
        Some(joint)
    }

    /// The order of the copies is free: what is dense on both sides becomes the block, and the
    /// small strides go inside.
    fn order(&mut self) {
        let dims = &mut self.dims[..self.n];
        dims.sort_unstable_by_key(|dim| dim.to.unsigned_abs() + dim.from.unsigned_abs());
        let len = |len: usize| len as isize;
        while self.n > 0 {
            let first = self.dims[0];
            if first.to != len(self.len) || first.from != len(self.len) {
                break;
            }
            self.len *= first.count;
            self.dims.copy_within(1..self.n, 0);
            self.n -= 1;
        }
    }
}
