// SPDX-License-Identifier: MIT OR Apache-2.0

//! Whether libcopy helped.
//!
//! The governor of `libcopy_mpi.so` tries both ways of a class of calls now and then, in a random
//! order, so that it knows what an intercepted call would have taken if it had been forwarded. That
//! times the intercepted calls is what they saved, with the error of both means. Nothing is claimed
//! of classes that were not tried, nor more than the time that the calls took.

use crate::job::Job;
use crate::rank::Class;
use serde::Serialize;
use std::collections::BTreeMap;

/// Standard errors on either side of the mean: 95 % of a normal distribution.
const QUANTILE: f64 = 1.96;

/// What the trials of a class do not see, as a part of the time of its calls: between trials, the
/// caches and the other ranks are in another state. `scripts/bench verdict` shows whether it is
/// enough.
const UNSEEN: f64 = 0.05;

/// A 95 % confidence interval of the time that was saved; negative if it was lost.
#[derive(Serialize, Clone, Copy, Debug, PartialEq)]
pub struct Gain {
    /// Its lower end, in seconds.
    pub low_s: f64,
    /// Its upper end; where that would be more than the calls took, what they took.
    pub high_s: f64,
    /// Whether the upper end is only that, and more may have been saved.
    pub is_at_least: bool,
}

impl Gain {
    /// Of calls that took `took` seconds and saved `saved` with a standard error of `error`.
    fn of(saved: f64, error: f64, took: f64) -> Gain {
        Gain {
            low_s: (saved - QUANTILE * error).clamp(-took, took),
            high_s: (saved + QUANTILE * error).clamp(-took, took),
            is_at_least: saved + QUANTILE * error > took,
        }
    }

    /// What calls of a class have saved on each rank that made any; `None` if too little is known.
    pub fn of_class(class: &Class) -> Option<Gain> {
        let known = Known::of(class)?;
        Some(Gain::of(known.saved, known.error(), known.took))
    }

    /// How much was saved (`true`) or lost, in words; `None` if chance alone explains it.
    pub(crate) fn certain(&self) -> Option<(bool, String)> {
        if self.low_s > 0.0 && self.is_at_least {
            Some((true, format!("at least {}", seconds(self.low_s))))
        } else if self.low_s > 0.0 {
            Some((true, range(self.low_s, self.high_s)))
        } else if self.high_s < 0.0 {
            Some((false, range(-self.high_s, -self.low_s)))
        } else {
            None
        }
    }
}

/// What one rank knows of a class or of several, in seconds.
#[derive(Clone, Copy, Default)]
struct Known {
    took: f64,
    saved: f64,
    variance: f64,
}

impl Known {
    fn of(class: &Class) -> Option<Known> {
        if class.took_ns <= 0 || class.callers == 0 {
            return None;
        }
        let of_caller = |ns: i64| ns as f64 / class.callers as f64 / 1e9;
        let took = of_caller(class.took_ns);
        Some(Known {
            took,
            saved: of_caller(class.saved_ns),
            variance: of_caller(class.error_ns).powi(2) + (UNSEEN * took).powi(2),
        })
    }

    fn add(self, other: Known) -> Known {
        Known {
            took: self.took + other.took,
            saved: self.saved + other.saved,
            variance: self.variance + other.variance,
        }
    }

    fn error(&self) -> f64 {
        self.variance.sqrt()
    }
}

/// Whether libcopy helped.
#[derive(Serialize, Clone, Debug, Default)]
pub struct Verdict {
    /// In words.
    pub sentence: String,
    /// Seconds from the start of the processes to `MPI_Finalize`, on average.
    pub elapsed_s: f64,
    /// Seconds in MPI functions that libcopy looks at, on average.
    pub mpi_s: f64,
    /// What was saved; `None` where too little was measured.
    pub gain: Option<Gain>,
    /// Intercepted calls of all ranks that were not compared.
    pub unmeasured: u64,
}

impl Verdict {
    pub(crate) fn of(job: &Job) -> Verdict {
        let elapsed = job.seconds(job.time.elapsed_ns);
        let known = job.classes.iter().filter_map(Known::of);
        let known = known.reduce(Known::add);
        let gain = known.map(|known| {
            let known = Known {
                saved: known.saved * job.runs(),
                took: (known.took * job.runs()).min(elapsed),
                variance: known.variance * job.runs().powi(2),
            };
            let gain = Gain::of(known.saved, known.error(), known.took);
            // How much of the setup was waiting for processes that start later is not known.
            let setup = job.seconds(job.time.setup_ns);
            Gain {
                low_s: (gain.low_s - setup).max(-elapsed),
                ..gain
            }
        });
        let unmeasured = job.classes.iter().map(|class| class.unmeasured).sum();
        Verdict {
            sentence: sentence(job, elapsed, gain, unmeasured),
            elapsed_s: elapsed,
            mpi_s: job.seconds(job.time.mpi_ns()),
            gain,
            unmeasured,
        }
    }
}

