// SPDX-License-Identifier: MIT OR Apache-2.0

//! The figures of the paper's evaluation, simulated, each with the paper's claims.

mod applications;
mod claim;
mod evaluation;
mod micro;
mod study;

pub use claim::{Claim, Figure, Held, Series, csv};
pub use evaluation::{figures, steps};
pub use study::Study;
