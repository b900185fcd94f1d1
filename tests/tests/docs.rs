// SPDX-License-Identifier: MIT OR Apache-2.0

//! The documents of the repository: every relative link and anchor resolves, README is short, and
//! measured figures stand in `docs/performance` and CHANGELOG.md only.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// Paths, relative to the repository, of all files that git tracks or would track and whose name
/// ends with `suffix`.
fn files(suffix: &str) -> Vec<PathBuf> {
    let output = Command::new("git")
        .args(["ls-files", "-co", "--exclude-standard"])
        .current_dir(ROOT)
        .output()
        .expect("git is installed");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("paths are UTF-8");
    let paths = text.lines().filter(|path| path.ends_with(suffix));
    // A file that was moved and not yet committed is listed under both names.
    paths
        .map(PathBuf::from)
        .filter(|path| Path::new(ROOT).join(path).exists())
        .collect()
}

fn read(path: &Path) -> String {
    let path = Path::new(ROOT).join(path);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The lines of a document with their numbers, without those of code blocks.
fn prose(text: &str) -> Vec<(usize, &str)> {
    let mut fence: Option<&str> = None;
    let mut lines = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let marker = ["```", "~~~"]
            .into_iter()
            .find(|marker| line.trim_start().starts_with(marker));
        match (fence, marker) {
            (None, Some(marker)) => fence = Some(marker),
            (Some(open), Some(marker)) if open == marker => fence = None,
            (None, None) => lines.push((number + 1, line)),
            _ => {}
        }
    }
    lines
}

/// The line without what stands in backticks.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join("``")
}

/// The anchors of a document's headings, as GitHub makes them.
fn anchors(text: &str) -> Vec<String> {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let mut anchors = Vec::new();
    for (_, line) in prose(text) {
        let level = line.len() - line.trim_start_matches('#').len();
        if !(1..=6).contains(&level) || !line[level..].starts_with(' ') {
            continue;
        }
        let slug: String = line[level..]
            .trim()
            .chars()
            .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
            .map(|c| {
                if c == ' ' {
                    '-'
                } else {
                    c.to_ascii_lowercase()
                }
            })
            .collect();
        let count = seen.entry(slug.clone()).or_default();
        anchors.push(match *count {
            0 => slug,
            n => format!("{slug}-{n}"),
        });
        *count += 1;
    }
    anchors
}

/// Targets of the links and pictures in a line.
fn targets(line: &str) -> Vec<String> {
    let line = without_code(line);
    let mut targets = Vec::new();
    for (at, _) in line.match_indices("](") {
        let rest = &line[at + 2..];
        if let Some(end) = rest.find(')') {
            targets.push(rest[..end].to_owned());
        }
    }
    for attribute in ["href=\"", "src=\"", "srcset=\""] {
        for (at, _) in line.match_indices(attribute) {
            let rest = &line[at + attribute.len()..];
            if let Some(end) = rest.find('"') {
                targets.push(rest[..end].to_owned());
            }
        }
    }
    targets
}

/// `path` without `.` and `..`; none if it leaves the repository.
fn resolved(path: &Path) -> Option<PathBuf> {
    let mut out = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => {
                if !out.pop() {
                    return None;
                }
            }
            Component::Normal(name) => out.push(name),
            _ => return None,
        }
    }
    Some(out)
}

/// What is wrong with a link of the document `from`.
fn broken(from: &Path, target: &str) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
    let path = if file.is_empty() {
        from.to_owned()
    } else {
        let Some(path) = resolved(&from.parent().expect("a file").join(file)) else {
            return Some(format!("{target} leaves the repository"));
        };
        path
    };
    if !Path::new(ROOT).join(&path).exists() {
        return Some(format!("{target}: no such file"));
    }
    if anchor.is_empty() {
        return None;
    }
    let known = anchors(&read(&path));
    let is_known = known.iter().any(|known| known == anchor);
    (!is_known).then(|| format!("{target}: the headings are {known:?}"))
}

