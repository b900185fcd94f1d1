// SPDX-License-Identifier: MIT OR Apache-2.0

use super::*;

/// Simulated programs: a thousand where all is tested (`scripts/test --all`), otherwise the first
/// ones of these.
fn programs() -> u64 {
    let is_all = std::env::var("LIBCOPY_TEST_ALL").is_ok_and(|asked| asked == "1");
    if is_all { 1000 } else { 200 }
}

#[test]
fn a_rank_that_is_ahead_of_the_others_asks_seldom() {
    let mut together = Together::new(Decision::Intercept, 7);
    let mut asked = 0;
    for call in 0..1 << 20 {
        let moment = Moment {
            now: &|| 1000 * call,
            under_way: &|| 3,
        };
        while together.next(1, &moment).is_none() {
            together.agree(None, 1);
            asked += 1;
        }
    }
    assert!((10..=24).contains(&asked), "{asked}");
}

#[test]
fn a_process_that_decides_alone_takes_the_way_that_costs_less() {
    for (costs, better) in [
        ([300, 200], Decision::Forward),
        ([200, 300], Decision::Intercept),
    ] {
        for prior in Decision::BOTH {
            let mut alone = Timed::new(prior);
            let mut random = Random(7);
            let mut calls = [0u64; 2];
            while calls[0] + calls[1] < 100_000 {
                match alone.next_alone(64, &Moment::NONE, (40, 1)) {
                    Next::Pass(decision, passed) => {
                        assert!((1..=64).contains(&passed));
                        calls[decision as usize] += passed;
                    }
                    Next::Sample(decision, Some(slot)) => {
                        let way = decision as usize;
                        calls[way] += 1;
                        // The clock is in it, and noise of a fifth.
                        alone.put(slot, 40 + costs[way] * (90 + random.next() % 20) / 100);
                    }
                    other => panic!("{other:?}"),
                }
            }
            assert_eq!(alone.governor().leader(), better, "{prior:?}");
            assert_eq!(alone.governor().calls(), calls);
            let worse = calls[1 - better as usize];
            assert!(worse < 2_000, "{prior:?} {calls:?}");
            // Measuring takes as long as a third of a call, so trials are rare.
            assert!(alone.governor().trials() < 400, "{:?}", alone.governor());
        }
    }
}

/// Random numbers (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// From 0 to 1.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    fn between(&mut self, least: f64, most: f64) -> f64 {
        least + (most - least) * self.unit()
    }

    /// A normal distribution, by the sum of twelve.
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.unit()).sum::<f64>() - 6.0
    }

    /// A call's time around `mean`: 30 % of noise, and one in a hundred is interrupted.
    fn time(&mut self, mean: f64) -> u64 {
        let noise = (0.3 * self.normal()).exp();
        let interrupted = if self.unit() < 0.01 {
            self.between(2.0, 20.0)
        } else {
            1.0
        };
        (mean * noise * interrupted) as u64
    }
}

/// A class of calls: what each way costs, until some call and from it on.
struct Class {
    means: [f64; 2],
    later: [f64; 2],
    change: u64,
    governor: Governor,
    times: Times,
    called: u64,
    /// Time that it took, and that each way would have taken.
    spent: f64,
    fixed: [f64; 2],
    best: f64,
}

impl Class {
    fn new(means: [f64; 2]) -> Self {
        Class {
            means,
            later: means,
            change: u64::MAX,
            governor: Governor::new(Decision::Intercept),
            times: [[0; MOST]; 2],
            called: 0,
            spent: 0.0,
            fixed: [0.0; 2],
            best: 0.0,
        }
    }

    /// One call. Counts what calls take on average, so that the governor's luck does not count.
    fn call(&mut self, random: &mut Random) {
        let means = if self.called < self.change {
            self.means
        } else {
            self.later
        };
        self.called += 1;
        if self.governor.is_due() {
            let exchange = 0.1 * means[0].min(means[1]);
            self.spent += exchange;
            self.governor.decide(&self.times, exchange as u64);
            self.times = [[0; MOST]; 2];
        }
        let step = if self.governor.ahead(Decision::Forward, 1) == 1 {
            Step {
                decision: Decision::Forward,
                slot: None,
            }
        } else {
            self.governor.step()
        };
        let mean = means[step.decision as usize];
        if let Some(slot) = step.slot {
            slot.put(&mut self.times, random.time(mean));
        }
        self.spent += mean;
        self.best += means[0].min(means[1]);
        for (fixed, mean) in self.fixed.iter_mut().zip(means) {
            *fixed += mean;
        }
    }
}

