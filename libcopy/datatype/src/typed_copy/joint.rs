// SPDX-License-Identifier: MIT OR Apache-2.0

//! Two regular layouts as one loop nest.

use super::super::kernel::Dim;
use super::regular::{DIMS, Regular};

/// Two regular layouts as one loop nest that walks both.
///
/// ```text
/// from   Stream 6 × Dense 16             dims of 16 bytes:  6
/// to     Stream 2 × Stream 3 × Dense 16                     3, then 2
/// both   3 (inner), 2 (outer), 16 bytes
/// ```
pub(super) struct Joint {
    pub(super) len: usize,
    pub(super) dims: [Dim; DIMS],
    pub(super) n: usize,
}

impl Joint {
    pub(super) fn of(from: Regular, to: Regular) -> Option<Joint> {
        let (mut a, mut b) = (from, to);
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
