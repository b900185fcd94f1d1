// SPDX-License-Identifier: MIT OR Apache-2.0

//! Writes `docs/configuration.md` from the table of environment variables in `libcopy::config`, so
//! that the two cannot disagree.
//!
//! `configuration-doc` prints the document; a test fails when the one in the repository is out of
//! date.

use std::fmt::Write;

use libcopy::config::SETTINGS;

fn main() {
    print!("{}", render());
}

fn render() -> String {
    let mut out = String::from(
        "<!-- Generated from libcopy/src/config.rs by `cargo run -p libcopy-tests --bin configuration-doc > \
         docs/configuration.md`. -->\n\n\
         # Environment variables\n\n\
         `libcopy info --all` shows the values in force, and ends with status 1 if one cannot be used. An empty variable counts as one that is not set. Sizes are \
         numbers of bytes, with K, M or G for powers of 1024. A variable that begins with `LIBCOPY_` and is not \
         listed here has no effect; rank 0 says so on standard error, once, with the nearest name.\n",
    );
    let mut section = "";
    for setting in SETTINGS {
        if setting.section != section {
            section = setting.section;
            let _ = write!(
                out,
                "\n## {section}\n\n| variable | default | |\n|---|---|---|\n"
            );
        }
        let default = match setting.default {
            "" => String::new(),
            default => format!("`{default}`"),
        };
        let help = setting.help.replace('|', "\\|");
        let _ = writeln!(out, "| `{}` | {default} | {help} |", setting.name);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::fs;
    use std::path::{Path, PathBuf};

    use libcopy::config::is_internal;

    const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

    #[test]
    fn the_document_is_up_to_date() {
        assert!(
            render() == include_str!("../../../docs/configuration.md"),
            "docs/configuration.md is out of date: \
             cargo run -p libcopy-tests --bin configuration-doc > docs/configuration.md"
        );
    }

    fn files(directory: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(directory).expect("a directory").flatten() {
            let path = entry.path();
            if path.is_dir() {
                files(&path, found)
            } else {
                found.push(path)
            }
        }
    }

    /// Names of variables in a text: in Rust whole string literals, in scripts all words that are
    /// no macro of the C API.
    fn names(path: &Path, text: &str) -> Vec<String> {
        let is_rust = path.extension().is_some_and(|extension| extension == "rs");
        let bytes = text.as_bytes();
        let is_name = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
        text.match_indices("LIBCOPY_")
            .filter_map(|(at, _)| {
                let len = bytes[at..]
                    .iter()
                    .take_while(|byte| is_name(**byte))
                    .count();
                let is_literal =
                    at > 0 && bytes[at - 1] == b'"' && bytes.get(at + len) == Some(&b'"');
                let is_whole = len > "LIBCOPY_".len() && (!is_rust || is_literal);
                is_whole.then(|| text[at..at + len].to_owned())
            })
            .collect()
    }

    /// Variables of make, and options of the kernel's configuration.
    const MAKE: [&str; 1] = ["LIBCOPY_ENGINES"];

    #[test]
    fn every_variable_is_in_the_table() {
        let mut paths = Vec::new();
        let sources = [
            "libcopy/src",
            "libcopy/datatype/src",
            "libcopy/measure/src",
            "libcopy/bench/src",
            "libcopy/cli/src",
            "libcopy/lab/src",
            "ffi/src",
            "ffi/async/src",
            "ffi/interpose/src",
            "ffi/mpi/src",
            "tests/src",
            "scripts",
        ];
        for directory in sources {
            files(&Path::new(ROOT).join(directory), &mut paths);
        }
        let mut unknown: BTreeMap<String, PathBuf> = BTreeMap::new();
        let mut seen = 0;
        for path in paths {
            let is_table = ["libcopy/src/config.rs", "configuration-doc.rs"]
                .iter()
                .any(|file| path.ends_with(file));
            let text = fs::read_to_string(&path).unwrap_or_default();
            for name in names(&path, &text).into_iter().filter(|_| !is_table) {
                seen += 1;
                let is_known = SETTINGS.iter().any(|setting| setting.name == name);
                if !is_known && !is_internal(&name) && !MAKE.contains(&&*name) {
                    unknown.insert(name, path.clone());
                }
            }
        }
        assert!(seen > 20, "{seen}");
        assert!(unknown.is_empty(), "not in libcopy::config: {unknown:#?}");
    }

    #[test]
    fn names_are_found() {
        let rust = "var(\"LIBCOPY_X1\"), LIBCOPY_EINVAL, \"LIBCOPY_A=b\"";
        assert_eq!(names(Path::new("a.rs"), rust), ["LIBCOPY_X1"]);
        assert_eq!(
            names(Path::new("a"), "${LIBCOPY_Y-} LIBCOPY_Z=1"),
            ["LIBCOPY_Y", "LIBCOPY_Z"]
        );
    }
}
