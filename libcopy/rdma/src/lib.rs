// SPDX-License-Identifier: MIT OR Apache-2.0

//! Typed messages between machines over RDMA, without packing where the card can do it.
//!
//! The method is that of "Network-Assisted Noncontiguous Transfers for GPU-Aware MPI Libraries"
//! (IEEE Micro 2023): the pieces of a layout ([`Iov`]) are divided into windows ([`Cuts`]) that fit
//! into one indirect memory key each; sender and receiver cut at the same bytes, and one WRITE
//! moves what a pair of keys points to. Keys come from a [`pool`], and a [`cache`] keeps them
//! mapped and known to peers. [`Thresholds`] says where that is worth it.

pub mod cache;
pub mod card;
pub mod channel;
pub mod choice;
pub mod counts;
pub mod cut;
pub mod emulated;
pub mod endpoint;
mod error;
pub mod gather;
mod iov;
pub mod keys;
pub mod message;
pub mod pool;
pub mod ranks;
mod receiving;
mod registrations;
pub mod report;
mod sending;
pub mod transfer;
pub mod tune;
pub mod verbs;
mod wire;
pub mod workloads;

pub use choice::{Abilities, Choice, Method, Threshold, Thresholds, ThresholdsError};
pub use cut::{CutRule, Cuts, Limits, Windows, chunk_size, maximal_cuts};
pub use error::{Error, Result};
pub use iov::{Elements, Iov, Shape, iovs, regions};
