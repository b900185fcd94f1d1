// SPDX-License-Identifier: MIT OR Apache-2.0

//! Type expressions that somebody got wrong: mutations of right ones are refused or understood,
//! never a panic, and what is understood holds together.

use crate::feed::{feed, holds_together};
use libcopy_datatype::Datatype;
use proptest::prelude::*;

/// Right expressions, one at least of every constructor and of every form of a list; `scripts/fuzz`
/// starts with them too.
fn seeds() -> Vec<&'static str> {
    include_str!("../../../../fuzz/seeds.txt").lines().collect()
}

/// One of them, by a number.
fn pick(number: usize) -> &'static str {
    let seeds = seeds();
    seeds[number % seeds.len()]
}

/// Pieces that mean something somewhere.
const WORDS: &[&str] = &[
    "(",
    ")",
    "[",
    "]",
    ",",
    "..",
    ":",
    "*",
    "-",
    "-1",
    "0",
    "1",
    "99",
    "4294967296",
    "9223372036854775807",
    "-9223372036854775808",
    "9223372036854775808",
    "c",
    "fortran",
    "block",
    "cyclic(",
    "none",
    "int",
    "vector(",
    "struct(",
    "resized(",
    "é",
    "\0",
    " ",
    "subarray(",
];

#[derive(Clone, Debug)]
enum Change {
    Remove(u16, u8),
    Insert(u16, u8),
    Repeat(u16, u8),
    Nest(u8),
    Swap(u16, u16),
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        (any::<u16>(), 1u8..6).prop_map(|(at, n)| Change::Remove(at, n)),
        (any::<u16>(), any::<u8>()).prop_map(|(at, word)| Change::Insert(at, word)),
        (any::<u16>(), 1u8..9).prop_map(|(at, n)| Change::Repeat(at, n)),
        any::<u8>().prop_map(Change::Nest),
        (any::<u16>(), any::<u16>()).prop_map(|(a, b)| Change::Swap(a, b)),
    ]
}

fn changed(seed: usize, changes: &[Change]) -> String {
    let mut text: Vec<char> = pick(seed).chars().collect();
    for change in changes {
        let place = |at: u16| usize::from(at) % (text.len() + 1);
        match *change {
            Change::Remove(at, n) => {
                let at = place(at);
                text.drain(at..(at + usize::from(n)).min(text.len()));
            }
            Change::Insert(at, word) => {
                let at = place(at);
                let word = WORDS[usize::from(word) % WORDS.len()];
                text.splice(at..at, word.chars());
            }
            Change::Repeat(at, n) => {
                let at = place(at);
                let part = text[at..(at + usize::from(n)).min(text.len())].to_vec();
                text.splice(at..at, part);
            }
            Change::Nest(outer) => {
                let outer = pick(usize::from(outer));
                let inner: String = text.iter().collect();
                text = outer.replacen("int", &inner, 1).chars().collect();
            }
            Change::Swap(a, b) => {
                let (a, b) = (place(a), place(b));
                if a < text.len() && b < text.len() {
                    text.swap(a, b);
                }
            }
        }
    }
    text.into_iter().collect()
}

proptest! {
    #[test]
    fn mutated_expressions_are_refused_or_understood(
        seed in any::<usize>(),
        changes in prop::collection::vec(change(), 0..7),
    ) {
        feed(changed(seed, &changes).as_bytes());
    }

    #[test]
    fn any_text_is_refused_or_understood(text in "[a-z0-9_(),\\[\\]*.: -]{0,60}") {
        feed(text.as_bytes());
    }

    #[test]
    fn any_bytes_are_refused_or_understood(
        bytes in prop::collection::vec(any::<u8>(), 0..80),
        seed in any::<usize>(),
        at in any::<usize>(),
    ) {
        let mut text = pick(seed).as_bytes().to_vec();
        let at = at % (text.len() + 1);
        feed(&bytes);
        text.splice(at..at, bytes);
        feed(&text);
    }
}

#[test]
fn the_seeds_are_right() {
    for seed in seeds() {
        let datatype: Datatype = seed.parse().unwrap_or_else(|e| panic!("{seed}: {e}"));
        holds_together(&datatype);
    }
}
