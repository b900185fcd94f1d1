// SPDX-License-Identifier: MIT OR Apache-2.0

//! Persistent collectives (MPI 4.1, section 6.13): what their requests start.
//!
//! The program has the library's own persistent request. Each start of it is either the library's,
//! or a nonblocking collective of ours; then the library's request stays inactive, and is only what
//! the program holds. The starts of one request come one after the other on each rank, but in any
//! order with those of other requests, so each request has a group of its own, in which they are
//! counted.

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::time::{Duration, Instant};

use libcopy::policy::governor::Decision;

use crate::collectives::governor;
use crate::collectives::nonblocking::operation::Operation;
use crate::comm::nonblocking_group::NonblockingGroup;
use crate::decide::classes::PersistentClass;
use crate::decide::prior::Order;
use crate::library::abi::{Abi, Word};
use crate::library::requests::{Role, Table};
use crate::library::stats;
use crate::library::stats::{Function, Outcome};

/// Starts a collective of ours, or says what went wrong, of which the error handler has heard.
pub type Begin = dyn Fn() -> Result<Operation, c_int>;

/// What a persistent request starts.
struct Plan {
    function: Function,
    members: Arc<NonblockingGroup>,
    class: Arc<PersistentClass>,
    order: Order,
    begin: Box<Begin>,
}

// SAFETY: the addresses in it are the program's, which has lent them until the request is freed,
// whichever of its threads starts it.
unsafe impl Send for Plan {}
// SAFETY: as above; nothing in it changes.
unsafe impl Sync for Plan {}

static PLANS: Table<Arc<Plan>> = Table::new(Role::PersistentCollective);

/// Whether any persistent request may start a collective of ours.
#[inline(always)]
pub fn any() -> bool {
    Role::PersistentCollective.exists()
}

/// Has the starts of a request be ours: `function` with `bytes` bytes, in a group of its own;
/// `sharing` persistent requests share what trials may cost, unless the order is fixed.
pub(super) fn keep(
    handle: Word,
    members: Arc<NonblockingGroup>,
    (function, bytes): (Function, usize),
    (sharing, order): (usize, Order),
    begin: Box<Begin>,
) {
    let ranks = members.group.size();
    let plan = Plan {
        function,
        class: PersistentClass::new(function, ranks, bytes as u64, sharing),
        members,
        order,
        begin,
    };
    // What was there is not dropped while the table is locked: it may free datatypes.
    drop(PLANS.insert(handle, Arc::new(plan)));
}

/// The program frees a request.
pub fn forget(handle: Word) {
    drop(PLANS.remove(handle));
}

/// The world ends: no request is started any more.
pub fn clear() {
    PLANS.clear();
}

/// What becomes of a start.
pub enum Start {
    /// It is the library's.
    Forwarded,
    /// It is ours, and under way.
    Begun(Box<Running>),
    /// It has failed with this code.
    Failed(c_int),
}

/// Starts a request, if its starts may be ours.
///
/// # Safety
///
/// As the MPI standard says of `MPI_Start`, for a request that is not null.
pub unsafe fn start(abi: &Abi, request: *mut c_void) -> Start {
    // SAFETY: the caller's promise.
    let handle = unsafe { abi.handle_at(request, 0) } & abi.handle;
    let Some(plan) = PLANS.get(handle) else {
        return Start::Forwarded;
    };
    let is_free = plan.order == Order::Free;
    if is_free && governor::decide_persistent(&plan.members, &plan.class) == Decision::Forward {
        stats::count(plan.function, Outcome::NoGain, 0);
        return Start::Forwarded;
    }
    if !plan.members.group.admits_next() {
        stats::count(plan.function, Outcome::BrokenTeam, 0);
        return Start::Forwarded;
    }
    match (plan.begin)() {
        Ok(operation) => Start::Begun(Box::new(Running {
            operation: Some(operation),
            looked: Instant::now(),
        })),
        Err(code) => Start::Failed(code),
    }
}

/// How often to look who lives.
const LOOK: Duration = Duration::from_millis(100);
/// Bytes that are moved at most before whatever else is under way gets on.
const PORTION: usize = 1 << 20;

/// A start that is under way.
pub struct Running {
    operation: Option<Operation>,
    looked: Instant,
}

impl Running {
    /// Goes on with it; its code, once, when it is over.
    pub fn advance(&mut self, abi: &Abi) -> Option<c_int> {
        let operation = self.operation.as_mut()?;
        let moved = operation.advance(abi, PORTION);
        if !moved && self.looked.elapsed() > LOOK {
            self.looked = Instant::now();
            operation.look(abi);
        }
        if !operation.is_over() {
            return None;
        }
        let code = self.operation.take()?.conclude(abi);
        Some(code)
    }
}
