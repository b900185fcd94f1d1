// SPDX-License-Identifier: MIT OR Apache-2.0

//! `kernel header` and `kernel document`, for scripts/kernel-patches: what the kernel's tree has of
//! the module's ABI beside its Rust, made from `kmod/uapi.rs`.

use crate::abi::{self, Constant, Field, Item, Struct};
use crate::{Verdict, read};
use std::fmt::Write;
use std::path::Path;

/// Columns of a line of the kernel's C and of its documents.
const WIDTH: usize = 80;

/// Columns that a tab stands for.
const TAB: usize = 8;

/// Prints the header of the ABI for C programs, `include/uapi/linux/libcopy.h`.
pub fn header(source: &Path) -> Verdict {
    print!("{}", Abi::read(source)?.header());
    Ok(true)
}

/// Prints the sections of `Documentation/misc-devices/libcopy.rst` that describe the ABI.
pub fn document(source: &Path) -> Verdict {
    print!("{}", Abi::read(source)?.document());
    Ok(true)
}

/// The ABI, as its source has it.
struct Abi {
    license: String,
    items: Vec<Item>,
}

impl Abi {
    fn read(source: &Path) -> Result<Self, String> {
        Self::of(&read(source)?).map_err(|why| format!("{}: {why}", source.display()))
    }

    fn of(text: &str) -> Result<Self, String> {
        let first = text.lines().next().unwrap_or_default();
        let license = first
            .strip_prefix("// SPDX-License-Identifier: ")
            .ok_or("its first line names no license")?;
        let items = abi::items(text);
        let mut constants = items.iter().filter_map(constant);
        if !constants.any(Constant::is_ioctl) {
            return Err("it has no ioctl".to_owned());
        }
        let mut ioctls = items.iter().filter_map(constant);
        if let Some(ioctl) = ioctls.find(|any| any.is_ioctl() && argument_of(any).is_none()) {
            return Err(format!("{} does not say what it takes", ioctl.name));
        }
        Ok(Self {
            license: license.to_owned(),
            items,
        })
    }

    /// The constants that are ioctls, or those that are none.
    fn constants(&self, ioctls: bool) -> impl Iterator<Item = &Constant> {
        let constants = self.items.iter().filter_map(constant);
        constants.filter(move |constant| constant.is_ioctl() == ioctls)
    }

    /// A line with the names of constants in its code as C has them.
    fn named(&self, line: &str) -> String {
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let is_known = |word: &str| {
            let mut constants = self.items.iter().filter_map(constant);
            constants.any(|constant| constant.name == word)
        };
        let mut out = String::new();
        for (at, part) in line.split('`').enumerate() {
            if at != 0 {
                out.push('`');
            }
            // Links are named where they are resolved.
            if at % 2 == 0 || out.ends_with("[`") {
                out.push_str(part);
                continue;
            }
            for piece in part.split_inclusive(|c| !is_word(c)) {
                let word = piece.trim_end_matches(|c| !is_word(c));
                if is_known(word) {
                    out.push_str("LIBCOPY_");
                }
                out.push_str(piece);
            }
        }
        out
    }

    fn structs(&self) -> impl Iterator<Item = &Struct> {
        self.items.iter().filter_map(|item| match item {
            Item::Struct(structure) => Some(structure),
            _ => None,
        })
    }

