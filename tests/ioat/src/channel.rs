// SPDX-License-Identifier: MIT OR Apache-2.0

//! One channel: its registers, the chain of descriptors it works on, and what goes wrong with them.
//!
//! A channel never copies. The engine asks it for its turn, gets a slice of the descriptor in work,
//! copies that (without holding any lock of the channel's), and tells it when that is finished. In
//! between the driver may reset or suspend the channel; the slice is then cancelled, or, when it is
//! already being copied, the reset lasts until that is over: after a reset nothing of the old chain
//! is written any more.

use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;

use crate::access::{Register, merge, parts};
use crate::descriptor::{self, Descriptor, Operation};
use crate::fault::{Faults, Kind};
use crate::memory::{Memory, Missing};
use crate::registers::{Status, chancmd, chanctrl, chanerr, channel as register};

/// The most bytes that a channel copies in one turn.
pub const SLICE: u64 = 64 << 10;

/// What happened on a channel since it was made or its counters were cleared.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize)]
pub struct Counters {
    /// Bytes written to memory by copies, also by those that failed later.
    pub bytes: u64,
    /// Copies that were completed.
    pub copies: u64,
    /// Null descriptors that were completed.
    pub nulls: u64,
    /// Completions written to memory.
    pub completions: u64,
    /// Interrupts sent.
    pub interrupts: u64,
    /// Interrupts that a fault swallowed.
    pub lost_interrupts: u64,
    /// Times that the channel halted with an error.
    pub halts: u64,
    /// Resets by the driver.
    pub resets: u64,
    /// Suspensions by the driver.
    pub suspensions: u64,
    /// Faults that struck.
    pub faults: u64,
}

/// A part of a descriptor that the engine is to copy. Its length is zero for a null descriptor.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Slice {
    /// Address of the first byte to read.
    pub source: u64,
    /// Address of the first byte to write.
    pub destination: u64,
    /// Number of bytes.
    pub length: u64,
    generation: u64,
}

/// What a channel wants from its engine.
#[derive(Debug)]
pub enum Turn {
    /// Nothing.
    Nothing,
    /// Nothing before this time.
    Later(Instant),
    /// To have this copied; [`Channel::finish`] or [`Channel::abandon`] must follow.
    Slice(Slice),
}

struct Current {
    address: u64,
    descriptor: Descriptor,
    /// Bytes copied so far.
    done: u64,
    /// Bytes to copy before the descriptor ends, well or not.
    limit: u64,
    not_before: Option<Instant>,
    fault: Option<Kind>,
}

/// The layout of a channel's registers.
const LAYOUT: [Register; 11] = [
    (register::CHANCTRL, 2),
    (register::DMA_COMP, 2),
    (register::CHANCMD, 1),
    (register::DMACOUNT, 2),
    (register::CHANSTS, 8),
    (register::CHAINADDR, 8),
    (register::CHANCMP, 8),
    (register::CDAR, 8),
    (register::CHANERR, 4),
    (register::CHANERR_MASK, 4),
    (register::DCACTRL, 4),
];

/// Versions 2 and 3 (bits 1 and 2), not 1.
const COMPATIBILITY: u64 = 0x6;

/// A channel.
pub struct Channel {
    /// What goes wrong.
    pub faults: Faults,
    /// What happened.
    pub counters: Counters,
    memory: Arc<Memory>,
    control: u16,
    in_use: bool,
    status: Status,
    /// DMACOUNT, and how many of those descriptors are executed; both wrap.
    count: u16,
    executed: u16,
    chain: u64,
    /// A chain was written that DMACOUNT has not started yet.
    fresh: bool,
    next: u64,
    completed: u64,
    completion_address: u64,
    error: u32,
    error_mask: u32,
    dca: u32,
    /// The interrupt was sent and not re-armed; another one waits; one is to be sent.
    blocked: bool,
    pending: bool,
    signal: bool,
    current: Option<Current>,
    last_address: u64,
    at_engine: bool,
    /// Grows when what the engine has is no longer wanted.
    generation: u64,
    resetting: bool,
    suspending: bool,
    hung: bool,
}

