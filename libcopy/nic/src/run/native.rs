// SPDX-License-Identifier: MIT OR Apache-2.0

//! The handlers as functions of this process.

use super::commands::Command;
use crate::card::{Packet, Strategy};
use libcopy_nic_handlers as handlers;
use libcopy_nic_handlers::{Nic, Segment, Specialised};
use libcopy_walk::Image;

struct Recorder<'a>(&'a mut Vec<Command>);

impl Nic for Recorder<'_> {
    fn dma_to_host(&mut self, host: i32, packet: u32, len: u32) {
        self.0.push(Command::Write {
            host,
            packet,
            bytes: len,
        });
    }

    fn dma_event(&mut self) {
        self.0.push(Command::Event);
    }

    fn stream_put(&mut self, host: i32, position: u32, len: u32, is_end: bool) {
        self.0.push(Command::Put {
            host,
            position,
            bytes: len,
            is_end,
        });
    }
}

/// The handlers of one message, with their states.
#[derive(Clone, Debug)]
pub struct NativeHandlers {
    image: Vec<u32>,
    strategy: Strategy,
    interval: u32,
    states: Vec<Segment>,
    masters: Vec<Segment>,
}

impl NativeHandlers {
    /// The handlers for an image that `Layout::image` made: `vhpus` states (HPU-local), or
    /// checkpoints every `interval` bytes (RO-CP and RW-CP).
    pub fn new(image: Vec<u32>, strategy: Strategy, vhpus: u64, interval: u32) -> NativeHandlers {
        let view = Image::trusted(&image);
        let masters: Vec<Segment> = match strategy {
            Strategy::HpuLocal => vec![Segment::start(view); vhpus.max(1) as usize],
            Strategy::RoCp | Strategy::RwCp => handlers::checkpoints(view, interval).collect(),
            Strategy::Specialized | Strategy::Seek => Vec::new(),
        };
        NativeHandlers {
            image,
            strategy,
            interval,
            states: masters.clone(),
            masters,
        }
    }

    /// Which state a packet's handler works on.
    pub fn state_of(&self, packet: &Packet) -> usize {
        match self.strategy {
            Strategy::HpuLocal => packet.vhpu as usize,
            Strategy::RwCp => {
                handlers::nearest(self.masters.len(), self.interval, packet.offset as u32)
            }
            _ => 0,
        }
    }

    /// The states as the host makes them.
    pub fn masters(&self) -> &[Segment] {
        &self.masters
    }

    /// Where a state is now.
    ///
    /// # Panics
    ///
    /// If there is no state `index`.
    pub fn state(&self, index: usize) -> &Segment {
        &self.states[index]
    }

    /// How many states there are.
    pub fn states(&self) -> usize {
        self.states.len()
    }

    /// The image.
    pub fn image(&self) -> Image<'_> {
        Image::trusted(&self.image)
    }

    /// Runs the handler of an outgoing packet, process-put, and appends its commands.
    pub fn process_put(&self, packet: &Packet, commands: &mut Vec<Command>) {
        let part = handlers::Packet {
            position: packet.offset as u32,
            len: packet.bytes as u32,
        };
        handlers::process_put(self.image(), part, &mut Recorder(commands));
    }

    /// Runs the payload handler of a packet and appends its commands. False if there is no
    /// specialised handler for the image.
    pub fn payload(&mut self, packet: &Packet, commands: &mut Vec<Command>) -> bool {
        let image = Image::trusted(&self.image);
        let index = self.state_of(packet);
        let mut nic = Recorder(commands);
        let part = handlers::Packet {
            position: packet.offset as u32,
            len: packet.bytes as u32,
        };
        match self.strategy {
            Strategy::Specialized => match Specialised::of_root(image) {
                Some(handler) => handler.payload(image, part, &mut nic),
                None => return false,
            },
            Strategy::HpuLocal => {
                handlers::local(image, &mut self.states[index], part, &mut nic);
            }
            Strategy::RoCp => {
                handlers::read_only(image, &self.masters, self.interval, part, &mut nic);
            }
            Strategy::RwCp => {
                let (state, master) = (&mut self.states[index], &self.masters[index]);
                handlers::read_write(image, state, master, part, &mut nic);
            }
            Strategy::Seek => handlers::seek(image, part, &mut nic),
        }
        true
    }
}
