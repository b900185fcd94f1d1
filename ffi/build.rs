// SPDX-License-Identifier: MIT OR Apache-2.0

//! How the shared libraries of `ffi`, `ffi/async` and `ffi/mpi` are linked.

use std::path::Path;
use std::process::Command;
use std::{env, fs};

fn main() {
    let of_cargo = |name| env::var(name).unwrap_or_default();
    let (library, own) = match &*of_cargo("CARGO_PKG_NAME") {
        "libcopy-ffi" => ("libcopy", "build.rs"),
        "libcopy-async" => ("libcopy_async", "../build.rs"),
        "libcopy-mpi" => ("libcopy_mpi", "../build.rs"),
        other => panic!("{other}: ffi/build.rs does not know the name of its shared library"),
    };
    println!("cargo:rerun-if-changed={own}");
    let version = of_cargo("CARGO_PKG_VERSION_MAJOR");
    let link = |argument: &str| println!("cargo:rustc-cdylib-link-arg=-Wl,{argument}");
    // Programs that are linked with it ask for this file.
    link(&format!("-soname,{library}.so.{version}"));
    // It leaves handlers of signals and of fork behind, and addresses in the other libraries.
    link("-z,nodelete");
    if library == "libcopy_mpi" {
        // Not with -Bsymbolic-functions, which would spare look-ups: a program with an allocator of
        // its own would have what that gave us freed by the C library, as `free` is a name of ours.
        link_unwinder(&of_cargo("OUT_DIR"));
    }
}

/// Has the unwinder be part of the library where the compiler has it as an archive: libgcc_s is one
/// library more in every process that this one is preloaded into. Rust's standard library asks for
/// `-lgcc_s`; a linker script of that name, in a folder that is searched first, names the archives.
fn link_unwinder(folder: &str) {
    let of_cargo = |name| env::var(name).unwrap_or_default();
    let is_here = of_cargo("HOST") == of_cargo("TARGET");
    if !is_here || of_cargo("CARGO_CFG_TARGET_ENV") != "gnu" {
        return;
    }
    let compiler = env::var("RUSTC_LINKER").unwrap_or_else(|_| "cc".to_owned());
    let asked = Command::new(compiler)
        .arg("-print-file-name=libgcc_eh.a")
        .output();
    // The bare name if there is none.
    let is_there = asked.is_ok_and(|answer| {
        let path = String::from_utf8_lossy(&answer.stdout);
        let path = Path::new(path.trim());
        path.is_absolute() && path.exists()
    });
    let script = Path::new(folder).join("libgcc_s.so");
    if is_there && fs::write(script, "INPUT(-lgcc_eh -lgcc)\n").is_ok() {
        println!("cargo:rustc-link-search=native={folder}");
    }
}
