// SPDX-License-Identifier: MIT OR Apache-2.0

//! Which MPI library this process uses, and what its constants are.
//!
//! Handles are pointers in Open MPI and `int`s in MPICH and its relatives. Both travel in one
//! register or one eight-byte stack slot on x86-64 (System V ABI, section 3.2.3) and AArch64
//! (AAPCS64, section 6.8.2), so one library serves both: handles pass through it as words that it
//! never looks at, because only half of one is defined where handles are `int`s. The standard ABI
//! (MPI 5.0, chapter 20) has pointers as well, of which the predefined ones are small numbers.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::fs;
use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

use crate::library::loaded::{File, Generation};
use crate::library::{loaded, tools};
use libcopy::config::Setting;
use libcopy::lock::lock;

/// A handle as it comes in a register; only the low half is defined if handles are `int`s.
pub type Word = usize;

/// Whose handles, constants and statuses a library has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Open MPI's own.
    OpenMpi,
    /// Those of the MPICH ABI initiative.
    Mpich,
    /// MPI 5's.
    Standard,
}

/// An MPI library, and those made from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MpiImplementation {
    /// Open MPI.
    OpenMpi,
    /// MPICH, Intel MPI, MVAPICH.
    Mpich,
}

/// What differs between libraries.
#[derive(Debug)]
pub struct Abi {
    /// Its name.
    pub name: &'static str,
    /// Whose handles and statuses it has.
    pub family: Family,
    /// Whom we have to be faster than.
    implementation: MpiImplementation,
    /// The bits of a word that are a handle.
    pub handle: usize,
    /// `MPI_IN_PLACE`
    pub in_place: usize,
    /// `MPI_ROOT`
    pub root: c_int,
    /// `MPI_COMM_NULL`
    comm_null: Word,
    /// `MPI_DATATYPE_NULL`
    type_null: Word,
    /// The predefined operations that reductions accept.
    operations: Vec<Word>,
    /// `MPI_SUM`
    pub sum: Word,
    /// `MPI_PROD`
    pub product: Word,
    /// `MPI_BYTE`
    pub byte: Word,
    /// `MPI_PACKED`
    pub packed: Word,
    /// `MPI_INFO_NULL`
    pub info_null: Word,
    /// `MPI_ERRORS_RETURN`
    pub errors_return: Word,
    /// `MPI_COMM_TYPE_SHARED`
    pub shared: c_int,
    /// `MPI_COMBINER_NAMED`
    pub named: c_int,
    /// `MPI_ERR_OTHER`
    pub error: c_int,
    /// `MPI_ERR_TRUNCATE`
    pub truncate: c_int,
    /// `MPI_ERR_IN_STATUS`
    pub in_status: c_int,
    /// `MPI_COMM_WORLD`
    pub world: Word,
    /// `MPI_COMM_SELF`
    pub alone: Word,
    /// `MPI_REQUEST_NULL`
    pub request_null: Word,
    /// `MPI_ANY_SOURCE`
    pub any_source: c_int,
    /// `MPI_ANY_TAG`
    pub any_tag: c_int,
    /// `MPI_THREAD_MULTIPLE`
    pub thread_multiple: c_int,
    /// `MPI_ORDER_C`
    pub order_c: c_int,
    /// `MPI_DISTRIBUTE_BLOCK`, `_CYCLIC`, `_NONE` and `_DFLT_DARG`
    pub distributions: [c_int; 4],
    /// `MPI_CART`, `MPI_GRAPH` and `MPI_DIST_GRAPH`
    pub topologies: [c_int; 3],
}

/// `MPI_BYTE` of the standard ABI.
pub const STANDARD_BYTE: Word = 0x247;
/// `MPI_UNDEFINED` of all libraries.
pub const UNDEFINED: c_int = -32766;

impl Abi {
    /// Whom we have to be faster than.
    #[inline]
    pub fn implementation(&self) -> MpiImplementation {
        self.implementation
    }

    /// Whether the library is Open MPI, whatever its ABI.
    pub fn is_open_mpi(&self) -> bool {
        self.implementation == MpiImplementation::OpenMpi
    }

    /// Whether handles are as large as addresses.
    pub fn has_wide_handles(&self) -> bool {
        self.handle == usize::MAX
    }

    /// `MPI_STATUS_IGNORE`
    pub fn status_ignore(&self) -> *mut c_void {
        match self.family {
            Family::OpenMpi | Family::Standard => ptr::null_mut(),
            Family::Mpich => ptr::without_provenance_mut(1),
        }
    }

