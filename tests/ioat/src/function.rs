// SPDX-License-Identifier: MIT OR Apache-2.0

//! A PCI function: the registers of the device around one channel, and its interrupt.

use std::fs::File;
use std::io::Write;
use std::sync::Arc;

use crate::access::{Register, merge, parts};
use crate::channel::Channel;
use crate::memory::Memory;
use crate::registers::{CHANNEL, VERSION, XFERCAP, device, intrctrl};

/// Where interrupts go: event descriptors of the virtual machine monitor, one per way to interrupt.
#[derive(Default)]
pub struct Interrupts {
    /// MSI-X vector 0.
    pub msix: Option<File>,
    /// MSI.
    pub msi: Option<File>,
}

impl Interrupts {
    /// Sends one; `false` when nobody listens.
    fn send(&self) -> bool {
        match self.msix.as_ref().or(self.msi.as_ref()) {
            // An event descriptor takes eight bytes and adds them to what it has.
            Some(mut event) => event.write_all(&1u64.to_ne_bytes()).is_ok(),
            None => false,
        }
    }
}

const LAYOUT: [Register; 7] = [
    (device::CHANCNT, 1),
    (device::XFERCAP, 1),
    (device::INTRCTRL, 1),
    (device::ATTNSTATUS, 4),
    (device::VER, 1),
    (device::INTRDELAY, 2),
    (device::DMACAPABILITY, 4),
];

/// Bit 15 would say that interrupts are coalesced.
const INTRDELAY_MASK: u16 = 0x3fff;

/// A function.
pub struct Function {
    /// Its channel.
    pub channel: Channel,
    /// Where its interrupts go.
    pub interrupts: Interrupts,
    control: u8,
    attention: bool,
    delay: u16,
}

impl Function {
    /// A function as after power-on.
    pub fn new(memory: Arc<Memory>) -> Self {
        Self {
            channel: Channel::new(memory),
            interrupts: Interrupts::default(),
            control: 0,
            attention: false,
            delay: 0,
        }
    }

    /// Reads from BAR 0.
    pub fn read(&mut self, offset: u64, data: &mut [u8]) {
        data.fill(0);
        for part in parts(&LAYOUT, offset, data.len()) {
            let value: u64 = match part.register {
                device::CHANCNT => 1,
                device::XFERCAP => XFERCAP.into(),
                device::INTRCTRL => {
                    let value = self.control();
                    self.control &= !intrctrl::MASTER_INT_EN;
                    value.into()
                }
                device::ATTNSTATUS => std::mem::take(&mut self.attention).into(),
                device::VER => VERSION.into(),
                device::INTRDELAY => self.delay.into(),
                _ => 0,
            };
            data[part.of_access].copy_from_slice(&value.to_le_bytes()[part.of_register]);
        }
        if let Some((skip, within)) = in_channel(offset, data.len()) {
            self.channel.read(within, &mut data[skip..]);
        }
    }

    fn control(&self) -> u8 {
        let mut value = self.control;
        if self.attention {
            value |= intrctrl::INT_STATUS;
            if value & intrctrl::MASTER_INT_EN != 0 {
                value |= intrctrl::INT;
            }
        }
        value
    }

    /// Writes to BAR 0.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        for part in parts(&LAYOUT, offset, data.len()) {
            let value = |before: u64| {
                merge(
                    before,
                    part.of_register.clone(),
                    &data[part.of_access.clone()],
                )
            };
            match part.register {
                device::INTRCTRL => {
                    let held = intrctrl::MASTER_INT_EN | intrctrl::MSIX_VECTOR_CONTROL;
                    self.control = value(0) as u8 & held;
                    if self.attention && self.control & intrctrl::MASTER_INT_EN != 0 {
                        self.send();
                    }
                }
                device::INTRDELAY => self.delay = value(self.delay.into()) as u16 & INTRDELAY_MASK,
                _ => {}
            }
        }
        if let Some((skip, within)) = in_channel(offset, data.len()) {
            self.channel.write(within, &data[skip..]);
        }
        self.deliver();
    }

    /// Sends the interrupt that the channel asks for, if any.
    pub fn deliver(&mut self) {
        if self.channel.take_signal() {
            self.attention = true;
            if self.control & intrctrl::MASTER_INT_EN != 0 {
                self.send();
            }
        }
    }

    fn send(&mut self) {
        self.channel.counters.interrupts += u64::from(self.interrupts.send());
    }

    /// A reset of the whole function: as after power-on. What a slice that is being copied still
    /// writes goes to memory of the old owner; the engine is told that nobody wants it.
    pub fn reset(&mut self) {
        use crate::registers::{chancmd, channel};
        self.channel.write(channel::CHANCMD, &[chancmd::RESET]);
        self.channel.write(channel::CHANCTRL, &[0, 0]);
        self.control = 0;
        self.attention = false;
        self.delay = 0;
    }
}

/// Where the channel's block begins in an access: bytes to skip, and the offset in the block.
fn in_channel(offset: u64, length: usize) -> Option<(usize, u64)> {
    let skip = CHANNEL.saturating_sub(offset);
    (skip < length as u64 && offset < 2 * CHANNEL)
        .then(|| (skip as usize, offset.max(CHANNEL) - CHANNEL))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registers::{chanctrl, channel};

    fn byte(function: &mut Function, offset: u64) -> u8 {
        let mut data = [0];
        function.read(offset, &mut data);
        data[0]
    }

    #[test]
    fn the_device_says_what_it_is() {
        let mut function = Function::new(Arc::default());
        assert_eq!(byte(&mut function, device::CHANCNT), 1);
        assert_eq!(byte(&mut function, device::XFERCAP), 20);
        assert_eq!(byte(&mut function, device::VER), 0x32);
        let mut all = [0xff; 0x100];
        function.read(0, &mut all);
        assert_eq!(all[..4], [1, 20, 0, 0]);
        assert_eq!(all[0x88] & 7, 3, "halted");
        assert_eq!(all[0x20..0x80], [0; 0x60], "nothing between");
        function.write(device::CHANCNT, &[9]);
        assert_eq!(byte(&mut function, device::CHANCNT), 1);
    }

    #[test]
    fn reading_the_interrupt_control_disables_and_reading_attention_clears() {
        let mut function = Function::new(Arc::default());
        let error_interrupt = chanctrl::ERR_INT_EN.to_le_bytes();
        function.write(device::INTRCTRL, &[intrctrl::MASTER_INT_EN]);
        function.write(CHANNEL + channel::CHANCTRL, &error_interrupt);
        // Two commands at once are an error.
        function.write(CHANNEL + channel::CHANCMD, &[0x0c]);
        assert_eq!(byte(&mut function, device::INTRCTRL), 0x07);
        assert_eq!(byte(&mut function, device::INTRCTRL), 0x02);
        assert_eq!(byte(&mut function, device::ATTNSTATUS), 1);
        assert_eq!(byte(&mut function, device::ATTNSTATUS), 0);
        function.write(device::INTRCTRL, &[0xff]);
        assert_eq!(byte(&mut function, device::INTRCTRL), 0x09);
    }

    #[test]
    fn accesses_across_blocks_reach_both() {
        let mut function = Function::new(Arc::default());
        function.write(0x7e, &[0xff, 0xff, 0x30, 0x00]);
        let mut data = [0; 4];
        function.read(0x7e, &mut data);
        assert_eq!(data, [0, 0, 0x30, 0]);
    }
}
