// SPDX-License-Identifier: MIT OR Apache-2.0

//! By which method programs' device memory is sent, run by Open MPI and by MPICH with a stand-in
//! for the CUDA driver: the model's choice, an MPI library that takes device memory (`aware.c`),
//! sends that return before they are packed, receives that are unpacked at the same time; and
//! collectives with large counts, and libraries that a program loads and closes.

// Other tests use other parts of it.
#[allow(dead_code)]
mod common;
#[path = "../../../libcopy/gpu/tests/common/compile.rs"]
mod compile;
#[path = "common/device.rs"]
#[allow(dead_code)]
mod device;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Mpi, library, noted, text, turn};
use device::{numbers, programs, run};

const AWARE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/aware.c");
const DEVICE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/device.c");
const METHODS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/gpu_methods.c");

const DELAYED: (&str, &str) = ("FAKECUDA_DELAYED", "1");

/// A library that is made of this source by a compiler, in a file of this process.
fn made(compiler: &str, source: &Path, name: &str) -> PathBuf {
    let made =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.{}.so", std::process::id()));
    let output = Command::new(compiler)
        .args(["-Wall", "-Werror", "-O2", "-shared", "-fPIC", "-o"])
        .args([&made, source])
        .output()
        .unwrap_or_else(|error| panic!("{compiler}: {error}"));
    assert!(output.status.success(), "{}", text(&output.stderr));
    made
}

/// What is preloaded so that the library of a program takes device memory.
fn aware(program: &Mpi) -> String {
    let compiler = format!("mpicc.{}", program.name);
    let made = made(
        &compiler,
        Path::new(AWARE),
        &format!("aware.{}", program.name),
    );
    format!("{}:{}", library().display(), made.display())
}

/// The lines of a report about classes of messages and their methods.
fn classes(report: &str) -> Vec<&str> {
    let about = "device memory, up to ";
    report.lines().filter(|line| line.contains(about)).collect()
}

#[test]
fn sends_return_before_they_are_packed() {
    let _turn = turn();
    for program in programs(METHODS) {
        for method in ["one-shot", "staged"] {
            let more = [DELAYED, ("LIBCOPY_GPU_METHOD", method)];
            let (_, report) = run(&program, 2, &["later", "33"], &more);
            assert!(numbers(&report, "sends started later") > 50, "{report}");
        }
        let more = [DELAYED, ("LIBCOPY_MPI_MIN", "1")];
        let (_, report) = run(&program, 2, &["later", "33"], &more);
        assert!(numbers(&report, "sends started later") > 50, "{report}");
    }
}

#[test]
fn receives_of_one_call_are_unpacked_at_the_same_time() {
    let _turn = turn();
    for program in programs(METHODS) {
        for method in ["one-shot", "staged"] {
            let method = ("LIBCOPY_GPU_METHOD", method);
            for more in [
                &[method][..],
                &[method, DELAYED],
                &[method, ("LIBCOPY_MPI_MIN", "1")],
            ] {
                let (_, report) = run(&program, 2, &["together", "10"], more);
                assert!(numbers(&report, "buffers received") >= 80, "{report}");
            }
        }
    }
}

#[test]
fn an_mpi_library_is_handed_device_memory() {
    let _turn = turn();
    for program in programs(DEVICE) {
        let preloaded = aware(&program);
        let more = [
            ("LD_PRELOAD", preloaded.as_str()),
            ("LIBCOPY_GPU_METHOD", "device"),
        ];
        let all = [&more[..], &[("LIBCOPY_MPI_MIN", "1")]].concat();
        let late = [&more[..], &[DELAYED]].concat();
        for more in [&more[..], &all, &late] {
            let (_, report) = run(&program, 2, &["150", "1", "messages"], more);
            assert!(numbers(&report, "buffers handed over") > 20, "{report}");
            let packed_there = |line: &&str| line.contains(": device, ");
            assert!(
                classes(&report).into_iter().any(|line| packed_there(&line)),
                "{report}"
            );
        }
        // Who says no gets host memory.
        let no = [&more[..], &[("LIBCOPY_GPU_AWARE", "no")]].concat();
        let (_, report) = run(&program, 2, &["50", "1", "messages"], &no);
        assert_eq!(numbers(&report, "buffers handed over"), 0, "{report}");
    }
    for program in programs(METHODS) {
        let preloaded = aware(&program);
        let more = [
            ("LD_PRELOAD", preloaded.as_str()),
            ("LIBCOPY_GPU_METHOD", "device"),
            DELAYED,
        ];
        let (_, report) = run(&program, 2, &["later", "33"], &more);
        for what in ["sends started later", "buffers handed over"] {
            assert!(numbers(&report, what) > 50, "{what}: {report}");
        }
    }
}

