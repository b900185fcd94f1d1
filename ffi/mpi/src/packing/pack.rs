// SPDX-License-Identifier: MIT OR Apache-2.0

//! `MPI_Pack` and `MPI_Unpack` by libcopy's datatype engine. What is packed is the bytes of the
//! elements, one behind the other, as both libraries pack on machines of one kind, so that either
//! side may be the library's.

use crate::library::panics::caught;
use std::cell::RefCell;
use std::ffi::c_int;
use std::sync::Arc;
use std::thread::LocalKey;

use libcopy::policy::governor::Decision;

use crate::comm::communicator;
use crate::decide::active::active;
use crate::decide::environment::least;
use crate::decide::prior::{LEAST_PACKED, packs_as_fast};
use crate::decide::{threshold, worth};
use crate::library::abi::{Abi, Word};
use crate::library::buffers::{Packing, Side};
use crate::library::count::Count;
use crate::library::stats::{Function, Outcome};
use crate::library::tools::Feature;
use crate::library::{pmpi, stats, tools};
use crate::packing::governor::{Governed, Trial};
use crate::types::datatype::Prepared;
use crate::types::earned::Use;
use crate::types::{datatype, earned};

/// A decision that was made about a handle and a count, as long as types are in this generation.
pub struct Decided<T> {
    handle: Word,
    count: usize,
    generation: u64,
    decision: Result<T, Outcome>,
}

/// The last decisions of a thread.
pub type Last<T> = RefCell<[Option<Decided<T>>; 4]>;

/// No decisions.
pub const fn none<T>() -> Last<T> {
    RefCell::new([const { None }; 4])
}

thread_local! {
    static PACKED: Last<Governed> = const { none() };
    static UNPACKED: Last<Governed> = const { none() };
}

/// Decides about a type and a count. The library says what is wrong with arguments.
#[cold]
fn decide(abi: &Abi, datatype: Word, count: usize) -> Result<Arc<Prepared>, Outcome> {
    if tools::wrapped(Feature::Packing).is_some() {
        return Err(Outcome::Disabled);
    }
    let is_fast = |bytes, pieces| packs_as_fast(abi.implementation(), bytes, pieces);
    let known = datatype::of(abi, datatype).ok_or(Outcome::Arguments)?;
    let are_long = known.pieces > 1 && is_fast(known.size, known.pieces);
    if least().is_none() && (known.dense || are_long) {
        // Whatever their number is.
        worth::decide(datatype & abi.handle, worth::PACKED_THERE, 0);
        return Err(Outcome::NoGain);
    }
    let datatype = known.datatype.as_ref().ok_or(Outcome::Arguments)?;
    let prepared = datatype::layout(datatype, count as u64).ok_or(Outcome::Arguments)?;
    let (bytes, pieces) = (prepared.layout.size(), prepared.layout.segment_count());
    match least() {
        Some(least) if bytes >= least => Ok(prepared),
        None if bytes < LEAST_PACKED => Err(Outcome::Small),
        None if pieces <= 1 || is_fast(bytes, pieces) => Err(Outcome::NoGain),
        None => Ok(prepared),
        _ => Err(Outcome::Small),
    }
}

/// Does `work` with the decision about a type and a count, which `decide` makes if it is not among
/// the last ones and the type has earned it.
#[inline]
pub fn with_decision<T: 'static, R>(
    last: &'static LocalKey<Last<T>>,
    (abi, what): (&Abi, Use),
    decide: impl FnOnce(&Abi, Word, usize) -> Result<T, Outcome>,
    work: impl FnOnce(&Result<T, Outcome>) -> R,
) -> R {
    let (datatype, count) = (what.datatype, what.count);
    let (handle, generation) = (datatype & abi.handle, datatype::generation(datatype));
    let place = (handle >> 4 ^ handle >> 9) % 4;
    last.with_borrow_mut(|last| {
        let last = &mut last[place];
        match last {
            Some(known)
                if known.handle == handle
                    && known.count == count
                    && known.generation == generation =>
            {
                work(&known.decision)
            }
            // Not remembered: nothing says when such a type is freed.
            _ if !earned::by(abi, what) => work(&Err(Outcome::Fresh)),
            _ => {
                let known = last.insert(Decided {
                    handle,
                    count,
                    generation,
                    decision: decide(abi, datatype, count),
                });
                work(&known.decision)
            }
        }
    })
}

