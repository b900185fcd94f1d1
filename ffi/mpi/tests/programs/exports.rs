// SPDX-License-Identifier: MIT OR Apache-2.0

//! What the library exports, and MPI libraries that it does not know.

use std::path::Path;
use std::process::Command;

use crate::common::{library, programs, text, turn};
use crate::with_messages;

/// Functions that a library may lack which we make of those that it has; forms for large counts
/// beside.
const MADE: [&str; 5] = [
    "MPI_Isendrecv",
    "MPI_Isendrecv_replace",
    "MPI_Request_get_status_any",
    "MPI_Request_get_status_all",
    "MPI_Request_get_status_some",
];

/// What the linker does when it loads the library, it does in every process of the machine that
/// inherits `LD_PRELOAD`.
#[test]
fn what_is_written_at_run_time_needs_no_relocations() {
    let readelf = |what: &str| {
        let told = Command::new("readelf")
            .args([what, "-W"])
            .arg(library())
            .output()
            .expect("binutils has readelf");
        text(&told.stdout)
    };
    let hexadecimal = |word: &str| u64::from_str_radix(word, 16).ok();
    let sections = readelf("-S");
    let data = sections.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip_while(|word| *word != ".data");
        let (start, length) = (words.nth(2)?, words.nth(1)?);
        let start = hexadecimal(start)?;
        Some(start..start + hexadecimal(length)?)
    });
    let data = data.expect("a section .data");
    let relocations = readelf("-r");
    let places: Vec<u64> = relocations
        .lines()
        .filter(|line| line.contains("_RELATIVE"))
        .filter_map(|line| hexadecimal(line.split_whitespace().next()?))
        .collect();
    assert!(places.len() > 500, "{}", places.len());
    let in_data = places.iter().filter(|place| data.contains(place)).count();
    assert!(in_data < 64, "{in_data} of {} in .data", places.len());
}

#[test]
fn what_is_exported_is_documented() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/mpi.md");
    let page = std::fs::read_to_string(page).expect("docs/mpi.md is there");
    let names = Command::new("nm")
        .args(["-D", "--defined-only"])
        .arg(library())
        .output()
        .expect("binutils has nm");
    let names = text(&names.stdout);
    let names = names.lines().filter_map(|line| line.rsplit(' ').next());
    // The page says that the forms for large counts go with the others, and the persistent
    // collectives of Open MPI 4.1 with those of the standard.
    let names: Vec<String> = names
        .filter(|name| name.starts_with("MPI_") || name.starts_with("MPIX_"))
        .filter(|name| !name.ends_with("_c"))
        .map(|name| match name.strip_prefix("MPIX_") {
            Some(rest) if name.ends_with("_init") => format!("MPI_{rest}"),
            _ => name.to_owned(),
        })
        .collect();
    assert!(names.len() > 80, "{names:?}");
    let missing: Vec<&String> = names
        .iter()
        .filter(|name| !page.contains(&format!("`{name}`")))
        .collect();
    assert!(missing.is_empty(), "not in docs/mpi.md: {missing:?}");
}

