// SPDX-License-Identifier: MIT OR Apache-2.0

//! Made-up trees with one thing wrong each.

use std::fs;

use tempfile::TempDir;

use crate::check::{Findings, check_files};
use crate::table::Layers;
use crate::workspace::check_crates;

fn tree(files: &[(&str, &str)]) -> TempDir {
    let top = tempfile::tempdir().expect("a directory");
    for (name, text) in files {
        let path = top.path().join(name);
        fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
        fs::write(path, text).expect("a file");
    }
    top
}

const LAYERS: Layers = Layers {
    name: "made-up",
    root: "src/lib.rs",
    order: "low < middle < high",
};

const LIB: &str = "pub mod high;\npub mod low;\npub mod middle;\n";
const MIDDLE: &str = "mod part;\npub use part::Part;\n";
const PART: &str = "use crate::low::Low;\npub struct Part(Low);\n";

/// A tree of four files with `low.rs` and `high.rs` as given.
fn check(low: &str, high: &str) -> Findings {
    let top = tree(&[
        ("src/lib.rs", LIB),
        ("src/low.rs", low),
        ("src/middle/mod.rs", MIDDLE),
        ("src/middle/part.rs", PART),
        ("src/high.rs", high),
    ]);
    check_files(top.path(), &LAYERS).expect("files that parse")
}

#[track_caller]
fn assert_up(findings: &Findings, place: &str, target: &str) {
    let hit = findings
        .details
        .iter()
        .any(|line| line.starts_with(place) && line.contains(&format!("arrow up to {target}")));
    assert!(hit, "{findings}\n{:#?}", findings.details);
    assert!(!findings.is_clean());
}

#[test]
fn downwards_is_clean() {
    let findings = check(
        "pub struct Low;\n",
        "use crate::middle::Part;\npub struct High(Part, crate::low::Low);\n",
    );
    assert!(findings.is_clean(), "{:#?}", findings.details);
    assert_eq!(
        findings.to_string(),
        "made-up: 5 files, 0 circles, 0 arrows up"
    );
}

#[test]
fn up_by_use() {
    let findings = check(
        "pub struct Low;\nuse crate::high::High;\n",
        "pub struct High;\n",
    );
    assert_up(&findings, "src/low.rs:2", "src/high.rs");
    assert_eq!(findings.circles, 0);
}

#[test]
fn up_by_super() {
    let findings = check(
        "pub struct Low;\nfn up() {\n    super::high::go();\n}\n",
        "pub fn go() {}\n",
    );
    assert_up(&findings, "src/low.rs:3", "src/high.rs");
}

#[test]
fn up_by_a_module_that_was_imported() {
    let findings = check(
        "use super::*;\npub struct Low;\nfn up() -> high::High {\n    todo!()\n}\n",
        "pub struct High;\n",
    );
    assert_up(&findings, "src/low.rs:3", "src/high.rs");
}

#[test]
fn up_by_a_reexport() {
    // `middle/mod.rs` only passes on what `middle/part.rs` defines, and `lib.rs` what `middle`
    // passes on.
    let top = tree(&[
        (
            "src/lib.rs",
            "pub mod high;\npub mod low;\npub mod middle;\npub use middle::Part;\n",
        ),
        ("src/low.rs", "pub struct Low(Option<Box<crate::Part>>);\n"),
        ("src/middle/mod.rs", MIDDLE),
        ("src/middle/part.rs", "pub struct Part;\n"),
        ("src/high.rs", ""),
    ]);
    let findings = check_files(top.path(), &LAYERS).expect("files that parse");
    assert_up(&findings, "src/low.rs:1", "src/middle/part.rs");
    assert_eq!((findings.circles, findings.up), (0, 1));
}

#[test]
fn up_inside_a_macro() {
    let findings = check(
        "pub struct Low;\nfn up() {\n    assert!(true && crate::high::go());\n}\n",
        "pub fn go() -> bool {\n    true\n}\n",
    );
    assert_up(&findings, "src/low.rs:3", "src/high.rs");
}

