// SPDX-License-Identifier: MIT OR Apache-2.0

//! `scripts/kernel-patches` against a tree that has nothing of the kernel but the files which the
//! series changes: each patch applies to what the ones before it left, and all of them together are
//! `kmod/`. `scripts/lint` has the kernel's own checks, where there is a kernel.

use libcopy_tests::abi::{self, Item};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// What stands for the kernel: files that end and begin as its do.
const KERNEL: [(&str, &str); 7] = [
    (
        "MAINTAINERS",
        "List of maintainers\n\nMaintainers List\n\n3C59X NETWORK DRIVER\nM:\tA <a@example.org>\nS:\tMaintained\n\n\
         LIBATA SUBSYSTEM\nM:\tB <b@example.org>\nS:\tMaintained\n\n\
         LICENSES and SPDX stuff\nM:\tC <c@example.org>\nS:\tMaintained\n",
    ),
    (
        "Makefile",
        "# SPDX-License-Identifier: GPL-2.0\nVERSION = 7\nPATCHLEVEL = 3\nSUBLEVEL = 0\nEXTRAVERSION =\n",
    ),
    (
        "drivers/misc/Kconfig",
        "menu \"Misc devices\"\n\nsource \"drivers/misc/rp1/Kconfig\"\nendmenu\n",
    ),
    (
        "drivers/misc/Makefile",
        "obj-$(CONFIG_MISC_RP1)\t\t+= rp1/\n",
    ),
    (
        "rust/bindings/bindings_helper.h",
        "#include <linux/slab.h>\n",
    ),
    (
        "Documentation/misc-devices/index.rst",
        "Devices\n=======\n\n.. toctree::\n   :maxdepth: 2\n\n   isl29003\n   lis3lv02d\n",
    ),
    (
        "Documentation/userspace-api/ioctl/ioctl-number.rst",
        "0xCB  00-1F                                                            CBM\n\
         0xCC  00-0F  drivers/misc/ibmvmc.h                                     pseries VMC driver\n\
         0xCD  01     linux/reiserfs_fs.h                                       Dead since 6.13\n",
    ),
];

/// Files of `kmod/` that the kernel's tree has none of, or another one, see
/// docs/design/upstreaming.md.
const OTHERS: [&str; 6] = [
    "Cargo.toml",
    "Kbuild",
    "base/coverage.c",
    "base/coverage.h",
    "abstractions/declarations.h",
    "abstractions/declarations.rs",
];

/// Folders of `kmod` that packages have, and no kernel.
const OTHER_FOLDERS: [&str; 2] = ["dkms/", "system/"];

/// An empty directory of its own.
fn directory(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).expect("a directory below target");
    path
}

/// A tree with the files of [`KERNEL`].
fn kernel(name: &str) -> PathBuf {
    let tree = directory(name);
    for (file, text) in KERNEL {
        let path = tree.join(file);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder of the tree");
        fs::write(path, text).expect("a file of the tree");
    }
    tree
}

fn run(command: &mut Command) -> Result<String, String> {
    let output = command.output().expect("it can be started");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        Ok(text)
    } else {
        Err(format!("{text}{}", String::from_utf8_lossy(&output.stderr)))
    }
}

/// The script with a tree; the output directory, unless it failed.
fn series(tree: &Path, output: &Path) -> Result<String, String> {
    let script = Path::new(ROOT).join("scripts/kernel-patches");
    run(Command::new(script)
        .args(["--signed-off-by", "A Person <person@example.org>", "--tree"])
        .arg(tree)
        .arg("--output")
        .arg(output))
}

/// The patches in a directory, in their order.
fn patches(output: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(output).expect("the output is there");
    let mut paths: Vec<_> = entries
        .map(|entry| entry.expect("an entry").path())
        .collect();
    paths.sort();
    paths
}

/// All files below `folder`, by their path in it.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).expect("the folder is there") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(folder).expect("it was found below");
                let text = fs::read(&path).expect("a file can be read");
                found.insert(name.display().to_string(), text);
            }
        }
    }
    found
}

