// SPDX-License-Identifier: MIT OR Apache-2.0

//! How the ranks of a job that have this library find each other, without a call that a rank
//! without it would have to join. `docs/design/bootstrap.md` describes the protocol.
//!
//! Before `PMPI_Init` each process announces itself in a table in shared memory, which the ranks of
//! a job on one machine find by the job's identity. After `PMPI_Init`, which as a rule returns only
//! when all ranks have entered it, each adds its rank. One word of the table decides whether they
//! work together (`COMPLETE`) or not (`GIVEN_UP`); it changes once, by compare-and-swap, so that
//! all find the same. All waits are bounded.
//!
//! The process that comes first owns the table: it holds an abstract Unix socket whose name is the
//! job's identity, and an anonymous file, which the others open through `/proc`. Both go with the
//! process, so that nothing is left over whenever it dies.

pub mod agreement;
pub mod launcher;
pub mod own_collectives;
pub mod rendezvous;
pub mod table;
pub mod world;

pub use agreement::{Meeting, announce, is_owner, meet, withdraw};
pub use launcher::local_ranks;
pub use table::{MOST_MEMBERS, Offer, feature};
pub use world::{World, all_share_processors, close, known, open, shared, summary, world};