/// How much more than the better fixed way a pattern of calls costs: one that may be another for
/// each class, and one that is the same for all.
fn lost(classes: &[Class]) -> [f64; 2] {
    let spent: f64 = classes.iter().map(|class| class.spent).sum();
    let each: f64 = classes
        .iter()
        .map(|class| class.fixed[0].min(class.fixed[1]))
        .sum();
    let all = |way: usize| classes.iter().map(|class| class.fixed[way]).sum::<f64>();
    [spent / each - 1.0, spent / all(0).min(all(1)) - 1.0]
}

fn random_class(random: &mut Random) -> Class {
    let cost = 10f64.powf(random.between(4.0, 7.0));
    // The other way costs nearly the same, or up to four times as much or as little.
    let ratio = match random.next() % 2 {
        0 => random.between(0.9, 1.1),
        _ => random.between(-2.0, 2.0).exp2(),
    };
    Class::new([cost, cost * ratio])
}

/// Calls of several classes in random order.
fn pattern(seed: u64, each: std::ops::Range<f64>) -> Vec<Class> {
    let mut random = Random(seed);
    let count = 1 + random.next() % 8;
    let mut classes: Vec<Class> = (0..count).map(|_| random_class(&mut random)).collect();
    let calls = random.between(each.start, each.end) as u64 * count;
    for _ in 0..calls {
        let index = (random.next() % count) as usize;
        classes[index].call(&mut random);
    }
    classes
}

/// Each of 1,000 patterns, with at least 10,000 calls of each class.
#[test]
fn at_most_two_percent_are_lost_against_the_better_fixed_way() {
    for seed in 0..1000 {
        let classes = pattern(seed, 10_000.0..20_000.0);
        let [each, all] = lost(&classes);
        let text = || {
            let ratio = |class: &Class| (class.means[1] / class.means[0], class.called);
            format!(
                "pattern {seed}: {:?}",
                classes.iter().map(ratio).collect::<Vec<_>>()
            )
        };
        assert!(
            each <= 0.02,
            "{each} lost against the better way of each class, {}",
            text()
        );
        assert!(
            all <= 0.02,
            "{all} lost against the better way of all, {}",
            text()
        );
    }
}

#[test]
fn patterns_of_fewer_calls_lose_little_more() {
    let lost = (0..1000).map(|seed| lost(&pattern(seed, 3_000.0..10_000.0))[0]);
    let mut lost: Vec<f64> = lost.collect();
    lost.sort_by(f64::total_cmp);
    assert!(
        lost[500] <= 0.01 && lost[950] <= 0.02,
        "{} {}",
        lost[500],
        lost[950]
    );
}

/// A class with these costs that was called so often.
fn class_of(seed: u64, means: [f64; 2], calls: u64) -> Class {
    let (mut class, mut random) = (Class::new(means), Random(seed));
    (0..calls).for_each(|_| class.call(&mut random));
    class
}

/// A class of messages as a program sends them: several at once, for which it waits then.
struct Messages {
    paced: Paced,
    /// What a message takes, each way.
    means: [f64; 2],
    /// Messages that are sent together.
    window: u64,
    /// Of those that were decided on in advance, what is left.
    left: u64,
    watched: u64,
    sent: u64,
    fixed: [f64; 2],
}

impl Messages {
    fn new(random: &mut Random, seed: u64) -> Self {
        let class = random_class(random);
        Messages {
            paced: Paced::new(Decision::Intercept, seed),
            means: class.means,
            window: [1, 1, 4, 16][(random.next() % 4) as usize],
            left: 0,
            watched: 0,
            sent: 0,
            fixed: [0.0; 2],
        }
    }

    /// Sends one of `classes`; returns what it takes on average.
    fn send(&mut self, now: f64, classes: usize) -> f64 {
        let mut decision = self.paced.governor().leader();
        if self.left > 0 {
            self.left -= 1;
        } else {
            match paced_next(&mut self.paced, now, self.watched, classes) {
                Next::Pass(leader, passed) => (decision, self.left) = (leader, passed - 1),
                Next::Sample(way, _) => {
                    decision = way;
                    self.watched += 1;
                }
            }
        }
        self.sent += 1;
        for (fixed, mean) in self.fixed.iter_mut().zip(self.means) {
            *fixed += mean;
        }
        self.means[decision as usize]
    }
}

/// What to do with the next messages.
fn paced_next(paced: &mut Paced, now: f64, under_way: u64, classes: usize) -> Next {
    let moment = Moment {
        now: &|| now as u64,
        under_way: &|| under_way,
    };
    paced.next_alone(64, &moment, (0, classes))
}

