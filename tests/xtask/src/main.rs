// SPDX-License-Identifier: MIT OR Apache-2.0

//! What the scripts leave to a program: `scripts/test` is the command `test`, `scripts/bench` the
//! command `bench`; the other commands read what measured programs print and what `LIBCOPY_STATS`
//! wrote. scripts/lib/xtask.sh builds and starts it.

// What reads the ABI's source for its documents, without the crate of the tests and what that
// depends on.
#[path = "../../src/abi.rs"]
#[allow(dead_code)]
mod abi;
mod apps;
mod bench;
mod beside;
mod cargo;
mod comments;
mod demo;
// The same statistics as those of the benches, without their crate, whose build takes minutes.
#[path = "../../../libcopy/measure/src/interval.rs"]
mod interval;
mod kernel;
mod licences;
mod limits;
mod options;
mod part;
mod profiles;
mod shell;
mod statistics;
mod suite;
mod summary;
mod test;

use std::process::ExitCode;

const USAGE: &str = "\
Usage: xtask COMMAND [ARGUMENT]...    (started by the scripts)

  test [OPTION]...                              scripts/test
  bench ROOT [OPTION]...                        scripts/bench; ROOT is the checkout
  apps begin RECORDS                            scripts/apps: the head of its table
  apps time FILE COMMAND...                     runs COMMAND; adds a line to FILE: seconds, CPU seconds, KiB
  apps row RECORDS DIRECTORY APP MPI RANKS PAIRS MOVING   the runs in DIRECTORY, as a line
  apps end RECORDS                              the geometric mean; fails if results differ
  apps limits FILE                              what a cache line and copies take between two processors, as CSV
  apps profiles DIRECTORY OUT                   what the profiles (CSV) in DIRECTORY are together, as CSV in OUT
  build-mpi COMPILER REAL LOG STATISTICS        scripts/build-mpi: what a run with an MPI says
  mpi4py MPI RANKS DIRECTORY KIND...            scripts/mpi4py-suite: the plain run with an MPI beside others
  licences PLATFORM PACKAGE...                  scripts/package: those of the crates that are linked
  demo NAME=FILE...                             scripts/demo: tables of `libcopy bench coll`, as a few lines
  comments FILE...                              scripts/lint: where comments are too wide
  kernel header UAPI                            scripts/kernel-patches: the ABI of kmod/uapi.rs as a header for C
  kernel document UAPI                          the same as sections of a document of the kernel";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match words[..] {
        ["test", ref options @ ..] => return test::run(options),
        ["bench", root, ref options @ ..] => return bench::run(root.as_ref(), options),
        ["apps", "begin", records] => apps::begin(records.as_ref()),
        ["apps", "time", file, ref command @ ..] => apps::time(file.as_ref(), command),
        [
            "apps",
            "row",
            records,
            directory,
            app,
            mpi,
            ranks,
            pairs,
            moving,
        ] => {
            let case = [app, mpi, ranks, pairs, moving];
            apps::row(records.as_ref(), directory.as_ref(), case)
        }
        ["apps", "end", records] => apps::end(records.as_ref()),
        ["apps", "limits", file] => limits::measure(file.as_ref()),
        ["apps", "profiles", directory, out] => profiles::write(directory.as_ref(), out.as_ref()),
        ["build-mpi", compiler, real, log, statistics] => {
            suite::build_mpi(compiler, real, log.as_ref(), statistics.as_ref())
        }
        ["mpi4py", mpi, ranks, directory, ref kinds @ ..] => {
            suite::mpi4py(mpi, ranks, directory.as_ref(), kinds)
        }
        ["licences", platform, ref packages @ ..] => licences::print(platform, packages),
        ["demo", ref files @ ..] => demo::run(files),
        ["comments", ref files @ ..] => comments::check(files),
        ["kernel", "header", source] => kernel::header(source.as_ref()),
        ["kernel", "document", source] => kernel::document(source.as_ref()),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("xtask {}: {why}", words.join(" "));
            ExitCode::FAILURE
        }
    }
}

/// What a command says: whether all is well, or why it cannot say.
type Verdict = Result<bool, String>;

/// The text of a file; bytes that are no UTF-8 are replaced.
fn read(path: &std::path::Path) -> Result<String, String> {
    let bytes = std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
