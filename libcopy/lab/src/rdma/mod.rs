// SPDX-License-Identifier: MIT OR Apache-2.0

//! `libcopy-lab rdma`: what the paper on typed messages over RDMA counts, and a model of its times.

mod command;
mod model;

pub use command::{Rdma, run};
