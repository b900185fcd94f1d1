// SPDX-License-Identifier: MIT OR Apache-2.0

//! Blocking collectives; nonblocking ones are in [`nonblocking`].

pub mod barrier;
pub mod governor;
pub mod intercept;
pub mod irregular;
pub mod neighbours;
pub mod nonblocking;
pub mod persistent;
pub mod reductions;
pub mod regular;
pub mod repeated;
pub mod small_calls;
