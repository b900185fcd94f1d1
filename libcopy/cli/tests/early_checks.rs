// SPDX-License-Identifier: MIT OR Apache-2.0

//! What is wrong with arguments and places of output is said before minutes of measuring; and what
//! is printed fits into files and any locale.

mod common;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use common::{output, said, text, word};

/// Longer than what is checked, shorter than what is measured.
const SOON: Duration = Duration::from_secs(20);

fn tool(words: &[&str], environment: &[(&str, &Path)]) -> Command {
    let mut command = common::tool(words);
    for name in ["XDG_CONFIG_HOME", "XDG_CACHE_HOME"] {
        command.env_remove(name);
    }
    command.envs(environment.iter().copied());
    command
}

/// What the tool says of a mistake, soon and with status 1.
#[track_caller]
fn mistake(words: &[&str], environment: &[(&str, &Path)]) -> String {
    let began = Instant::now();
    let output = output(&mut tool(words, environment));
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{words:?}: {said}");
    assert!(output.stdout.is_empty(), "{words:?}");
    assert!(began.elapsed() < SOON, "{words:?}: {:?}", began.elapsed());
    said
}

#[test]
fn tuning_without_a_place_is_refused_at_once() {
    let place = tempfile::tempdir().expect("a directory");
    // Not even the superuser makes files there.
    let nowhere = Path::new("/proc");
    let said = mistake(&["tune"], &[("HOME", nowhere)]);
    assert!(said.contains("/proc/.cache/libcopy"), "{said}");
    let cache = ("XDG_CACHE_HOME", place.path());
    let said = mistake(&["tune"], &[("HOME", nowhere), cache]);
    assert!(
        said.contains("/proc/.config/libcopy/profile.toml"),
        "{said}"
    );
    let file = Path::new("/proc/profile.toml");
    let said = mistake(&["tune"], &[("LIBCOPY_PROFILE", file), cache]);
    assert!(said.contains("/proc/profile.toml"), "{said}");
    // Nothing was left by trying.
    let left = std::fs::read_dir(place.path().join("libcopy")).expect("a directory");
    assert_eq!(left.count(), 0);
}

#[test]
fn places_of_output_are_looked_at_first() {
    let place = tempfile::tempdir().expect("a directory");
    let path = |name: &str| word(&place.path().join(name)).to_owned();
    let coll = ["bench", "coll", "-n", "2", "--ops", "bcast"];
    for (option, name) in [("--csv", "missing/a.csv"), ("--plot", "missing/a")] {
        let file = path(name);
        let said = mistake(
            &[&coll[..], &["--sizes", "4K,8K", option, &file]].concat(),
            &[],
        );
        assert!(
            said.contains("there is no folder") && said.contains("mkdir -p"),
            "{said}"
        );
        assert!(
            said.contains(option) && !place.path().join("missing").exists(),
            "{said}"
        );
    }
    let said = mistake(
        &[&coll[..], &["--sizes", "4K", "--plot", &path("a")]].concat(),
        &[],
    );
    assert!(said.contains("at least two message sizes"), "{said}");
    let folder = path("");
    let said = mistake(&["bench", "types", "--quick", "--csv", &folder], &[]);
    assert!(said.contains("cannot be written"), "{said}");
    let file = path("missing/b.csv");
    let said = mistake(&["type", "bench", "--commit", "--csv", &file], &[]);
    assert!(said.contains("there is no folder"), "{said}");
    assert_eq!(
        std::fs::read_dir(place.path())
            .expect("a directory")
            .count(),
        0
    );
}

#[test]
fn sizes_that_leave_nothing_are_an_error() {
    let said = mistake(&["bench", "coll", "-n", "2", "--sizes", "99999999G"], &[]);
    assert!(
        said.contains("nothing is left to measure") && said.contains("99999999G"),
        "{said}"
    );
}

#[test]
fn what_goes_into_a_pipe_is_ascii_and_not_too_wide() {
    let locale = ("LC_ALL", Path::new("C"));
    let coll = [
        "bench",
        "coll",
        "-n",
        "2",
        "--ops",
        "bcast,gather",
        "--sizes",
        "4K,64K",
        "--rounds",
        "1",
        "--time",
        "0.2",
    ];
    for words in [
        &coll[..],
        &["info"],
        &["info", "--all"],
        &["type", "describe", "subarray([9,9],[3,3],[1,1],c,int)"],
    ] {
        let said = said(&mut tool(words, &[locale]));
        assert!(said.is_ascii(), "{words:?}: {said}");
        let widest = said.lines().map(str::len).max().unwrap_or(0);
        assert!(
            (20..=200).contains(&widest),
            "{words:?}: {widest} columns\n{said}"
        );
    }
}
