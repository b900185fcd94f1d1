// SPDX-License-Identifier: MIT OR Apache-2.0

//! Type expressions that somebody got wrong: mutations of right ones are refused or understood,
//! never a panic, and what is understood holds together.

use libcopy::datatype::{Cursor, Datatype, Layout};
use proptest::prelude::*;

/// Right expressions, one at least of every constructor and of every form of a list.
const SEEDS: &[&str] = &[
    "double",
    "2int",
    "dup(byte)",
    "contiguous(3, int)",
    "vector(3,2,-4,double)",
    "hvector(2, 3, 17, c_double_complex)",
    "indexed([1,0,2],[5,9,0],short)",
    "hindexed([2*3],[0..48:16],int)",
    "indexed_block(2,[0..10:3, 7*2, -9],float)",
    "hindexed_block(1,[8..-8:-4],short_int)",
    "struct([1,2],[0,16],[int,vector(2,1,3,char)])",
    "struct([],[],[])",
    "subarray([5,6],[2,3],[1,2],fortran,resized(-4,12,int))",
    "darray(6,4,[7,5],[block(4),cyclic],[2,3],c,int)",
    "darray(2,1,[4,6],[cyclic(2),none],[2,1],fortran,wchar)",
];

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
    let mut text: Vec<char> = SEEDS[seed % SEEDS.len()].chars().collect();
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
                let outer = SEEDS[usize::from(outer) % SEEDS.len()];
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

/// A range or a repetition in a list may ask for half a gigabyte, and is given it; not here.
fn is_modest(text: &str) -> bool {
    let digits = text
        .split(|c: char| !c.is_ascii_digit())
        .map(str::len)
        .max()
        .unwrap_or(0);
    digits <= 4 || !(text.contains("..") || text.contains('*'))
}

fn holds_together(datatype: &Datatype) -> Result<(), TestCaseError> {
    let text = datatype.expression();
    let again: Datatype = text
        .parse()
        .map_err(|e| TestCaseError::fail(format!("its own expression {text} is refused: {e}")))?;
    prop_assert_eq!(again.expression(), text);
    prop_assert_eq!(again.size(), datatype.size());
    prop_assert_eq!(again.extent(), datatype.extent());
    prop_assert_eq!(again.commit(), datatype.commit());
    let Ok(layout) = Layout::new(datatype, 2) else {
        return Ok(());
    };
    prop_assert_eq!(layout.size(), 2 * datatype.size());
    let bounds = layout.bounds();
    let mut cursor: Cursor = layout.cursor();
    let mut at = 0;
    for _ in 0..100 {
        let Some(segment) = cursor.next_segment(u64::MAX) else {
            prop_assert_eq!(at, layout.size());
            break;
        };
        at += segment.len;
        prop_assert!(segment.offset >= bounds.start);
        prop_assert!(segment.offset + segment.len as i64 <= bounds.end);
    }
    prop_assert!(!layout.form().plan().is_empty());
    Ok(())
}

proptest! {
    #[test]
    fn mutated_expressions_are_refused_or_understood(
        seed in any::<usize>(),
        changes in prop::collection::vec(change(), 0..7),
    ) {
        let text = changed(seed, &changes);
        if is_modest(&text) {
            match text.parse::<Datatype>() {
                Ok(datatype) => holds_together(&datatype)?,
                Err(error) => prop_assert!(!error.to_string().is_empty()),
            }
        }
    }

    #[test]
    fn any_text_is_refused_or_understood(text in "[a-z0-9_(),\\[\\]*.: -]{0,60}") {
        if is_modest(&text) {
            if let Ok(datatype) = text.parse::<Datatype>() {
                holds_together(&datatype)?;
            }
        }
    }
}

#[test]
fn the_seeds_are_right() {
    for seed in SEEDS {
        let datatype: Datatype = seed.parse().unwrap_or_else(|e| panic!("{seed}: {e}"));
        holds_together(&datatype).unwrap_or_else(|e| panic!("{seed}: {e}"));
    }
}
