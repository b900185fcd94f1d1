// SPDX-License-Identifier: MIT OR Apache-2.0

//! Which path an operation takes: the only place that knows thresholds.
//!
//! The values are built in, overridden by what `libcopy tune` measured on this machine, overridden
//! by the environment. Rank 0's policy is used by the whole team, so all ranks always decide alike.
//!
//! Three parts learn while the program runs, each from what can be measured where it decides:
//! [`comparison`](libcopy_datatype::comparison) from every message, [`governor`] from trials that
//! the ranks agree on, [`monitor`] from the time between a program's calls.

#[doc(hidden)]
pub mod backoff;
mod bands;
mod contention;
mod executor;
#[doc(hidden)]
pub mod governor;
mod load;
pub(crate) mod monitor;
mod oversubscription;
mod profile;
mod table;
mod thresholds;
mod words;

pub(crate) use bands::MAX_BANDS;
#[doc(hidden)]
pub use bands::{Band, Bands};
pub use contention::{Contention, Copies};
pub use executor::{Async, Executor};
#[doc(hidden)]
pub use oversubscription::Oversubscription;
pub(crate) use profile::try_directory;
pub use profile::{Profile, RdmaProfile};
pub use thresholds::{Path, Policy};
pub(crate) use words::POLICY_WORDS;
