// SPDX-License-Identifier: MIT OR Apache-2.0

//! Reductions with predefined operations, which are commutative. The MPI library does the
//! arithmetic (`MPI_Reduce_local`), so every operation on every type is its own; we bring the
//! operands together. Operations of the user's own and datatypes with gaps are forwarded. Each
//! function gives the call's code, or `None` where the call is to be forwarded.

use std::cell::Cell;
use std::ffi::c_int;
use std::ptr;

use libcopy::Team;
use libcopy::datatype::Class;
use libcopy::scratch::Scratch;

use crate::collectives::intercept::{Call, intercept_reduction, plausible, rank_of};
use crate::collectives::repeated::{self, Key, is_memory};
use crate::comm::communicator;
use crate::comm::hierarchy::{Combine, What};
use crate::decide::active::{active, is_in_place, is_same};
use crate::library::abi::{Abi, Word};
use crate::library::buffers::Reduction;
use crate::library::count::Count;
use crate::library::failure::Failure;
use crate::library::predefined::Predefined;
use crate::library::stats::Function;
use crate::library::{errors, pmpi};
use crate::types::buffer::{Kind, MOST, incoming, outgoing};
use crate::types::datatype;

thread_local! {
    /// The predefined datatype and operation that this thread has used together last.
    static ACCEPTED: Cell<(Word, Word)> = const { Cell::new((0, 0)) };
}

/// The elements of a reduction.
#[derive(Clone)]
pub struct Elements {
    kind: Kind,
    datatype: Word,
    op: Word,
}

impl Elements {
    /// The elements of a reduction, and whether it is as if it were in place. `None` also if the
    /// library refuses that the buffers are the same. `gets` says whether this rank receives.
    pub fn between<C: Copy>(
        abi: &Abi,
        function: Function,
        (reduction, gets): (Reduction<C>, bool),
        comm: Word,
    ) -> Option<(Elements, bool)> {
        let Reduction {
            send, datatype, op, ..
        } = reduction;
        let elements = Elements::of(abi, datatype, op, comm)?;
        let recv = if gets {
            reduction.recv
        } else {
            ptr::null_mut()
        };
        let same = is_same(send, recv);
        if same && errors::refuses_reduction(function, (datatype, op), elements.size()) {
            return None;
        }
        Some((elements, same || is_in_place(send)))
    }

    /// `None` if they are not ours to combine.
    pub fn of(abi: &Abi, datatype: Word, op: Word, comm: Word) -> Option<Elements> {
        if !abi.is_predefined(op) {
            return None;
        }
        let kind = Kind::of(abi, datatype, comm).filter(Kind::is_dense)?;
        let is_known = kind.is_named() && ACCEPTED.get() == (datatype, op);
        if !is_known {
            Self::ask(datatype, op)?;
            if kind.is_named() {
                ACCEPTED.set((datatype, op));
            }
        }
        Some(Elements { kind, datatype, op })
    }

    /// `None` if the operation is not for the datatype.
    #[cold]
    fn ask(datatype: Word, op: Word) -> Option<()> {
        let mut nothing = [0u128; 2];
        let to = nothing.as_mut_ptr().cast();
        let from = nothing.as_ptr().wrapping_add(1).cast();
        // An operation that is not for this datatype is an error, found here without any elements.
        // SAFETY: no elements are touched.
        let answer = unsafe { pmpi::reduce_local(from, to, 0, datatype, op) };
        (answer == 0).then_some(())
    }

    /// How their bytes lie.
    pub fn kind(&self) -> &Kind {
        &self.kind
    }

    /// Bytes of one.
    pub fn size(&self) -> usize {
        self.kind.size()
    }

    /// Combines `len` bytes of whole elements with those at `to`, at most [`MOST`]; returns the
    /// library's code.
    ///
    /// # Safety
    ///
    /// Both have the operation's bytes, `to` writable.
    pub unsafe fn add(&self, from: *const u8, to: *mut u8, len: usize) -> c_int {
        let count = (len / self.kind.size()) as c_int;
        // SAFETY: the caller's promise.
        unsafe { pmpi::reduce_local(from.cast(), to.cast(), count, self.datatype, self.op) }
    }

    /// What they are, and how they are combined.
    fn what(&self) -> What {
        What {
            datatype: self.datatype,
            op: self.op,
            size: self.kind.size(),
        }
    }
}

