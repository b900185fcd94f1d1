// SPDX-License-Identifier: MIT OR Apache-2.0

//! Why something cannot be simulated.

// The message of each variant says what it is and what its fields are.
#![allow(missing_docs)]

/// Why resources and activities cannot be simulated. Activities are named by their index.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum FlowError {
    #[error("resource '{name}': a capacity of {value} bytes/s; it must be finite and above 0")]
    Capacity { name: String, value: f64 },
    #[error("activity {activity}: work of {value} bytes; it must be finite and not below 0")]
    Work { activity: usize, value: f64 },
    #[error("activity {activity}: a latency of {value} s; it must be finite and not below 0")]
    Latency { activity: usize, value: f64 },
    #[error(
        "activity {activity}: a rate of at most {value} bytes/s; it must be finite and above 0, \
         or none"
    )]
    RateCap { activity: usize, value: f64 },
    #[error(
        "activity {activity}: a weight of {value} on resource '{name}'; it must be finite and \
         above 0; leave out resources that are not used"
    )]
    Weight {
        activity: usize,
        name: String,
        value: f64,
    },
    #[error("activity {activity} uses resource {resource}, but there are only {count}")]
    UnknownResource {
        activity: usize,
        resource: usize,
        count: usize,
    },
    #[error("activity {activity} comes after activity {after}, but there are only {count}")]
    UnknownActivity {
        activity: usize,
        after: usize,
        count: usize,
    },
    #[error(
        "activity {activity} has work of {work} bytes, but neither a resource nor a cap on its \
         rate; it would take no time: give it one, or no work"
    )]
    Unlimited { activity: usize, work: f64 },
    #[error("activity {activity} comes, through others or at once, after itself")]
    Cycle { activity: usize },
    #[error(
        "activity {activity} would end at a time too large for a number; its work or its weights \
         are too large, or capacities too small"
    )]
    Endless { activity: usize },
}
