// SPDX-License-Identifier: MIT OR Apache-2.0

//! Whether `LD_PRELOAD` reaches a program (ld.so(8)).

use anyhow::{Context, Result, bail};
use object::Endianness;
use object::elf;
use object::read::elf::{Dyn as _, FileHeader, ProgramHeader as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// The file that a word of a command names, if it can be executed: by its path, or found in `PATH`.
pub fn find(word: &str) -> Option<PathBuf> {
    let is_program = |path: &Path| {
        path.metadata()
            .is_ok_and(|file| file.is_file() && file.mode() & 0o111 != 0)
    };
    if word.contains('/') {
        return Some(PathBuf::from(word)).filter(|path| is_program(path));
    }
    let places = std::env::var_os("PATH")?;
    std::env::split_paths(&places)
        .map(|place| place.join(word))
        .find(|path| is_program(path))
}

/// What is known of a program from its file.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Shared libraries that it is linked with.
    pub needed: Vec<String>,
}

/// Looks at a program.
///
/// # Errors
///
/// A library that is preloaded does not reach it; the text says why and what to do.
pub fn look(path: &Path) -> Result<Facts> {
    let name = path.display();
    let file = std::fs::File::open(path).with_context(|| format!("opening {name}"))?;
    let meta = file
        .metadata()
        .with_context(|| format!("looking at {name}"))?;
    if is_privileged(&meta) {
        bail!(
            "{name} is set-user-ID or set-group-ID: the dynamic linker preloads nothing into it. \
             Run a copy without that bit"
        );
    }
    // SAFETY: The file is read only; if somebody shortens it meanwhile, this process ends with
    // SIGBUS, as it would if it were the program itself.
    let data = unsafe { memmap2::Mmap::map(&file) }.with_context(|| format!("reading {name}"))?;
    if !data.starts_with(&elf::ELFMAG) {
        // A script: what its interpreter starts is not known.
        return Ok(Facts::default());
    }
    let bits = data.get(4).copied();
    if bits == Some(elf::ELFCLASS32) {
        bail!("{name} is a 32-bit program, and libcopy_mpi.so has 64 bits. Compile it for 64 bits");
    }
    let damaged = || format!("{name} is no program that can be read");
    let header = elf::FileHeader64::<Endianness>::parse(&*data).with_context(damaged)?;
    let endian = header.endian().with_context(damaged)?;
    let segments = header
        .program_headers(endian, &*data)
        .with_context(damaged)?;
    let mut interpreter = None;
    let mut facts = Facts::default();
    for segment in segments {
        if let Some(path) = segment.interpreter(endian, &*data).with_context(damaged)? {
            interpreter = Some(String::from_utf8_lossy(path).into_owned());
        }
        if let Some(entries) = segment.dynamic(endian, &*data).with_context(damaged)? {
            facts.needed = names(elf::DT_NEEDED, endian, segments, entries, &data);
        }
    }
    match interpreter {
        None => bail!(
            "{name} is linked statically: no library can be preloaded into it. \
             Link it with the shared MPI library"
        ),
        Some(path) if path.contains("ld-musl") => bail!(
            "{name} is linked with musl ({path}), and libcopy_mpi.so with glibc. \
             Compile it on a system with glibc"
        ),
        Some(_) => Ok(facts),
    }
}

/// Whether the dynamic linker would not trust the environment.
fn is_privileged(file: &std::fs::Metadata) -> bool {
    // SAFETY: No arguments.
    let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
    let (mode, set_user, set_group) = (file.mode(), libc::S_ISUID, libc::S_ISGID);
    (mode & set_user != 0 && file.uid() != user) || (mode & set_group != 0 && file.gid() != group)
}

type Header = elf::FileHeader64<Endianness>;

/// The name that programs know a shared library by (`DT_SONAME`); none if it has none, or the file
/// is no library of 64 bits.
pub fn soname(path: &Path) -> Option<String> {
    let file = std::fs::File::open(path).ok()?;
    // SAFETY: As for a program.
    let data = unsafe { memmap2::Mmap::map(&file) }.ok()?;
    let header = elf::FileHeader64::<Endianness>::parse(&*data).ok()?;
    let endian = header.endian().ok()?;
    let segments = header.program_headers(endian, &*data).ok()?;
    let mut all = segments.iter();
    let entries = all.find_map(|segment| segment.dynamic(endian, &*data).ok().flatten())?;
    names(elf::DT_SONAME, endian, segments, entries, &data).pop()
}

/// The names that the dynamic section has with a tag.
fn names(
    tag: u32,
    endian: Endianness,
    segments: &[elf::ProgramHeader64<Endianness>],
    entries: &[<Header as FileHeader>::Dyn],
    data: &[u8],
) -> Vec<String> {
    let value = |tag: u32| {
        let mut entries = entries.iter();
        let entry = entries.find(|entry| entry.d_tag(endian) == u64::from(tag))?;
        Some(entry.d_val(endian))
    };
    let texts = value(elf::DT_STRTAB)
        .zip(value(elf::DT_STRSZ))
        .and_then(|(at, len)| {
            let mut segments = segments.iter();
            segments.find_map(|segment| segment.data_range(endian, data, at, len).ok().flatten())
        })
        .unwrap_or_default();
    let name = |at: u64| {
        let rest = texts.get(usize::try_from(at).ok()?..)?;
        let end = rest.iter().position(|byte| *byte == 0)?;
        Some(String::from_utf8_lossy(&rest[..end]).into_owned())
    };
    entries
        .iter()
        .filter(|entry| entry.d_tag(endian) == u64::from(tag))
        .filter_map(|entry| name(entry.d_val(endian)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_by_name_and_by_path() {
        let shell = find("sh").unwrap();
        assert_eq!(find(shell.to_str().unwrap()), Some(shell));
        assert_eq!(find("no-such-program-of-libcopy"), None);
        // A directory, and a file that is none.
        assert_eq!(find("/"), None);
        assert_eq!(find("/etc/passwd"), None);
    }

    #[test]
    fn a_program_says_what_it_is_linked_with() {
        let own = look(&std::env::current_exe().unwrap()).unwrap();
        let c_library = own.needed.iter().find(|name| name.starts_with("libc.so"));
        let c_library = c_library.unwrap();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let path = maps
            .split_whitespace()
            .find(|word| word.ends_with(c_library));
        assert_eq!(soname(Path::new(path.unwrap())).as_ref(), Some(c_library));
    }

    #[test]
    fn a_script_is_left_to_its_interpreter() {
        let place = tempfile::tempdir().unwrap();
        let script = place.path().join("script");
        std::fs::write(&script, "#!/bin/sh\n").unwrap();
        assert_eq!(look(&script).unwrap(), Facts::default());
    }

    #[test]
    fn what_is_cut_off_is_an_error() {
        let place = tempfile::tempdir().unwrap();
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        for len in [5, 40, 100, 200] {
            let cut = place.path().join("cut");
            std::fs::write(&cut, &own[..len]).unwrap();
            assert!(look(&cut).is_err(), "{len}");
        }
    }
}
