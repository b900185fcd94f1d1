// SPDX-License-Identifier: MIT OR Apache-2.0

//! `MPI_Pack`, `MPI_Unpack` and their relatives.

pub mod external32;
pub mod governor;
pub mod pack;
