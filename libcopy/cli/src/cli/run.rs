// SPDX-License-Identifier: MIT OR Apache-2.0

//! `libcopy run`: a program as the ranks of a team.

use anyhow::{Context, Result, ensure};
use clap::Args;
use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode, ExitStatus};

/// Arguments of `libcopy run`.
#[derive(Args, Debug)]
#[command(
    after_help = "Each rank finds its team in LIBCOPY_KEY, LIBCOPY_RANK and LIBCOPY_SIZE \
    (`Team::from_env`, `libcopy_team_from_env`). The exit status is that of the first rank that \
    failed, or 128 plus the signal that killed it."
)]
pub struct RunArgs {
    /// Number of ranks
    #[arg(short = 'n', long, value_name = "N")]
    ranks: usize,

    /// Program and its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    command: Vec<OsString>,
}

/// Runs `libcopy run`.
pub fn run(args: &RunArgs) -> Result<ExitCode> {
    ensure!(
        args.ranks >= 1,
        "-n {}: a team has at least one rank",
        args.ranks
    );
    let [program, arguments @ ..] = &args.command[..] else {
        anyhow::bail!("no program given");
    };
    let statuses = libcopy::team::launch(args.ranks, |_| {
        let mut command = Command::new(program);
        command.args(arguments);
        command
    })
    .with_context(|| format!("cannot run {}", program.to_string_lossy()))?;
    for (rank, status) in statuses.iter().enumerate() {
        if let Some(signal) = status.signal() {
            eprintln!("libcopy run: rank {rank} was killed by signal {signal}");
        }
    }
    Ok(ExitCode::from(exit_code(&statuses)))
}

fn exit_code(statuses: &[ExitStatus]) -> u8 {
    let code = |status: &ExitStatus| {
        status
            .code()
            .unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
    };
    // Ranks that we killed because another one failed are not the reason.
    let reason = statuses
        .iter()
        .find(|s| s.code().is_some_and(|c| c != 0))
        .or_else(|| statuses.iter().find(|s| !s.success()));
    reason.map_or(0, |s| code(s) as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rank_that_failed_says_how_it_ended() {
        let ended = |code: i32| ExitStatus::from_raw(code << 8);
        let killed = ExitStatus::from_raw;
        assert_eq!(exit_code(&[ended(0), ended(0)]), 0);
        assert_eq!(exit_code(&[killed(9), ended(3)]), 3);
        assert_eq!(exit_code(&[ended(0), killed(9)]), 137);
    }
}
