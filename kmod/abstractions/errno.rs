// SPDX-License-Identifier: GPL-2.0

//! Error numbers that the ABI uses and `kernel::error::code` does not have.

use kernel::bindings;
use kernel::error::Error;

macro_rules! errno {
    ($($(#[$doc:meta])* $name:ident = $value:ident;)*) => {
        $($(#[$doc])* #[inline] pub(crate) fn $name() -> Error {
            Error::from_errno(-(bindings::$value as i32))
        })*
    };
}

errno! {
    /// The memory behind a region changed.
    estale = ESTALE;
    /// The owner of a region died.
    eownerdead = EOWNERDEAD;
    /// The caller has left the domain.
    eshutdown = ESHUTDOWN;
    /// The file belongs to no domain.
    enotconn = ENOTCONN;
    /// The file belongs to a domain already.
    eisconn = EISCONN;
    /// The request was cancelled.
    ecanceled = ECANCELED;
    /// Memory of this kind cannot be pinned or mapped.
    eopnotsupp = EOPNOTSUPP;
    /// The memory is broken.
    ehwpoison = EHWPOISON;
}
