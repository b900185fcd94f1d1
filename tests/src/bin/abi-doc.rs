// SPDX-License-Identifier: MIT OR Apache-2.0

//! Writes `docs/abi.md` from the comments of `kmod/uapi.rs`, so that the two cannot disagree, with the files that use each
//! ioctl and each flag.
//!
//! `abi-doc` prints the document; a test fails when the one in the repository is out of date, or when something that the
//! module does is used by nobody.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

const SOURCE: &str = include_str!("../../../kmod/uapi.rs");

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../");

/// Where the callers of the module are: the library, the tool, the C API and `libcopy_mpi.so`.
const USERS: [&str; 4] = ["libcopy/src", "libcopy/cli/src", "ffi/src", "ffi/mpi/src"];

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

    /// The files whose code names the structure, or `libcopy::device`, which returns those called `...Info`, and
    /// reads or sets a field of this name.
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

/// Whether a constant is an ioctl.
fn is_ioctl(value: &str) -> bool {
    value.starts_with("0xC") && value.contains("_CC")
}

/// Whether a constant is a flag.
fn is_flag(name: &str, value: &str) -> bool {
    value.starts_with("1 << ") && !name.starts_with("MAX_")
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
    let mut doc: Vec<String> = Vec::new();
    let mut table: Option<(&str, Vec<[String; 4]>)> = None;
    let mut in_constants = false;
    for line in source.lines() {
        let text = line.trim();
        if let Some(rest) = text.strip_prefix("//!") {
            let rest = plain(rest.strip_prefix(' ').unwrap_or(rest));
            writeln!(out, "{}", rest.replacen("# ", "## ", 1)).expect("strings grow");
        } else if let Some(rest) = text.strip_prefix("///") {
            doc.push(plain(rest.strip_prefix(' ').unwrap_or(rest)));
        } else if text.starts_with("pub const fn ") {
            doc.clear();
        } else if let Some(rest) = text.strip_prefix("pub const ") {
            let (name, value) = constant(rest);
            let used_by = if is_ioctl(value) || is_flag(name, value) {
                users.named(name)
            } else {
                String::new()
            };
            if doc.iter().any(|line| line.starts_with("Takes ")) {
                in_constants = false;
                let doc = doc.join("\n");
                writeln!(
                    out,
                    "\n## {name} (`{value}`)\n\n{doc}\n\nUsed by {used_by}."
                )
                .expect("strings grow");
            } else {
                if !in_constants {
                    out.push_str("\n| constant | value | meaning | used by |\n|---|---|---|---|\n");
                    in_constants = true;
                }
                let doc = doc.join(" ");
                writeln!(out, "| `{name}` | `{value}` | {doc} | {used_by} |")
                    .expect("strings grow");
            }
            doc.clear();
        } else if let Some(rest) = text.strip_prefix("pub struct ") {
            in_constants = false;
            let name = rest.trim_end_matches(" {");
            writeln!(out, "\n## struct {name}\n\n{}\n", doc.join("\n")).expect("strings grow");
            doc.clear();
            table = Some((name, Vec::new()));
        } else if let (Some((of, rows)), Some(field)) = (table.as_mut(), text.strip_prefix("pub "))
        {
            let (name, kind) = field
                .trim_end_matches(',')
                .split_once(": ")
                .unwrap_or((field, ""));
            let used_by = users.named_field(of, name);
            rows.push([name.to_owned(), kind.to_owned(), doc.join(" "), used_by]);
            doc.clear();
        } else if text == "}" {
            let Some((_, rows)) = table.take() else {
                continue;
            };
            out.push_str("| field | type | meaning | used by |\n|---|---|---|---|\n");
            for [name, kind, meaning, used_by] in rows {
                writeln!(out, "| `{name}` | `{kind}` | {meaning} | {used_by} |")
                    .expect("strings grow");
            }
        }
    }
    out
}

/// Splits `NAME: type = value;`.
fn constant(text: &str) -> (&str, &str) {
    let (name, rest) = text.split_once(':').unwrap_or((text, ""));
    let value = rest.split_once('=').map_or("", |(_, value)| value);
    (name, value.trim().trim_end_matches(';'))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names and values of the constants.
    fn constants() -> impl Iterator<Item = (&'static str, &'static str)> {
        let lines = SOURCE.lines();
        lines
            .filter_map(|line| line.strip_prefix("pub const "))
            .map(constant)
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
        for (name, value) in constants() {
            ioctls += u32::from(is_ioctl(value));
            flags += u32::from(is_flag(name, value));
            if is_ioctl(value) || is_flag(name, value) {
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
            assert!(constants().any(|(known, _)| known == name), "{name}");
            assert_eq!(users.of(name), [""; 0], "{name} is used");
        }
    }

    /// Structures with their fields.
    fn fields() -> Vec<(&'static str, &'static str)> {
        let (mut of, mut found) = ("", Vec::new());
        for line in SOURCE.lines() {
            if let Some(name) = line.strip_prefix("pub struct ") {
                of = name.trim_end_matches(" {");
            } else if let Some(field) = line.strip_prefix("    pub ") {
                found.extend(field.split_once(": ").map(|(name, _)| (of, name)));
            }
        }
        found
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
            assert!(fields.contains(&(of, name)), "{of}.{name}");
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
