// SPDX-License-Identifier: MIT OR Apache-2.0

//! Collectives whose parts differ in length. Each function gives the call's code, or `None` where
//! the call is to be forwarded.

use crate::library::panics::caught_or_none;
use std::ffi::{c_int, c_void};

use libcopy::Parts;
use libcopy::scratch::Scratch;

use crate::bootstrap;
use crate::bootstrap::feature;
use crate::collectives::intercept::{Call, Knows, intercept_vector};
use crate::comm::communicator;
use crate::decide::active::{active, is_in_place, is_same};
use crate::decide::prior::Prior;
use crate::library::abi::Word;
use crate::library::buffers::{BufferV, BufferW, Received, Sent};
use crate::library::count::Count;
use crate::library::failure::Failure;
use crate::library::stats::{Function, Outcome};
use crate::library::{errors, stats};
use crate::types::buffer::{Kind, incoming, outgoing};
use crate::types::parts::Partition;
use crate::types::type_size;

/// `MPI_Gatherv`
///
/// # Safety
///
/// As the MPI standard says.
pub unsafe fn gatherv<N: Count>(
    send: Sent<N>,
    recv: BufferV<*mut c_void, N>,
    root: c_int,
    comm: Word,
) -> Option<c_int> {
    let (mut own, mut all) = (None, None);
    let knows = Knows::Root(root);
    let call = intercept_vector(Function::Gatherv, comm, knows, |abi, known| {
        let is_root = usize::try_from(root) == Ok(known.rank);
        if !(is_root && is_in_place(send.base)) {
            let kind = Kind::of(abi, send.datatype, comm)?;
            kind.bytes(send.count)?;
            own = Some(kind);
        }
        if !is_root {
            return Some(0);
        }
        // SAFETY: the caller's promise: at the root, there is one of each per rank.
        let partition = unsafe { Partition::uniform(abi, comm, known.size, recv) }?;
        let same = own.is_some() && send.datatype == recv.datatype;
        if same && partition.is_at((recv.base, known.rank), (send.base, send.count.number())) {
            if errors::refuses(abi, Function::Gatherv) {
                return None;
            }
            // As if it were `MPI_IN_PLACE`.
            own = None;
        }
        Some(all.insert(partition).largest())
    })?;
    let sent = own.as_ref().and_then(|kind| kind.bytes(send.count));
    let mine = || sent.or(all.as_ref().map(|all| all.bytes(root as usize)));
    let (call, lengths) = call.with_lengths(|| mine().unwrap_or(0))?;
    let bytes = all.as_ref().map_or(sent.unwrap_or(0), Partition::total);
    Some(call.with_bytes(bytes).run(|call| {
        let (root, mut packed) = (root as usize, Scratch::default());
        let bytes = match &own {
            // SAFETY: the caller's promise.
            Some(kind) => unsafe { outgoing(kind, send.base, send.count.elements(), &mut packed)? },
            None => &[],
        };
        let bytes = own.is_some().then_some(bytes);
        let Some(all) = all else {
            return call.group.gatherv(bytes, None, root, &lengths);
        };
        let keep = own.is_none().then_some(root);
        // SAFETY: the caller's promise.
        unsafe {
            all.incoming(recv.base, keep, |all, parts| {
                let into = Some((all, parts));
                call.group.gatherv(bytes, into, root, &lengths)
            })
        }
    }))
}

/// `MPI_Scatterv`
///
/// # Safety
///
/// As the MPI standard says.
pub unsafe fn scatterv<N: Count>(
    send: BufferV<*const c_void, N>,
    recv: Received<N>,
    root: c_int,
    comm: Word,
) -> Option<c_int> {
    let (mut own, mut all) = (None, None);
    let knows = Knows::Root(root);
    let call = intercept_vector(Function::Scatterv, comm, knows, |abi, known| {
        let is_root = usize::try_from(root) == Ok(known.rank);
        if !(is_root && is_in_place(recv.base)) {
            let kind = Kind::of(abi, recv.datatype, comm)?;
            kind.bytes(recv.count)?;
            own = Some(kind);
        }
        if !is_root {
            return Some(0);
        }
        // SAFETY: the caller's promise: at the root, there is one of each per rank.
        let partition = unsafe { Partition::uniform(abi, comm, known.size, send) }?;
        let same = own.is_some() && send.datatype == recv.datatype;
        let part = (send.base.cast_mut(), known.rank);
        if same && partition.is_at(part, (recv.base, recv.count.number())) {
            if errors::refuses(abi, Function::Scatterv) {
                return None;
            }
            // As if it were `MPI_IN_PLACE`.
            own = None;
        }
        Some(all.insert(partition).largest())
    })?;
    let received = own.as_ref().and_then(|kind| kind.bytes(recv.count));
    let mine = || received.or(all.as_ref().map(|all| all.bytes(root as usize)));
    let (call, lengths) = call.with_lengths(|| mine().unwrap_or(0))?;
    let bytes = all.as_ref().map_or(received.unwrap_or(0), Partition::total);
    Some(call.with_bytes(bytes).run(|call| {
        let root = root as usize;
        // SAFETY: the caller's promise.
        unsafe {
            match (&all, &own) {
                (None, None) => Err(Failure::Code(call.abi.error)),
                (None, Some(kind)) => incoming(kind, recv.base, recv.count.elements(), |own| {
                    call.group.scatterv(None, own, root, &lengths)
                }),
                (Some(all), own) => all.outgoing(send.base, |bytes, parts| {
                    let whole = Some((bytes, parts));
                    match own {
                        Some(kind) => incoming(kind, recv.base, recv.count.elements(), |own| {
                            call.group.scatterv(whole, own, root, &lengths)
                        }),
                        None => {
                            // The root keeps its part, so nobody looks at what is received here.
                            let mut unused = Scratch::new(parts.counts[root])?;
                            call.group.scatterv(whole, &mut unused, root, &lengths)
                        }
                    }
                }),
            }
        }
    }))
}

