// SPDX-License-Identifier: MIT OR Apache-2.0

//! Lists of offsets.

use std::sync::Arc;

use crate::room;

/// Offsets of many blocks, in four bytes each where they fit.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Offsets {
    /// All offsets fit into 32 bits.
    Narrow(Arc<Vec<i32>>),
    /// They do not.
    Wide(Arc<Vec<i64>>),
}

impl Offsets {
    pub(super) fn collect(len: usize, at: impl Fn(usize) -> i64) -> room::Result<Offsets> {
        Ok(if (0..len).all(|i| i32::try_from(at(i)).is_ok()) {
            let list = room::gather((0..len).map(|i| at(i) as i32))?;
            Offsets::Narrow(Arc::new(list))
        } else {
            Offsets::Wide(Arc::new(room::gather((0..len).map(at))?))
        })
    }

    /// How many.
    pub fn len(&self) -> usize {
        match self {
            Offsets::Narrow(list) => list.len(),
            Offsets::Wide(list) => list.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The offset of block `i`, in bytes.
    ///
    /// # Panics
    ///
    /// If there is no such block.
    #[inline]
    pub fn get(&self, i: usize) -> i64 {
        match self {
            Offsets::Narrow(list) => i64::from(list[i]),
            Offsets::Wide(list) => list[i],
        }
    }

    pub(super) fn bytes(&self) -> usize {
        match self {
            Offsets::Narrow(list) => 4 * list.len(),
            Offsets::Wide(list) => 8 * list.len(),
        }
    }

    /// The last index whose offset is not above `value`, which is not negative; the offsets must be
    /// ascending from 0.
    pub(super) fn last_not_above(&self, value: i64) -> usize {
        match self {
            Offsets::Narrow(list) => {
                // Compared in 32 bits, which takes an instruction less per step.
                let value = i32::try_from(value).unwrap_or(i32::MAX);
                list.partition_point(|&x| x <= value) - 1
            }
            Offsets::Wide(list) => list.partition_point(|&x| x <= value) - 1,
        }
    }
}
