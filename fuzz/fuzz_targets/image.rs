// SPDX-License-Identifier: MIT OR Apache-2.0

//! Words that may be an image of a layout.

#![no_main]

#[path = "../../libcopy/walk/tests/images/mod.rs"]
mod images;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    images::feed(bytes);
});
