// SPDX-License-Identifier: MIT OR Apache-2.0

//! Comments in Rust and C that are wider than the code may be: rustfmt leaves comments as they are.

use std::fs;
use std::path::Path;

use crate::Verdict;

/// Columns of a line.
const WIDTH: usize = 100;

/// Columns of a tab.
const TAB: usize = 8;

/// Prints where comments are too wide; whether none is.
pub fn check(files: &[&str]) -> Verdict {
    let mut is_fine = true;
    for file in files {
        let text = fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))?;
        let is_rust = Path::new(file).extension().is_some_and(|end| end == "rs");
        for line in too_wide(&text, is_rust) {
            println!("{file}:{line}: a comment beyond column {WIDTH}");
            is_fine = false;
        }
    }
    Ok(is_fine)
}

/// What a character of a file is in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Within {
    Code,
    LineComment,
    /// As many comments within each other.
    BlockComment(usize),
    Text,
    /// A raw string that ends with as many number signs.
    RawText(usize),
}

/// The lines, from 1 on, with words of a comment beyond the last column. A word that no line has
/// room for may be there, and so may the row of a table.
fn too_wide(text: &str, is_rust: bool) -> Vec<usize> {
    let mut found = Vec::new();
    let mut within = Within::Code;
    for (number, line) in (1..).zip(text.lines()) {
        let mut columns = 0;
        let mut comment = String::new();
        let mut is_wide = false;
        let mut rest = line;
        if within == Within::LineComment {
            within = Within::Code;
        }
        while let Some(next) = rest.chars().next() {
            let (after, len) = step(within, rest, is_rust);
            let is_comment =
                |within| matches!(within, Within::LineComment | Within::BlockComment(_));
            let (token, behind) = rest.split_at(len.max(next.len_utf8()));
            for character in token.chars() {
                columns = match character {
                    '\t' => (columns / TAB + 1) * TAB,
                    _ => columns + 1,
                };
                if is_comment(within) || is_comment(after) {
                    comment.push(character);
                    is_wide |= columns > WIDTH && !character.is_whitespace();
                }
            }
            (within, rest) = (after, behind);
        }
        let words = comment.trim_start_matches(['/', '*', '!']).trim();
        let is_table = words.starts_with('|');
        let has_several = words
            .trim_end_matches("*/")
            .split_whitespace()
            .nth(1)
            .is_some();
        if is_wide && has_several && !is_table {
            found.push(number);
        }
    }
    found
}

/// What follows on the token that `rest` begins with, and the token's bytes; 0 for a single
/// character.
fn step(within: Within, rest: &str, is_rust: bool) -> (Within, usize) {
    match within {
        Within::Code if rest.starts_with("//") => (Within::LineComment, 2),
        Within::Code if rest.starts_with("/*") => (Within::BlockComment(1), 2),
        Within::Code if rest.starts_with('"') => (Within::Text, 1),
        Within::Code => match rest.strip_prefix('r').filter(|_| is_rust) {
            Some(raw) => {
                let signs = raw.len() - raw.trim_start_matches('#').len();
                if raw[signs..].starts_with('"') {
                    return (Within::RawText(signs), signs + 2);
                }
                (within, 0)
            }
            None => (within, character(rest)),
        },
        Within::LineComment => (within, 0),
        Within::BlockComment(depth) if rest.starts_with("*/") => match depth {
            1 => (Within::Code, 2),
            _ => (Within::BlockComment(depth - 1), 2),
        },
        Within::BlockComment(depth) if is_rust && rest.starts_with("/*") => {
            (Within::BlockComment(depth + 1), 2)
        }
        Within::BlockComment(_) => (within, 0),
        Within::Text if rest.starts_with('\\') => {
            let escaped = rest[1..].chars().next().map_or(0, char::len_utf8);
            (within, 1 + escaped)
        }
        Within::Text if rest.starts_with('"') => (Within::Code, 1),
        Within::Text => (within, 0),
        Within::RawText(signs) => match rest.strip_prefix('"') {
            Some(end) if end.len() - end.trim_start_matches('#').len() >= signs => {
                (Within::Code, 1 + signs)
            }
            _ => (within, 0),
        },
    }
}

/// The bytes of a character's literal; 0 if there is none, as at a lifetime.
fn character(rest: &str) -> usize {
    let Some(literal) = rest.strip_prefix('\'') else {
        return 0;
    };
    let first = literal.chars().next().map_or(0, char::len_utf8);
    if let Some(escape) = literal.strip_prefix('\\') {
        let escaped = escape.chars().next().map_or(0, char::len_utf8);
        let end = escape.get(escaped..).and_then(|rest| rest.find('\''));
        return end.map_or(0, |end| "'\\".len() + escaped + end + 1);
    }
    if literal
        .get(first..)
        .is_some_and(|rest| rest.starts_with('\''))
    {
        return 1 + first + 1;
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn long(words: usize) -> String {
        "word ".repeat(words).trim_end().to_owned()
    }

    #[test]
    fn comments_beyond_the_last_column_are_found() {
        let (fits, wide) = (long(19), long(20));
        for (text, is_rust, lines) in [
            (format!("// {fits}\n/// {fits}\n"), true, &[][..]),
            (
                format!("/// {wide}\nfn f() {{}} // {wide}\n"),
                true,
                &[1, 2],
            ),
            (
                format!("/* {fits}\n * {wide}\n * a */ int x;\n"),
                false,
                &[2],
            ),
            (format!("/* a /* b */ {wide} */\n"), true, &[1]),
            // A tab has eight columns.
            (format!("\t// {fits}\n"), false, &[1]),
            // What looks like a comment.
            (format!("let x = \"// {wide}\";\n"), true, &[]),
            (
                format!("let x = \"\\\"// {wide}\n// {wide}\"; // a\n"),
                true,
                &[],
            ),
            (
                format!("let x = r#\"\n// \" {wide}\n\"#; /* {wide} */\n"),
                true,
                &[3],
            ),
            (
                format!("fn f<'a>(x: &'a str) {{ g('\"', '\\'', '/'); }} // {wide}\n"),
                true,
                &[1],
            ),
            (format!("let {} = 1; // a b\n", "x".repeat(80)), true, &[]),
            // What cannot be wrapped.
            (format!("// {}\n", "x".repeat(120)), true, &[]),
            (format!("//! | {wide} |\n"), true, &[]),
        ] {
            assert_eq!(too_wide(&text, is_rust), lines, "{text}");
        }
    }
}
