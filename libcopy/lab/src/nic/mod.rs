// SPDX-License-Identifier: MIT OR Apache-2.0

//! `libcopy-lab nic`: datatypes on a network card. All its times are simulated.

mod chart;
mod command;
mod figures;
mod host;
mod loggops;
mod memory;
mod receive;
mod reproduce;

pub use command::{Nic, SIMULATED, run};