impl Channel {
    /// A channel as after power-on.
    pub fn new(memory: Arc<Memory>) -> Self {
        Self {
            faults: Faults::default(),
            counters: Counters::default(),
            memory,
            control: 0,
            in_use: false,
            status: Status::Halted,
            count: 0,
            executed: 0,
            chain: 0,
            fresh: false,
            next: 0,
            completed: 0,
            completion_address: 0,
            error: 0,
            error_mask: 0,
            dca: 0,
            blocked: false,
            pending: false,
            signal: false,
            current: None,
            last_address: 0,
            at_engine: false,
            generation: 0,
            resetting: false,
            suspending: false,
            hung: false,
        }
    }

    /// The memory that its addresses mean.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// Its state.
    pub fn status(&self) -> Status {
        self.status
    }

    /// The errors that halted it (CHANERR).
    pub fn errors(&self) -> u32 {
        self.error
    }

    /// Clears errors (a one clears).
    pub fn clear_errors(&mut self, bits: u32) {
        self.error &= !bits;
    }

    /// Whether it ignores everything but a reset.
    pub fn is_hung(&self) -> bool {
        self.hung
    }

    /// Reads registers; `offset` is from the start of the channel's block.
    pub fn read(&mut self, offset: u64, data: &mut [u8]) {
        for part in parts(&LAYOUT, offset, data.len()) {
            let value = self.value(part.register);
            if part.register == register::CHANCTRL && part.of_register.end == 2 {
                self.in_use = true;
            }
            data[part.of_access].copy_from_slice(&value.to_le_bytes()[part.of_register]);
        }
    }

    fn value(&self, register: u64) -> u64 {
        match register {
            register::CHANCTRL => {
                let mut value = self.control;
                if self.blocked {
                    value |= chanctrl::INT_REARM;
                }
                if self.in_use {
                    value |= chanctrl::IN_USE;
                }
                value.into()
            }
            register::DMA_COMP => COMPATIBILITY,
            register::CHANCMD if self.resetting => chancmd::RESET.into(),
            register::DMACOUNT => self.count.into(),
            register::CHANSTS => self.completed | self.status as u64,
            register::CHAINADDR => self.chain,
            register::CHANCMP => self.completion_address,
            register::CDAR => self.last_address,
            register::CHANERR => self.error.into(),
            register::CHANERR_MASK => self.error_mask.into(),
            register::DCACTRL => self.dca.into(),
            _ => 0,
        }
    }

