// SPDX-License-Identifier: MIT OR Apache-2.0

//! The handlers on the simulated core: the same calls with the same states, in the core's memory.

use super::commands::Command;
use super::native::NativeHandlers;
use super::program::program;
use crate::card::{Packet, Strategy};
use crate::iss::{Counts, Device, Hart, Memory, Region, Timing, Trap};
use libcopy_nic_handlers::{PaperSegment, Segment, Specialised};
use libcopy_walk::Image;
use thiserror::Error;

const WINDOW: u32 = 0x4000_0000;
const CALL: u32 = 0x1000_0000;
const CALL_BYTES: usize = 32;
const STACK: u32 = 0x1000_8000;
const STACK_BYTES: usize = 0x4000;
const IMAGE: u32 = 0x2000_0000;
const STATES: u32 = 0x3000_0000;
const MASTERS: u32 = 0x3800_0000;
/// Regions, in the order in which they are made.
const CALL_REGION: usize = 1;
const IMAGE_REGION: usize = 3;
const STATES_REGION: usize = 4;
const MASTERS_REGION: usize = 5;
/// Bytes of the states that the handlers' names without a number work on.
const SEGMENT: usize = size_of::<Segment>();
/// Bytes of the states of the handlers whose names end with them.
const PAPER_SEGMENT: usize = size_of::<PaperSegment>();

/// More instructions than any packet takes: each byte of a message passed over.
const BUDGET: u64 = 1 << 34;

/// In the command register: the write makes an event; a stream put; the message's last one
/// (`libcopy_nic_handlers::abi::port`).
const EVENT: u32 = 1 << 31;
const PUT: u32 = 1 << 30;
const END: u32 = 1 << 29;

/// What one handler did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoreRun {
    /// Instructions and cycles, all of them.
    pub counts: Counts,
    /// Cycles before it first looks at the datatype: arguments, and the copy of a checkpoint (the
    /// paper's T_init).
    pub init: u64,
    /// Loads from the datatype's description.
    pub description_loads: u64,
    /// Its commands, each with the cycles from the handler's begin.
    pub commands: Vec<(u64, Command)>,
}

/// Why the handlers of an image cannot run.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum CoreError {
    /// The core stopped.
    #[error("the handler stopped")]
    Trap(#[from] Trap),
    /// There is no specialised handler for the image.
    #[error("there is no specialised handler for this image")]
    NoHandler,
}

/// The port of a core: three registers.
#[derive(Debug, Default)]
struct Port {
    host: u32,
    position: u32,
    commands: Vec<(u64, Command)>,
}

impl Device for Port {
    fn store(&mut self, offset: u32, value: u32, cycles: u64) -> bool {
        match offset {
            0 => self.host = value,
            4 => self.position = value,
            8 => {
                let (host, position) = (self.host as i32, self.position);
                let bytes = value & (END - 1);
                let command = if value & EVENT != 0 {
                    Command::Event
                } else if value & PUT != 0 {
                    Command::Put {
                        host,
                        position,
                        bytes,
                        is_end: value & END != 0,
                    }
                } else {
                    Command::Write {
                        host,
                        packet: position,
                        bytes,
                    }
                };
                self.commands.push((cycles, command));
            }
            _ => return false,
        }
        true
    }

    fn load(&mut self, _: u32) -> Option<u32> {
        None
    }
}

/// The handlers of one message on a core.
#[derive(Debug)]
pub struct CoreHandlers {
    hart: Hart<Port>,
    entry: u32,
    words: u32,
    interval: u32,
    checkpoints: u32,
    /// Bytes of a state.
    segment: usize,
    /// Which state a packet has is the same question as natively.
    native: NativeHandlers,
    strategy: Strategy,
}

