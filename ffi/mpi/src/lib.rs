// SPDX-License-Identifier: MIT OR Apache-2.0

//! `libcopy_mpi.so`: with `LD_PRELOAD`, an MPI program that was never compiled for it has the
//! collectives inside a machine done by libcopy.
//!
//! Taken are `MPI_Bcast`, `MPI_Gather`, `MPI_Scatter` and `MPI_Allgather` on intracommunicators
//! whose ranks are all on one machine, from the size on from which libcopy is faster
//! ([`Policy::beats_mpi`]). Everything else goes to the MPI library unchanged, by its `PMPI` name,
//! so that a tool between the two still works. What decides is the same on all ranks: the number of
//! bytes, which MPI demands to agree, and the communicator. Datatypes that are not dense are packed
//! and unpacked by the MPI library.
//!
//! `LIBCOPY_DISABLE=1` passes everything on; `LIBCOPY_STATS=1` prints at `MPI_Finalize` what was
//! taken, and what was passed on why.

mod abi;
mod buffer;
mod group;
mod pmpi;
mod stats;

use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};

use libcopy::collective::Op;
use libcopy::policy::Policy;

use abi::{Abi, Word, complain};
use buffer::Kind;
use group::Group;
use stats::Fate;

/// The library that we stand in front of; none if we are to do nothing.
fn active() -> Option<&'static Abi> {
    static ACTIVE: OnceLock<Option<&'static Abi>> = OnceLock::new();
    *ACTIVE.get_or_init(|| {
        if abi::is_set(c"LIBCOPY_DISABLE") {
            return None;
        }
        abi::get()
            .map_err(|why| complain(&format!("{why}; everything is passed on")))
            .ok()
    })
}

/// A call that is ours: the library, the group, and the bytes of each rank.
struct Call {
    abi: &'static Abi,
    comm: Word,
    group: Arc<Group>,
    op: Op,
    bytes: usize,
}

/// Decides whether a call is taken: `count` elements of `datatype` are what each rank sends or
/// receives, and `kinds` looks at the datatypes more closely, which small messages need not wait
/// for.
fn take(
    op: Op,
    comm: Word,
    (count, datatype): (c_int, Word),
    kinds: impl FnOnce(&'static Abi) -> Option<()>,
) -> Option<Call> {
    let decide = || {
        let abi = active().ok_or(Fate::Disabled)?;
        let bytes = buffer::bytes(count, datatype).ok_or(Fate::Arguments)?;
        // Below this, no communicator is worth the team that would tell whether it is crowded.
        if !Policy::beats_mpi(op, bytes as u64, false) {
            return Err(Fate::Small);
        }
        kinds(abi).ok_or(Fate::Arguments)?;
        let group = group::of(abi, comm)?;
        if group.crowded && !Policy::beats_mpi(op, bytes as u64, true) {
            return Err(Fate::Small);
        }
        Ok(Call {
            abi,
            comm,
            group,
            op,
            bytes,
        })
    };
    match catch_unwind(AssertUnwindSafe(decide)) {
        Ok(Ok(call)) => Some(call),
        Ok(Err(fate)) => {
            stats::count(op, fate, 0);
            None
        }
        Err(_) => None,
    }
}

/// Why a call that was taken failed.
enum Failure {
    /// The team is broken, usually because a rank died.
    Team(libcopy::Error),
    /// The MPI library could not pack or unpack.
    Code(c_int),
}

impl From<libcopy::Error> for Failure {
    fn from(error: libcopy::Error) -> Self {
        Failure::Team(error)
    }
}

impl From<c_int> for Failure {
    fn from(code: c_int) -> Self {
        Failure::Code(code)
    }
}

impl Call {
    /// Does it; errors go to the communicator's error handler.
    fn run(self, work: impl FnOnce(&Call) -> Result<(), Failure>) -> c_int {
        let code = match catch_unwind(AssertUnwindSafe(|| work(&self))) {
            Ok(Ok(())) => {
                stats::count(self.op, Fate::Taken, self.bytes as u64);
                return 0;
            }
            Ok(Err(Failure::Team(error))) => {
                complain(&format!("{}: {error}", self.op));
                self.abi.error
            }
            Ok(Err(Failure::Code(code))) => code,
            Err(_) => self.abi.error,
        };
        // SAFETY: the communicator was in use a moment ago.
        unsafe { pmpi::comm_call_errhandler(self.comm, code) };
        code
    }

    /// Refuses a second pair of count and datatype that is not as many bytes as the first: buffers
    /// are as long as the call says, and we must not reach beyond them.
    fn agree(&self, kind: &Kind, count: c_int) -> Result<(), Failure> {
        if kind.bytes(count) == Some(self.bytes) {
            return Ok(());
        }
        complain(&format!(
            "{}: {count} elements of one datatype are not the {} bytes of the other side",
            self.op, self.bytes
        ));
        Err(Failure::Code(self.abi.error))
    }

    fn is_root(&self, root: c_int) -> bool {
        usize::try_from(root) == Ok(self.group.rank)
    }
}

/// Whether a buffer is `MPI_IN_PLACE`.
fn is_in_place(buffer: *const c_void) -> bool {
    active().is_some_and(|abi| buffer as usize == abi.in_place)
}

/// Whether a rank with this number could be the root; if not, MPI says so.
fn plausible(root: c_int) -> Option<usize> {
    usize::try_from(root).ok()
}

/// What one rank sends, as bytes, packed if need be.
///
/// # Safety
///
/// The elements are readable, and stay as they are for `'a`.
unsafe fn outgoing<'a>(
    kind: &Kind,
    base: *const c_void,
    count: c_int,
    packed: &'a mut Vec<u8>,
) -> Result<&'a [u8], c_int> {
    let count = count as usize;
    if kind.is_dense() {
        let bytes = kind.bytes(count as c_int).unwrap_or(0);
        // SAFETY: dense elements are their bytes; the caller's promise.
        return Ok(unsafe { std::slice::from_raw_parts(base.cast(), bytes) });
    }
    // SAFETY: the caller's promise.
    *packed = unsafe { kind.pack(base, count)? };
    Ok(packed)
}

