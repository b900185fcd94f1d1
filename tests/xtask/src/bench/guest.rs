// SPDX-License-Identifier: MIT OR Apache-2.0

//! `scripts/bench --vm mpi`: messages of irregular types in the guest.

use std::collections::HashMap;

/// For each type, the lowest median of each protocol in milliseconds.
pub fn segments(said: &str) -> Result<Vec<String>, String> {
    let best = medians(said);
    let of_types = ["hindexed", "struct"].map(|kind| {
        medians_of(kind, &best).ok_or(format!("the guest printed no medians of {kind}"))
    });
    let of_first = ["hindexed", "vector"].map(|kind| {
        first_messages(kind, &best).ok_or(format!("the guest printed no first messages of {kind}"))
    });
    of_types.into_iter().chain(of_first).collect()
}

/// The lowest medians by type and protocol, from lines as `get: hindexed 100000 pieces: median 1.25
/// ms, ...`.
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
    let (get, mapped) = (median("get:")?, median("mapped:")?);
    Some(format!(
        "{kind}: plain {:.2} ms, get {get:.2}, pipelined {:.2}, mapped {mapped:.2}, best {:.2}; \
         mapped {:.2} times as fast as get",
        median("plain:")?,
        median("pipelined:")?,
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
    fn of_each_protocol_the_fastest_run_counts() {
        let text = include_str!("../samples/segments.txt");
        let best = medians(text);
        for kind in ["hindexed", "struct"] {
            let line = medians_of(kind, &best).unwrap();
            assert!(line.starts_with(&format!("{kind}: plain ")), "{line}");
        }
        let twice = medians("get: struct x y median 3.5 ms\nget: struct x y median 2.5 ms\n");
        assert_eq!(twice[&("struct", "get:")], 2.5);
    }

    #[test]
    fn the_guest_names_the_protocols_as_the_summary_does() {
        let script = include_str!("../../../../scripts/segments-in-guest");
        assert!(script.contains("for protocol in get pipelined mapped best; do"));
        assert!(script.contains("    run_with plain\n"));
        assert!(script.contains("    run_with $protocol "));
    }

    #[test]
    fn protocols_that_did_not_run_have_no_ratio() {
        let best = medians("plain: hindexed x y median 3.5 ms\nget: hindexed x y median\n");
        assert_eq!(medians_of("hindexed", &best), None);
    }
}
