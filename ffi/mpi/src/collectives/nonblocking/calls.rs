// SPDX-License-Identifier: MIT OR Apache-2.0

//! Nonblocking collectives, and what a persistent request starts. What all ranks find alike
//! decides whether a call is intercepted: the number of bytes, the communicator, and whether its
//! ranks have met. Each function gives the call's code, or `None` where it is to be forwarded.
//! Parts that differ in length are in [`crate::collectives::nonblocking::irregular`].

use crate::library::panics::caught;
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use libcopy::collective::nonblocking::operation::Shape;

use crate::collectives::intercept::{
    Length, agrees, intercept_nonblocking, intercept_persistent, plausible, rank_of,
};
use crate::collectives::nonblocking::operation::{Operation, Own};
use crate::collectives::nonblocking::{persistent, requests};
use crate::collectives::reductions::Elements;
use crate::comm::communicator::Comm;
use crate::comm::nonblocking_group::NonblockingGroup;
use crate::decide::active::{active, is_in_place, is_same};
use crate::decide::prior::Order;
use crate::library::abi::{Abi, Word};
use crate::library::buffers::{Address, Buffer, Received, Reduction, Sent};
use crate::library::count::Count;
use crate::library::stats::{Function, Outcome};
use crate::library::{async_guard, errors, stats};
use crate::types::buffer::Kind;

/// A call that is intercepted.
pub(super) struct Intercepted {
    pub abi: &'static Abi,
    pub members: Arc<NonblockingGroup>,
    function: Function,
    pub shape: Shape,
    /// What this rank has to do with, where parts differ in length.
    pub moves: Option<usize>,
    comm: Word,
    request: Request,
    /// Persistent requests that share what trials may cost.
    sharing: usize,
    /// Whether the governor may have the library do starts of a persistent request.
    order: Order,
}

/// What says where a call's buffers are.
type WithBuffers = dyn Fn(&Intercepted, &mut Own) -> Result<bool, c_int>;

/// What stands for a call.
#[derive(Clone, Copy)]
enum Request {
    /// A request in this variable, for a call that is started at once.
    New(*mut c_void),
    /// A persistent request of the library's.
    Persistent(Word),
}

impl Intercepted {
    /// Starts it, or keeps it for the starts of its persistent request. `buffers` says where our
    /// buffers are, and whether our own part has to be copied.
    pub fn start(
        self,
        elements: Option<Elements>,
        buffers: impl Fn(&Intercepted, &mut Own) -> Result<bool, c_int> + 'static,
    ) -> c_int {
        self.start_with(elements, Box::new(buffers))
    }

    fn start_with(self, elements: Option<Elements>, buffers: Box<WithBuffers>) -> c_int {
        let variable = match self.request {
            Request::New(variable) => variable,
            Request::Persistent(handle) => {
                let (members, what) = (self.members.clone(), (self.function, self.shape.bytes));
                let how = (self.sharing, self.order);
                let start = move || {
                    self.started(|| {
                        let mut own = Own::default();
                        let copies_own = buffers(&self, &mut own)?;
                        // SAFETY: the program has lent the buffers of its request until this start
                        // is complete.
                        Ok(unsafe { self.operation(own, copies_own, elements.clone()) })
                    })
                };
                persistent::keep(handle, members, what, how, Box::new(start));
                return 0;
            }
        };
        self.started(|| {
            let mut own = Own::default();
            let copies_own = buffers(&self, &mut own)?;
            // SAFETY: the program has lent the buffers of its call until the request is complete.
            let code = unsafe {
                requests::start(self.abi, &self.members, variable, || {
                    self.operation(own, copies_own, elements)
                })
            };
            match code {
                0 => Ok(()),
                code => Err(code),
            }
        })
        .err()
        .unwrap_or(0)
    }

    /// Begins it.
    ///
    /// # Safety
    ///
    /// The buffers have the parts of the shape until it is over.
    unsafe fn operation(
        &self,
        own: Own,
        copies_own: bool,
        elements: Option<Elements>,
    ) -> Operation {
        let what = (self.function, self.shape);
        // SAFETY: the caller's promise.
        unsafe { Operation::begin(&self.members, what, own, copies_own, elements) }
    }

