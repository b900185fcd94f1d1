// SPDX-License-Identifier: MIT OR Apache-2.0

//! Requests from inside the guest: a vendor-specific capability in every function's configuration
//! space, which root reaches through `/sys/bus/pci/devices/*/config` whatever driver is bound.
//!
//! A file in a directory that guest and host share would be cached by either side, a socket does
//! not cross the border, and a memory BAR that a driver has claimed cannot be mapped by others
//! (`CONFIG_IO_STRICT_DEVMEM`); a configuration access is synchronous and goes through all of that.
//!
//! | offset | what | access |
//! |---|---|---|
//! | 0x00 | capability header: 0x09, next, length 0x28, version | R |
//! | 0x04 | signature `LCIO` | R |
//! | 0x08 | engine, channel of this function; engines, channels of the model (a byte each) | R |
//! | 0x0c | command: 1 begins a request, 2 executes it; then state: 0 none, 1 done, 2 refused | RW |
//! | 0x10 | length: of the request, before it is executed; of the answer, afterwards | RW |
//! | 0x14 | data: a write appends four bytes to the request, a read takes the next four of the answer | RW |
//! | 0x18 | bytes copied by this channel; reading the low half holds the high half still | R |
//! | 0x20 | copies completed by this channel, likewise | R |
//!
//! A request is a line as on the control socket, see [`crate::control`]. Accesses are of four
//! aligned bytes. Two programs that use one mailbox at the same time must agree on it:
//! [`crate::client`] locks the file.

use crate::topology::{ChannelId, Topology};

/// Bytes of the capability.
pub const SIZE: usize = 0x28;

/// Version of this layout.
pub const VERSION: u8 = 1;

/// What is at [`offset::SIGNATURE`].
pub const SIGNATURE: [u8; 4] = *b"LCIO";

/// Offsets from the start of the capability.
pub mod offset {
    /// The signature.
    pub const SIGNATURE: u64 = 0x04;
    /// Who this function is.
    pub const IDENTITY: u64 = 0x08;
    /// Command and state.
    pub const COMMAND: u64 = 0x0c;
    /// Length of request or answer.
    pub const LENGTH: u64 = 0x10;
    /// Bytes of request or answer.
    pub const DATA: u64 = 0x14;
    /// Bytes copied, 64 bits.
    pub const BYTES: u64 = 0x18;
    /// Copies completed, 64 bits.
    pub const COPIES: u64 = 0x20;
}

/// Values written to [`offset::COMMAND`].
pub mod command {
    /// Forgets request and answer.
    pub const BEGIN: u32 = 1;
    /// Executes the request.
    pub const EXECUTE: u32 = 2;
}

/// Values read from [`offset::COMMAND`].
pub mod state {
    /// No request was executed.
    pub const NONE: u32 = 0;
    /// It was done; the answer is JSON.
    pub const DONE: u32 = 1;
    /// It was refused; the answer says why.
    pub const REFUSED: u32 = 2;
}

/// The longest request.
pub const REQUEST_LIMIT: usize = 4096;

/// The counters that can be read without a request.
#[derive(Clone, Copy, Default)]
pub struct Progress {
    /// Bytes copied.
    pub bytes: u64,
    /// Copies completed.
    pub copies: u64,
}

/// The mailbox of one function.
pub struct Mailbox {
    identity: [u8; 4],
    request: Vec<u8>,
    length: u32,
    answer: Vec<u8>,
    taken: usize,
    state: u32,
    held: [u32; 2],
}

impl Mailbox {
    /// An empty one.
    pub fn new(id: ChannelId, topology: Topology) -> Self {
        Self {
            identity: [id.engine, id.channel, topology.engines, topology.channels],
            request: Vec::new(),
            length: 0,
            answer: Vec::new(),
            taken: 0,
            state: state::NONE,
            held: [0; 2],
        }
    }

    /// Reads four bytes; the header is not ours.
    pub fn read(&mut self, at: u64, progress: impl FnOnce() -> Progress) -> u32 {
        match at {
            offset::SIGNATURE => u32::from_le_bytes(SIGNATURE),
            offset::IDENTITY => u32::from_le_bytes(self.identity),
            offset::COMMAND => self.state,
            offset::LENGTH => self.answer.len() as u32,
            offset::DATA => {
                let mut bytes = [0; 4];
                let rest = self.answer.get(self.taken..).unwrap_or_default();
                let count = rest.len().min(4);
                bytes[..count].copy_from_slice(&rest[..count]);
                self.taken += count;
                u32::from_le_bytes(bytes)
            }
            offset::BYTES => self.hold(0, progress().bytes),
            offset::COPIES => self.hold(1, progress().copies),
            at if at == offset::BYTES + 4 => self.held[0],
            at if at == offset::COPIES + 4 => self.held[1],
            _ => 0,
        }
    }

