// SPDX-License-Identifier: MIT OR Apache-2.0

//! A simulated network card whose cores run a handler per packet, with its network and its host
//! interface.
//!
//! The simulation is discrete and deterministic: equal inputs give equal traces.

mod events;
mod handlers;
mod iovec;
mod matching;
mod memory;
mod model;
mod network;
mod outbound;
mod parameters;
mod pcie;
mod random;

pub use events::Events;
pub use handlers::{Handlers, Issue, Packet, Policy, Strategy, Work};
pub use iovec::{ENTRY, Scattered, scatter};
pub use matching::{Entry, List, MatchLists};
pub use memory::{Allocation, NicMemory};
pub use model::{Card, Context, Message, Outcome, Path, Report};
pub use network::arrival_order;
pub use outbound::{Sender, departures, pieces_before};
pub use parameters::{NS, Parameters, Ps};
pub use pcie::DmaQueue;
pub use random::Random;