/// Files of `kmod/` that git has or would have.
fn kmod() -> BTreeMap<String, Vec<u8>> {
    let mut git = Command::new("git");
    let list = git.args(["ls-files", "-co", "--exclude-standard", "kmod"]);
    let list = run(list.current_dir(ROOT)).expect("git lists files");
    let names = list
        .lines()
        .filter(|name| Path::new(ROOT).join(name).exists());
    let files = names.map(|name| {
        let text = fs::read(Path::new(ROOT).join(name)).expect("a file can be read");
        (name["kmod/".len()..].to_owned(), text)
    });
    files.collect()
}

#[test]
fn the_patches_add_up_to_the_module() {
    let (tree, output) = (kernel("kernel-tree"), directory("kernel-series"));
    let told = series(&tree, &output).unwrap_or_else(|why| panic!("{why}"));
    assert_eq!(told, "", "standard output is for --build");
    let patches = patches(&output);
    let (cover, patches) = patches.split_first().expect("a cover letter");
    let cover = fs::read_to_string(cover).expect("text");
    assert!(!cover.contains("***"), "a placeholder:\n{cover}");
    assert!(
        cover.contains("\n- The kernel crate has no abstraction"),
        "{cover}"
    );
    assert!(cover.contains("against Linux 7.3.0."), "{cover}");

    let mut connected = Vec::new();
    for patch in patches {
        let text = fs::read_to_string(patch).expect("text");
        let name = patch.display();
        let total = patches.len();
        let subject = text.lines().find(|line| line.starts_with("Subject: "));
        let subject = subject.expect("a subject");
        assert!(
            subject.contains(&format!("/{total}] misc: libcopy: ")),
            "{name}: {subject}"
        );
        assert_eq!(
            text.matches("\nSigned-off-by: A Person <person@example.org>\n---\n")
                .count(),
            1,
            "{name}"
        );
        // The text says why: more than the subject and the sign-off.
        let (_, body) = text.split_once("\n\n").expect("a text behind the head");
        let body = body.split("\nSigned-off-by: ").next().unwrap_or_default();
        assert!(body.split_whitespace().count() >= 10, "{name}:\n{body}");
        for check in [true, false] {
            let mut git = Command::new("git");
            git.env("GIT_CEILING_DIRECTORIES", env!("CARGO_TARGET_TMPDIR"));
            git.current_dir(&tree).arg("apply");
            if check {
                git.arg("--check");
            }
            run(git.arg(patch)).unwrap_or_else(|why| panic!("{name}: {why}"));
        }
        let makefile = fs::read_to_string(tree.join("drivers/misc/Makefile")).expect("text");
        connected.push(makefile.contains("libcopy"));
    }
    // Nothing is built before all is there.
    let last = connected.iter().position(|connected| *connected);
    let behind = connected.len() - last.expect("it is connected");
    assert_eq!(behind, 3, "the document and MAINTAINERS come after it");

    let made = files(&tree.join("drivers/misc/libcopy"));
    let mut expected = kmod();
    for name in OTHERS {
        assert!(expected.remove(name).is_some(), "kmod has no {name}");
    }
    for folder in OTHER_FOLDERS {
        let all = expected.len();
        expected.retain(|name, _| !name.starts_with(folder));
        assert!(expected.len() < all, "kmod has no {folder}");
    }
    for name in ["Kconfig", "Makefile", "abstractions/declarations.rs"] {
        assert!(made.contains_key(name), "{name} is missing");
    }
    for (name, text) in &expected {
        assert!(made.get(name) == Some(text), "{name} is not what kmod has");
    }
    assert_eq!(made.len(), expected.len() + 3, "{:?}", made.keys());

    let text = |name: &str| fs::read_to_string(tree.join(name)).expect("text");
    let maintainers = text("MAINTAINERS");
    assert!(
        maintainers
            .contains("\n\nLIBCOPY MEMORY SHARING DRIVER\nM:\tA Person <person@example.org>\n")
            && maintainers.find("LIBATA") < maintainers.find("LIBCOPY")
            && maintainers.find("LIBCOPY") < maintainers.find("LICENSES"),
        "{maintainers}"
    );
    let index = text("Documentation/misc-devices/index.rst");
    assert!(
        index.contains("\n   isl29003\n   libcopy\n   lis3lv02d\n"),
        "{index}"
    );
    let numbers = text("Documentation/userspace-api/ioctl/ioctl-number.rst");
    let columns = |word: &str| numbers.lines().find_map(|line| line.find(word));
    assert_eq!(columns("conflict!"), columns("pseries"), "{numbers}");
    let kconfig = text("drivers/misc/Kconfig");
    assert!(
        kconfig.ends_with("\nsource \"drivers/misc/libcopy/Kconfig\"\nendmenu\n"),
        "{kconfig}"
    );
}

