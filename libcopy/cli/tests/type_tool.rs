// SPDX-License-Identifier: MIT OR Apache-2.0

//! What `libcopy type` tells people and scripts.

mod common;

use std::process::Command;

use common::{json, mistake, said, tool, word};
use serde_json::Value;

/// `libcopy type` with words that have no blanks in them.
fn ask(words: &str) -> Command {
    let mut command = tool(&["type"]);
    command.args(words.split(' '));
    command
}

/// What is said, and what is in the file that the words name as FILE.
fn with_file(words: &str) -> (String, String) {
    let place = tempfile::tempdir().expect("a directory");
    let file = place.path().join("file");
    let said = said(&mut ask(&words.replace("FILE", word(&file))));
    (said, std::fs::read_to_string(&file).expect("a file"))
}

#[test]
fn describe_says_what_a_type_is() {
    let text = said(&mut ask(
        "describe resized(0,8,vector(3,2,4,double)) --count 2",
    ));
    for part in [
        "size       48 bytes in 6 basic elements, alignment 8",
        "bounds     0 to 8: extent 8",
        "data       0 to 80: true extent 80",
        "  resized lower bound 0, extent 8\n    vector 3 blocks of 2, stride 4 extents\n      MPI_DOUBLE",
        "stream 3 times, stride 32",
        "segments   6, 16.0 bytes on average",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
}

#[test]
fn json_has_the_segments_that_the_library_has() {
    let expression = "struct([2,1,3],[0,40,100],[int,indexed([1,2],[0,5],short),byte])";
    let all = json(&mut ask(&format!(
        "describe {expression} --json --segments 100"
    )));
    let datatype: libcopy::datatype::Datatype = expression.parse().expect("an expression");
    let layout = libcopy::datatype::Layout::new(&datatype, 1).expect("fits");
    assert_eq!(all["size"], datatype.size());
    assert_eq!(all["extent"], datatype.extent());
    assert_eq!(all["segment_count"], layout.segment_count());
    let shown = all["segments"].as_array().expect("a list");
    assert_eq!(shown.len() as u64, layout.segment_count());
    for (told, segment) in shown.iter().zip(layout.segments()) {
        assert_eq!(told["offset"], segment.offset);
        assert_eq!(told["length"], segment.len);
    }
    assert!(
        all["form"]["nodes"]
            .as_array()
            .is_some_and(|n| !n.is_empty())
    );
    assert!(all["form"]["plan"].as_str().is_some_and(|p| !p.is_empty()));
}

#[test]
fn the_drawing_has_a_rectangle_for_every_piece() {
    // The second of these pieces goes on in the next row of 64 bytes.
    let (_, svg) = with_file("describe hindexed([4,8],[8,60],byte) --svg FILE");
    assert!(
        svg.starts_with("<svg ") && svg.ends_with("</svg>\n"),
        "{svg}"
    );
    assert_eq!(svg.matches("stroke=\"white\"").count(), 3, "{svg}");
    // Rows 0 and 64, each with its address and its background.
    assert_eq!(svg.matches("text-anchor=\"end\"").count(), 2, "{svg}");
}

#[test]
fn negative_and_huge_layouts_are_drawn_too() {
    for expression in [
        "vector(3,1,-7,int)",
        "hvector(2000000000,1,2000000000,byte)",
        "contiguous(0,int)",
        "resized(-9000000000000000000,9000000000000000000,int)",
    ] {
        let (text, svg) = with_file(&format!("describe {expression} --svg FILE"));
        assert!(text.contains("segments "), "{text}");
        assert!(svg.len() < 1 << 20, "{expression}: {} bytes", svg.len());
    }
}

#[test]
fn bench_measures_all_three_ways() {
    let all = json(&mut ask("bench vector(100,1,2,double) --time 0.01 --json"));
    let ops: Vec<&str> = all
        .as_array()
        .expect("a list")
        .iter()
        .map(|entry| {
            assert_eq!(entry["bytes"], 800);
            assert!(
                entry["median_us"].as_f64().is_some_and(|us| us > 0.0),
                "{entry}"
            );
            entry["op"].as_str().expect("a name")
        })
        .collect();
    assert_eq!(ops, ["memcpy", "pack", "copy", "unpack"]);
}

#[test]
fn bench_measures_commit_too() {
    let (all, csv) = with_file("bench --commit --entries 3000 --time 0.001 --json --csv FILE");
    let all: Vec<Value> = serde_json::from_str(&all).expect("JSON and nothing else");
    assert_eq!(csv.lines().count(), all.len() + 1, "{csv}");
    assert_eq!(all[0]["segments"], 3_000_000, "the subarray");
    assert!(all[0]["form_bytes"].as_u64().is_some_and(|b| b < 1024));
    assert!(
        all.len() > 20
            && all
                .iter()
                .all(|case| case["commit_us"].as_f64() > Some(0.0))
    );
    let one = json(&mut ask(
        "bench vector(9,1,2,int) --commit --json --time 0.001",
    ));
    assert_eq!(one[0]["segments"], 9);
}

#[test]
fn mistakes_name_the_place() {
    for (arguments, word) in [
        ("describe vector(3,1,int)", "vector"),
        ("describe doubble", "doubble"),
        (
            "describe doubel",
            "unknown type `doubel`; did you mean `double`?",
        ),
        (
            "describe contiguous(2,MPI_BITE)",
            "unknown type `MPI_BITE`; did you mean `byte`? (character 14 ",
        ),
        (
            "describe vectro(3,1,2,int)",
            "unknown constructor `vectro`; did you mean `vector`?",
        ),
        ("describe xyzzy", "unknown type `xyzzy` (character 1"),
        ("bench int --time 0", "--time"),
        ("bench contiguous(0,int)", "0 bytes"),
        ("bench --commit --entries 1", "--entries 1"),
        ("bench contiguous(1000000000000,int)", "2 GiB"),
    ] {
        let text = mistake(&mut ask(arguments), 1);
        assert!(text.contains(word), "{text}");
    }
}
