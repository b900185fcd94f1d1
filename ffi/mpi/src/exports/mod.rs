// SPDX-License-Identifier: MIT OR Apache-2.0

//! The functions that C and Fortran programs call, and those that are only forwarded.

pub mod collectives;
pub mod completion;
pub mod fortran;
pub mod fortran_arguments;
pub mod fortran_messages;
pub mod messages;
pub mod rights;
