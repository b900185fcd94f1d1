// SPDX-License-Identifier: MIT OR Apache-2.0

//! Memory without room for a list that is as long as a type says: an error each time, wherever the
//! allocation is, and never the end of the program.

#![allow(missing_docs)]

mod refusing;

use libcopy_datatype::canonical::Form;
use libcopy_datatype::{Datatype, Error, Layout, Named, Order};

use refusing::{refuse, refuse_each};

/// What makes a type, and its name.
type Case = (&'static str, Box<dyn Fn() -> Result<Datatype, Error>>);

/// Places of blocks: the gap behind each is one of `gaps`, in no order.
fn places(lengths: &[u64], gaps: &[u64]) -> Vec<i64> {
    let (mut at, mut state) = (0, 1u64);
    let mut next = |length: &u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let place = at;
        at += (length + gaps[(state >> 33) as usize % gaps.len()]) as i64;
        place
    };
    lengths.iter().map(&mut next).collect()
}

fn lists(n: usize) -> Vec<Case> {
    let double = Datatype::named(Named::Double);
    let pair = double.vector(2, 1, 2).unwrap().resized(0, 24).unwrap();
    let row = double.vector(4, 1, 3).unwrap();
    let ones = vec![1; n];
    let mixed: Vec<u64> = (0..n as u64).map(|i| 1 + i * i % 7).collect();
    let some_empty: Vec<u64> = (0..n as u64).map(|i| i * i % 5).collect();
    let wide = |list: &[i64]| list.iter().map(|at| at << 24).collect::<Vec<i64>>();
    let irregular = places(&ones, &[1, 2, 5, 3, 8]);
    let mut all: Vec<Case> = Vec::new();
    for (name, child, places) in [
        ("equal", &double, irregular.clone()),
        ("equal, far apart", &double, wide(&irregular)),
        (
            "equal, some beside each other",
            &double,
            places(&ones, &[0, 2]),
        ),
        ("pairs", &pair, irregular.clone()),
        ("rows", &row, places(&ones, &[20, 21, 25])),
        ("regular", &double, (0..n as i64).map(|i| 3 * i).collect()),
        (
            "periodic",
            &double,
            (0..n as i64)
                .map(|i| i / 100 * 1000 + i % 100 * (i % 100))
                .collect(),
        ),
        (
            "runs",
            &double,
            (0..n as i64)
                .map(|i| 2 * i + i / 20 * (i / 20 % 7))
                .collect(),
        ),
        (
            "short runs",
            &double,
            (0..n as i64)
                .map(|i| 2 * i + i / 3 * 5 + i / 3 % 2)
                .collect(),
        ),
    ] {
        let child = child.clone();
        all.push((name, Box::new(move || child.indexed_block(1, &places))));
    }
    for (name, lengths, gaps) in [
        ("listed", &ones, [1, 2, 5]),
        ("mixed", &mixed, [1, 2, 5]),
        ("mixed, some beside each other", &mixed, [0, 2, 5]),
        ("some empty", &some_empty, [1, 0, 5]),
    ] {
        let (child, lengths) = (double.clone(), lengths.clone());
        let places = places(&lengths, &gaps);
        let far = wide(&places);
        let (again, same) = (child.clone(), lengths.clone());
        all.push((name, Box::new(move || child.indexed(&lengths, &places))));
        all.push((name, Box::new(move || again.hindexed(&same, &far))));
    }
    // Nests that many members are of: the general way, by runs, and written out.
    let boxes: Vec<Datatype> = (0..40)
        .map(|i| {
            double
                .subarray(&[8, 9], &[2 + i % 5, 3], &[i % 3, i % 4], Order::C)
                .unwrap()
        })
        .collect();
    let tall = double
        .subarray(&[64, 9], &[60, 3], &[0, 1], Order::C)
        .unwrap();
    let listed = double.indexed(&[1, 2, 3], &[0, 4, 9]).unwrap();
    for (name, kinds) in [
        ("struct of one type", vec![boxes[0].clone()]),
        ("struct of boxes", boxes.clone()),
        ("struct of tall boxes", vec![tall.clone(), boxes[0].clone()]),
        ("struct of lists", vec![listed, tall, boxes[1].clone()]),
    ] {
        let ones = ones.clone();
        let at: Vec<i64> = places(&ones, &[6000, 6100, 7300]);
        all.push((
            name,
            Box::new(move || {
                let kinds = (0..ones.len()).map(|i| &kinds[i * i % 11 % kinds.len()]);
                Datatype::structure(&ones, &at, kinds)
            }),
        ));
    }
    all
}

/// Everything that is made of a type's lists.
fn used(made: Datatype) -> Result<[Datatype; 2], Error> {
    made.commit()?;
    let again = Datatype::unflatten(&made.flatten()?)?;
    let one = Layout::new(&again, 1)?;
    let words = one.form().to_words()?;
    let form = Form::from_words(&words)?;
    Layout::from_repeated_form(&form, 3, made.extent() + 1)?;
    let many = Layout::new(&again, 3)?;
    // An image has room for 2 GiB.
    if many.bounds().end < 1 << 31 {
        many.image()?;
    }
    Ok([made, again])
}

#[test]
fn every_list_of_a_type_may_find_no_room() {
    let mut refused = 0;
    let is_all = std::env::var("LIBCOPY_TEST_ALL").is_ok_and(|asked| asked == "1");
    // More than 65,536 pieces are treated in another way, which takes long: every third list, if
    // not all are asked for.
    for (n, step) in [(3000, 1), (70_000, if is_all { 1 } else { 3 })] {
        for (name, make) in lists(n) {
            let no_room = |error: &Error| match error {
                Error::NoRoom(none) => Some(*none),
                _ => None,
            };
            let tried = refuse_each(name, step, || used(make()?), no_room);
            assert!(tried > 0, "{name} has no long list");
            // Each stands for those that are left out. How many lists there are is up to the
            // processor, too, whose kernels want some of them.
            refused += step as i64 * tried;
        }
    }
    assert!(refused > 1000, "{refused}");
}

#[test]
fn pieces_of_which_nothing_is_known_may_overlap() {
    let mut refused = 0;
    for (name, make) in lists(3000) {
        let truth = make().unwrap().commit().unwrap().is_disjoint();
        let (mut number, mut was_refused) = (0, true);
        while was_refused {
            let made = make().unwrap();
            let form = made.commit().unwrap();
            let is_disjoint;
            (is_disjoint, was_refused) = refuse(number, || form.is_disjoint());
            assert!(truth || !is_disjoint, "{name}, block {number}");
            number += 1;
        }
        refused += number - 1;
    }
    assert!(refused > 20, "{refused}");
}
