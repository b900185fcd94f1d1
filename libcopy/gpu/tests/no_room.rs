// SPDX-License-Identifier: MIT OR Apache-2.0

//! Plans of layouts with long lists where memory has no room for them.

#![allow(missing_docs)]

#[path = "../../datatype/tests/no_room/refusing.rs"]
mod refusing;

use libcopy_datatype::{Datatype, Layout, Named};
use libcopy_gpu::{Error, Plan};

#[test]
fn every_table_of_a_plan_may_find_no_room() {
    let double = Datatype::named(Named::Double);
    let places: Vec<i64> = (0..20_000)
        .map(|i| 200 * i + i * 7919 % 10_007 % 5)
        .collect();
    let lengths: Vec<u64> = (0..20_000).map(|i| 1 + i * 7919 % 10_007 % 97).collect();
    for (name, datatype, tables) in [
        ("equal", double.indexed_block(1, &places), 1),
        ("mixed", double.indexed(&lengths, &places), 3),
    ] {
        let layout = Layout::new(&datatype.unwrap(), 1).unwrap();
        // Without room for this, pieces count as overlapping, and the plan cannot unpack.
        assert!(layout.form().is_disjoint());
        let no_room = |error: &Error| match error {
            Error::NoRoom(none) => Some(*none),
            _ => None,
        };
        let refused = refusing::refuse_each(name, 1, || Plan::of(&layout), no_room);
        assert!(refused >= tables, "{name}: {refused}");
    }
}
