// SPDX-License-Identifier: MIT OR Apache-2.0

//! MPI programs, each compiled once: a program is kept below a name that is a hash of all that it
//! is made from, and every test, process and later run that wants the same takes that file.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hasher;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

/// What no test has used for so long goes when something is compiled.
const KEPT: Duration = Duration::from_secs(7 * 24 * 3600);

/// How every program is compiled, besides its own flags.
const COMMON_FLAGS: [&str; 2] = ["-O2", "-o"];

/// A compiler of an MPI library, as it is on this machine.
#[derive(Clone)]
struct Compiler {
    /// What it runs and who that is, and the file that it is itself.
    identity: Vec<u8>,
    /// Where it looks for headers of the MPI library.
    includes: Vec<PathBuf>,
}

/// The compiler, if it and the compiler behind it are installed; each process asks once.
fn compiler(name: &str) -> Option<Compiler> {
    static KNOWN: Mutex<BTreeMap<String, Option<Compiler>>> = Mutex::new(BTreeMap::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(compiler) = known.get(name) {
        return compiler.clone();
    }
    let compiler = asked(name);
    known.insert(name.to_owned(), compiler.clone());
    compiler
}

fn asked(name: &str) -> Option<Compiler> {
    let mut identity = Vec::new();
    let mut includes = Vec::new();
    for what in ["-v", "-show"] {
        let answer = Command::new(name).arg(what).output().ok()?;
        // Not every wrapper knows the second one.
        if what == "-v" && !answer.status.success() {
            return None;
        }
        identity.extend(&answer.stdout);
        identity.extend(&answer.stderr);
        let words = String::from_utf8_lossy(&answer.stdout);
        let words = words.split_whitespace();
        includes.extend(
            words
                .filter_map(|word| word.strip_prefix("-I"))
                .map(PathBuf::from),
        );
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let file = std::env::split_paths(&path)
        .map(|directory| directory.join(name))
        .find(|file| file.is_file())?;
    identity.extend(file.as_os_str().as_encoded_bytes());
    let file = file.canonicalize().ok()?;
    let data = file.metadata().ok()?;
    let changed = data.modified().ok()?;
    identity.extend(format!("{} {} {changed:?}", file.display(), data.len()).bytes());
    Some(Compiler { identity, includes })
}

/// The names of the headers that this source includes.
fn included(source: &str) -> impl Iterator<Item = &str> {
    source.lines().filter_map(|line| {
        let directive = line.trim_start().strip_prefix('#')?.trim_start();
        let named = directive.strip_prefix("include")?.trim_start();
        let end = match named.chars().next()? {
            '"' => '"',
            '<' => '>',
            _ => return None,
        };
        named[1..].split_once(end).map(|(name, _)| name)
    })
}

/// Adds the file and what it includes to what is hashed. What is in none of the directories is the
/// system's.
fn add(file: &Path, directories: &[PathBuf], seen: &mut BTreeSet<PathBuf>, hash: &mut impl Hasher) {
    let Ok(bytes) = std::fs::read(file) else {
        return;
    };
    if !seen.insert(file.to_owned()) {
        return;
    }
    hash.write(&bytes);
    let text = String::from_utf8_lossy(&bytes);
    for name in included(&text) {
        let beside = file.parent().map(Path::to_path_buf);
        let places = beside.iter().chain(directories);
        let found = places
            .map(|place| place.join(name))
            .find(|path| path.is_file());
        if let Some(found) = found {
            add(&found, directories, seen, hash);
        }
    }
}

/// The name of what is made from all this. Sources that flags name count, too.
fn name(library: &str, compiler: &Compiler, flags: &[&str], source: &str) -> String {
    let of_flags = flags.iter().filter_map(|flag| flag.strip_prefix("-I"));
    let directories: Vec<PathBuf> = of_flags
        .map(PathBuf::from)
        .chain(compiler.includes.iter().cloned())
        .collect();
    let mut hash = Hash::default();
    hash.write(&compiler.identity);
    for flag in COMMON_FLAGS.iter().chain(flags) {
        hash.write(flag.as_bytes());
        hash.write_u8(0);
    }
    let mut seen = BTreeSet::new();
    let named = flags.iter().filter(|flag| !flag.starts_with('-'));
    for file in named.chain([&source]) {
        add(Path::new(file), &directories, &mut seen, &mut hash);
    }
    // Fortran's has no line that says so.
    for directory in &compiler.includes {
        add(&directory.join("mpi.h"), &directories, &mut seen, &mut hash);
    }
    let stem = Path::new(source)
        .file_stem()
        .unwrap_or_default()
        .to_string_lossy();
    format!("{stem}.{library}.{:016x}", hash.finish())
}

/// FNV-1a, which is the same in every process and with every version of Rust.
struct Hash(u64);

impl Default for Hash {
    fn default() -> Hash {
        Hash(0xcbf2_9ce4_8422_2325)
    }
}

impl Hasher for Hash {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// A program of the caller's own, whose name nobody else has: a link to the one that is kept. None
/// without the compiler.
pub fn program(
    library: &str,
    compiler_name: &str,
    flags: &[&str],
    source: &str,
) -> Option<PathBuf> {
    static PROGRAMS: AtomicU32 = AtomicU32::new(0);
    let compiler = compiler(compiler_name)?;
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let kept = directory.join("programs");
    std::fs::create_dir_all(&kept).expect("a directory for programs");
    let number = PROGRAMS.fetch_add(1, Ordering::Relaxed);
    let stem = Path::new(source)
        .file_stem()
        .unwrap_or_default()
        .to_string_lossy();
    // Tests put other files beside it, with other extensions.
    let own = format!("{stem}.{library}.{}-{number}.program", std::process::id());
    let own = directory.join(own);
    // Left behind by a process of this number that was killed.
    let _ = std::fs::remove_file(&own);
    let made = kept.join(name(library, &compiler, flags, source));
    // Somebody who cleans up may take it away in between.
    for _ in 0..3 {
        match std::fs::hard_link(&made, &own) {
            Ok(()) => {
                // Used now.
                if let Ok(file) = std::fs::File::open(&made) {
                    let _ = file.set_modified(SystemTime::now());
                }
                return Some(own);
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                compile(compiler_name, flags, source, &made, number);
            }
            Err(error) => panic!("{}: {error}", own.display()),
        }
    }
    panic!("{}: does not stay", made.display());
}

/// Makes the file at once, as far as others see, and takes away what nobody uses any more.
fn compile(compiler: &str, flags: &[&str], source: &str, made: &Path, number: u32) {
    let unfinished = format!("unfinished.{}.{number}", std::process::id());
    let unfinished = made.with_file_name(unfinished);
    let output = Command::new(compiler)
        .args(flags)
        .args(COMMON_FLAGS)
        .arg(&unfinished)
        .arg(source)
        .output()
        .expect("the compiler starts");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    std::fs::rename(&unfinished, made).expect("the program that was made");
    let entries = made.parent().and_then(|parent| parent.read_dir().ok());
    for entry in entries.into_iter().flatten().flatten() {
        let changed = entry.metadata().and_then(|data| data.modified());
        let age = changed.ok().and_then(|at| at.elapsed().ok());
        if age.is_some_and(|age| age > KEPT) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}
