// SPDX-License-Identifier: MIT OR Apache-2.0

//! The governor: decides for each class of calls, while the program runs, whether it is intercepted
//! or forwarded.
//!
//! A class is a set of calls that are expected to cost alike: one function, on one communicator,
//! with messages of one power of two. It starts with what the thresholds say, tries the other way
//! with a few calls, and from then on takes the way that costs less. Trials are repeated, so that a
//! change is noticed. This module has neither a clock nor communication: the caller measures, sums
//! over the ranks, and hands in the sums.
//!
//! All ranks of a communicator have to take the same way. They do: [`Governor::step`] depends only
//! on the number of the call and on earlier decisions, and [`Governor::decide`] is called by all
//! ranks before the same call with the same sums.
//!
//! # The cost of trials
//!
//! A trial has as many calls of either way, in a pseudo-random order, so that a rhythm of the
//! program is not taken for a difference between the ways. The next trial is put off until all
//! trials of the slower way together have cost at most 1 % of the calls' time since the faster way
//! was chosen. The first trial has one call of each way, after [`FIRST`] calls. What it will cost
//! is not known before it, so in a class of fewer than some hundred calls it can be more than 1 %.
//!
//! # The statistic
//!
//! The interquartile mean of a trial's times, averaged over trials with the number of calls as
//! weight. It ignores calls in which a process was descheduled. The weight of earlier trials is
//! limited to what telling the two ways apart needs: where they differ much, earlier trials are
//! soon forgotten, and a change is soon noticed.

mod class;
mod estimate;
mod pace;
mod trials;

#[cfg(test)]
mod tests;
#[cfg(test)]
mod traces;

pub use class::{Class, Moment, Next, OwnTime, Sampler, Timed};
pub use estimate::Cost;
pub use pace::{Account, Paced, Together, sums};
pub use trials::{Decision, FIRST, Governor, MOST, Slot, Step, Times};
