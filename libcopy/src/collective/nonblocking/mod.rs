// SPDX-License-Identifier: MIT OR Apache-2.0

//! What nonblocking collectives share, for libraries that start and complete them on their own, as
//! `libcopy_mpi.so` does: where each rank's buffers are and who copies which piece ([`table`]),
//! parts that copy engines move meanwhile ([`engine`]), the copies of one that is under way
//! ([`operation`]), and what the ranks agree on ([`agreement`]). `docs/design/nonblocking.md` says
//! how they get on.

pub mod agreement;
pub mod engine;
pub mod operation;
pub mod table;
