// SPDX-License-Identifier: MIT OR Apache-2.0

//! Error codes, their names, and the detail text of the last error of each thread.

use libcopy::{Error, datatype};
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Everything went well.
pub const LIBCOPY_OK: c_int = 0;
/// An argument is wrong: a null pointer, a rank beyond the team, buffers that overlap.
pub const LIBCOPY_EINVAL: c_int = -1;
/// The kernel module is not there or cannot be used.
pub const LIBCOPY_EDEVICE: c_int = -2;
/// A system call failed, or memory has no room.
pub const LIBCOPY_ESYSTEM: c_int = -3;
/// An environment variable or the profile cannot be used.
pub const LIBCOPY_ECONFIG: c_int = -4;
/// Something did not happen in time, for instance a rank did not join.
pub const LIBCOPY_ETIMEOUT: c_int = -5;
/// The key or the rank is in use, or another thread is using the team.
pub const LIBCOPY_EBUSY: c_int = -6;
/// A rank died or left while others needed it.
pub const LIBCOPY_EPEER: c_int = -7;
/// The ranks called different operations or lengths, or joined with different sizes.
pub const LIBCOPY_EMISMATCH: c_int = -8;
/// The team is broken since an earlier error; free it and start a new one.
pub const LIBCOPY_EBROKEN: c_int = -9;
/// The transport asked for cannot be used here.
pub const LIBCOPY_ETRANSPORT: c_int = -10;
/// A mistake inside the library.
pub const LIBCOPY_EINTERNAL: c_int = -11;
/// A message is longer than where it was to be received. It is gone; the team stays whole.
pub const LIBCOPY_ETRUNCATE: c_int = -12;
/// The CUDA driver is not loaded or too old, or one of its calls failed.
pub const LIBCOPY_EGPU: c_int = -13;
/// The handle belongs to the process that this one was forked from: a child makes its own.
pub const LIBCOPY_EFORKED: c_int = -14;
/// There is no room in memory for what an argument, a type or a peer asks for.
pub const LIBCOPY_ENOMEM: c_int = -15;

thread_local! {
    static DETAIL: RefCell<CString> = RefCell::default();
}

/// A code and what it was about.
pub(crate) struct Failure(pub c_int, pub String);

pub(crate) type Result<T = (), E = Failure> = std::result::Result<T, E>;

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let code = match &error {
            Error::Datatype(datatype::Error::NoRoom(_)) => LIBCOPY_ENOMEM,
            Error::Argument { .. } | Error::Datatype(_) => LIBCOPY_EINVAL,
            Error::Device { .. } | Error::AbiVersion { .. } | Error::Ioctl { .. } => {
                LIBCOPY_EDEVICE
            }
            Error::System { source, .. } if source.kind() == ErrorKind::OutOfMemory => {
                LIBCOPY_ENOMEM
            }
            Error::System { .. } | Error::Message { .. } | Error::Join { .. } => LIBCOPY_ESYSTEM,
            Error::Environment { .. } | Error::Profile { .. } => LIBCOPY_ECONFIG,
            Error::JoinTimeout { .. } | Error::Timeout { .. } => LIBCOPY_ETIMEOUT,
            Error::InUse { .. } => LIBCOPY_EBUSY,
            Error::PeerDied { .. } | Error::PeerLeft { .. } => LIBCOPY_EPEER,
            Error::TeamSize { .. } | Error::Mismatch { .. } => LIBCOPY_EMISMATCH,
            Error::Broken { .. } => LIBCOPY_EBROKEN,
            Error::Transport { .. } => LIBCOPY_ETRANSPORT,
            Error::Truncated { .. } => LIBCOPY_ETRUNCATE,
            Error::Forked { .. } => LIBCOPY_EFORKED,
            _ => LIBCOPY_EINTERNAL,
        };
        Failure(code, error.report())
    }
}

impl From<datatype::Error> for Failure {
    fn from(error: datatype::Error) -> Self {
        Error::from(error).into()
    }
}