    /// What `start` starts, counted; the error handler hears of it if it fails.
    fn started<T>(&self, start: impl FnOnce() -> Result<T, c_int>) -> Result<T, c_int> {
        let started = caught(|| {
            // Others read and write our memory from now on.
            async_guard::before()?;
            start()
        });
        let code = match started {
            Ok(Ok(started)) => {
                let bytes = self.moves.unwrap_or(self.shape.bytes);
                stats::count(self.function, Outcome::Intercepted, bytes as u64);
                return Ok(started);
            }
            Ok(Err(code)) => code,
            Err(_) => self.abi.error,
        };
        // The others count this operation, and wait for us in it; what nobody has begun the library
        // does.
        self.members.group.table.close();
        self.members
            .group
            .table
            .broken()
            .store(1, Ordering::Release);
        // A persistent request may outlive its communicator.
        let comm = match self.request {
            Request::New(_) => self.comm,
            Request::Persistent(_) => self.abi.world,
        };
        Err(errors::raise(comm, code))
    }

    /// Refuses a second pair of count and datatype that is not as many bytes as the first.
    pub fn agree(&self, kind: &Kind, count: impl Count) -> Result<(), c_int> {
        let agrees = agrees(self.function, self.shape.bytes, kind, count);
        agrees.then_some(()).ok_or(self.abi.truncate)
    }

    fn is_root(&self) -> bool {
        self.members.group.rank == self.shape.root
    }

    /// Our rank, and how many there are.
    pub fn place(&self) -> (usize, usize) {
        (self.members.group.rank, self.members.group.size())
    }

    /// Has `own` send `count` elements.
    ///
    /// # Safety
    ///
    /// They are readable until the operation is over.
    pub unsafe fn send(
        &self,
        own: &mut Own,
        kind: &Kind,
        base: *const c_void,
        count: usize,
    ) -> Result<(), c_int> {
        // SAFETY: the caller's promise.
        unsafe { own.send(&self.members.group, kind, base, count) }
    }

    /// Has `own` receive `count` elements, without those of `keep`, which are there already.
    ///
    /// # Safety
    ///
    /// They are writable until the operation is over.
    pub unsafe fn receive(
        &self,
        own: &mut Own,
        kind: &Kind,
        (base, count): (*mut c_void, usize),
        keep: Option<(usize, usize)>,
    ) -> Result<(), c_int> {
        // SAFETY: the caller's promise.
        unsafe { own.receive((self.abi, &self.members.group), kind, base, count, keep) }
    }
}

/// Where our part of a buffer is that has one of `count` elements for each rank.
fn part<N: Count>(
    buffer: &Buffer<impl Address, N>,
    kind: &Kind,
    about: About,
) -> Option<*const c_void> {
    let rank = rank_of(active()?, about.comm)?;
    let index = buffer.count.number()?.checked_mul(rank)?;
    Some(kind.element(buffer.base.get(), index))
}

/// An address that only the root has, and that has to be possible there.
fn at_root(at: Option<Option<*const c_void>>) -> Option<Option<*const c_void>> {
    match at {
        Some(at) => Some(Some(at?)),
        None => Some(None),
    }
}

/// How our own part is sent or received, `None` if it stays where it is, since it is there already:
/// `part` is where it is in the buffer for all ranks, if we have that. Nothing if the library
/// refuses it.
fn own_part<K, N: Count>(
    abi: &Abi,
    about: About,
    (send, recv): (&Sent<N>, &Received<N>),
    (own, part): (impl Address, Option<*const c_void>),
    kind: Option<K>,
) -> Option<Option<K>> {
    let Some(part) = part else {
        return Some(kind);
    };
    let same = kind.is_some()
        && send.datatype == recv.datatype
        && send.count.number() == recv.count.number()
        && send.count.number() != Some(0);
    if !(same && is_same(own.get(), part.cast_mut())) {
        Some(kind)
    } else if errors::refuses(abi, about.function) {
        None
    } else {
        Some(None)
    }
}

/// What a call is besides its buffers.
#[derive(Clone, Copy)]
pub struct About {
    pub(super) function: Function,
    pub(super) root: c_int,
    pub(super) comm: Word,
    request: Request,
}

impl About {
    /// A call that leaves its request in this variable.
    pub fn once(function: Function, root: c_int, comm: Word, request: *mut c_void) -> About {
        About {
            function,
            root,
            comm,
            request: Request::New(request),
        }
    }

