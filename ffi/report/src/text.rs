// SPDX-License-Identifier: MIT OR Apache-2.0

//! A job's report as text.

use crate::job::Job;
use crate::rank::Class;
use crate::verdict::{Gain, bytes, seconds};
use std::collections::BTreeSet;
use std::fmt;

/// What the time in MPI is: functions that libcopy does not look at are not in it, and a program of
/// these only would seem to spend none there.
const IN_MPI: &str = "in MPI, windows and files not counted";

/// Machines or programs that are named.
const NAMED: usize = 4;

impl fmt::Display for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sentence = &self.verdict.sentence;
        let who = if sentence.starts_with("libcopy ") {
            ""
        } else {
            "libcopy: "
        };
        writeln!(f, "{who}{sentence}")?;
        self.write_time(f)?;
        for (outcome, reports) in &self.bootstrap {
            writeln!(f, "{reports} reports: {outcome}")?;
        }
        for (what, names) in [("programs", &self.programs), ("machines", &self.hosts)] {
            if !names.is_empty() {
                writeln!(f, "{what}: {}", list(names))?;
            }
        }
        for (feature, reasons) in &self.off {
            for (why, reports) in reasons {
                let all = self.reports;
                writeln!(f, "{feature} off in {reports} of {all} reports: {why}")?;
            }
        }
        self.write_functions(f)?;
        for (event, count) in self.messages.iter().filter(|(_, count)| **count > 0) {
            writeln!(f, "messages, {event:<24} {count:>12}")?;
        }
        for (event, count) in self.early.iter().filter(|(_, count)| **count > 0) {
            writeln!(f, "returned early, {event:<18} {count:>12}")?;
        }
        self.write_classes(f)
    }
}

impl Job {
    fn write_time(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let libraries: Vec<&str> = self.libraries.iter().map(String::as_str).collect();
        let (elapsed, mpi) = (self.verdict.elapsed_s, self.verdict.mpi_s);
        let share = 100.0 * mpi / elapsed.max(f64::MIN_POSITIVE);
        let (elapsed, mpi) = (seconds(elapsed), seconds(mpi));
        let times = if share > 100.0 {
            format!("{elapsed}; {mpi} {IN_MPI}, by several threads")
        } else {
            format!("{elapsed}, of which {mpi} ({share:.0} %) {IN_MPI}")
        };
        writeln!(
            f,
            "{} reports of {} ranks, {}: {times}",
            self.reports,
            self.ranks,
            libraries.join(", "),
        )?;
        let time = &self.time;
        let parts = [
            ("in collectives that libcopy did", time.intercepted_ns),
            ("in those that were forwarded", time.forwarded_ns),
            ("in messages, with waiting", time.messages_ns),
            ("in packing", time.packing_ns),
            ("for libcopy to get ready", time.setup_ns),
        ];
        let parts = parts.into_iter().filter(|(_, sum)| *sum > 0);
        let parts = parts.map(|(what, sum)| format!("{} {what}", seconds(self.seconds(sum))));
        let parts: Vec<String> = parts.collect();
        if !parts.is_empty() {
            writeln!(f, "each rank: {}", parts.join(", "))?;
        }
        let collectives = self.intercepted();
        let messages = self.messages_intercepted();
        writeln!(
            f,
            "intercepted: {collectives} calls with {} bytes, {messages} messages",
            self.bytes
        )
    }

    fn write_functions(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Columns that nobody needs are left out; what was taken comes first.
        let mut outcomes: Vec<&str> = vec!["intercepted"];
        let others: BTreeSet<&str> = self
            .functions
            .values()
            .flatten()
            .filter(|(outcome, count)| **count > 0 && *outcome != "intercepted")
            .map(|(outcome, _)| outcome.as_str())
            .collect();
        outcomes.extend(others);
        if self.functions.is_empty() {
            return writeln!(f, "no collective and no packing was called");
        }
        write!(f, "{:<26} {:>10}", "function", "calls")?;
        for outcome in &outcomes {
            write!(f, " {outcome:>12}")?;
        }
        writeln!(f)?;
        for (function, counts) in &self.functions {
            let calls: u64 = counts.values().sum();
            write!(f, "{function:<26} {calls:>10}")?;
            for outcome in &outcomes {
                write!(f, " {:>12}", counts.get(*outcome).copied().unwrap_or(0))?;
            }
            writeln!(f)?;
        }
        Ok(())
    }

