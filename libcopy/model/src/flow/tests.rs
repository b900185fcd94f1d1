// SPDX-License-Identifier: MIT OR Apache-2.0

//! Cases computed by hand, random cases beside a reference, large ones, and what holds for every
//! rate.

mod by_hand;
mod fair;
mod large;
mod random;
mod reference;