fn sentence(job: &Job, elapsed: f64, gain: Option<Gain>, unmeasured: u64) -> String {
    let Some(gain) = gain else {
        return match job.intercepted() + job.messages_intercepted() {
            0 => nothing(job),
            calls => format!(
                "not known whether libcopy helped: of no kind of the {calls} intercepted calls \
                 were there enough to compare them with forwarded ones"
            ),
        };
    };
    let of = format!("of {}", seconds(elapsed));
    let mut text = if let Some((is_saved, amount)) = gain.certain() {
        let verb = if is_saved { "saved" } else { "cost" };
        let sign = gain.low_s.signum();
        let mut classes: Vec<(&Class, Known)> = job
            .classes
            .iter()
            .filter_map(|class| Some((class, Known::of(class)?)))
            .filter(|(_, known)| known.saved * sign > 0.0)
            .collect();
        classes.sort_by(|(_, a), (_, b)| (b.saved * sign).total_cmp(&(a.saved * sign)));
        /// Classes that are named.
        const NAMED: usize = 3;
        let named = classes.iter().take(NAMED);
        let named: Vec<String> = named
            .map(|(class, _)| format!("{} of {}", class.name(), bytes(class.bytes)))
            .collect();
        format!("libcopy {verb} {amount} {of}: {}", named.join("; "))
    } else {
        let (lost, saved) = (seconds(-gain.low_s), seconds(gain.high_s));
        format!("no difference that can be told {of}: between {lost} lost and {saved} saved")
    };
    if unmeasured > 0 {
        text.push_str(&format!(
            " ({unmeasured} intercepted calls, of too few of their kind, are not compared)"
        ));
    }
    text
}

/// Why nothing was intercepted.
fn nothing(job: &Job) -> String {
    let mut outcomes: BTreeMap<&str, u64> = BTreeMap::new();
    for (name, count) in job.functions.values().flatten() {
        *outcomes.entry(name).or_default() += count;
    }
    let calls: u64 = outcomes.values().sum();
    let most = outcomes.into_iter().max_by_key(|(_, count)| *count);
    match most.filter(|(_, count)| *count > 0) {
        Some((outcome, count)) => {
            let why = explanation(outcome).unwrap_or(outcome);
            let [head, rest] = split(why);
            let all = match calls {
                all if all == count => format!("all {count}"),
                _ => format!("{count} of {calls}"),
            };
            format!("{head}: {all} calls {rest}")
        }
        None if job.time.messages_ns > 0 => "nothing to gain: no collective was called, and no \
             message is of a kind that libcopy makes faster"
            .to_owned(),
        None => "no MPI function that it knows was called".to_owned(),
    }
}

fn split(text: &str) -> [&str; 2] {
    let (head, rest) = text.split_once(": ").unwrap_or(("nothing was done", text));
    [head, rest]
}

/// What it means that calls have an outcome, which is a column of the report: what there is to say
/// where most calls have it, and why, as a predicate of the calls.
pub fn explanation(outcome: &str) -> Option<&'static str> {
    let text = match outcome {
        "intercepted" => "libcopy helped: were done by libcopy",
        "by nodes" => "libcopy helped: were done by libcopy inside each machine",
        "small" => "nothing to gain: are shorter than what libcopy makes faster",
        "not yet" => {
            "nothing was done: came before their communicator had a team of ranks, which is made \
             when calls have taken long enough to be worth it"
        }
        "machines" => {
            "nothing was done: are on communicators that span several machines, and are nothing \
             that is done in parts there"
        }
        "intercomm" => "nothing was done: are on intercommunicators",
        "one rank" => "nothing to gain: are on communicators of one rank",
        "topology" => {
            "nothing was done: are on communicators whose topology does not tell all neighbours"
        }
        "arguments" => {
            "nothing was done: have arguments that only the MPI library judges, or an operation or \
             datatype of the program's own"
        }
        "no gain" => "nothing to gain: are as fast in the MPI library",
        "no team" => {
            "nothing was done: are of ranks that have not agreed in MPI_Init to work together, or \
             that have no way that pays"
        }
        "broken team" => {
            "nothing was done: are of ranks one of which could not join their team, or whose team \
             an erroneous call has broken"
        }
        "disabled" => {
            "nothing was done: came while libcopy was switched off, by LIBCOPY_DISABLE, a tool \
             that wraps the same functions, or an unknown MPI library"
        }
        "fresh" => "nothing to gain: have datatypes that were used too seldom",
        _ => return None,
    };
    Some(text)
}

