// SPDX-License-Identifier: MIT OR Apache-2.0

//! Collectives whose ranks all know how large they are.

use std::ffi::{c_int, c_void};

use libcopy::scratch::Scratch;

use crate::collectives::governor::Span;
use crate::collectives::intercept::{intercept, plausible, rank_of};
use crate::decide::active::{is_in_place, is_same};
use crate::library::abi::Word;
use crate::library::count::Count;
use crate::library::errors;
use crate::library::pmpi::forward;
use crate::library::stats::Function;
use crate::types::buffer::{Kind, incoming, outgoing};

/// `MPI_Bcast`
///
/// # Safety
///
/// As the MPI standard says.
#[allow(clippy::too_many_arguments)]
#[inline(never)]
pub unsafe fn bcast<N: Count>(
    buffer: *mut c_void,
    count: N,
    datatype: Word,
    root: c_int,
    comm: Word,
) -> c_int {
    let _span = Span;
    let mut kind = None;
    let call = intercept(Function::Bcast, comm, (count.number(), datatype), |abi| {
        plausible(abi, comm, root)?;
        kind = Some(Kind::of(abi, datatype, comm)?);
        Some(())
    });
    let (Some(call), Some(kind)) = (call, kind) else {
        // SAFETY: the caller's promise.
        return unsafe { forward::bcast(buffer, count, datatype, root, comm) };
    };
    call.run(|call| {
        let root_rank = root as usize;
        if call.is_root(root) && !kind.is_dense() {
            let mut packed = Scratch::new(call.bytes)?;
            // SAFETY: the caller's promise.
            unsafe { kind.pack(buffer, count.elements(), &mut packed)? };
            return call.group.bcast(&mut packed, root_rank);
        }
        // SAFETY: the caller's promise; the root's bytes are only read.
        unsafe {
            incoming(&kind, buffer, count.elements(), |bytes| {
                call.group.bcast(bytes, root_rank)
            })
        }
    })
}