    /// Whether an error handler is a predefined one, which is not freed, as far as can be told from
    /// its handle.
    pub fn is_predefined_handler(&self, handler: Word) -> bool {
        match self.family {
            // Addresses of the library's own objects or of a program's: one that stays is no harm.
            Family::OpenMpi => true,
            Family::Mpich => handler & 0xff00_0000 == 0x5400_0000,
            // What a library makes is an address; nobody has anything in the first page.
            Family::Standard => handler < 0x1000,
        }
    }

    /// Whether both words are the same handle.
    pub fn same(&self, a: Word, b: Word) -> bool {
        (a ^ b) & self.handle == 0
    }

    /// Whether this is a communicator, as far as can be told without asking.
    pub fn is_comm(&self, comm: Word) -> bool {
        !self.same(comm, self.comm_null)
    }

    /// Whether this is a datatype, as far as can be told without asking.
    pub fn is_type(&self, datatype: Word) -> bool {
        !self.same(datatype, self.type_null)
    }

    /// Whether an operation is a predefined one of a reduction.
    pub fn is_predefined(&self, op: Word) -> bool {
        self.operations.iter().any(|known| self.same(op, *known))
    }

    /// Writes a handle where a variable for one is.
    ///
    /// # Safety
    ///
    /// The variable is writable.
    pub unsafe fn set_handle(&self, variable: *mut c_void, handle: Word) {
        // SAFETY: the caller's promise.
        unsafe {
            match self.handle {
                usize::MAX => variable.cast::<Word>().write(handle),
                _ => variable.cast::<u32>().write(handle as u32),
            }
        }
    }

    /// Bytes of a handle in an array of them.
    pub fn handle_size(&self) -> usize {
        match self.handle {
            usize::MAX => size_of::<Word>(),
            _ => size_of::<u32>(),
        }
    }

    /// A handle of an array of them, in which handles that are `int`s lie closer.
    ///
    /// # Safety
    ///
    /// The array has this element.
    pub unsafe fn handle_at(&self, array: *const c_void, index: usize) -> Word {
        // SAFETY: the caller's promise.
        unsafe {
            match self.handle {
                usize::MAX => array.cast::<Word>().add(index).read(),
                _ => array.cast::<u32>().add(index).read() as Word,
            }
        }
    }
}

/// The library of this process, or why there is none that we know.
pub fn get() -> Result<&'static Abi, &'static str> {
    static ABI: OnceLock<Result<Abi, String>> = OnceLock::new();
    let abi = ABI.get_or_init(detect);
    abi.as_ref().map_err(String::as_str)
}

/// The version of the standard ABI that the library has, if it has that; it says so at any time
/// (MPI 5.0, section 20.2).
fn standard() -> Option<(c_int, c_int)> {
    let address = symbol(c"PMPI_Abi_get_version")?;
    let (mut major, mut minor) = (-1, -1);
    // SAFETY: the function of this name has this type; both outputs are writable.
    let answer = unsafe {
        let call: unsafe extern "C-unwind" fn(*mut c_int, *mut c_int) -> c_int =
            std::mem::transmute(address);
        call(&mut major, &mut minor)
    };
    (answer == 0 && major >= 1).then_some((major, minor))
}

/// Which library it is, in its own words, which it has at any time.
fn version() -> String {
    /// `MPI_MAX_LIBRARY_VERSION_STRING` of the standard ABI, which is the largest.
    const MOST: usize = 8192;
    let Some(address) = symbol(c"PMPI_Get_library_version") else {
        return String::new();
    };
    let (mut text, mut length) = (vec![0u8; MOST], 0);
    // SAFETY: the function of this name has this type; there is room for the longest answer.
    let answer = unsafe {
        let call: unsafe extern "C-unwind" fn(*mut c_char, *mut c_int) -> c_int =
            std::mem::transmute(address);
        call(text.as_mut_ptr().cast(), &mut length)
    };
    text.truncate(usize::try_from(length).map_or(0, |length| length.min(MOST)));
    match answer {
        0 => String::from_utf8_lossy(&text).into_owned(),
        _ => String::new(),
    }
}