    fn header(&self) -> String {
        let mut out = format!("/* SPDX-License-Identifier: {} */\n", self.license);
        out.push_str(
            "/*\n * The ABI of /dev/libcopy, described in Documentation/misc-devices/libcopy.rst. It is\n \
             * the same as that of drivers/misc/libcopy/uapi.rs, from which it was made.\n */\n\
             #ifndef _UAPI_LINUX_LIBCOPY_H\n#define _UAPI_LINUX_LIBCOPY_H\n\n\
             #include <linux/ioctl.h>\n#include <linux/types.h>\n",
        );
        for constant in self.constants(false) {
            add_comment(&mut out, &in_c(&constant.doc.join(" ")));
            let name = c_name(&constant.name);
            writeln!(out, "#define {name} {}", c_value(constant)).expect("strings grow");
        }
        for structure in self.structs() {
            add_struct(&mut out, structure);
        }
        out.push('\n');
        for ioctl in self.constants(true) {
            let (name, number) = (c_name(&ioctl.name), number_of(ioctl));
            let argument = argument_of(ioctl).unwrap_or_default();
            let line = format!("#define {name} _IOWR(LIBCOPY_IOC_TYPE, 0x{number}, {argument})");
            if line.len() <= 100 {
                writeln!(out, "{line}").expect("strings grow");
            } else {
                let value = format!("_IOWR(LIBCOPY_IOC_TYPE, 0x{number}, {argument})");
                writeln!(out, "#define {name} \\\n\t{value}").expect("strings grow");
            }
        }
        out.push_str("\n#endif /* _UAPI_LINUX_LIBCOPY_H */\n");
        out
    }

    fn document(&self) -> String {
        let mut out = String::new();
        let text = self.items.iter().filter_map(|item| match item {
            Item::Text(line) => Some(self.named(line)),
            _ => None,
        });
        // What stands before the first heading is about the source.
        let text: Vec<String> = text.skip_while(|line| !line.starts_with("# ")).collect();
        add_text(&mut out, &text);
        out.push_str("\nConstants\n=========\n");
        for constant in self.constants(false) {
            let (name, value) = (c_name(&constant.name), c_value(constant));
            writeln!(out, "\n``{name}`` : ``{value}``").expect("strings grow");
            let meaning = in_rst(&constant.doc.join(" "));
            add_wrapped(&mut out, "    ", "    ", &meaning);
        }
        out.push_str("\nIoctls\n======\n");
        for ioctl in self.constants(true) {
            let name = c_name(&ioctl.name);
            writeln!(out, "\n{name}\n{}\n", "-".repeat(name.len())).expect("strings grow");
            add_text(&mut out, &ioctl.doc);
        }
        out.push_str("\nStructures\n==========\n\n.. kernel-doc:: include/uapi/linux/libcopy.h\n");
        out
    }
}

fn constant(item: &Item) -> Option<&Constant> {
    match item {
        Item::Constant(constant) => Some(constant),
        _ => None,
    }
}

/// What C calls an item: `RIGHT_READ` is `LIBCOPY_RIGHT_READ`, `RegionInfo` is
/// `libcopy_region_info`.
fn c_name(name: &str) -> String {
    if !name.chars().any(|c| c.is_ascii_lowercase()) {
        return format!("LIBCOPY_{name}");
    }
    let mut out = "libcopy".to_owned();
    for c in name.chars() {
        if c.is_ascii_uppercase() {
            out.push('_');
        }
        out.push(c.to_ascii_lowercase());
    }
    out
}

/// What C calls the target of a link: an item, or a field of a structure.
fn c_link(link: &str) -> String {
    match link.split_once("::") {
        Some((structure, field)) => format!("{}.{field}", c_name(structure)),
        None if link.chars().any(|c| c.is_ascii_lowercase()) => format!("struct {}", c_name(link)),
        None => c_name(link),
    }
}

/// A comment with its links and its code put as `code` says.
fn with_code(text: &str, code: impl Fn(&str) -> String) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, behind)) = rest.split_once('`') {
        let Some((inner, after)) = behind.split_once('`') else {
            break;
        };
        match (before.strip_suffix('['), after.strip_prefix(']')) {
            (Some(before), Some(after)) => {
                out.push_str(before);
                out.push_str(&code(&c_link(inner)));
                rest = after;
            }
            _ => {
                out.push_str(before);
                out.push_str(&code(inner));
                rest = after;
            }
        }
    }
    out.push_str(rest);
    out
}

/// A comment of Rust as one of C.
fn in_c(text: &str) -> String {
    // No comment ends in its middle.
    with_code(text, str::to_owned)
        .replace("**", "")
        .replace("*/", "* /")
}

/// A comment of Rust as reStructuredText.
fn in_rst(text: &str) -> String {
    with_code(text, |code| format!("``{code}``"))
}

