// SPDX-License-Identifier: MIT OR Apache-2.0

//! Calls and their times, replayed: `traces.txt` has the decisions that each of these led to. A
//! change of the governor that is to decide as before leaves the file alone; one that decides
//! otherwise says so by changing it. The times are integers made from a seed, so they are the same
//! on every machine.

use std::fmt::Write as _;

use super::*;

/// Random numbers (xorshift).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 8
    }

    /// A time around `mean`: up to 30 % of noise, and one in a hundred is interrupted.
    fn time(&mut self, mean: u64) -> u64 {
        let noisy = mean * (70 + self.next() % 61) / 100;
        let interrupted = self.next() % 100 == 0;
        noisy * if interrupted { 2 + self.next() % 19 } else { 1 }
    }
}

/// What calls take, intercepted and forwarded, up to some call and from it on.
#[derive(Clone, Copy)]
struct Costs {
    before: [u64; 2],
    behind: [u64; 2],
    change: u64,
}

impl Costs {
    fn of(&self, call: u64, decision: Decision) -> u64 {
        let costs = if call < self.change {
            self.before
        } else {
            self.behind
        };
        costs[decision as usize]
    }
}

/// Each mechanism meets these.
const COSTS: [Costs; 6] = [
    steady([300_000, 200_000]),
    steady([200_000, 300_000]),
    steady([100_000, 97_000]),
    steady([4_000, 16_000]),
    steady([900, 450]),
    Costs {
        before: [100_000, 150_000],
        behind: [150_000, 100_000],
        change: 7_000,
    },
];

const fn steady(costs: [u64; 2]) -> Costs {
    Costs {
        before: costs,
        behind: costs,
        change: u64::MAX,
    }
}

const CALLS: u64 = 12_000;

/// Decisions, as runs of equal ones.
#[derive(Default)]
struct Record {
    runs: Vec<(Decision, u64)>,
}

impl Record {
    fn add(&mut self, decision: Decision, calls: u64) {
        match self.runs.last_mut() {
            _ if calls == 0 => {}
            Some((last, number)) if *last == decision => *number += calls,
            _ => self.runs.push((decision, calls)),
        }
    }

    /// The first runs, and a hash of all (FNV-1a).
    fn line(&self, name: &str, governor: &Governor) -> String {
        let letter = |decision| match decision {
            Decision::Intercept => 'i',
            Decision::Forward => 'f',
        };
        let run = |(decision, calls): &(_, u64)| format!("{calls}{}", letter(*decision));
        let all: Vec<String> = self.runs.iter().map(run).collect();
        let mut hash = 0xcbf2_9ce4_8422_2325u64;
        for byte in all.join(" ").bytes() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
        let [intercepted, forwarded] = governor.calls();
        let first = all[..all.len().min(12)].join(" ");
        format!(
            "{name}: {intercepted} {forwarded}, {} trials, {} runs {hash:016x}: {first}\n",
            governor.trials(),
            all.len()
        )
    }
}

/// One process decides by the time of its calls.
fn alone(costs: Costs, seed: u64, name: &str) -> String {
    let (mut class, mut random) = (Timed::new(Decision::Intercept), Random(seed));
    let (mut record, mut call) = (Record::default(), 0);
    while call < CALLS {
        let (decision, calls) = match class.next_alone(64, &Moment::NONE, (40, 1)) {
            Next::Pass(decision, calls) => (decision, calls),
            Next::Sample(decision, slot) => {
                let slot = slot.expect("the time of each call");
                class.put(slot, 40 + random.time(costs.of(call, decision)));
                (decision, 1)
            }
        };
        record.add(decision, calls);
        call += calls;
    }
    record.line(name, class.governor())
}

/// Three ranks decide by the sums of the times of their calls, which they tell each other.
fn summed(costs: Costs, seed: u64, name: &str) -> String {
    let mut random = Random(seed);
    let mut ranks = vec![Timed::new(Decision::Intercept); 3];
    let mut record = Record::default();
    for call in 0..CALLS {
        let times: Vec<Times> = ranks.iter().map(|class| *class.times()).collect();
        let mut ways = Vec::new();
        for (rank, class) in ranks.iter_mut().enumerate() {
            let mut next = class.next(1, &Moment::NONE);
            if next.is_none() {
                class.decide(&sums(times.iter().copied()), costs.before[0] / 8, 1);
                next = class.next(1, &Moment::NONE);
            }
            let next = next.expect("decided a moment ago");
            // Some calls of some ranks fail.
            let fails = rank == 1 && call % 50 == 7;
            if let (Next::Sample(decision, Some(slot)), false) = (next, fails) {
                class.put(slot, random.time(costs.of(call, decision)));
            }
            ways.push(next.decision());
        }
        assert!(ways.iter().all(|way| *way == ways[0]), "{name}");
        record.add(ways[0], 1);
    }
    record.line(name, ranks[0].governor())
}

