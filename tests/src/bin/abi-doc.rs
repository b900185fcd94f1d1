// SPDX-License-Identifier: MIT OR Apache-2.0

//! Writes `docs/abi.md` from the comments of `kmod/uapi.rs`, so that the two cannot disagree.
//!
//! `abi-doc` prints the document; a test fails when the one in the repository is out of date.

use std::fmt::Write;

const SOURCE: &str = include_str!("../../../kmod/uapi.rs");

fn main() {
    print!("{}", render(SOURCE));
}

/// Turns links to items into code, which is all that plain Markdown can do with them.
fn plain(text: &str) -> String {
    text.replace("[`", "`").replace("`]", "`")
}

/// The document for a source in the style of `uapi.rs`.
fn render(source: &str) -> String {
    let mut out = String::from(
        "<!-- Generated from kmod/uapi.rs by `cargo run -p libcopy-tests --bin abi-doc > docs/abi.md`. -->\n\n",
    );
    let mut doc: Vec<String> = Vec::new();
    let mut table: Option<Vec<(String, String, String)>> = None;
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
            if doc.iter().any(|line| line.starts_with("Takes ")) {
                in_constants = false;
                writeln!(out, "\n## {name} (`{value}`)\n\n{}", doc.join("\n"))
                    .expect("strings grow");
            } else {
                if !in_constants {
                    out.push_str("\n| constant | value | meaning |\n|---|---|---|\n");
                    in_constants = true;
                }
                writeln!(out, "| `{name}` | `{value}` | {} |", doc.join(" "))
                    .expect("strings grow");
            }
            doc.clear();
        } else if let Some(rest) = text.strip_prefix("pub struct ") {
            in_constants = false;
            let name = rest.trim_end_matches(" {");
            writeln!(out, "\n## struct {name}\n\n{}\n", doc.join("\n")).expect("strings grow");
            doc.clear();
            table = Some(Vec::new());
        } else if let (Some(rows), Some(field)) = (table.as_mut(), text.strip_prefix("pub ")) {
            let (name, kind) = field
                .trim_end_matches(',')
                .split_once(": ")
                .unwrap_or((field, ""));
            rows.push((name.to_owned(), kind.to_owned(), doc.join(" ")));
            doc.clear();
        } else if text == "}" {
            let Some(rows) = table.take() else { continue };
            out.push_str("| field | type | meaning |\n|---|---|---|\n");
            for (name, kind, meaning) in rows {
                writeln!(out, "| `{name}` | `{kind}` | {meaning} |").expect("strings grow");
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

    #[test]
    fn every_ioctl_has_a_section() {
        let text = render(SOURCE);
        for name in ["GET_INFO", "REGION_CREATE", "REGION_COPY", "REGION_ATTACH"] {
            assert!(
                text.contains(&format!("\n## {name} (`0xC0")),
                "{name} is missing"
            );
        }
        assert!(text.contains("| `region_iov` | `u64` |"));
    }

    #[test]
    fn the_document_is_up_to_date() {
        assert!(
            render(SOURCE) == include_str!("../../../docs/abi.md"),
            "docs/abi.md is out of date: cargo run -p libcopy-tests --bin abi-doc > docs/abi.md"
        );
    }
}