/// A program of which each round sends the messages of all classes, and does something else: how
/// much more it costs than with the better fixed way of each class, and with the better one of all.
fn program(seed: u64, rounds: u64) -> [f64; 2] {
    let mut random = Random(seed);
    let count = 1 + (random.next() % 6) as usize;
    let mut classes: Vec<Messages> = (0..count as u64)
        .map(|class| Messages::new(&mut random, class * 0x9e37_79b9))
        .collect();
    let all: f64 = classes.iter().map(|class| class.means[0]).sum();
    let other = all * random.between(0.0, 2.0);
    let (mut now, mut spent) = (0.0, 0.0);
    for _ in 0..rounds {
        for class in &mut classes {
            let mut waits = 0.0;
            for _ in 0..class.window {
                let mean = class.send(now, count);
                spent += mean;
                let took = random.time(mean) as f64;
                // Most of it when the program waits for it.
                now += 0.1 * took;
                waits += 0.9 * took;
            }
            now += waits;
            class.watched = 0;
        }
        spent += other;
        now += random.time(other) as f64;
    }
    let others = rounds as f64 * other;
    let each: f64 = classes
        .iter()
        .map(|class| class.fixed[0].min(class.fixed[1]))
        .sum();
    let all = |way: usize| classes.iter().map(|class| class.fixed[way]).sum::<f64>();
    [each, all(0).min(all(1))].map(|best| spent / (best + others) - 1.0)
}

#[test]
fn messages_lose_at_most_two_percent_against_the_better_fixed_way() {
    let mut worst = [0.0f64; 2];
    let seeds = 0..programs();
    let mut lost: Vec<[f64; 2]> = seeds.map(|seed| program(seed, 10_000)).collect();
    for lost in &lost {
        for (worst, lost) in worst.iter_mut().zip(lost) {
            *worst = worst.max(*lost);
        }
    }
    lost.sort_by(|a, b| a[0].total_cmp(&b[0]));
    assert!(
        worst.iter().all(|worst| *worst <= 0.02),
        "{worst:?}, median {:?}",
        lost[lost.len() / 2]
    );
}

/// A program that sends a message at a time and does something else for `pause` after each
/// `every`-th, which its sender does not see: how much more messages cost than with the better way,
/// and whether that leads in the end.
fn with_pauses(seed: u64, means: [f64; 2], (every, pause): (u64, f64)) -> (f64, bool) {
    let mut random = Random(seed);
    let mut paced = Paced::new(Decision::Intercept, random.next());
    let (mut now, mut spent, messages) = (0.0, 0.0, 20_000);
    let mut passed = (Decision::Intercept, 0);
    for message in 1..=messages {
        if passed.1 == 0 {
            passed = match paced_next(&mut paced, now, 0, 2) {
                Next::Pass(leader, messages) => (leader, messages),
                Next::Sample(decision, _) => (decision, 1),
            };
        }
        passed.1 -= 1;
        let mean = means[passed.0 as usize];
        spent += mean;
        now += mean * random.between(0.8, 1.2);
        if message % every == 0 {
            now += pause;
        }
    }
    let best = means[0].min(means[1]);
    let lost = spent / (best * messages as f64) - 1.0;
    (lost, means[paced.governor().leader() as usize] == best)
}

/// What `scripts/bench` does in its plain blocks, and any program between its messages: one time of
/// five, or of two, has in it what has nothing to do with the message.
#[test]
fn pauses_of_the_program_are_not_taken_for_a_difference() {
    for means in [[1e5, 0.77e5], [0.8e5, 1e5]] {
        for pauses in [(20, 15e5), (5, 5e5), (3, 2e5), (2, 2e5)] {
            let (mut lost, mut right) = (Vec::new(), 0);
            for seed in 0..200 {
                let (more, is_right) = with_pauses(seed, means, pauses);
                lost.push(more);
                right += u32::from(is_right);
            }
            lost.sort_by(f64::total_cmp);
            assert!(
                lost[100] <= 0.01 && lost[190] <= 0.04 && right >= 196,
                "{means:?}, {pauses:?}: median {}, of 95 % {}, {right} right",
                lost[100],
                lost[190]
            );
        }
    }
}

