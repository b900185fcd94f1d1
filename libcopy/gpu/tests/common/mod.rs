// SPDX-License-Identifier: MIT OR Apache-2.0

//! What both tests need: the C++ compiler, random layouts, noise.

mod compile;

use libcopy_datatype::Layout;

// Not all tests need both.
#[allow(unused_imports)]
pub use compile::{compile, driver as stand_in};

use crate::generate::{Choices, build, counted, shifted};

/// Bytes that look random.
pub fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed | 1;
    (0..bytes)
        .map(|_| (shifted(&mut state) >> 56) as u8)
        .collect()
}

/// A random type, a few times.
pub fn random_layout(choices: &mut Choices) -> Layout {
    let (description, _, count) = counted(choices);
    let datatype = build(&description).unwrap_or_else(|e| panic!("{description:?}: {e}"));
    Layout::new(&datatype, count).unwrap()
}
