// SPDX-License-Identifier: MIT OR Apache-2.0

//! Which functions the files of this process refer to, by their relocations (System V ABI, chapter
//! 5, "Dynamic Section").

use std::ffi::CStr;
use std::ops::ControlFlow;

use crate::library::loaded::{self, DT_SYMTAB};

/// `Elf64_Rela`
#[repr(C)]
struct Relocation {
    offset: u64,
    info: u64,
    addend: i64,
}

const DT_PLTRELSZ: i64 = 2;
const DT_STRTAB: i64 = 5;
const DT_RELA: i64 = 7;
const DT_RELASZ: i64 = 8;
const DT_JMPREL: i64 = 23;

/// Names for [`first_used`].
macro_rules! names {
    ($($name:ident)*) => {
        [$(stringify!($name)),*]
    };
}
pub(crate) use names;

/// The first of these functions that the program or one of its libraries refers to; MPI libraries,
/// whose own calls are their own affair, are not asked.
pub fn first_used(names: &[&'static str]) -> Option<&'static str> {
    let mut found = None;
    loaded::each_file(|info, _| {
        // SAFETY: the loader describes a file that is loaded as long as this runs.
        unsafe {
            let file = loaded::base_name(loaded::name_of(info).to_bytes());
            if !file.starts_with(b"libmpi") && !file.starts_with(b"libcopy_mpi") {
                found = first_in(info, names);
            }
        }
        match found {
            Some(_) => ControlFlow::Break(()),
            None => ControlFlow::Continue(()),
        }
    });
    found
}

/// Which of the names a file refers to.
///
/// # Safety
///
/// The file is loaded, and this is its description.
unsafe fn first_in(info: &libc::dl_phdr_info, names: &[&'static str]) -> Option<&'static str> {
    // SAFETY: the loader's own tables, of the lengths that they name.
    unsafe {
        // Strings, symbols, and two tables of relocations with their lengths.
        let (mut strings, mut symbols, mut tables) = (0, 0, [(0, 0); 2]);
        loaded::dynamic(info, |tag, value, address| match tag {
            DT_STRTAB => strings = address,
            DT_SYMTAB => symbols = address,
            DT_RELA => tables[0].0 = address,
            DT_RELASZ => tables[0].1 = value,
            DT_JMPREL => tables[1].0 = address,
            DT_PLTRELSZ => tables[1].1 = value,
            _ => {}
        });
        if strings == 0 || symbols == 0 {
            return None;
        }
        for (table, bytes) in tables {
            if table == 0 {
                continue;
            }
            let count = bytes as usize / size_of::<Relocation>();
            for relocation in std::slice::from_raw_parts(table as *const Relocation, count) {
                let symbol = (relocation.info >> 32) as usize;
                if symbol == 0 {
                    continue;
                }
                let symbol = (symbols as *const libc::Elf64_Sym).add(symbol);
                let name = (strings + u64::from((*symbol).st_name)) as *const _;
                let name = CStr::from_ptr(name).to_bytes();
                let found = names.iter().find(|known| known.as_bytes() == name);
                if let Some(found) = found {
                    return Some(found);
                }
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_this_program_calls_is_found() {
        assert_eq!(
            first_used(&["no_such_function", "dl_iterate_phdr"]),
            Some("dl_iterate_phdr")
        );
        assert_eq!(first_used(&["no_such_function"]), None);
    }
}