/// A program of which each round calls a class several times and then waits for these, and does as
/// much of something else: how much more it costs than with the better fixed way. All ranks decide
/// alike, though some come late.
fn together(seed: u64, rounds: u64) -> f64 {
    let mut random = Random(seed);
    let means = random_class(&mut random).means;
    let ranks = 2 + (random.next() % 7) as usize;
    let window = [1, 1, 4, 16][(random.next() % 4) as usize];
    let other = means[0] * random.between(0.0, 2.0);
    let mut all = vec![Together::new(Decision::Intercept, seed); ranks];
    let (mut now, mut spent, calls) = (0.0, 0.0, rounds * window);
    for call in 0..calls {
        // Some have not got to the end of a trial when the first one asks.
        let some_are_late = random.next() % 3 == 0;
        let mut decision = None;
        let accounts: Vec<Account> = all.iter().map(Together::account).collect();
        for rank in &mut all {
            let moment = Moment {
                now: &|| now as u64,
                under_way: &|| call % window,
            };
            let mut next = rank.next(1, &moment);
            if next.is_none() {
                let said: Vec<Account> = accounts
                    .iter()
                    .map(|said| Account {
                        times: rank.account().times,
                        ..*said
                    })
                    .collect();
                rank.agree((!some_are_late).then_some(&said[..]), 1);
                next = rank.next(1, &moment);
            }
            let next = next.map(Next::decision);
            assert!(decision.is_none() || decision == next, "{seed}");
            decision = next;
        }
        let mean = means[decision.unwrap() as usize];
        spent += mean + other;
        now += random.time(mean) as f64 + random.time(other) as f64;
    }
    spent / (calls as f64 * (means[0].min(means[1]) + other)) - 1.0
}

#[test]
fn nonblocking_collectives_lose_at_most_two_percent() {
    let seeds = 0..programs();
    let mut lost: Vec<f64> = seeds.map(|seed| together(seed, 10_000)).collect();
    lost.sort_by(f64::total_cmp);
    let (median, worst) = (lost[lost.len() / 2], &lost[lost.len() - 10..]);
    assert!(worst[9] <= 0.02, "{worst:?}, median {median}");
}

#[test]
fn short_patterns_lose_a_few_calls_if_the_thresholds_were_right() {
    for ratio in [1.05, 1.2, 1.5, 2.0, 4.0] {
        for calls in [50, 100, 300, 1000, 3000] {
            let lost: Vec<f64> = (0..100)
                .map(|seed| {
                    let class = class_of(seed, [1e5, 1e5 * ratio], calls);
                    (class.spent - class.fixed[0]) / 1e5
                })
                .collect();
            let mean = lost.iter().sum::<f64>() / lost.len() as f64;
            // 1 % in the mean over programs, the first trials, and the time to find out what is
            // less than the noise.
            let most = 0.015 * calls as f64 + 2.5 * (ratio - 1.0) + 2.0;
            assert!(mean <= most, "{ratio}, {calls} calls: {mean}, not {most}");
        }
    }
}

#[test]
fn a_wrong_threshold_is_found_out_soon() {
    for (ratio, most) in [(0.25, 60), (0.5, 80), (0.8, 400)] {
        let late = (0..100).filter(|seed| {
            let class = class_of(*seed, [1e5, 1e5 * ratio], most);
            class.governor.leader() != Decision::Forward
        });
        let late = late.count();
        assert!(late <= 10, "{ratio}: {late} of 100 after {most} calls");
    }
}

#[test]
fn a_change_is_noticed() {
    for seed in 0..100 {
        let (mut class, mut random) = (Class::new([1e5, 2e5]), Random(seed));
        (class.later, class.change) = ([2e5, 1e5], 20_000);
        (0..28_000).for_each(|_| class.call(&mut random));
        assert_eq!(class.governor.leader(), Decision::Forward, "{seed}");
        (0..32_000).for_each(|_| class.call(&mut random));
        let over = class.spent / class.best - 1.0;
        assert!(
            over < 0.15,
            "{seed}: {over} over the better way of each time"
        );
        let better = class.fixed[0].min(class.fixed[1]);
        assert!(class.spent < better, "{seed}");
    }
}

#[test]
fn a_rhythm_of_the_program_is_not_taken_for_a_difference() {
    // Every second call waits for a slow rank, whichever way it takes.
    for (ratio, expected) in [(0.9, Decision::Forward), (1.1, Decision::Intercept)] {
        let mut governor = Governor::new(Decision::Intercept);
        let mut times = Times::default();
        for call in 0..20_000 {
            if governor.is_due() {
                governor.decide(&times, 0);
                times = Times::default();
            }
            let step = governor.step();
            let own = [1e5, 1e5 * ratio][step.decision as usize];
            let wait = f64::from(call % 2) * 2e5;
            if let Some(slot) = step.slot {
                slot.put(&mut times, (own + wait) as u64);
            }
        }
        assert_eq!(governor.leader(), expected);
    }
}

#[test]
fn calls_that_were_not_measured_do_not_count() {
    let mut governor = Governor::new(Decision::Intercept);
    for _ in 0..FIRST + 2 {
        governor.step();
    }
    assert!(governor.is_due());
    governor.decide(&Times::default(), 0);
    assert_eq!(governor.leader(), Decision::Intercept);
    assert_eq!(governor.costs(), None);
    assert!(!governor.is_due());
    assert_eq!(governor.calls(), [FIRST + 1, 1]);
}
