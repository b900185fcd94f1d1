// SPDX-License-Identifier: MIT OR Apache-2.0

//! A communicator of ours, over which processes that have met answer each other.

use std::ffi::c_int;

use crate::abi::{Abi, Word};
use crate::messages::status::{Room, Status};
use crate::pmpi;

/// The tag of what [`super::wire::Wire`] says.
const CONTROL: c_int = 1;

/// The tag of a message's packed bytes; all libraries have at least 32,768 tags (MPI 4.1, section 9.1.2).
fn data_tag(sequence: u64) -> c_int {
    16 + (sequence % 32_000) as c_int
}

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
        }
    }

    fn post(&mut self, abi: &Abi, to: c_int, tag: c_int, bytes: Vec<u8>) -> Result<(), c_int> {
        let count = c_int::try_from(bytes.len()).map_err(|_| abi.error)?;
        let mut request: Word = 0;
        let variable = (&raw mut request).cast();
        let from = bytes.as_ptr().cast();
        // SAFETY: the bytes live until the request is complete; room for either kind of handle.
        let code = unsafe { pmpi::isend(from, count, abi.byte, to, tag, self.comm, variable) };
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
        self.post(abi, to, CONTROL, bytes)
    }

    /// Sends the packed bytes of a message; returns at once.
    pub fn send_data(
        &mut self,
        abi: &Abi,
        to: c_int,
        sequence: u64,
        bytes: Vec<u8>,
    ) -> Result<(), c_int> {
        self.post(abi, to, data_tag(sequence), bytes)
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
            bytes: vec![0; total as usize],
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

    /// Lets go of what has been sent; whether something is still under way.
    pub fn reap(&mut self, abi: &Abi) -> bool {
        self.pending.retain_mut(|pending| !is_over(abi, pending));
        !self.pending.is_empty()
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
        let mut bytes = vec![0; len];
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
    let mut flag = 0;
    let request = (&raw mut pending.request).cast();
    // SAFETY: a request of our own.
    let code = unsafe { pmpi::test(request, &mut flag, abi.status_ignore()) };
    code != 0 || flag != 0
}

impl Data {
    /// Whether all bytes are there.
    pub fn is_complete(&mut self, abi: &Abi) -> Result<bool, c_int> {
        let mut flag = 0;
        let request = (&raw mut self.request).cast();
        // SAFETY: a request of our own.
        match unsafe { pmpi::test(request, &mut flag, abi.status_ignore()) } {
            0 => Ok(flag != 0),
            code => Err(code),
        }
    }
}