    /// A call that has made the persistent request `handle`.
    pub fn persistent(function: Function, root: c_int, comm: Word, handle: Word) -> About {
        About {
            function,
            root,
            comm,
            request: Request::Persistent(handle),
        }
    }

    /// A datatype, for as long as its request may be started.
    pub(super) fn kind(&self, abi: &Abi, datatype: Word) -> Option<Kind> {
        let kind = Kind::of(abi, datatype, self.comm)?;
        match self.request {
            Request::New(_) => Some(kind),
            Request::Persistent(_) => kind.kept(abi).ok(),
        }
    }

    /// That datatype if `wanted`, otherwise nothing; `None` if it is not ours to move.
    fn kind_if(&self, wanted: bool, abi: &Abi, datatype: Word) -> Option<Option<Kind>> {
        if wanted {
            self.kind(abi, datatype).map(Some)
        } else {
            Some(None)
        }
    }
}

/// Decides about a call whose parts are as many bytes; `kinds` looks at the buffers.
fn decide<K>(
    about: About,
    (count, datatype): (Option<usize>, Word),
    op: Option<Word>,
    kinds: impl FnOnce(&'static Abi, bool) -> Option<K>,
) -> Option<(Intercepted, K)> {
    let kinds = |abi, known: &Comm, root: usize| kinds(abi, known.rank == root);
    decide_any(about, (Length::All(count), datatype), op, kinds, |_| 0)
}

/// Decides; `kinds` looks at the buffers, and is given the root; `largest` says the bytes of the
/// largest part of what it finds, where ranks know only their own.
pub(super) fn decide_any<K>(
    about: About,
    what: (Length, Word),
    op: Option<Word>,
    kinds: impl FnOnce(&'static Abi, &Comm, usize) -> Option<K>,
    largest: fn(&K) -> u64,
) -> Option<(Intercepted, K)> {
    let (mut kinds, mut found) = (Some(kinds), None);
    let intercepted = decided(about, what, op, &mut |abi, known, root| {
        let kinds = kinds.take()?(abi, known, root)?;
        Some(largest(found.insert(kinds)))
    })?;
    Some((intercepted, found?))
}

/// As [`decide_any`], which keeps what is found.
fn decided(
    about: About,
    (length, datatype): (Length, Word),
    op: Option<Word>,
    look: &mut dyn FnMut(&'static Abi, &Comm, usize) -> Option<u64>,
) -> Option<Intercepted> {
    let (mut root, mut sharing) = (0, 0);
    let mut look = |abi: &'static Abi, known: &Comm| {
        root = plausible(abi, about.comm, about.root)?;
        look(abi, known, root)
    };
    let is_regular = matches!(length, Length::All(_));
    let (abi, members, bytes) = match (about.request, length) {
        (Request::New(_), length) => {
            let what = (length, datatype);
            intercept_nonblocking(about.function, about.comm, what, op, &mut look)?
        }
        (Request::Persistent(_), Length::All(count)) => {
            let pair = (count, datatype);
            let made = intercept_persistent(about.function, about.comm, pair, op, &mut look)?;
            let (abi, members, bytes, requests) = made;
            sharing = requests;
            (abi, members, bytes)
        }
        // The table has none of these.
        (Request::Persistent(_), Length::Own) => return None,
    };
    let shape = Shape {
        op: about.function.op()?,
        root,
        bytes: if is_regular { bytes } else { 0 },
    };
    Some(Intercepted {
        abi,
        order: Order::of(abi, members.group.size(), datatype, op),
        members,
        function: about.function,
        shape,
        moves: None,
        comm: about.comm,
        request: about.request,
        sharing,
    })
}

/// `MPI_Ibcast`, `MPI_Bcast_init`
pub unsafe fn bcast<N: Count + 'static>(buffer: Received<N>, about: About) -> Option<c_int> {
    let (intercepted, kind) = decide(about, buffer.pair(), None, |abi, _| {
        about.kind(abi, buffer.datatype)
    })?;
    Some(intercepted.start(None, move |intercepted, own| {
        let count = buffer.count.elements();
        // SAFETY: the caller's promise.
        unsafe {
            if intercepted.is_root() {
                intercepted.send(own, &kind, buffer.base, count)?
            } else {
                intercepted.receive(own, &kind, (buffer.base, count), None)?
            }
        }
        Ok(false)
    }))
}

/// `MPI_Igather`, `MPI_Gather_init`
pub unsafe fn gather<N: Count + 'static>(
    send: Sent<N>,
    recv: Received<N>,
    about: About,
) -> Option<c_int> {
    let in_place = is_in_place(send.base);
    let pair = if in_place { recv.pair() } else { send.pair() };
    let (intercepted, (own_kind, all)) = decide(about, pair, None, |abi, is_root| {
        let all = about.kind_if(is_root, abi, recv.datatype)?;
        let own = about.kind_if(!in_place, abi, send.datatype)?;
        let at = all.as_ref().map(|all| part(&recv, all, about));
        let at = at_root(at)?;
        own_part(abi, about, (&send, &recv), (send.base, at), own).map(|own| (own, all))
    })?;
    Some(intercepted.start(None, move |intercepted, own| {
        let (rank, size) = intercepted.place();
        // SAFETY: the caller's promise.
        unsafe {
            if let Some(kind) = &own_kind {
                intercepted.send(own, kind, send.base, send.count.elements())?;
            }
            let Some(all) = &all else {
                return match &own_kind {
                    Some(_) => Ok(false),
                    None => Err(intercepted.abi.error),
                };
            };
            intercepted.agree(all, recv.count)?;
            let each = recv.count.elements();
            let keep = own_kind.is_none().then_some((each * rank, each));
            intercepted.receive(own, all, (recv.base, each * size), keep)?;
        }
        Ok(own_kind.is_some())
    }))
}

