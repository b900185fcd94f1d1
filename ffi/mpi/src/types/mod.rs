// SPDX-License-Identifier: MIT OR Apache-2.0

//! The program's datatypes and buffers as libcopy's.

pub mod buffer;
pub mod datatype;
pub mod earned;
pub mod fortran_names;
pub mod parts;
pub mod trial;
pub mod type_size;
