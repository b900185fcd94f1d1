// SPDX-License-Identifier: MIT OR Apache-2.0

//! The end of what `scripts/demo` prints: the largest messages of `libcopy bench coll --csv`, and
//! what the figures mean.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::{Verdict, read};

/// Transports: what the column of the file calls them, and what the table does.
const TRANSPORTS: [(&str, &str); 3] = [
    ("libcopy-kmod", "module"),
    ("libcopy-cma", "CMA"),
    ("libcopy-shm", "shared memory"),
];

/// Operations: what the file calls them, and what the table does.
const OPERATIONS: [(&str, &str); 2] = [("bcast", "broadcast"), ("gather", "gather")];

/// The medians of one machine, in microseconds.
struct Machine {
    name: String,
    /// Of the largest messages, in bytes.
    bytes: u64,
    ranks: u64,
    /// By operation and variant.
    times: BTreeMap<(String, String), f64>,
}

impl Machine {
    /// Reads a file.
    ///
    /// # Errors
    ///
    /// A line without the columns of the file, or no line of a message.
    fn parse(name: &str, csv: &str) -> Result<Machine, String> {
        let mut machine = Machine {
            name: name.to_owned(),
            bytes: 0,
            ranks: 0,
            times: BTreeMap::new(),
        };
        for line in csv.lines().skip(1) {
            let [op, bytes, ranks, variant, median, ..] = line.split(',').collect::<Vec<_>>()[..]
            else {
                return Err(format!("{name}: '{line}' has too few columns"));
            };
            let wrong = |what: &str| format!("{name}: {what} in '{line}'");
            let bytes: u64 = bytes.parse().map_err(|_| wrong("no number of bytes"))?;
            if bytes < machine.bytes || bytes == 0 {
                continue;
            }
            if bytes > machine.bytes {
                machine.bytes = bytes;
                machine.times.clear();
            }
            machine.ranks = ranks.parse().map_err(|_| wrong("no number of ranks"))?;
            let median: f64 = median.parse().map_err(|_| wrong("no time"))?;
            machine
                .times
                .insert((op.to_owned(), variant.to_owned()), median);
        }
        if machine.times.is_empty() {
            return Err(format!("{name}: no message was measured"));
        }
        Ok(machine)
    }

    /// The time of an operation by a transport, in milliseconds with three digits.
    fn time(&self, op: &str, variant: &str) -> String {
        match self.times.get(&(op.to_owned(), variant.to_owned())) {
            None => "-".to_owned(),
            Some(us) if *us < 10_000.0 => format!("{:.2}", us / 1000.0),
            Some(us) if *us < 100_000.0 => format!("{:.1}", us / 1000.0),
            Some(us) => format!("{:.0}", us / 1000.0),
        }
    }
}

/// Prints the table of the files, each given as NAME=FILE.
///
/// # Errors
///
/// A file that cannot be read, or is none of `libcopy bench coll`.
pub fn run(files: &[&str]) -> Verdict {
    let mut machines = Vec::new();
    for given in files {
        let (name, file) = given
            .split_once('=')
            .ok_or(format!("'{given}' is not NAME=FILE"))?;
        machines.push(Machine::parse(name, &read(file.as_ref())?)?);
    }
    print!("{}", table(&machines)?);
    Ok(true)
}

/// The table, and what it means.
///
/// # Errors
///
/// The machines were measured with different ranks or sizes.
fn table(machines: &[Machine]) -> Result<String, String> {
    let first = machines.first().ok_or("no file")?;
    let (bytes, ranks) = (first.bytes, first.ranks);
    if machines
        .iter()
        .any(|m| (m.bytes, m.ranks) != (bytes, ranks))
    {
        return Err("the files are of different ranks or sizes".to_owned());
    }
    let mut text = String::new();
    let head = format!("milliseconds, {ranks} ranks, {} MiB", bytes >> 20);
    let _ = write!(text, "{head:<36}");
    for (_, transport) in TRANSPORTS {
        let _ = write!(text, " {transport:>13}");
    }
    text.push('\n');
    for machine in machines {
        for (op, name) in OPERATIONS {
            let _ = write!(text, "{:<36}", format!("{name}, {}", machine.name));
            for (variant, _) in TRANSPORTS {
                let _ = write!(text, " {:>13}", machine.time(op, variant));
            }
            text.push('\n');
        }
    }
    text.push_str(
        "Less is better. The module pins a buffer once, then each rank copies from it; CMA is process_vm_readv, one\n\
         system call per copy; shared memory needs no rights and copies twice. Compare the columns of a line only.\n",
    );
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: &str = "op,bytes,ranks,variant,median_us,p10_us,p90_us,verified\n\
        barrier,0,4,libcopy,85.4,20.2,143.1,yes\n\
        bcast,4096,4,libcopy-cma,6.8,5.1,7.0,yes\n\
        bcast,16777216,4,libcopy-cma,6092.7,1,2,yes\n\
        bcast,16777216,4,libcopy-shm,60019.4,1,2,yes\n\
        gather,16777216,4,libcopy-cma,46954.1,1,2,yes\n\
        gather,16777216,4,libcopy-shm,755824.0,1,2,yes\n";

    #[test]
    fn the_largest_messages_are_shown() {
        let guest = HOST.replace("libcopy-shm", "libcopy-kmod");
        let machines = [
            Machine::parse("this machine", HOST).expect("a file"),
            Machine::parse("virtual machine", &guest).expect("a file"),
        ];
        let text = table(&machines).expect("files of one kind");
        let lines: Vec<Vec<&str>> = text
            .lines()
            .map(|l| l.split_whitespace().collect())
            .collect();
        assert_eq!(lines.len(), 7, "{text}");
        assert_eq!(
            lines[0].join(" "),
            "milliseconds, 4 ranks, 16 MiB module CMA shared memory"
        );
        assert_eq!(lines[1].join(" "), "broadcast, this machine - 6.09 60.0");
        assert_eq!(lines[2].join(" "), "gather, this machine - 47.0 756");
        assert_eq!(lines[3].join(" "), "broadcast, virtual machine 60.0 6.09 -");
        let widest = text.lines().map(|line| line.chars().count()).max();
        assert!(widest <= Some(110), "{text}");
    }

    #[test]
    fn what_cannot_be_compared_is_refused() {
        for (csv, why) in [
            ("", "no message"),
            (
                "head\nbarrier,0,4,libcopy,85.4,20.2,143.1,yes\n",
                "no message",
            ),
            ("head\nbcast,4096\n", "too few columns"),
            (
                "head\nbcast,large,4,libcopy,1,1,1,yes\n",
                "no number of bytes",
            ),
            ("head\nbcast,4096,4,libcopy,soon,1,1,yes\n", "no time"),
        ] {
            let error = Machine::parse("here", csv).err().unwrap_or_default();
            assert!(error.contains(why), "{csv}: {error}");
        }
        let machines = [
            Machine::parse("a", HOST).expect("a file"),
            Machine::parse("b", &HOST.replace("16777216", "1048576")).expect("a file"),
        ];
        assert!(table(&machines).is_err());
        assert!(table(&[]).is_err());
    }
}
