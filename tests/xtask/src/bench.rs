// SPDX-License-Identifier: MIT OR Apache-2.0

//! `scripts/bench mpi`: where the time of receivers goes, and messages of irregular types in the guest.

use std::collections::HashMap;
use std::path::Path;

use crate::statistics::Statistics;
use crate::{Verdict, read};

/// Prints where the time of a message goes, in microseconds: the sender's layout, mapping its memory, copying,
/// and the rest. Prints nothing where no messages were intercepted.
pub fn breakdown(name: &str, bytes: &str, statistics: &Path) -> Verdict {
    if let Some(line) = times(name, bytes, &Statistics::read(statistics)) {
        println!("{line}");
    }
    Ok(true)
}

fn times(name: &str, bytes: &str, statistics: &Statistics) -> Option<String> {
    let received = statistics.messages("received");
    if received == 0 {
        return None;
    }
    let steps =
        ["ns of layouts", "ns of mapping", "ns of copying"].map(|what| statistics.messages(what));
    let rest = statistics.messages("ns of receiving") as f64 - steps.iter().sum::<u64>() as f64;
    let [layout, map, copy] = steps.map(|ns| ns as f64);
    let [layout, map, copy, rest] = [layout, map, copy, rest].map(|ns| ns / received as f64 / 1e3);
    Some(format!(
        "{name:<24} {bytes:>9} {received:>8} {layout:>9.2} {map:>9.2} {copy:>9.2} {rest:>9.2}"
    ))
}

/// Prints, for each type, the lowest median of each protocol in milliseconds.
pub fn segments(file: &Path) -> Verdict {
    let text = read(file)?;
    let best = medians(&text);
    for kind in ["hindexed", "struct"] {
        let line =
            medians_of(kind, &best).ok_or(format!("no medians of {kind} in {}", file.display()))?;
        println!("{line}");
    }
    for kind in ["hindexed", "vector"] {
        let line = first_messages(kind, &best)
            .ok_or(format!("no first messages of {kind} in {}", file.display()))?;
        println!("{line}");
    }
    Ok(true)
}

/// The lowest medians by type and protocol, from lines as `fetch: hindexed 3200000 bytes median 1.25 ms ...`.
fn medians(text: &str) -> HashMap<(&str, &str), f64> {
    let mut best = HashMap::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [protocol, kind, _, _, "median", median, ..] = words[..] else {
            continue;
        };
        if let Ok(median) = median.parse::<f64>() {
            let lowest = best.entry((kind, protocol)).or_insert(median);
            *lowest = lowest.min(median);
        }
    }
    best
}

fn medians_of(kind: &str, best: &HashMap<(&str, &str), f64>) -> Option<String> {
    let median = |protocol| best.get(&(kind, protocol)).copied();
    let (get, mapped) = (median("fetch:")?, median("attach:")?);
    Some(format!(
        "{kind}: plain {:.2} ms, get {get:.2}, pipelined {:.2}, mapped {mapped:.2}, best {:.2}; \
         mapped {:.2} times as fast as get",
        median("plain:")?,
        median("stream:")?,
        median("best:")?,
        get / mapped
    ))
}

fn first_messages(kind: &str, best: &HashMap<(&str, &str), f64>) -> Option<String> {
    let median = |run| best.get(&(kind, run)).copied();
    let (with, without) = (median("first-module:")?, median("first-without:")?);
    Some(format!(
        "{kind}, first message, sender elsewhere: with the module {with:.2} ms, without {without:.2} ms: \
         {:.1} times as fast",
        without / with
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_messages_are_compared() {
        let text = "first-module: vector 5 pieces: median 2.000 ms, lowest\n\
                    first-without: vector 5 pieces: median 30.000 ms, lowest\n";
        let line = first_messages("vector", &medians(text)).unwrap();
        assert!(
            line.ends_with("2.00 ms, without 30.00 ms: 15.0 times as fast"),
            "{line}"
        );
        assert_eq!(first_messages("hindexed", &medians(text)), None);
    }

    #[test]
    fn steps_of_a_message_add_up() {
        let text = r#"{"messages":{"received":3,"ns of layouts":3000,"ns of mapping":6000,"ns of copying":9000,"ns of receiving":30000}}
{"messages":{"received":1,"ns of layouts":1000,"ns of mapping":2000,"ns of copying":3000,"ns of receiving":10000}}
"#;
        let line = times("milc", "4096", &Statistics::of(text)).unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words, ["milc", "4096", "4", "1.00", "2.00", "3.00", "4.00"]);
        assert_eq!(times("milc", "4096", &Statistics::of("")), None);
    }

    #[test]
    fn of_each_protocol_the_fastest_run_counts() {
        let text = include_str!("samples/segments.txt");
        let best = medians(text);
        for kind in ["hindexed", "struct"] {
            let line = medians_of(kind, &best).unwrap();
            assert!(line.starts_with(&format!("{kind}: plain ")), "{line}");
        }
        let twice = medians("fetch: struct x y median 3.5 ms\nfetch: struct x y median 2.5 ms\n");
        assert_eq!(twice[&("struct", "fetch:")], 2.5);
    }

    #[test]
    fn protocols_that_did_not_run_have_no_ratio() {
        let best = medians("plain: hindexed x y median 3.5 ms\nfetch: hindexed x y median\n");
        assert_eq!(medians_of("hindexed", &best), None);
    }
}
