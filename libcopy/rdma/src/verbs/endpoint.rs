// SPDX-License-Identifier: MIT OR Apache-2.0

//! What transfers need of a connection, over verbs: registered memory, requests, and indirect memory keys that are
//! mapped to pieces of memory (mlx5dv_wr_post(3)).

use std::sync::{Arc, Mutex};

use super::connection::Connection;
use super::device::{Device, INLINE_DATA, Regions, inline_entries};
use super::mkey::Mkey;
use super::sys::{Sge, constant};
use crate::card::Card;
use crate::choice::Abilities;
use crate::cut::Limits;
use crate::endpoint::{Endpoint, Received};
use crate::error::{Error, Result};
use crate::iov::Iov;
use crate::keys::Keys;
use crate::pool::{Pool, PoolSize};

/// Memory keys for all connections of a device. None if the device has no such keys, or none left to give: messages are
/// moved in the other ways then.
pub fn shared_keys(device: &Arc<Device>, size: PoolSize) -> Option<Arc<Mutex<Keys<Connection>>>> {
    if !device.has_memory_keys() {
        return None;
    }
    let its = device.clone();
    let pool = Pool::new(size, move || Mkey::new(&its)).ok()?;
    Some(Arc::new(Mutex::new(Keys::new(Arc::new(pool)))))
}

/// The entries of a work request's list.
fn list(memory: &Regions, pieces: &[Iov]) -> Result<Vec<Sge>> {
    let failed = |piece: &Iov, errno| Error::Register {
        addr: piece.addr,
        len: piece.len,
        errno,
    };
    let entry = |piece: &Iov| {
        Ok(Sge {
            addr: piece.addr,
            length: u32::try_from(piece.len).map_err(|_| failed(piece, libc::EMSGSIZE))?,
            lkey: memory
                .lkey(piece)
                .ok_or_else(|| failed(piece, libc::EFAULT))?,
        })
    };
    pieces.iter().map(entry).collect()
}

impl Card for Connection {
    type Key = Mkey;
    type Memory = Regions;

    fn limits(&self) -> Limits {
        Limits {
            max_iovs: inline_entries(INLINE_DATA),
            max_bytes: self.device().max_message().max(1),
        }
    }

    fn rkey(&self, key: &Mkey) -> u32 {
        key.rkey()
    }

    fn register(&self, pieces: &[Iov], is_target: bool) -> Result<Regions> {
        Regions::new(self.device(), pieces, is_target)
    }

    fn map(&self, key: &Mkey, pieces: &[Iov], memory: &Regions, is_target: bool) -> Result<()> {
        let mut list = list(memory, pieces)?;
        let access = if is_target {
            constant::ACCESS_LOCAL_WRITE | constant::ACCESS_REMOTE_WRITE
        } else {
            0
        };
        self.post_extended("wr_mr_list", |_, ex| {
            // SAFETY: the extended queue pair exists; the list is copied into the request.
            unsafe {
                if let Some(map) = (*ex).wr_mr_list {
                    map(
                        ex,
                        key.as_ptr(),
                        access,
                        list.len() as u16,
                        list.as_mut_ptr(),
                    );
                }
            }
        })?;
        key.set_bytes(pieces.iter().map(|piece| piece.len).sum());
        Ok(())
    }

    fn unmap(&self, key: &Mkey) -> Result<()> {
        if key.set_bytes(0) == 0 {
            return Ok(());
        }
        self.post_extended("wr_local_inv", |ex, _| {
            // SAFETY: the extended queue pair exists.
            unsafe {
                if let Some(invalidate) = (*ex).wr_local_inv {
                    invalidate(ex, key.rkey());
                }
            }
        })
    }
}

impl Endpoint for Connection {
    fn abilities(&self) -> Abilities {
        let device = self.device().abilities();
        Abilities {
            sge: device.sge.map(|limits| Limits {
                max_iovs: limits.max_iovs.min(self.options().max_sge),
                max_bytes: limits.max_bytes.min(u64::from(u32::MAX)),
            }),
            umr: device.umr.filter(|_| self.options().maps_keys),
        }
    }

    fn max_message(&self) -> u64 {
        self.device().max_message().max(1)
    }

    fn queue(&self) -> usize {
        self.options().queue as usize
    }

    fn memory_rkey(&self, memory: &Regions) -> Result<u32> {
        memory.rkey()
    }

    unsafe fn write(
        &self,
        memory: &Regions,
        piece: Iov,
        remote: u64,
        rkey: u32,
        id: u64,
    ) -> Result<()> {
        let list = list(memory, &[piece])?;
        // SAFETY: as the caller says, the memory stays until the request has completed.
        unsafe { self.post_write(&list, remote, rkey, id) }
    }

    unsafe fn send(&self, memory: Option<&Regions>, window: &[Iov], id: u64) -> Result<()> {
        let list = match memory {
            Some(memory) => list(memory, window)?,
            None => Vec::new(),
        };
        // SAFETY: as the caller says, the memory stays until the request has completed.
        unsafe { self.post_send(&list, id) }
    }

    unsafe fn receive(&self, memory: &Regions, window: &[Iov], id: u64) -> Result<()> {
        let list = list(memory, window)?;
        // SAFETY: as the caller says, the memory stays, unused by others, until the receive has completed.
        unsafe { self.post_receive(&list, id) }
    }

    fn write_mapped(&self, key: &Mkey, rkey: u32, id: u64) -> Result<()> {
        self.post_mapped(key, rkey, id)
    }

    fn next_sent(&self) -> Result<Option<u64>> {
        Connection::next_sent(self)
    }

    fn next_received(&self) -> Result<Option<Received>> {
        self.poll_receive()
    }

    fn end(&self) {
        // If the device refuses, destroying the queue pair has the same effect.
        let _ = self.disconnect();
    }
}
