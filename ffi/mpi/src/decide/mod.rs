// SPDX-License-Identifier: MIT OR Apache-2.0

//! Ours or the library's: whether this library intercepts anything, what it intercepts before
//! anything is learned ([`prior`]), and what is learned of classes of calls.

pub mod active;
pub mod classes;
pub mod environment;
pub mod price;
pub mod prior;
pub mod threshold;
pub mod waits;
pub mod worth;

#[cfg(test)]
mod traces;
