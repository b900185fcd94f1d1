// SPDX-License-Identifier: MIT OR Apache-2.0

//! What a real core would answer with a trap.

use super::memory::Access;
use thiserror::Error;

/// Why a program cannot go on.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Trap {
    /// The bits are no instruction of RV32IMC.
    #[error("illegal instruction {bits:#010x} at {pc:#010x}")]
    Illegal {
        /// Its address.
        pc: u32,
        /// Its 32 or 16 bits.
        bits: u32,
    },
    /// Memory that no region has, or not with this right.
    #[error("no memory for {access} of {bytes} bytes at {address:#010x} (pc {pc:#010x})")]
    Memory {
        /// The instruction's address.
        pc: u32,
        /// What it wanted.
        access: Access,
        /// Where.
        address: u32,
        /// How many bytes.
        bytes: u32,
    },
    /// `ebreak`: a panic of the program.
    #[error("ebreak at {pc:#010x}")]
    Breakpoint {
        /// Its address.
        pc: u32,
    },
    /// `ecall`: there is no operating system to call.
    #[error("ecall at {pc:#010x}: there is nothing to call")]
    EnvironmentCall {
        /// Its address.
        pc: u32,
    },
    /// A jump to an odd address.
    #[error("jump to the odd address {target:#010x} at {pc:#010x}")]
    Misaligned {
        /// The jump's address.
        pc: u32,
        /// Where it goes.
        target: u32,
    },
    /// The program has not returned within its budget of instructions.
    #[error("no end after {instructions} instructions (pc {pc:#010x})")]
    Budget {
        /// Where it was.
        pc: u32,
        /// How many it has executed.
        instructions: u64,
    },
}
