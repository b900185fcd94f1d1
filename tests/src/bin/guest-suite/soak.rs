// SPDX-License-Identifier: MIT OR Apache-2.0

//! Everything at once, for as long as one likes: teams whose collectives return early, by every
//! way; teams whose ranks die; processes that submit, switch and cancel requests until they are
//! killed; and, with modelled copy engines, faults of these all the while. Not on slow kernels
//! (`--scale`), where a channel takes a minute to come back.

use std::time::{Duration, Instant};

use libcopy::TeamKey;
use libcopy::offload::Async;
use libcopy::offload::Executor;

use crate::device::Device;
use crate::harness::{Context, Outcome, Stop};
use crate::kernel::Stats;
use crate::request_death;
use crate::request_setup::{Pair, Parameter, all_in_service, ask, modelled, with_each};
use crate::rng::Rng;
use crate::sys::{self, Child, SharedCounters};
use crate::{check, matrix, offload, tests};

tests!(soak: everything_at_once(180));

/// Teams that stay: their ranks, and who copies.
const TEAMS: &[(usize, Async)] = &[
    (3, Async::Fixed(Executor::Engine)),
    (2, Async::Fixed(Executor::Both)),
    (2, Async::Auto),
];

/// Processes with requests of their own.
const RESTLESS: usize = 3;

/// Words of the counters: collectives, pairs of ranks of which one was killed, those of them whose
/// survivor touched lost bytes, and the round after which each team ends.
const ROUNDS: usize = 0;
const PAIRS: usize = 1;
const LOSSES: usize = 2;
const LAST: usize = 8;

/// Has every channel acquired, which a process that is to be killed should not have to wait for.
fn warm_up(device: &Device, key: [u8; 16]) -> Outcome {
    let mut channels = 0;
    for index in 0..device.info()?.engines {
        channels += device.engine(index)?.channels;
    }
    for _ in 0..channels {
        sys::in_child(|| {
            let own = Device::member(key)?;
            let pair = Pair::new(&own, sys::PAGE)?;
            let id = pair.submit(&own)?;
            own.complete(id)?;
            pair.check()
        })?;
    }
    Ok(())
}

/// Two ranks, of which one is killed at some moment.
fn pair(rng: &mut Rng, counters: &SharedCounters) -> Outcome {
    let joined = SharedCounters::new()?;
    let (key, seed) = (TeamKey::random()?, rng.word() >> 1);
    let rank = |rank| {
        let joined = &joined;
        Child::spawn(move || {
            offload::expect_loss();
            let mut team = offload::join(&key, rank, 2, Async::Fixed(Executor::Engine))?;
            joined.bump(0);
            offload::restless(&mut team, seed, |_, _| Ok(true))
        })
    };
    let mut ranks = vec![rank(0)?, rank(1)?];
    joined.await_at_least(0, 2)?;
    std::thread::sleep(Duration::from_micros(rng.below(200_000)));
    ranks.swap_remove(rng.index(2)).kill()?;
    counters.bump(PAIRS);
    let lost = format!("status {}", offload::LOST_STATUS);
    match ranks.remove(0).join() {
        Err(Stop::Fail(why)) if why.ends_with(&lost) => {
            counters.bump(LOSSES);
            Ok(())
        }
        Err(Stop::Fail(why)) if why.contains("died") => Ok(()),
        Err(other) => Err(other),
        Ok(()) => Err("a rank ended that was to go on".to_owned().into()),
    }
}

fn everything_at_once(context: &Context) -> Outcome {
    with_each(|| {
        let faulty = modelled() && context.scale == 1;
        let deadline = if faulty { 300 } else { 3000 * context.scale };
        let deadline = Parameter::set("engine_deadline_ms", deadline)?;
        let (device, key) = Device::domain()?;
        warm_up(&device, key)?;
        let end = Instant::now() + Duration::from_secs(context.soak.into());
        let before = Stats::read()?;
        let counters = SharedCounters::new()?;
        let mut rng = context.rng();
        let mut lasting = Vec::new();
        for (index, &(size, choice)) in TEAMS.iter().enumerate() {
            let (team_key, seed) = (TeamKey::random()?, rng.word() >> 1);
            let (counters, last) = (&counters, LAST + index);
            for rank in 0..size {
                lasting.push(Child::spawn(move || {
                    let mut team = offload::join(&team_key, rank, size, choice)?;
                    offload::restless(&mut team, seed, |team, round| {
                        if rank == 0 {
                            counters.bump(ROUNDS);
                            if counters.get(last) == 0 && Instant::now() > end {
                                counters.set(last, round + 1);
                            }
                        }
                        team.barrier()?;
                        Ok(counters.get(last) == 0 || round < counters.get(last))
                    })
                })?);
            }
        }
        let seed = rng.word();
        lasting.push(Child::spawn(|| {
            let mut rng = Rng::new(seed);
            loop {
                pair(&mut rng, &counters)?;
                if Instant::now() > end {
                    return Ok(());
                }
            }
        })?);
        let mut restless = Vec::new();
        let (mut kills, mut faults) = (0, 0);
        let mut news = Instant::now();
        while Instant::now() < end {
            while restless.len() < RESTLESS {
                let seed = rng.word();
                restless.push(Child::spawn(|| request_death::restless(seed, key))?);
            }
            std::thread::sleep(Duration::from_millis(rng.below(200)));
            if faulty && rng.one_in(3) {
                let after = format!("after={}", rng.below(50));
                ask(&["fault", "*", rng.pick(&matrix::told()), &after, "count=1"])?;
                faults += 1;
            }
            restless.swap_remove(rng.index(RESTLESS)).kill()?;
            kills += 1;
            if news.elapsed() > Duration::from_secs(30) {
                news = Instant::now();
                println!(
                    "\n    {} s to go: {} collectives, {} teams broken, {kills} processes killed, {faults} faults",
                    end.saturating_duration_since(news).as_secs(),
                    counters.get(ROUNDS),
                    counters.get(PAIRS),
                );
            }
        }
        for child in restless {
            child.kill()?;
        }
        if faulty {
            ask(&["clear-faults", "*"])?;
        }
        let mut outcome = Ok(());
        for child in lasting {
            let ended = child.join();
            outcome = outcome.and(ended);
        }
        outcome?;
        all_in_service(context, &device)?;
        drop(deadline);
        let after = Stats::read()?;
        print!(
            "[{} collectives, {} teams broken ({} with lost bytes), {kills} processes killed, {faults} faults",
            counters.get(ROUNDS),
            counters.get(PAIRS),
            counters.get(LOSSES),
        );
        for (name, words) in [
            ("bytes_engine", "bytes by engines"),
            ("bytes_cpu", "by CPUs"),
            ("switches", "switches"),
            ("takeovers", "takeovers"),
            ("channels_quarantined", "channels out of service"),
        ] {
            print!(", {} {words}", after.since(&before, name)?);
        }
        print!("] ");
        for word in [ROUNDS, PAIRS] {
            check!(counters.get(word) > 0, "nothing happened");
        }
        Ok(())
    })
}
