// SPDX-License-Identifier: MIT OR Apache-2.0

//! A communicator of ours, over which processes that have met answer each other.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use libcopy::scratch::zeros;

use crate::library::abi::{Abi, Word};
use crate::library::errors::no_room;
use crate::library::pmpi;
use crate::library::status::{Room, Status};

/// The tag of what [`crate::rdma::wire::Wire`] says.
const CONTROL: c_int = 1;

/// Tags of packed bytes; all libraries have at least 32,768 tags (MPI 4.1, section 9.1.2).
pub const TAGS: u64 = 32_000;

/// The tag of a message's packed bytes.
fn data_tag(sequence: u64) -> c_int {
    16 + (sequence % TAGS) as c_int
}

/// `MPI_Isend` or `MPI_Issend`
type Isend = unsafe fn(*const c_void, c_int, Word, c_int, c_int, Word, *mut c_void) -> c_int;

/// Bytes that the library is sending.
#[derive(Debug)]
struct Pending {
    request: Word,
    _bytes: Vec<u8>,
}

/// The communicator.
#[derive(Debug)]
pub struct Channel {
    comm: Word,
    pending: Vec<Pending>,
    /// A barrier that has begun.
    barrier: Word,
}

/// Packed bytes that are received.
#[derive(Debug)]
pub struct Data {
    request: Word,
    /// They stay where they are until the request is complete.
    pub bytes: Vec<u8>,
}

impl Channel {
    /// Over a communicator that nobody else uses, and whose errors are returned.
    pub fn new(comm: Word) -> Channel {
        Channel {
            comm,
            pending: Vec::new(),
            barrier: 0,
        }
    }

    fn post(
        &mut self,
        abi: &Abi,
        isend: Isend,
        (to, tag): (c_int, c_int),
        bytes: Vec<u8>,
    ) -> Result<(), c_int> {
        let count = c_int::try_from(bytes.len()).map_err(|_| abi.error)?;
        let mut request: Word = 0;
        let variable = (&raw mut request).cast();
        let from = bytes.as_ptr().cast();
        // SAFETY: the bytes live until the request is complete; room for either kind of handle.
        let code = unsafe { isend(from, count, abi.byte, to, tag, self.comm, variable) };
        if code != 0 {
            return Err(code);
        }
        self.pending.push(Pending {
            request,
            _bytes: bytes,
        });
        Ok(())
    }

    /// Tells a rank of the communicator something; returns at once.
    pub fn tell(&mut self, abi: &Abi, to: c_int, bytes: Vec<u8>) -> Result<(), c_int> {
        self.post(abi, pmpi::isend, (to, CONTROL), bytes)
    }

    /// Tells a rank something, which is under way until the rank has received it and with it all
    /// that it was told before.
    pub fn tell_last(&mut self, abi: &Abi, to: c_int, bytes: Vec<u8>) -> Result<(), c_int> {
        self.post(abi, pmpi::issend, (to, CONTROL), bytes)
    }

    /// Sends the packed bytes of a message; returns at once.
    pub fn send_data(
        &mut self,
        abi: &Abi,
        to: c_int,
        sequence: u64,
        bytes: Vec<u8>,
    ) -> Result<(), c_int> {
        self.post(abi, pmpi::isend, (to, data_tag(sequence)), bytes)
    }

    /// Begins to receive the packed bytes of a message.
    pub fn receive_data(
        &self,
        abi: &Abi,
        from: c_int,
        sequence: u64,
        total: u64,
    ) -> Result<Data, c_int> {
        let count = c_int::try_from(total).map_err(|_| abi.error)?;
        let mut data = Data {
            request: 0,
            bytes: zeros(total as usize).map_err(no_room)?,
        };
        let (to, request) = (
            data.bytes.as_mut_ptr().cast(),
            (&raw mut data.request).cast(),
        );
        let (byte, tag) = (abi.byte, data_tag(sequence));
        // SAFETY: room for the bytes, which live until the request is complete, and for a handle.
        match unsafe { pmpi::irecv(to, count, byte, from, tag, self.comm, request) } {
            0 => Ok(data),
            code => Err(code),
        }
    }