    /// Writes registers; `offset` is from the start of the channel's block.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        for part in parts(&LAYOUT, offset, data.len()) {
            let before = match part.register {
                // What is not written must not act.
                register::CHANCMD | register::CHANERR => 0,
                register::CHANCTRL => u64::from(self.control) | u64::from(self.in_use) << 8,
                register => self.value(register),
            };
            let value = merge(before, part.of_register, &data[part.of_access]);
            match part.register {
                register::CHANCTRL => self.set_control(value as u16),
                register::CHANCMD => self.command(value as u8),
                register::DMACOUNT => self.set_count(value as u16),
                register::CHAINADDR => self.set_chain(value),
                register::CHANCMP => self.completion_address = value,
                register::CHANERR => self.clear_errors(value as u32),
                register::CHANERR_MASK => self.error_mask = value as u32,
                register::DCACTRL => self.dca = value as u32,
                _ => {}
            }
        }
    }

    fn set_control(&mut self, value: u16) {
        self.control = value & chanctrl::HELD;
        if value & chanctrl::IN_USE == 0 {
            self.in_use = false;
        }
        if value & chanctrl::INT_REARM != 0 && self.blocked {
            self.blocked = false;
            if self.pending {
                self.pending = false;
                self.interrupt();
            }
        }
    }

    fn set_chain(&mut self, address: u64) {
        self.chain = address;
        self.next = address;
        self.count = 0;
        self.executed = 0;
        self.completed = 0;
        self.fresh = true;
        self.current = None;
        self.generation += 1;
        if self.status == Status::Active {
            self.status = Status::Done;
        }
    }

    fn set_count(&mut self, count: u16) {
        if self.resetting {
            return;
        }
        self.count = count;
        match self.status {
            Status::Halted | Status::Suspended if self.fresh && self.error == 0 => {
                self.fresh = false;
                self.suspending = false;
                if self.chain % descriptor::SIZE as u64 != 0 {
                    self.halt(chanerr::CHAIN_ADDR_VALUE);
                } else {
                    self.run();
                }
            }
            Status::Done | Status::Active => {
                self.fresh = false;
                self.run();
            }
            Status::Halted | Status::Suspended => {}
        }
    }

    /// Active while there is something to do.
    fn run(&mut self) {
        self.status = if self.executed == self.count {
            Status::Done
        } else {
            Status::Active
        };
    }

    fn command(&mut self, command: u8) {
        const KNOWN: u8 = chancmd::RESET | chancmd::RESUME | chancmd::ABORT | chancmd::SUSPEND;
        match command & KNOWN {
            0 => {}
            chancmd::RESET => {
                self.generation += 1;
                self.resetting = true;
                if !self.at_engine {
                    self.end_reset();
                }
            }
            _ if self.hung || self.resetting => {}
            chancmd::SUSPEND => match self.status {
                Status::Active if self.at_engine => self.suspending = true,
                Status::Active | Status::Done => self.suspend(),
                Status::Suspended | Status::Halted => {}
            },
            chancmd::RESUME => {
                self.suspending = false;
                if self.status == Status::Suspended {
                    self.run();
                }
            }
            chancmd::ABORT => {
                self.generation += 1;
                self.current = None;
                self.status = Status::Halted;
            }
            _ => self.halt(chanerr::CHANCMD),
        }
    }

    fn suspend(&mut self) {
        self.suspending = false;
        self.status = Status::Suspended;
        self.counters.suspensions += 1;
    }

    /// What was in work is forgotten, and so is where completions go: the driver tells us again.
    fn end_reset(&mut self) {
        *self = Self {
            faults: std::mem::take(&mut self.faults),
            counters: Counters {
                resets: self.counters.resets + 1,
                ..self.counters
            },
            control: self.control,
            in_use: self.in_use,
            error_mask: self.error_mask,
            dca: self.dca,
            generation: self.generation,
            at_engine: self.at_engine,
            ..Self::new(self.memory.clone())
        };
    }

    /// What the engine should do for this channel now.
    pub fn turn(&mut self, now: Instant) -> Turn {
        if self.status != Status::Active || self.hung || self.at_engine || self.resetting {
            return Turn::Nothing;
        }
        if self.current.is_none() {
            match self.fetch(now) {
                Ok(current) => self.current = Some(current),
                Err(errors) => {
                    self.halt(errors);
                    return Turn::Nothing;
                }
            }
        }
        let Some(current) = &self.current else {
            return Turn::Nothing;
        };
        match current.fault {
            Some(Kind::Hang) => {
                self.hung = true;
                return Turn::Nothing;
            }
            Some(Kind::ReadError) => {
                self.halt(chanerr::READ_DATA);
                return Turn::Nothing;
            }
            Some(Kind::Halt) => {
                self.halt(chanerr::SRC_ADDR);
                return Turn::Nothing;
            }
            _ => {}
        }
        if let Some(time) = current.not_before {
            if time > now {
                return Turn::Later(time);
            }
        }
        let (source, destination) = match current.descriptor.operation {
            Operation::Null => (0, 0),
            Operation::Copy {
                source,
                destination,
                ..
            } => (
                source.wrapping_add(current.done),
                destination.wrapping_add(current.done),
            ),
        };
        self.at_engine = true;
        Turn::Slice(Slice {
            source,
            destination,
            length: (current.limit - current.done).min(SLICE),
            generation: self.generation,
        })
    }

    fn fetch(&mut self, now: Instant) -> Result<Current, u32> {
        let address = self.next;
        self.last_address = address;
        if address % descriptor::SIZE as u64 != 0 {
            return Err(chanerr::NEXT_DESC_ALIGN);
        }
        let mut bytes = [0; descriptor::SIZE];
        self.memory
            .read(address, &mut bytes)
            .map_err(|_| chanerr::NEXT_ADDR)?;
        let descriptor = Descriptor::decode(&bytes)?;
        let (mut limit, mut fault) = (0, None);
        if let Operation::Copy { size, .. } = descriptor.operation {
            limit = size;
            fault = self.faults.strike();
            self.counters.faults += u64::from(fault.is_some());
            if fault == Some(Kind::WriteError) {
                limit = size / 2;
            }
        }
        let not_before = match fault {
            Some(Kind::Delay(time)) => now.checked_add(time),
            _ => None,
        };
        Ok(Current {
            address,
            descriptor,
            done: 0,
            limit,
            not_before,
            fault,
        })
    }

    /// Whether the slice that the engine has need not be copied any more.
    pub fn cancels(&self, slice: &Slice) -> bool {
        slice.generation != self.generation || self.suspending
    }

    /// The engine gives a slice back that it has not begun to copy.
    pub fn abandon(&mut self) {
        self.at_engine = false;
        if self.resetting {
            self.end_reset();
        } else if self.suspending {
            self.suspend();
        }
    }

    /// The engine has copied a slice, or could not.
    pub fn finish(&mut self, slice: &Slice, result: Result<(), Missing>) {
        if result.is_ok() {
            self.counters.bytes += slice.length;
        }
        if slice.generation == self.generation {
            match result {
                Err(Missing::Source) => self.halt(chanerr::SRC_ADDR),
                Err(Missing::Destination) => self.halt(chanerr::DEST_ADDR),
                Ok(()) => {
                    if let Some(mut current) = self.current.take() {
                        current.done += slice.length;
                        if current.done < current.limit {
                            self.current = Some(current);
                        } else if current.fault == Some(Kind::WriteError) {
                            self.halt(chanerr::WRITE_DATA);
                        } else {
                            self.complete(&current);
                        }
                    }
                }
            }
        }
        self.at_engine = false;
        if self.resetting {
            self.end_reset();
        } else if self.suspending {
            if matches!(self.status, Status::Active | Status::Done) {
                self.suspend();
            }
            self.suspending = false;
        }
    }

    fn complete(&mut self, current: &Current) {
        match current.descriptor.operation {
            Operation::Null => self.counters.nulls += 1,
            Operation::Copy {
                destination, size, ..
            } => {
                self.counters.copies += 1;
                if current.fault == Some(Kind::Corrupt) {
                    // It was just written, so it is memory.
                    let _ = self.memory.corrupt(destination + size / 2);
                }
            }
        }
        self.executed = self.executed.wrapping_add(1);
        self.completed = current.address;
        self.next = current.descriptor.next;
        self.run();
        if current.descriptor.completion && !self.write_completion() {
            self.halt(chanerr::COMPLETION_ADDR);
            return;
        }
        if current.descriptor.interrupt {
            if current.fault == Some(Kind::LostInterrupt) {
                self.counters.lost_interrupts += 1;
            } else {
                self.interrupt();
            }
        }
    }

    fn write_completion(&mut self) -> bool {
        let value = self.completed | self.status as u64;
        let written = self.memory.store(self.completion_address, value).is_ok();
        self.counters.completions += u64::from(written);
        written
    }

    fn halt(&mut self, errors: u32) {
        self.error |= errors;
        self.status = Status::Halted;
        self.current = None;
        self.counters.halts += 1;
        if self.control & chanctrl::ERR_COMPLETION_EN != 0 && !self.write_completion() {
            self.error |= chanerr::COMPLETION_ADDR;
        }
        if self.control & chanctrl::ERR_INT_EN != 0 {
            self.interrupt();
        }
    }

    fn interrupt(&mut self) {
        if self.blocked {
            self.pending = true;
        } else {
            self.blocked = true;
            self.signal = true;
        }
    }

    /// Whether an interrupt is to be sent now; asking takes it.
    pub fn take_signal(&mut self) -> bool {
        std::mem::take(&mut self.signal)
    }
}

#[cfg(test)]
mod tests;
