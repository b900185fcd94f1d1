// SPDX-License-Identifier: MIT OR Apache-2.0

//! Any random type beside lists of the same bytes: the canonical form does not depend on which
//! constructors described a layout.

use crate::generate::{Choices, build, tree};
use libcopy_datatype::{Datatype, Named};
use proptest::prelude::*;

/// The pieces between `low` and `high` of a list of byte displacements, cut further at random.
fn pieces(bytes: &[i64], choices: &mut Choices, cut: u64) -> (Vec<u64>, Vec<i64>) {
    let (mut lengths, mut places): (Vec<u64>, Vec<i64>) = (Vec::new(), Vec::new());
    let mut last = None;
    for &at in bytes {
        let joins = last == Some(at - 1) && (cut == 0 || choices.below(cut) > 0);
        match lengths.last_mut() {
            Some(length) if joins => *length += 1,
            _ => {
                lengths.push(1);
                places.push(at);
            }
        }
        last = Some(at);
    }
    (lengths, places)
}

fn check(choices: &mut Choices) -> Result<(), TestCaseError> {
    let depth = 1 + choices.below(5) as u32;
    let (description, map) = tree(choices, depth, 100);
    let original = build(&description).unwrap();
    let bytes = map.bytes();
    // Longer lists have one form only where they are regular; see equal.rs.
    if original.commit().unwrap().segments() > 128 {
        return Ok(());
    }
    let byte = Datatype::named(Named::Byte);
    let mut others = vec![("dup", original.dup().contiguous(1).unwrap())];
    for (name, cut) in [("whole pieces", 0), ("cut pieces", 3), ("single bytes", 1)] {
        let (lengths, places) = pieces(&bytes, choices, cut);
        others.push((name, byte.hindexed(&lengths, &places).unwrap()));
    }
    // Two or three parts, each a list from an origin of its own.
    let (a, b) = (
        choices.below(bytes.len() as u64 + 1) as usize,
        choices.below(bytes.len() as u64 + 1) as usize,
    );
    let (a, b) = (a.min(b), a.max(b));
    let mut parts = Vec::new();
    let mut origins = Vec::new();
    for part in [&bytes[..a], &bytes[a..b], &bytes[b..]] {
        let origin = choices.below(50) as i64 - 25;
        let (lengths, mut places) = pieces(part, choices, 0);
        places.iter_mut().for_each(|place| *place -= origin);
        parts.push(byte.hindexed(&lengths, &places).unwrap());
        origins.push(origin);
    }
    others.push((
        "struct",
        Datatype::structure(&[1; 3], &origins, &parts).unwrap(),
    ));
    for (name, other) in &others {
        prop_assert_eq!(
            original.commit(),
            other.commit(),
            "{} of {} is {}",
            name,
            original.expression(),
            other.expression()
        );
    }
    Ok(())
}

proptest! {
    #[test]
    fn random_layouts_have_one_form_however_they_were_described(
        list in prop::collection::vec(any::<u16>(), 0..120)
    ) {
        check(&mut Choices::new(&list))?;
    }
}
