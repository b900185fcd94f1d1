// SPDX-License-Identifier: MIT OR Apache-2.0

//! From one layout straight to another one, without packing in between.

use super::cursor::Strip;
use super::execute::Mover;
use super::kernel;
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
