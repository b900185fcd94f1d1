// SPDX-License-Identifier: MIT OR Apache-2.0

//! Reads `kmod/uapi.rs`: what documents and headers of the ABI are made from. Used by `abi-doc`
//! and, for the kernel's tree, by xtask.

/// What stands in the source, in its order.
pub enum Item {
    /// A line of the text at its head.
    Text(String),
    /// A constant.
    Constant(Constant),
    /// A structure.
    Struct(Struct),
}

/// A constant.
pub struct Constant {
    /// Lines of its comment.
    pub doc: Vec<String>,
    /// Its name.
    pub name: String,
    /// Its type, for example `u32`.
    pub kind: String,
    /// Its value as it is written.
    pub value: String,
}

/// A structure.
pub struct Struct {
    /// Lines of its comment.
    pub doc: Vec<String>,
    /// Its name.
    pub name: String,
    /// Its fields, in their order.
    pub fields: Vec<Field>,
}

/// A field of a structure.
pub struct Field {
    /// Lines of its comment.
    pub doc: Vec<String>,
    /// Its name.
    pub name: String,
    /// Its type, for example `[u64; 2]`.
    pub kind: String,
}

impl Constant {
    /// Whether it is an ioctl.
    pub fn is_ioctl(&self) -> bool {
        self.value.starts_with("0xC") && self.value.contains("_CC")
    }

    /// Whether it is a flag.
    pub fn is_flag(&self) -> bool {
        self.value.starts_with("1 << ") && !self.name.starts_with("MAX_")
    }
}

/// The items of a source in the style of `uapi.rs`.
pub fn items(source: &str) -> Vec<Item> {
    let mut items = Vec::new();
    let mut doc: Vec<String> = Vec::new();
    let mut open: Option<Struct> = None;
    for line in source.lines() {
        let text = line.trim();
        if let Some(rest) = text.strip_prefix("//!") {
            let rest = rest.strip_prefix(' ').unwrap_or(rest);
            items.push(Item::Text(rest.to_owned()));
        } else if let Some(rest) = text.strip_prefix("///") {
            doc.push(rest.strip_prefix(' ').unwrap_or(rest).to_owned());
        } else if text.starts_with("pub const fn ") {
            doc.clear();
        } else if let Some(rest) = text.strip_prefix("pub const ") {
            let doc = std::mem::take(&mut doc);
            items.push(Item::Constant(constant(rest, doc)));
        } else if let Some(rest) = text.strip_prefix("pub struct ") {
            open = Some(Struct {
                doc: std::mem::take(&mut doc),
                name: rest.trim_end_matches(" {").to_owned(),
                fields: Vec::new(),
            });
        } else if let (Some(open), Some(field)) = (open.as_mut(), text.strip_prefix("pub ")) {
            let field = field.trim_end_matches(',');
            let (name, kind) = field.split_once(": ").unwrap_or((field, ""));
            open.fields.push(Field {
                doc: std::mem::take(&mut doc),
                name: name.to_owned(),
                kind: kind.to_owned(),
            });
        } else if text == "}" {
            items.extend(open.take().map(Item::Struct));
        }
    }
    items
}

/// Splits `NAME: type = value;`.
fn constant(text: &str, doc: Vec<String>) -> Constant {
    let (name, rest) = text.split_once(':').unwrap_or((text, ""));
    let (kind, value) = rest.split_once('=').unwrap_or((rest, ""));
    Constant {
        doc,
        name: name.to_owned(),
        kind: kind.trim().to_owned(),
        value: value.trim().trim_end_matches(';').to_owned(),
    }
}
