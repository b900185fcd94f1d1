// SPDX-License-Identifier: MIT OR Apache-2.0

//! Collectives whose ranks all know how large they are. Each function gives the call's code, or
//! `None` where the call is to be forwarded.

use std::ffi::c_int;

use libcopy::scratch::Scratch;

use crate::collectives::intercept::{intercept, plausible, rank_of};
use crate::collectives::repeated::{self, Key, is_memory};
use crate::decide::active::{is_in_place, is_same};
use crate::library::abi::Word;
use crate::library::buffers::{Received, Sent};
use crate::library::count::Count;
use crate::library::errors;
use crate::library::stats::Function;
use crate::types::buffer::{Kind, incoming, outgoing};

/// `MPI_Bcast`
///
/// # Safety
///
/// As the MPI standard says.
pub unsafe fn bcast<N: Count>(buffer: Received<N>, root: c_int, comm: Word) -> Option<c_int> {
    let key = Key::of(Function::Bcast, comm, [buffer.pair(); 2], (root, 0));
    let usual = |_, _| is_memory(buffer.base);
    let again = repeated::run(&key, usual, |team, bytes| {
        // SAFETY: dense elements are their bytes, of which there are some; the caller's promise.
        Ok(team.bcast(unsafe { buffer.bytes(bytes) }, root as usize)?)
    });
    if let Some(code) = again {
        return code;
    }
    let mut kind = None;
    let call = intercept(Function::Bcast, comm, buffer.pair(), &key, |abi| {
        plausible(abi, comm, root)?;
        kind = Some(Kind::of_elements(
            abi,
            (buffer.datatype, buffer.count),
            comm,
        )?);
        Some(())
    })?;
    let (kind, count) = (kind?, buffer.count.elements());
    call.remember(key, [(&kind, count); 2]);
    Some(call.run(|call| {
        let root_rank = root as usize;
        if call.is_root(root) && !kind.is_dense() {
            let mut packed = Scratch::new(call.bytes)?;
            // SAFETY: the caller's promise.
            unsafe { kind.pack(buffer.base, count, &mut packed)? };
            return call.group.bcast(&mut packed, root_rank);
        }
        // SAFETY: the caller's promise; the root's bytes are only read.
        unsafe {
            incoming(&kind, buffer.base, count, |bytes| {
                call.group.bcast(bytes, root_rank)
            })
        }
    }))
}

/// `MPI_Gather`
///
/// # Safety
///
/// As the MPI standard says.
pub unsafe fn gather<N: Count>(
    send: Sent<N>,
    recv: Received<N>,
    root: c_int,
    comm: Word,
) -> Option<c_int> {
    // A root that does not send from elsewhere says the number of bytes where it receives.
    let in_place = is_in_place(send.base);
    let one = if in_place { recv.pair() } else { send.pair() };
    let key = Key::of(Function::Gather, comm, [one, recv.pair()], (root, 0));
    let usual = |rank, bytes| {
        let own = recv.base.wrapping_byte_add(rank * bytes);
        let receives = is_memory(recv.base) && !is_same(send.base, own);
        let is_root = root as usize == rank;
        (is_memory(send.base) || in_place && is_root) && (!is_root || receives)
    };
    let again = repeated::run(&key, usual, |team, bytes| {
        let root = root as usize;
        // SAFETY: dense elements are their bytes, of which there are some; the caller's promise.
        unsafe {
            let room = || recv.bytes(bytes * team.size());
            if in_place {
                return Ok(team.gather_in_place(room(), root)?);
            }
            let all = (root == team.rank()).then(room);
            Ok(team.gather(send.bytes(bytes), all, root)?)
        }
    });
    if let Some(code) = again {
        return code;
    }
    let (mut own, mut all) = (None, None);
    let call = intercept(Function::Gather, comm, one, &key, |abi| {
        let (rank, root) = (rank_of(abi, comm)?, plausible(abi, comm, root)?);
        if !in_place {
            own = Some(Kind::of_elements(abi, (send.datatype, send.count), comm)?);
        }
        if rank == root {
            let each = recv.count.number()?;
            let kind = all.insert(Kind::of_elements(abi, (recv.datatype, recv.count), comm)?);
            let same =
                send.datatype == recv.datatype && send.count.number() == Some(each) && each > 0;
            if same && is_same(send.base, kind.element(recv.base, each * rank)) {
                if errors::refuses(abi, Function::Gather) {
                    return None;
                }
                // As if it were `MPI_IN_PLACE`.
                own = None;
            }
        }
        Some(())
    })?;
    let sides = [
        (own.as_ref(), send.count.elements()),
        (all.as_ref(), recv.count.elements()),
    ];
    call.remember(key, sides);
    Some(call.run(|call| {
        let (root, mut packed) = (root as usize, Scratch::default());
        let Some(all) = all else {
            let kind = own.ok_or(call.abi.error)?;
            // SAFETY: the caller's promise.
            let bytes = unsafe { outgoing(&kind, send.base, send.count.elements(), &mut packed)? };
            return call.group.gather(Some(bytes), None, root);
        };
        call.agree(&all, recv.count)?;
        let (each, size) = (recv.count.elements(), call.group.size);
        // SAFETY: the caller's promise: the receive buffer has the elements of all ranks.
        unsafe {
            match own {
                None if all.is_dense() => incoming(&all, recv.base, each * size, |bytes| {
                    call.group.gather(None, Some(bytes), root)
                }),
                own => {
                    let bytes = match own {
                        Some(kind) => {
                            outgoing(&kind, send.base, send.count.elements(), &mut packed)?
                        }
                        None => {
                            let mine = all.element(recv.base, each * call.group.rank);
                            outgoing(&all, mine, each, &mut packed)?
                        }
                    };
                    incoming(&all, recv.base, each * size, |all| {
                        call.group.gather(Some(bytes), Some(all), root)
                    })
                }
            }
        }
    }))
}

