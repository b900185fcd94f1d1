// SPDX-License-Identifier: MIT OR Apache-2.0

//! What transfers need of a connection, over verbs: registered memory, requests, and indirect
//! memory keys that are mapped to pieces of memory (mlx5dv_wr_post(3)).

use std::sync::{Arc, Mutex};

use super::connection::Connection;
use super::device::{Device, INLINE_DATA, Regions, inline_entries};
use super::mkey::Mkey;
use super::sys::{Mlx5Interleaved, Sge, constant};
use crate::card::Card;
use crate::choice::Abilities;
use crate::cut::Limits;
use crate::endpoint::{Endpoint, Received};
use crate::error::{Error, Result};
use crate::iov::Iov;
use crate::keys::Keys;
use crate::pool::{Pool, PoolSize};

/// Memory keys for all connections of a device. None if the device has no such keys, or none left
/// to give: messages are moved in the other ways then.
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

/// The block whose repetitions are a list's pieces, if that takes fewer entries of the request than
/// the list does: equal pieces of one region, at equal distances. The interleaved form takes one
/// entry more than it has blocks.
///
/// Byte counts and strides have 16 bits in a request, and the library cuts off what is above
/// (rdma-core, providers/mlx5/qp.c: `umr_strided_seg_create`). Longer ones need the list.
fn interleaved(list: &[Sge]) -> Option<Mlx5Interleaved> {
    const ENTRIES: usize = 2;
    const MAX: u32 = u16::MAX as u32;
    let [first, second, ..] = list else {
        return None;
    };
    let stride = second.addr.checked_sub(first.addr)?;
    let skip = u32::try_from(stride).ok()?.checked_sub(first.length)?;
    let is_repeated = list.windows(2).all(|two| {
        two[1].addr.checked_sub(two[0].addr) == Some(stride)
            && two[1].length == first.length
            && two[1].lkey == first.lkey
    });
    let fits = list.len() > ENTRIES && first.length <= MAX && first.length + skip <= MAX;
    (is_repeated && fits).then_some(Mlx5Interleaved {
        addr: first.addr,
        bytes_count: first.length,
        bytes_skip: skip,
        lkey: first.lkey,
    })
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

    unsafe fn register(&self, pieces: &[Iov], is_target: bool) -> Result<Regions> {
        // SAFETY: the caller keeps the promises.
        unsafe { Regions::new(self.device(), pieces, is_target) }
    }

    unsafe fn map(
        &self,
        key: &Mkey,
        pieces: &[Iov],
        memory: &Regions,
        is_target: bool,
    ) -> Result<()> {
        let mut list = list(memory, pieces)?;
        let access = if is_target {
            constant::ACCESS_LOCAL_WRITE | constant::ACCESS_REMOTE_WRITE
        } else {
            0
        };
        match interleaved(&list) {
            Some(mut block) => self.post_extended("wr_mr_interleaved", |_, ex| {
                // SAFETY: the extended queue pair exists; the block is copied into the request.
                unsafe {
                    if let Some(map) = (*ex).wr_mr_interleaved {
                        let repeat = list.len() as u32;
                        map(ex, key.as_ptr(), access, repeat, 1, &raw mut block);
                    }
                }
            })?,
            None => self.post_extended("wr_mr_list", |_, ex| {
                let count = list.len() as u16;
                // SAFETY: the extended queue pair exists; the list is copied into the request.
                unsafe {
                    if let Some(map) = (*ex).wr_mr_list {
                        map(ex, key.as_ptr(), access, count, list.as_mut_ptr());
                    }
                }
            })?,
        }
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
        // SAFETY: as the caller says, the memory stays, unused by others, until the receive has
        // completed.
        unsafe { self.post_receive(&list, id) }
    }

    fn write_mapped(&self, key: &Mkey, rkey: u32, id: u64) -> Result<()> {
        self.post_mapped(key, rkey, id)
    }

    fn next_sent(&self) -> Result<Option<u64>> {
        Connection::next_sent(self)
    }

    fn next_received(&self) -> Result<Option<Received>> {
        Connection::next_received(self)
    }

    fn end(&self) {
        // If the device refuses, destroying the queue pair has the same effect.
        let _ = self.disconnect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strided(count: u64, length: u32, stride: u64) -> Vec<Sge> {
        let entry = |index: u64| Sge {
            addr: (1 << 40) + index * stride,
            length,
            lkey: 7,
        };
        (0..count).map(entry).collect()
    }

    #[test]
    fn equal_pieces_at_equal_distances_are_a_repeated_block() {
        let block = Mlx5Interleaved {
            addr: 1 << 40,
            bytes_count: 512,
            bytes_skip: 1536,
            lkey: 7,
        };
        assert_eq!(interleaved(&strided(32, 512, 2048)), Some(block));
        // Two pieces take as many entries in a list.
        assert!(interleaved(&strided(3, 512, 2048)).is_some());
        assert_eq!(interleaved(&strided(2, 512, 2048)), None);
        assert_eq!(interleaved(&[]), None);
    }

    #[test]
    fn byte_counts_and_strides_of_a_repeated_block_have_16_bits() {
        assert!(interleaved(&strided(8, 512, 65535)).is_some());
        assert_eq!(interleaved(&strided(8, 512, 65536)), None);
        assert_eq!(interleaved(&strided(8, 512, (1 << 32) + 2048)), None);
        assert!(interleaved(&strided(8, 65535, 65535)).is_some());
        assert_eq!(interleaved(&strided(8, 65536, 65536)), None);
    }

    #[test]
    fn pieces_that_no_block_repeats_need_a_list() {
        let right = strided(8, 512, 2048);
        let changed = |index: usize, change: fn(&mut Sge)| {
            let mut list = right.clone();
            change(&mut list[index]);
            interleaved(&list)
        };
        // The first and the last piece of a window may be parts of blocks.
        for index in [0, 3, 7] {
            assert_eq!(changed(index, |piece| piece.length -= 1), None, "{index}");
            assert_eq!(changed(index, |piece| piece.addr += 1), None, "{index}");
            assert_eq!(changed(index, |piece| piece.lkey += 1), None, "{index}");
        }
        let backwards: Vec<Sge> = right.iter().rev().copied().collect();
        assert_eq!(interleaved(&backwards), None);
        // Overlapping pieces.
        assert_eq!(interleaved(&strided(8, 512, 511)), None);
    }
}