/// `MPI_Iscatter`, `MPI_Scatter_init`
pub unsafe fn scatter<N: Count + 'static>(
    send: Sent<N>,
    recv: Received<N>,
    about: About,
) -> Option<c_int> {
    let in_place = is_in_place(recv.base);
    let pair = if in_place { send.pair() } else { recv.pair() };
    let (intercepted, (all, own_kind)) = decide(about, pair, None, |abi, is_root| {
        let all = about.kind_if(is_root, abi, send.datatype)?;
        let own = about.kind_if(!in_place, abi, recv.datatype)?;
        let at = all.as_ref().map(|all| part(&send, all, about));
        let at = at_root(at)?;
        own_part(abi, about, (&send, &recv), (recv.base, at), own).map(|own| (all, own))
    })?;
    Some(intercepted.start(None, move |intercepted, own| {
        // SAFETY: the caller's promise.
        unsafe {
            if let Some(all) = &all {
                intercepted.agree(all, send.count)?;
                let elements = send.count.elements() * intercepted.members.group.size();
                intercepted.send(own, all, send.base, elements)?;
            }
            if let Some(kind) = &own_kind {
                intercepted.receive(own, kind, (recv.base, recv.count.elements()), None)?;
            }
        }
        Ok(intercepted.is_root() && own_kind.is_some())
    }))
}

/// `MPI_Iallgather`, `MPI_Allgather_init`
pub unsafe fn allgather<N: Count + 'static>(
    send: Sent<N>,
    recv: Received<N>,
    about: About,
) -> Option<c_int> {
    let in_place = is_in_place(send.base);
    let (intercepted, (own_kind, all)) = decide(about, recv.pair(), None, |abi, _| {
        let own = about.kind_if(!in_place, abi, send.datatype)?;
        if own.is_some() {
            send.count.number()?;
        }
        let all = about.kind(abi, recv.datatype)?;
        let at = part(&recv, &all, about)?;
        own_part(abi, about, (&send, &recv), (send.base, Some(at)), own).map(|own| (own, all))
    })?;
    Some(intercepted.start(None, move |intercepted, own| {
        let ((rank, size), each) = (intercepted.place(), recv.count.elements());
        let keep = own_kind.is_none().then_some((each * rank, each));
        // SAFETY: the caller's promise.
        unsafe {
            intercepted.receive(own, &all, (recv.base, each * size), keep)?;
            match &own_kind {
                Some(kind) => {
                    intercepted.agree(kind, send.count)?;
                    intercepted.send(own, kind, send.base, send.count.elements())?;
                }
                None => own.send_from_received(intercepted.shape.bytes * rank),
            }
        }
        Ok(own_kind.is_some())
    }))
}

