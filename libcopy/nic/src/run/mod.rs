// SPDX-License-Identifier: MIT OR Apache-2.0

//! The real packet handlers, `libcopy-nic-handlers`, in two ways: natively, and compiled for RISC-V
//! on the simulated core.

mod commands;
mod core;
mod costs;
mod message;
mod native;
mod program;

pub use self::core::{CoreError, CoreHandlers, CoreRun, copy_cycles};
pub use commands::Command;
pub use costs::{Costs, costs};
pub use message::MessageHandlers;
pub use native::NativeHandlers;
pub use program::{Program, program};
