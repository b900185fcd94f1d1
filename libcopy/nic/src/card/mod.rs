// SPDX-License-Identifier: MIT OR Apache-2.0

//! A simulated network card whose cores run a handler per packet, with its network and its host interface.
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
mod prototype;
mod random;

pub use events::Events;
pub use handlers::{Handlers, Issue, Packet, Policy, Strategy, Work};
pub use iovec::{ENTRY, Scattered, scatter};
pub use matching::{Entry, List, MatchLists};
pub use memory::{Allocation, NicMemory};
pub use model::{Card, Context, Message, Outcome, Path, Report};
pub use network::arrival_order;
pub use outbound::{Sender, departures};
pub use parameters::{NS, Parameters, Ps};
pub use pcie::DmaQueue;
pub use prototype::{Costs, TableHandlers, pieces_before};
pub use random::Random;
