// SPDX-License-Identifier: MIT OR Apache-2.0

//! Writes `docs/abi.md` from the comments of `kmod/uapi.rs`, so that the two cannot disagree, with
//! the files that use each ioctl and each flag.
//!
//! `abi-doc` prints the document; a test fails when the one in the repository is out of date, or
//! when something that the module does is used by nobody.

use libcopy_tests::abi::{self, Constant, Item};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

const SOURCE: &str = include_str!("../../../kmod/uapi.rs");

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../");

/// Where the callers of the module are: the library, the benchmarks, the tool, the experiments, the
/// C API and `libcopy_mpi.so`.
const USERS: [&str; 6] = [
    "libcopy/src",
    "libcopy/bench/src",
    "libcopy/cli/src",
    "libcopy/lab/src",
    "ffi/src",
    "ffi/mpi/src",
];

/// Flags that nothing there names, and why they are there. One that is used does not belong here.
const UNNAMED: [(&str, &str); 4] = [
    (
        "REQUEST_RELEASE",
        "tests only; the library releases by `REQUEST_CANCEL`",
    ),
    ("MODE_CPU", "tests only; it is told, not asked for"),
    (
        "STATE_STALE",
        "`libcopy/src/device/region.rs`, which asks whether there is any",
    ),
    (
        "STATE_OWNER_DEAD",
        "`libcopy/src/device/region.rs`, which asks whether there is any",
    ),
];

/// Fields that nothing there reads, and why they are there.
const UNUSED: [((&str, &str), &str); 4] = [
    (("RequestStatus", "next"), "tests, who wait for a claim"),
    (
        ("RequestInfo", "engine_bytes"),
        "tests, who ask who did the work",
    ),
    (
        ("RequestInfo", "cpu_bytes"),
        "tests, who ask who did the work",
    ),
    (("RequestInfo", "mode"), "tests, who ask who did the work"),
];

fn main() {
    print!("{}", render(SOURCE, &Users::read()));
}

/// The code of the callers.
struct Users(Vec<(String, String)>);

impl Users {
    fn read() -> Self {
        let mut files = Vec::new();
        for folder in USERS {
            add_files(Path::new(ROOT).join(folder), &mut files);
        }
        files.sort();
        let code = files.into_iter().map(|path| {
            let text = fs::read_to_string(&path).expect("a source file can be read");
            let name = path.strip_prefix(ROOT).expect("it was found below");
            (name.display().to_string(), code_of(&text))
        });
        Self(code.collect())
    }

    /// The files whose code has this word.
    fn of(&self, name: &str) -> Vec<String> {
        let found = self
            .0
            .iter()
            .filter(|(_, code)| words(code, name).count() > 0);
        found.map(|(path, _)| format!("`{path}`")).collect()
    }

    /// The files whose code names the structure, or `libcopy::device`, which returns those called
    /// `...Info`, and reads or sets a field of this name.
    fn of_field(&self, of: &str, field: &str) -> Vec<String> {
        let is_access = |(before, behind): (&str, &str)| {
            before.ends_with('.') && !behind.starts_with('(')
                || matches!(behind.trim_start().chars().next(), Some(':' | ',' | '}'))
        };
        let found = self.0.iter().filter(|(_, code)| {
            let has = |word| words(code, word).next().is_some();
            let may = has(of) || of.ends_with("Info") && code.contains("libcopy::device");
            may && words(code, field).any(is_access)
        });
        found.map(|(path, _)| format!("`{path}`")).collect()
    }

    /// What the document says of who uses a field; empty if nobody does.
    fn named_field(&self, of: &str, field: &str) -> String {
        let files = self.of_field(of, field);
        let known = UNUSED.iter().find(|(known, _)| *known == (of, field));
        match known {
            Some((_, why)) if files.is_empty() => (*why).to_owned(),
            _ => files.join(", "),
        }
    }

