// SPDX-License-Identifier: MIT OR Apache-2.0

//! `libcopy mpi report`: what `libcopy_mpi.so` did in MPI programs.

use anyhow::{Context, Result, bail};
use clap::Args;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};

/// Arguments of `libcopy mpi report`.
#[derive(Args, Debug)]
pub struct ReportArgs {
    /// The file that LIBCOPY_STATS named
    file: PathBuf,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What one rank says, a line of the file.
#[derive(Deserialize, Debug)]
struct Rank {
    /// The version of these words.
    report: u32,
    rank: i64,
    #[serde(default)]
    host: Option<String>,
    #[serde(default)]
    program: Option<String>,
    library: String,
    bytes: u64,
    functions: BTreeMap<String, BTreeMap<String, u64>>,
    #[serde(default)]
    messages: BTreeMap<String, u64>,
    #[serde(default)]
    early: BTreeMap<String, u64>,
    /// Who takes part.
    #[serde(default)]
    bootstrap: String,
    #[serde(default)]
    off: BTreeMap<String, String>,
    #[serde(default)]
    classes: Vec<Class>,
}

/// What the governor says of one class of calls, on all communicators of one size.
#[derive(Serialize, Deserialize, Debug)]
struct Class {
    function: String,
    /// Ranks of the communicators.
    ranks: u64,
    /// Smallest message of the class.
    bytes: u64,
    /// What messages have: dense elements, or pieces.
    #[serde(default)]
    elements: String,
    intercepted: u64,
    forwarded: u64,
    trials: u64,
    communicators: u64,
    /// Communicators on which calls are forwarded by the last decision.
    forwarding: u64,
    /// Nanoseconds won against forwarding all calls.
    won_ns: i64,
}

impl Class {
    /// What is called.
    fn name(&self) -> String {
        match self.elements.as_str() {
            "" => self.function.clone(),
            elements => format!("{}, {elements}", self.function),
        }
    }

    fn add(&mut self, other: &Class) {
        self.intercepted += other.intercepted;
        self.forwarded += other.forwarded;
        self.trials += other.trials;
        self.communicators += other.communicators;
        self.forwarding += other.forwarding;
        self.won_ns += other.won_ns;
    }
}

/// What all ranks say together.
#[derive(Serialize, Debug, Default)]
struct Total {
    /// Reports; several runs may have written into one file.
    reports: usize,
    /// Different ranks.
    ranks: usize,
    hosts: BTreeSet<String>,
    programs: BTreeSet<String>,
    libraries: BTreeSet<String>,
    bytes: u64,
    functions: BTreeMap<String, BTreeMap<String, u64>>,
    messages: BTreeMap<String, u64>,
    early: BTreeMap<String, u64>,
    /// Reports that say who takes part, by what they say.
    bootstrap: BTreeMap<String, u64>,
    /// What was off, why, and in how many reports.
    off: BTreeMap<String, BTreeMap<String, usize>>,
    classes: Vec<Class>,
}

/// Reads lines; what is not a report is refused.
fn add_up(text: &str) -> Result<Total> {
    let mut total = Total::default();
    let mut ranks = BTreeSet::new();
    for (number, line) in text.lines().enumerate() {
        let rank: Rank = serde_json::from_str(line)
            .with_context(|| format!("line {} is no report of libcopy_mpi.so", number + 1))?;
        if rank.report != 1 {
            bail!(
                "line {} has version {} of the report; this tool reads version 1",
                number + 1,
                rank.report
            );
        }
        total.reports += 1;
        ranks.insert(rank.rank);
        total.hosts.extend(rank.host);
        total.programs.extend(rank.program);
        total.libraries.insert(rank.library);
        for (feature, why) in rank.off {
            let reasons = total.off.entry(feature).or_default();
            *reasons.entry(why).or_default() += 1;
        }
        total.bytes += rank.bytes;
        if !rank.bootstrap.is_empty() {
            *total.bootstrap.entry(rank.bootstrap).or_default() += 1;
        }
        for (function, outcomes) in rank.functions {
            let sum = total.functions.entry(function).or_default();
            for (outcome, count) in outcomes {
                *sum.entry(outcome).or_default() += count;
            }
        }
        for (event, count) in rank.messages {
            *total.messages.entry(event).or_default() += count;
        }
        for (event, count) in rank.early {
            *total.early.entry(event).or_default() += count;
        }
        for class in rank.classes {
            let key = |class: &Class| {
                let what = (class.function.clone(), class.elements.clone());
                (what, class.ranks, class.bytes)
            };
            let same = |other: &&mut Class| key(other) == key(&class);
            match total.classes.iter_mut().find(same) {
                Some(sum) => sum.add(&class),
                None => total.classes.push(class),
            }
        }
    }
    total.ranks = ranks.len();
    if total.reports == 0 {
        bail!("no rank has written a report; was LIBCOPY_STATS set to this file for all of them?");
    }
    Ok(total)
}

/// Runs `libcopy mpi report`.
pub fn run(args: &ReportArgs) -> Result<()> {
    let total = read(&args.file)?;
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&total)?)?;
        return Ok(());
    }
    write(&total, &mut out)
}

/// Prints what the ranks have written into a file.
pub fn print(file: &Path, out: &mut dyn Write) -> Result<()> {
    write(&read(file)?, out)
}

fn read(file: &Path) -> Result<Total> {
    let name = file.display();
    let text = std::fs::read_to_string(file).with_context(|| format!("reading {name}"))?;
    add_up(&text).with_context(|| format!("{name}"))
}