/// A time with two or three digits and its unit.
pub fn seconds(time: f64) -> String {
    let (scale, unit) = unit(time);
    format!("{} {unit}", digits(time * scale))
}

/// Two times with the unit of the longer one.
fn range(low: f64, high: f64) -> String {
    let (scale, unit) = unit(high);
    let (low, high) = (digits(low * scale), digits(high * scale));
    if low == high {
        format!("{high} {unit}")
    } else {
        format!("{low} to {high} {unit}")
    }
}

fn unit(time: f64) -> (f64, &'static str) {
    if time.abs() < 0.1 {
        (1e3, "ms")
    } else {
        (1.0, "s")
    }
}

fn digits(number: f64) -> String {
    match number.abs() {
        0.0..1.0 => format!("{number:.2}"),
        1.0..10.0 => format!("{number:.1}"),
        _ => format!("{number:.0}"),
    }
}

/// A power of two of bytes.
pub(crate) fn bytes(number: u64) -> String {
    match number {
        0..1024 => format!("{number} B"),
        1024..1_048_576 => format!("{} KiB", number >> 10),
        1_048_576..1_073_741_824 => format!("{} MiB", number >> 20),
        _ => format!("{} GiB", number >> 30),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rank::Time;

    fn job(class: Class, elapsed_ns: u64) -> Job {
        let mut job = Job {
            reports: 2,
            ranks: 2,
            time: Time {
                elapsed_ns: 2 * elapsed_ns,
                ..Time::default()
            },
            classes: vec![class],
            ..Job::default()
        };
        job.verdict = Verdict::of(&job);
        job
    }

    /// Of two ranks.
    fn class(took_ms: i64, saved_ms: i64, error_ms: i64) -> Class {
        Class {
            function: "MPI_Bcast".to_owned(),
            ranks: 2,
            bytes: 1 << 20,
            intercepted: 200,
            took_ns: 2_000_000 * took_ms,
            saved_ns: 2_000_000 * saved_ms,
            error_ns: 2_000_000 * error_ms,
            callers: 2,
            ..Class::default()
        }
    }

    fn said(took_ms: i64, saved_ms: i64, error_ms: i64) -> String {
        let job = job(class(took_ms, saved_ms, error_ms), 14_200_000_000);
        job.verdict.sentence
    }

    #[test]
    fn gains_losses_and_neither_are_called_that() {
        assert_eq!(
            said(3000, 1000, 100),
            "libcopy saved 0.65 to 1.4 s of 14 s: MPI_Bcast of 1 MiB"
        );
        assert_eq!(
            said(3000, -1000, 100),
            "libcopy cost 0.65 to 1.4 s of 14 s: MPI_Bcast of 1 MiB"
        );
        assert_eq!(
            said(100, 10, 20),
            "no difference that can be told of 14 s: between 30 ms lost and 50 ms saved"
        );
    }

    /// Not even where calls would have taken many times as long.
    #[test]
    fn no_claim_is_more_than_the_calls_took() {
        assert_eq!(
            said(1000, 30_000, 100),
            "libcopy saved at least 1.0 s of 14 s: MPI_Bcast of 1 MiB"
        );
        for saved in [-90_000, -10_000, 10_000, 90_000] {
            let job = job(class(50_000, saved, 500), 3_500_000_000);
            let gain = job.verdict.gain.expect("it was measured");
            assert!(gain.low_s >= -3.5 && gain.high_s <= 3.5, "{gain:?}");
        }
    }

    #[test]
    fn what_was_not_compared_is_not_known() {
        let unmeasured = Class {
            unmeasured: 200,
            ..class(0, 0, 0)
        };
        let mut job = job(unmeasured, 1_000_000_000);
        let of_bcast = job.functions.entry("MPI_Bcast".to_owned()).or_default();
        of_bcast.insert("intercepted".to_owned(), 200);
        let verdict = Verdict::of(&job);
        assert!(verdict.gain.is_none() && verdict.unmeasured == 200);
        assert!(
            verdict.sentence.starts_with("not known whether"),
            "{verdict:?}"
        );
    }

    #[test]
    fn why_nothing_was_intercepted_is_said() {
        let mut job = Job::default();
        let of_bcast = job.functions.entry("MPI_Bcast".to_owned()).or_default();
        of_bcast.extend([("small".to_owned(), 50), ("not yet".to_owned(), 10)]);
        assert_eq!(
            Verdict::of(&job).sentence,
            "nothing to gain: 50 of 60 calls are shorter than what libcopy makes faster"
        );
    }

    #[test]
    fn times_have_two_or_three_digits() {
        let all = [0.00004, 0.0123, 0.25, 3.54, 142.0].map(seconds);
        assert_eq!(all, ["0.04 ms", "12 ms", "0.25 s", "3.5 s", "142 s"]);
    }
}
