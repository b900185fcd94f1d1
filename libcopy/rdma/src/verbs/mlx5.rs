// SPDX-License-Identifier: MIT OR Apache-2.0

//! Mapping indirect memory keys to pieces of memory (mlx5dv_wr_post(3)).
//!
//! Only the list form is used. The interleaved form has byte counts and strides of 16 bits, which the library cuts off
//! without a word, and one entry less.

use std::sync::{Arc, Mutex};

use super::connection::Connection;
use super::device::{Device, INLINE_DATA, Regions, inline_entries};
use super::mkey::Mkey;
use super::sys::{Sge, constant};
use crate::card::Card;
use crate::cut::Limits;
use crate::error::{Error, Result};
use crate::iov::Iov;

/// The keys of a device, mapped through a connection.
#[derive(Debug)]
pub struct UmrCard {
    device: Arc<Device>,
    /// Any of the device's connections will do: mapping is awaited, so it is done before a WRITE on another begins.
    connection: Mutex<Option<Arc<Connection>>>,
}

impl UmrCard {
    /// The card of a device.
    pub fn new(device: &Arc<Device>) -> Arc<UmrCard> {
        Arc::new(UmrCard {
            device: device.clone(),
            connection: Mutex::default(),
        })
    }

    /// Names the connection through which keys are mapped from now on.
    pub fn map_through(&self, connection: &Arc<Connection>) {
        let mut its = self.connection.lock().unwrap_or_else(|e| e.into_inner());
        *its = Some(connection.clone());
    }

    fn connection(&self) -> Result<Arc<Connection>> {
        let its = self.connection.lock().unwrap_or_else(|e| e.into_inner());
        its.clone().ok_or_else(|| {
            Error::NoDevice(format!(
                "{} has no connection to map keys through",
                self.device.name()
            ))
        })
    }
}

impl Card for UmrCard {
    type Key = Mkey;
    type Memory = Regions;

    fn limits(&self) -> Limits {
        Limits {
            max_iovs: inline_entries(INLINE_DATA),
            max_bytes: self.device.max_message().max(1),
        }
    }

    fn rkey(&self, key: &Mkey) -> u32 {
        key.rkey()
    }

    fn register(&self, pieces: &[Iov], is_target: bool) -> Result<Regions> {
        Regions::new(&self.device, pieces, is_target)
    }

    fn map(&self, key: &Mkey, pieces: &[Iov], memory: &Regions, is_target: bool) -> Result<()> {
        let mut list = Vec::with_capacity(pieces.len());
        for piece in pieces {
            let lkey = memory.lkey(piece).ok_or(Error::Register {
                addr: piece.addr,
                len: piece.len,
                errno: libc::EFAULT,
            })?;
            let length = u32::try_from(piece.len).map_err(|_| Error::Register {
                addr: piece.addr,
                len: piece.len,
                errno: libc::EMSGSIZE,
            })?;
            list.push(Sge {
                addr: piece.addr,
                length,
                lkey,
            });
        }
        let access = if is_target {
            constant::ACCESS_LOCAL_WRITE | constant::ACCESS_REMOTE_WRITE
        } else {
            0
        };
        let connection = self.connection()?;
        connection.post_extended("wr_mr_list", |_, ex| {
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
        let bytes = pieces.iter().map(|piece| piece.len).sum();
        key.set_bytes(bytes);
        Ok(())
    }

    fn unmap(&self, key: &Mkey) -> Result<()> {
        if key.set_bytes(0) == 0 {
            return Ok(());
        }
        let connection = self.connection()?;
        connection.post_extended("wr_local_inv", |ex, _| {
            // SAFETY: the extended queue pair exists.
            unsafe {
                if let Some(invalidate) = (*ex).wr_local_inv {
                    invalidate(ex, key.rkey());
                }
            }
        })
    }
}
