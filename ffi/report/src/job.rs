// SPDX-License-Identifier: MIT OR Apache-2.0

//! What all ranks say together.

use crate::rank::{Class, Rank, Time, VERSION};
use crate::verdict::Verdict;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// What all ranks say together.
#[derive(Serialize, Clone, Debug, Default)]
pub struct Job {
    /// Whether libcopy helped.
    pub verdict: Verdict,
    /// Reports; several runs may have written into one file.
    pub reports: usize,
    /// Different ranks.
    pub ranks: usize,
    /// Their machines.
    pub hosts: BTreeSet<String>,
    /// The files that they ran.
    pub programs: BTreeSet<String>,
    /// Their MPI libraries.
    pub libraries: BTreeSet<String>,
    /// Bytes of intercepted calls.
    pub bytes: u64,
    /// The sums of all ranks' times.
    pub time: Time,
    /// Calls by function and by what became of them.
    pub functions: BTreeMap<String, BTreeMap<String, u64>>,
    /// Numbers about messages.
    pub messages: BTreeMap<String, u64>,
    /// Numbers about collectives that returned early.
    pub early: BTreeMap<String, u64>,
    /// Reports that say who takes part, by what they say.
    pub bootstrap: BTreeMap<String, u64>,
    /// What was off, why, and in how many reports.
    pub off: BTreeMap<String, BTreeMap<String, usize>>,
    /// The sums of all ranks' classes.
    pub classes: Vec<Class>,
}

/// A text that is no report of `libcopy_mpi.so`.
#[derive(Debug)]
pub enum NotAReport {
    /// A line, by its number from 1, cannot be read.
    Line(usize, serde_json::Error),
    /// A line has another version of the words.
    Version(usize, u32),
    /// There is no line.
    Empty,
}

impl fmt::Display for NotAReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotAReport::Line(line, _) => {
                write!(f, "line {line} is no report of libcopy_mpi.so")
            }
            NotAReport::Version(line, version) => write!(
                f,
                "line {line} has version {version} of the report; this libcopy reads version \
                 {VERSION}: run the program again with the libcopy_mpi.so that belongs to it"
            ),
            NotAReport::Empty => write!(
                f,
                "no rank has written a report; was LIBCOPY_STATS set to this file for all of them?"
            ),
        }
    }
}

impl std::error::Error for NotAReport {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            NotAReport::Line(_, error) => Some(error),
            _ => None,
        }
    }
}

impl Job {
    /// Reads the ranks' lines.
    ///
    /// # Errors
    ///
    /// A line is no report, has another version, or there is none.
    pub fn read(text: &str) -> Result<Job, NotAReport> {
        let mut job = Job::default();
        let mut ranks = BTreeSet::new();
        for (number, line) in (1..).zip(text.lines()) {
            let version = serde_json::from_str::<Version>(line)
                .map_err(|error| NotAReport::Line(number, error))?;
            if version.report != VERSION {
                return Err(NotAReport::Version(number, version.report));
            }
            let rank: Rank =
                serde_json::from_str(line).map_err(|error| NotAReport::Line(number, error))?;
            ranks.insert(rank.rank);
            job.add(rank);
        }
        job.ranks = ranks.len();
        if job.reports == 0 {
            return Err(NotAReport::Empty);
        }
        job.verdict = Verdict::of(&job);
        Ok(job)
    }

    /// Runs that have written into the file.
    pub fn runs(&self) -> f64 {
        self.reports as f64 / self.ranks.max(1) as f64
    }

    /// Of nanoseconds that are the sum of all ranks: the seconds of one rank, on average.
    pub fn seconds(&self, sum_ns: u64) -> f64 {
        sum_ns as f64 / self.ranks.max(1) as f64 / 1e9
    }

    /// Calls of collectives and packing that libcopy did.
    pub fn intercepted(&self) -> u64 {
        let of = |name: &str| -> u64 {
            let counts = self.functions.values();
            counts.filter_map(|outcomes| outcomes.get(name)).sum()
        };
        of("intercepted") + of("by nodes")
    }

    /// Messages that libcopy sent or received.
    pub fn messages_intercepted(&self) -> u64 {
        let of = |name: &str| self.messages.get(name).copied().unwrap_or(0);
        of("sent").max(of("received"))
    }

