// SPDX-License-Identifier: MIT OR Apache-2.0

//! Cases computed by hand, random cases beside a reference, and what holds for every rate.

mod by_hand;
mod random;
mod reference;