/// `MPI_Gather`
///
/// # Safety
///
/// As the MPI standard says.
#[allow(clippy::too_many_arguments)]
#[inline(never)]
pub unsafe fn gather<N: Count>(
    send: *const c_void,
    send_count: N,
    send_type: Word,
    recv: *mut c_void,
    recv_count: N,
    recv_type: Word,
    root: c_int,
    comm: Word,
) -> c_int {
    let _span = Span;
    let (mut own, mut all) = (None, None);
    // A root that does not send from elsewhere says the number of bytes where it receives.
    let in_place = is_in_place(send);
    let one = if in_place {
        (recv_count.number(), recv_type)
    } else {
        (send_count.number(), send_type)
    };
    let call = intercept(Function::Gather, comm, one, |abi| {
        let (rank, root) = (rank_of(abi, comm)?, plausible(abi, comm, root)?);
        if !in_place {
            own = Some(Kind::of(abi, send_type, comm)?);
        }
        if rank == root {
            let each = recv_count.number()?;
            let kind = all.insert(Kind::of(abi, recv_type, comm)?);
            let same = send_type == recv_type && send_count.number() == Some(each) && each > 0;
            if same && is_same(send, kind.element(recv, each * rank)) {
                if errors::refuses(abi, Function::Gather) {
                    return None;
                }
                // As if it were `MPI_IN_PLACE`.
                own = None;
            }
        }
        Some(())
    });
    let Some(call) = call else {
        // SAFETY: the caller's promise.
        return unsafe {
            forward::gather(
                send, send_count, send_type, recv, recv_count, recv_type, root, comm,
            )
        };
    };
    call.run(|call| {
        let (root, mut packed) = (root as usize, Scratch::default());
        let Some(all) = all else {
            let kind = own.ok_or(call.abi.error)?;
            // SAFETY: the caller's promise.
            let bytes = unsafe { outgoing(&kind, send, send_count.elements(), &mut packed)? };
            return call.group.gather(Some(bytes), None, root);
        };
        call.agree(&all, recv_count)?;
        let (each, size) = (recv_count.elements(), call.group.size);
        // SAFETY: the caller's promise: the receive buffer has the elements of all ranks.
        unsafe {
            match own {
                None if all.is_dense() => incoming(&all, recv, each * size, |bytes| {
                    call.group.gather(None, Some(bytes), root)
                }),
                own => {
                    let bytes = match own {
                        Some(kind) => outgoing(&kind, send, send_count.elements(), &mut packed)?,
                        None => {
                            let mine = all.element(recv, each * call.group.rank);
                            outgoing(&all, mine, each, &mut packed)?
                        }
                    };
                    incoming(&all, recv, each * size, |all| {
                        call.group.gather(Some(bytes), Some(all), root)
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
#[allow(clippy::too_many_arguments)]
#[inline(never)]
pub unsafe fn scatter<N: Count>(
    send: *const c_void,
    send_count: N,
    send_type: Word,
    recv: *mut c_void,
    recv_count: N,
    recv_type: Word,
    root: c_int,
    comm: Word,
) -> c_int {
    let _span = Span;
    let (mut all, mut own) = (None, None);
    let in_place = is_in_place(recv);
    let one = if in_place {
        (send_count.number(), send_type)
    } else {
        (recv_count.number(), recv_type)
    };
    let call = intercept(Function::Scatter, comm, one, |abi| {
        let (rank, root) = (rank_of(abi, comm)?, plausible(abi, comm, root)?);
        if !in_place {
            own = Some(Kind::of(abi, recv_type, comm)?);
        }
        if rank == root {
            let each = send_count.number()?;
            let kind = all.insert(Kind::of(abi, send_type, comm)?);
            let same = send_type == recv_type && recv_count.number() == Some(each) && each > 0;
            if same && is_same(kind.element(send.cast_mut(), each * rank), recv) {
                if errors::refuses(abi, Function::Scatter) {
                    return None;
                }
                // As if it were `MPI_IN_PLACE`.
                own = None;
            }
        }
        Some(())
    });
    let Some(call) = call else {
        // SAFETY: the caller's promise.
        return unsafe {
            forward::scatter(
                send, send_count, send_type, recv, recv_count, recv_type, root, comm,
            )
        };
    };
    call.run(|call| {
        let root = root as usize;
        let mut packed;
        let whole = match all {
            None => None,
            Some(kind) => {
                call.agree(&kind, send_count)?;
                let elements = send_count.elements() * call.group.size;
                // SAFETY: the caller's promise: the send buffer has the elements of all ranks.
                let bytes = unsafe {
                    if kind.is_dense() {
                        std::slice::from_raw_parts(send.cast::<u8>(), call.bytes * call.group.size)
                    } else {
                        packed = Scratch::new(call.bytes * call.group.size)?;
                        kind.pack(send, elements, &mut packed)?;
                        &packed
                    }
                };
                Some(bytes)
            }
        };
        let Some(kind) = own else {
            // The root keeps its part where it is, so nobody looks at what is received here.
            let mut unused = Scratch::new(call.bytes)?;
            return call.group.scatter(whole, &mut unused, root);
        };
        // SAFETY: the caller's promise.
        unsafe {
            incoming(&kind, recv, recv_count.elements(), |bytes| {
                call.group.scatter(whole, bytes, root)
            })
        }
    })
}

/// `MPI_Allgather`
///
/// # Safety
///
/// As the MPI standard says.
#[allow(clippy::too_many_arguments)]
#[inline(never)]
pub unsafe fn allgather<N: Count>(
    send: *const c_void,
    send_count: N,
    send_type: Word,
    recv: *mut c_void,
    recv_count: N,
    recv_type: Word,
    comm: Word,
) -> c_int {
    let _span = Span;
    let (mut own, mut all) = (None, None);
    let call = intercept(
        Function::Allgather,
        comm,
        (recv_count.number(), recv_type),
        |abi| {
            all = Some(Kind::of(abi, recv_type, comm)?);
            if !is_in_place(send) {
                send_count.number()?;
                own = Some(Kind::of(abi, send_type, comm)?);
                let same = send_type == recv_type && send_count.number() == recv_count.number();
                let at = all
                    .as_ref()?
                    .element(recv, recv_count.elements() * rank_of(abi, comm)?);
                if same && is_same(send, at) {
                    if errors::refuses(abi, Function::Allgather) {
                        return None;
                    }
                    // As if it were `MPI_IN_PLACE`.
                    own = None;
                }
            }
            Some(())
        },
    );
    let (Some(call), Some(all)) = (call, all) else {
        // SAFETY: the caller's promise.
        return unsafe {
            forward::allgather(
                send, send_count, send_type, recv, recv_count, recv_type, comm,
            )
        };
    };
    call.run(|call| {
        if let Some(kind) = &own {
            call.agree(kind, send_count)?;
        }
        let (each, size, mut packed) = (recv_count.elements(), call.group.size, Scratch::default());
        // SAFETY: the caller's promise: the receive buffer has the elements of all ranks.
        unsafe {
            if own.is_none() && all.is_dense() {
                return incoming(&all, recv, each * size, |bytes| {
                    call.group.allgather(None, bytes)
                });
            }
            let bytes = match own {
                Some(kind) => outgoing(&kind, send, send_count.elements(), &mut packed)?,
                None => {
                    let mine = all.element(recv, each * call.group.rank);
                    outgoing(&all, mine, each, &mut packed)?
                }
            };
            incoming(&all, recv, each * size, |all| {
                call.group.allgather(Some(bytes), all)
            })
        }
    })
}

/// `MPI_Alltoall`
///
/// # Safety
///
/// As the MPI standard says.
#[allow(clippy::too_many_arguments)]
#[inline(never)]
pub unsafe fn alltoall<N: Count>(
    send: *const c_void,
    send_count: N,
    send_type: Word,
    recv: *mut c_void,
    recv_count: N,
    recv_type: Word,
    comm: Word,
) -> c_int {
    let _span = Span;
    let (mut own, mut all) = (None, None);
    let one = (recv_count.number(), recv_type);
    let call = intercept(Function::Alltoall, comm, one, |abi| {
        all = Some(Kind::of(abi, recv_type, comm)?);
        if !is_in_place(send) {
            send_count.number()?;
            own = Some(Kind::of(abi, send_type, comm)?);
            let same = send_type == recv_type && send_count.number() == recv_count.number();
            if same && is_same(send, recv) {
                if errors::refuses(abi, Function::Alltoall) {
                    return None;
                }
                // As if it were `MPI_IN_PLACE`.
                own = None;
            }
        }
        Some(())
    });
    let (Some(call), Some(all)) = (call, all) else {
        // SAFETY: the caller's promise.
        return unsafe {
            forward::alltoall(
                send, send_count, send_type, recv, recv_count, recv_type, comm,
            )
        };
    };
    call.run(|call| {
        if let Some(kind) = &own {
            call.agree(kind, send_count)?;
        }
        let (size, mut packed) = (call.group.size, Scratch::default());
        let elements = recv_count.elements() * size;
        // SAFETY: the caller's promise: both buffers have the elements of all ranks.
        unsafe {
            let bytes = match own {
                Some(kind) => outgoing(&kind, send, send_count.elements() * size, &mut packed)?,
                None => {
                    // What is sent is overwritten by what is received.
                    packed = Scratch::new(elements * all.size())?;
                    all.copy_to(recv, elements, &mut packed)?;
                    &packed
                }
            };
            incoming(&all, recv, elements, |all| {
                Ok(call.group.team().alltoall(bytes, all)?)
            })
        }
    })
}
