// SPDX-License-Identifier: MIT OR Apache-2.0

//! How bytes get from device memory into host memory, and back (paper 004, "MPI_Send / MPI_Recv").

use std::sync::OnceLock;

use libcopy::config;

use crate::abi::complain;

/// How packed bytes get into host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// A kernel writes into pinned host memory, or reads from it.
    OneShot,
    /// A kernel packs into device memory, which is copied into host memory, and the other way round.
    Staged,
}

/// Pieces of fewer bytes than this are staged: a kernel moves them over the bus in transactions that are not full.
const SHORT_PIECE: u64 = 32;

/// Fewer bytes than these take one launch in any case: one more copy costs more than it saves.
const FEW_BYTES: u64 = 64 << 10;

/// What `LIBCOPY_GPU_METHOD` asks for.
fn asked() -> Option<Method> {
    static ASKED: OnceLock<Option<Method>> = OnceLock::new();
    *ASKED.get_or_init(|| match config::GPU_METHOD.or_default().as_str() {
        "auto" => None,
        "one-shot" => Some(Method::OneShot),
        "staged" => Some(Method::Staged),
        other => {
            complain(&format!(
                "{} is {other:?}, not auto, one-shot or staged",
                config::GPU_METHOD.name
            ));
            None
        }
    })
}

/// The method for so many bytes in pieces of this mean length. Not measured: the rule is that of paper 004, where
/// one-shot wins for few bytes and long pieces.
pub fn method(bytes: u64, piece: u64) -> Method {
    asked().unwrap_or(if bytes >= FEW_BYTES && piece < SHORT_PIECE {
        Method::Staged
    } else {
        Method::OneShot
    })
}