/// A value as C has it.
fn c_value(constant: &Constant) -> String {
    let value = constant.value.replace('_', "");
    if constant.kind == "&str" {
        return constant.value.clone();
    }
    let suffix = if constant.kind == "u64" { "ULL" } else { "U" };
    if let Some(rest) = value.strip_prefix("(1 <<") {
        return format!("((1{suffix} <<{rest})");
    }
    match value.strip_prefix("1 <<") {
        Some(rest) => format!("(1{suffix} <<{rest})"),
        None if constant.kind == "u64" => format!("{value}{suffix}"),
        None => value,
    }
}

/// The number of an ioctl, of two digits.
fn number_of(ioctl: &Constant) -> String {
    let digits = ioctl.value.len().saturating_sub(2);
    ioctl.value[digits..].to_ascii_lowercase()
}

/// The structure that an ioctl takes, by the sentence of its comment that says so.
fn argument_of(ioctl: &Constant) -> Option<String> {
    let text = ioctl.doc.join(" ");
    let sentences = ["Takes [`", "Takes and returns [`"];
    let (_, rest) = sentences.iter().find_map(|words| text.split_once(words))?;
    let (link, _) = rest.split_once("`]")?;
    Some(c_link(link))
}

/// A field as C declares it.
fn c_field(field: &Field) -> String {
    let (kind, count) = match field.kind.trim_matches(['[', ']']).split_once("; ") {
        Some((kind, count)) => (kind, format!("[{count}]")),
        None => (field.kind.as_str(), String::new()),
    };
    let kind = match kind.split_at(1) {
        ("u", bits) => format!("__u{bits}"),
        ("i", bits) => format!("__s{bits}"),
        _ => kind.to_owned(),
    };
    format!("{kind} {}{count}", field.name)
}

fn add_struct(out: &mut String, structure: &Struct) {
    let name = c_name(&structure.name);
    let doc = in_c(&structure.doc.join(" "));
    out.push_str("\n/**\n");
    add_wrapped(out, " * ", " *   ", &format!("struct {name} - {doc}"));
    for field in &structure.fields {
        let doc = in_c(&field.doc.join(" "));
        add_wrapped(out, " * ", " *   ", &format!("@{}: {doc}", field.name));
    }
    writeln!(out, " */\nstruct {name} {{").expect("strings grow");
    for field in &structure.fields {
        writeln!(out, "\t{};", c_field(field)).expect("strings grow");
    }
    out.push_str("};\n");
}

/// Adds a comment of C behind an empty line.
fn add_comment(out: &mut String, text: &str) {
    if text.len() + "/*  */".len() <= WIDTH {
        writeln!(out, "\n/* {text} */").expect("strings grow");
        return;
    }
    out.push_str("\n/*\n");
    add_wrapped(out, " * ", " * ", text);
    out.push_str(" */\n");
}

/// Adds words in lines of at most [`WIDTH`] columns: the first begins with `first`, the others with
/// `next`.
fn add_wrapped(out: &mut String, first: &str, next: &str, text: &str) {
    let mut line = first.to_owned();
    let mut empty = true;
    for word in text.split_whitespace() {
        let columns = line.replace('\t', &" ".repeat(TAB)).chars().count();
        if !empty && columns + 1 + word.chars().count() > WIDTH {
            writeln!(out, "{}", line.trim_end()).expect("strings grow");
            next.clone_into(&mut line);
            empty = true;
        }
        if !empty {
            line.push(' ');
        }
        line.push_str(word);
        empty = false;
    }
    writeln!(out, "{}", line.trim_end()).expect("strings grow");
}

