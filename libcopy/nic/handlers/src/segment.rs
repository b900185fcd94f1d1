// SPDX-License-Identifier: MIT OR Apache-2.0

//! The states of the handlers.

/// Frames of the handlers' states. Deeper images are walked too; they descend from the root more often.
pub const DEPTH: usize = 8;

/// The state of a walk, 108 bytes: what the paper calls a segment, and, when it is kept, a checkpoint.
pub type Segment = libcopy_walk::State<DEPTH>;
