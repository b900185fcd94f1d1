// SPDX-License-Identifier: MIT OR Apache-2.0

//! Other libraries with `MPI_` names in this process: profilers, tracers, and a program's own wrappers.
//!
//! One *in front of us* is found by callers before us. What it wraps to `PMPI_` goes past us, so a receive
//! may get a header that nobody here replaces by the data. One *behind us* is found by us before the MPI
//! library: what is forwarded for the program goes to it, and it has to see whole calls, not a part of
//! each. Either way a feature whose functions are wrapped is off, on all ranks: [`wrapped`] is this
//! rank's verdict.

use std::ffi::{CStr, CString, c_int, c_void};
use std::fmt;
use std::ops::Range;
use std::sync::OnceLock;

/// What depends on functions that come through here, all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// Blocking collectives.
    Collectives,
    /// Messages between two processes.
    Messages,
    /// Nonblocking collectives.
    Nonblocking,
    /// `MPI_Pack` and its relatives.
    Packing,
}

/// All features, with their names in reports.
pub const FEATURES: [(Feature, &str); 4] = [
    (Feature::Collectives, "collectives"),
    (Feature::Messages, "messages"),
    (Feature::Nonblocking, "nonblocking"),
    (Feature::Packing, "packing"),
];

/// Functions that complete requests, or say how they are doing.
const COMPLETING: [&str; 13] = [
    "Wait",
    "Test",
    "Waitall",
    "Testall",
    "Waitany",
    "Testany",
    "Waitsome",
    "Testsome",
    "Request_get_status",
    "Request_get_status_any",
    "Request_get_status_all",
    "Request_get_status_some",
    "Request_free",
];

/// Functions that send, receive or probe.
const TRANSFERRING: [&str; 28] = [
    "Send",
    "Ssend",
    "Bsend",
    "Rsend",
    "Isend",
    "Issend",
    "Ibsend",
    "Irsend",
    "Send_init",
    "Ssend_init",
    "Bsend_init",
    "Rsend_init",
    "Recv",
    "Irecv",
    "Recv_init",
    "Sendrecv",
    "Sendrecv_replace",
    "Isendrecv",
    "Isendrecv_replace",
    "Probe",
    "Iprobe",
    "Mprobe",
    "Improbe",
    "Mrecv",
    "Imrecv",
    "Start",
    "Startall",
    "Cancel",
];

/// Nonblocking collectives, and persistent ones.
const NONBLOCKING: [&str; 14] = [
    "Ibcast",
    "Igather",
    "Iscatter",
    "Iallgather",
    "Ialltoall",
    "Ireduce",
    "Iallreduce",
    "Bcast_init",
    "Gather_init",
    "Scatter_init",
    "Allgather_init",
    "Alltoall_init",
    "Reduce_init",
    "Allreduce_init",
];

const COLLECTIVES: [&str; 18] = [
    "Bcast",
    "Gather",
    "Gatherv",
    "Scatter",
    "Scatterv",
    "Allgather",
    "Allgatherv",
    "Alltoall",
    "Alltoallv",
    "Alltoallw",
    "Reduce",
    "Allreduce",
    "Reduce_scatter",
    "Reduce_scatter_block",
    "Neighbor_alltoall",
    "Neighbor_alltoallv",
    "Neighbor_alltoallw",
    "Barrier",
];

const PACKING: [&str; 4] = ["Pack", "Unpack", "Pack_external", "Unpack_external"];

impl Feature {
    /// The functions that it depends on, without `MPI_`.
    fn functions(self) -> impl Iterator<Item = &'static str> {
        let (first, second): (&[_], &[_]) = match self {
            Feature::Collectives => (&COLLECTIVES, &[]),
            Feature::Messages => (&TRANSFERRING, &COMPLETING),
            Feature::Nonblocking => (&NONBLOCKING, &COMPLETING),
            Feature::Packing => (&PACKING, &[]),
        };
        first.iter().chain(second).copied()
    }
}

/// A function that another library than ours or the MPI library has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrapped {
    symbol: String,
    file: String,
    in_front: bool,
}

