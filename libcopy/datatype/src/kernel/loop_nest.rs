// SPDX-License-Identifier: MIT OR Apache-2.0

//! What a loop nest is.

/// One dimension of a loop nest: how often, and the strides of both sides in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Dim {
    pub(in super::super) count: usize,
    pub(in super::super) to: isize,
    pub(in super::super) from: isize,
}

/// Blocks up to this length have loops of their own.
pub(super) const SMALL: usize = 64;

/// What runs a nest.
pub(super) type Run = unsafe fn(*mut u8, *const u8, &Nest);

/// Blocks of equal length along up to three dimensions, and the kernel that copies them. Choosing
/// it takes longer than copying a few hundred bytes, so plans keep it.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Nest {
    pub(super) run: Run,
    pub(super) len: usize,
    /// The innermost first; what is missing has a count of one.
    pub(super) dims: [Dim; DIMS],
}

/// Dimensions of a [`Nest`].
pub(super) const DIMS: usize = 3;

impl Nest {
    /// Copies all blocks.
    ///
    /// # Safety
    ///
    /// All blocks are readable and writable, and no source block overlaps a target block.
    #[inline(always)]
    pub(in super::super) unsafe fn run(&self, to: *mut u8, from: *const u8) {
        // SAFETY: the caller's promise; the kernel was chosen for these blocks.
        unsafe { (self.run)(to, from, self) }
    }

    /// Calls `row` for every row: once per combination of the indices but the innermost.
    ///
    /// # Safety
    ///
    /// As for [`Nest::run`], which `row` relies on for one row.
    #[inline(always)]
    pub(super) unsafe fn each_row(
        &self,
        to: *mut u8,
        from: *const u8,
        row: impl Fn(*mut u8, *const u8),
    ) {
        let [_, b, c] = self.dims;
        let (mut plane_to, mut plane_from) = (to, from);
        for _ in 0..c.count {
            let (mut to, mut from) = (plane_to, plane_from);
            for _ in 0..b.count {
                row(to, from);
                to = to.wrapping_offset(b.to);
                from = from.wrapping_offset(b.from);
            }
            plane_to = plane_to.wrapping_offset(c.to);
            plane_from = plane_from.wrapping_offset(c.from);
        }
    }
}

impl Dim {
    /// A dimension that repeats nothing.
    pub(super) const ONCE: Dim = Dim {
        count: 1,
        to: 0,
        from: 0,
    };
}

/// How many blocks there are.
pub(super) fn blocks(dims: &[Dim]) -> usize {
    dims.iter()
        .fold(1, |n: usize, dim| n.saturating_mul(dim.count))
}