/// The bytes of states in the core's memory, `segment` bytes each. A state with more frames begins
/// as one with fewer.
fn bytes_of(states: &[Segment], segment: usize) -> Vec<u8> {
    // SAFETY: a state is words of 32 bits in the order of C (`repr(C)`, its size is asserted in
    // libcopy-walk), without padding, and lives as long as the slice.
    let bytes = unsafe {
        std::slice::from_raw_parts(
            states.as_ptr().cast::<u8>(),
            size_of_val::<[Segment]>(states),
        )
    };
    let mut all = vec![0; states.len() * segment];
    for (to, from) in all
        .chunks_exact_mut(segment)
        .zip(bytes.chunks_exact(SEGMENT))
    {
        to[..SEGMENT].copy_from_slice(from);
    }
    if !cfg!(target_endian = "little") {
        for word in all.chunks_exact_mut(4) {
            word.reverse();
        }
    }
    all
}

impl CoreHandlers {
    /// The handlers for an image; see [`NativeHandlers::new`].
    ///
    /// # Errors
    ///
    /// [`CoreError::NoHandler`] for [`Strategy::Specialized`].
    pub fn new(
        image: Vec<u32>,
        strategy: Strategy,
        vhpus: u64,
        interval: u32,
        timing: Timing,
    ) -> Result<CoreHandlers, CoreError> {
        Self::with_segment(image, strategy, vhpus, interval, timing, SEGMENT)
    }

    /// The handlers for an image with states of 612 bytes, as the paper's are. Only strategies that
    /// copy them have handlers for that: RO-CP and RW-CP. The image has at most as many levels as
    /// [`Segment`] has frames, so that all else is equal.
    ///
    /// # Errors
    ///
    /// [`CoreError::NoHandler`] for other strategies and deeper images.
    pub fn with_paper_segment(
        image: Vec<u32>,
        strategy: Strategy,
        interval: u32,
        timing: Timing,
    ) -> Result<CoreHandlers, CoreError> {
        if Image::trusted(&image).depth() as usize > libcopy_nic_handlers::DEPTH {
            return Err(CoreError::NoHandler);
        }
        Self::with_segment(image, strategy, 1, interval, timing, PAPER_SEGMENT)
    }

    fn with_segment(
        image: Vec<u32>,
        strategy: Strategy,
        vhpus: u64,
        interval: u32,
        timing: Timing,
        segment: usize,
    ) -> Result<CoreHandlers, CoreError> {
        let program = program();
        let mut name = match strategy {
            Strategy::Specialized => match Specialised::of_root(Image::trusted(&image)) {
                Some(handler) => handler.name().replace('-', "_"),
                None => return Err(CoreError::NoHandler),
            },
            other => other.name().replace("hpu-", "").replace('-', "_"),
        };
        if segment == PAPER_SEGMENT {
            name += "_612";
        }
        let entry = program.handlers.get(&name);
        let entry = *entry.ok_or(CoreError::NoHandler)?;
        let words = image.len() as u32;
        let image_bytes = image.iter().flat_map(|word| word.to_le_bytes()).collect();
        let native = NativeHandlers::new(image, strategy, vhpus, interval);
        let states = bytes_of(native.masters(), segment);
        let checkpoints = native.masters().len() as u32;
        let memory = Memory::new(vec![
            program.code.clone(),
            Region::data(CALL, vec![0; CALL_BYTES]),
            Region::data(STACK - STACK_BYTES as u32, vec![0; STACK_BYTES]),
            Region::data(IMAGE, image_bytes).read_only(),
            Region::data(STATES, states.clone()),
            Region::data(MASTERS, states).read_only(),
        ]);
        Ok(CoreHandlers {
            hart: Hart::new(memory, Port::default(), WINDOW, 12, timing),
            entry,
            words,
            interval,
            checkpoints,
            segment,
            native,
            strategy,
        })
    }

    /// Lets each load from the datatype's description take `wait` more cycles: it lies in a memory
    /// behind the core's own.
    pub fn set_description_wait(&mut self, wait: u32) {
        self.hart.memory.region_mut(IMAGE_REGION).set_wait(wait);
    }

