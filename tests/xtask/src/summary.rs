// SPDX-License-Identifier: MIT OR Apache-2.0

//! What programs that run tests print: libtest, nextest and the guest suite.

use std::ops::AddAssign;

/// Tests by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    pub passed: u64,
    pub failed: u64,
    pub skipped: u64,
}

impl Count {
    /// A part that is one check.
    pub fn check(status: i32) -> Count {
        Count {
            passed: u64::from(status == 0),
            failed: u64::from(status != 0),
            skipped: 0,
        }
    }

    /// A part that cannot run here.
    pub fn absent() -> Count {
        Count {
            skipped: 1,
            ..Count::default()
        }
    }

    /// Counts the tests of a part by the summary lines in what it printed. A test program that was
    /// killed, a part that printed no summary, and one that fails without a failed test (a build
    /// error, a crash) are a failure each.
    pub fn of(log: &str, status: i32) -> Count {
        let mut count = Count::default();
        let mut has_summary = false;
        for line in log.lines() {
            if let Some(summary) = summary(line) {
                has_summary = true;
                count += summary;
            } else if was_killed(line) {
                count.failed += 1;
            }
        }
        if count.failed == 0 && (status != 0 || !has_summary) {
            count.failed = 1;
        }
        count
    }
}

impl AddAssign for Count {
    fn add_assign(&mut self, other: Count) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

/// What a line counts, if it is a summary. Those of tests inside of tests are indented.
fn summary(line: &str) -> Option<Count> {
    if let Some(counts) = line.strip_prefix("test result: ") {
        // ok. 3 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.26s
        return counts
            .split_once(". ")
            .map(|(_, counts)| numbers(counts, ';'));
    }
    if let Some(summary) = line.trim_start().strip_prefix("Summary [") {
        // 1.003s] 4 tests run: 1 passed (1 slow), 2 failed, 1 timed out, 1 skipped
        return summary
            .split_once(": ")
            .map(|(_, counts)| numbers(counts, ','));
    }
    // 12 passed, 0 failed, 1 skipped
    let mut words = line.split(' ');
    words.next()?.parse::<u64>().ok()?;
    let is_ours = words.next() == Some("passed,") && line.contains(" failed");
    is_ours.then(|| numbers(line, ','))
}

/// The numbers of a list as `2 passed, 1 failed`.
fn numbers(list: &str, separator: char) -> Count {
    let mut count = Count::default();
    // In parentheses nextest says what some of the tests before them were as well.
    for item in list.split(separator) {
        let mut words = item.split_whitespace();
        let Some(number) = words.next().and_then(|word| word.parse::<u64>().ok()) else {
            continue;
        };
        let sum = match words.next() {
            Some("passed") => &mut count.passed,
            // "failed", "exec failed", "timed out"
            Some("failed" | "exec" | "timed") => &mut count.failed,
            Some("skipped" | "ignored") => &mut count.skipped,
            _ => continue,
        };
        *sum += number;
    }
    count
}

/// Whether cargo says that a test program was killed: it has printed no summary then.
fn was_killed(line: &str) -> bool {
    line.starts_with("  process didn't exit successfully: ") && line.contains(" (signal: ")
}

/// What the programs say of their failures: the guest suite's and libtest's lists, and nextest's,
/// each line once.
pub fn reasons(log: &str) -> Vec<&str> {
    const MOST: usize = 40;
    let mut found = Vec::new();
    let mut is_list = false;
    for line in log.lines() {
        if matches!(line, "failed:" | "failures:") {
            is_list = true;
            continue;
        }
        is_list &= line.starts_with(' ');
        if (is_list || is_failure(line)) && !found.contains(&line) {
            found.push(line);
        }
    }
    found.truncate(MOST);
    found
}

/// Whether nextest says that a test has failed:
/// `FAIL [   0.630s] (1/4) sample tests::does_not_hold`.
fn is_failure(line: &str) -> bool {
    let Some((word, rest)) = line.trim_start().split_once(' ') else {
        return false;
    };
    let is_signal = word
        .strip_prefix("SIG")
        .is_some_and(|name| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_uppercase()));
    let is_known = matches!(word, "FAIL" | "TIMEOUT" | "ABORT" | "LEAK-FAIL");
    (is_known || is_signal) && rest.trim_start().starts_with('[')
}

/// Faults that a review has proven; each has tests with its number.
pub const FAULTS: u64 = 11;

/// Counts each proven fault as one test: it passes when the guest suite ran a test of it and all of
/// them hold. Returns the numbers of those that do not, too. A machine that does not come up, and
/// what the kernel says beside the tests, is in the exit status alone.
pub fn proven(log: &str, status: i32) -> (Count, Vec<u64>) {
    let holds = |number: u64| {
        let name = format!("::proven_{number:02}_");
        let mut lines = log.lines().filter_map(|line| {
            let (test, outcome) = line.split_once(" ... ")?;
            (test.contains(&name) && !test.contains(' ')).then_some(outcome)
        });
        let first = lines.next().is_some_and(is_ok);
        first && lines.all(is_ok)
    };
    let bad: Vec<u64> = (1..=FAULTS).filter(|number| !holds(*number)).collect();
    let failed = match bad.len() as u64 {
        0 => u64::from(status != 0),
        failed => failed,
    };
    let count = Count {
        passed: FAULTS - failed,
        failed,
        skipped: 0,
    };
    (count, bad)
}

