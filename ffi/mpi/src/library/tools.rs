// SPDX-License-Identifier: MIT OR Apache-2.0

//! Other libraries with `MPI_` names in this process: profilers, tracers, and a program's own
//! wrappers.
//!
//! One *in front of us* is found by callers before us. What it wraps to `PMPI_` goes past us, so a
//! receive may get a header that nobody here replaces by the data. One *behind us* is found by us
//! before the MPI library: what is forwarded for the program goes to it, and it has to see whole
//! calls, not a part of each. Either way a feature whose functions are wrapped is off, on all
//! ranks: [`wrapped`] is this rank's verdict.

use std::ffi::{CStr, CString, c_int, c_void};
use std::fmt;
use std::sync::{Arc, OnceLock};

use crate::library::loaded;
use crate::library::loaded::File;

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

/// Lists of functions, with the hashes of each one's symbols, which the compiler computes.
static LISTS: [(&[&str], &[[u32; 3]]); 5] = {
    const fn all<const N: usize>(names: &[&str; N]) -> [[u32; 3]; N] {
        let (mut all, mut at) = ([[0; 3]; N], 0);
        while at < N {
            all[at] = hashes(names[at]);
            at += 1;
        }
        all
    }
    [
        (&COLLECTIVES, &const { all(&COLLECTIVES) }),
        (&TRANSFERRING, &const { all(&TRANSFERRING) }),
        (&COMPLETING, &const { all(&COMPLETING) }),
        (&NONBLOCKING, &const { all(&NONBLOCKING) }),
        (&PACKING, &const { all(&PACKING) }),
    ]
};

impl Feature {
    /// The lists of the functions that it depends on.
    fn lists(self) -> &'static [usize] {
        match self {
            Feature::Collectives => &[0],
            Feature::Messages => &[1, 2],
            Feature::Nonblocking => &[3, 2],
            Feature::Packing => &[4],
        }
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
        // All at once: the files are gone through.
        let hashes = LISTS.map(|(_, hashes)| hashes).concat();
        let mut suspects = &files.suspects(&hashes)[..];
        let suspects = LISTS.map(|(names, _)| {
            let (these, others) = suspects.split_at(names.len());
            suspects = others;
            names.iter().zip(these)
        });
        let first = |feature: Feature| {
            let lists = feature.lists().iter();
            let mut functions = lists.flat_map(|list| suspects[*list].clone());
            functions.find_map(|(name, suspect)| files.wrapping(name, *suspect))
        };
        FEATURES
            .iter()
            .map(|(feature, _)| first(*feature))
            .collect()
    });
    found[feature as usize].as_ref()
}

/// The function in front of ours, if there is one.
pub fn in_front(name: &str) -> Option<Wrapped> {
    let files = Files::loaded();
    let suspect = *files.suspects(&[hashes(name)]).first()?;
    files
        .wrapping(name, suspect)
        .filter(|wrapped| wrapped.in_front)
}

/// What of ours a tool has switched off in this process, for reports: the feature, and why.
pub fn switched_off() -> impl Iterator<Item = (&'static str, &'static Wrapped)> {
    FEATURES
        .iter()
        .filter_map(|(feature, name)| Some((*name, wrapped(*feature)?)))
}

/// The function `MPI_X` of the next library with that name, if this is another one than the MPI
/// library, whose `PMPI_X` is at `library`.
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

/// All files that are loaded, in the order in which symbols are looked for.
struct Files {
    all: Arc<Vec<File>>,
    own: Option<usize>,
}

impl Files {
    fn loaded() -> Files {
        let mut files = Files {
            all: loaded::files(),
            own: None,
        };
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

    /// Which of the symbols with these hashes another file than ours and the MPI library's may
    /// define, so that whether one is wrapped has to be looked at more closely: `MPI_X`, `MPI_X_c`,
    /// and Fortran's `mpi_x_` of each function.
    fn suspects(&self, hashes: &[[u32; 3]]) -> Vec<[bool; 3]> {
        let Some(own) = self.own else {
            return vec![[false; 3]; hashes.len()];
        };
        let library = next(c"PMPI_Init").and_then(|init| self.of(init));
        // Its own functions may be in several files. What comes behind them all is never called.
        let is_library =
            |index: &usize| library == Some(*index) || self.all[*index].is_mpi_library();
        let last = library.and_then(|_| (own + 1..self.all.len()).rev().find(is_library));
        let is_asked =
            |index| index != own && index <= last.unwrap_or(own) && library != Some(index);
        let found = loaded::may_define(hashes.as_flattened(), is_asked);
        let found = found.chunks_exact(3);
        found.map(|three| [three[0], three[1], three[2]]).collect()
    }

    /// The library that wraps one of the suspect symbols of a function.
    fn wrapping(&self, name: &str, suspect: [bool; 3]) -> Option<Wrapped> {
        let names = suspect
            .iter()
            .any(|suspect| *suspect)
            .then(|| symbols(name))?;
        let suspects = names.into_iter().zip(suspect);
        let mut suspects = suspects.filter(|(_, is_suspect)| *is_suspect);
        suspects.find_map(|(symbol, _)| {
            let name = CString::new(symbol.as_str()).ok()?;
            let (file, in_front) = match self.in_front(&name) {
                Some(file) => (file, true),
                None => (self.behind(&name)?, false),
            };
            let mut file = self.all[file].name.to_string_lossy().into_owned();
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
        let path = &self.all[file].name;
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

/// Whether the symbol at an address is a definition. In a program at a fixed address it may stand
/// for the program's entry for a function of another file (System V ABI for x86-64, section 5.2,
/// "Function Addresses").
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

/// The symbols of a function: both forms in C, and Fortran's.
fn symbols(name: &str) -> [String; 3] {
    let fortran = format!("mpi_{}_", name.to_lowercase());
    [format!("MPI_{name}"), format!("MPI_{name}_c"), fortran]
}

/// The hashes of [`symbols`].
const fn hashes(name: &str) -> [u32; 3] {
    const C: u32 = loaded::hash(loaded::EMPTY, b"MPI_");
    const FORTRAN: u32 = loaded::hash(loaded::EMPTY, b"mpi_");
    let name = name.as_bytes();
    let plain = loaded::hash(C, name);
    let (mut fortran, mut at) = (FORTRAN, 0);
    while at < name.len() {
        fortran = loaded::hash(fortran, &[name[at].to_ascii_lowercase()]);
        at += 1;
    }
    [
        plain,
        loaded::hash(plain, b"_c"),
        loaded::hash(fortran, b"_"),
    ]
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
    fn hashes_are_those_of_the_symbols() {
        for (names, hashes) in LISTS {
            assert_eq!(names.len(), hashes.len());
            for (name, hashes) in names.iter().zip(hashes) {
                let all = symbols(name).map(|name| loaded::hash(loaded::EMPTY, name.as_bytes()));
                assert_eq!(*hashes, all, "{name}");
            }
        }
    }

    #[test]
    fn where_there_is_no_mpi_nothing_is_wrapped() {
        assert_eq!(wrapped(Feature::Messages), None);
        assert_eq!(switched_off().count(), 0);
    }
}
