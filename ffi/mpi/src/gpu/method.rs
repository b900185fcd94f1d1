// SPDX-License-Identifier: MIT OR Apache-2.0

//! How the bytes of device memory get to the MPI library, and back (TEMPI, "MPI_Send / MPI_Recv"):
//! which method, by the times of [`Profile`], and whether the library takes device memory at all.

use std::ffi::c_int;
use std::sync::OnceLock;

use libcopy::config;
pub use libcopy_gpu::Method;
use libcopy_gpu::{Ask, Driver, Origin, Pointer, Profile};

use crate::library::abi::{self, complain, function};

/// What `LIBCOPY_GPU_METHOD` asks for.
fn asked() -> Option<Method> {
    static ASKED: OnceLock<Option<Method>> = OnceLock::new();
    *ASKED.get_or_init(|| match abi::asked_word(&config::GPU_METHOD)? {
        "one-shot" => Some(Method::OneShot),
        "staged" => Some(Method::Staged),
        "device" => Some(Method::Device),
        "peer" => Some(Method::Peer),
        _ => None,
    })
}

/// Whether the MPI library takes device memory: `LIBCOPY_GPU_AWARE`, or what it says itself.
pub fn is_aware() -> bool {
    static AWARE: OnceLock<bool> = OnceLock::new();
    *AWARE.get_or_init(|| match abi::asked_word(&config::GPU_AWARE) {
        Some("yes") => true,
        Some("no") => false,
        _ => says_so(),
    })
}

/// `MPIX_Query_cuda_support` of Open MPI (mpi-ext.h) and MPICH: 1 if the library was built with
/// CUDA and uses it.
fn says_so() -> bool {
    function!(QUERY = c"MPIX_Query_cuda_support");
    match QUERY.if_any() {
        0 => false,
        address => {
            // SAFETY: the function of this name has this type.
            let query: unsafe extern "C-unwind" fn() -> c_int =
                unsafe { std::mem::transmute(address) };
            // SAFETY: it may be called at any time.
            unsafe { query() == 1 }
        }
    }
}

/// Elements, as far as the choice depends on them.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Bytes of data.
    pub bytes: u64,
    /// Mean bytes of a piece; all, if there are no gaps.
    pub piece: u64,
}

impl Size {
    fn ask(self, is_aware: bool, has_peer: bool) -> Ask {
        // The receiver's layout is not known here.
        let ask = Ask {
            bytes: self.bytes,
            block: self.piece,
            is_aware,
            has_peer,
            is_regular: false,
        };
        ask.class()
    }

    /// The powers of two that bytes and pieces are not above.
    pub fn class(self) -> (u64, u64) {
        let ask = self.ask(false, false);
        (ask.bytes, ask.block)
    }
}

/// Whether the times that choices follow from were measured; `None` before the first choice.
static ORIGIN: OnceLock<Origin> = OnceLock::new();

/// Where the times come from, for the report.
pub fn origin() -> Option<Origin> {
    ORIGIN.get().copied()
}

/// What a profile says of memory `near`; `otherwise` if the driver fails.
fn by_profile<R>(
    (driver, near): (&Driver, &Pointer),
    otherwise: R,
    ask: impl FnOnce(&Profile) -> R,
) -> R {
    match Profile::near(driver, near) {
        Ok(profile) => {
            ORIGIN.get_or_init(|| profile.origin);
            ask(&profile)
        }
        Err(error) => {
            complain(&format!("the GPU's times cannot be had: {error}"));
            otherwise
        }
    }
}

/// The method for elements with gaps whose packed bytes are put into host memory:
/// [`Method::OneShot`] or [`Method::Staged`].
pub fn to_host(there: (&Driver, &Pointer), size: Size) -> Method {
    match asked() {
        Some(method @ (Method::OneShot | Method::Staged)) => method,
        _ => by_profile(there, Method::OneShot, |profile| {
            profile.choose(&size.ask(false, false))
        }),
    }
}

/// Whether the MPI library is handed device memory ([`Method::Device`]): elements without gaps as
/// they are, others packed.
pub fn hands_over(there: (&Driver, &Pointer), size: Size, is_dense: bool) -> bool {
    if !is_aware() {
        return false;
    }
    match asked() {
        Some(method) => method == Method::Device,
        None => by_profile(there, false, |profile| {
            if is_dense {
                profile.is_handed_over(size.bytes)
            } else {
                profile.choose(&size.ask(true, false)) == Method::Device
            }
        }),
    }
}

/// Whether a message that may be copied by its receiver is offered to it ([`Method::Peer`]).
pub fn is_offered(there: (&Driver, &Pointer), size: Size, is_dense: bool) -> bool {
    match asked() {
        Some(method) => method == Method::Peer,
        None => by_profile(there, false, |profile| {
            if is_dense {
                profile.is_copied_by_peer(size.bytes, is_aware())
            } else {
                profile.choose(&size.ask(is_aware(), true)) == Method::Peer
            }
        }),
    }
}

/// Whether messages are offered to receivers however often they were offered in vain.
pub fn is_always_offered() -> bool {
    asked() == Some(Method::Peer)
}