fn write(total: &Total, out: &mut dyn Write) -> Result<()> {
    let libraries: Vec<&str> = total.libraries.iter().map(String::as_str).collect();
    writeln!(
        out,
        "{} reports of {} ranks, {}: {} bytes intercepted",
        total.reports,
        total.ranks,
        libraries.join(", "),
        total.bytes
    )?;
    for (outcome, reports) in &total.bootstrap {
        writeln!(out, "{reports} reports: {outcome}")?;
    }
    for (what, names) in [("programs", &total.programs), ("hosts", &total.hosts)] {
        if !names.is_empty() {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            writeln!(out, "{what}: {}", names.join(", "))?;
        }
    }
    // Columns that nobody needs are left out; what was taken comes first.
    let mut outcomes: Vec<&str> = vec!["intercepted"];
    let others: BTreeSet<&str> = total
        .functions
        .values()
        .flatten()
        .filter(|(outcome, count)| **count > 0 && *outcome != "intercepted")
        .map(|(outcome, _)| outcome.as_str())
        .collect();
    outcomes.extend(others);
    if total.functions.is_empty() {
        writeln!(out, "no collective and no packing was called")?;
    } else {
        write!(out, "{:<26} {:>10}", "function", "calls")?;
        for outcome in &outcomes {
            write!(out, " {outcome:>12}")?;
        }
        writeln!(out)?;
    }
    for (function, counts) in &total.functions {
        let calls: u64 = counts.values().sum();
        write!(out, "{function:<26} {calls:>10}")?;
        for outcome in &outcomes {
            write!(out, " {:>12}", counts.get(*outcome).copied().unwrap_or(0))?;
        }
        writeln!(out)?;
    }
    for (event, count) in total.messages.iter().filter(|(_, count)| **count > 0) {
        writeln!(out, "messages, {event:<24} {count:>12}")?;
    }
    for (event, count) in total.early.iter().filter(|(_, count)| **count > 0) {
        writeln!(out, "returned early, {event:<18} {count:>12}")?;
    }
    for (feature, reasons) in &total.off {
        for (why, reports) in reasons {
            writeln!(
                out,
                "{feature} off in {reports} of {} reports: {why}",
                total.reports
            )?;
        }
    }
    let tried: Vec<&Class> = total.classes.iter().filter(|c| c.trials > 0).collect();
    if !tried.is_empty() {
        writeln!(
            out,
            "{:<26} {:>10} {:>6} {:>12} {:>12} {:>16} {:>12}",
            "governor: function",
            "from bytes",
            "ranks",
            "intercepted",
            "forwarded",
            "forwarding on",
            "us won"
        )?;
    }
    for class in tried {
        let on = format!("{} of {}", class.forwarding, class.communicators);
        writeln!(
            out,
            "{:<26} {:>10} {:>6} {:>12} {:>12} {on:>16} {:>12}",
            class.name(),
            class.bytes,
            class.ranks,
            class.intercepted,
            class.forwarded,
            class.won_ns / 1000
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const RANK: &str = r#"{"report":1,"rank":0,"library":"MPICH","bytes":7,"functions":{"MPI_Bcast":{"intercepted":2,"small":1}},"messages":{"sent":3},"early":{"buffers":5},"bootstrap":"all 2 ranks agreed","classes":[{"function":"MPI_Bcast","ranks":2,"bytes":65536,"intercepted":9,"forwarded":2,"trials":1,"communicators":1,"forwarding":0,"won_ns":-5}]}"#;

    #[test]
    fn ranks_are_added_up() {
        let other = RANK.replace(r#""rank":0"#, r#""rank":1"#);
        let total = add_up(&format!("{RANK}\n{other}\n{RANK}\n")).unwrap();
        assert_eq!((total.reports, total.ranks, total.bytes), (3, 2, 21));
        assert_eq!(total.bootstrap["all 2 ranks agreed"], 3);
        assert_eq!(total.functions["MPI_Bcast"]["intercepted"], 6);
        assert_eq!(total.functions["MPI_Bcast"]["small"], 3);
        assert_eq!(total.messages["sent"], 9);
        assert_eq!(total.early["buffers"], 15);
        let [class] = &total.classes[..] else {
            panic!("{:?}", total.classes);
        };
        assert_eq!(
            (class.intercepted, class.forwarded, class.won_ns),
            (27, 6, -15)
        );
        let old = RANK.replace(",\"classes\"", ",\"other\"");
        assert!(add_up(&old).unwrap().classes.is_empty());
        assert!(total.hosts.is_empty() && total.off.is_empty());
    }

    #[test]
    fn ranks_say_who_they_are_and_what_is_off() {
        let who = r#""rank":0,"host":"a","program":"/bin/x","off":{"messages":"MPI_Recv"}"#;
        let rank = RANK.replace(r#""rank":0"#, who);
        let total = add_up(&format!("{RANK}\n{rank}\n{rank}\n")).unwrap();
        assert_eq!(total.hosts.into_iter().collect::<Vec<_>>(), ["a"]);
        assert_eq!(total.programs.into_iter().collect::<Vec<_>>(), ["/bin/x"]);
        assert_eq!(total.off["messages"]["MPI_Recv"], 2);
    }

    #[test]
    fn what_is_no_report_is_refused() {
        assert!(add_up("").is_err());
        let error = format!("{:#}", add_up(&format!("{RANK}\nhello\n")).unwrap_err());
        assert!(error.contains("line 2"), "{error}");
        let newer = RANK.replace(r#""report":1"#, r#""report":2"#);
        assert!(
            add_up(&newer)
                .unwrap_err()
                .to_string()
                .contains("version 2")
        );
    }
}