fn detect() -> Result<Abi, String> {
    let open = symbol(c"ompi_mpi_byte").is_some() && symbol(c"ompi_mpi_info_null").is_some();
    if open && symbol(c"MPIR_Dup_fn").is_some() {
        return Err("this process has both Open MPI and a library with MPICH's ABI".to_owned());
    }
    // The constants of MPI 5.0's appendix A, which only another major version may change.
    if let Some((major, minor)) = standard() {
        if major != 1 {
            return Err(format!(
                "this library has version {major}.{minor} of the standard ABI, of which \
                 libcopy_mpi.so knows version 1"
            ));
        }
        let open = version().starts_with("Open MPI");
        return Ok(Abi {
            name: if open {
                "Open MPI (standard ABI)"
            } else {
                "MPICH (standard ABI)"
            },
            family: Family::Standard,
            implementation: if open {
                MpiImplementation::OpenMpi
            } else {
                MpiImplementation::Mpich
            },
            handle: usize::MAX,
            in_place: 1,
            root: -4,
            comm_null: 0x100,
            type_null: 0x200,
            // MPI_SUM, MIN, MAX, PROD; the bitwise, then the logical ones; MPI_MINLOC and MAXLOC.
            operations: [0x21..=0x24, 0x28..=0x2a, 0x30..=0x32, 0x38..=0x39]
                .into_iter()
                .flatten()
                .collect(),
            sum: 0x21,
            product: 0x24,
            byte: STANDARD_BYTE,
            packed: 0x207,
            info_null: 0x130,
            errors_return: 0x143,
            shared: 221,
            named: 101,
            error: 16,
            truncate: 15,
            in_status: 19,
            world: 0x101,
            alone: 0x102,
            request_null: 0x180,
            any_source: -1,
            any_tag: -2,
            thread_multiple: 4096,
            order_c: 12,
            distributions: [17, 18, 16, 19],
            topologies: [211, 212, 213],
        });
    }
    // Open MPI's handles are the addresses of these (its mpi.h).
    if let (byte @ 1.., info @ 1..) = (word(c"ompi_mpi_byte"), word(c"ompi_mpi_info_null")) {
        let operations = [
            c"ompi_mpi_op_max",
            c"ompi_mpi_op_min",
            c"ompi_mpi_op_sum",
            c"ompi_mpi_op_prod",
            c"ompi_mpi_op_land",
            c"ompi_mpi_op_band",
            c"ompi_mpi_op_lor",
            c"ompi_mpi_op_bor",
            c"ompi_mpi_op_lxor",
            c"ompi_mpi_op_bxor",
            c"ompi_mpi_op_minloc",
            c"ompi_mpi_op_maxloc",
        ];
        return Ok(Abi {
            name: "Open MPI",
            family: Family::OpenMpi,
            implementation: MpiImplementation::OpenMpi,
            handle: usize::MAX,
            in_place: 1,
            root: -4,
            comm_null: word(c"ompi_mpi_comm_null"),
            type_null: word(c"ompi_mpi_datatype_null"),
            operations: operations
                .into_iter()
                .map(word)
                .filter(|w| *w != 0)
                .collect(),
            sum: word(c"ompi_mpi_op_sum"),
            product: word(c"ompi_mpi_op_prod"),
            byte,
            packed: word(c"ompi_mpi_packed"),
            info_null: info,
            errors_return: word(c"ompi_mpi_errors_return"),
            shared: 0,
            named: 0,
            error: 16,
            truncate: 15,
            in_status: 18,
            world: word(c"ompi_mpi_comm_world"),
            alone: word(c"ompi_mpi_comm_self"),
            request_null: word(c"ompi_request_null"),
            any_source: -1,
            any_tag: -1,
            thread_multiple: 3,
            order_c: 0,
            distributions: [0, 1, 2, -1],
            topologies: [1, 2, 3],
        });
    }
    // The constants of the MPICH ABI initiative, which MPICH, Intel MPI and MVAPICH share.
    if symbol(c"MPIR_Dup_fn").is_some() {
        return Ok(Abi {
            name: "MPICH",
            family: Family::Mpich,
            implementation: MpiImplementation::Mpich,
            handle: 0xffff_ffff,
            in_place: usize::MAX,
            root: -3,
            comm_null: 0x0400_0000,
            type_null: 0x0c00_0000,
            // MPI_MAX to MPI_MAXLOC.
            operations: (0x5800_0001..=0x5800_000c).collect(),
            sum: 0x5800_0003,
            product: 0x5800_0004,
            byte: 0x4c00_010d,
            packed: 0x4c00_010f,
            info_null: 0x1c00_0000,
            errors_return: 0x5400_0001,
            shared: 1,
            named: 1,
            error: 15,
            truncate: 14,
            in_status: 17,
            world: 0x4400_0000,
            alone: 0x4400_0001,
            request_null: 0x2c00_0000,
            any_source: -2,
            any_tag: -1,
            thread_multiple: 3,
            order_c: 56,
            distributions: [121, 122, 123, -49767],
            topologies: [2, 1, 3],
        });
    }
    Err("this is neither Open MPI nor a library with MPICH's ABI or the standard one".to_owned())
}

