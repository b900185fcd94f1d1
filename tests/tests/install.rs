// SPDX-License-Identifier: MIT OR Apache-2.0

//! `scripts/install`: what it installs works there, and `--uninstall` leaves nothing of it.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, PoisonError};

use common::{ROOT, all_below, run, said, text};

/// A build could replace what another test installs.
static BUILDS: Mutex<()> = Mutex::new(());

/// A new directory for one test.
fn scratch(name: &str) -> PathBuf {
    common::scratch(&format!("install/{name}"))
}

/// The script, with the profile and the directory of this test. The whole workspace is built, with
/// the features that its tests have, so that little is built again.
fn script(arguments: &[&str]) -> Output {
    let own = std::env::current_exe().expect("this test is a file");
    let built = own.ancestors().nth(2).expect("cargo's layout");
    let target = built.parent().expect("cargo's layout");
    let is_release = built.ends_with("release");
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--quiet", "--workspace", "--all-targets"]);
    build.current_dir(ROOT);
    let mut script = Command::new(Path::new(ROOT).join("scripts/install"));
    script.arg("--no-build").args(arguments);
    if is_release {
        build.arg("--release");
    } else {
        script.arg("--debug");
    }
    for command in [&mut build, &mut script] {
        command.env("CARGO_TARGET_DIR", target);
    }
    let _alone = BUILDS.lock().unwrap_or_else(PoisonError::into_inner);
    run(&mut build);
    said(&mut script)
}