/// Whether the guest suite's line ends with `ok (1.25 s)`.
fn is_ok(outcome: &str) -> bool {
    let time = outcome
        .rsplit_once("ok (")
        .and_then(|(_, time)| time.strip_suffix(" s)"));
    time.is_some_and(|time| time.parse::<f64>().is_ok())
}

/// How long each test has taken, from the lines of programs that run tests as they come.
#[derive(Debug, Default)]
pub struct Durations {
    /// When the last test ended, or its program began.
    before: f64,
    /// Seconds and names.
    all: Vec<(f64, String)>,
}

impl Durations {
    /// A line that ended `now` seconds after the start of the command. Nextest and the guest suite
    /// say how long a test took; libtest does not, so there it is the time since the result before
    /// it, which is less than the test took where others ran beside it.
    pub fn line(&mut self, line: &str, now: f64) {
        if let Some(found) = nextest(line) {
            self.all.push(found);
        } else if let Some((name, outcome)) = line.split_once(" ... ") {
            if is_ok(outcome) {
                let time = outcome
                    .rsplit_once('(')
                    .and_then(|(_, time)| time.split(' ').next());
                if let Some(seconds) = time.and_then(|time| time.parse().ok()) {
                    self.all.push((seconds, name.to_owned()));
                }
            } else if let Some(name) = name.strip_prefix("test ") {
                if matches!(outcome, "ok" | "FAILED") {
                    self.all.push((now - self.before, name.to_owned()));
                    self.before = now;
                }
            }
        } else if line.starts_with("running ") {
            self.before = now;
        }
    }

    /// The tests that took longest, at most `most` of those of at least a second.
    pub fn slowest(mut self, most: usize) -> Vec<(f64, String)> {
        self.all.sort_by(|a, b| b.0.total_cmp(&a.0));
        self.all.retain(|(seconds, _)| *seconds >= 1.0);
        self.all.truncate(most);
        self.all
    }

    /// Adds those of another command.
    pub fn append(&mut self, mut other: Durations) {
        self.all.append(&mut other.all);
    }
}

/// Seconds and name in nextest's line of a test:
/// `PASS [   1.003s] (1/4) sample tests::holds`.
fn nextest(line: &str) -> Option<(f64, String)> {
    let (word, rest) = line.trim_start().split_once(" [")?;
    let (seconds, rest) = rest.split_once("s]")?;
    let name = rest.split_once(") ").map_or(rest, |(_, name)| name);
    let is_result = matches!(word.trim_end(), "PASS" | "FAIL" | "TIMEOUT" | "LEAK");
    let seconds = seconds.trim().parse().ok().filter(|_| is_result)?;
    Some((seconds, name.trim().to_owned()))
}