#[test]
fn links_resolve() {
    let mut count = 0;
    let mut wrong = Vec::new();
    for document in files(".md") {
        let text = read(&document);
        for (number, line) in prose(&text) {
            for target in targets(line) {
                count += 1;
                if let Some(reason) = broken(&document, &target) {
                    wrong.push(format!("{}:{number}: {reason}", document.display()));
                }
            }
        }
    }
    assert!(count > 40, "only {count} links were found");
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Files that the comments and messages of programs name exist.
#[test]
fn sources_name_documents_that_exist() {
    let mut count = 0;
    let mut wrong = Vec::new();
    for path in files("") {
        let is_source = path.extension().is_some_and(|extension| {
            ["rs", "c", "h", "sh", "toml", "yml"].contains(&extension.to_str().unwrap_or_default())
        });
        let is_script = path.starts_with("scripts");
        if !is_source && !is_script {
            continue;
        }
        let Ok(text) = fs::read_to_string(Path::new(ROOT).join(&path)) else {
            continue;
        };
        for (at, _) in text.match_indices("docs/") {
            let is_part = text[..at].ends_with(|c: char| c.is_ascii_alphanumeric() || c == '/');
            let name: String = text[at..]
                .chars()
                .take_while(|c| c.is_ascii_alphanumeric() || "/-_.".contains(*c))
                .collect();
            let name = name.trim_end_matches('.');
            if is_part
                || ![".md", ".svg", ".csv"]
                    .iter()
                    .any(|end| name.ends_with(end))
            {
                continue;
            }
            count += 1;
            if !Path::new(ROOT).join(name).exists() {
                wrong.push(format!("{}: {name}", path.display()));
            }
        }
    }
    assert!(count > 8, "only {count} mentions were found");
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn readme_is_short() {
    let lines = read(Path::new("README.md")).lines().count();
    assert!(lines <= 150, "README.md has {lines} lines, 150 is the most");
}

/// Units of times and rates behind a number.
const UNITS: [&str; 13] = [
    "ns",
    "us",
    "µs",
    "ms",
    "s",
    "nanoseconds",
    "microseconds",
    "milliseconds",
    "seconds",
    "MB/s",
    "GB/s",
    "MiB/s",
    "GiB/s",
];

/// Words that compare two speeds, behind a number or a word for one.
const COMPARISONS: [&str; 7] = [
    "times as fast",
    "times as long",
    "times faster",
    "times slower",
    "times the speed",
    "of the speed",
    "geometric mean",
];

/// What looks like a figure and is none: a limit, a time-out, an interval or an option of the
/// program, with the page and the words around it.
const NO_FIGURES: [(&str, &str); 13] = [
    // Time-outs and intervals of the bootstrap.
    ("docs/design/bootstrap.md", "500 ms after another one left"),
    ("docs/design/bootstrap.md", "does not come within 30 s"),
    ("docs/design/bootstrap.md", "get on every 5 ms"),
    // What the model makes up for, and the driver's own timers.
    ("docs/design/ioat-model.md", "up to 10 ms of late wake-ups"),
    (
        "docs/design/ioat-model.md",
        "until the driver's timer (0.2 to 2 s)",
    ),
    (
        "docs/design/ioat-model.md",
        "found by the timer (0.2 to 2 s)",
    ),
    (
        "docs/design/ioat-model.md",
        "beyond about 400 ms it is a hang",
    ),
    ("docs/design/ioat-model.md", "resets it every 200 ms"),
    (
        "docs/design/ioat-model.md",
        "behind a fragment that is 50 ms old",
    ),
    // How long each side waits for the other before it goes on alone.
    (
        "docs/design/p2p-protocol.md",
        "the sender is elsewhere for 300 µs",
    ),
    (
        "docs/design/p2p-protocol.md",
        "the receiver has not begun for 1 ms",
    ),
    ("docs/design/p2p-protocol.md", "every 1 to 8 ms"),
    (
        "docs/design/p2p-protocol.md",
        "100 ms whether the peer lives",
    ),
];

/// Words of a line that look like a measured figure.
fn figures(line: &str) -> Vec<String> {
    let mut found = Vec::new();
    for comparison in COMPARISONS {
        if line.contains(comparison) {
            found.push(comparison.to_owned());
        }
    }
    let is_number = |word: &str| {
        let digits = |c: char| c.is_ascii_digit() || ".,-–".contains(c);
        word.starts_with(|c: char| c.is_ascii_digit()) && word.chars().all(digits)
    };
    let words: Vec<&str> = line
        .split_whitespace()
        .map(|word| word.trim_matches(|c: char| "()[]*|`;:,.".contains(c)))
        .collect();
    for (at, word) in words.iter().enumerate() {
        let next = words.get(at + 1).copied().unwrap_or_default();
        let after = words.get(at + 2).copied().unwrap_or_default();
        // 7 ms, 3 % less, 1.5-2 us; and 7ms in one word.
        let is_time = is_number(word) && UNITS.contains(&next);
        let is_share = is_number(word)
            && next == "%"
            && ["less", "more", "faster", "slower", "longer"].contains(&after);
        let number = word.find(|c: char| c.is_alphabetic()).unwrap_or(0);
        let is_joined = is_number(&word[..number]) && UNITS.contains(&&word[number..]);
        if is_time || is_share || is_joined {
            found.push(format!("{word} {next} {after}"));
        }
    }
    found
}

#[test]
fn figures_are_on_their_pages() {
    let mut used = [false; NO_FIGURES.len()];
    let mut wrong = Vec::new();
    for document in files(".md") {
        let name = document.display().to_string();
        if name.starts_with("docs/performance/") || name == "CHANGELOG.md" {
            continue;
        }
        let text = read(&document);
        for (number, line) in prose(&text) {
            for figure in figures(line) {
                let reason = NO_FIGURES
                    .iter()
                    .position(|(page, words)| *page == name && line.contains(words));
                match reason {
                    Some(at) => used[at] = true,
                    None => wrong.push(format!("{name}:{number}: {figure}: {line}")),
                }
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "measured figures belong to docs/performance: {wrong:#?}"
    );
    let unused: Vec<_> = NO_FIGURES
        .iter()
        .zip(used)
        .filter(|(_, used)| !used)
        .collect();
    assert!(unused.is_empty(), "no longer there: {unused:#?}");
}

/// Names that a cell of a table may have: more is a list that nobody reads.
const MOST_NAMES: usize = 12;

/// The cells of a document's tables that have more names in backticks than that, with the numbers
/// of their lines.
fn crowded_cells(text: &str) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    for (number, line) in prose(text) {
        if !line.starts_with('|') {
            continue;
        }
        for cell in line.split('|') {
            let names = cell.matches('`').count() / 2;
            if names > MOST_NAMES {
                found.push((number, names));
            }
        }
    }
    found
}

#[test]
fn no_cell_of_a_table_is_a_list_of_names() {
    let mut wrong = Vec::new();
    for document in files(".md") {
        let cells = crowded_cells(&read(&document)).into_iter();
        let name = document.display();
        wrong.extend(cells.map(|(line, names)| format!("{name}:{line}: {names} names")));
    }
    assert!(wrong.is_empty(), "more than {MOST_NAMES}: {wrong:#?}");
}

#[test]
fn the_checks_find_what_is_wrong() {
    let text = "# A b\n```\n# no heading [x](none)\n```\n## `C` (d), e!\n# A b\n";
    assert_eq!(anchors(text), ["a-b", "c-d-e", "a-b-1"]);
    assert_eq!(prose(text).len(), 3);
    assert_eq!(targets("[a](b) `[c](d)` ![e](f#g)"), ["b", "f#g"]);
    assert_eq!(targets("<img src=\"x.svg\">"), ["x.svg"]);
    let from = Path::new("docs/abi.md");
    assert!(broken(from, "nothing.md").is_some());
    assert!(broken(from, "../../elsewhere").is_some());
    assert!(broken(Path::new("README.md"), "#no-such-heading").is_some());
    assert!(broken(Path::new("README.md"), "LICENSE").is_none());
    assert!(broken(Path::new("README.md"), "https://www.rust-lang.org").is_none());
    let row = format!("| a | {} |", "`f`, ".repeat(MOST_NAMES + 1));
    let text = format!("| `f` | `g` |\n```\n{row}\n```\n{row}\n");
    assert_eq!(crowded_cells(&text), [(5, MOST_NAMES + 1)]);
}
