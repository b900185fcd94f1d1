// SPDX-License-Identifier: MIT OR Apache-2.0

//! Which transports this machine has.

use super::kind::TransportReport;
use super::{cma, kmod, stream};

/// What can be said about the transports without a team: for `libcopy info`.
pub fn probe_machine() -> Vec<TransportReport> {
    vec![kmod::probe(), cma::probe(), stream::report()]
}
