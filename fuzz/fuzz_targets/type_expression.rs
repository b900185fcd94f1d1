// SPDX-License-Identifier: MIT OR Apache-2.0

//! Bytes that may be a type expression.

#![no_main]

#[path = "../../libcopy/datatype/tests/datatype/feed.rs"]
mod feed;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| feed::feed(bytes));
