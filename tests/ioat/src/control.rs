// SPDX-License-Identifier: MIT OR Apache-2.0

//! What tests ask of a running model, over its control socket or a [mailbox](crate::mailbox): one
//! line is one request, one line of JSON is its answer (on the socket an error is
//! `{"error": "..."}`).
//!
//! | request | answer |
//! |---|---|
//! | `stats [CHANNELS]` | state and counters of each channel: [`ChannelReport`] |
//! | `totals [CHANNELS]` | the counters of all of them added up |
//! | `clear-stats [CHANNELS]` | `null`; their counters are zero |
//! | `fault CHANNELS KIND [after=N] [count=N]` | how many channels were armed |
//! | `clear-faults [CHANNELS]` | `null`; what was armed is forgotten |
//! | `bandwidth ENGINES RATE` | `null`; `0.*` or `*`, and bytes per second or `max` |
//! | `topology` | engines, channels, and each engine's bandwidth |
//!
//! CHANNELS is `ENGINE.CHANNEL`, `ENGINE.*` or `*` (the default).

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::thread;

use serde::Serialize;
use serde_json::{Value, json};

use crate::channel::Counters;
use crate::fault::Armed;
use crate::function::Function;
use crate::model::Model;
use crate::registers::Status;
use crate::topology::{ChannelId, Selection, parse_rate};

/// The requests, for messages.
const REQUESTS: &str = "stats, totals, clear-stats, fault, clear-faults, bandwidth, topology";

/// State and counters of a channel.
#[derive(Serialize)]
pub struct ChannelReport {
    /// `ENGINE.CHANNEL`.
    pub channel: String,
    /// active, done, suspended or halted.
    pub status: Status,
    /// Hung by a fault.
    pub hung: bool,
    /// CHANERR.
    pub errors: u32,
    /// What happened.
    #[serde(flatten)]
    pub counters: Counters,
    /// Faults that wait.
    pub armed: Vec<Armed>,
}

impl ChannelReport {
    fn new(id: ChannelId, function: &Function) -> Self {
        let channel = &function.channel;
        Self {
            channel: id.to_string(),
            status: channel.status(),
            hung: channel.is_hung(),
            errors: channel.errors(),
            counters: channel.counters,
            armed: channel.faults.armed().to_vec(),
        }
    }
}

/// Executes one request.
pub fn execute(model: &Model, request: &str) -> Result<Value, String> {
    let mut words = request.split_whitespace();
    let verb = words.next().unwrap_or_default();
    let rest: Vec<&str> = words.collect();
    let selection = || match rest[..] {
        [] => Ok(Selection::ALL),
        [channels] => channels.parse::<Selection>(),
        _ => Err(format!("'{verb}' takes one word, not '{}'", rest.join(" "))),
    };
    match verb {
        "stats" => {
            let reports = model.visit(selection()?, |id, function| {
                ChannelReport::new(id, function)
            })?;
            Ok(json!(reports))
        }
        "totals" => {
            let all = model.visit(selection()?, |_, function| function.channel.counters)?;
            Ok(json!(all.iter().fold(Counters::default(), add)))
        }
        "clear-stats" => {
            model.visit(selection()?, |_, function| {
                function.channel.counters = Counters::default();
            })?;
            Ok(Value::Null)
        }
        "fault" => {
            let [channels, ref kind @ ..] = rest[..] else {
                return Err("fault CHANNELS KIND [after=N] [count=N]".to_owned());
            };
            let armed: Armed = kind.join(" ").parse()?;
            let channels = model.visit(channels.parse()?, |_, function| {
                function.channel.faults.arm(armed);
            })?;
            Ok(json!(channels.len()))
        }
        "clear-faults" => {
            model.visit(selection()?, |_, function| function.channel.faults.clear())?;
            Ok(Value::Null)
        }
        "bandwidth" => match rest[..] {
            [engines, rate] => {
                model.set_bandwidth(engines.parse()?, parse_rate(rate)?)?;
                Ok(Value::Null)
            }
            _ => Err("bandwidth ENGINES RATE".to_owned()),
        },
        "topology" => Ok(json!({
            "engines": model.topology().engines,
            "channels": model.topology().channels,
            "bandwidth": model.bandwidths(),
        })),
        _ => Err(format!("'{verb}' is not a request: {REQUESTS}")),
    }
}