/// Has `work` fill the bytes of `count` elements, directly if they are dense.
///
/// # Safety
///
/// The elements are writable, and used by nobody else.
unsafe fn incoming(
    kind: &Kind,
    base: *mut c_void,
    count: usize,
    bytes: usize,
    work: impl FnOnce(&mut [u8]) -> Result<(), Failure>,
) -> Result<(), Failure> {
    if kind.is_dense() {
        // SAFETY: dense elements are their bytes; the caller's promise.
        return work(unsafe { std::slice::from_raw_parts_mut(base.cast(), bytes) });
    }
    let mut packed = vec![0u8; bytes];
    work(&mut packed)?;
    // SAFETY: the caller's promise.
    unsafe { kind.unpack(&packed, base, count) }?;
    Ok(())
}

/// `MPI_Bcast`
///
/// # Safety
///
/// As the MPI standard says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPI_Bcast(
    buffer: *mut c_void,
    count: c_int,
    datatype: Word,
    root: c_int,
    comm: Word,
) -> c_int {
    let mut kind = None;
    let call = take(Op::Bcast, comm, (count, datatype), |abi| {
        plausible(root)?;
        kind = Some(Kind::of(abi, datatype, comm)?);
        Some(())
    });
    let (Some(call), Some(kind)) = (call, kind) else {
        // SAFETY: the caller's promise.
        return unsafe { pmpi::bcast(buffer, count, datatype, root, comm) };
    };
    call.run(|call| {
        let root_rank = root as usize;
        if call.is_root(root) && !kind.is_dense() {
            // SAFETY: the caller's promise.
            let mut packed = unsafe { kind.pack(buffer, count as usize)? };
            return Ok(call.group.team().bcast(&mut packed, root_rank)?);
        }
        // SAFETY: the caller's promise; the root's bytes are only read.
        unsafe {
            incoming(&kind, buffer, count as usize, call.bytes, |bytes| {
                Ok(call.group.team().bcast(bytes, root_rank)?)
            })
        }
    })
}

/// `MPI_Gather`
///
/// # Safety
///
/// As the MPI standard says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPI_Gather(
    send: *const c_void,
    send_count: c_int,
    send_type: Word,
    recv: *mut c_void,
    recv_count: c_int,
    recv_type: Word,
    root: c_int,
    comm: Word,
) -> c_int {
    let (mut own, mut all) = (None, None);
    // A root that does not send from elsewhere says the number of bytes where it receives.
    let in_place = is_in_place(send);
    let one = match in_place {
        true => (recv_count, recv_type),
        false => (send_count, send_type),
    };
    let call = take(Op::Gather, comm, one, |abi| {
        if rank_of(comm)? == plausible(root)? {
            all = Some(Kind::of(abi, recv_type, comm)?);
        }
        if !in_place {
            own = Some(Kind::of(abi, send_type, comm)?);
        }
        Some(())
    });
    let Some(call) = call else {
        // SAFETY: the caller's promise.
        return unsafe {
            pmpi::gather(
                send, send_count, send_type, recv, recv_count, recv_type, root, comm,
            )
        };
    };
    call.run(|call| {
        let (root, mut packed) = (root as usize, Vec::new());
        let Some(all) = all else {
            let kind = own.ok_or(call.abi.error)?;
            // SAFETY: the caller's promise.
            let bytes = unsafe { outgoing(&kind, send, send_count, &mut packed)? };
            return Ok(call.group.team().gather(bytes, None, root)?);
        };
        call.agree(&all, recv_count)?;
        let (each, size) = (recv_count as usize, call.group.size);
        // SAFETY: the caller's promise: the receive buffer has the elements of all ranks.
        unsafe {
            match own {
                None if all.is_dense() => {
                    incoming(&all, recv, each * size, call.bytes * size, |bytes| {
                        Ok(call.group.team().gather_in_place(bytes, root)?)
                    })
                }
                own => {
                    let bytes = match own {
                        Some(kind) => outgoing(&kind, send, send_count, &mut packed)?,
                        None => {
                            let mine = all.element(recv, each * call.group.rank);
                            outgoing(&all, mine, recv_count, &mut packed)?
                        }
                    };
                    incoming(&all, recv, each * size, call.bytes * size, |all| {
                        Ok(call.group.team().gather(bytes, Some(all), root)?)
                    })
                }
            }
        }
    })
}

