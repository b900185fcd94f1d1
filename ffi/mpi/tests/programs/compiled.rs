// SPDX-License-Identifier: MIT OR Apache-2.0

//! Programs of tests are compiled once.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::common::compiled::program;
use crate::common::{BOTH, C};

#[test]
fn a_program_is_compiled_again_where_anything_that_it_is_made_from_has_changed() {
    let place = format!("compiled.{}", std::process::id());
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join(place);
    std::fs::create_dir_all(&place).expect("a directory of the test's own");
    let write = |name: &str, text: &str| std::fs::write(place.join(name), text).expect("a file");
    let number = std::process::id();
    let file = format!("answer-{number}.c");
    let source = place.join(&file);
    let source = source.to_str().expect("a plain path");
    // Nobody else has compiled this.
    let main = format!("#include \"answer.h\"\nint main(void) {{ return ANSWER - {number}; }}\n");
    for (name, _) in BOTH {
        let made = |flags: &[&str]| {
            let flags = [C.1, flags].concat();
            let made = program(name, &format!("{}.{name}", C.0), &flags, source)?;
            let inode = made.metadata().expect("the program that was made").ino();
            std::fs::remove_file(made).expect("a link of the test's own");
            Some(inode)
        };
        write("answer.h", "#define ANSWER 1\n");
        write(&file, &main);
        let Some(first) = made(&[]) else {
            continue;
        };
        assert_eq!(made(&[]), Some(first), "{name}: compiled twice");
        let with_flag = made(&["-DOTHER"]);
        write("answer.h", "#define ANSWER 2\n");
        let with_header = made(&[]);
        write(&file, &format!("{main}\n"));
        let all = [Some(first), with_flag, with_header, made(&[])];
        for (at, one) in all.iter().enumerate() {
            assert!(!all[..at].contains(one), "{name}: {all:?}");
        }
        // What it was made from has its old program.
        write("answer.h", "#define ANSWER 1\n");
        write(&file, &main);
        assert_eq!(made(&[]), Some(first), "{name}: not kept");
    }
    std::fs::remove_dir_all(&place).expect("the test's own directory");
    // Nobody asks for these again.
    let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join("programs");
    for entry in kept.read_dir().into_iter().flatten().flatten() {
        let name = entry.file_name();
        if name
            .to_string_lossy()
            .starts_with(&format!("answer-{number}."))
        {
            std::fs::remove_file(entry.path()).expect("a program of the test's own");
        }
    }
}
