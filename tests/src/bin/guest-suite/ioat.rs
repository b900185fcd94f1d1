// SPDX-License-Identifier: MIT OR Apache-2.0

//! The copy engines of the virtual machine under the kernel's own driver and test client: that they
//! are what the paper's machine has, that every byte is counted, and what the driver makes of each
//! fault. What our module makes of them is tested elsewhere; here we test what it builds upon.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use ioat_model::client::{self, Client, Found};

use crate::dmatest::{Dmatest, Job};
use crate::harness::{Context, Outcome};
use crate::{check, check_eq, tests};

tests!(ioat:
    every_channel_is_registered_on_its_node,
    every_byte_is_counted_where_it_was_copied(60),
    an_engine_is_never_faster_than_it_may_be(60),
    channels_of_an_engine_share_it(60),
    data_errors_fail_one_copy(60),
    a_corrupted_byte_is_only_found_by_looking(60),
    a_lost_interrupt_costs_time_only(60),
    a_late_copy_is_waited_for(60),
    a_hung_channel_comes_back(90),
    a_halted_channel_comes_back(90),
);

/// What `scripts/vm --ioat` was told: engines and channels of each.
fn shape() -> Outcome<(usize, usize)> {
    let text = std::env::var("LIBCOPY_IOAT").map_err(|e| format!("LIBCOPY_IOAT: {e}"))?;
    let topology: ioat_model::topology::Topology = text.parse()?;
    Ok((topology.engines.into(), topology.channels.into()))
}

fn functions() -> Outcome<Vec<Found>> {
    Ok(client::functions()?)
}

fn ask(request: &str) -> Outcome<serde_json::Value> {
    Ok(Client::in_guest()?.ask(request)?)
}

/// Copies that a channel has counted, and their bytes.
fn progress(function: &Found) -> Outcome<(u64, u64)> {
    let client = Client::of(function)?;
    let progress = client.progress()?;
    Ok((progress.copies, progress.bytes))
}

/// The dmaengine channel of a function.
fn channel(function: &Found) -> Outcome<String> {
    match &function.dma[..] {
        [one] => Ok(one.clone()),
        other => Err(format!("{} has the channels {other:?}", function.address).into()),
    }
}

/// Forgets faults and limits of a test, also of one that failed.
struct Clean;

impl Clean {
    fn new() -> Outcome<Self> {
        ask("clear-faults")?;
        ask("bandwidth * max")?;
        Ok(Self)
    }
}

impl Drop for Clean {
    fn drop(&mut self) {
        let _ = ask("clear-faults");
        let _ = ask("bandwidth * max");
    }
}

fn every_channel_is_registered_on_its_node(_: &Context) -> Outcome {
    let (engines, channels) = shape()?;
    let found = functions()?;
    check_eq!(found.len(), engines * channels);
    let numa = Path::new("/sys/devices/system/node/node1").exists();
    for (index, function) in found.iter().enumerate() {
        let (engine, number) = (index / channels, index % channels);
        check_eq!(function.channel.to_string(), format!("{engine}.{number}"));
        check_eq!(function.driver.as_deref(), Some("ioatdma"));
        let name = channel(function)?;
        check!(Path::new("/sys/class/dma").join(&name).exists(), "{name}");
        if numa {
            check_eq!(function.node, engine as i32 % 2, "{}", function.address);
        }
        check!(
            function.address.ends_with(&format!(".{number}")),
            "{} is not a function of its engine's slot",
            function.address
        );
    }
    let mut buses: Vec<_> = found
        .iter()
        .map(|f| f.address.rsplit_once('.').map(|(slot, _)| slot))
        .collect();
    buses.dedup();
    check_eq!(buses.len(), engines, "one slot per engine: {buses:?}");
    Ok(())
}

