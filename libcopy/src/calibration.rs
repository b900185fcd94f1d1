// SPDX-License-Identifier: MIT OR Apache-2.0

//! Which kernels this machine's processor is best served with: measured by `libcopy tune`, kept in
//! the cache directory, read by programs that pack.
//!
//! Who cannot read the file uses the built-in table of the processor's vendor. A file is replaced
//! by renaming a new one, so that nobody reads half of one, and has the machine's name in it, so
//! that nobody believes one from elsewhere.
//!
//! Programs do not measure by themselves: of single measurements of 20 ms on a machine with other
//! work, each found other kernels better, by chance. [`measure`] keeps what nearly all of several
//! agree on.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::time::Duration;

use crate::config;
use crate::datatype::{Calibration, CpuProfile, InstructionSet};
use crate::policy::try_directory;
use crate::refusal::without_signal;
use crate::topology::Topology;

/// How long one measurement may take.
const BUDGET: Duration = Duration::from_millis(30);

/// How many there are, and how many must agree on a kernel.
const MEASUREMENTS: usize = 9;
const AGREED: usize = 7;

/// From this many bytes on, what `libcopy tune` found is worth reading a file.
const LARGE: u64 = 64 << 10;

/// Reads `LIBCOPY_CPU` and the file, once per process, so that the kernels of layouts made from now
/// on are those that were found to be best here. Call it before a layout of `bytes` bytes is made:
/// for less than 64 KiB it does not look for the file.
#[inline]
pub fn load_for(bytes: u64) {
    static ONCE: Once = Once::new();
    static LIMIT: Once = Once::new();
    if !LIMIT.is_completed() {
        LIMIT.call_once(limit);
    }
    if bytes >= LARGE && !ONCE.is_completed() {
        ONCE.call_once(|| {
            let place = directory().filter(|_| is_wanted());
            if let Some(profile) = place.and_then(|place| read(&place, &machine())) {
                profile.install();
            }
        });
    }
}

/// Has kernels use no more instructions than `LIBCOPY_CPU` says.
#[cold]
fn limit() {
    let Some(name) = config::CPU.value() else {
        return;
    };
    match InstructionSet::parse(name.trim()) {
        Some(set) => {
            set.limit();
        }
        None => {
            let names = InstructionSet::ALL.map(|(_, name)| name).join(", ");
            eprintln!(
                "libcopy: {}={name} is not one of {names}; it is ignored",
                config::CPU.name
            );
        }
    }
}

/// What [`measure`] found.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The vendor's table, with what was better.
    pub profile: CpuProfile,
    /// Block length, level of the caches (0: the first) and name of each kernel that was better.
    pub changes: Vec<(usize, usize, &'static str)>,
    /// Flags that differ from the vendor's table, by name.
    pub flags: Vec<(&'static str, bool)>,
    /// Pieces of a list whose branches the processor remembers.
    pub remembered: Option<usize>,
    /// Quarters of the unit in a piece on average up to which pieces are cut, of lists whose
    /// branches the processor remembers and of longer ones.
    pub cut_quarters: Option<[usize; 2]>,
}

/// Measures several times for at most 30 ms each, and keeps what nearly all found.
pub fn measure() -> Measured {
    let all: Vec<Calibration> = (0..MEASUREMENTS)
        .map(|_| CpuProfile::calibrate(BUDGET))
        .collect();
    let changes = agreed(&all, |one| &one.changes);
    let flags = agreed(&all, |one| &one.flags);
    let remembered = median(all.iter().filter_map(|one| one.remembered).collect());
    let cut = |which: usize| {
        let all = all.iter().filter_map(|one| Some(one.cut_quarters?[which]));
        median(all.collect())
    };
    let cut_quarters = cut(0).zip(cut(1)).map(|(short, long)| [short, long]);
    let mut profile = CpuProfile::of_vendor().clone();
    if let Some(quarters) = cut_quarters {
        profile.set_cut_quarters(quarters);
    }
    if let Some(pieces) = remembered {
        profile.set_remembered(pieces);
    }
    for (len, level, name) in &changes {
        profile.choose(*len, *level, name);
    }
    for (name, value) in &flags {
        profile.set_flag(name, *value);
    }
    Measured {
        profile,
        changes,
        flags,
        remembered,
        cut_quarters,
    }
}

/// What half of most of the measurements found, or more; `None` if not as many found anything.
fn median(mut all: Vec<usize>) -> Option<usize> {
    all.sort_unstable();
    (all.len() >= AGREED).then(|| all[all.len() / 2])
}

/// What nearly all measurements found, each once.
fn agreed<T: Copy + PartialEq>(
    all: &[Calibration],
    of: impl Fn(&Calibration) -> &Vec<T>,
) -> Vec<T> {
    let mut kept = Vec::new();
    for found in all.iter().flat_map(&of) {
        let votes = all.iter().filter(|one| of(one).contains(found));
        if votes.count() >= AGREED && !kept.contains(found) {
            kept.push(*found);
        }
    }
    kept
}

impl Measured {
    /// Writes the file, for programs that start from now on; says where it is.
    ///
    /// # Errors
    ///
    /// Why it cannot be written.
    pub fn save(&self) -> io::Result<PathBuf> {
        write(&place()?, &machine(), &self.profile)
    }
}

/// Whether [`Measured::save`] could write now, tried with a file beside its own; returns the
/// directory.
///
/// # Errors
///
/// There is no place for the file, or none can be written there.
pub fn check_place() -> io::Result<PathBuf> {
    let directory = place()?;
    let named = |error: io::Error| {
        let text = format!("{}: {error}", directory.display());
        io::Error::new(error.kind(), text)
    };
    try_directory(&directory).map_err(named)?;
    Ok(directory)
}

/// Whether there are tables, and none is of this machine, kernel and version of the library.
pub fn is_stale() -> bool {
    let Some(directory) = directory() else {
        return false;
    };
    let entries = fs::read_dir(&directory).into_iter().flatten().flatten();
    let mut names = entries.map(|entry| entry.file_name());
    let has_some = names.any(|name| name.to_string_lossy().starts_with("kernels-"));
    has_some && read(&directory, &machine()).is_none()
}

/// Where the file is to be.
fn place() -> io::Result<PathBuf> {
    directory().ok_or_else(|| {
        io::Error::other("no place for the kernels' table: set HOME or XDG_CACHE_HOME")
    })
}

fn is_wanted() -> bool {
    config::CALIBRATION.value().is_none_or(|value| value != "0")
}

fn directory() -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let directory = match variable("XDG_CACHE_HOME") {
        Some(directory) => PathBuf::from(directory),
        None => PathBuf::from(variable("HOME")?).join(".cache"),
    };
    Some(directory.join("libcopy"))
}