/// Does it, if it is worth it; the call is forwarded otherwise, and measured if there is a trial
/// then.
///
/// # Safety
///
/// As the MPI standard says.
#[inline]
unsafe fn try_to<N: Count>(
    call: &Packing<N, N>,
    comm: Word,
    trial: &mut Option<Trial>,
) -> Result<u64, Outcome> {
    let abi = active().ok_or(Outcome::Disabled)?;
    let count = call.count.number().ok_or(Outcome::Arguments)?;
    let what = Use {
        buffer: call.places().0,
        count,
        datatype: call.datatype,
        comm: Some(comm),
    };
    let last = match call.side {
        Side::Packs => &PACKED,
        Side::Unpacks => &UNPACKED,
    };
    let decide = |abi: &Abi, datatype, count| {
        let prepared = decide(abi, datatype, count)?;
        Ok(Governed::new(prepared, call.side))
    };
    with_decision(last, (abi, what), decide, |decision| {
        let governed = decision.as_ref().map_err(|outcome| *outcome)?;
        let prepared = governed.prepared();
        let (decision, measured) = governed.next();
        if decision == Decision::Forward {
            *trial = measured;
            return Err(Outcome::NoGain);
        }
        if call.position.is_null() || call.input.is_null() || call.output.is_null() {
            return Err(Outcome::Arguments);
        }
        communicator::with_last(comm, || abi.handle, |_| ())
            .map_or_else(|| communicator::of(abi, comm).map(|_| ()), Ok)?;
        let bytes = prepared.layout.size();
        let inside = || {
            // SAFETY: the caller's promise.
            let at = unsafe { call.position.read().number()? };
            let (room, end) = (
                call.size.number()?,
                at.checked_add(usize::try_from(bytes).ok()?)?,
            );
            Some((at, N::of(end).filter(|_| end <= room)?))
        };
        let (at, end) = inside().ok_or(Outcome::Arguments)?;
        let (input, output) = (call.input.cast::<u8>(), call.output.cast::<u8>());
        // SAFETY: the caller's promise: the elements are there, the room was compared.
        let work = || unsafe {
            match call.side {
                Side::Packs => {
                    let to = output.wrapping_add(at);
                    prepared.layout.pack_raw(input, 0..bytes, to);
                }
                Side::Unpacks => {
                    let from = input.wrapping_add(at);
                    prepared.layout.unpack_raw(from, 0..bytes, output);
                }
            }
        };
        match measured {
            None => work(),
            Some(trial) => trial.measure(|| (work(), true)),
        }
        // SAFETY: the caller's promise.
        unsafe { call.position.write(end) };
        Ok(bytes)
    })
}

/// Forwards a call, and measures it if it belongs to a trial.
#[inline]
fn forwarded(trial: Option<Trial>, forward: impl FnOnce() -> c_int) -> c_int {
    match trial {
        None => forward(),
        Some(trial) => trial.measure(|| {
            let code = forward();
            (code, code == 0)
        }),
    }
}

/// Whether a call was intercepted; counts it.
#[inline]
pub fn intercepted(function: Function, work: impl FnOnce() -> Result<u64, Outcome>) -> bool {
    match caught(work) {
        Ok(Ok(bytes)) => {
            stats::count(function, Outcome::Intercepted, bytes);
            true
        }
        Ok(Err(outcome)) => {
            stats::count(function, outcome, 0);
            false
        }
        Err(_) => false,
    }
}

/// Whether this is known to be forwarded, or nothing is intercepted, so that nothing is asked about
/// it.
#[inline(always)]
fn is_plain(datatype: Word) -> bool {
    // The last question counts a use, so it is asked where nobody else will.
    !stats::are_wanted()
        && (threshold::size(datatype).is_some() || active().is_none() || is_packed_there(datatype))
}

/// Whether elements of a derived type are forwarded since that was decided, or since the type has
/// no layout; counts a use then.
#[inline(always)]
fn is_packed_there(datatype: Word) -> bool {
    worth::find(datatype & threshold::handle_bits())
        .is_some_and(|entry| entry.is_packed_there() || entry.spares())
}

/// `MPI_Pack` and `MPI_Unpack`
///
/// # Safety
///
/// As the MPI standard says.
#[inline(always)]
pub unsafe fn packed<N: Count>(call: Packing<N, N>, comm: Word) -> c_int {
    let function = match call.side {
        Side::Packs => Function::Pack,
        Side::Unpacks => Function::Unpack,
    };
    let mut trial = None;
    // SAFETY: the caller's promise.
    let work = || unsafe { try_to(&call, comm, &mut trial) };
    if !is_plain(call.datatype) && intercepted(function, work) {
        return 0;
    }
    // SAFETY: the caller's promise.
    forwarded(trial, || unsafe { pmpi::pack_any(call, comm) })
}