/// Adds Markdown (paragraphs, lists, headings) as reStructuredText.
fn add_text(out: &mut String, lines: &[String]) {
    let mut block: Option<(usize, bool, String)> = None;
    let flush = |out: &mut String, block: &mut Option<(usize, bool, String)>| {
        let Some((indent, is_item, text)) = block.take() else {
            return;
        };
        // An empty line before each item, also of a list within a list.
        if !out.is_empty() && !out.ends_with("\n\n") {
            out.push('\n');
        }
        let margin = " ".repeat(indent);
        let (first, next) = if is_item {
            (format!("{margin}- "), format!("{margin}  "))
        } else {
            (margin.clone(), margin)
        };
        add_wrapped(out, &first, &next, &in_rst(&text));
    };
    for line in lines {
        let text = line.trim_start();
        let indent = line.len() - text.len();
        if text.is_empty() {
            flush(out, &mut block);
        } else if let Some(heading) = text.strip_prefix("# ") {
            flush(out, &mut block);
            writeln!(out, "\n{heading}\n{}", "=".repeat(heading.len())).expect("strings grow");
        } else if let Some(item) = text.strip_prefix("- ") {
            flush(out, &mut block);
            block = Some((indent, true, item.to_owned()));
        } else if let Some((_, _, before)) = &mut block {
            before.push(' ');
            before.push_str(text);
        } else {
            block = Some((indent, false, text.to_owned()));
        }
    }
    flush(out, &mut block);
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "\
// SPDX-License-Identifier: MIT

//! What `both` agree on.
//!
//! # Rules
//!
//! - One of `f(MOST, x)`, see [`ASK`]:
//!   - `EINVAL`: a **flag** that is
//!     unknown.

/// Flag of [`Question::flags`].
pub const LOUD: u64 = 1 << 3;
/// Path.
pub const PATH: &str = \"/dev/my_x\";
/// Most.
pub const MOST: u32 = (1 << 23) - 1;
/// Bytes.
pub const BYTES: u64 = 0x7fff_f000;

/// Takes an answer with [`LOUD`].
///
/// Takes [`Question`].
pub const ASK: u32 = 0xC018_CC0A;

/// Argument of [`ASK`].
#[repr(C)]
pub struct Question {
    /// In: [`LOUD`] or zero.
    pub flags: u64,
    /// Zero.
    pub reserved: [i32; 2],
}
";

    #[test]
    fn a_header_for_c() {
        let header = Abi::of(SOURCE).expect("a source").header();
        let lines: Vec<&str> = header.lines().collect();
        for line in [
            "/* SPDX-License-Identifier: MIT */",
            "/* Flag of libcopy_question.flags. */",
            "#define LIBCOPY_LOUD (1ULL << 3)",
            "#define LIBCOPY_PATH \"/dev/my_x\"",
            "#define LIBCOPY_MOST ((1U << 23) - 1)",
            "#define LIBCOPY_BYTES 0x7ffff000ULL",
            " * struct libcopy_question - Argument of LIBCOPY_ASK.",
            " * @flags: In: LIBCOPY_LOUD or zero.",
            "\t__u64 flags;",
            "\t__s32 reserved[2];",
            "#define LIBCOPY_ASK _IOWR(LIBCOPY_IOC_TYPE, 0x0a, struct libcopy_question)",
        ] {
            assert!(lines.contains(&line), "{line} is missing in\n{header}");
        }
    }

    #[test]
    fn a_document_for_the_kernel() {
        let document = Abi::of(SOURCE).expect("a source").document();
        let expected = "
Rules
=====

- One of ``f(LIBCOPY_MOST, x)``, see ``LIBCOPY_ASK``:

  - ``EINVAL``: a **flag** that is unknown.

Constants
=========

``LIBCOPY_LOUD`` : ``(1ULL << 3)``
    Flag of ``libcopy_question.flags``.
";
        assert!(document.starts_with(expected), "{document}");
        assert!(document.contains("\nLIBCOPY_ASK\n-----------\n\nTakes an answer with"));
    }

    #[test]
    fn no_line_is_too_long() {
        let words = "word ".repeat(60);
        let mut out = String::new();
        add_wrapped(&mut out, " * ", " *   ", &words);
        assert!(out.lines().all(|line| line.len() <= WIDTH), "{out}");
        assert_eq!(out.matches("word").count(), 60);
    }

    #[test]
    fn what_is_no_abi_is_refused() {
        assert!(Abi::of("fn main() {}\n").is_err());
        assert!(Abi::of("// SPDX-License-Identifier: MIT\nfn main() {}\n").is_err());
        let silent = SOURCE.replace("/// Takes [`Question`].\n", "");
        assert!(Abi::of(&silent).is_err());
    }
}