    /// Lets go of what has been sent.
    pub fn reap(&mut self, abi: &Abi) {
        self.pending.retain_mut(|pending| !is_over(abi, pending));
    }

    /// Whether something was not sent when [`Channel::reap`] was called.
    pub fn is_busy(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Begins to wait for all processes of the communicator.
    pub fn begin_barrier(&mut self) -> Result<(), c_int> {
        let request = (&raw mut self.barrier).cast();
        // SAFETY: a communicator, and room for either kind of handle.
        match unsafe { pmpi::ibarrier(self.comm, request) } {
            0 => Ok(()),
            code => Err(code),
        }
    }

    /// Whether all of them have begun the barrier.
    pub fn is_past_barrier(&mut self, abi: &Abi) -> Result<bool, c_int> {
        is_complete(abi, &mut self.barrier)
    }

    /// Frees the communicator, as all its processes do.
    pub fn free(mut self) {
        // SAFETY: our own communicator, on which nothing is under way.
        unsafe { pmpi::comm_free(&mut self.comm) };
    }

    /// The next message, and the rank it is from, if there is one.
    pub fn poll(&mut self, abi: &Abi) -> Result<Option<(c_int, Vec<u8>)>, c_int> {
        let (mut flag, mut room) = (0, Room::new());
        let any = abi.any_source;
        // SAFETY: a communicator, and writable outputs.
        let code = unsafe { pmpi::iprobe(any, CONTROL, self.comm, &mut flag, room.pointer()) };
        if code != 0 {
            return Err(code);
        }
        if flag == 0 {
            return Ok(None);
        }
        // SAFETY: the library wrote a status.
        let status = unsafe { Status::new(abi, room.pointer()) };
        let (from, len) = (status.source(), status.bytes() as usize);
        let mut bytes = zeros(len).map_err(no_room)?;
        let (to, count) = (bytes.as_mut_ptr().cast(), len as c_int);
        let ignored = abi.status_ignore();
        // SAFETY: room for the bytes.
        match unsafe { pmpi::recv(to, count, abi.byte, from, CONTROL, self.comm, ignored) } {
            0 => Ok(Some((from, bytes))),
            code => Err(code),
        }
    }
}

fn is_over(abi: &Abi, pending: &mut Pending) -> bool {
    is_complete(abi, &mut pending.request).unwrap_or(true)
}

/// Whether a request of our own is complete; a completed one stays so.
fn is_complete(abi: &Abi, request: &mut Word) -> Result<bool, c_int> {
    let mut flag = 0;
    let request = (&raw mut *request).cast();
    // SAFETY: a request that the library has made, or the null request that it has put in its
    // place.
    match unsafe { pmpi::test(request, &mut flag, abi.status_ignore()) } {
        0 => Ok(flag != 0),
        code => Err(code),
    }
}

/// A header that the library had not sent when its sender got its buffer back.
#[derive(Debug)]
pub struct UnsentHeader {
    request: Word,
    /// What the library may still read.
    bytes: Arc<[u8]>,
}

impl UnsentHeader {
    /// `request` is that of the header, and nobody else's.
    pub fn new(request: Word, bytes: Arc<[u8]>) -> UnsentHeader {
        UnsentHeader { request, bytes }
    }

    /// Whether the library has sent it.
    pub fn is_sent(&mut self, abi: &Abi) -> bool {
        is_complete(abi, &mut self.request).unwrap_or(true)
    }

    /// Leaves it to the library for good.
    pub fn leave(mut self) {
        // SAFETY: a request that nobody else has.
        unsafe { pmpi::request_free((&raw mut self.request).cast()) };
        std::mem::forget(self.bytes);
    }
}

impl Data {
    /// Whether all bytes are there.
    pub fn is_complete(&mut self, abi: &Abi) -> Result<bool, c_int> {
        is_complete(abi, &mut self.request)
    }
}
