// SPDX-License-Identifier: MIT OR Apache-2.0

//! What all figures are given.

use crate::nic::host::HostTable;
use libcopy::datatype::Layout;
use libcopy_nic::card::{Parameters, Strategy};
use libcopy_nic::plan::{Options, Plan, Refusal, Verdict, plan};
use libcopy_nic::simulate::{Arrival, Received, receive};
use thiserror::Error;

/// Why a figure cannot be made.
#[derive(Debug, Error)]
pub enum Error {
    /// A type that cannot be built.
    #[error(transparent)]
    Datatype(#[from] libcopy::datatype::Error),
    /// A type that a card cannot receive.
    #[error("a card cannot receive the type of the figure")]
    Refused(#[from] Refusal),
    /// A schedule that never ends.
    #[error(transparent)]
    Deadlock(#[from] crate::nic::loggops::Deadlock),
    /// A handler that cannot run.
    #[error(transparent)]
    Core(#[from] libcopy_nic::run::CoreError),
    /// There is nothing to plot.
    #[error("no type of an application can be offloaded")]
    Empty,
}

/// What the figures are made from.
pub struct Study<'a> {
    /// Fewer points.
    pub is_quick: bool,
    /// The baseline.
    pub host: &'a HostTable,
    /// Types of applications, for figures 16 to 18.
    pub applications: &'a [(String, Layout)],
    /// Called after each step with what it was.
    pub progress: &'a mut dyn FnMut(&str),
}

impl std::fmt::Debug for Study<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Study")
            .field("is_quick", &self.is_quick)
            .field("host", &self.host)
            .finish_non_exhaustive()
    }
}

impl Study<'_> {
    pub(super) fn step(&mut self, what: &str) {
        (self.progress)(what);
    }
}

/// `bytes` in blocks of `block` bytes, every other one.
pub(super) fn vector(bytes: u64, block: u64) -> Result<Layout, Error> {
    let (count, stride) = (bytes / block, 2 * block);
    let expression = format!("vector({count}, {block}, {stride}, byte)");
    Ok(Layout::new(&expression.parse()?, 1)?)
}

/// The plan by one strategy.
pub(super) fn planned(
    layout: &Layout,
    parameters: &Parameters,
    strategy: Strategy,
) -> Result<Plan, Error> {
    let options = Options {
        parameters: *parameters,
        strategy: Some(strategy),
        ..Options::default()
    };
    match plan(layout, &options) {
        Verdict::Offload(plan) => Ok(plan),
        Verdict::Host(why) => Err(why.into()),
    }
}

/// A message in order, by one strategy.
pub(super) fn received(
    layout: &Layout,
    parameters: &Parameters,
    strategy: Strategy,
    is_recorded: bool,
) -> Result<Received, Error> {
    let plan = planned(layout, parameters, strategy)?;
    let arrival = Arrival {
        is_recorded,
        ..Arrival::default()
    };
    Ok(receive(layout, &plan, parameters, arrival, |_| {})?)
}
