// SPDX-License-Identifier: MIT OR Apache-2.0

//! What of the module has run, where it can tell (`scripts/vm run --coverage`,
//! `kmod/base/coverage.c`).

use std::collections::BTreeMap;
use std::fs;

const PARAMETER: &str = "/sys/module/libcopy/parameters/coverage";

/// Basic blocks of a function: all, and those that have run.
#[derive(Clone, Copy, Default)]
struct Blocks {
    all: usize,
    run: usize,
}

/// Reads the list of blocks; `None` where the module has none. What is read from debugfs or `/proc`
/// is trusted.
fn blocks() -> Option<Vec<(u64, bool)>> {
    fs::write(PARAMETER, "0").ok()?;
    let mut blocks = Vec::new();
    loop {
        let text = fs::read_to_string(PARAMETER).ok()?;
        if text.trim().is_empty() {
            return Some(blocks);
        }
        for line in text.lines() {
            let (address, run) = line.split_once(' ')?;
            blocks.push((u64::from_str_radix(address, 16).ok()?, run == "1"));
        }
    }
}

/// The functions of the module by their addresses.
fn functions() -> BTreeMap<u64, String> {
    let text = fs::read_to_string("/proc/kallsyms").unwrap_or_default();
    let ours = text.lines().filter(|line| line.ends_with("[libcopy]"));
    ours.filter_map(|line| {
        let mut words = line.split_whitespace();
        let address = u64::from_str_radix(words.next()?, 16).ok()?;
        let is_code = words.next()?.eq_ignore_ascii_case("t");
        is_code.then_some((address, readable(words.next()?)))
    })
    .collect()
}

/// The names in a mangled name of Rust's, in their order (RFC 2603: each is its length, then
/// itself; what tells crates apart begins with `s`, what is repeated with `B`, and both end with
/// `_`).
fn readable(symbol: &str) -> String {
    let mut names = Vec::new();
    let mut rest = symbol.strip_prefix("_R").unwrap_or("");
    while let Some(tag) = rest.chars().next() {
        if tag.is_ascii_digit() {
            let behind = rest.trim_start_matches(|c: char| c.is_ascii_digit());
            let len = rest[..rest.len() - behind.len()].parse().unwrap_or(0);
            let behind = behind.strip_prefix('_').unwrap_or(behind);
            let (name, behind) = behind.split_at_checked(len).unwrap_or((behind, ""));
            names.push(name);
            rest = behind;
        } else if matches!(tag, 's' | 'B') {
            rest = rest.split_once('_').map_or("", |(_, behind)| behind);
        } else {
            rest = &rest[tag.len_utf8()..];
        }
    }
    names.retain(|name| !matches!(*name, "" | "libcopy_main"));
    if names.is_empty() {
        return symbol.to_owned();
    }
    names.join("::")
}

/// Prints how much of the module has run since it was loaded, and of which functions nothing has.
pub fn report() {
    let Some(blocks) = blocks() else {
        return;
    };
    let functions = functions();
    let mut found: BTreeMap<&str, Blocks> = BTreeMap::new();
    let mut all = Blocks::default();
    for (address, run) in blocks {
        let name = functions.range(..=address).next_back();
        let function = found.entry(name.map_or("?", |(_, name)| name)).or_default();
        for count in [function, &mut all] {
            count.all += 1;
            count.run += usize::from(run);
        }
    }
    println!(
        "coverage: {} of {} basic blocks of the module's Rust have run, of {} functions",
        all.run,
        all.all,
        found.len()
    );
    println!("without any:");
    for (name, blocks) in found.iter().filter(|(_, blocks)| blocks.run == 0) {
        println!("    {name} ({} blocks)", blocks.all);
    }
    println!("in part:");
    for (name, blocks) in found
        .iter()
        .filter(|(_, blocks)| blocks.run > 0 && blocks.run < blocks.all)
    {
        println!("    {name} ({} of {} blocks)", blocks.run, blocks.all);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mangled_names_are_shortened() {
        let symbol = "_RNvMs_NtCs1AbCdEfGhIj_12libcopy_main6regionNtB4_6Region5close";
        assert_eq!(readable(symbol), "region::Region::close");
        assert_eq!(readable("init_module"), "init_module");
    }
}
