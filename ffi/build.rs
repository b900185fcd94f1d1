// SPDX-License-Identifier: MIT OR Apache-2.0

//! How the shared libraries of `ffi`, `ffi/async` and `ffi/mpi` are linked.

use std::env;

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
    // Not with -Bsymbolic-functions, which would spare look-ups: a program with an allocator of its
    // own would have what that gave libcopy_mpi.so freed by the C library, as `free` is a name of
    // that library's.
}