    fn hold(&mut self, which: usize, value: u64) -> u32 {
        self.held[which] = (value >> 32) as u32;
        value as u32
    }

    /// Writes four bytes; `execute` answers a request, or says why it refuses.
    pub fn write(
        &mut self,
        at: u64,
        value: u32,
        execute: impl FnOnce(&str) -> Result<String, String>,
    ) {
        match (at, value) {
            (offset::COMMAND, command::BEGIN) => {
                self.request.clear();
                self.answer.clear();
                self.length = 0;
                self.taken = 0;
                self.state = state::NONE;
            }
            (offset::COMMAND, command::EXECUTE) => {
                self.taken = 0;
                self.request.truncate(self.length as usize);
                let result = match std::str::from_utf8(&self.request) {
                    Ok(request) => execute(request),
                    Err(error) => Err(format!("the request is no text: {error}")),
                };
                (self.state, self.answer) = match result {
                    Ok(answer) => (state::DONE, answer.into_bytes()),
                    Err(reason) => (state::REFUSED, reason.into_bytes()),
                };
                self.request.clear();
            }
            (offset::LENGTH, _) => self.length = value,
            (offset::DATA, _) if self.request.len() < REQUEST_LIMIT => {
                self.request.extend_from_slice(&value.to_le_bytes());
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mailbox() -> Mailbox {
        Mailbox::new(
            ChannelId {
                engine: 1,
                channel: 3,
            },
            "2x8".parse().expect("valid"),
        )
    }

    fn ask(mailbox: &mut Mailbox, request: &[u8]) -> (u32, Vec<u8>) {
        let refuse = |_: &str| -> Result<String, String> { unreachable!("not executed yet") };
        mailbox.write(offset::COMMAND, command::BEGIN, refuse);
        for word in request.chunks(4) {
            let mut bytes = [b'?'; 4];
            bytes[..word.len()].copy_from_slice(word);
            mailbox.write(offset::DATA, u32::from_le_bytes(bytes), refuse);
        }
        mailbox.write(offset::LENGTH, request.len() as u32, refuse);
        mailbox.write(offset::COMMAND, command::EXECUTE, |text| match text {
            "no" => Err("because".to_owned()),
            text => Ok(text.to_uppercase()),
        });
        let length = mailbox.read(offset::LENGTH, Progress::default) as usize;
        let mut answer: Vec<u8> = (0..length.div_ceil(4))
            .flat_map(|_| mailbox.read(offset::DATA, Progress::default).to_le_bytes())
            .collect();
        answer.truncate(length);
        (mailbox.read(offset::COMMAND, Progress::default), answer)
    }

    #[test]
    fn a_request_is_answered_and_another_one_refused() {
        let mut mailbox = mailbox();
        for request in ["hello", "a", "", "longer than four"] {
            let expected = (state::DONE, request.to_uppercase().into_bytes());
            assert_eq!(ask(&mut mailbox, request.as_bytes()), expected);
        }
        assert_eq!(
            ask(&mut mailbox, b"no"),
            (state::REFUSED, b"because".to_vec())
        );
        assert_eq!(ask(&mut mailbox, &[0xff, 0xfe]).0, state::REFUSED);
        let long = ask(&mut mailbox, &[b'x'; 2 * REQUEST_LIMIT]);
        assert_eq!(
            long,
            (state::DONE, vec![b'X'; REQUEST_LIMIT]),
            "no request grows for ever"
        );
    }

    #[test]
    fn counters_do_not_tear() {
        let mut mailbox = mailbox();
        let at = |bytes| move || Progress { bytes, copies: 7 };
        assert_eq!(mailbox.read(offset::BYTES, at(0xffff_ffff)), 0xffff_ffff);
        assert_eq!(mailbox.read(offset::BYTES + 4, at(0x1_0000_0000)), 0);
        assert_eq!(mailbox.read(offset::BYTES, at(0x1_0000_0000)), 0);
        assert_eq!(mailbox.read(offset::BYTES + 4, at(0)), 1);
        assert_eq!(mailbox.read(offset::COPIES, at(0)), 7);
        assert_eq!(mailbox.read(offset::IDENTITY, at(0)), 0x0802_0301);
    }
}