    /// A line for each class that was tried, or of which calls were intercepted.
    fn write_classes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_shown = |class: &&Class| class.trials > 0 || class.intercepted > 0;
        let shown: Vec<&Class> = self.classes.iter().filter(is_shown).collect();
        if shown.is_empty() {
            return Ok(());
        }
        let width = shown.iter().map(|class| class.name().len()).max();
        let width = width.unwrap_or(0).max(26);
        writeln!(
            f,
            "{:<width$} {:>8} {:>6} {:>12} {:>10} {:>14} {:>8}  per rank, 95 %",
            "classes of calls",
            "from",
            "ranks",
            "intercepted",
            "forwarded",
            "forwarding on",
            "took"
        )?;
        for class in shown {
            let took = match Gain::of_class(class) {
                Some(_) => seconds(class.took_ns as f64 / class.callers as f64 / 1e9),
                None => "-".to_owned(),
            };
            writeln!(
                f,
                "{:<width$} {:>8} {:>6} {:>12} {:>10} {:>14} {took:>8}  {}",
                class.name(),
                bytes(class.bytes),
                class.ranks,
                class.intercepted,
                class.forwarded,
                format!("{} of {}", class.forwarding, class.communicators),
                gained(class),
            )?;
        }
        Ok(())
    }
}

/// What a class has saved or lost.
fn gained(class: &Class) -> String {
    let Some(gain) = Gain::of_class(class) else {
        return "not known".to_owned();
    };
    match gain.certain() {
        Some((true, amount)) => format!("{amount} saved"),
        Some((false, amount)) => format!("{amount} lost"),
        None => {
            let (lost, saved) = (seconds(-gain.low_s), seconds(gain.high_s));
            format!("{lost} lost to {saved} saved")
        }
    }
}

fn list(names: &BTreeSet<String>) -> String {
    let first: Vec<&str> = names.iter().take(NAMED).map(String::as_str).collect();
    let first = first.join(", ");
    match names.len().saturating_sub(NAMED) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = r#"{"report":2,"rank":RANK,"host":"node","program":"/bin/x","library":"MPICH","bytes":7,"time":{"elapsed_ns":2000000000,"intercepted_ns":300000000,"messages_ns":100000000,"packing_ns":60000000},"functions":{"MPI_Bcast":{"intercepted":100,"small":1,"fresh":0}},"messages":{"sent":3,"truncated":0},"bootstrap":"all 2 ranks agreed","classes":[{"function":"MPI_Bcast","ranks":2,"bytes":65536,"intercepted":100,"forwarded":2,"trials":1,"communicators":1,"forwarding":0,"took_ns":300000000,"saved_ns":-150000000,"error_ns":1000000}]}"#;

    #[test]
    fn a_report_begins_with_the_verdict() {
        let lines = ["0", "1"].map(|rank| LINE.replace("RANK", rank));
        let text = Job::read(&lines.join("\n")).unwrap().to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[0],
            "libcopy cost 0.12 to 0.18 s of 2.0 s: MPI_Bcast of 64 KiB"
        );
        assert_eq!(
            lines[1],
            "2 reports of 2 ranks, MPICH: 2.0 s, of which 0.46 s (23 %) in MPI, windows and files \
             not counted"
        );
        assert_eq!(
            lines[2],
            "each rank: 0.30 s in collectives that libcopy did, 0.10 s in messages, with waiting, \
             60 ms in packing"
        );
        assert!(
            !text.contains("fresh") && !text.contains("truncated"),
            "{text}"
        );
        assert!(text.ends_with("  0.12 to 0.18 s lost\n"), "{text}");
    }
}
