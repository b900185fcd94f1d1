// SPDX-License-Identifier: MIT OR Apache-2.0

//! A card in software, within one process: keys are lists of pieces, a WRITE copies. For exact counts and for tests on
//! machines without a card; what is measured with it says nothing of a card's speed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::card::Card;
use crate::cut::Limits;
use crate::error::{Error, Result};
use crate::iov::Iov;

/// A card in software.
#[derive(Debug)]
pub struct EmulatedCard {
    limits: Limits,
    keys: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    mapped: HashMap<u32, Option<Vec<Iov>>>,
    next: u32,
}

/// A key of the card.
#[derive(Debug)]
pub struct EmulatedKey {
    number: u32,
    card: Arc<EmulatedCard>,
}

impl Drop for EmulatedKey {
    fn drop(&mut self) {
        self.card.table().mapped.remove(&self.number);
    }
}

fn refused(operation: &'static str, why: &str) -> Error {
    Error::WorkRequest {
        operation,
        status: why.to_owned(),
        code: 10,
    }
}

impl EmulatedCard {
    /// A card with these limits.
    pub fn new(limits: Limits) -> Arc<EmulatedCard> {
        Arc::new(EmulatedCard {
            limits,
            keys: Mutex::default(),
        })
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.keys.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Creates a key.
    pub fn create(self: &Arc<Self>) -> EmulatedKey {
        let mut table = self.table();
        let number = table.next;
        table.next += 1;
        table.mapped.insert(number, None);
        EmulatedKey {
            number,
            card: self.clone(),
        }
    }

    /// Keys that exist, and how many of them are mapped.
    pub fn live(&self) -> (usize, usize) {
        let table = self.table();
        let mapped = table.mapped.values().filter(|list| list.is_some()).count();
        (table.mapped.len(), mapped)
    }

    /// Moves what a key of this card points to into what a key of `peer` points to.
    ///
    /// # Errors
    ///
    /// Keys that are not mapped, or to different numbers of bytes.
    ///
    /// # Safety
    ///
    /// The pieces of the local key are readable and those of the remote key writable memory of this process, to which
    /// nobody else has a reference.
    pub unsafe fn write(&self, key: &EmulatedKey, peer: &EmulatedCard, rkey: u32) -> Result<()> {
        let list = |card: &EmulatedCard, number| {
            let table = card.table();
            table.mapped.get(&number).cloned().flatten()
        };
        let from =
            list(self, key.number).ok_or_else(|| refused("WRITE", "local key not mapped"))?;
        let to = list(peer, rkey).ok_or_else(|| refused("WRITE", "remote key not mapped"))?;
        let bytes = |list: &[Iov]| list.iter().map(|iov| iov.len).sum::<u64>();
        if bytes(&from) != bytes(&to) || bytes(&from) > self.limits.max_bytes {
            return Err(refused("WRITE", "length"));
        }
        let (mut from, mut to) = (from.into_iter(), to.into_iter());
        let mut source: Option<Iov> = None;
        let mut target: Option<Iov> = None;
        loop {
            let (Some(s), Some(t)) = (source.or_else(|| from.next()), target.or_else(|| to.next()))
            else {
                return Ok(());
            };
            let len = s.len.min(t.len);
            // SAFETY: the caller's promise; both pieces have `len` bytes. They may overlap as a card would allow.
            unsafe { std::ptr::copy(s.addr as *const u8, t.addr as *mut u8, len as usize) };
            let rest = |iov: Iov| {
                (iov.len > len).then(|| Iov {
                    addr: iov.addr + len,
                    len: iov.len - len,
                })
            };
            (source, target) = (rest(s), rest(t));
        }
    }
}

impl Card for EmulatedCard {
    type Key = EmulatedKey;
    type Memory = ();

    fn limits(&self) -> Limits {
        self.limits
    }

    fn rkey(&self, key: &EmulatedKey) -> u32 {
        key.number
    }

    fn register(&self, _: &[Iov], _: bool) -> Result<()> {
        Ok(())
    }

    fn map(&self, key: &EmulatedKey, pieces: &[Iov], (): &(), _: bool) -> Result<()> {
        if pieces.len() > self.limits.max_iovs {
            return Err(refused("UMR", "more pieces than max_entries"));
        }
        match self.table().mapped.get_mut(&key.number) {
            Some(list @ None) => {
                *list = Some(pieces.to_vec());
                Ok(())
            }
            Some(Some(_)) => Err(refused("UMR", "the key is mapped already")),
            None => Err(refused("UMR", "no such key")),
        }
    }

    fn unmap(&self, key: &EmulatedKey) -> Result<()> {
        match self.table().mapped.get_mut(&key.number) {
            Some(list) => {
                *list = None;
                Ok(())
            }
            None => Err(refused("LOCAL_INV", "no such key")),
        }
    }
}
