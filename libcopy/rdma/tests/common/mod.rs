// SPDX-License-Identifier: MIT OR Apache-2.0

//! Ranks on the card in software, and random layouts.

#![allow(dead_code)]

use libcopy_datatype::{Datatype, Layout, Named};
use libcopy_rdma::ranks::Rank;
use libcopy_rdma::{Iov, Limits};
use proptest::prelude::*;

/// A rank with a pool of as many keys.
pub fn rank(number: u32, limits: Limits, keys: usize) -> Rank {
    Rank::new(number, limits, keys).unwrap()
}

/// Pieces of a list that the bytes `start..end` of its packed stream touch.
pub fn pieces(list: &[Iov], start: u64, end: u64) -> usize {
    let mut at = 0;
    let mut count = 0;
    for iov in list {
        if at < end && at + iov.len > start {
            count += 1;
        }
        at += iov.len;
    }
    count
}

/// A layout of `bytes` in blocks of the given lengths, repeated, in a random order in memory, with
/// gaps.
fn layout(bytes: u64, lens: &[u64], gaps: &[u64], reversed: bool) -> Layout {
    let mut blocks = Vec::new();
    let mut place = 0_i64;
    let mut left = bytes;
    let mut index = 0;
    while left > 0 {
        let len = lens[index % lens.len()].min(left);
        blocks.push((len, place));
        place += (len + gaps[index % gaps.len()]) as i64;
        left -= len;
        index += 1;
    }
    let (mut lens, mut places): (Vec<u64>, Vec<i64>) = blocks.into_iter().unzip();
    if reversed {
        lens.reverse();
        places.reverse();
    }
    let byte = Datatype::named(Named::Uint8);
    Layout::new(&byte.hindexed(&lens, &places).unwrap(), 1).unwrap()
}

/// Two layouts of as many bytes.
pub fn pairs() -> impl Strategy<Value = (Layout, Layout)> {
    let side = || {
        (
            prop::collection::vec(1_u64..40, 1..5),
            prop::collection::vec(0_u64..9, 1..4),
            any::<bool>(),
        )
    };
    (1_u64..700, side(), side()).prop_map(|(bytes, from, to)| {
        (
            layout(bytes, &from.0, &from.1, from.2),
            layout(bytes, &to.0, &to.1, to.2),
        )
    })
}