/// The address of an object of the MPI library's; zero if there is none. A program that was linked
/// with copies of such objects has everybody use its own.
fn word(name: &CStr) -> Word {
    match object(name) {
        0 => symbol(name).map_or(0, |address| address as usize),
        found => found,
    }
}

/// Finds an object as the program sees it, which itself comes first.
pub fn object(name: &CStr) -> usize {
    // SAFETY: a valid name; the handle is a constant.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) as usize }
}

/// Finds a symbol of the MPI library.
///
/// A program that loads its MPI library privately (Python does) has it outside the reach of
/// `RTLD_NEXT`; then the library is found among the files that are loaded.
pub fn symbol(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: a valid name; the handle is a constant.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    if !found.is_null() {
        return Some(found);
    }
    for library in libraries() {
        // SAFETY: an open library and a valid name. The library is never closed.
        let found = unsafe { libc::dlsym(library as *mut c_void, name.as_ptr()) };
        if !found.is_null() {
            return Some(found);
        }
    }
    None
}

/// Handles of the files that look like MPI libraries, looked for again whenever a file was loaded
/// or unloaded.
fn libraries() -> Vec<usize> {
    static KNOWN: Mutex<Option<(Generation, Vec<usize>)>> = Mutex::new(None);
    let now = loaded::generation();
    let mut known = lock(&KNOWN);
    if let Some((_, handles)) = known.as_ref().filter(|(then, _)| Some(*then) == now) {
        return handles.clone();
    }
    let open = |file: &File| {
        // SAFETY: the file is loaded already: nothing is run, only counted.
        let handle =
            unsafe { libc::dlopen(file.name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        (!handle.is_null()).then_some(handle as usize)
    };
    let files = loaded::files();
    let found = files.iter().filter(|file| file.is_mpi_library());
    let handles: Vec<usize> = found.filter_map(open).collect();
    *known = now.map(|now| (now, handles.clone()));
    handles
}

/// With Yama in mode 1 only ancestors may look into a process, unless it says otherwise.
pub fn permit_peers() {
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope");
    if scope.is_ok_and(|scope| scope.trim() == "1") {
        // SAFETY: the call only changes who may trace this process.
        unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0) };
    }
}

/// Says something once, as the first rank that gets there; MPI programs have many processes.
pub fn complain(text: &str) {
    static SAID: OnceLock<()> = OnceLock::new();
    SAID.get_or_init(|| libcopy::refusal::say(&format!("libcopy_mpi: {text}\n")));
}

/// The name of a function of the MPI library, as the linker looks for it.
pub trait Name {
    /// It.
    const NAME: &'static CStr;
}

/// A function of the MPI library, found when it is first called; [`function`] declares one. Its
/// type has the name: a pointer in the static would be relocated, and its page written, whenever
/// the library is loaded.
pub struct Function<N> {
    places: Places,
    name: PhantomData<N>,
}

