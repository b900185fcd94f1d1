// SPDX-License-Identifier: MIT OR Apache-2.0

//! From one layout straight to another one, without packing in between.

mod bounce;
mod buffer;
mod fill;
mod joint;
mod pairs;
mod regular;
mod select;
mod stage;
mod thresholds;
mod walk;
mod weave;
mod zip;
