// SPDX-License-Identifier: MIT OR Apache-2.0

//! Checks that the files of each crate, and the crates, use each other only downwards, as [`table`] says.
//!
//! `layers` prints one line per crate, `NAME: N files, C circles, U arrows up`, below it each circle and each arrow
//! up with its place, and exits with 0 only when there are none. `layers --ratchet` exits with 0 when no crate has
//! more than the table allows it, and prints those that do. `scripts/lint` runs it.

mod check;
mod resolve;
mod table;
#[cfg(test)]
mod tests;
mod tree;
mod workspace;

use std::env;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, bail};

use crate::check::{Findings, check_files};
use crate::table::{CRATES, Ratchet, TABLE};
use crate::workspace::check_crates;

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("layers: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Result<bool> {
    let mut is_ratchet = false;
    let mut top = PathBuf::from(".");
    for argument in env::args().skip(1) {
        match argument.as_str() {
            "--ratchet" => is_ratchet = true,
            option if option.starts_with('-') => bail!("unknown option '{option}'"),
            directory => top = PathBuf::from(directory),
        }
    }
    let mut all_fit = true;
    for (findings, ratchet) in findings(&top)? {
        let fits = if is_ratchet {
            is_allowed(&findings, ratchet)
        } else {
            findings.is_clean()
        };
        all_fit &= fits;
        if !is_ratchet || !fits {
            println!("{findings}");
            for line in &findings.details {
                println!("  {line}");
            }
        }
        if is_ratchet && !fits && !findings.is_clean() {
            println!(
                "  the table allows {} files in circles and {} arrows up, there are {} and {}",
                ratchet.in_circles, ratchet.up, findings.in_circles, findings.up
            );
        }
    }
    Ok(all_fit)
}

fn findings(top: &Path) -> Result<Vec<(Findings, Ratchet)>> {
    let mut all = vec![(check_crates(top, CRATES)?, Ratchet::default())];
    for layers in TABLE {
        all.push((check_files(top, layers)?, layers.ratchet));
    }
    Ok(all)
}

/// Whether a crate has no more than its ratchet; one that has less is to lower the number.
fn is_allowed(findings: &Findings, ratchet: Ratchet) -> bool {
    findings.unplaced + findings.stale == 0
        && findings.in_circles <= ratchet.in_circles
        && findings.up <= ratchet.up
}