/// What a calibration is for: processor, kernel, hypervisor and version of this library.
fn machine() -> String {
    format!(
        "{}, hypervisor {}, libcopy {}",
        Topology::current().machine(),
        hypervisor(),
        env!("CARGO_PKG_VERSION")
    )
}

/// What the processor says about whose virtual machine this is.
// Newer compilers need no block.
#[allow(unused_unsafe)]
fn hypervisor() -> String {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::__cpuid;
        // SAFETY: every x86-64 processor has the instruction.
        let (features, leaf) = unsafe { (__cpuid(1), __cpuid(0x4000_0000)) };
        // "Hypervisor present".
        if features.ecx & 1 << 31 != 0 {
            let words = [leaf.ebx, leaf.ecx, leaf.edx];
            let name: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            let name = String::from_utf8_lossy(&name);
            return name.chars().filter(char::is_ascii_alphanumeric).collect();
        }
    }
    "none".to_owned()
}

/// A file for each machine: a home directory may serve several.
fn path(directory: &Path, machine: &str) -> PathBuf {
    // FNV-1a.
    let hash = machine
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
    directory.join(format!("kernels-{hash:016x}"))
}

/// The first line is the machine, the others are the profile.
fn read(directory: &Path, machine: &str) -> Option<CpuProfile> {
    let text = fs::read_to_string(path(directory, machine)).ok()?;
    let (first, rest) = text.split_once('\n')?;
    CpuProfile::from_text(rest).filter(|_| first == machine)
}

fn write(directory: &Path, machine: &str, profile: &CpuProfile) -> io::Result<PathBuf> {
    fs::create_dir_all(directory)?;
    let path = path(directory, machine);
    let fresh = path.with_extension(std::process::id().to_string());
    let text = format!("{machine}\n{}", profile.to_text());
    let written =
        without_signal(|| fs::write(&fresh, text)).and_then(|()| fs::rename(&fresh, &path));
    if written.is_err() {
        let _ = fs::remove_file(&fresh);
    }
    written.map(|()| path)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Scratch {
            let name = format!("libcopy-calibration-{name}-{}", std::process::id());
            Scratch(std::env::temp_dir().join(name))
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_number_is_that_of_half_the_measurements() {
        assert_eq!(
            median(vec![4096, 0, 8192, 4096, 4096, 512, 8192]),
            Some(4096)
        );
        assert_eq!(median(vec![8192; AGREED - 1]), None);
    }

    /// The vendor's table with one word changed, which nobody measures.
    fn strange() -> CpuProfile {
        let text = CpuProfile::of_vendor().to_text();
        let other = if text.contains("ask-close = yes") {
            text.replace("ask-close = yes", "ask-close = no")
        } else {
            text.replace("ask-close = no", "ask-close = yes")
        };
        CpuProfile::from_text(&other).unwrap()
    }

    #[test]
    fn a_file_is_read_by_its_machine_only() {
        let scratch = Scratch::new("read");
        write(&scratch.0, "a machine", &strange()).unwrap();
        assert_eq!(read(&scratch.0, "a machine"), Some(strange()));
        assert_eq!(read(&scratch.0, "another"), None);
        // Nor is the file believed where two names have the same hash.
        let (of, for_other) = (path(&scratch.0, "a machine"), path(&scratch.0, "another"));
        fs::copy(of, for_other).unwrap();
        assert_eq!(read(&scratch.0, "another"), None);
    }

    #[test]
    fn damaged_files_and_places_leave_the_vendors_table() {
        let scratch = Scratch::new("damaged");
        let path = write(&scratch.0, "m", &strange()).unwrap();
        let text = fs::read(&path).unwrap();
        for len in 0..text.len() - 1 {
            fs::write(&path, &text[..len]).unwrap();
            assert_eq!(read(&scratch.0, "m"), None, "{len}");
        }
        fs::write(&path, [0xff; 100]).unwrap();
        assert_eq!(read(&scratch.0, "m"), None);
        let nowhere = path.join("below a file");
        assert_eq!(read(&nowhere, "m"), None);
        assert!(write(&nowhere, "m", &strange()).is_err());
    }

    /// Who reads while others write sees one of the tables, whole.
    #[test]
    fn files_are_replaced_at_once() {
        let scratch = Scratch::new("many");
        write(&scratch.0, "m", &strange()).unwrap();
        let vendor = CpuProfile::of_vendor();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..200 {
                    write(&scratch.0, "m", vendor).unwrap();
                    write(&scratch.0, "m", &strange()).unwrap();
                }
            });
            for _ in 0..400 {
                let profile = read(&scratch.0, "m");
                assert!(profile.is_some_and(|p| p == *vendor || p == strange()));
            }
        });
        // And nothing is left but the file.
        assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 1);
    }
}