/// Adds numbers to others.
type Add = fn(&[u8], &mut [u8]);

/// [`Add`] for numbers of a type.
macro_rules! add {
    ($number:ty, $add:expr) => {
        |from, to| {
            const BYTES: usize = size_of::<$number>();
            let number =
                |bytes: &[u8]| <$number>::from_ne_bytes(bytes.try_into().unwrap_or_default());
            for (from, to) in from.chunks_exact(BYTES).zip(to.chunks_exact_mut(BYTES)) {
                let sum: $number = $add(number(from), number(to));
                to.copy_from_slice(&sum.to_ne_bytes());
            }
        }
    };
}

/// Sums that need no library: of them there is one result, and the library takes longer to find out
/// what to do than to do it.
const SUMS: [Add; 4] = [
    add!(f64, std::ops::Add::add),
    add!(f32, std::ops::Add::add),
    add!(u64, u64::wrapping_add),
    add!(u32, u32::wrapping_add),
];

/// Longer sums the library may do with wider registers.
const SHORT_SUM: usize = 512;

/// Which of [`SUMS`] is `MPI_SUM` of a datatype.
static SUMMED: Predefined = Predefined::new();

/// What adds elements, if they are combined by addition.
#[inline]
fn sum_of(what: What) -> Option<Add> {
    let abi = active().filter(|abi| abi.same(what.op, abi.sum))?;
    let known = SUMMED.get(what.datatype & abi.handle);
    SUMS.get(known.unwrap_or_else(|| learn_sum(abi, what)))
        .copied()
}

#[cold]
fn learn_sum(abi: &Abi, what: What) -> usize {
    let named = datatype::predefined(abi, what.datatype);
    let found = match named.map(|named| named.elements()) {
        Some([one]) if one.size as usize == what.size => match (one.class, one.size) {
            (Class::Float, 8) => 0,
            (Class::Float, 4) => 1,
            (Class::Signed | Class::Unsigned, 8) => 2,
            (Class::Signed | Class::Unsigned, 4) => 3,
            _ => SUMS.len(),
        },
        _ => SUMS.len(),
    };
    SUMMED.put(what.datatype & abi.handle, found);
    found
}

