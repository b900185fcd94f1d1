// SPDX-License-Identifier: MIT OR Apache-2.0

//! `manual DIRECTORY` writes the manual pages and the completions of shells there, as
//! `scripts/install` installs them: pages of the tool's commands from the descriptions that
//! `--help` prints, too; the others from `docs/man`, with the tables of environment variables of
//! `libcopy::config`.

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap_complete::Shell;
use libcopy::config::{SETTINGS, Setting};

/// The pages of `docs/man`: file, section, text.
const PAGES: [(&str, &str, &str); 3] = [
    (
        "libcopy.7",
        "man7",
        include_str!("../../../docs/man/libcopy.7.in"),
    ),
    (
        "libcopy_mpi.7",
        "man7",
        include_str!("../../../docs/man/libcopy_mpi.7.in"),
    ),
    (
        "libcopy.4",
        "man4",
        include_str!("../../../docs/man/libcopy.4.in"),
    ),
];

/// Shells, and the files that they load completions from.
const COMPLETIONS: [(Shell, &str); 3] = [
    (Shell::Bash, "bash-completion/completions/libcopy"),
    (Shell::Zsh, "zsh/site-functions/_libcopy"),
    (Shell::Fish, "fish/vendor_completions.d/libcopy.fish"),
];

const USAGE: &str = "Usage: manual DIRECTORY    (started by scripts/install)";

fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    let [directory] = &words[..] else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    if directory == "--help" || directory == "-h" {
        println!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    match write_all(Path::new(directory)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("manual: {directory}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Writes everything, by the places below `share` where an installation has it.
fn write_all(directory: &Path) -> io::Result<()> {
    let tool = directory.join("man/man1");
    fs::create_dir_all(&tool)?;
    clap_mangen::generate_to(libcopy_cli::command(), &tool)?;
    for (name, section, text) in PAGES {
        let path = created(directory.join("man").join(section).join(name))?;
        fs::write(path, filled_in(text))?;
    }
    for (shell, name) in COMPLETIONS {
        let mut file = fs::File::create(created(directory.join(name))?)?;
        clap_complete::generate(shell, &mut libcopy_cli::command(), "libcopy", &mut file);
    }
    Ok(())
}

/// The path, whose directory there is now.
fn created(path: PathBuf) -> io::Result<PathBuf> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    Ok(path)
}

/// A page with the version and the variables in their places.
fn filled_in(text: &str) -> String {
    let (mpi, others): (Vec<&Setting>, Vec<&Setting>) = SETTINGS
        .iter()
        .partition(|setting| setting.section == "libcopy_mpi.so");
    text.replace("@VERSION@", env!("CARGO_PKG_VERSION"))
        .replace("@VARIABLES@\n", &variables(&others))
        .replace("@MPI_VARIABLES@\n", &variables(&mpi))
}

/// Paragraphs of a page about variables.
fn variables(settings: &[&Setting]) -> String {
    let paragraph = |setting: &&Setting| {
        let default = match setting.default {
            "" => String::new(),
            default => format!(" Default: {}.", escaped(default)),
        };
        let help = escaped(setting.help);
        format!(".TP\n.B {}\n{help}{default}\n", setting.name)
    };
    settings.iter().map(paragraph).collect()
}

/// A line of text as roff reads it.
fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    match text.chars().next() {
        Some('.' | '\'') => format!("\\&{text}"),
        _ => text,
    }
}
