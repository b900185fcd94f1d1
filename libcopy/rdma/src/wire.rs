// SPDX-License-Identifier: MIT OR Apache-2.0

//! What all transfers of a link share: the channel, the connection and its queues, staging buffers,
//! memory keys.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::channel::Channel;
use crate::choice::Method;
use crate::choice::{Abilities, Thresholds};
use crate::cut::CutRule;
use crate::endpoint::Endpoint;
use crate::error::{Error, Result};
use crate::gather::{Held, STAGE, Stage};
use crate::iov::Elements;
use crate::keys::{Keys, Mapped, Memory};
use crate::message::Control;
use crate::registrations::Registrations;
use libcopy_datatype::room;

/// A request that a sender has to post. Requests of all transfers are posted in this order, since
/// the peer's receives are in the order of its CTS messages.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Post {
    /// `len` bytes of the staging buffer from `offset` on.
    Write {
        offset: u64,
        len: u64,
        remote: u64,
        rkey: u32,
    },
    /// A window of the list.
    Send(usize),
    /// Meets a receive whose message cannot be sent from here.
    Empty,
    /// A key of the transfer.
    Mapped { index: usize, rkey: u32 },
}

/// Staging buffers that are kept for later messages.
const MAX_STAGES: usize = 2;

#[derive(Debug)]
pub(crate) struct Wire<C, E: Endpoint> {
    /// The peer.
    pub rank: u32,
    pub channel: C,
    pub abilities: Abilities,
    pub thresholds: Thresholds,
    pub rule: CutRule,
    pub only: Option<Method>,
    stages: Vec<Stage<E>>,
    /// Of the elements of messages that were sent by lists.
    registrations: Registrations<E::Memory>,
    /// What is to be posted when the queue has room, with the sender's number of the transfer.
    pub posts: VecDeque<(u32, Post)>,
    /// Requests that were posted to send and have not completed.
    pub sends_pending: usize,
    /// Receives likewise.
    pub receives_pending: usize,
    /// Dropped before the connection, through which its keys are unmapped.
    pub shared: Option<Arc<Mutex<Keys<E>>>>,
    pub endpoint: Arc<E>,
    /// Control messages that were sent, and those that have come: each has its sequence number in
    /// its last bytes.
    sent: u32,
    received: u32,
}

/// Bytes of a sequence number.
const SEQUENCE: usize = size_of::<u32>();

impl<C: Channel, E: Endpoint> Wire<C, E> {
    pub fn new(
        rank: u32,
        channel: C,
        endpoint: Arc<E>,
        shared: Option<Arc<Mutex<Keys<E>>>>,
    ) -> Wire<C, E> {
        let mut abilities = endpoint.abilities();
        if shared.is_none() {
            abilities.umr = None;
        }
        Wire {
            rank,
            channel,
            abilities,
            thresholds: Thresholds::default(),
            rule: CutRule::default(),
            only: None,
            stages: Vec::new(),
            registrations: Registrations::default(),
            posts: VecDeque::new(),
            sends_pending: 0,
            receives_pending: 0,
            shared,
            endpoint,
            sent: 0,
            received: 0,
        }
    }

    pub fn tell(&mut self, message: &Control) -> Result<()> {
        self.send(message.to_bytes()?)
    }

    /// Sends a control message, with its sequence number.
    pub fn send(&mut self, mut message: Vec<u8>) -> Result<()> {
        room::reserve(&mut message, SEQUENCE)?;
        message.extend(self.sent.to_le_bytes());
        self.sent = self.sent.wrapping_add(1);
        self.channel.send(&message)
    }

    /// The next control message, if it has come.
    ///
    /// # Errors
    ///
    /// One that is lost, that comes a second time or that is none: a FIN that comes a second time
    /// could end another offer of the same transfer, whose bytes have not come.
    pub fn receive(&mut self) -> Result<Option<Control>> {
        let Some(bytes) = self.channel.try_receive()? else {
            return Ok(None);
        };
        let Some((message, sequence)) = bytes.split_last_chunk() else {
            return Err(self.corrupt("bytes of a control message", bytes.len() as u64));
        };
        let sequence = u32::from_le_bytes(*sequence);
        if sequence != self.received {
            return Err(self.corrupt("sequence number of a control message", sequence.into()));
        }
        self.received = sequence.wrapping_add(1);
        Control::from_bytes(message, self.rank).map(Some)
    }
}

impl<C, E: Endpoint> Wire<C, E> {
    pub fn corrupt(&self, field: &'static str, value: u64) -> Error {
        Error::corrupt(self.rank, field, value)
    }

    pub fn keys(&self) -> Option<MutexGuard<'_, Keys<E>>> {
        let shared = self.shared.as_ref()?;
        Some(shared.lock().unwrap_or_else(|e| e.into_inner()))
    }

    /// A staging buffer for a message of `bytes`.
    pub fn stage(&mut self, bytes: u64) -> Result<Stage<E>> {
        let len = usize::try_from(bytes).unwrap_or(STAGE).clamp(1, STAGE);
        if let Some(index) = self.stages.iter().position(|its| its.bytes.len() >= len) {
            return Ok(self.stages.swap_remove(index));
        }
        // One that is too short makes room, in particular below the limit of locked memory.
        self.stages.pop();
        Stage::new(&*self.endpoint, len)
    }

    /// Registers the memory of elements, to which bytes go if `is_target`, or finds it registered;
    /// whether it was.
    pub fn register(
        &mut self,
        elements: &Elements,
        memory: Memory,
        is_target: bool,
    ) -> Result<(Arc<E::Memory>, bool)> {
        self.registrations
            .register(&*self.endpoint, elements, memory, is_target)
    }

    /// Lets go of what is kept for a generation of memory.
    ///
    /// # Errors
    ///
    /// Keys that cannot be unmapped.
    pub fn expire(&mut self, generation: u64) -> Result<()> {
        self.registrations.expire(generation);
        match self.keys() {
            Some(mut keys) => keys.expire(&self.endpoint, generation),
            None => Ok(()),
        }
    }

    /// Keeps no registered elements any more.
    pub fn forget_registrations(&mut self) {
        self.registrations.clear();
    }

    /// Gives back what a transfer has held.
    ///
    /// # Errors
    ///
    /// Keys that cannot be unmapped.
    pub fn release(&mut self, held: Held<E>) -> Result<()> {
        match held {
            Held::Nothing | Held::Lists { .. } => Ok(()),
            Held::Stage(stage) => {
                if self.stages.len() < MAX_STAGES {
                    self.stages.push(stage);
                }
                Ok(())
            }
            Held::Keys(mapped) => self.finish(Some(&self.endpoint.clone()), mapped),
        }
    }

    /// Lets go of what a transfer has held, after the connection has ended: nothing of it is used
    /// again.
    pub fn abandon(&mut self, held: Held<E>) {
        if let Held::Keys(mapped) = held {
            // Without a connection keys are destroyed, which cannot fail.
            let _ = self.finish(None, mapped);
        }
    }

    fn finish(&self, endpoint: Option<&Arc<E>>, mapped: Mapped<E>) -> Result<()> {
        match self.keys() {
            Some(mut keys) => keys.finish(endpoint.map(|endpoint| &**endpoint), mapped),
            None => Ok(()),
        }
    }
}
