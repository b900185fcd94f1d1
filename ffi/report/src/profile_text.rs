// SPDX-License-Identifier: MIT OR Apache-2.0

//! A profile for people.

use crate::profile::{Profile, ProfileRow};
use crate::verdict::{bytes, seconds};
use std::fmt;

/// Rows that are printed; all of them are in the CSV.
const SHOWN: usize = 20;

impl ProfileRow {
    /// The sizes of the class.
    pub fn sizes(&self) -> String {
        bytes(self.least)
    }

    fn parts(&self) -> String {
        let percent = |part: u64| 100.0 * part as f64 / self.time_ns.max(1) as f64;
        if self.split_word() == "none" {
            return format!("{:>8} {:>8}", "?", "?");
        }
        let (waiting, moving) = (percent(self.waiting_ns), percent(self.moving_ns));
        format!("{waiting:>6.0} % {moving:>6.0} %")
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.libraries.iter().map(String::as_str).collect();
        let each = |ns: u64| seconds(ns as f64 / self.ranks.max(1) as f64 / 1e9);
        writeln!(
            f,
            "libcopy: profile of {} ranks, {}, {}",
            self.ranks,
            names.join(", "),
            if self.plain { "plain" } else { "with libcopy" }
        )?;
        writeln!(
            f,
            "each rank, on average: {} from MPI_Init to MPI_Finalize, of which {} ({:.1} %) in MPI, \
             windows and files not counted",
            each(self.run_ns),
            each(self.mpi_ns()),
            100.0 * self.share(self.mpi_ns())
        )?;
        if self.left_out > 0 {
            writeln!(
                f,
                "{} calls are in no row: there were too many classes",
                self.left_out
            )?;
        }
        if self.rows.is_empty() {
            return Ok(());
        }
        writeln!(
            f,
            "{:<26} {:>10} {:>12} {:>9} {:>8} {:>8}  split by",
            "function", "calls", "time a rank", "of run", "waiting", "moving"
        )?;
        for row in self.functions() {
            writeln!(
                f,
                "{:<26} {:>10} {:>12} {:>7.2} % {}  {}",
                row.function,
                row.calls,
                each(row.time_ns),
                100.0 * self.share(row.time_ns),
                row.parts(),
                row.split_word()
            )?;
        }
        writeln!(
            f,
            "{:<26} {:>10} {:>12} {:>9} {:>8} {:>8}  {:<8} {:<10} {:>5}  calls",
            "class",
            "size from",
            "time a rank",
            "of run",
            "waiting",
            "moving",
            "split by",
            "types",
            "ranks"
        )?;
        for row in self.rows.iter().take(SHOWN) {
            let ranks = match (row.ranks, row.one_machine) {
                (0, _) => "?".to_owned(),
                (ranks, true) => ranks.to_string(),
                (ranks, false) => format!("{ranks}*"),
            };
            writeln!(
                f,
                "{:<26} {:>10} {:>12} {:>7.2} % {}  {:<8} {:<10} {:>5}  {}",
                row.function,
                row.sizes(),
                each(row.time_ns),
                100.0 * self.share(row.time_ns),
                row.parts(),
                row.split_word(),
                row.types(),
                ranks,
                row.calls
            )?;
        }
        if let more @ 1.. = self.rows.len().saturating_sub(SHOWN) {
            writeln!(f, "and {more} more classes")?;
        }
        if self
            .rows
            .iter()
            .any(|row| row.ranks > 0 && !row.one_machine)
        {
            writeln!(f, "* on several machines")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Split;

    #[test]
    fn a_profile_has_functions_and_classes() {
        let row = |least, time_ns| ProfileRow {
            function: "MPI_Recv".to_owned(),
            least,
            ranks: 2,
            one_machine: true,
            split: Split::Estimate,
            calls: 3,
            time_ns,
            waiting_ns: time_ns / 4,
            moving_ns: time_ns - time_ns / 4,
            ..ProfileRow::default()
        };
        let profile = Profile {
            ranks: 2,
            plain: true,
            run_ns: 2_000_000_000,
            rows: vec![row(65536, 400_000_000), row(0, 100_000_000)],
            ..Profile::default()
        };
        let text = profile.to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[1].contains("(25.0 %) in MPI"), "{text}");
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(
            words(lines[3]).starts_with("MPI_Recv 6 0.25 s 25.00 % 25 % 75 % estimate"),
            "{text}"
        );
        assert!(
            words(lines[5])
                .starts_with("MPI_Recv 64 KiB 0.20 s 20.00 % 25 % 75 % estimate contiguous 2 3"),
            "{text}"
        );
        assert!(words(lines[6]).starts_with("MPI_Recv 0 B 50 ms"), "{text}");
    }
}
