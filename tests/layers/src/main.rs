// SPDX-License-Identifier: MIT OR Apache-2.0

//! Checks that the files of each crate, and the crates, use each other only downwards, as [`table`]
//! says.
//!
//! `layers` prints one line per crate, `NAME: N files, C circles, U arrows up`, below it each
//! circle and each arrow up with its place, and exits with 0 only when there are none.
//! `scripts/lint` runs it.

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
use crate::table::{CRATES, TABLE};
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
    let mut top = PathBuf::from(".");
    for argument in env::args().skip(1) {
        match argument.as_str() {
            option if option.starts_with('-') => bail!("unknown option '{option}'"),
            directory => top = PathBuf::from(directory),
        }
    }
    let mut all_clean = true;
    for findings in findings(&top)? {
        all_clean &= findings.is_clean();
        println!("{findings}");
        for line in &findings.details {
            println!("  {line}");
        }
    }
    Ok(all_clean)
}

fn findings(top: &Path) -> Result<Vec<Findings>> {
    let mut all = vec![check_crates(top, CRATES)?];
    for layers in TABLE {
        all.push(check_files(top, layers)?);
    }
    Ok(all)
}