/// A constant name as the linker looks for it.
macro_rules! symbol_name {
    ($($part:expr),*) => {
        const {
            match std::ffi::CStr::from_bytes_with_nul(concat!($($part,)* "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => c"",
            }
        }
    };
}
pub(crate) use symbol_name;

/// The profiling name of an MPI function (MPI 4.1, section 15.2).
macro_rules! profiling_name {
    ($name:ident) => {
        $crate::library::abi::symbol_name!("P", stringify!($name))
    };
}
pub(crate) use profiling_name;

/// Declares a [`Function`] of this name; the type beside the static has the static's name.
macro_rules! function {
    ($function:ident = $name:expr) => {
        #[allow(non_camel_case_types, clippy::upper_case_acronyms)]
        enum $function {}

        impl $crate::library::abi::Name for $function {
            const NAME: &'static std::ffi::CStr = $name;
        }

        #[unsafe(link_section = "libcopy_hot_functions")]
        static $function: $crate::library::abi::Function<$function> =
            $crate::library::abi::Function::new();
    };
}
pub(crate) use function;

/// What has been found out about a function.
struct Places {
    /// Zero as long as nobody looked for it.
    address: AtomicUsize,
    /// Where calls of the program go on, in the same way.
    next: AtomicUsize,
}

/// Looked for, and not there.
const NOWHERE: usize = 1;

impl<N: Name> Function<N> {
    /// A function with this name.
    pub const fn new() -> Self {
        Function {
            places: Places {
                address: AtomicUsize::new(0),
                next: AtomicUsize::new(0),
            },
            name: PhantomData,
        }
    }

    /// Its address; zero, and a complaint, if the library does not have it.
    #[inline(always)]
    pub fn address(&self) -> usize {
        match self.places.address.load(Ordering::Relaxed) {
            address if address > NOWHERE => address,
            _ => self.places.look(N::NAME, true),
        }
    }

    /// Its address, if it has been looked for and found; zero otherwise. A caller that leaves the
    /// rest to another function has nothing to keep for after a call.
    #[inline(always)]
    pub fn known_address(&self) -> usize {
        known(&self.places.address)
    }

    /// Where a call of the program goes on, likewise.
    #[inline(always)]
    pub fn known_next(&self) -> usize {
        known(&self.places.next)
    }

    /// Its address; zero if the library does not have it, which it need not.
    #[inline(always)]
    pub fn if_any(&self) -> usize {
        match self.places.address.load(Ordering::Relaxed) {
            0 => self.places.look(N::NAME, false),
            NOWHERE => 0,
            address => address,
        }
    }

    /// Where a call of the program goes on: to the function of a tool between us and the library,
    /// if there is one, to the library's otherwise. Zero, and a complaint, if nobody has it.
    #[inline(always)]
    pub fn next(&self) -> usize {
        match self.places.next.load(Ordering::Relaxed) {
            address if address > NOWHERE => address,
            _ => self.places.look_next(N::NAME, true),
        }
    }

    /// Where a call of the program goes on, of a function that nobody need have: zero if nobody has
    /// it.
    #[inline(always)]
    pub fn next_if_any(&self) -> usize {
        match self.places.next.load(Ordering::Relaxed) {
            0 => self.places.look_next(N::NAME, false),
            NOWHERE => 0,
            address => address,
        }
    }
}

impl Places {
    #[cold]
    fn look_next(&self, name: &CStr, wanted: bool) -> usize {
        let library = self.look(name, wanted);
        let next = tools::behind(name, library).unwrap_or(library);
        self.next.store(next.max(NOWHERE), Ordering::Relaxed);
        next
    }

    #[cold]
    fn look(&self, name: &CStr, wanted: bool) -> usize {
        let found = match self.address.load(Ordering::Relaxed) {
            0 => symbol(name).map_or(0, |address| address as usize),
            NOWHERE => 0,
            // Found before, or by another thread meanwhile.
            address => address,
        };
        self.address.store(found.max(NOWHERE), Ordering::Relaxed);
        if found == 0 && wanted {
            let name = name.to_string_lossy();
            complain(&format!("no MPI library in this process has {name}"));
        }
        found
    }
}

#[inline(always)]
fn known(place: &AtomicUsize) -> usize {
    match place.load(Ordering::Relaxed) {
        address if address > NOWHERE => address,
        _ => 0,
    }
}

/// The word of a variable of the process's environment, or its default; none, and a word about it,
/// for a value that is none of its words.
pub fn asked_word(setting: &Setting) -> Option<&'static str> {
    asked(setting.word())
}

/// What a variable of the process's environment asks for; a word about one that cannot be used.
pub fn asked<T>(value: libcopy::Result<Option<T>>) -> Option<T> {
    value.unwrap_or_else(|error| {
        complain(&error.report());
        None
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_thread_finds_what_another_one_has_found() {
        function!(QSORT = c"qsort");
        let found = QSORT.address();
        assert!(found > NOWHERE);
        // What a thread does that saw zero just before.
        assert_eq!(QSORT.places.look(c"qsort", true), found);
        assert_eq!(QSORT.address(), found);
    }

    #[test]
    fn what_no_library_has_is_nowhere() {
        function!(NONE = c"libcopy_has_no_such_function");
        assert_eq!(NONE.if_any(), 0);
        assert_eq!(NONE.if_any(), 0);
        assert_eq!(NONE.address(), 0);
    }
}