fn add(sum: Counters, one: &Counters) -> Counters {
    Counters {
        bytes: sum.bytes + one.bytes,
        copies: sum.copies + one.copies,
        nulls: sum.nulls + one.nulls,
        completions: sum.completions + one.completions,
        interrupts: sum.interrupts + one.interrupts,
        lost_interrupts: sum.lost_interrupts + one.lost_interrupts,
        halts: sum.halts + one.halts,
        resets: sum.resets + one.resets,
        suspensions: sum.suspensions + one.suspensions,
        faults: sum.faults + one.faults,
    }
}

/// Answers requests on a socket at `path` until the process ends.
pub fn listen(model: Arc<Model>, path: &Path) -> io::Result<()> {
    let listener = UnixListener::bind(path)?;
    // Only the user who may stop the virtual machine may also spoil its copies.
    let owner_only = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    fs::set_permissions(path, owner_only)?;
    thread::Builder::new()
        .name("control".to_owned())
        .spawn(move || {
            for stream in listener.incoming().flatten() {
                let model = model.clone();
                // A client that we have no thread for sees its connection end.
                let _ = thread::Builder::new().spawn(move || converse(&model, stream));
            }
        })?;
    Ok(())
}

fn converse(model: &Model, stream: UnixStream) {
    let Ok(mut writer) = stream.try_clone() else {
        return;
    };
    for line in BufReader::new(stream).lines() {
        let Ok(line) = line else { return };
        let answer = execute(model, &line).unwrap_or_else(|reason| json!({ "error": reason }));
        if writeln!(writer, "{answer}").is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model() -> Arc<Model> {
        Model::start("2x2,bw=1M".parse().expect("valid")).expect("threads start")
    }

    #[test]
    fn requests_reach_the_channels_that_they_name() {
        let model = model();
        assert_eq!(execute(&model, "fault 1.* corrupt after=3"), Ok(json!(2)));
        assert_eq!(execute(&model, "fault 0.1 delay=5 count=all"), Ok(json!(1)));
        let stats = execute(&model, "stats").expect("answered");
        let armed: Vec<_> = (0..4).map(|at| stats[at]["armed"].to_string()).collect();
        assert_eq!(armed[0], "[]");
        assert_eq!(armed[2], r#"["corrupt after=3 count=1"]"#);
        assert_eq!(stats[3]["channel"], "1.1");
        assert_eq!(stats[3]["status"], "halted");
        assert_eq!(execute(&model, "clear-faults 1.0"), Ok(Value::Null));
        assert_eq!(
            execute(&model, "stats 1.0").expect("answered")[0]["armed"],
            json!([])
        );
        assert_eq!(execute(&model, "totals").expect("answered")["bytes"], 0);
        assert_eq!(execute(&model, "bandwidth 1.* 5M"), Ok(Value::Null));
        let topology = execute(&model, "topology").expect("answered");
        assert_eq!(topology["bandwidth"], json!([1_000_000, 5_000_000]));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let model = model();
        for (request, word) in [
            ("", "stats"),
            ("explode", "'explode'"),
            ("stats 7.1", "7.1"),
            ("stats x", "'x'"),
            ("stats 0.0 0.1", "one word"),
            ("fault", "CHANNELS"),
            ("fault 0.0", "no fault"),
            ("fault 0.0 halt twice", "'twice'"),
            ("bandwidth *", "RATE"),
            ("bandwidth * fast", "'fast'"),
            ("bandwidth 9.* 1M", "9"),
        ] {
            let error = execute(&model, request).expect_err(request);
            assert!(error.contains(word), "{request}: {error}");
        }
    }
}
