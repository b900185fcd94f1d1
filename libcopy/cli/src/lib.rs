// SPDX-License-Identifier: MIT OR Apache-2.0

//! The command-line tool `libcopy`: looks at the machine, starts teams, tunes and measures.
//!
//! A library only so that the manual pages and completions can be made from the command line's
//! description ([`command`]); the program is [`main`].

mod cli;

pub use cli::{command, main};
