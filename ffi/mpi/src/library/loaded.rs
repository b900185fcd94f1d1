// SPDX-License-Identifier: MIT OR Apache-2.0

//! The files that are loaded in this process (dl_iterate_phdr(3)): their names and addresses, kept
//! until something is loaded or unloaded, and whether they define symbols, by their own hash
//! tables. A look-up with dlsym(3) costs about a thousand instructions, one that finds nothing
//! several times as many; a look into a hash table costs ten.

use std::ffi::{CStr, CString, c_int, c_void};
use std::ops::{ControlFlow, Range};
use std::sync::{Arc, Mutex};

use libcopy::lock::lock;

/// How many files were loaded and unloaded up to now: `dlpi_adds` and `dlpi_subs`.
pub type Generation = (u64, u64);

/// Calls a function with the description of each file that is loaded, and how long that is, until
/// the function breaks off.
pub fn each_file<F: FnMut(&libc::dl_phdr_info, usize) -> ControlFlow<()>>(mut visit: F) {
    unsafe extern "C" fn call<F: FnMut(&libc::dl_phdr_info, usize) -> ControlFlow<()>>(
        info: *mut libc::dl_phdr_info,
        size: libc::size_t,
        visit: *mut c_void,
    ) -> c_int {
        // SAFETY: the loader describes a file that is loaded as long as this runs; the function is
        // the one below.
        unsafe { (*visit.cast::<F>())(&*info, size).is_break().into() }
    }
    // SAFETY: the callback gets this function, and is not called afterwards.
    unsafe { libc::dl_iterate_phdr(Some(call::<F>), (&raw mut visit).cast()) };
}

/// The current [`Generation`]; `None` with a loader that does not count.
pub fn generation() -> Option<Generation> {
    let mut found = None;
    each_file(|info, size| {
        if size >= std::mem::offset_of!(libc::dl_phdr_info, dlpi_tls_modid) {
            found = Some((info.dlpi_adds, info.dlpi_subs));
        }
        ControlFlow::Break(())
    });
    found
}

/// The name of a file without its folders.
pub fn base_name(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').next().unwrap_or(path)
}

/// A file that is loaded.
#[derive(Debug)]
pub struct File {
    /// Its path; empty for the program.
    pub name: CString,
    /// From the first to the last segment.
    pub addresses: Range<usize>,
}

impl File {
    /// Whether its name is one of an MPI library's files.
    pub fn is_mpi_library(&self) -> bool {
        let name = base_name(self.name.to_bytes());
        name.starts_with(b"libmpi") && name.windows(3).any(|part| part == b".so")
    }
}

/// All files, in the order in which they were loaded. Those that were loaded with the program are
/// searched for symbols in this order.
pub fn files() -> Arc<Vec<File>> {
    static KNOWN: Mutex<Option<(Generation, Arc<Vec<File>>)>> = Mutex::new(None);
    let now = generation();
    let mut known = lock(&KNOWN);
    if let Some((_, files)) = known.as_ref().filter(|(then, _)| Some(*then) == now) {
        return files.clone();
    }
    let mut all: Vec<File> = Vec::new();
    each_file(|info, _| {
        // SAFETY: the loader describes a file that is loaded as long as this runs.
        let (name, addresses) = unsafe { (name_of(info).to_owned(), addresses(info)) };
        all.push(File { name, addresses });
        ControlFlow::Continue(())
    });
    let all = Arc::new(all);
    *known = now.map(|now| (now, all.clone()));
    all
}

/// The path of a file; empty for the program.
///
/// # Safety
///
/// The file is loaded, and this is its description.
pub unsafe fn name_of(info: &libc::dl_phdr_info) -> &CStr {
    match info.dlpi_name {
        name if name.is_null() => c"",
        // SAFETY: the loader's string, which stays as long as the file.
        name => unsafe { CStr::from_ptr(name) },
    }
}

/// The addresses of a file.
///
/// # Safety
///
/// The file is loaded, and this is its description.
unsafe fn addresses(info: &libc::dl_phdr_info) -> Range<usize> {
    // SAFETY: the loader's own table, of the length that it names.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    let base = info.dlpi_addr as usize;
    let (mut start, mut end) = (usize::MAX, 0);
    for header in headers.iter().filter(|h| h.p_type == libc::PT_LOAD) {
        let from = base + header.p_vaddr as usize;
        start = start.min(from);
        end = end.max(from + header.p_memsz as usize);
    }
    start..end
}

/// `Elf64_Dyn`
#[repr(C)]
struct Dynamic {
    tag: i64,
    value: u64,
}

/// Calls a function with the tags and values of a file's dynamic section (System V ABI, chapter 5),
/// and the values as addresses.
///
/// # Safety
///
/// The file is loaded, and this is its description.
pub unsafe fn dynamic(info: &libc::dl_phdr_info, mut entry: impl FnMut(i64, u64, u64)) {
    let base = info.dlpi_addr;
    // SAFETY: the loader's own tables, which end with a null tag.
    unsafe {
        let headers = std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into());
        let Some(section) = headers.iter().find(|h| h.p_type == libc::PT_DYNAMIC) else {
            return;
        };
        let mut at = (base + section.p_vaddr) as *const Dynamic;
        while (*at).tag != 0 {
            let value = (*at).value;
            // Most loaders have replaced addresses in the file by those in memory.
            let address = if value < base { base + value } else { value };
            entry((*at).tag, value, address);
            at = at.add(1);
        }
    }
}

