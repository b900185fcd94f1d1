// SPDX-License-Identifier: MIT OR Apache-2.0

//! What the environment says of what is intercepted, packed and governed, and how the data of
//! messages move.

use std::sync::OnceLock;

use libcopy::config;
use libcopy::p2p::Protocol;

use crate::library::abi;

/// From how many bytes on everything is intercepted, whether it is faster or not: for tests.
pub fn least() -> Option<u64> {
    static LEAST: OnceLock<Option<u64>> = OnceLock::new();
    *LEAST.get_or_init(|| abi::asked(config::MPI_MIN.bytes()))
}

/// Whether this process wants a governor.
pub fn is_governed() -> bool {
    static GOVERNED: OnceLock<bool> = OnceLock::new();
    *GOVERNED.get_or_init(|| {
        // Collectives that return early have not done what they are measured for.
        let early = config::ASYNC.value().is_some_and(|value| value != "off");
        config::GOVERNOR.is_on(true) && !early
    })
}

/// Whether the environment asks for messages to be intercepted, packed, or moved in one way, which
/// is to be seen with the first of them.
pub fn are_asked() -> bool {
    is_packing_asked() || asked() != Protocol::Best
}

/// What `LIBCOPY_MPI_PROTOCOL` asks for, to compare.
pub fn asked() -> Protocol {
    static PROTOCOL: OnceLock<Protocol> = OnceLock::new();
    *PROTOCOL.get_or_init(|| match abi::asked_word(&config::MPI_PROTOCOL) {
        Some("pipelined") => Protocol::Pipelined,
        Some("get") => Protocol::Get,
        Some("mapped") => Protocol::Mapped,
        _ => Protocol::Best,
    })
}

/// Whether the environment says what is packed.
pub fn is_packing_asked() -> bool {
    packed().is_some() || least().is_some()
}

/// What `LIBCOPY_MPI_PACKED` asks for: bytes below which messages are packed, whether that pays or
/// not.
pub fn packed() -> Option<u64> {
    static PACKED: OnceLock<Option<u64>> = OnceLock::new();
    *PACKED.get_or_init(|| abi::asked(config::MPI_PACKED.bytes()))
}
