// SPDX-License-Identifier: MIT OR Apache-2.0

//! Which MPI library this process uses, and what its constants are.
//!
//! Handles are pointers in Open MPI and `int`s in MPICH and its relatives. Both travel in one
//! register or one eight-byte stack slot on x86-64 (System V ABI, section 3.2.3) and AArch64
//! (AAPCS64, section 6.8.2), so one library serves both: handles pass through it as words that it
//! never looks at, because only half of one is defined where handles are `int`s.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fs;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use libcopy::policy::Rival;

/// A handle as it comes in a register; only the low half is defined if handles are `int`s.
pub type Word = usize;

/// What differs between libraries.
#[derive(Debug)]
pub struct Abi {
    /// Its name.
    pub name: &'static str,
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
    /// `MPI_ORDER_C`
    pub order_c: c_int,
    /// `MPI_DISTRIBUTE_BLOCK`, `_CYCLIC`, `_NONE` and `_DFLT_DARG`
    pub distributions: [c_int; 4],
    /// `MPI_CART`, `MPI_GRAPH` and `MPI_DIST_GRAPH`
    pub topologies: [c_int; 3],
}

/// `MPI_UNDEFINED` of all libraries.
pub const UNDEFINED: c_int = -32766;
/// `MPI_ANY_TAG` of all libraries.
pub const ANY_TAG: c_int = -1;

impl Abi {
    /// Whom we have to be faster than.
    #[inline]
    pub fn rival(&self) -> Rival {
        match self.is_open_mpi() {
            true => Rival::OpenMpi,
            false => Rival::Mpich,
        }
    }

    /// Whether this is Open MPI.
    pub fn is_open_mpi(&self) -> bool {
        self.handle == usize::MAX
    }

    /// `MPI_STATUS_IGNORE`
    pub fn status_ignore(&self) -> *mut c_void {
        match self.is_open_mpi() {
            true => ptr::null_mut(),
            false => ptr::without_provenance_mut(1),
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

/// Why a library is none of ours although it may look like one.
fn refusal() -> Option<String> {
    let open = symbol(c"ompi_mpi_byte").is_some() && symbol(c"ompi_mpi_info_null").is_some();
    if open && symbol(c"MPIR_Dup_fn").is_some() {
        return Some("this process has both Open MPI and a library with MPICH's ABI".to_owned());
    }
    // The standard ABI of MPI 5 has other handles, constants and statuses.
    let file = symbol(c"PMPI_Init").and_then(file_of)?;
    let name = file.rsplit('/').next().unwrap_or_default();
    name.starts_with("libmpi_abi").then(|| {
        format!("{file} has the standard ABI of MPI 5, which libcopy_mpi.so does not know")
    })
}

/// The file that an object of the process was loaded from.
fn file_of(address: *mut c_void) -> Option<String> {
    let mut info = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    // SAFETY: a writable output.
    let found = unsafe { libc::dladdr(address, &raw mut info) };
    if found == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader's own string, which stays as long as the file is loaded.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    Some(name.to_string_lossy().into_owned())
}

fn detect() -> Result<Abi, String> {
    if let Some(why) = refusal() {
        return Err(why);
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
            order_c: 0,
            distributions: [0, 1, 2, -1],
            topologies: [1, 2, 3],
        });
    }
    // The constants of the MPICH ABI initiative, which MPICH, Intel MPI and MVAPICH share.
    if symbol(c"MPIR_Dup_fn").is_some() {
        return Ok(Abi {
            name: "MPICH",
            handle: 0xffff_ffff,
            in_place: usize::MAX,
            root: -3,
            comm_null: 0x0400_0000,
            type_null: 0x0c00_0000,
            // MPI_MAX to MPI_MAXLOC.
            operations: (0x5800_0001..=0x5800_000c).collect(),
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
            order_c: 56,
            distributions: [121, 122, 123, -49767],
            topologies: [2, 1, 3],
        });
    }
    Err("this is neither Open MPI nor a library with MPICH's ABI".to_owned())
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
/// `RTLD_NEXT`; then the library is found among the files that the process has mapped.
pub fn symbol(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: a valid name; the handle is a constant.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    if !found.is_null() {
        return Some(found);
    }
    for path in libraries() {
        // SAFETY: the file is loaded already: nothing is run, only counted.
        let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        if library.is_null() {
            continue;
        }
        // SAFETY: an open library and a valid name. The library is never closed.
        let found = unsafe { libc::dlsym(library, name.as_ptr()) };
        if !found.is_null() {
            return Some(found);
        }
    }
    None
}

/// The files that look like MPI libraries.
fn libraries() -> Vec<CString> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let mut paths: Vec<&str> = maps
        .lines()
        .filter_map(|line| line.find('/').map(|at| &line[at..]))
        .filter(|path| {
            let file = path.rsplit('/').next().unwrap_or_default();
            file.starts_with("libmpi") && file.contains(".so")
        })
        .collect();
    paths.dedup();
    paths
        .into_iter()
        .filter_map(|p| CString::new(p).ok())
        .collect()
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
    SAID.get_or_init(|| eprintln!("libcopy_mpi: {text}"));
}

/// A function of the MPI library, found when it is first called.
pub struct Function {
    name: &'static CStr,
    /// Zero as long as nobody looked for it.
    address: AtomicUsize,
}

/// Looked for, and not there.
const NOWHERE: usize = 1;

impl Function {
    /// A function with this name.
    pub const fn new(name: &'static CStr) -> Self {
        Function {
            name,
            address: AtomicUsize::new(0),
        }
    }

    /// Its address; zero, and a complaint, if the library does not have it.
    #[inline(always)]
    pub fn address(&self) -> usize {
        match self.address.load(Ordering::Relaxed) {
            address if address > NOWHERE => address,
            _ => self.look(true),
        }
    }

    /// Its address; zero if the library does not have it, which it need not.
    #[inline(always)]
    pub fn if_any(&self) -> usize {
        match self.address.load(Ordering::Relaxed) {
            0 => self.look(false),
            NOWHERE => 0,
            address => address,
        }
    }

    #[cold]
    fn look(&self, wanted: bool) -> usize {
        let found = match self.address.load(Ordering::Relaxed) {
            0 => symbol(self.name).map_or(0, |address| address as usize),
            _ => 0,
        };
        self.address.store(found.max(NOWHERE), Ordering::Relaxed);
        if found == 0 && wanted {
            let name = self.name.to_string_lossy();
            complain(&format!("no MPI library in this process has {name}"));
        }
        found
    }
}

/// A C string of the process's environment is set to something else than 0.
pub fn is_set(name: &CStr) -> bool {
    // SAFETY: a valid name; the value is only looked at here.
    let value: *const c_char = unsafe { libc::getenv(name.as_ptr()) };
    if value.is_null() {
        return false;
    }
    // SAFETY: the environment's values end with a zero.
    let value = unsafe { CStr::from_ptr(value) };
    !value.is_empty() && value != c"0"
}