/// The driver is loaded after `MPI_Init`. Receives of an MPI library that takes device memory are
/// not counted among the requests that may match a message, so a sender must not take their process
/// for one without such requests.
#[test]
fn messages_are_packed_for_who_receives_into_device_memory_and_is_elsewhere() {
    let _turn = turn();
    for program in programs(METHODS) {
        let preloaded = aware(&program);
        let more = [
            ("LD_PRELOAD", preloaded.as_str()),
            ("LIBCOPY_GPU_METHOD", "device"),
            ("LIBCOPY_GOVERNOR", "0"),
        ];
        let (_, report) = run(&program, 2, &["elsewhere", "5"], &more);
        let name = program.name;
        assert!(noted(&report, "bytes eager") > 0, "{name}: {report}");
    }
}

/// A profile in which one method takes no time, below a directory for `XDG_CACHE_HOME`.
fn profile(name: &str, cheap: &[&str]) -> PathBuf {
    let directory =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.{}", std::process::id()));
    let mut text =
        "libcopy-gpu profile 1\ngpu GPU-6c696263-6f70-792d-7374-616e64696e00\ndriver 12000\n"
            .to_owned();
    for (table, numbers) in [
        ("pack_device", 81),
        ("unpack_device", 81),
        ("pack_host", 81),
        ("unpack_host", 81),
        ("peer", 81),
        ("engine", 81),
        ("d2h", 24),
        ("h2d", 24),
        ("cpu_cpu", 24),
        ("gpu_gpu", 24),
    ] {
        let time = if cheap.contains(&table) {
            " 1.0"
        } else {
            " 100.0"
        };
        text.push_str(&format!("{table}{}\n", time.repeat(numbers)));
    }
    std::fs::create_dir_all(directory.join("libcopy")).expect("a directory for tests");
    let gpu = "GPU-6c696263-6f70-792d-7374-616e64696e00-12000";
    std::fs::write(directory.join("libcopy").join(gpu), text).expect("a profile");
    directory
}

#[test]
fn the_profile_chooses() {
    let _turn = turn();
    let staged = profile("staged", &["pack_device", "unpack_device", "d2h", "h2d"]);
    let one_shot = profile("one-shot", &["pack_host", "unpack_host"]);
    let device = profile("device", &["pack_device", "unpack_device", "gpu_gpu"]);
    for program in programs(DEVICE) {
        let preloaded = aware(&program);
        for (profile, method, other) in [
            (&staged, "staged", Some("one-shot")),
            (&one_shot, "one-shot", Some("staged")),
            (&device, "device", None),
        ] {
            let cache = profile.to_str().expect("a plain path");
            let mut more = vec![("XDG_CACHE_HOME", cache)];
            if method == "device" {
                more.push(("LD_PRELOAD", preloaded.as_str()));
            }
            let (_, report) = run(&program, 2, &["60", "1", "messages"], &more);
            let lines: Vec<&str> = classes(&report)
                .into_iter()
                .filter(|line| has_gaps(line))
                .collect();
            let by = |method: &str| {
                let of = format!(": {method}, ");
                lines.iter().filter(|line| line.contains(&of)).count()
            };
            assert!(by(method) > 0, "no {method}: {report}");
            assert_eq!(other.map_or(0, by), 0, "{other:?}: {report}");
            let measured = |line: &&str| line.ends_with("times measured");
            assert!(lines.iter().all(measured), "{report}");
        }
    }
}

/// Whether a line of [`classes`] is about elements with gaps: others are copied, whatever the
/// profile says.
fn has_gaps(line: &str) -> bool {
    let (_, rest) = line.split_once("up to ").expect("a line about a class");
    let mut words = rest.split([' ', ':']);
    let (bytes, piece) = (words.next(), words.nth(5));
    bytes != piece
}

#[test]
fn collectives_with_large_counts() {
    let _turn = turn();
    for program in programs(METHODS) {
        let (_, report) = run(&program, 3, &["large", "40"], &[]);
        // Open MPI has no such functions before 5.0.
        let has_some = program.name == "mpich";
        let sent = numbers(&report, "buffers sent");
        assert_eq!(sent > 0, has_some, "{}: {report}", program.name);
    }
}

#[test]
fn a_library_that_was_the_last_one_goes_when_it_is_closed() {
    let _turn = turn();
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let source = directory.join(format!("plugin.{}.c", std::process::id()));
    std::fs::write(
        &source,
        "int plugin(void);\nint plugin(void) { return 1; }\n",
    )
    .expect("a source");
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let plugins = ["first", "second"].map(|name| made(&compiler, &source, name));
    let paths = plugins
        .each_ref()
        .map(|path| path.to_str().expect("a plain path"));
    for program in programs(METHODS) {
        run(&program, 2, &["plugins", paths[0], paths[1]], &[]);
    }
}