/// The hash of a name in tables of `DT_GNU_HASH`, from that of what comes before.
pub const fn hash(before: u32, name: &[u8]) -> u32 {
    let (mut hash, mut at) = (before, 0);
    while at < name.len() {
        hash = hash.wrapping_mul(33).wrapping_add(name[at] as u32);
        at += 1;
    }
    hash
}

/// The hash of an empty name.
pub const EMPTY: u32 = 5381;

pub const DT_SYMTAB: i64 = 6;
const DT_GNU_HASH: i64 = 0x6fff_fef5;

/// A file's table of defined symbols, in the format of GNU's linkers (glibc: elf/dl-lookup.c,
/// `do_lookup_x`).
struct Definitions {
    symbols: *const libc::Elf64_Sym,
    /// Index of the first symbol in the table.
    first: u32,
    shift: u32,
    bloom: &'static [u64],
    buckets: &'static [u32],
    chains: *const u32,
}

impl Definitions {
    /// Those of a file; `None` without such a table.
    ///
    /// # Safety
    ///
    /// The file is loaded as long as the result is used, and this is its description.
    unsafe fn of(info: &libc::dl_phdr_info) -> Option<Definitions> {
        let (mut symbols, mut table) = (0, 0);
        // SAFETY: the caller's promise; the table has the lengths that are at its beginning.
        unsafe {
            dynamic(info, |tag, _, address| match tag {
                DT_SYMTAB => symbols = address,
                DT_GNU_HASH => table = address,
                _ => {}
            });
            if symbols == 0 || table == 0 {
                return None;
            }
            let [buckets, first, bloom, shift] = (table as *const [u32; 4]).read();
            let words = (table as *const u64).add(2);
            let bloom = std::slice::from_raw_parts(words, bloom as usize);
            let at = words.add(bloom.len()).cast::<u32>();
            let buckets = std::slice::from_raw_parts(at, buckets as usize);
            let all = !bloom.is_empty() && !buckets.is_empty();
            all.then_some(Definitions {
                symbols: symbols as *const _,
                first,
                shift,
                bloom,
                buckets,
                chains: at.add(buckets.len()),
            })
        }
    }

    /// Whether there is a symbol whose name has this hash, but for the lowest bit.
    fn has(&self, hash: u32) -> bool {
        let word = self.bloom[(hash / 64) as usize % self.bloom.len()];
        let mask = (1u64 << (hash % 64)) | (1u64 << ((hash >> self.shift) % 64));
        if word & mask != mask {
            return false;
        }
        let mut index = self.buckets[hash as usize % self.buckets.len()];
        while index >= self.first {
            // SAFETY: a chain ends with an odd hash; it and the symbols have the same indices.
            let (found, section) = unsafe {
                let found = *self.chains.add((index - self.first) as usize);
                (found, (*self.symbols.add(index as usize)).st_shndx)
            };
            if (found ^ hash) >> 1 == 0 && section != 0 {
                return true;
            }
            if found & 1 != 0 {
                break;
            }
            index += 1;
        }
        false
    }
}

/// Which of the names with these hashes may be defined in files of some indices in [`files`].
pub fn may_define(hashes: &[u32], is_asked: impl Fn(usize) -> bool) -> Vec<bool> {
    let (mut index, mut found) = (0, vec![false; hashes.len()]);
    each_file(|info, _| {
        if is_asked(index) {
            // SAFETY: the loader describes a file that is loaded as long as this runs.
            let definitions = unsafe { Definitions::of(info) };
            for (found, hash) in found.iter_mut().zip(hashes) {
                // Without a table of this kind nothing is known.
                *found |= definitions.as_ref().is_none_or(|all| all.has(*hash));
            }
        }
        index += 1;
        ControlFlow::Continue(())
    });
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_kept_until_one_is_loaded() {
        let before = files();
        assert!(Arc::ptr_eq(&before, &files()) || generation().is_none());
        // SAFETY: a library of the C library without constructors that matter.
        let library = unsafe { libc::dlopen(c"libBrokenLocale.so.1".as_ptr(), libc::RTLD_LAZY) };
        if library.is_null() {
            eprintln!("skipped: the C library has no libBrokenLocale.so.1");
            return;
        }
        let has = |files: &[File]| {
            let mut names = files.iter().map(|file| file.name.to_string_lossy());
            names.any(|name| name.contains("libBrokenLocale"))
        };
        assert!(has(&files()));
        // SAFETY: the library that was opened above.
        unsafe { libc::dlclose(library) };
    }

    #[test]
    fn definitions_are_found_in_the_file_that_has_them() {
        let files = files();
        let address = libc::qsort as *const () as usize;
        // SAFETY: a valid name; the handle is a constant.
        let next = unsafe { libc::dlsym(libc::RTLD_NEXT, c"qsort".as_ptr()) } as usize;
        let c = files.iter().position(|file| {
            file.addresses.contains(&next) || next == 0 && file.addresses.contains(&address)
        });
        let c = c.unwrap();
        let hashes = [
            b"qsort".as_slice(),
            b"strlen",
            b"libcopy_has_no_such_function",
        ];
        let hashes = hashes.map(|name| hash(EMPTY, name));
        assert_eq!(may_define(&hashes, |file| file == c), [true, true, false]);
        // A reference is no definition.
        let others = may_define(&hashes[..1], |file| file != c && file < 1);
        assert_eq!(others, [false]);
        assert_eq!(may_define(&hashes, |_| false), [false; 3]);
    }

    #[test]
    fn a_hash_goes_on_where_another_one_ends() {
        assert_eq!(
            hash(hash(EMPTY, b"MPI_"), b"Send"),
            hash(EMPTY, b"MPI_Send")
        );
    }
}