fn every_byte_is_counted_where_it_was_copied(context: &Context) -> Outcome {
    let _clean = Clean::new()?;
    let dmatest = Dmatest::load(context)?;
    let found = functions()?;
    let before = found.iter().map(progress).collect::<Outcome<Vec<_>>>()?;
    // Every other channel, so that what lands on the wrong one is seen.
    let busy: Vec<_> = found
        .iter()
        .step_by(2)
        .map(channel)
        .collect::<Outcome<_>>()?;
    let job = Job::checked(context, 4, 100_000);
    let summaries = dmatest.run(&busy, job)?;
    for (index, function) in found.iter().enumerate() {
        let (copies, bytes) = progress(function)?;
        let grown = (copies - before[index].0, bytes - before[index].1);
        let expected = if index % 2 == 0 {
            (4, job.bytes())
        } else {
            (0, 0)
        };
        check_eq!(grown, expected, "{}", function.channel);
    }
    for (channel, summary) in &summaries {
        check_eq!((summary.tests, summary.failures), (4, 0), "{channel}");
    }
    Ok(())
}

/// Sixteen unchecked copies of 1 MiB on each channel, more on a slow kernel, where one channel may
/// begin long before the other: KiB/s of each.
fn rates(
    context: &Context,
    dmatest: &Dmatest,
    channels: &[String],
) -> Outcome<BTreeMap<String, u64>> {
    let copies = 16 * context.scale;
    let job = Job {
        verify: false,
        ..Job::checked(context, copies, 1 << 20)
    };
    let summaries = dmatest.run(channels, job)?;
    for (channel, summary) in &summaries {
        check_eq!((summary.tests, summary.failures), (copies, 0), "{channel}");
    }
    Ok(summaries
        .into_iter()
        .map(|(channel, summary)| (channel, summary.rate))
        .collect())
}

/// Bytes per second of an engine: so few that a copy takes longer than to submit it. Two channels
/// that share an engine still copy their MiB before `ioatdma` takes them for stuck.
const LIMIT: u64 = 20_000_000;

fn an_engine_is_never_faster_than_it_may_be(context: &Context) -> Outcome {
    let _clean = Clean::new()?;
    let dmatest = Dmatest::load(context)?;
    ask(&format!("bandwidth * {LIMIT}"))?;
    let one = [channel(&functions()?[0])?];
    let rate = rates(context, &dmatest, &one)?[&one[0]] * 1024;
    check!(rate <= LIMIT * 103 / 100, "{rate} bytes/s of {LIMIT}");
    // On a slow kernel it takes longer to submit a copy than to make it.
    check!(
        context.scale > 1 || rate >= LIMIT / 4,
        "{rate} bytes/s of {LIMIT}"
    );
    Ok(())
}

fn channels_of_an_engine_share_it(context: &Context) -> Outcome {
    let (engines, per_engine) = shape()?;
    if per_engine < 2 {
        return crate::harness::skip("an engine has one channel only");
    }
    let _clean = Clean::new()?;
    let dmatest = Dmatest::load(context)?;
    ask(&format!("bandwidth * {LIMIT}"))?;
    let names = functions()?
        .iter()
        .map(channel)
        .collect::<Outcome<Vec<_>>>()?;
    // The paper's Fig. 3c: two processes on one engine. Together they are no faster than one; what
    // one does before the other begins and after it has ended is the slack.
    let shared = rates(context, &dmatest, &names[..2])?;
    let sum: u64 = shared.values().map(|rate| rate * 1024).sum();
    check!(sum <= LIMIT * 5 / 4, "{shared:?} KiB/s share {LIMIT}");
    for (channel, rate) in &shared {
        check!(rate * 1024 <= LIMIT * 3 / 4, "{channel}: {shared:?}");
    }
    if engines > 1 {
        // Fig. 3b: with an engine of its own each, both together are faster than one engine.
        let own = rates(
            context,
            &dmatest,
            &[names[0].clone(), names[per_engine].clone()],
        )?;
        let least = own.values().min().copied().unwrap_or(0);
        let most = shared.values().max().copied().unwrap_or(u64::MAX);
        check!(
            least > most,
            "{own:?} KiB/s on engines of their own, {shared:?} on one"
        );
    }
    Ok(())
}

