// SPDX-License-Identifier: MIT OR Apache-2.0

//! A core: registers, and a loop that executes.

use super::instruction::{Alu, Condition, Instruction, MulDiv, Operation, Width};
use super::memory::{Access, Device, Fetched, Memory};
use super::timing::Timing;
use super::trap::Trap;
use std::ops::{Add, Sub};

/// Where a called function returns to; no region can hold code there, as the last instruction would
/// pass the end of the address space.
pub const RETURN: u32 = 0xffff_fffe;

/// What has been executed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Instructions.
    pub instructions: u64,
    /// Cycles.
    pub cycles: u64,
}

impl Sub for Counts {
    type Output = Counts;

    fn sub(self, other: Counts) -> Counts {
        Counts {
            instructions: self.instructions - other.instructions,
            cycles: self.cycles - other.cycles,
        }
    }
}

impl Add for Counts {
    type Output = Counts;

    fn add(self, other: Counts) -> Counts {
        Counts {
            instructions: self.instructions + other.instructions,
            cycles: self.cycles + other.cycles,
        }
    }
}

/// A core with its memory and its device registers.
#[derive(Clone, Debug)]
pub struct Hart<D> {
    /// The memory.
    pub memory: Memory,
    /// What is behind the device registers.
    pub device: D,
    timing: Timing,
    /// First and last address of the device registers.
    window: (u32, u32),
    registers: [u32; 32],
    pc: u32,
    counts: Counts,
    /// The register that the instruction before has loaded, or 0.
    loaded: u8,
}

impl<D: Device> Hart<D> {
    /// A core whose device registers are the `bytes` bytes at `window`.
    ///
    /// # Panics
    ///
    /// If the window is empty or passes the end of the address space.
    pub fn new(memory: Memory, device: D, window: u32, bytes: u32, timing: Timing) -> Hart<D> {
        let last = bytes
            .checked_sub(1)
            .and_then(|behind| window.checked_add(behind))
            .expect("the window of device registers lies in the address space");
        Hart {
            memory,
            device,
            timing,
            window: (window, last),
            registers: [0; 32],
            pc: 0,
            counts: Counts::default(),
            loaded: 0,
        }
    }

    /// All that has been executed.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// A register.
    ///
    /// # Panics
    ///
    /// If it is not below 32.
    pub fn register(&self, register: usize) -> u32 {
        self.registers[register]
    }

    /// Calls the function at `entry` with up to eight arguments by the standard calling convention,
    /// with the stack below `stack`, and returns what it returns in a0, and what it took.
    ///
    /// # Errors
    ///
    /// A trap; more instructions than `budget`.
    ///
    /// # Panics
    ///
    /// If there are more than eight arguments.
    pub fn call(
        &mut self,
        entry: u32,
        arguments: &[u32],
        stack: u32,
        budget: u64,
    ) -> Result<(u32, Counts), Trap> {
        self.registers = [0; 32];
        self.registers[1] = RETURN;
        self.registers[2] = stack & !15;
        self.registers[10..][..arguments.len()].copy_from_slice(arguments);
        self.pc = entry;
        self.loaded = 0;
        let before = self.counts;
        let end = before.instructions.saturating_add(budget);
        while self.pc != RETURN {
            if self.counts.instructions >= end {
                return Err(Trap::Budget {
                    pc: self.pc,
                    instructions: budget,
                });
            }
            self.step()?;
        }
        Ok((self.registers[10], self.counts - before))
    }

    /// Executes one instruction.
    fn step(&mut self) -> Result<(), Trap> {
        let pc = self.pc;
        let (instruction, length) = match self.memory.fetch(pc) {
            Fetched::Instruction(instruction, length) => (instruction, length),
            Fetched::Illegal(bits) => return Err(Trap::Illegal { pc, bits }),
            Fetched::Nothing => {
                return Err(Trap::Memory {
                    pc,
                    access: Access::Fetch,
                    address: pc,
                    bytes: 2,
                });
            }
        };
        let mut cycles = 1;
        if instruction.reads(self.loaded) {
            cycles += self.timing.load_use;
        }
        self.loaded = 0;
        let Instruction {
            rd,
            rs1,
            rs2,
            immediate,
            ..
        } = instruction;
        let (a, b) = (self.registers[rs1 as usize], self.registers[rs2 as usize]);
        let immediate = immediate as u32;
        let mut next = pc.wrapping_add(u32::from(length));
        let value = match instruction.operation {
            Operation::Lui => immediate,
            Operation::Auipc => pc.wrapping_add(immediate),
            Operation::Jal => {
                cycles += self.timing.jump - 1;
                std::mem::replace(&mut next, pc.wrapping_add(immediate))
            }
            Operation::Jalr => {
                cycles += self.timing.jump - 1;
                std::mem::replace(&mut next, a.wrapping_add(immediate) & !1)
            }
            Operation::Branch(condition) => {
                if holds(condition, a, b) {
                    cycles += self.timing.taken_branch - 1;
                    next = pc.wrapping_add(immediate);
                }
                0
            }
            Operation::Load(width) => {
                let (value, wait) = self.load(a.wrapping_add(immediate), width)?;
                cycles += wait;
                self.loaded = rd;
                value
            }
            Operation::Store(width) => {
                cycles += self.store(a.wrapping_add(immediate), width.bytes(), b)?;
                0
            }
            Operation::AluImmediate(op) => alu(op, a, immediate),
            Operation::Alu(op) => alu(op, a, b),
            Operation::MulDiv(op) => {
                cycles += match op {
                    MulDiv::Mul => self.timing.multiply,
                    MulDiv::Mulh | MulDiv::Mulhsu | MulDiv::Mulhu => self.timing.multiply_high,
                    MulDiv::Div | MulDiv::Rem => self.timing.division(b, true),
                    MulDiv::Divu | MulDiv::Remu => self.timing.division(b, false),
                } - 1;
                mul_div(op, a, b)
            }
            Operation::Fence => 0,
            Operation::Ecall => return Err(Trap::EnvironmentCall { pc }),
            Operation::Ebreak => return Err(Trap::Breakpoint { pc }),
        };
        // Branches and stores have no rd: theirs is x0, which stays 0.
        if rd != 0 {
            self.registers[rd as usize] = value;
        }
        if next & 1 != 0 {
            return Err(Trap::Misaligned { pc, target: next });
        }
        self.pc = next;
        self.counts.instructions += 1;
        self.counts.cycles += u64::from(cycles);
        Ok(())
    }

