// SPDX-License-Identifier: MIT OR Apache-2.0

//! What can go wrong.

use libcopy_datatype::room::NoRoom;

/// Why typed memory could not be moved over RDMA.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The layout has an error of its own.
    #[error(transparent)]
    Datatype(#[from] libcopy_datatype::Error),
    /// A piece of the layout lies outside the address space.
    #[error(
        "the piece of {len} bytes at offset {offset} from {base:#x} is outside the address space"
    )]
    Address {
        /// The buffer's address.
        base: u64,
        /// The piece's offset.
        offset: i64,
        /// Its bytes.
        len: u64,
    },
    /// A message is longer than its receiver's layout.
    #[error("the message has {sender} bytes at its sender and room for {receiver} at its receiver")]
    Size {
        /// Bytes of the sender's layout.
        sender: u64,
        /// Bytes of the receiver's layout.
        receiver: u64,
    },
    /// The other end cannot register memory for the message, not even a staging buffer: it was not
    /// moved.
    #[error("rank {rank} cannot move the message (its own error says why)")]
    Refused {
        /// The other end.
        rank: u32,
    },
    /// There is no such transfer, or its result has been given already.
    #[error("there is no transfer {number} on the link to rank {rank}")]
    NoTransfer {
        /// The peer.
        rank: u32,
        /// The number of the transfer.
        number: u64,
    },
    /// A window has more pieces than a key may point to: the chunk size does not suit the layout.
    #[error(
        "{found} pieces in a window of {bytes} bytes, a memory key points to {max_iovs} at most"
    )]
    TooManyIovs {
        /// Pieces in the window.
        found: usize,
        /// Its bytes.
        bytes: u64,
        /// What a key can point to.
        max_iovs: usize,
    },
    /// A field of a message from a peer has a value that no correct peer sends.
    #[error("a message from rank {rank} has {field} = {value}, which cannot be")]
    Corrupt {
        /// The peer.
        rank: u32,
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
    /// The pool has no free key; its thread makes more. The message can be packed.
    #[error("the pool has {free} free memory keys of {total}, the message needs {wanted}")]
    PoolExhausted {
        /// Keys that are free.
        free: usize,
        /// All keys.
        total: usize,
        /// Keys of the message.
        wanted: usize,
    },
    /// There is no room in memory for a list that is as long as the layout, the message or the peer
    /// says.
    #[error(transparent)]
    NoRoom(#[from] NoRoom),
    /// A library cannot be loaded.
    #[error("cannot load {library}: {reason} (Debian: package {package})")]
    Library {
        /// Its file name.
        library: String,
        /// What dlopen(3) says.
        reason: String,
        /// The package that has it.
        package: &'static str,
    },
    /// A library lacks a function.
    #[error("{library} has no {function}: it is too old")]
    MissingFunction {
        /// The library.
        library: &'static str,
        /// The function.
        function: &'static str,
    },
    /// There is no device of that name, or none at all.
    #[error("{0}")]
    NoDevice(String),
    /// A function of a library failed.
    #[error("{function} failed: {}", std::io::Error::from_raw_os_error(*errno))]
    Verbs {
        /// The function.
        function: &'static str,
        /// `errno`.
        errno: i32,
    },
    /// Memory cannot be registered.
    #[error("cannot register the {len} bytes at {addr:#x}: {}{}", std::io::Error::from_raw_os_error(*errno),
        if *errno == libc::ENOMEM { " (is the limit of locked memory, ulimit -l, too low?)" } else { "" })]
    Register {
        /// Where the memory begins.
        addr: u64,
        /// Its bytes.
        len: u64,
        /// `errno`.
        errno: i32,
    },
    /// A work request failed, and with it the connection.
    #[error(
        "{operation} failed with {status} (ibv_wc_status {code}): the connection cannot be used any more"
    )]
    WorkRequest {
        /// What was posted.
        operation: &'static str,
        /// The library's words.
        status: String,
        /// The number (`ibv_wc_status`).
        code: u32,
    },
    /// The peer ended or the way to it is closed.
    #[error("rank {rank} does not answer any more: {reason}")]
    PeerGone {
        /// The peer.
        rank: u32,
        /// What was seen.
        reason: String,
    },
}

impl Error {
    /// A field of a peer's message that cannot be.
    pub(crate) fn corrupt(rank: u32, field: &'static str, value: u64) -> Error {
        Error::Corrupt { rank, field, value }
    }
}

/// Whether another method may still move the message: nothing of it has been posted, and the
/// connection holds.
pub(crate) fn is_local(error: &Error) -> bool {
    matches!(
        error,
        Error::PoolExhausted { .. }
            | Error::Register { .. }
            | Error::TooManyIovs { .. }
            | Error::NoRoom(_)
            | Error::NoDevice(_)
            | Error::Verbs { .. }
            | Error::MissingFunction { .. }
    )
}

/// Whether memory could not be registered because no more may be locked, as far as one can tell.
pub(crate) fn is_locked_out(error: &Error) -> bool {
    matches!(error, Error::Register { errno, .. } if *errno == libc::ENOMEM)
}

/// The result of what may fail.
pub type Result<T> = std::result::Result<T, Error>;
