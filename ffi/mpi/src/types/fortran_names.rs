// SPDX-License-Identifier: MIT OR Apache-2.0

//! Fortran's special addresses, and which of its functions go past us.

use crate::library::panics::caught;
use std::ffi::{CStr, c_void};
use std::sync::OnceLock;

use crate::decide::active::active;
use crate::library::abi;
use crate::library::abi::{Abi, Family};
use crate::library::profile;

/// The library of which Fortran's calls matter to us: if we do anything, or note what is called.
fn concerned() -> Option<&'static Abi> {
    active().or_else(|| abi::get().ok().filter(|_| profile::is_on()))
}

/// Whether Fortran's calls need us to reach C's.
pub fn past_us() -> bool {
    caught(|| concerned().is_some_and(|abi| abi.family == Family::OpenMpi)).unwrap_or(false)
}

/// Fortran's special addresses: the names that compilers may give to a common block.
pub struct Special {
    names: [&'static CStr; 4],
    found: OnceLock<Vec<usize>>,
}

impl Special {
    /// Whether this is it.
    pub fn is(&self, address: *const c_void) -> bool {
        let found = self.found.get_or_init(|| {
            let all = self.names.into_iter().map(abi::object);
            all.filter(|address| *address != 0).collect()
        });
        found.contains(&(address as usize))
    }
}

static IN_PLACE: Special = Special {
    names: [
        c"mpi_fortran_in_place_",
        c"mpi_fortran_in_place",
        c"mpi_fortran_in_place__",
        c"MPI_FORTRAN_IN_PLACE",
    ],
    found: OnceLock::new(),
};

static BOTTOM: Special = Special {
    names: [
        c"mpi_fortran_bottom_",
        c"mpi_fortran_bottom",
        c"mpi_fortran_bottom__",
        c"MPI_FORTRAN_BOTTOM",
    ],
    found: OnceLock::new(),
};

/// `MPI_STATUS_IGNORE`
pub static STATUS_IGNORE: Special = Special {
    names: [
        c"mpi_fortran_status_ignore_",
        c"mpi_fortran_status_ignore",
        c"mpi_fortran_status_ignore__",
        c"MPI_FORTRAN_STATUS_IGNORE",
    ],
    found: OnceLock::new(),
};

/// `MPI_STATUSES_IGNORE`
pub static STATUSES_IGNORE: Special = Special {
    names: [
        c"mpi_fortran_statuses_ignore_",
        c"mpi_fortran_statuses_ignore",
        c"mpi_fortran_statuses_ignore__",
        c"MPI_FORTRAN_STATUSES_IGNORE",
    ],
    found: OnceLock::new(),
};

/// A buffer as C calls it.
pub fn buffer(address: *mut c_void) -> *mut c_void {
    if IN_PLACE.is(address) {
        return concerned().map_or(address, |abi| abi.in_place as *mut c_void);
    }
    if BOTTOM.is(address) {
        std::ptr::null_mut()
    } else {
        address
    }
}

/// Whether functions of Fortran that receive or complete requests go past us: those of `mpi_f08` in
/// MPICH's Fortran library, and those that Open MPI's has from 5.0 on.
pub fn has_other_functions(abi: &Abi) -> bool {
    let names = if abi.family == Family::OpenMpi {
        [c"mpi_isendrecv_", c"mpi_isendrecv_replace_"]
    } else {
        [c"MPIR_Recv_cdesc", c"mpi_recv_f08ts_"]
    };
    names.into_iter().any(|name| abi::symbol(name).is_some())
}