    fn in_window(&self, address: u32) -> bool {
        self.window.0 <= address && address <= self.window.1
    }

    /// Cycles of an access that crosses a word: it is made twice.
    fn crossing(&self, address: u32, bytes: u32) -> u32 {
        if (address & 3) + bytes > 4 {
            self.timing.misaligned
        } else {
            0
        }
    }

    fn load(&mut self, address: u32, width: Width) -> Result<(u32, u32), Trap> {
        let bytes = width.bytes();
        let found = if self.in_window(address) {
            if bytes == 4 && address % 4 == 0 {
                let value = self.device.load(address - self.window.0);
                value.map(|value| (value, 0))
            } else {
                None
            }
        } else {
            self.memory.load(address, bytes, self.counts.cycles)
        };
        let (value, wait) = found.ok_or(Trap::Memory {
            pc: self.pc,
            access: Access::Load,
            address,
            bytes,
        })?;
        let value = match width {
            Width::Byte => value as i8 as u32,
            Width::Half => value as i16 as u32,
            _ => value,
        };
        Ok((value, wait + self.crossing(address, bytes)))
    }

    fn store(&mut self, address: u32, bytes: u32, value: u32) -> Result<u32, Trap> {
        let done = if self.in_window(address) {
            let known = bytes == 4
                && address % 4 == 0
                && self
                    .device
                    .store(address - self.window.0, value, self.counts.cycles);
            known.then_some(0)
        } else {
            self.memory.store(address, bytes, value)
        };
        let wait = done.ok_or(Trap::Memory {
            pc: self.pc,
            access: Access::Store,
            address,
            bytes,
        })?;
        Ok(wait + self.crossing(address, bytes))
    }
}

fn holds(condition: Condition, a: u32, b: u32) -> bool {
    match condition {
        Condition::Eq => a == b,
        Condition::Ne => a != b,
        Condition::Lt => (a as i32) < b as i32,
        Condition::Ge => a as i32 >= b as i32,
        Condition::Ltu => a < b,
        Condition::Geu => a >= b,
    }
}

fn alu(op: Alu, a: u32, b: u32) -> u32 {
    match op {
        Alu::Add => a.wrapping_add(b),
        Alu::Sub => a.wrapping_sub(b),
        Alu::Sll => a << (b & 31),
        Alu::Slt => u32::from((a as i32) < b as i32),
        Alu::Sltu => u32::from(a < b),
        Alu::Xor => a ^ b,
        Alu::Srl => a >> (b & 31),
        Alu::Sra => (a as i32 >> (b & 31)) as u32,
        Alu::Or => a | b,
        Alu::And => a & b,
    }
}

/// Division by zero and the overflow of the smallest number by -1 have results, no traps (manual,
/// table 7.1).
fn mul_div(op: MulDiv, a: u32, b: u32) -> u32 {
    let (signed_a, signed_b) = (a as i32, b as i32);
    match op {
        MulDiv::Mul => a.wrapping_mul(b),
        MulDiv::Mulh => ((i64::from(signed_a) * i64::from(signed_b)) >> 32) as u32,
        MulDiv::Mulhsu => ((i64::from(signed_a) * i64::from(b)) >> 32) as u32,
        MulDiv::Mulhu => ((u64::from(a) * u64::from(b)) >> 32) as u32,
        MulDiv::Div if b == 0 => u32::MAX,
        MulDiv::Div => signed_a.wrapping_div(signed_b) as u32,
        MulDiv::Divu => a.checked_div(b).unwrap_or(u32::MAX),
        MulDiv::Rem if b == 0 => a,
        MulDiv::Rem => signed_a.wrapping_rem(signed_b) as u32,
        MulDiv::Remu => a.checked_rem(b).unwrap_or(a),
    }
}