impl fmt::Display for Wrapped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Wrapped { symbol, file, .. } = self;
        if self.in_front {
            write!(f, "{symbol} of {file} comes before libcopy_mpi.so's")
        } else {
            write!(f, "{file} has {symbol}, too")
        }
    }
}

/// The first function of a feature that a tool wraps, in front of us or behind; found out once.
pub fn wrapped(feature: Feature) -> Option<&'static Wrapped> {
    static FOUND: OnceLock<Vec<Option<Wrapped>>> = OnceLock::new();
    let found = FOUND.get_or_init(|| {
        let files = Files::loaded();
        let first = |feature: Feature| feature.functions().find_map(|name| files.wrapping(name));
        FEATURES
            .iter()
            .map(|(feature, _)| first(*feature))
            .collect()
    });
    found[feature as usize].as_ref()
}

/// The function in front of ours, if there is one.
pub fn in_front(name: &str) -> Option<Wrapped> {
    Files::loaded()
        .wrapping(name)
        .filter(|wrapped| wrapped.in_front)
}

/// What of ours a tool has switched off in this process, for reports: the feature, and why.
pub fn switched_off() -> impl Iterator<Item = (&'static str, &'static Wrapped)> {
    FEATURES
        .iter()
        .filter_map(|(feature, name)| Some((*name, wrapped(*feature)?)))
}

/// The function `MPI_X` of the next library with that name, if this is another one than the MPI library,
/// whose `PMPI_X` is at `library`.
pub fn behind(profiling_name: &CStr, library: usize) -> Option<usize> {
    let name = profiling_name.to_bytes_with_nul().strip_prefix(b"P")?;
    let name = CStr::from_bytes_with_nul(name)
        .ok()
        .filter(|name| is_mpi(name))?;
    let next = next(name)?;
    let files = Files::loaded();
    files.is_foreign(next, library).then_some(next)
}

fn is_mpi(name: &CStr) -> bool {
    name.to_bytes().starts_with(b"MPI_")
}

/// A file that is loaded.
struct File {
    name: String,
    addresses: Range<usize>,
}

/// All of them, in the order in which symbols are looked for.
struct Files {
    all: Vec<File>,
    own: Option<usize>,
}

impl Files {
    fn loaded() -> Files {
        let mut all = Vec::new();
        // SAFETY: the callback gets this vector, and is not called afterwards.
        unsafe { libc::dl_iterate_phdr(Some(note), (&raw mut all).cast()) };
        let mut files = Files { all, own: None };
        files.own = files.of(is_mpi as *const () as usize);
        files
    }

    /// The file that has an address.
    fn of(&self, address: usize) -> Option<usize> {
        self.all
            .iter()
            .position(|file| file.addresses.contains(&address))
    }

    /// Whether a function is in another file than the MPI library's, and not ours.
    fn is_foreign(&self, function: usize, library: usize) -> bool {
        let file = self.of(function);
        file.is_some() && file != self.own && file != self.of(library)
    }

    /// Whoever wraps `MPI_X`, or Fortran's `mpi_x_`.
    fn wrapping(&self, name: &str) -> Option<Wrapped> {
        let fortran = format!("mpi_{}_", name.to_lowercase());
        let names = [format!("MPI_{name}"), format!("MPI_{name}_c"), fortran];
        names.into_iter().find_map(|symbol| {
            let name = CString::new(symbol.as_str()).ok()?;
            let (file, in_front) = match self.in_front(&name) {
                Some(file) => (file, true),
                None => (self.behind(&name)?, false),
            };
            let mut file = self.all[file].name.clone();
            if file.is_empty() {
                file = "the program".to_owned();
            }
            Some(Wrapped {
                symbol,
                file,
                in_front,
            })
        })
    }

    /// The file whose function callers find in place of ours.
    fn in_front(&self, name: &CStr) -> Option<usize> {
        let own = self.own?;
        // SAFETY: a valid name; the handle is a constant.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) } as usize;
        let file = self.of(found).filter(|file| *file < own)?;
        if is_defined(found) {
            Some(file)
        } else {
            // The program only has a way of its own to a function that it takes the address of.
            (file + 1..own).find(|file| self.defines(*file, name))
        }
    }

