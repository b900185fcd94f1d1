// SPDX-License-Identifier: MIT OR Apache-2.0

//! Support code of the tests that need several processes or the kernel module.

pub mod abi;