    /// What the document says of who uses an ioctl or a flag; empty if nobody does.
    fn named(&self, name: &str) -> String {
        let files = self.of(name);
        match UNNAMED.iter().find(|(flag, _)| *flag == name) {
            Some((_, why)) if files.is_empty() => (*why).to_owned(),
            _ => files.join(", "),
        }
    }
}

/// Each place where code has this word: what is before it, and behind.
fn words<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
    let is_word = |c: &char| c.is_alphanumeric() || *c == '_';
    let places = code.match_indices(word);
    let parts = places.map(move |(at, _)| (&code[..at], &code[at + word.len()..]));
    parts.filter(move |(before, behind)| {
        !before.chars().next_back().is_some_and(|c| is_word(&c))
            && !behind.chars().next().is_some_and(|c| is_word(&c))
    })
}

fn add_files(folder: PathBuf, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("the folder is there") {
        let path = entry.expect("the folder can be read").path();
        if path.is_dir() {
            add_files(path, files);
        } else if path.extension().is_some_and(|end| end == "rs") {
            files.push(path);
        }
    }
}

/// A file without its unit tests, comments and strings (of one line).
fn code_of(text: &str) -> String {
    let end = text.find("#[cfg(test)]\nmod ").unwrap_or(text.len());
    let lines = text[..end].lines().map(|line| {
        let code = line.split("//").next().unwrap_or_default();
        code.split('"').step_by(2).collect::<Vec<_>>().join(" ")
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Turns links to items into code, which is all that plain Markdown can do with them.
fn plain(text: &str) -> String {
    text.replace("[`", "`").replace("`]", "`")
}

/// The document for a source in the style of `uapi.rs`.
fn render(source: &str, users: &Users) -> String {
    let mut out = String::from(
        "<!-- Generated from kmod/uapi.rs by `cargo run -p libcopy-tests --bin abi-doc > docs/abi.md`. -->\n\n",
    );
    let mut in_constants = false;
    for item in abi::items(source) {
        match item {
            Item::Text(line) => {
                writeln!(out, "{}", plain(&line).replacen("# ", "## ", 1)).expect("strings grow");
            }
            Item::Constant(constant) => add_constant(&mut out, &constant, users, &mut in_constants),
            Item::Struct(structure) => {
                in_constants = false;
                let doc = plain(&structure.doc.join("\n"));
                writeln!(out, "\n## struct {}\n\n{doc}\n", structure.name).expect("strings grow");
                out.push_str("| field | type | meaning | used by |\n|---|---|---|---|\n");
                for field in structure.fields {
                    let meaning = plain(&field.doc.join(" "));
                    let (name, kind) = (field.name, field.kind);
                    let used_by = users.named_field(&structure.name, &name);
                    writeln!(out, "| `{name}` | `{kind}` | {meaning} | {used_by} |")
                        .expect("strings grow");
                }
            }
        }
    }
    out
}

/// Adds a constant: a section if it is an ioctl, otherwise a line of a table, which is begun if
/// `in_table` says so.
fn add_constant(out: &mut String, constant: &Constant, users: &Users, in_table: &mut bool) {
    let Constant { name, value, .. } = constant;
    let used_by = if constant.is_ioctl() || constant.is_flag() {
        users.named(name)
    } else {
        String::new()
    };
    if constant.doc.iter().any(|line| line.starts_with("Takes ")) {
        *in_table = false;
        let doc = plain(&constant.doc.join("\n"));
        writeln!(
            out,
            "\n## {name} (`{value}`)\n\n{doc}\n\nUsed by {used_by}."
        )
        .expect("strings grow");
    } else {
        if !*in_table {
            out.push_str("\n| constant | value | meaning | used by |\n|---|---|---|---|\n");
            *in_table = true;
        }
        let doc = plain(&constant.doc.join(" "));
        writeln!(out, "| `{name}` | `{value}` | {doc} | {used_by} |").expect("strings grow");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The constants of the source.
    fn constants() -> Vec<Constant> {
        let items = abi::items(SOURCE).into_iter();
        let constants = items.filter_map(|item| match item {
            Item::Constant(constant) => Some(constant),
            _ => None,
        });
        constants.collect()
    }

    #[test]
    fn every_ioctl_has_a_section() {
        let text = render(SOURCE, &Users::read());
        for name in ["GET_INFO", "REGION_CREATE", "REGION_COPY", "REGION_ATTACH"] {
            assert!(
                text.contains(&format!("\n## {name} (`0xC0")),
                "{name} is missing"
            );
        }
        assert!(text.contains("| `region_iov` | `u64` |"));
    }

    #[test]
    fn every_ioctl_and_flag_is_used() {
        let users = Users::read();
        let (mut ioctls, mut flags) = (0, 0);
        for constant in constants() {
            let name = &constant.name;
            ioctls += u32::from(constant.is_ioctl());
            flags += u32::from(constant.is_flag());
            if constant.is_ioctl() || constant.is_flag() {
                assert!(
                    !users.named(name).is_empty(),
                    "{name} is used by no code in {USERS:?}: use it or remove it"
                );
            }
        }
        // The patterns find them at all.
        assert!(
            ioctls >= 15 && flags >= 15,
            "{ioctls} ioctls, {flags} flags"
        );
        for (name, _) in UNNAMED {
            let known = constants().iter().any(|known| known.name == name);
            assert!(known, "{name}");
            assert_eq!(users.of(name), [""; 0], "{name} is used");
        }
    }

    /// Structures with their fields.
    fn fields() -> Vec<(String, String)> {
        let structs = abi::items(SOURCE)
            .into_iter()
            .filter_map(|item| match item {
                Item::Struct(structure) => Some(structure),
                _ => None,
            });
        let fields = structs.flat_map(|structure| {
            let of = structure.name;
            let fields = structure.fields.into_iter();
            fields.map(move |field| (of.clone(), field.name))
        });
        fields.collect()
    }

    #[test]
    fn every_field_is_used() {
        let users = Users::read();
        let fields = fields();
        assert!(fields.len() > 90, "{} fields", fields.len());
        let unused = fields.iter().filter(|(of, name)| {
            !name.starts_with("reserved") && users.named_field(of, name).is_empty()
        });
        let unused: Vec<_> = unused.collect();
        assert!(unused.is_empty(), "no code in {USERS:?} uses {unused:?}");
        for ((of, name), _) in UNUSED {
            let field = (of.to_owned(), name.to_owned());
            assert!(fields.contains(&field), "{of}.{name}");
            assert_eq!(users.of_field(of, name), [""; 0], "{of}.{name} is used");
        }
    }

    #[test]
    fn a_field_is_used_where_its_structure_is_named() {
        let user = |text: &str| {
            let users = Users(vec![("a.rs".to_owned(), code_of(text))]);
            users.of_field("Info", "state").len()
        };
        for text in [
            "Info { state: 1 }",
            "Info { state }",
            "Info; a.state = 2",
            "Info; a.state",
        ] {
            assert_eq!(user(text), 1, "{text}");
        }
        for text in [
            "a.state",
            "Info; a.state()",
            "Info; a.states",
            "Info; state = 1",
        ] {
            assert_eq!(user(text), 0, "{text}");
        }
    }

    #[test]
    fn what_is_no_code_uses_nothing() {
        let text = "// uapi::A\ncall(\"B\", uapi::C_D); // E\n#[cfg(test)]\nmod tests { F }\n";
        let users = Users(vec![("a.rs".to_owned(), code_of(text))]);
        let used = ["A", "B", "C_D", "C", "D", "E", "F"].map(|name| users.of(name).len());
        assert_eq!(used, [0, 0, 1, 0, 0, 0, 0]);
    }

    #[test]
    fn the_document_is_up_to_date() {
        assert!(
            render(SOURCE, &Users::read()) == include_str!("../../../docs/abi.md"),
            "docs/abi.md is out of date: cargo run -p libcopy-tests --bin abi-doc > docs/abi.md"
        );
    }
}
