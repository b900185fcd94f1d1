// SPDX-License-Identifier: MIT OR Apache-2.0

//! Verbs: devices, registered memory, reliable connections, completions, and mlx5's memory keys.

mod connection;
mod device;
mod endpoint;
mod library;
mod mkey;
pub mod sys;

pub use connection::{Address, Connection, Options, Wait};
pub use device::{Device, Gid, Region, Regions, device_names, inline_entries};
pub use endpoint::shared_keys;
pub use library::{Mlx5, Verbs};
pub use mkey::Mkey;