#[test]
fn a_circle_through_a_reexport() {
    // Within one layer no arrow runs up, but the two files need each other.
    let top = tree(&[
        ("src/lib.rs", LIB),
        ("src/low.rs", ""),
        (
            "src/middle/mod.rs",
            "mod left;\nmod right;\npub use left::Left;\npub use right::Right;\n",
        ),
        (
            "src/middle/left.rs",
            "use super::Right;\npub struct Left(Box<Right>);\n",
        ),
        (
            "src/middle/right.rs",
            "pub struct Right(Option<Box<super::Left>>);\n",
        ),
        ("src/high.rs", ""),
    ]);
    let findings = check_files(top.path(), &LAYERS).expect("files that parse");
    assert_eq!((findings.circles, findings.up), (1, 0));
    assert!(findings.details[0].contains("src/middle/left.rs, src/middle/right.rs"));
    assert!(
        findings
            .details
            .iter()
            .any(|line| line.contains("src/middle/left.rs:1"))
    );
    assert!(
        findings
            .details
            .iter()
            .any(|line| line.contains("src/middle/right.rs:1"))
    );
    assert!(!findings.is_clean());
}

#[test]
fn a_child_that_uses_what_its_parent_defines() {
    let top = tree(&[
        ("src/lib.rs", LIB),
        ("src/low.rs", ""),
        ("src/middle/mod.rs", "mod part;\npub struct Whole;\n"),
        ("src/middle/part.rs", "use super::Whole;\n"),
        ("src/high.rs", ""),
    ]);
    let findings = check_files(top.path(), &LAYERS).expect("files that parse");
    assert_eq!(findings.circles, 1);
}

#[test]
fn tests_do_not_count() {
    let findings = check(
        "pub struct Low;\n#[cfg(test)]\nmod tests {\n    use crate::high::High;\n}\n\
         #[cfg(all(test, not(loom)))]\nfn helper(_: crate::high::High) {}\n",
        "pub struct High;\n",
    );
    assert!(findings.is_clean(), "{:#?}", findings.details);
    // What holds outside of tests does.
    let findings = check(
        "pub struct Low;\n#[cfg(not(test))]\nuse crate::high::High;\n",
        "pub struct High;\n",
    );
    assert_up(&findings, "src/low.rs:3", "src/high.rs");
}

#[test]
fn every_file_has_a_layer() {
    let top = tree(&[
        (
            "src/lib.rs",
            "mod high;\nmod low;\nmod middle;\nmod stray;\n",
        ),
        ("src/low.rs", ""),
        ("src/middle/mod.rs", ""),
        ("src/high.rs", ""),
        ("src/stray.rs", ""),
    ]);
    let findings = check_files(top.path(), &LAYERS).expect("files that parse");
    assert_eq!(findings.unplaced, 1, "{:#?}", findings.details);
    assert!(!findings.is_clean());
    let top = tree(&[
        ("src/lib.rs", "mod low;\nmod middle;\n"),
        ("src/low.rs", ""),
        ("src/middle.rs", ""),
    ]);
    let findings = check_files(top.path(), &LAYERS).expect("files that parse");
    assert_eq!(findings.stale, 1, "{:#?}", findings.details);
    assert!(!findings.is_clean());
}

#[test]
fn crates_depend_downwards() {
    let package = |name: &str, rest: &str| format!("[package]\nname = \"{name}\"\n{rest}");
    let check = |low: &str, high: &str| {
        let top = tree(&[
            (
                "Cargo.toml",
                "[workspace]\nmembers = [\"low\", \"high\", \"peer\"]\n",
            ),
            ("low/Cargo.toml", &package("low", low)),
            ("high/Cargo.toml", &package("high", high)),
            ("peer/Cargo.toml", &package("peer", "")),
        ]);
        check_crates(top.path(), "low < high peer").expect("manifests")
    };
    let findings = check(
        "[dev-dependencies]\nhigh = { path = \"../high\" }\n",
        "[dependencies]\nlow = \"1\"\n",
    );
    assert!(findings.is_clean(), "{:#?}", findings.details);
    let findings = check(
        "[dependencies]\nup = { package = \"high\", version = \"1\" }\n",
        "",
    );
    assert_eq!(findings.up, 1);
    let findings = check("[target.'cfg(unix)'.dependencies]\nhigh = \"1\"\n", "");
    assert_eq!(findings.up, 1);
    assert!(
        findings.details[0].starts_with("low/Cargo.toml:4"),
        "{:?}",
        findings.details
    );
    let findings = check("", "[dependencies]\npeer = \"1\"\n");
    assert_eq!(findings.up, 1);
}
