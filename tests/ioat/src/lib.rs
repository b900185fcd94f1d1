// SPDX-License-Identifier: MIT OR Apache-2.0

//! Copy engines for a virtual machine: Intel I/OAT ("Crystal Beach DMA" v3.2), modelled in a
//! process beside QEMU and driven by the unmodified `ioatdma` driver of the guest's stock kernel.
//!
//! ```text
//! guest: dmaengine ── ioatdma ── PCI function ┄┄ QEMU vfio-user-pci
//!                                                      │ one socket per function
//! this process: device ── function ── channel ── engine (a thread) ── memory of the guest
//!                  └── mailbox ── control ── faults, counters, bandwidth
//! ```
//!
//! | module | owns |
//! |---|---|
//! | [`topology`] | how many engines and channels, what they are called |
//! | [`registers`] | offsets and bits, each with its source |
//! | [`descriptor`] | descriptors in memory |
//! | [`channel`] | a channel: registers, chain, completions, what goes wrong |
//! | [`function`] | a PCI function: device registers around a channel, its interrupt |
//! | [`engine`] | a thread that copies for its channels in turn |
//! | [`limiter`] | an engine's bandwidth |
//! | [`fault`] | faults on request |
//! | [`memory`] | the guest's memory |
//! | [`pci`] | configuration space |
//! | [`mailbox`] | requests from inside the guest |
//! | [`control`] | requests and answers |
//! | [`client`] | who asks, on the host or in the guest |
//! | [`device`] | a function behind a vfio-user socket |
//! | [`model`] | all engines together |

#![allow(
    clippy::missing_errors_doc,
    reason = "no crate but the model and its tests uses it"
)]

mod access;
pub mod channel;
pub mod client;
pub mod control;
pub mod descriptor;
pub mod device;
pub mod engine;
pub mod fault;
pub mod function;
pub mod limiter;
pub mod mailbox;
pub mod memory;
pub mod model;
pub mod pci;
pub mod registers;
pub mod topology;

#[cfg(test)]
mod rig;
