// SPDX-License-Identifier: MIT OR Apache-2.0

//! The handlers' binary, made by `scripts/handlers`.

use crate::iss::Region;
use std::collections::BTreeMap;
use std::sync::OnceLock;

/// The header and the code, compressed with zlib.
static COMPRESSED: &[u8] = include_bytes!("../../firmware/handlers.z");

/// The handlers for RV32IMC.
#[derive(Clone, Debug)]
pub struct Program {
    /// SHA-256 of the sources, in hexadecimal digits.
    pub sources: String,
    /// The code, where it has to lie.
    pub code: Region,
    /// Addresses of handlers by name.
    pub handlers: BTreeMap<String, u32>,
    /// Addresses of functions that they call.
    pub functions: BTreeMap<String, u32>,
}

/// The handlers' binary.
///
/// # Panics
///
/// If the file was not made by `scripts/handlers`; a test reads it.
pub fn program() -> &'static Program {
    static PROGRAM: OnceLock<Program> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        parse().expect("the file was made by scripts/handlers, and a test reads it")
    })
}

fn parse() -> Option<Program> {
    let bytes = miniz_oxide::inflate::decompress_to_vec_zlib(COMPRESSED).ok()?;
    let end = bytes.windows(2).position(|pair| pair == b"\n\n")?;
    let header = std::str::from_utf8(&bytes[..end]).ok()?;
    let address = |text: &str| u32::from_str_radix(text.strip_prefix("0x")?, 16).ok();
    let base = header.lines().find_map(|line| line.strip_prefix("base "))?;
    let mut program = Program {
        sources: String::new(),
        code: Region::code(address(base)?, bytes[end + 2..].to_vec()),
        handlers: BTreeMap::new(),
        functions: BTreeMap::new(),
    };
    for line in header.lines() {
        let (word, rest) = line.split_once(' ')?;
        match word {
            "sources" => program.sources = rest.to_owned(),
            "base" | "compiler" => {}
            "handler" | "function" => {
                let (name, at) = rest.split_once(' ')?;
                let named = match word {
                    "handler" => &mut program.handlers,
                    _ => &mut program.functions,
                };
                named.insert(name.to_owned(), address(at)?);
            }
            _ => return None,
        }
    }
    Some(program)
}
