// SPDX-License-Identifier: MIT OR Apache-2.0

//! Verbs: devices, registered memory, reliable connections, completions, and mlx5's memory keys.

mod connection;
mod device;
mod library;
mod mkey;
mod mlx5;
pub mod sys;

pub use connection::{Address, Completion, Connection, Options, Wait};
pub use device::{Device, Gid, Region, Regions, device_names, inline_entries};
pub use library::{Mlx5, Verbs};
pub use mkey::Mkey;
pub use mlx5::UmrCard;
