// SPDX-License-Identifier: MIT OR Apache-2.0

//! `scripts/bench mpi --breakdown`: where the time of those who receive goes.

use crate::statistics::Statistics;

/// What the columns of the lines are; times are in microseconds per message that is received.
pub fn head(protocol: &str) -> String {
    format!(
        "us per message that is received, {protocol}: the sender's layout, mapping its memory, copying, and the \
         rest (waiting for the sender, most of all)\n\
         {:<24} {:>9} {:>8} {:>9} {:>9} {:>9} {:>9}",
        "layout", "bytes", "messages", "layout", "map", "copy", "rest"
    )
}

/// The line of a layout (`NAME TAB TYPE`), from what tests/peers/mpi_pingpong.c printed and the
/// statistics. None where no messages were intercepted.
pub fn line(layout: &str, printed: &str, statistics: &Statistics) -> Option<String> {
    let name = layout.split('\t').next()?;
    times(name, printed.split(',').nth(1)?, statistics)
}

/// What is printed of a layout whose messages are forwarded: the line of a run in which they had to
/// be intercepted, marked, or, where that run had none either, that there is none.
pub fn forwarded(layout: &str, forced: Option<String>) -> String {
    match forced {
        Some(line) => format!(
            "{line}  (forwarded unless LIBCOPY_MPI_MIN asks: libcopy takes the library for as fast)"
        ),
        None => {
            let name = layout.split('\t').next().unwrap_or(layout);
            format!(
                "{name:<24} no message was intercepted, with LIBCOPY_MPI_MIN=1 either; `LIBCOPY_STATS=1` says why"
            )
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_of_a_message_add_up() {
        let text = r#"{"messages":{"received":3,"ns of layouts":3000,"ns of mapping":6000,"ns of copying":9000,"ns of receiving":30000}}
{"messages":{"received":1,"ns of layouts":1000,"ns of mapping":2000,"ns of copying":3000,"ns of receiving":10000}}
"#;
        let line = times("milc", "4096", &Statistics::of(text)).unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words, ["milc", "4096", "4", "1.00", "2.00", "3.00", "4.00"]);
        assert_eq!(times("milc", "4096", &Statistics::of("")), None);
        let printed = "typed-pingpong,4096,2,,1.0:1.1:1.2:1.3,yes,milc\n";
        let from_launch = super::line("milc\tvector(1,1,1,byte)", printed, &Statistics::of(text));
        assert_eq!(from_launch, Some(line));
    }

    #[test]
    fn layouts_that_are_forwarded_have_a_line() {
        let line = forwarded("milc\tbyte", Some("milc 1 2".to_owned()));
        assert!(line.starts_with("milc 1 2  (forwarded"), "{line}");
        assert!(forwarded("milc\tbyte", None).starts_with("milc  "));
    }
}
