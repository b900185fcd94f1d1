// SPDX-License-Identifier: MIT OR Apache-2.0

//! The loops that move bytes: equal blocks along any number of dimensions, and lists of blocks.
//!
//! Every loop copies from a strided place to a strided place; packing is the case where the target
//! is dense, unpacking the one where the source is. Which loop runs depends on the length of the
//! blocks, a constant in the loops for small ones, and on which strides are small:
//!
//! ```text
//! one dimension             strip: blocks one after the other
//! more                      the innermost two in one loop nest, the others around it
//! inner stride large on     tile: a transposition, done square by square, so that every cache
//! one side, outer small     line is used up while it is there
//! ```
//!
//! Vector loads may read bytes between two blocks that are at most two cache lines apart; bytes
//! between blocks are never written.

mod list;
mod strip;
mod tile;
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod x86;

pub(super) use list::{pieces, scattered};

/// One dimension of a loop nest: how often, and the strides of both sides in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Dim {
    pub(super) count: usize,
    pub(super) to: isize,
    pub(super) from: isize,
}

/// Blocks up to this length have loops of their own.
const SMALL: usize = 64;

/// A cache line.
const LINE: usize = 64;

/// Asks for a line that will be needed soon; any address is harmless.
#[inline(always)]
fn prefetch(at: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch never faults, and x86-64 has it. Newer compilers need no block.
    #[allow(unused_unsafe)]
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = at;
}

/// Copies one piece.
///
/// # Safety
///
/// `len` bytes are readable at `from` and writable at `to`, and they do not overlap.
#[inline]
pub(super) unsafe fn dense(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        if len > 2 * SMALL {
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            if x86::piece(to, from, len) {
                return;
            }
            std::ptr::copy_nonoverlapping(from, to, len);
        } else {
            strip::short(to, from, len);
        }
    }
}

/// Copies one of many pieces whose lengths vary.
///
/// # Safety
///
/// As for [`dense`]; `len` is at least 1.
#[inline(always)]
pub(super) unsafe fn fragment(to: *mut u8, from: *const u8, len: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if x86::has_masks() {
        // SAFETY: the caller's promise; the processor can do it.
        return unsafe { x86::masked(to, from, len) };
    }
    // SAFETY: the caller's promise.
    unsafe { dense(to, from, len) }
}

/// Copies blocks of `len` bytes along all dimensions, the first one innermost. The order in which
/// it does so is up to it, and so are the dimensions afterwards.
///
/// # Safety
///
/// All blocks are readable and writable, and no source block overlaps a target block.
pub(super) unsafe fn nest(to: *mut u8, from: *const u8, len: usize, dims: &mut [Dim]) {
    // SAFETY (all calls): each visits blocks of the nest, each block once.
    match dims {
        // SAFETY: see above.
        [] => unsafe { dense(to, from, len) },
        // SAFETY: see above.
        [dim] => unsafe { strip::one(to, from, len, *dim) },
        _ => {
            if len <= SMALL {
                if let Some(other) = tile::partner(len, dims) {
                    // SAFETY: see above.
                    return unsafe { outer(to, from, dims, Some(other), len) };
                }
            }
            // SAFETY: see above.
            unsafe { outer(to, from, dims, None, len) }
        }
    }
}

/// Whether a nest waits for one cache line after the other: packing and unpacking ask for those
/// ahead along the whole layout, which a nest with rows of its own on both sides cannot.
pub(super) fn waits(len: usize, dims: &[Dim]) -> bool {
    let [inner, ..] = dims else {
        return false;
    };
    let blocks = dims
        .iter()
        .fold(1usize, |n, dim| n.saturating_mul(dim.count));
    len <= SMALL
        && strip::is_far(*inner)
        && blocks >= strip::MANY
        && tile::partner(len, dims).is_none()
}

/// Whether [`nest`] runs a transposition.
pub(super) fn transposes(len: usize, dims: &[Dim]) -> bool {
    dims.len() > 1 && len <= SMALL && tile::partner(len, dims).is_some()
}

/// Which loop [`nest`] runs, for a person.
pub(super) fn name(len: usize, dims: &[Dim]) -> String {
    let [inner, ..] = dims else {
        return "memcpy".to_owned();
    };
    if transposes(len, dims) {
        return "transposed in tiles".to_owned();
    }
    let blocks = dims
        .iter()
        .fold(1usize, |n, dim| n.saturating_mul(dim.count));
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    let vectors = x86::name(len);
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let vectors: Option<&str> = None;
    match vectors {
        Some(name) => name.to_owned(),
        None if len > 2 * SMALL => "memcpy each".to_owned(),
        None if strip::is_far(*inner) && blocks >= strip::MANY => {
            format!("a loop for {len} bytes with prefetch")
        }
        None => format!("a loop for {len} bytes"),
    }
}

/// Which loop [`pieces`] runs, for a person.
pub(super) fn name_of_pieces() -> &'static str {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if x86::has_masks() {
        return "with masked vectors";
    }
    "each by its length"
}

/// Runs the innermost dimension and one other in one kernel, and loops over the rest.
///
/// # Safety
///
/// As for [`nest`]; there are at least two dimensions.
unsafe fn outer(
    to: *mut u8,
    from: *const u8,
    dims: &mut [Dim],
    transposed: Option<usize>,
    len: usize,
) {
    let second = transposed.unwrap_or(1);
    dims.swap(1, second);
    let (inner, rest) = dims.split_at(2);
    let (a, b) = (inner[0], inner[1]);
    let kernel = |to: *mut u8, from: *const u8| {
        // SAFETY: the caller's promise.
        unsafe {
            match transposed {
                Some(_) => tile::run(to, from, len, a, b),
                None => strip::two(to, from, len, a, b),
            }
        }
    };
    match *rest {
        [] => kernel(to, from),
        [c] => {
            let (mut to, mut from) = (to, from);
            for _ in 0..c.count {
                kernel(to, from);
                to = to.wrapping_offset(c.to);
                from = from.wrapping_offset(c.from);
            }
        }
        _ => odometer(to, from, rest, kernel),
    }
}

/// Calls `kernel` for every combination of indices of `dims`, the first one fastest.
fn odometer(
    to: *mut u8,
    from: *const u8,
    dims: &[Dim],
    mut kernel: impl FnMut(*mut u8, *const u8),
) {
    let [faster @ .., slowest] = dims else {
        return kernel(to, from);
    };
    let (mut to, mut from) = (to, from);
    for _ in 0..slowest.count {
        if let [a] = faster {
            let (mut to, mut from) = (to, from);
            for _ in 0..a.count {
                kernel(to, from);
                to = to.wrapping_offset(a.to);
                from = from.wrapping_offset(a.from);
            }
        } else {
            // As deep as there are dimensions, which is bounded by the caller's array.
            odometer(
                to,
                from,
                faster,
                &mut kernel as &mut dyn FnMut(*mut u8, *const u8),
            );
        }
        to = to.wrapping_offset(slowest.to);
        from = from.wrapping_offset(slowest.from);
    }
}
