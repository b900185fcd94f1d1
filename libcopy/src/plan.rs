// SPDX-License-Identifier: MIT OR Apache-2.0

//! Collectives as data: for each rank some stages, each of which moves or combines bytes of other
//! ranks as soon as these have them.
//!
//! A plan is a pure function of the operation, its lengths and root, the [`Tree`] of the ranks and
//! the [`Shape`]. Ranks make their own parts, without asking each other.

mod alike;
mod blocks;
mod call;
pub mod check;
pub mod choose;
mod combine;
mod costs;
mod exchange;
mod executor;
mod held;
mod planner;
mod plans;
pub mod price;
mod scan;
mod signal;
mod stage;
mod tree;

pub use call::{Call, Lengths, Operation, Prefix, Shape, Workers, granule, share};
pub use costs::{Costs, Machine, Resource};
pub use exchange::{
    Descent, Exchange, GroupStep, MOST_OF_DESCENT, MOST_OF_STEP, MOST_STEPS, StepMember,
};
pub use executor::{Execution, Step, Transport};
pub use planner::{Groups, PlanCounts, Planned, Planner};
pub use plans::Plans;
pub use signal::all_have_ended;
pub use stage::{After, Buffer, Piece, Plan, Progress, Source, Span, Stage};
pub use tree::{Group, MOST_IN_CHUNKS, MOST_MEMBERS, Member, Tree};
