// SPDX-License-Identifier: MIT OR Apache-2.0

//! The command-line tool `libcopy`: looks at the machine, starts teams, tunes and measures.

use std::process::ExitCode;

fn main() -> ExitCode {
    libcopy_cli::main()
}