/// A sender decides by the pace of its program, which sends several messages and waits for them.
fn paced(costs: Costs, seed: u64, window: u64, name: &str) -> String {
    let (mut class, mut random) = (Paced::new(Decision::Intercept, seed), Random(seed));
    let (mut record, mut now, mut under_way) = (Record::default(), 0, 0);
    let mut passed = (Decision::Intercept, 0);
    for call in 0..CALLS {
        if passed.1 == 0 {
            let moment = Moment {
                now: &|| now,
                under_way: &|| under_way,
            };
            let classes = 1 + seed as usize % 3;
            passed = match class.next_alone(64, &moment, (40, classes)) {
                Next::Pass(leader, messages) => (leader, messages),
                Next::Sample(decision, _) => {
                    under_way += 1;
                    (decision, 1)
                }
            };
        }
        passed.1 -= 1;
        record.add(passed.0, 1);
        now += random.time(costs.of(call, passed.0));
        if (call + 1) % window == 0 {
            under_way = 0;
        }
        if call % 20 == 0 {
            now += random.time(costs.before[1]);
        }
    }
    record.line(name, class.governor())
}

/// Three ranks decide by the sums of their programs' pace, though some come late.
fn together(costs: Costs, seed: u64, window: u64, name: &str) -> String {
    let mut random = Random(seed);
    let mut all = vec![Together::new(Decision::Intercept, seed); 3];
    let (mut record, mut now, mut call) = (Record::default(), [0u64; 3], 0);
    while call < CALLS {
        let some_are_late = random.next() % 3 == 0;
        let way = loop {
            let ranks = all.iter_mut().zip(now);
            let ways: Vec<Option<Decision>> = ranks
                .map(|(class, now)| {
                    let moment = Moment {
                        now: &|| now,
                        under_way: &|| call % window,
                    };
                    class.next(1, &moment).map(Next::decision)
                })
                .collect();
            assert!(ways.iter().all(|way| *way == ways[0]), "{name}");
            if let Some(way) = ways[0] {
                break way;
            }
            let accounts: Vec<Account> = all.iter().map(Together::account).collect();
            for class in &mut all {
                class.agree((!some_are_late).then_some(&accounts[..]), 2);
            }
        };
        record.add(way, 1);
        for now in &mut now {
            *now += random.time(costs.of(call, way));
        }
        call += 1;
        let ahead: Vec<u64> = all
            .iter_mut()
            .map(|class| class.ahead(Decision::Forward, 63))
            .collect();
        assert!(ahead.iter().all(|calls| *calls == ahead[0]), "{name}");
        record.add(Decision::Forward, ahead[0]);
        for call in call..call + ahead[0] {
            for now in &mut now {
                *now += random.time(costs.of(call, Decision::Forward));
            }
        }
        call += ahead[0];
    }
    record.line(name, all[0].governor())
}

#[test]
fn recorded_calls_lead_to_the_recorded_decisions() {
    let mut found = String::new();
    for (number, costs) in COSTS.into_iter().enumerate() {
        for seed in [1, 77] {
            let name = |what: &str| format!("{what} {number} {seed}");
            found += &alone(costs, seed, &name("alone"));
            found += &summed(costs, seed, &name("summed"));
            for window in [1, 4, 16] {
                let name = |what: &str| name(&format!("{what} {window}"));
                found += &paced(costs, seed, window, &name("paced"));
                found += &together(costs, seed, window, &name("together"));
            }
        }
    }
    let expected = include_str!("traces.txt");
    let mut differences = String::new();
    for (expected, found) in expected.lines().zip(found.lines()) {
        if expected != found {
            let _ = writeln!(differences, "not {expected}\nbut {found}");
        }
    }
    assert!(differences.is_empty(), "{differences}");
    assert_eq!(expected, found);
}