impl From<libcopy_gpu::Error> for Failure {
    fn from(error: libcopy_gpu::Error) -> Self {
        use libcopy_gpu::Error as Gpu;
        let code = match &error {
            Gpu::NoContext { .. }
            | Gpu::Overlap
            | Gpu::Range { .. }
            | Gpu::NotReached { .. }
            | Gpu::TooManyPieces => LIBCOPY_EINVAL,
            Gpu::NoRoom(_) => LIBCOPY_ENOMEM,
            _ => LIBCOPY_EGPU,
        };
        Failure(code, error.to_string())
    }
}

pub(crate) fn invalid(detail: impl Into<String>) -> Failure {
    Failure(LIBCOPY_EINVAL, detail.into())
}

/// Runs `body`, keeps the detail of its failure and returns the code.
pub(crate) fn guarded(body: impl FnOnce() -> Result) -> c_int {
    let result = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| text.to_string());
        let what = text.or_else(|| panic.downcast_ref::<String>().cloned());
        let what = what.unwrap_or_else(|| "panic".into());
        Err(Failure(LIBCOPY_EINTERNAL, what))
    });
    let Failure(code, detail) = match result {
        Ok(()) => return LIBCOPY_OK,
        Err(failure) => failure,
    };
    let detail = CString::new(detail.replace('\0', "?")).unwrap_or_default();
    // A thread that is ending has no place for it any more.
    let _ = DETAIL.try_with(|d| d.replace(detail));
    code
}

/// What a code means, as a constant text. Never null.
#[unsafe(no_mangle)]
pub extern "C" fn libcopy_strerror(code: c_int) -> *const c_char {
    let text: &CStr = match code {
        LIBCOPY_OK => c"success",
        LIBCOPY_EINVAL => c"invalid argument",
        LIBCOPY_EDEVICE => c"the kernel module cannot be used",
        LIBCOPY_ESYSTEM => c"a system call failed",
        LIBCOPY_ECONFIG => c"an environment variable or the profile cannot be used",
        LIBCOPY_ETIMEOUT => c"timed out",
        LIBCOPY_EBUSY => c"in use",
        LIBCOPY_EPEER => c"a rank died or left",
        LIBCOPY_EMISMATCH => c"the ranks disagree",
        LIBCOPY_EBROKEN => c"the team is broken",
        LIBCOPY_ETRANSPORT => c"the transport cannot be used",
        LIBCOPY_EINTERNAL => c"internal error",
        LIBCOPY_ETRUNCATE => c"a message is too long",
        LIBCOPY_EGPU => c"the CUDA driver cannot be used",
        LIBCOPY_EFORKED => c"the handle belongs to the parent of this process",
        LIBCOPY_ENOMEM => c"no room in memory",
        _ => c"unknown error code",
    };
    text.as_ptr()
}

/// What exactly went wrong in the last call of this thread that failed, with values and a way
/// out. Empty before the first failure; valid until the next one. Never null.
#[unsafe(no_mangle)]
pub extern "C" fn libcopy_error_detail() -> *const c_char {
    DETAIL
        .try_with(|d| d.borrow().as_ptr())
        .unwrap_or(c"".as_ptr())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn details_name_the_cause() {
        let error = Error::System {
            what: "opening a file".to_owned(),
            source: std::io::ErrorKind::NotFound.into(),
        };
        assert_eq!(guarded(|| Err(error.into())), LIBCOPY_ESYSTEM);
        // SAFETY: the detail of this thread's last failure, which is a string.
        let detail = unsafe { CStr::from_ptr(libcopy_error_detail()) };
        let cause = std::io::Error::from(std::io::ErrorKind::NotFound);
        let expected = format!("opening a file: {cause}");
        assert_eq!(detail.to_str(), Ok(expected.as_str()));
    }

    #[test]
    fn no_room_has_a_code_of_its_own() {
        let none = datatype::room::NoRoom { bytes: 1 << 60 };
        let refused = Error::System {
            what: "mapping memory".to_owned(),
            source: ErrorKind::OutOfMemory.into(),
        };
        let gpu = libcopy_gpu::Error::NoRoom(none);
        let codes = [
            Failure::from(datatype::Error::NoRoom(none)),
            Failure::from(refused),
            Failure::from(gpu),
        ];
        assert!(codes.iter().all(|failure| failure.0 == LIBCOPY_ENOMEM));
    }
}
