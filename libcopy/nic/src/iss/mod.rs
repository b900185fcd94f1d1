// SPDX-License-Identifier: MIT OR Apache-2.0

//! An instruction-set simulator of a RISC-V core, RV32IMC, with the timing of a small in-order
//! core.
//!
//! It runs the packet handlers as a network card's cores would and counts instructions and cycles.
//! Instructions are those of "The RISC-V Instruction Set Manual, Volume I: Unprivileged ISA",
//! version 20191213: RV32I 2.1, M 2.0 and C 2.0 without floating point. There is one privilege
//! level, no interrupt and no virtual memory. What a real core answers with a trap is an error here
//! ([`Trap`]).

mod compressed;
mod hart;
mod instruction;
mod memory;
mod timing;
mod trap;

pub use compressed::expand;
pub use hart::{Counts, Hart, RETURN};
pub use instruction::{Alu, Condition, Instruction, MulDiv, Operation, Width};
pub use memory::{Access, Device, Loads, Memory, NoDevice, Region};
pub use timing::Timing;
pub use trap::Trap;