/// `MPI_Scatter`
///
/// # Safety
///
/// As the MPI standard says.
pub unsafe fn scatter<N: Count>(
    send: Sent<N>,
    recv: Received<N>,
    root: c_int,
    comm: Word,
) -> Option<c_int> {
    let in_place = is_in_place(recv.base);
    let one = if in_place { send.pair() } else { recv.pair() };
    let key = Key::of(Function::Scatter, comm, [one, send.pair()], (root, 0));
    let usual = |rank, bytes| {
        let own = send.base.wrapping_byte_add(rank * bytes);
        let sends = is_memory(send.base) && !is_same(own, recv.base);
        let is_root = root as usize == rank;
        (is_memory(recv.base) || in_place && is_root) && (!is_root || sends)
    };
    let again = repeated::run(&key, usual, |team, bytes| {
        // SAFETY: dense elements are their bytes, of which there are some; the caller's promise.
        unsafe {
            let all = || send.bytes(bytes * team.size());
            let all = (root as usize == team.rank()).then(all);
            if in_place {
                // The root keeps its part where it is: nobody looks at this.
                let mut unused = Scratch::new(bytes)?;
                return Ok(team.scatter(all, &mut unused, root as usize)?);
            }
            Ok(team.scatter(all, recv.bytes(bytes), root as usize)?)
        }
    });
    if let Some(code) = again {
        return code;
    }
    let (mut all, mut own) = (None, None);
    let call = intercept(Function::Scatter, comm, one, &key, |abi| {
        let (rank, root) = (rank_of(abi, comm)?, plausible(abi, comm, root)?);
        if !in_place {
            own = Some(Kind::of_elements(abi, (recv.datatype, recv.count), comm)?);
        }
        if rank == root {
            let each = send.count.number()?;
            let kind = all.insert(Kind::of_elements(abi, (send.datatype, send.count), comm)?);
            let same =
                send.datatype == recv.datatype && recv.count.number() == Some(each) && each > 0;
            if same && is_same(kind.element(send.base.cast_mut(), each * rank), recv.base) {
                if errors::refuses(abi, Function::Scatter) {
                    return None;
                }
                // As if it were `MPI_IN_PLACE`.
                own = None;
            }
        }
        Some(())
    })?;
    let sides = [
        (own.as_ref(), recv.count.elements()),
        (all.as_ref(), send.count.elements()),
    ];
    call.remember(key, sides);
    Some(call.run(|call| {
        let root = root as usize;
        let mut packed;
        let whole = match all {
            None => None,
            Some(kind) => {
                call.agree(&kind, send.count)?;
                let elements = send.count.elements() * call.group.size;
                // SAFETY: the caller's promise: the send buffer has the elements of all ranks.
                let bytes = unsafe {
                    if kind.is_dense() {
                        std::slice::from_raw_parts(
                            send.base.cast::<u8>(),
                            call.bytes * call.group.size,
                        )
                    } else {
                        packed = Scratch::new(call.bytes * call.group.size)?;
                        kind.pack(send.base, elements, &mut packed)?;
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
            incoming(&kind, recv.base, recv.count.elements(), |bytes| {
                call.group.scatter(whole, bytes, root)
            })
        }
    }))
}

/// `MPI_Allgather`
///
/// # Safety
///
/// As the MPI standard says.
pub unsafe fn allgather<N: Count>(send: Sent<N>, recv: Received<N>, comm: Word) -> Option<c_int> {
    let in_place = is_in_place(send.base);
    let one = if in_place { recv.pair() } else { send.pair() };
    let key = Key::of(Function::Allgather, comm, [one, recv.pair()], (0, 0));
    let usual = |rank: usize, bytes: usize| {
        let own = recv.base.wrapping_byte_add(rank * bytes);
        let sends = is_memory(send.base) && !is_same(send.base, own);
        is_memory(recv.base) && (in_place || sends)
    };
    let again = repeated::run(&key, usual, |team, bytes| {
        // SAFETY: dense elements are their bytes, of which there are some; the caller's promise.
        unsafe {
            let all = recv.bytes(bytes * team.size());
            if in_place {
                return Ok(team.allgather_in_place(all)?);
            }
            Ok(team.allgather(send.bytes(bytes), all)?)
        }
    });
    if let Some(code) = again {
        return code;
    }
    let (mut own, mut all) = (None, None);
    let call = intercept(Function::Allgather, comm, recv.pair(), &key, |abi| {
        all = Some(Kind::of_elements(abi, (recv.datatype, recv.count), comm)?);
        if !in_place {
            send.count.number()?;
            own = Some(Kind::of_elements(abi, (send.datatype, send.count), comm)?);
            let same = send.datatype == recv.datatype && send.count.number() == recv.count.number();
            let at = all
                .as_ref()?
                .element(recv.base, recv.count.elements() * rank_of(abi, comm)?);
            if same && is_same(send.base, at) {
                if errors::refuses(abi, Function::Allgather) {
                    return None;
                }
                // As if it were `MPI_IN_PLACE`.
                own = None;
            }
        }
        Some(())
    })?;
    let sides = [
        (own.as_ref(), send.count.elements()),
        (all.as_ref(), recv.count.elements()),
    ];
    call.remember(key, sides);
    let all = all?;
    Some(call.run(|call| {
        if let Some(kind) = &own {
            call.agree(kind, send.count)?;
        }
        let (each, size, mut packed) = (recv.count.elements(), call.group.size, Scratch::default());
        // SAFETY: the caller's promise: the receive buffer has the elements of all ranks.
        unsafe {
            if own.is_none() && all.is_dense() {
                return incoming(&all, recv.base, each * size, |bytes| {
                    call.group.allgather(None, bytes)
                });
            }
            let bytes = match own {
                Some(kind) => outgoing(&kind, send.base, send.count.elements(), &mut packed)?,
                None => {
                    let mine = all.element(recv.base, each * call.group.rank);
                    outgoing(&all, mine, each, &mut packed)?
                }
            };
            incoming(&all, recv.base, each * size, |all| {
                call.group.allgather(Some(bytes), all)
            })
        }
    }))
}

/// `MPI_Alltoall`
///
/// # Safety
///
/// As the MPI standard says.
pub unsafe fn alltoall<N: Count>(send: Sent<N>, recv: Received<N>, comm: Word) -> Option<c_int> {
    let in_place = is_in_place(send.base);
    let one = if in_place { recv.pair() } else { send.pair() };
    let key = Key::of(Function::Alltoall, comm, [one, recv.pair()], (0, 0));
    let usual = |_, _| {
        let sends = is_memory(send.base) && !is_same(send.base, recv.base);
        is_memory(recv.base) && (in_place || sends)
    };
    let again = repeated::run(&key, usual, |team, bytes| {
        let bytes = bytes * team.size();
        // SAFETY: dense elements are their bytes, of which there are some; the caller's promise.
        unsafe {
            let all = recv.bytes(bytes);
            if in_place {
                // What is sent is overwritten by what is received.
                let mut own = Scratch::new(bytes)?;
                own.copy_from_slice(all);
                return Ok(team.alltoall(&own, all)?);
            }
            Ok(team.alltoall(send.bytes(bytes), all)?)
        }
    });
    if let Some(code) = again {
        return code;
    }
    let (mut own, mut all) = (None, None);
    let call = intercept(Function::Alltoall, comm, recv.pair(), &key, |abi| {
        all = Some(Kind::of_elements(abi, (recv.datatype, recv.count), comm)?);
        if !in_place {
            send.count.number()?;
            own = Some(Kind::of_elements(abi, (send.datatype, send.count), comm)?);
            let same = send.datatype == recv.datatype && send.count.number() == recv.count.number();
            if same && is_same(send.base, recv.base) {
                if errors::refuses(abi, Function::Alltoall) {
                    return None;
                }
                // As if it were `MPI_IN_PLACE`.
                own = None;
            }
        }
        Some(())
    })?;
    let sides = [
        (own.as_ref(), send.count.elements()),
        (all.as_ref(), recv.count.elements()),
    ];
    call.remember(key, sides);
    let all = all?;
    Some(call.run(|call| {
        if let Some(kind) = &own {
            call.agree(kind, send.count)?;
        }
        let (size, mut packed) = (call.group.size, Scratch::default());
        let elements = recv.count.elements() * size;
        // SAFETY: the caller's promise: both buffers have the elements of all ranks.
        unsafe {
            let bytes = match own {
                Some(kind) => {
                    outgoing(&kind, send.base, send.count.elements() * size, &mut packed)?
                }
                None => {
                    // What is sent is overwritten by what is received.
                    packed = Scratch::new(elements * all.size())?;
                    all.copy_to(recv.base, elements, &mut packed)?;
                    &packed
                }
            };
            incoming(&all, recv.base, elements, |all| {
                Ok(call.group.team().alltoall(bytes, all)?)
            })
        }
    }))
}