/// Points at which the guest suite's fault injection has failed a call.
pub fn injected(log: &str) -> u64 {
    let numbers = log.lines().filter_map(|line| {
        let (_, behind) = line.split_once("injected faults: ")?;
        let digits = behind.split(|c: char| !c.is_ascii_digit()).next()?;
        digits.parse::<u64>().ok()
    });
    numbers.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(passed: u64, failed: u64, skipped: u64) -> Count {
        Count {
            passed,
            failed,
            skipped,
        }
    }

    const NEXTEST: &str = include_str!("samples/nextest.txt");
    const NEXTEST_NONE: &str = include_str!("samples/nextest-none.txt");
    const LIBTEST: &str = include_str!("samples/libtest.txt");
    const KILLED: &str = include_str!("samples/libtest-killed.txt");
    const BROKEN: &str = include_str!("samples/build-error.txt");
    const GUEST: &str = include_str!("samples/guest.txt");
    const GUEST_FAILED: &str = include_str!("samples/guest-failed.txt");

    #[test]
    fn nextest_counts_what_failed_in_any_way() {
        // Of four one does not hold, one is killed, one hangs.
        assert_eq!(Count::of(NEXTEST, 100), count(1, 3, 1));
        let slow = "     Summary [ 119.723s] 9 tests run: 6 passed (1 slow, 2 flaky), 1 failed, 2 exec failed, 3 skipped\n";
        assert_eq!(Count::of(slow, 100), count(6, 3, 3));
        assert_eq!(Count::of(NEXTEST_NONE, 0), count(0, 0, 5));
    }

    #[test]
    fn libtest_counts_all_its_programs() {
        // The unit tests, and a doc test.
        assert_eq!(Count::of(LIBTEST, 101), count(4, 1, 1));
    }

    #[test]
    fn the_guest_suite_and_libtest_add_up() {
        assert_eq!(Count::of(GUEST, 0), count(16, 0, 0));
        assert_eq!(Count::of(GUEST_FAILED, 1), count(14, 1, 1));
    }

    #[test]
    fn a_program_that_is_killed_has_failed() {
        assert_eq!(Count::of(KILLED, 101), count(0, 1, 0));
        // Also where another program has a test that failed.
        assert_eq!(
            Count::of(&format!("{LIBTEST}{KILLED}"), 101),
            count(4, 2, 1)
        );
    }

    #[test]
    fn a_part_without_a_summary_has_failed() {
        for status in [0, 1, 137] {
            assert_eq!(Count::of("", status), count(0, 1, 0), "{status}");
        }
        assert_eq!(Count::of(BROKEN, 101), count(0, 1, 0));
        // The guest died in the middle of a test.
        let cut = GUEST.split_once("16 passed").unwrap().0;
        assert_eq!(Count::of(cut, 121).failed, 1);
        assert_eq!(Count::of(cut, 0).failed, 1);
    }

    #[test]
    fn an_exit_status_without_a_failed_test_is_a_failure() {
        assert_eq!(Count::of("12 passed, 0 failed\n", 120), count(12, 1, 0));
        assert_eq!(
            Count::of("test result: ok. 2 passed; 0 failed; 0 ignored\n", 1),
            count(2, 1, 0)
        );
    }

    #[test]
    fn what_looks_like_a_summary_is_none() {
        for line in [
            "    test result: FAILED. 0 passed; 1 failed; 0 ignored",
            "test result: none",
            "7 passed",
            "7 passed, all is well",
            "seven passed, 0 failed",
            "",
        ] {
            assert_eq!(summary(line), None, "{line}");
        }
    }

    #[test]
    fn reasons_are_named_once() {
        let lines = reasons(NEXTEST);
        assert_eq!(lines.len(), 3, "{lines:#?}");
        for (line, word) in lines.iter().zip(["FAIL [", "SIGABRT [", "TIMEOUT ["]) {
            assert!(line.contains(word), "{line}");
        }
        assert_eq!(reasons(LIBTEST), ["    tests::does_not_hold"]);
        let guest = reasons(GUEST_FAILED);
        assert_eq!(guest.len(), 1, "{guest:#?}");
        assert!(guest[0].starts_with("    domain::leave: "), "{guest:#?}");
        assert!(reasons(GUEST).is_empty());
        assert_eq!(reasons(BROKEN), [""; 0]);
        let many: String = (0..100).map(|n| format!("   FAIL [ {n}s] t\n")).collect();
        assert_eq!(reasons(&many).len(), 40);
    }

    #[test]
    fn each_proven_fault_is_one_test() {
        let all: String = (1..=FAULTS)
            .map(|n| format!("request::proven_{n:02}_of_it ... ok (0.12 s)\n"))
            .collect();
        assert_eq!(proven(&all, 0), (count(11, 0, 0), vec![]));
        // What the kernel says beside them.
        assert_eq!(proven(&all, 120), (count(10, 1, 0), vec![]));
        let failed = format!("{all}pinning::proven_07_again ... FAILED (1.00 s)\n");
        assert_eq!(proven(&failed, 1), (count(10, 1, 0), vec![7]));
        let skipped = all.replace(
            "proven_03_of_it ... ok (0.12 s)",
            "proven_03_of_it ... skipped: no engine",
        );
        assert_eq!(proven(&skipped, 0), (count(10, 1, 0), vec![3]));
        let cut = all.replace(" ok (0.12 s)\nrequest::proven_11", "\nrequest::proven_11");
        assert_eq!(proven(&cut, 121).1, [10]);
        assert_eq!(proven("", 119).0, count(0, 11, 0));
    }

    #[test]
    fn injected_faults_add_up() {
        assert_eq!(
            injected("injected faults: 12\n    injected faults: 30 of 31\nnone\n"),
            42
        );
        assert_eq!(injected(""), 0);
    }

    #[test]
    fn slow_tests_are_named() {
        let mut all = Durations::default();
        for (line, now) in [
            ("running 3 tests", 10.0),
            ("test a::first ... ok", 11.5),
            ("test a::left_out ... ignored", 11.6),
            ("test a::second ... FAILED", 15.0),
            ("test result: FAILED. 1 passed; 1 failed", 15.0),
            ("running 1 test", 30.0),
            ("test quick ... ok", 30.2),
            ("request::moves ... ok (2.25 s)", 31.0),
            ("request::absent ... skipped: no engine", 31.0),
            (
                "        PASS [   2.500s] ( 1/942) sample tests::holds",
                32.0,
            ),
            (
                "        SLOW [> 60.000s] ( 2/942) sample tests::goes_on",
                92.0,
            ),
        ] {
            all.line(line, now);
        }
        let mut whole = Durations::default();
        whole.append(all);
        let slowest = whole.slowest(3);
        let names: Vec<(f64, &str)> = slowest.iter().map(|(s, n)| (*s, n.as_str())).collect();
        assert_eq!(
            names,
            [
                (3.5, "a::second"),
                (2.5, "sample tests::holds"),
                (2.25, "request::moves")
            ]
        );
    }
}
