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

use crate::library::loaded::{self, File};

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

/// What a function is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Collective,
    /// Sends, receives or probes.
    Transfer,
    /// Completes requests, or says how they are doing.
    Completion,
    /// A collective that is nonblocking or persistent.
    Nonblocking,
    Packing,
}

impl Feature {
    /// The kinds of functions that it depends on.
    fn kinds(self) -> &'static [Kind] {
        match self {
            Feature::Collectives => &[Kind::Collective],
            Feature::Messages => &[Kind::Transfer, Kind::Completion],
            Feature::Nonblocking => &[Kind::Nonblocking, Kind::Completion],
            Feature::Packing => &[Kind::Packing],
        }
    }
}

/// A function that a feature depends on, with the hashes of its symbols, which the compiler
/// computes.
type Watched = (Kind, &'static str, [u32; 3]);

/// Makes these of names.
macro_rules! watched {
    ($($kind:ident: $($name:ident)*;)*) => {
        &[$($((Kind::$kind, stringify!($name), hashes(stringify!($name))),)*)*]
    };
}

static WATCHED: &[Watched] = watched! {
    Collective: MPI_Bcast MPI_Gather MPI_Gatherv MPI_Scatter MPI_Scatterv MPI_Allgather
        MPI_Allgatherv MPI_Alltoall MPI_Alltoallv MPI_Alltoallw MPI_Reduce MPI_Allreduce
        MPI_Reduce_scatter MPI_Reduce_scatter_block MPI_Scan MPI_Exscan MPI_Neighbor_allgather
        MPI_Neighbor_allgatherv MPI_Neighbor_alltoall MPI_Neighbor_alltoallv
        MPI_Neighbor_alltoallw MPI_Barrier;
    Transfer: MPI_Send MPI_Ssend MPI_Bsend MPI_Rsend MPI_Isend MPI_Issend MPI_Ibsend MPI_Irsend
        MPI_Send_init MPI_Ssend_init MPI_Bsend_init MPI_Rsend_init MPI_Recv MPI_Irecv MPI_Recv_init
        MPI_Sendrecv MPI_Sendrecv_replace MPI_Isendrecv MPI_Isendrecv_replace MPI_Probe MPI_Iprobe
        MPI_Mprobe MPI_Improbe MPI_Mrecv MPI_Imrecv MPI_Start MPI_Startall MPI_Cancel;
    Completion: MPI_Wait MPI_Test MPI_Waitall MPI_Testall MPI_Waitany MPI_Testany MPI_Waitsome
        MPI_Testsome MPI_Request_get_status MPI_Request_get_status_any MPI_Request_get_status_all
        MPI_Request_get_status_some MPI_Request_free;
    Nonblocking: MPI_Ibcast MPI_Igather MPI_Igatherv MPI_Iscatter MPI_Iscatterv MPI_Iallgather
        MPI_Iallgatherv MPI_Ialltoall MPI_Ialltoallv MPI_Ialltoallw MPI_Ireduce MPI_Iallreduce
        MPI_Ireduce_scatter MPI_Ireduce_scatter_block MPI_Iscan MPI_Iexscan
        MPI_Ineighbor_allgather MPI_Ineighbor_allgatherv MPI_Ineighbor_alltoall
        MPI_Ineighbor_alltoallv MPI_Ineighbor_alltoallw MPI_Bcast_init MPI_Gather_init MPI_Scatter_init MPI_Allgather_init
        MPI_Alltoall_init MPI_Reduce_init MPI_Allreduce_init;
    Packing: MPI_Pack MPI_Unpack MPI_Pack_external MPI_Unpack_external;
};

/// Whether any feature depends on a function.
#[cfg(test)]
pub fn is_watched(name: &str) -> bool {
    WATCHED.iter().any(|(_, watched, _)| *watched == name)
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
        let hashes: Vec<_> = WATCHED.iter().map(|(_, _, hashes)| *hashes).collect();
        let suspects = WATCHED.iter().zip(files.suspects(&hashes));
        let suspects: Vec<_> = suspects.filter(|(_, is)| *is != [false; 3]).collect();
        let first = |kind: &Kind| {
            let mut of_kind = suspects.iter().filter(|((its, ..), _)| its == kind);
            of_kind.find_map(|((_, name, _), suspect)| files.wrapping(name, *suspect))
        };
        let of = |(feature, _): &(Feature, _)| feature.kinds().iter().find_map(first);
        FEATURES.iter().map(of).collect()
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
    let fortran = format!("{}_", name.to_lowercase());
    [name.to_owned(), format!("{name}_c"), fortran]
}

/// The hashes of [`symbols`].
const fn hashes(name: &str) -> [u32; 3] {
    let name = name.as_bytes();
    let plain = loaded::hash(loaded::EMPTY, name);
    let (mut fortran, mut at) = (loaded::EMPTY, 0);
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
        for (_, name, hashes) in WATCHED {
            let all = symbols(name).map(|name| loaded::hash(loaded::EMPTY, name.as_bytes()));
            assert_eq!(*hashes, all, "{name}");
        }
    }

    #[test]
    fn where_there_is_no_mpi_nothing_is_wrapped() {
        assert_eq!(wrapped(Feature::Messages), None);
        assert_eq!(switched_off().count(), 0);
    }
}
