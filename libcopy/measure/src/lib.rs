// SPDX-License-Identifier: MIT OR Apache-2.0

//! Parts of benchmarks, for those of the tool `libcopy` and for `libcopy-lab`: what is measured
//! (layouts, sizes, buffers with known bytes), by whom (this process, processes that do what a
//! socket says), and what becomes of the timings (medians and their intervals, tables, CSV files,
//! figures).

pub mod buffer;
pub mod gpu_owner;
pub mod heat_map;
pub mod interval;
pub mod layouts;
pub mod machine;
pub mod output;
pub mod pattern;
pub mod peer_process;
pub mod plot;
pub mod progress;
pub mod rank;
pub mod ratio_plot;
pub mod report;
pub mod sample;
pub mod shared;
pub mod sizes;
pub mod threads;
pub mod typed;

use std::io;
use std::process::ExitCode;

/// How `program` ends with this result: an error goes to standard error. If nobody wants the rest
/// of the output (`libcopy info | head`), that is none.
pub fn ended(program: &str, result: anyhow::Result<ExitCode>) -> ExitCode {
    result.unwrap_or_else(|error| {
        let cause = error.downcast_ref::<io::Error>().map(io::Error::kind);
        if cause == Some(io::ErrorKind::BrokenPipe) {
            return ExitCode::SUCCESS;
        }
        eprintln!("{program}: {error:#}");
        ExitCode::FAILURE
    })
}
