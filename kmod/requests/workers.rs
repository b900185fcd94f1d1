// SPDX-License-Identifier: GPL-2.0

//! What stands in the place of `engine/engines.rs` in a module that was built without engines
//! (`LIBCOPY_ENGINES=n`): one engine whose channels are the user workers of the processes that
//! submit ([`crate::requests::copier`]).

use crate::base::params::{self, EngineChoice};
use crate::domain::member::Member;
use crate::requests::job::Job;
use crate::requests::request::Request;
use crate::uapi::{self, ENGINE_WORKER};
use kernel::prelude::*;
use kernel::sync::Arc;

/// There is nothing to keep.
pub(crate) struct Guard;

/// What a request is given to: the worker that it has already.
pub(crate) struct Worker;

/// # Safety
///
/// None; that of `engines.rs` has some.
pub(crate) unsafe fn init() -> Result<Guard> {
    Ok(Guard)
}

fn on() -> bool {
    params::engine() != EngineChoice::Off
}

/// Number of engines.
pub(crate) fn count() -> u32 {
    on().into()
}

/// Performs [`uapi::ENGINE_INFO`].
pub(crate) fn info(index: u32) -> Result<uapi::EngineInfo> {
    if index >= count() {
        return Err(ENOENT);
    }
    let mut info = uapi::EngineInfo {
        kind: ENGINE_WORKER,
        node: -1,
        channels: 1,
        acquired: 1,
        alignment: 1,
        max_transfer: u64::MAX,
        ..Default::default()
    };
    info.driver[..7].copy_from_slice(b"libcopy");
    info.device[..6].copy_from_slice(b"worker");
    Ok(info)
}

/// Chooses the engine for a request.
///
/// - `ENODEV`: there is none (`engine=off`).
pub(crate) fn choose(_: &Member) -> Result<(u32, Worker)> {
    on().then_some((0, Worker)).ok_or(ENODEV)
}

/// Has the submitter's worker do the request.
pub(crate) fn submit(_: &Worker, request: &Arc<Request>) {
    Request::take_over(request);
}

/// There is nothing that could stop working.
///
/// - `ENODEV`: always.
pub(crate) fn pass_on(_: &Arc<Request>) -> Result {
    Err(ENODEV)
}