/// Has `work` combine elements with what it is given, in a call of `bytes` bytes: these decide what
/// adds them, not how they are divided.
fn combine(
    what: What,
    bytes: usize,
    work: impl FnOnce(Combine<'_>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut code = 0;
    let add = if bytes <= SHORT_SUM {
        sum_of(what)
    } else {
        None
    };
    let mut some = |from: &[u8], to: &mut [u8]| {
        let count = (from.len() / what.size) as c_int;
        let (from, to) = (from.as_ptr().cast(), to.as_mut_ptr().cast());
        // SAFETY: both have this many elements, which are dense.
        let answer = unsafe { pmpi::reduce_local(from, to, count, what.datatype, what.op) };
        if answer != 0 {
            code = answer;
        }
    };
    work(&mut |from, to| {
        if let Some(add) = add {
            return add(from, to);
        }
        if from.len() <= MOST {
            return some(from, to);
        }
        let most = MOST / what.size * what.size;
        for (from, to) in from.chunks(most).zip(to.chunks_mut(most)) {
            some(from, to);
        }
    })?;
    match code {
        0 => Ok(()),
        code => Err(Failure::Code(code)),
    }
}

/// Has a team do a reduction of elements of `size` bytes: to a root, where `recv` is what it gets,
/// or to all.
fn reduce_in(
    team: &mut Team,
    (function, root): (Function, Option<c_int>),
    own: Option<&[u8]>,
    recv: Option<&mut [u8]>,
    (size, combine): (usize, Combine<'_>),
) -> Result<(), Failure> {
    match (function, root, recv) {
        (_, Some(root), recv) => team.reduce_bytes(own, recv, root as usize, size, combine)?,
        (Function::Scan, _, Some(recv)) => team.scan_bytes(own, recv, size, combine)?,
        (Function::Exscan, _, Some(recv)) => team.exscan_bytes(own, recv, size, combine)?,
        (_, _, recv) => team.allreduce_bytes(own, recv.unwrap_or_default(), size, combine)?,
    }
    Ok(())
}

/// `MPI_Reduce`
///
/// # Safety
///
/// As the MPI standard says.
pub unsafe fn reduce<N: Count>(reduction: Reduction<N>, root: c_int, comm: Word) -> Option<c_int> {
    // SAFETY: the caller's promise.
    unsafe { combined(Function::Reduce, reduction, Some(root), comm) }
}

/// `MPI_Allreduce`
///
/// # Safety
///
/// As the MPI standard says.
pub unsafe fn allreduce<N: Count>(reduction: Reduction<N>, comm: Word) -> Option<c_int> {
    // SAFETY: the caller's promise.
    unsafe { combined(Function::Allreduce, reduction, None, comm) }
}

/// `MPI_Scan`
///
/// # Safety
///
/// As the MPI standard says.
pub unsafe fn scan<N: Count>(reduction: Reduction<N>, comm: Word) -> Option<c_int> {
    // SAFETY: the caller's promise.
    unsafe { combined(Function::Scan, reduction, None, comm) }
}

/// `MPI_Exscan`
///
/// # Safety
///
/// As the MPI standard says.
pub unsafe fn exscan<N: Count>(reduction: Reduction<N>, comm: Word) -> Option<c_int> {
    // SAFETY: the caller's promise.
    unsafe { combined(Function::Exscan, reduction, None, comm) }
}

/// Such a reduction like one before.
///
/// # Safety
///
/// As the MPI standard says.
#[inline]
unsafe fn combined_again<N: Count>(
    function: Function,
    key: &Option<Key>,
    reduction: Reduction<N>,
    root: Option<c_int>,
) -> Option<Option<c_int>> {
    let Reduction { send, recv, .. } = reduction;
    let gets = |rank| root.is_none_or(|root| root as usize == rank);
    let in_place = is_in_place(send);
    let usual = |rank, _| {
        let (is_sent, receives) = (is_memory(send), gets(rank));
        let is_apart = || in_place || is_sent && !is_same(send, recv);
        is_sent && !receives || receives && is_memory(recv) && is_apart()
    };
    repeated::run(key, usual, |team, bytes| {
        let what = What {
            datatype: reduction.datatype,
            op: reduction.op,
            size: bytes / reduction.count.elements().max(1),
        };
        // SAFETY: dense elements are their bytes, of which there are some; the caller's promise.
        let (own, recv) = unsafe {
            let own = || std::slice::from_raw_parts(send.cast::<u8>(), bytes);
            let all = || std::slice::from_raw_parts_mut(recv.cast::<u8>(), bytes);
            ((!in_place).then(own), gets(team.rank()).then(all))
        };
        combine(what, bytes, |combine| {
            reduce_in(team, (function, root), own, recv, (what.size, combine))
        })
    })
}

/// A reduction of as many elements as each rank contributes, which the root gets, or every rank.
///
/// # Safety
///
/// As the MPI standard says.
#[inline]
unsafe fn combined<N: Count>(
    function: Function,
    reduction: Reduction<N>,
    root: Option<c_int>,
    comm: Word,
) -> Option<c_int> {
    let (pair, op) = (reduction.pair(), Some(reduction.op));
    let key = Key::of(function, comm, [pair; 2], (root.unwrap_or(0), reduction.op));
    // SAFETY: the caller's promise.
    let again = unsafe { combined_again(function, &key, reduction, root) };
    if let Some(code) = again {
        return code;
    }
    let (mut found, mut gets) = (None, true);
    let call = intercept_reduction(function, comm, pair, (op, &key), |abi| {
        if let Some(root) = root {
            gets = rank_of(abi, comm)? == plausible(abi, comm, root)?;
        }
        found = Some(Elements::between(abi, function, (reduction, gets), comm)?);
        Some(())
    })?;
    let (elements, same) = found?;
    call.remember(key, [(&elements.kind, reduction.count.elements()); 2]);
    Some(call.run(|call| {
        let (count, kind) = (reduction.count.elements(), &elements.kind);
        let mut packed = Scratch::default();
        let own = if gets && same {
            None
        } else {
            // SAFETY: the caller's promise.
            Some(unsafe { outgoing(kind, reduction.send, count, &mut packed)? })
        };
        let work = |recv: Option<&mut [u8]>| {
            let what = elements.what();
            combine(what, call.bytes, |combine| {
                match (&call.group.nodes, root) {
                    (None, _) => {
                        let mut team = call.group.team();
                        let how = (what.size, combine);
                        reduce_in(&mut team, (function, root), own, recv, how)
                    }
                    (Some(nodes), Some(root)) => {
                        let mut team = call.group.team();
                        nodes.reduce(&mut team, own, recv, root as usize, (what, combine))
                    }
                    (Some(nodes), None) => {
                        let (mut team, recv) = (call.group.team(), recv.unwrap_or_default());
                        nodes.allreduce(&mut team, own, recv, (what, combine))
                    }
                }
            })
        };
        if !gets {
            return work(None);
        }
        // SAFETY: the caller's promise.
        unsafe { incoming(kind, reduction.recv, count, |recv| work(Some(recv))) }
    }))
}

/// Combines and hands out slices of these lengths, in elements.
///
/// # Safety
///
/// The buffers are what the MPI standard says.
unsafe fn scatter<C>(
    call: Call,
    (elements, in_place): (Elements, bool),
    Reduction { send, recv, .. }: Reduction<C>,
    counts: &[usize],
) -> c_int {
    call.run(|call| {
        let (kind, total) = (elements.kind.clone(), counts.iter().sum());
        let own = counts[call.group.rank];
        let lengths: Vec<usize> = counts.iter().map(|count| count * kind.size()).collect();
        let mut packed = Scratch::default();
        let from = if in_place { recv.cast_const() } else { send };
        // SAFETY: the caller's promise.
        let all = unsafe { outgoing(&kind, from, total, &mut packed)? };
        let reduce = |recv: &mut [u8]| {
            combine(elements.what(), all.len(), |combine| {
                let mut team = call.group.team();
                Ok(team.reduce_scatter_bytes(all, recv, &lengths, elements.size(), combine)?)
            })
        };
        if in_place {
            // The result goes to where others read our elements until the end.
            let mut result = Scratch::new(own * kind.size())?;
            reduce(&mut result)?;
            // SAFETY: the caller's promise.
            unsafe { kind.unpack_any(&result, recv, own)? };
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe { incoming(&kind, recv, own, reduce) }
    })
}

/// `MPI_Reduce_scatter`
///
/// # Safety
///
/// As the MPI standard says.
pub unsafe fn reduce_scatter<N: Count>(
    reduction: Reduction<*const N>,
    comm: Word,
) -> Option<c_int> {
    // SAFETY: the caller's promise.
    let counts = unsafe { numbers(reduction.count, comm) };
    let total = counts.as_ref().and_then(|all| {
        let mut all = all.iter();
        all.try_fold(0, |sum: usize, n| sum.checked_add(*n))
    });
    let (function, pair) = (Function::ReduceScatter, (total, reduction.datatype));
    let mut elements = None;
    let call = intercept_reduction(function, comm, pair, (Some(reduction.op), &None), |abi| {
        elements = Some(Elements::between(abi, function, (reduction, true), comm)?);
        Some(())
    })?;
    // SAFETY: the caller's promise.
    Some(unsafe { scatter(call, elements?, reduction, &counts?) })
}

/// The counts of all ranks; `None` if this is nothing for us.
///
/// # Safety
///
/// There is one for each rank of the communicator.
pub unsafe fn numbers<N: Count>(counts: *const N, comm: Word) -> Option<Vec<usize>> {
    let known = communicator::of(active()?, comm).ok()?;
    if counts.is_null() || !known.is_plain() {
        return None;
    }
    // SAFETY: the caller's promise.
    let counts = unsafe { std::slice::from_raw_parts(counts, known.size) };
    counts.iter().map(|count| count.number()).collect()
}

/// `MPI_Reduce_scatter_block`
///
/// # Safety
///
/// As the MPI standard says.
pub unsafe fn reduce_scatter_block<N: Count>(reduction: Reduction<N>, comm: Word) -> Option<c_int> {
    let (function, pair) = (Function::ReduceScatterBlock, reduction.pair());
    let mut elements = None;
    let call = intercept_reduction(function, comm, pair, (Some(reduction.op), &None), |abi| {
        elements = Some(Elements::between(abi, function, (reduction, true), comm)?);
        Some(())
    })?;
    let counts = vec![reduction.count.elements(); call.group.size];
    // SAFETY: the caller's promise.
    Some(unsafe { scatter(call, elements?, reduction, &counts) })
}
