// SPDX-License-Identifier: MIT OR Apache-2.0

//! The handlers as a static library for a card with RISC-V cores of 64 bits: a C program links all
//! of them, without an operating system, a C library, or anything else.

use std::path::Path;
use std::process::Command;

const TARGET: &str = "riscv64gc-unknown-none-elf";
const HANDLERS: [&str; 11] = [
    "contiguous",
    "vector",
    "indexed_block",
    "indexed",
    "struct",
    "local",
    "ro_cp",
    "rw_cp",
    "seek",
    "completion",
    "process_put",
];

/// Says why the test does nothing, as there is no other way to skip one.
fn left_out(why: &str) {
    eprintln!("left out: {why}");
}

/// The linker of the toolchain, or the system's.
fn linker() -> Option<Command> {
    let print = |what: &[&str]| {
        let output = Command::new("rustc").args(what).output().ok()?;
        Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
    };
    let host = print(&["-vV"])?;
    let host = host.lines().find_map(|line| line.strip_prefix("host: "))?;
    let sysroot = print(&["--print", "sysroot"])?;
    let own = format!("{sysroot}/lib/rustlib/{host}/bin/rust-lld");
    if Path::new(&own).exists() {
        let mut command = Command::new(own);
        command.args(["-flavor", "gnu"]);
        return Some(command);
    }
    let is_there = Command::new("ld.lld").arg("--version").output().is_ok();
    is_there.then(|| Command::new("ld.lld"))
}

#[test]
fn a_program_for_riscv64_links_every_handler() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("riscv64");
    std::fs::create_dir_all(&folder).unwrap();
    let (Some(mut link), true) = (
        linker(),
        Command::new("clang").arg("--version").output().is_ok(),
    ) else {
        return left_out("there is no clang, or neither rust-lld nor ld.lld (Debian: clang, lld)");
    };
    let made = Command::new(root.join("scripts/handlers"))
        .args(["--target", TARGET, "--library"])
        .arg(&folder)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&made.stderr);
    if made.status.code() == Some(3) {
        return left_out(&said);
    }
    assert!(made.status.success(), "{said}");

    let mut source = String::from("#include \"libcopy_nic_handlers.h\"\n");
    source += "void (*volatile sink)(void);\nvoid _start(void)\n{\n";
    for name in HANDLERS {
        for prefix in ["libcopy_nic_", "libcopy_nic_port_"] {
            source += &format!("\tsink = (void (*)(void))&{prefix}{name};\n");
        }
    }
    source += "}\n";
    let (file, object) = (folder.join("card.c"), folder.join("card.o"));
    std::fs::write(&file, source).unwrap();
    let compiled = Command::new("clang")
        .args([
            "--target=riscv64-unknown-elf",
            "-march=rv64gc",
            "-mabi=lp64d",
        ])
        .args([
            "-mcmodel=medany",
            "-ffreestanding",
            "-std=c11",
            "-Wall",
            "-Werror",
            "-c",
        ])
        .arg("-I")
        .arg(&folder)
        .arg("-o")
        .args([&object, &file])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&compiled.stderr);
    if said.contains("No available targets") || said.contains("unknown target triple") {
        return left_out(&said);
    }
    assert!(compiled.status.success(), "{said}");
    let program = folder.join("card.elf");
    let linked = link
        .args(["--gc-sections", "--fatal-warnings", "-o"])
        .args([&program, &object])
        .arg(folder.join("libcopy_nic_handlers.a"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&linked.stderr);
    assert!(linked.status.success(), "{said}");
    let elf = std::fs::read(&program).unwrap();
    // An ELF file of 64 bits, little endian, for RISC-V (243).
    assert_eq!(
        (&elf[..6], &elf[18..20]),
        (&b"\x7fELF\x02\x01"[..], &[243, 0][..])
    );
    for name in HANDLERS {
        let symbol = format!("\0libcopy_nic_port_{name}\0");
        let is_there = elf
            .windows(symbol.len())
            .any(|part| part == symbol.as_bytes());
        assert!(is_there, "{name}");
    }
}
