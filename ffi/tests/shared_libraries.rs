// SPDX-License-Identifier: MIT OR Apache-2.0

//! The shared libraries as a linker sees them: their names, and what they export. What
//! `libcopy_async.so` exports is called, too.
//!
//! `exports/*.txt` are the lists of exported names. Programs that are linked against a released
//! list need every name on it. After a change, `LIBCOPY_BLESS=1 cargo test -p libcopy-ffi --test
//! shared_libraries` writes them anew.

mod common;

use common::{built, compile_with, here, run, scratch};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// The names of functions and variables that a shared library exports.
fn exported(library: &Path) -> BTreeSet<String> {
    let output = run(Command::new("nm")
        .args(["-D", "--defined-only", "--format=posix"])
        .arg(library));
    let text = String::from_utf8(output.stdout).expect("names are ASCII");
    text.lines()
        .filter_map(|line| line.split_whitespace().next())
        .map(str::to_owned)
        .collect()
}

/// The functions that `libcopy.h` declares: words before a parenthesis, outside of comments.
fn declared() -> BTreeSet<String> {
    let header = std::fs::read_to_string(here("include/libcopy.h")).expect("the header is there");
    let code = header.lines().filter(|line| !line.starts_with("//"));
    let code: String = code.collect::<Vec<_>>().join("\n");
    code.split('(')
        .filter_map(|before| {
            let word = before
                .rsplit(|c: char| !c.is_alphanumeric() && c != '_')
                .next()?;
            word.starts_with("libcopy_").then(|| word.to_owned())
        })
        .collect()
}

fn dynamic(library: &str) -> String {
    let output = run(Command::new("readelf")
        .arg("-dW")
        .arg(built().join(library)));
    String::from_utf8(output.stdout).expect("readelf prints ASCII")
}

#[test]
fn programs_ask_for_the_major_version() {
    for library in ["libcopy.so", "libcopy_async.so"] {
        let entries = dynamic(library);
        let name = format!(
            "Library soname: [{library}.{}]",
            env!("CARGO_PKG_VERSION_MAJOR")
        );
        assert!(entries.contains(&name), "no {name}:\n{entries}");
        assert!(entries.contains("NODELETE"), "{library}:\n{entries}");
    }
}

#[test]
fn only_the_functions_of_the_header_are_exported() {
    let declared = declared();
    assert!(declared.contains("libcopy_team_bcast"), "{declared:?}");
    assert_eq!(exported(&built().join("libcopy.so")), declared);
}

#[test]
fn exported_names_are_those_of_the_committed_lists() {
    for library in ["libcopy", "libcopy_async"] {
        let names = exported(&built().join(format!("{library}.so")));
        let made: String = names.iter().map(|name| format!("{name}\n")).collect();
        let path = here(&format!("exports/{library}.txt"));
        if std::env::var_os("LIBCOPY_BLESS").is_some() {
            std::fs::write(&path, &made).expect("can write the list");
        }
        let kept = std::fs::read_to_string(&path).unwrap_or_default();
        let lost: Vec<_> = kept.lines().filter(|name| !names.contains(*name)).collect();
        assert!(
            lost.is_empty(),
            "{library}.so has lost {lost:?}: programs that are linked with it no longer start"
        );
        assert_eq!(kept, made, "{}: see the head of this file", path.display());
    }
}

#[test]
fn wrappers_settle_the_memory_that_they_are_given() {
    let program = compile_with(
        &here("tests/wrappers.c"),
        &scratch("wrappers"),
        &["-lcopy_async"],
    );
    let output = run(&mut Command::new(program));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "all settled\n");
}

#[test]
fn wrappers_are_attached_when_a_team_is_made() {
    let program = compile_with(
        &here("tests/attached.c"),
        &scratch("attached"),
        &["-lcopy", "-rdynamic"],
    );
    let output = run(&mut Command::new(program));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "attached once\n");
}

/// Of the library alone nothing is interposed any more: a program that uses it has the C library's
/// functions, unless it asks for the others.
#[test]
fn a_program_has_the_wrappers_only_with_libcopy_async() {
    let source = here("tests/whose.c");
    for (libraries, owner) in [
        (&["-lcopy"][..], "libc.so.6"),
        (&["-lcopy_async", "-lcopy"], "libcopy_async.so.0"),
    ] {
        let program = compile_with(&source, &scratch(&format!("whose-{owner}")), libraries);
        let output = run(&mut Command::new(program));
        let text = String::from_utf8_lossy(&output.stdout);
        for line in text.lines() {
            assert!(line.ends_with(owner), "{libraries:?}: {text}");
        }
        assert_eq!(text.lines().count(), 4, "{libraries:?}: {text}");
    }
}