    fn add(&mut self, rank: Rank) {
        self.reports += 1;
        let named = |name: String| (!name.is_empty()).then_some(name);
        self.hosts.extend(named(rank.host));
        self.programs.extend(named(rank.program));
        self.libraries.insert(rank.library);
        for (feature, why) in rank.off {
            let reasons = self.off.entry(feature).or_default();
            *reasons.entry(why).or_default() += 1;
        }
        self.bytes += rank.bytes;
        self.time.add(&rank.time);
        if !rank.bootstrap.is_empty() {
            *self.bootstrap.entry(rank.bootstrap).or_default() += 1;
        }
        for (function, outcomes) in rank.functions {
            add_all(self.functions.entry(function).or_default(), outcomes);
        }
        add_all(&mut self.messages, rank.messages);
        add_all(&mut self.early, rank.early);
        for mut class in rank.classes {
            class.callers = u64::from(class.intercepted > 0);
            match self.classes.iter_mut().find(|sum| sum.is(&class)) {
                Some(sum) => sum.add(&class),
                None => self.classes.push(class),
            }
        }
    }
}

/// What each version has.
#[derive(serde::Deserialize)]
struct Version {
    report: u32,
}

fn add_all(sums: &mut BTreeMap<String, u64>, numbers: BTreeMap<String, u64>) {
    for (name, number) in numbers {
        *sums.entry(name).or_default() += number;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RANK: &str = r#"{"report":2,"rank":0,"library":"MPICH","bytes":7,"functions":{"MPI_Bcast":{"intercepted":2,"small":1}},"messages":{"sent":3},"early":{"buffers":5},"bootstrap":"all 2 ranks agreed","classes":[{"function":"MPI_Bcast","ranks":2,"bytes":65536,"intercepted":9,"forwarded":2,"trials":1,"communicators":1,"forwarding":0,"saved_ns":-5}]}"#;

    #[test]
    fn ranks_are_added_up() {
        let other = RANK.replace(r#""rank":0"#, r#""rank":1"#);
        let job = Job::read(&format!("{RANK}\n{other}\n{RANK}\n")).unwrap();
        assert_eq!((job.reports, job.ranks, job.bytes), (3, 2, 21));
        assert_eq!(job.bootstrap["all 2 ranks agreed"], 3);
        assert_eq!(job.functions["MPI_Bcast"]["intercepted"], 6);
        assert_eq!(job.functions["MPI_Bcast"]["small"], 3);
        assert_eq!(job.messages["sent"], 9);
        assert_eq!(job.early["buffers"], 15);
        let [class] = &job.classes[..] else {
            panic!("{:?}", job.classes);
        };
        let sums = (class.intercepted, class.forwarded, class.saved_ns);
        assert_eq!(sums, (27, 6, -15));
        assert!(job.hosts.is_empty() && job.off.is_empty());
    }

    #[test]
    fn ranks_say_who_they_are_and_what_is_off() {
        let who = r#""rank":0,"host":"a","program":"/bin/x","off":{"messages":"MPI_Recv"}"#;
        let rank = RANK.replace(r#""rank":0"#, who);
        let job = Job::read(&format!("{RANK}\n{rank}\n{rank}\n")).unwrap();
        assert_eq!(job.hosts.into_iter().collect::<Vec<_>>(), ["a"]);
        assert_eq!(job.programs.into_iter().collect::<Vec<_>>(), ["/bin/x"]);
        assert_eq!(job.off["messages"]["MPI_Recv"], 2);
    }

    #[test]
    fn what_is_no_report_is_refused() {
        assert!(matches!(Job::read(""), Err(NotAReport::Empty)));
        let error = Job::read(&format!("{RANK}\nhello\n")).unwrap_err();
        assert!(error.to_string().starts_with("line 2 "), "{error}");
        let older = RANK.replace(r#""report":2"#, r#""report":1"#);
        let error = Job::read(&older).unwrap_err().to_string();
        assert!(error.contains("version 1"), "{error}");
    }

    /// What is written is read.
    #[test]
    fn a_line_comes_back() {
        let rank: Rank = serde_json::from_str(RANK).unwrap();
        let rank = Rank {
            program: "/a \"b\"\\c\n".to_owned(),
            ..rank
        };
        let line = serde_json::to_string(&rank).unwrap();
        assert_eq!(line.lines().count(), 1);
        let job = Job::read(&line).unwrap();
        assert_eq!(job.programs.first().unwrap(), "/a \"b\"\\c\n");
        let callers = rank.classes.into_iter().map(|class| Class {
            callers: 1,
            ..class
        });
        assert_eq!(job.classes, callers.collect::<Vec<_>>());
    }
}