/// `MPI_Scatter`
///
/// # Safety
///
/// As the MPI standard says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPI_Scatter(
    send: *const c_void,
    send_count: c_int,
    send_type: Word,
    recv: *mut c_void,
    recv_count: c_int,
    recv_type: Word,
    root: c_int,
    comm: Word,
) -> c_int {
    let (mut all, mut own) = (None, None);
    let in_place = is_in_place(recv);
    let one = match in_place {
        true => (send_count, send_type),
        false => (recv_count, recv_type),
    };
    let call = take(Op::Scatter, comm, one, |abi| {
        if rank_of(comm)? == plausible(root)? {
            all = Some(Kind::of(abi, send_type, comm)?);
        }
        if !in_place {
            own = Some(Kind::of(abi, recv_type, comm)?);
        }
        Some(())
    });
    let Some(call) = call else {
        // SAFETY: the caller's promise.
        return unsafe {
            pmpi::scatter(
                send, send_count, send_type, recv, recv_count, recv_type, root, comm,
            )
        };
    };
    call.run(|call| {
        let root = root as usize;
        let packed;
        let whole = match all {
            None => None,
            Some(kind) => {
                call.agree(&kind, send_count)?;
                let elements = send_count as usize * call.group.size;
                // SAFETY: the caller's promise: the send buffer has the elements of all ranks.
                let bytes = unsafe {
                    match kind.is_dense() {
                        true => std::slice::from_raw_parts(
                            send.cast::<u8>(),
                            call.bytes * call.group.size,
                        ),
                        false => {
                            packed = kind.pack(send, elements)?;
                            packed.as_slice()
                        }
                    }
                };
                Some(bytes)
            }
        };
        let Some(kind) = own else {
            // The root keeps its part where it is, so nobody looks at what is received here.
            let mut unused = vec![0u8; call.bytes];
            return Ok(call.group.team().scatter(whole, &mut unused, root)?);
        };
        // SAFETY: the caller's promise.
        unsafe {
            incoming(&kind, recv, recv_count as usize, call.bytes, |bytes| {
                Ok(call.group.team().scatter(whole, bytes, root)?)
            })
        }
    })
}

/// `MPI_Allgather`
///
/// # Safety
///
/// As the MPI standard says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPI_Allgather(
    send: *const c_void,
    send_count: c_int,
    send_type: Word,
    recv: *mut c_void,
    recv_count: c_int,
    recv_type: Word,
    comm: Word,
) -> c_int {
    let (mut own, mut all) = (None, None);
    let call = take(Op::Allgather, comm, (recv_count, recv_type), |abi| {
        all = Some(Kind::of(abi, recv_type, comm)?);
        if !is_in_place(send) {
            own = Some(Kind::of(abi, send_type, comm)?);
        }
        Some(())
    });
    let (Some(call), Some(all)) = (call, all) else {
        // SAFETY: the caller's promise.
        return unsafe {
            pmpi::allgather(
                send, send_count, send_type, recv, recv_count, recv_type, comm,
            )
        };
    };
    call.run(|call| {
        if let Some(kind) = &own {
            call.agree(kind, send_count)?;
        }
        let (each, size, mut packed) = (recv_count as usize, call.group.size, Vec::new());
        // SAFETY: the caller's promise: the receive buffer has the elements of all ranks.
        unsafe {
            if is_in_place(send) && all.is_dense() {
                return incoming(&all, recv, each * size, call.bytes * size, |bytes| {
                    Ok(call.group.team().allgather_in_place(bytes)?)
                });
            }
            let bytes = match own {
                Some(kind) => outgoing(&kind, send, send_count, &mut packed)?,
                None => {
                    let mine = all.element(recv, each * call.group.rank);
                    outgoing(&all, mine, recv_count, &mut packed)?
                }
            };
            incoming(&all, recv, each * size, call.bytes * size, |all| {
                Ok(call.group.team().allgather(bytes, all)?)
            })
        }
    })
}

/// Our rank in a communicator; `None` if it is no communicator.
fn rank_of(comm: Word) -> Option<usize> {
    let mut rank = -1;
    // SAFETY: the output is writable; the library checks the communicator.
    let answer = unsafe { pmpi::comm_rank(comm, &mut rank) };
    (answer == 0).then(|| usize::try_from(rank).ok())?
}

/// `MPI_Finalize`
///
/// # Safety
///
/// As the MPI standard says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPI_Finalize() -> c_int {
    let _ = catch_unwind(|| {
        if abi::is_set(c"LIBCOPY_STATS") {
            let library = abi::get().map_or("no library that we know", |abi| abi.name);
            eprintln!("{}", stats::report(library));
        }
        group::clear();
    });
    // SAFETY: the caller's promise.
    unsafe { pmpi::finalize() }
}