/// `MPI_Allgatherv`
///
/// # Safety
///
/// As the MPI standard says.
pub unsafe fn allgatherv<N: Count>(
    send: Sent<N>,
    recv: BufferV<*mut c_void, N>,
    comm: Word,
) -> Option<c_int> {
    let (mut own, mut all) = (None, None);
    // SAFETY: the caller's promise.
    let knows = Knows::All(unsafe { largest(recv.counts, recv.datatype, comm) }.unwrap_or(0));
    let call = intercept_vector(Function::Allgatherv, comm, knows, |abi, known| {
        if !is_in_place(send.base) {
            let kind = Kind::of(abi, send.datatype, comm)?;
            kind.bytes(send.count)?;
            own = Some(kind);
        }
        // SAFETY: the caller's promise: there is one of each per rank.
        let partition = unsafe { Partition::uniform(abi, comm, known.size, recv) }?;
        let same = own.is_some() && send.datatype == recv.datatype;
        if same && partition.is_at((recv.base, known.rank), (send.base, send.count.number())) {
            if errors::refuses(abi, Function::Allgatherv) {
                return None;
            }
            // As if it were `MPI_IN_PLACE`.
            own = None;
        }
        Some(all.insert(partition).largest())
    })?;
    let all = all?;
    Some(call.with_bytes(all.total()).run(|call| {
        let mut packed = Scratch::default();
        let bytes = match &own {
            // SAFETY: the caller's promise.
            Some(kind) => unsafe { outgoing(kind, send.base, send.count.elements(), &mut packed)? },
            None => &[],
        };
        let keep = own.is_none().then_some(call.group.rank);
        // SAFETY: the caller's promise.
        unsafe {
            all.incoming(recv.base, keep, |all, parts| {
                let bytes = own.is_some().then_some(bytes);
                call.group.allgatherv(bytes, all, parts)
            })
        }
    }))
}

/// Bytes of the largest part; `None` if this is nothing for us.
///
/// # Safety
///
/// There is a count for each rank of the communicator.
unsafe fn largest<N: Count>(counts: *const N, datatype: Word, comm: Word) -> Option<u64> {
    let abi = active()?;
    let known = communicator::of(abi, comm)
        .ok()
        .filter(|known| known.is_plain())?;
    if counts.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    let counts = unsafe { std::slice::from_raw_parts(counts, known.size) };
    let most = counts.iter().filter_map(|count| count.number()).max()?;
    type_size::bytes(abi, most, datatype).map(|bytes| bytes as u64)
}

/// An alltoall with both sides' parts.
///
/// # Safety
///
/// The buffers are what the MPI standard says.
pub unsafe fn exchange(
    call: Call,
    (send, mut outgoing): (*const c_void, Option<Partition>),
    (recv, mut incoming): (*mut c_void, Partition),
) -> c_int {
    call.with_bytes(incoming.total()).run(|call| {
        let own = call.group.rank;
        // What is packed for others need not be for ourselves. Lengths that differ are the team's
        // to refuse.
        if let Some(from) = outgoing.as_mut().filter(|from| {
            (from.packs() || incoming.packs()) && from.bytes(own) == incoming.bytes(own)
        }) {
            // SAFETY: the caller's promise.
            unsafe { from.settle(send, (&mut incoming, recv), own)? };
            // SAFETY: likewise; what the two make is gone when this returns.
            let both = unsafe { (from.to_send(send), incoming.to_receive(recv)) };
            if let (Some(parts), Some(mut places)) = both {
                return Ok(call.group.team().alltoallw(&parts, &mut places)?);
            }
        }
        let receive = |bytes: &[u8], outgoing: Parts<'_>| {
            // SAFETY: the caller's promise.
            unsafe {
                incoming.incoming(recv, None, |all, parts| {
                    let mut team = call.group.team();
                    Ok(team.alltoallv((bytes, outgoing), (all, parts))?)
                })
            }
        };
        // SAFETY: the caller's promise.
        unsafe {
            match &outgoing {
                Some(partition) => partition.outgoing(send, receive),
                None => {
                    // What is sent is overwritten by what is received.
                    let packed = incoming.pack(recv)?;
                    receive(&packed, incoming.packed_parts().parts())
                }
            }
        }
    })
}