fn installed(arguments: &[&str]) {
    let output = script(arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {errors}");
}

/// Whether this machine has a command; says so where it has not.
fn has(name: &str) -> bool {
    let found = Command::new("sh")
        .args(["-c", "command -v \"$1\" >/dev/null", "sh", name])
        .status();
    let found = found.is_ok_and(|status| status.success());
    if !found {
        eprintln!("{name} is not installed: what needs it is not tested");
    }
    found
}

#[test]
fn programs_are_compiled_against_an_installation_and_run() {
    let place = scratch("programs");
    let prefix = place.join("prefix");
    installed(&["--prefix", text(&prefix)]);
    let (libdir, tool) = (prefix.join("lib"), prefix.join("bin/libcopy"));
    let example = Path::new(ROOT).join("ffi/examples/bcast.c");
    let broadcasts = |program: &Path| {
        let output = run(Command::new(&tool)
            .args(["run", "-n", "2", "--"])
            .arg(program)
            .env("LD_LIBRARY_PATH", &libdir));
        assert!(output.contains("rank 1 ends with x\n"), "{output}");
    };

    if has("pkg-config") {
        for (package, needed) in [
            ("libcopy", &["libcopy.so.0"][..]),
            ("libcopy-async", &["libcopy_async.so.0", "libcopy.so.0"]),
        ] {
            let asked = |what: &[&str]| {
                let mut command = Command::new("pkg-config");
                command.env("PKG_CONFIG_PATH", libdir.join("pkgconfig"));
                run(command.args(what).arg(package))
            };
            assert_eq!(asked(&["--modversion"]).trim(), env!("CARGO_PKG_VERSION"));
            let program = place.join(package);
            run(Command::new("cc")
                .arg(&example)
                .args(asked(&["--cflags", "--libs"]).split_whitespace())
                .arg("-o")
                .arg(&program));
            broadcasts(&program);
            let dynamic = run(Command::new("readelf").arg("-dW").arg(&program));
            for name in needed {
                assert!(
                    dynamic.contains(&format!("Shared library: [{name}]")),
                    "{dynamic}"
                );
            }
        }
        // The hint for programs that are to find it without a variable.
        let rpath = "cc \"$1\" $(pkg-config --cflags --libs libcopy) \
                     -Wl,-rpath,$(pkg-config --variable=libdir libcopy) -o \"$2\"";
        let program = place.join("rpath");
        run(Command::new("sh")
            .args(["-ec", rpath, "sh"])
            .arg(&example)
            .arg(&program)
            .env("PKG_CONFIG_PATH", libdir.join("pkgconfig")));
        run(Command::new(&program).env_remove("LD_LIBRARY_PATH"));
    }

    if has("cmake") {
        let project = place.join("project");
        fs::create_dir(&project).expect("can create a directory");
        let lists = "cmake_minimum_required(VERSION 3.16)\n\
                     project(sample C)\n\
                     find_package(libcopy 0.1 REQUIRED)\n\
                     foreach(kind libcopy static async)\n\
                       add_executable(with_${kind} bcast.c)\n\
                       target_link_libraries(with_${kind} PRIVATE libcopy::${kind})\n\
                     endforeach()\n";
        fs::write(project.join("CMakeLists.txt"), lists).expect("can write");
        fs::copy(&example, project.join("bcast.c")).expect("can copy");
        let build = place.join("build");
        let configure = |directory: &Path| {
            said(
                Command::new("cmake")
                    .arg("-S")
                    .arg(&project)
                    .arg("-B")
                    .arg(directory)
                    .arg(format!("-DCMAKE_PREFIX_PATH={}", prefix.display())),
            )
        };
        let output = configure(&build);
        assert!(output.status.success(), "{output:?}");
        run(Command::new("cmake").arg("--build").arg(&build));
        for kind in ["libcopy", "static", "async"] {
            broadcasts(&build.join(format!("with_{kind}")));
        }
        let newer = lists.replace("libcopy 0.1", "libcopy 0.2");
        fs::write(project.join("CMakeLists.txt"), newer).expect("can write");
        let output = configure(&place.join("newer"));
        assert!(!output.status.success(), "0.1 served who asked for 0.2");
    }

    run(Command::new(&tool).arg("--version"));
    installed(&["--uninstall", "--prefix", text(&prefix)]);
    assert!(!prefix.exists(), "{:?}", all_below(&prefix));
}

#[test]
fn a_package_is_below_destdir_and_nothing_names_that() {
    let place = scratch("destdir");
    let destdir = text(&place);
    let arguments = [
        "--prefix",
        "/opt/copy",
        "--libdir",
        "lib64",
        "--destdir",
        destdir,
    ];
    installed(&arguments);
    let first = all_below(&place);
    for name in [
        "bin/libcopy",
        "include/libcopy.h",
        "lib64/libcopy.so",
        "lib64/libcopy.so.0",
        "lib64/libcopy_mpi.so.0",
        "lib64/libcopy_async.so.0",
        "lib64/pkgconfig/libcopy.pc",
        "lib64/cmake/libcopy/libcopyConfig.cmake",
        "share/man/man1/libcopy.1",
        "share/man/man1/libcopy-mpi-run.1",
        "share/man/man4/libcopy.4",
        "share/man/man7/libcopy.7",
        "share/man/man7/libcopy_mpi.7",
        "share/modulefiles/libcopy/0.1.0",
        "share/modulefiles/libcopy/0.1.0.lua",
    ] {
        assert!(
            first.contains(&Path::new("opt/copy").join(name)),
            "no {name}: {first:?}"
        );
    }
    for path in &first {
        let path = place.join(path);
        let kind = fs::symlink_metadata(&path)
            .expect("it is there")
            .file_type();
        if kind.is_symlink() {
            let to = fs::read_link(&path).expect("a link");
            assert!(
                to.is_relative(),
                "{} leads to {}",
                path.display(),
                to.display()
            );
        }
        let Ok(content) = fs::read_to_string(&path) else {
            continue;
        };
        assert!(
            !content.contains(destdir),
            "{} names {destdir}",
            path.display()
        );
        for placeholder in ["@PREFIX@", "@LIBDIR@", "@VERSION@", "@MAJOR@", "VARIABLES@"] {
            assert!(
                !content.contains(placeholder),
                "{}: {placeholder}",
                path.display()
            );
        }
    }
    let pc = place.join("opt/copy/lib64/pkgconfig/libcopy.pc");
    let pc = fs::read_to_string(pc).expect("the file is text");
    assert!(pc.contains("\nlibdir=/opt/copy/lib64\n"), "{pc}");

    // Again, to other places: nothing of the first time is left over, and nobody else's file goes.
    let others = place.join("opt/copy/bin/others");
    fs::write(&others, "not ours").expect("can write");
    installed(&["--prefix=/opt/copy", &format!("--destdir={destdir}")]);
    let second = all_below(&place);
    assert!(
        !second.iter().any(|path| path.starts_with("opt/copy/lib64")),
        "{second:?}"
    );
    assert!(
        second.contains(Path::new("opt/copy/lib/libcopy.so")),
        "{second:?}"
    );
    installed(&["--uninstall", "--prefix", "/opt/copy", "--destdir", destdir]);
    let left: Vec<_> = all_below(&place).into_iter().collect();
    assert_eq!(
        left,
        ["opt", "opt/copy", "opt/copy/bin", "opt/copy/bin/others"].map(PathBuf::from)
    );

    // Not installed, or asked for wrongly: says so.
    for (arguments, status, says) in [
        (
            &["--uninstall", "--prefix", "/opt/copy", "--destdir", destdir][..],
            1,
            "nothing to remove",
        ),
        (&["--destdir", destdir], 2, "--prefix is missing"),
        (&["--prefix", "opt"], 2, "not an absolute path"),
        (&["--prefix", "/a$b"], 2, "cannot be installed to"),
        (&["--everything"], 2, "unknown argument '--everything'"),
    ] {
        let output = script(arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(
            output.status.code(),
            Some(status),
            "{arguments:?}: {errors}"
        );
        assert!(errors.contains(says), "{arguments:?}: {errors}");
    }
}

#[test]
fn manual_pages_have_no_warnings_and_completions_load() {
    let place = scratch("share");
    let prefix = place.join("prefix");
    installed(&["--prefix", text(&prefix)]);
    let share = prefix.join("share");

    if has("man") {
        let mut pages = 0;
        for page in all_below(&share.join("man")) {
            let page = share.join("man").join(page);
            if page.is_dir() {
                continue;
            }
            let output = said(
                Command::new("man")
                    .args(["--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z"])
                    .arg(&page)
                    .env("MANROFFSEQ", ""),
            );
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(
                output.status.success() && errors.is_empty(),
                "{}: {errors}",
                page.display()
            );
            pages += 1;
        }
        assert!(pages > 20, "{pages} pages");
    }
    let page = fs::read_to_string(share.join("man/man7/libcopy_mpi.7")).expect("the page");
    assert!(page.contains("LIBCOPY_MPI_EVERYWHERE"), "{page}");

    // What each shell offers behind the word `libcopy`.
    let bash = share.join("bash-completion/completions/libcopy");
    let offered = run(Command::new("bash").args(["--norc", "-uc"]).arg(
        "source \"$1\"; COMP_WORDS=(libcopy in) COMP_CWORD=1 COMPREPLY=(); _libcopy libcopy in libcopy; \
         echo \"${COMPREPLY[@]}\"; complete -p libcopy",
    ).arg("bash").arg(&bash));
    assert!(offered.starts_with("info\n"), "{offered}");
    if has("zsh") {
        let directory = share.join("zsh/site-functions");
        let loaded = run(Command::new("zsh")
            .args(["-fc"])
            .arg(
                "fpath=($1 $fpath); autoload -Uz compinit; compinit -u -D; echo $_comps[libcopy]; \
             autoload -Uz +X _libcopy && echo loaded",
            )
            .arg("zsh")
            .arg(&directory));
        assert_eq!(loaded, "_libcopy\nloaded\n");
    }
    if has("fish") {
        let file = share.join("fish/vendor_completions.d/libcopy.fish");
        let offered = run(Command::new("fish")
            .args(["--no-config", "-c"])
            .arg(format!(
                "source {}; complete -C 'libcopy in'",
                file.display()
            ))
            .env("HOME", &place));
        assert!(offered.contains("info"), "{offered}");
    }
    installed(&["--uninstall", "--prefix", text(&prefix)]);
    assert!(!prefix.exists(), "{:?}", all_below(&prefix));
}

/// The recipes for package tools (`scripts/contrib`) install by the script, and what they say of
/// the version, the compiler and the files is so.
#[test]
fn recipes_of_package_tools_are_true() {
    let place = scratch("recipes");
    let prefix = place.join("prefix");
    installed(&["--prefix", text(&prefix)]);
    let contrib = Path::new(ROOT).join("scripts/contrib");
    let read = |path: &Path| {
        fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    };
    let manifest = read(&Path::new(ROOT).join("Cargo.toml"));
    let (_, rust) = manifest
        .split_once("\nrust-version = \"")
        .expect("the oldest compiler");
    let (rust, _) = rust.split_once('"').expect("a text");
    let minor = |version: &str| -> u32 {
        let mut numbers = version.split('.');
        assert_eq!(numbers.next(), Some("1"), "{version}");
        let minor = numbers.next().and_then(|number| number.parse().ok());
        minor.unwrap_or_else(|| panic!("{version} is no version of Rust"))
    };
    let is_installed = |name: &str| {
        let name = name.trim_end_matches('/');
        assert!(prefix.join(name).exists(), "{name} is not installed");
    };
    let between = |text: &str, before: &str, after: &str| -> String {
        let (_, rest) = text
            .split_once(before)
            .unwrap_or_else(|| panic!("no {before}"));
        let (found, _) = rest
            .split_once(after)
            .unwrap_or_else(|| panic!("no {after}"));
        found.to_owned()
    };

    let spack = read(&contrib.join("spack/spack_repo/libcopy/packages/libcopy/package.py"));
    assert!(
        spack.contains("\"scripts\", \"install\"))(\"--prefix\", prefix)"),
        "{spack}"
    );
    assert_eq!(
        minor(&between(&spack, "\"rust@", ":\"")),
        minor(rust),
        "{spack}"
    );
    // Where the recipe looks for the checkout.
    let up = between(&spack, "parents[", "]");
    let up: usize = up.parse().expect("a number");
    let recipe = Path::new("scripts/contrib/spack/spack_repo/libcopy/packages/libcopy/package.py");
    assert_eq!(recipe.ancestors().nth(up + 1), Some(Path::new("")));

    let version = env!("CARGO_PKG_VERSION");
    let name = format!("libcopy-{version}-GCCcore-14.2.0.eb");
    let easybuild = read(&contrib.join("easybuild").join(&name));
    assert!(
        easybuild.contains(&format!("\nversion = '{version}'\n")),
        "{easybuild}"
    );
    assert!(
        easybuild.contains("'scripts/install --prefix %(installdir)s'"),
        "{easybuild}"
    );
    assert!(minor(&between(&easybuild, "('Rust', '", "')")) >= minor(rust));
    for list in ["'files': [", "'dirs': ["] {
        let files = between(&easybuild, list, "]");
        let files: Vec<&str> = files.split('\'').skip(1).step_by(2).collect();
        assert!(!files.is_empty(), "{easybuild}");
        files.into_iter().for_each(is_installed);
    }
    let page = read(&Path::new(ROOT).join("docs/install.md"));
    assert!(
        page.contains(&format!("scripts/contrib/easybuild/{name}")),
        "{name}"
    );

    let apptainer = read(&contrib.join("apptainer/libcopy.def"));
    assert!(
        apptainer.contains("/scripts/install --prefix /opt/libcopy\n"),
        "{apptainer}"
    );
    let end = |c: char| c.is_whitespace() || c == ':';
    let paths: Vec<&str> = apptainer
        .match_indices("/opt/libcopy/")
        .map(|(at, found)| &apptainer[at + found.len()..])
        .map(|rest| rest.split(end).next().unwrap_or(rest))
        .collect();
    assert!(paths.len() > 2, "{apptainer}");
    paths.into_iter().for_each(is_installed);
    installed(&["--uninstall", "--prefix", text(&prefix)]);
}