/// What became of three copies, the second of which had a fault.
struct Struck {
    /// Copies that failed, says dmatest.
    failures: u32,
    /// Copies that the engine has made whole.
    made: u64,
    /// How long all of them took.
    took: Duration,
}

/// Arms a fault for the second of three copies on the first channel. Afterwards the channel must
/// work again, and the fault must have struck.
fn strike(context: &Context, fault: &str) -> Outcome<Struck> {
    let _clean = Clean::new()?;
    let dmatest = Dmatest::load(context)?;
    let function = &functions()?[0];
    let name = [channel(function)?];
    let counter = |name: &str| -> Outcome<u64> {
        let stats = ask(&format!("stats {}", function.channel))?;
        stats[0][name]
            .as_u64()
            .ok_or_else(|| format!("no counter {name}: {stats}").into())
    };
    let before = counter("faults")?;
    let (copies_before, _) = progress(function)?;
    ask(&format!("fault {} {fault} after=1", function.channel))?;
    // The driver's timer finds a lost interrupt within 2 s.
    let job = Job {
        timeout: Duration::from_secs(4) * context.scale,
        ..Job::checked(context, 3, 50_000)
    };
    let begin = Instant::now();
    let failures = dmatest.run(&name, job)?[&name[0]].failures;
    let took = begin.elapsed();
    check_eq!(counter("faults")?, before + 1, "{fault} struck once");
    let (copies, bytes) = progress(function)?;
    let after = dmatest.run(&name, Job::checked(context, 4, 50_000))?;
    check_eq!(after[&name[0]].failures, 0, "after {fault}");
    check_eq!(
        progress(function)?,
        (copies + 4, bytes + 200_000),
        "after {fault}"
    );
    Ok(Struck {
        failures,
        made: copies - copies_before,
        took,
    })
}

fn data_errors_fail_one_copy(context: &Context) -> Outcome {
    for fault in ["read-error", "write-error"] {
        let Struck { failures, made, .. } = strike(context, fault)?;
        // The driver wakes who waits for the failed copy before it resets the channel: a copy that
        // is queued in between, is aborted. No other fails, and none that was aborted has been
        // made.
        check!((1..=2).contains(&failures), "{fault}: {failures} failed");
        check_eq!(made, u64::from(3 - failures), "{fault}: {failures} failed");
    }
    Ok(())
}

fn a_corrupted_byte_is_only_found_by_looking(context: &Context) -> Outcome {
    let Struck { failures, made, .. } = strike(context, "corrupt")?;
    check_eq!((failures, made), (1, 3));
    let _clean = Clean::new()?;
    let dmatest = Dmatest::load(context)?;
    let function = &functions()?[0];
    ask(&format!("fault {} corrupt", function.channel))?;
    let name = [channel(function)?];
    let job = Job {
        verify: false,
        ..Job::checked(context, 1, 4096)
    };
    check_eq!(
        dmatest.run(&name, job)?[&name[0]].failures,
        0,
        "nobody looked"
    );
    Ok(())
}

fn a_lost_interrupt_costs_time_only(context: &Context) -> Outcome {
    let Struck {
        failures,
        made,
        took,
    } = strike(context, "lost-interrupt")?;
    check_eq!((failures, made), (0, 3));
    check!(
        took >= Duration::from_millis(150),
        "found by the driver's timer, not in {took:?}"
    );
    Ok(())
}

fn a_late_copy_is_waited_for(context: &Context) -> Outcome {
    let Struck { failures, took, .. } = strike(context, "delay=120")?;
    check_eq!(failures, 0);
    check!(took >= Duration::from_millis(120), "{took:?}");
    Ok(())
}

fn a_hung_channel_comes_back(context: &Context) -> Outcome {
    let failures = strike(context, "hang")?.failures;
    check!(failures >= 1, "{failures}");
    Ok(())
}

fn a_halted_channel_comes_back(context: &Context) -> Outcome {
    let failures = strike(context, "halt")?.failures;
    check!(failures >= 1, "{failures}");
    Ok(())
}