/// `MPI_Ialltoall`, `MPI_Alltoall_init`; in place, it is forwarded.
pub unsafe fn alltoall<N: Count + 'static>(
    send: Sent<N>,
    recv: Received<N>,
    about: About,
) -> Option<c_int> {
    if is_in_place(send.base) {
        stats::count(about.function, Outcome::Arguments, 0);
        return None;
    }
    let (intercepted, (kind, all)) = decide(about, recv.pair(), None, |abi, _| {
        let own = about.kind(abi, send.datatype)?;
        let all = about.kind(abi, recv.datatype)?;
        // In place, every rank's part would have to be copied first.
        send.count.number()?;
        let at = Some(recv.base.cast_const());
        let in_place = own_part(abi, about, (&send, &recv), (send.base, at), Some(()))?.is_none();
        (!in_place).then_some((own, all))
    })?;
    Some(intercepted.start(None, move |intercepted, own| {
        intercepted.agree(&kind, send.count)?;
        let size = intercepted.members.group.size();
        // SAFETY: the caller's promise.
        unsafe {
            intercepted.receive(own, &all, (recv.base, recv.count.elements() * size), None)?;
            intercepted.send(own, &kind, send.base, send.count.elements() * size)?;
        }
        Ok(true)
    }))
}

/// `MPI_Ireduce`, `MPI_Reduce_init`
pub unsafe fn reduce<N: Count + 'static>(reduction: Reduction<N>, about: About) -> Option<c_int> {
    // SAFETY: the caller's promise.
    unsafe { reduced(reduction, about, |rank, root| rank == root) }
}

/// `MPI_Iallreduce`, `MPI_Allreduce_init`
pub unsafe fn allreduce<N: Count + 'static>(
    reduction: Reduction<N>,
    about: About,
) -> Option<c_int> {
    // SAFETY: the caller's promise.
    unsafe { reduced(reduction, about, |_, _| true) }
}

/// `MPI_Iscan`
pub unsafe fn scan<N: Count + 'static>(reduction: Reduction<N>, about: About) -> Option<c_int> {
    // SAFETY: the caller's promise.
    unsafe { reduced(reduction, about, |_, _| true) }
}

/// `MPI_Iexscan`
pub unsafe fn exscan<N: Count + 'static>(reduction: Reduction<N>, about: About) -> Option<c_int> {
    // SAFETY: the caller's promise.
    unsafe { reduced(reduction, about, |rank, _| rank > 0) }
}

/// A reduction whose result those ranks get for which `gets` says so, given the root as well.
unsafe fn reduced<N: Count + 'static>(
    reduction: Reduction<N>,
    about: About,
    gets: fn(usize, usize) -> bool,
) -> Option<c_int> {
    let (length, op) = (Length::All(reduction.count.number()), Some(reduction.op));
    let what = (length, reduction.datatype);
    let kinds = |abi: &'static Abi, known: &Comm, root: usize| {
        let what = (reduction, gets(known.rank, root));
        let elements = Elements::between(abi, about.function, what, about.comm)?;
        // Predefined operations are for predefined datatypes, which nobody frees.
        let stays = elements.0.kind().is_named();
        (stays || matches!(about.request, Request::New(_))).then_some(elements)
    };
    let (intercepted, (elements, same)) = decide_any(about, what, op, kinds, |_| 0)?;
    let start = move |elements: Elements| {
        move |intercepted: &Intercepted, own: &mut Own| {
            let (kind, count) = (elements.kind(), reduction.count.elements());
            let gets = gets(intercepted.place().0, intercepted.shape.root);
            // SAFETY: the caller's promise.
            unsafe {
                if gets {
                    let keep = same.then_some((0, count));
                    intercepted.receive(own, kind, (reduction.recv, count), keep)?;
                }
                match (same, gets) {
                    (true, true) => own.send_from_received(0),
                    // The first rank of an exclusive scan in place.
                    (true, false) => intercepted.send(own, kind, reduction.recv, count)?,
                    (false, _) => intercepted.send(own, kind, reduction.send, count)?,
                }
            }
            Ok(false)
        }
    };
    Some(intercepted.start(Some(elements.clone()), start(elements)))
}