#[test]
fn the_same_files_give_the_same_series() {
    let tree = kernel("kernel-twice");
    let made = ["kernel-once", "kernel-again"].map(|name| {
        let output = directory(name);
        series(&tree, &output).unwrap_or_else(|why| panic!("{why}"));
        files(&output)
    });
    assert!(made[0] == made[1], "the two differ");
}

#[test]
fn what_is_no_kernel_is_refused() {
    let (tree, output) = (kernel("kernel-broken"), directory("kernel-none"));
    fs::remove_file(tree.join("drivers/misc/Kconfig")).expect("it was there");
    let why = series(&tree, &output).expect_err("a file is missing");
    assert!(why.contains("has no drivers/misc/Kconfig"), "{why}");
    let tree = kernel("kernel-broken");
    fs::write(tree.join("drivers/misc/Kconfig"), "# no menu\n").expect("it can be written");
    let why = series(&tree, &output).expect_err("there is no place");
    assert!(
        why.contains("the place of libcopy in drivers/misc/Kconfig"),
        "{why}"
    );
    let why = series(&directory("kernel-empty"), &output).expect_err("it is empty");
    assert!(
        why.contains("has no Makefile: --tree needs a source tree"),
        "{why}"
    );
    fs::create_dir_all(tree.join("drivers/misc/libcopy")).expect("a folder");
    let why = series(&tree, &output).expect_err("it is there already");
    assert!(why.contains("has drivers/misc/libcopy already"), "{why}");
}

#[test]
fn the_header_for_c_has_the_numbers_of_the_abi() {
    let (tree, output) = (kernel("kernel-header"), directory("kernel-header-series"));
    series(&tree, &output).unwrap_or_else(|why| panic!("{why}"));
    let header = patches(&output).into_iter().find(|patch| {
        let text = fs::read_to_string(patch).expect("text");
        text.contains("\n+++ b/include/uapi/linux/libcopy.h\n")
    });
    let mut git = Command::new("git");
    git.env("GIT_CEILING_DIRECTORIES", env!("CARGO_TARGET_TMPDIR"));
    git.current_dir(&tree).arg("apply");
    run(git.arg(header.expect("a patch has it"))).unwrap_or_else(|why| panic!("{why}"));

    let source = fs::read_to_string(Path::new(ROOT).join("kmod/uapi.rs")).expect("text");
    let mut program = String::from("#include \"include/uapi/linux/libcopy.h\"\n");
    let mut ioctls = 0;
    for item in abi::items(&source) {
        match item {
            Item::Constant(constant) if constant.kind != "&str" => {
                // The size of the structure is a part of an ioctl's number.
                ioctls += u32::from(constant.is_ioctl());
                let (name, value) = (&constant.name, constant.value.replace('_', ""));
                let value = value.replace("1 <<", "1ULL <<");
                let line = format!("_Static_assert(LIBCOPY_{name} == {value}, \"{name}\");");
                writeln!(program, "{line}").expect("strings grow");
            }
            _ => {}
        }
    }
    assert!(ioctls >= 15, "{ioctls} ioctls");
    fs::write(tree.join("check.c"), program).expect("it can be written");
    let mut cc = Command::new("cc");
    cc.current_dir(&tree)
        .args(["-Wall", "-Wextra", "-Werror", "-fsyntax-only", "check.c"]);
    run(&mut cc).unwrap_or_else(|why| panic!("{why}"));
}