    /// Puts a state into the core's memory, in place of state `index`.
    pub fn set_state(&mut self, index: usize, state: &Segment) {
        let bytes = bytes_of(std::slice::from_ref(state), self.segment);
        let place = self.hart.memory.region_mut(STATES_REGION).bytes_mut();
        place[index * self.segment..][..self.segment].copy_from_slice(&bytes);
    }

    /// Runs the payload handler of a packet.
    ///
    /// # Errors
    ///
    /// What stopped the core.
    pub fn payload(&mut self, packet: &Packet) -> Result<CoreRun, CoreError> {
        self.run(self.entry, packet)
    }

    /// Runs the completion handler.
    ///
    /// # Errors
    ///
    /// As [`CoreHandlers::payload`].
    pub fn completion(&mut self) -> Result<CoreRun, CoreError> {
        self.named("completion", &Packet::default())
    }

    /// Runs the handler of an outgoing packet: process-put.
    ///
    /// # Errors
    ///
    /// As [`CoreHandlers::payload`].
    pub fn process_put(&mut self, packet: &Packet) -> Result<CoreRun, CoreError> {
        self.named("process_put", packet)
    }

    fn named(&mut self, name: &str, packet: &Packet) -> Result<CoreRun, CoreError> {
        let entry = program().handlers.get(name);
        self.run(*entry.ok_or(CoreError::NoHandler)?, packet)
    }

    fn run(&mut self, entry: u32, packet: &Packet) -> Result<CoreRun, CoreError> {
        let offset = (self.native.state_of(packet) * self.segment) as u32;
        let checkpoint = match self.strategy {
            Strategy::RwCp => MASTERS + offset,
            _ => MASTERS,
        };
        // `struct libcopy_nic_call` with pointers of 32 bits.
        let call = [
            IMAGE,
            self.words,
            packet.offset as u32,
            packet.bytes as u32,
            self.interval,
            STATES + offset,
            checkpoint,
            self.checkpoints,
        ];
        let place = self.hart.memory.region_mut(CALL_REGION).bytes_mut();
        for (to, word) in place.chunks_exact_mut(4).zip(call) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        for region in [IMAGE_REGION, MASTERS_REGION] {
            self.hart.memory.region_mut(region).forget_loads();
        }
        let begin = self.hart.counts().cycles;
        let (_, counts) = self.hart.call(entry, &[CALL, WINDOW], STACK, BUDGET)?;
        let mut commands = std::mem::take(&mut self.hart.device.commands);
        for (cycles, _) in &mut commands {
            *cycles -= begin;
        }
        let copied = self.hart.memory.region(MASTERS_REGION).loads();
        let described = self.hart.memory.region(IMAGE_REGION).loads();
        let init = if copied.count > 0 {
            copied.last + 1 - begin
        } else {
            described.first.saturating_sub(begin)
        };
        Ok(CoreRun {
            counts,
            init,
            description_loads: described.count,
            commands,
        })
    }
}

/// Cycles in which the handlers' binary copies `bytes` bytes, a multiple of four, as it copies a
/// checkpoint from the memory of checkpoints to the stack.
///
/// # Errors
///
/// What stopped the core.
pub fn copy_cycles(bytes: usize) -> Result<u64, CoreError> {
    let program = program();
    let entry = program.functions.get("memcpy");
    let entry = *entry.ok_or(CoreError::NoHandler)?;
    let memory = Memory::new(vec![
        program.code.clone(),
        Region::data(STACK - STACK_BYTES as u32, vec![0; STACK_BYTES]),
        Region::data(STATES, vec![0; bytes]),
        Region::data(MASTERS, vec![0x5a; bytes]).read_only(),
    ]);
    let mut hart = Hart::new(memory, Port::default(), WINDOW, 12, Timing::CV32E40P);
    let arguments = [STATES, MASTERS, bytes as u32];
    let (_, counts) = hart.call(entry, &arguments, STACK, BUDGET)?;
    debug_assert!(
        hart.memory
            .region(2)
            .bytes()
            .iter()
            .all(|byte| *byte == 0x5a)
    );
    Ok(counts.cycles)
}