    /// The file behind us whose function comes before the MPI library's.
    fn behind(&self, name: &CStr) -> Option<usize> {
        let next = next(name)?;
        let profiling = format!(
            "{}{}",
            if is_mpi(name) { "P" } else { "p" },
            name.to_str().ok()?
        );
        let library = self::next(&CString::new(profiling).ok()?)?;
        if self.is_foreign(next, library) {
            self.of(next)
        } else {
            None
        }
    }

    /// Whether a file itself has a function.
    fn defines(&self, file: usize, name: &CStr) -> bool {
        let Ok(path) = CString::new(self.all[file].name.as_str()) else {
            return false;
        };
        if path.is_empty() {
            return false;
        }
        // SAFETY: the file is loaded already; a handle that is closed again, and a valid name.
        let found = unsafe {
            let handle = libc::dlopen(path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
            if handle.is_null() {
                return false;
            }
            let found = libc::dlsym(handle, name.as_ptr());
            libc::dlclose(handle);
            found
        };
        self.all[file].addresses.contains(&(found as usize))
    }
}

/// A function of the files behind us.
fn next(name: &CStr) -> Option<usize> {
    // SAFETY: a valid name; the handle is a constant.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) } as usize;
    (found != 0).then_some(found)
}

/// Whether the symbol at an address is a definition. In a program at a fixed address it may stand for
/// the program's entry for a function of another file (System V ABI for x86-64, section 5.2, "Function
/// Addresses").
fn is_defined(address: usize) -> bool {
    const RTLD_DL_SYMENT: c_int = 1;
    let mut symbol: *mut c_void = std::ptr::null_mut();
    // SAFETY: writable outputs; an address of a file that is loaded.
    let found = unsafe {
        let mut about: libc::Dl_info = std::mem::zeroed();
        libc::dladdr1(
            address as *const c_void,
            &mut about,
            &mut symbol,
            RTLD_DL_SYMENT,
        )
    };
    if found == 0 || symbol.is_null() {
        return true;
    }
    // SAFETY: the loader's own table of symbols.
    unsafe { (*symbol.cast::<libc::Elf64_Sym>()).st_shndx != 0 }
}

unsafe extern "C" fn note(
    info: *mut libc::dl_phdr_info,
    _size: libc::size_t,
    files: *mut c_void,
) -> c_int {
    // SAFETY: the loader describes a file that is loaded as long as this runs; the vector is ours.
    unsafe {
        let (info, files) = (&*info, &mut *files.cast::<Vec<File>>());
        let name = if info.dlpi_name.is_null() {
            String::new()
        } else {
            CStr::from_ptr(info.dlpi_name)
                .to_string_lossy()
                .into_owned()
        };
        let headers = std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into());
        let loaded = headers
            .iter()
            .filter(|header| header.p_type == libc::PT_LOAD);
        let base = info.dlpi_addr as usize;
        let (mut start, mut end) = (usize::MAX, 0);
        for header in loaded {
            let from = base + header.p_vaddr as usize;
            start = start.min(from);
            end = end.max(from + header.p_memsz as usize);
        }
        let addresses = start..end;
        files.push(File { name, addresses });
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_are_in_the_order_of_their_table() {
        for (i, (feature, _)) in FEATURES.iter().enumerate() {
            assert_eq!(*feature as usize, i);
        }
    }

    #[test]
    fn this_file_and_the_c_library_are_known() {
        let files = Files::loaded();
        assert_eq!(files.own, files.of(is_defined as *const () as usize));
        assert!(files.own.is_some());
        let c = files.of(libc::qsort as *const () as usize);
        // A program at a fixed address has an entry of its own.
        assert!(c.is_some());
        assert!(!files.is_foreign(is_defined as *const () as usize, 0));
    }

    #[test]
    fn where_there_is_no_mpi_nothing_is_wrapped() {
        assert_eq!(wrapped(Feature::Messages), None);
        assert_eq!(switched_off().count(), 0);
    }
}