#[test]
fn what_is_exported_can_be_called() {
    let _turn = turn();
    let library = library();
    let names = Command::new("nm")
        .args(["-D", "--defined-only"])
        .arg(library)
        .output()
        .expect("binutils has nm");
    let names = text(&names.stdout);
    let names = names.lines().filter_map(|line| line.rsplit(' ').next());
    let names: Vec<&str> = names.filter(|name| name.starts_with("MPI_")).collect();
    assert!(names.len() > 80 && MADE.iter().all(|name| names.contains(name)));
    let mut said = Vec::new();
    for mpi in programs(source!("absent.c"), &[]) {
        let name = mpi.name;
        // A function that the library lacks is one that is made, or has a form without large
        // counts, or had another name before it was in the standard.
        let before: Vec<String> = names
            .iter()
            .filter(|name| name.ends_with("_init"))
            .map(|name| name.replace("MPI_", "MPIX_"))
            .collect();
        let asked: Vec<&str> = names
            .iter()
            .copied()
            .chain(before.iter().map(String::as_str))
            .collect();
        let lacking = text(&mpi.run(1, &asked, &[]).stdout);
        let lacking: Vec<&str> = lacking.lines().collect();
        let has = |function: &str| {
            let before = function.replace("MPI_", "MPIX_");
            names.contains(&function) && !lacking.contains(&function)
                || asked.contains(&before.as_str()) && !lacking.contains(&before.as_str())
        };
        for lacked in lacking.iter().filter(|lacked| names.contains(lacked)) {
            let base = lacked.strip_suffix("_c").unwrap_or(lacked);
            let made = MADE.contains(&base);
            let narrow = has(base);
            assert!(made || narrow, "{name} has no {lacked}");
        }
        if !lacking.contains(&"MPI_Request_get_status_some") {
            eprintln!("{name} has all of them, whatever they do");
            continue;
        }
        let preload = with_messages(library);
        for environment in [&preload[..], &preload[..1]] {
            let arguments: &[&str] = if name == "mpich" { &["looks"] } else { &[] };
            let output = text(&mpi.run(2, arguments, environment).stdout);
            let mut lines: Vec<String> = output.lines().map(str::to_owned).collect();
            lines.sort();
            said.push((name, environment.len(), lines));
        }
    }
    let looks = "\
0 all of none: 1
0 all: tags 1 2
0 any: 3 from 1 tag 2
0 none: 1 1
0 none: 1 1
0 not all: 0
0 not some: 0
0 nothing: 0 1
0 received 1 1 1
0 sent: 1
0 sent: 2
0 sent: 3
0 some of none: 1
0 some: 0 2 3
0 some: 1, 3 tag 2
";
    let exchanges = "\
0 exchange 10: 0, 0 from -99, -45, 1
0 exchange 10: 0, 10 from 1, 45000855, 1
0 exchange 300000: 0, 300000 from 1, 3480002799952, 1
0 exchange 300000: 0, 300000 from 1, 3480002799952, 1
0 no such rank: 1
0 replace 10: 0, 3539
0 replace 10: 0, 78003539
0 replace 300000: 0, 6344972350000
0 replace 300000: 0, 6344972350000
last: 299999
";
    for (name, environment, lines) in &said {
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let lines: Vec<&str> = lines
            .into_iter()
            .filter(|line| !line.starts_with('1'))
            .collect();
        let mut expected: Vec<&str> = looks.lines().collect();
        if *name != "mpich" {
            expected.extend(exchanges.lines());
        }
        expected.sort();
        assert_eq!(lines, expected, "{name} {environment}");
    }
}

#[test]
fn unknown_libraries_get_everything_passed_on() {
    let library = library();
    let directory =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("refused.{}", std::process::id()));
    // What the library is called, what it has, and what is said about it.
    let cases: [(&str, &[&str], &str); 3] = [
        (
            "libmpi_abi.so.2",
            &["-DABI=2"],
            "version 2.0 of the standard ABI",
        ),
        (
            "libmpi.so.40",
            &["-DABI=-1"],
            "neither Open MPI nor a library with MPICH's ABI",
        ),
        (
            "libmpi.so.12",
            &["-DOPEN_MPI", "-DMPICH"],
            "both Open MPI and a library with MPICH's ABI",
        ),
    ];
    for (name, has, why) in cases {
        std::fs::create_dir_all(&directory).expect("a directory for the test's");
        let (fake, program) = (directory.join(name), directory.join("program"));
        let compile = |arguments: &[&str], output: &Path| {
            let mut compiler = Command::new("cc");
            compiler
                .args(["-Wall", "-Werror", source!("refused.c")])
                .args(arguments);
            compiler.arg("-o").arg(output);
            assert!(compiler.status().expect("a compiler").success(), "{name}");
        };
        let soname = format!("-Wl,-soname,{name}");
        let flags = [&["-DLIBRARY", "-shared", "-fPIC", &soname], has].concat();
        compile(&flags, &fake);
        compile(
            &[fake.to_str().expect("a plain path"), "-Wl,-rpath,$ORIGIN"],
            &program,
        );
        for messages in ["0", "1"] {
            let output = Command::new(&program)
                .env("LD_PRELOAD", library)
                .env("LIBCOPY_MPI_MIN", "0")
                .env("LIBCOPY_MPI_MESSAGES", messages)
                .output()
                .expect("the program starts");
            let (said, complaint) = (text(&output.stdout), text(&output.stderr));
            assert!(output.status.success(), "{name}: {said}{complaint}");
            let expected = "MPI_Init\nMPI_Bcast\nMPI_Send\nMPI_Pack\nMPI_Finalize\n";
            assert_eq!(said, expected, "{name}: {complaint}");
            assert!(
                complaint.contains(why) && complaint.contains("all calls are forwarded"),
                "{name}: {complaint}"
            );
            assert_eq!(complaint.lines().count(), 1, "{name}: {complaint}");
        }
        std::fs::remove_dir_all(&directory).expect("the test's own directory");
    }
}
