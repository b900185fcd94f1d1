// SPDX-License-Identifier: MIT OR Apache-2.0

//! A fluid simulator: activities move bytes at rates that are a max-min fair share of the
//! resources they use.
//!
//! An activity waits for others, waits for its latency, and then moves its work. All that move
//! have equal priority. Their rates are those of *progressive filling*: the rates of all grow
//! together until a resource is saturated; those that use it keep their rate, the others go on
//! (Bertsekas and Gallager, *Data Networks*, section 6.5.2). Whenever an activity begins or ends
//! to move, the rates change, and only then; so the simulator goes from one such event to the next.
//!
//! What makes it fast:
//! - Activities that use the same resources with the same weights are a *class*: they have the same
//!   rate at all times, so one variable stands for all of them. An activity of a class ends when
//!   the bytes that the class has moved per member reach a level that is known when it begins.
//! - Rates change only where something changes. Those classes are shared out anew that use a
//!   saturated resource together with one that began or ended; all others keep their rates. Where
//!   that is not fair on a resource that both use, the others that use it are added, and so on.
//! - Events at one time (within a relative 1e-11) are one change.
//!
//! ```
//! use libcopy_model::flow::{Activity, Resources, simulate};
//!
//! let mut resources = Resources::new();
//! let link = resources.add("link", 10.0);
//! let copy = |work| Activity { work, uses: vec![(link, 1.0)], ..Activity::default() };
//! let outcome = simulate(&resources, &[copy(10.0), copy(30.0)])?;
//! // Both at 5 bytes/s until the first ends; then the second has the link for itself.
//! assert_eq!(outcome.ends, [2.0, 4.0]);
//! # Ok::<(), libcopy_model::flow::FlowError>(())
//! ```

mod activities;
mod classes;
mod error;
mod sharing;
mod simulate;
#[cfg(test)]
mod tests;

pub use activities::{Activity, Outcome, Resources};
pub use error::FlowError;
pub use simulate::simulate;