/// `MPI_Alltoallv`
///
/// # Safety
///
/// As the MPI standard says.
pub unsafe fn alltoallv<N: Count>(
    send: BufferV<*const c_void, N>,
    recv: BufferV<*mut c_void, N>,
    comm: Word,
) -> Option<c_int> {
    let (mut from, mut to) = (None, None);
    let call = intercept_vector(Function::Alltoallv, comm, Knows::Each, |abi, known| {
        let size = known.size;
        // SAFETY: the caller's promise: there is one of each per rank.
        unsafe {
            if !is_in_place(send.base) {
                from = Some(Partition::uniform(abi, comm, size, send)?);
            }
            let partition = Partition::uniform(abi, comm, size, recv)?;
            if is_same(send.base, recv.base)
                && from.as_ref().is_some_and(|from| from.is_like(&partition))
            {
                let arrays = send.counts == recv.counts && send.datatype == recv.datatype;
                if arrays && errors::refuses(abi, Function::Alltoallv) {
                    return None;
                }
                // As if it were `MPI_IN_PLACE`.
                from = None;
            }
            Some(to.insert(partition).largest())
        }
    })?;
    // SAFETY: the caller's promise.
    Some(unsafe { exchange(call, (send.base, from), (recv.base, to?)) })
}

/// `MPI_Alltoallw` of a rank with itself, which copies from layout to layout what the MPI library
/// packs and unpacks; `None` if this is nothing for us.
///
/// # Safety
///
/// The buffers are what the MPI standard says.
unsafe fn alone<N: Count>(
    send: BufferW<*const c_void, N, N::Place>,
    recv: BufferW<*mut c_void, N, N::Place>,
    comm: Word,
) -> Option<c_int> {
    let function = Function::Alltoallw;
    let work = || {
        let abi = active()?;
        let known = communicator::of(abi, comm)
            .ok()
            .filter(|known| known.is_alone())?;
        bootstrap::world().filter(|world| world.has(feature::COLLECTIVES))?;
        if is_in_place(send.base) || is_same(send.base, recv.base) {
            return None;
        }
        let (agree, largest) = known.irregular(function);
        let pays = |bytes| Prior::of(abi.implementation(), function, bytes).is_anywhere();
        if !agree && !pays(largest) {
            return None;
        }
        // SAFETY: the caller's promise: there is one of each for the only rank.
        let (mut from, mut to) = unsafe {
            let from = Partition::varied(abi, comm, 1, send)?;
            (from, Partition::varied(abi, comm, 1, recv)?)
        };
        let bytes = to.bytes(0);
        if agree {
            known.agreed(function, bytes as u64);
        }
        // Open MPI 4.1 takes places for elements here, not for bytes, and programs may know.
        if from.place(0) != 0 || to.place(0) != 0 {
            return None;
        }
        // Lengths that differ are the library's to refuse.
        if !pays(bytes as u64) || from.bytes(0) != bytes {
            return None;
        }
        // SAFETY: the caller's promise.
        match unsafe { from.settle(send.base, (&mut to, recv.base), 0) } {
            Ok(()) => {}
            // Its functions that pack have told the error handler.
            Err(Failure::Code(code)) => return Some(code),
            Err(Failure::Team(_)) => return None,
        }
        stats::count(function, Outcome::Intercepted, bytes as u64);
        Some(0)
    };
    caught_or_none(work)
}

/// `MPI_Alltoallw`
///
/// # Safety
///
/// As the MPI standard says.
pub unsafe fn alltoallw<N: Count>(
    send: BufferW<*const c_void, N, N::Place>,
    recv: BufferW<*mut c_void, N, N::Place>,
    comm: Word,
) -> Option<c_int> {
    let (mut from, mut to) = (None, None);
    // SAFETY: the caller's promise.
    if let Some(code) = unsafe { alone(send, recv, comm) } {
        return Some(code);
    }
    let call = intercept_vector(Function::Alltoallw, comm, Knows::Each, |abi, known| {
        let size = known.size;
        // SAFETY: the caller's promise: there is one of each per rank.
        unsafe {
            if !is_in_place(send.base) {
                from = Some(Partition::varied(abi, comm, size, send)?);
            }
            let partition = Partition::varied(abi, comm, size, recv)?;
            if is_same(send.base, recv.base)
                && from.as_ref().is_some_and(|from| from.is_like(&partition))
            {
                // As if it were `MPI_IN_PLACE`.
                from = None;
            }
            Some(to.insert(partition).largest())
        }
    })?;
    // SAFETY: the caller's promise.
    Some(unsafe { exchange(call, (send.base, from), (recv.base, to?)) })
}
