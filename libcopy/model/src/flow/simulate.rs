// SPDX-License-Identifier: MIT OR Apache-2.0

//! From one event to the next.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::activities::{Activity, Outcome, Resources, check};
use super::classes::Classes;
use super::error::FlowError;
use super::sharing::Sharing;

/// Events that are so close, as a part of the time, are one. Symmetric activities end at the same
/// time but for rounding errors, and each further event would have rates shared out once more.
const SAME_TIME: f64 = 1e-11;

/// Simulates `activities`, which share `resources`, from time 0 until the last has ended.
///
/// The same input gives the same bits.
///
/// # Errors
/// Values that are not finite, negative or otherwise out of range; indices of resources or
/// activities that do not exist; activities with work that nothing limits; a circle of activities
/// that wait for each other; times that are too large for an `f64`.
pub fn simulate(resources: &Resources, activities: &[Activity]) -> Result<Outcome, FlowError> {
    simulate_watched(resources, activities, |_, _| ())
}

/// The same; `watch` gets each time at which rates have changed, and the rates.
pub(super) fn simulate_watched(
    resources: &Resources,
    activities: &[Activity],
    mut watch: impl FnMut(f64, &Sharing),
) -> Result<Outcome, FlowError> {
    check(resources, activities)?;
    let order = Order::new(activities)?;
    let classes = Classes::new(activities);
    let mut simulation = Simulation::new(activities, &classes, order, resources.capacities());
    simulation.begin_first();
    loop {
        simulation.share();
        watch(simulation.now, &simulation.sharing);
        if !simulation.step()? {
            break;
        }
    }
    let mut bytes = vec![0.0; resources.len()];
    for (activity, &class) in activities.iter().zip(&classes.of) {
        for usage in classes.uses(class) {
            bytes[usage.resource as usize] += usage.weight * activity.work;
        }
    }
    let (starts, ends) = (simulation.starts, simulation.ends);
    Ok(Outcome {
        makespan: ends.iter().copied().fold(0.0, f64::max),
        starts,
        ends,
        bytes,
    })
}

/// Which activities wait for which.
#[derive(Debug)]
struct Order {
    /// How many activities each one waits for, counted down as they end.
    missing: Vec<u32>,
    /// Where those that wait for an activity begin in the list below, and the end of the last.
    first: Vec<u32>,
    dependents: Vec<u32>,
}

impl Order {
    fn new(activities: &[Activity]) -> Result<Order, FlowError> {
        let mut first = vec![0; activities.len() + 1];
        for &after in activities.iter().flat_map(|activity| &activity.after) {
            first[after + 1] += 1;
        }
        for index in 0..activities.len() {
            first[index + 1] += first[index];
        }
        let mut next = first.clone();
        let mut dependents = vec![0; first[activities.len()] as usize];
        for (index, activity) in activities.iter().enumerate() {
            for &after in &activity.after {
                dependents[next[after] as usize] = index as u32;
                next[after] += 1;
            }
        }
        let missing: Vec<_> = activities.iter().map(|a| a.after.len() as u32).collect();
        let order = Order {
            missing,
            first,
            dependents,
        };
        order.check(activities)?;
        Ok(order)
    }

    fn dependents(&self, activity: u32) -> std::ops::Range<usize> {
        self.first[activity as usize] as usize..self.first[activity as usize + 1] as usize
    }

    /// Whether all can end, one after the other.
    fn check(&self, activities: &[Activity]) -> Result<(), FlowError> {
        let mut missing = self.missing.clone();
        let mut ready: Vec<u32> = (0..activities.len() as u32)
            .filter(|&index| missing[index as usize] == 0)
            .collect();
        while let Some(activity) = ready.pop() {
            for &dependent in &self.dependents[self.dependents(activity)] {
                missing[dependent as usize] -= 1;
                if missing[dependent as usize] == 0 {
                    ready.push(dependent);
                }
            }
        }
        let Some(mut activity) = missing.iter().position(|&missing| missing > 0) else {
            return Ok(());
        };
        // It may only wait for a circle. Backwards there is always one more that cannot end, so the
        // way gets into the circle and stays there.
        for _ in 0..activities.len() {
            let mut before = activities[activity].after.iter();
            let stuck = before.find(|&&after| missing[after] > 0);
            activity = *stuck.expect("what cannot end waits for one that cannot");
        }
        Err(FlowError::Cycle { activity })
    }
}

/// The activities of a class that run. All have the same rate, so what one has moved since it
/// began is the difference of the level then and now.
#[derive(Debug, Default)]
struct Progress {
    /// Bytes per activity that the class has moved until `at`.
    level: f64,
    at: f64,
    rate: f64,
    /// The levels at which activities end, with the activities. Levels are positive, so they are
    /// ordered like their bits.
    ends: BinaryHeap<Reverse<(u64, u32)>>,
    /// When the first of them ends.
    next: f64,
    /// The place among the running classes.
    place: u32,
}

impl Progress {
    fn advance(&mut self, now: f64) {
        self.level += self.rate * (now - self.at);
        self.at = now;
    }
}

struct Simulation<'a> {
    activities: &'a [Activity],
    classes: &'a Classes,
    order: Order,
    sharing: Sharing<'a>,
    now: f64,
    starts: Vec<f64>,
    ends: Vec<f64>,
    progress: Vec<Progress>,
    /// The classes that have activities that run. Looking at all of them for the next event costs
    /// less than keeping them in order, as rates change more often than activities end.
    running: Vec<u32>,
    /// Activities that wait for their latency, with the time when it is over.
    waiting: BinaryHeap<Reverse<(u64, u32)>>,
    /// Activities that have ended now, and whose dependents have not been looked at.
    ended: Vec<u32>,
    /// Classes whose next end is to be computed.
    stale: Vec<u32>,
}

impl<'a> Simulation<'a> {
    fn new(
        activities: &'a [Activity],
        classes: &'a Classes,
        order: Order,
        capacities: &[f64],
    ) -> Simulation<'a> {
        let mut progress = Vec::new();
        progress.resize_with(classes.len(), Progress::default);
        Simulation {
            activities,
            classes,
            order,
            sharing: Sharing::new(classes, capacities),
            now: 0.0,
            starts: vec![0.0; activities.len()],
            ends: vec![0.0; activities.len()],
            progress,
            running: Vec::new(),
            waiting: BinaryHeap::new(),
            ended: Vec::new(),
            stale: Vec::new(),
        }
    }

    /// Begins all that wait for nothing.
    fn begin_first(&mut self) {
        for activity in 0..self.activities.len() as u32 {
            if self.order.missing[activity as usize] == 0 {
                self.wait(activity);
            }
        }
        self.release();
    }

    /// The latency of an activity begins.
    fn wait(&mut self, activity: u32) {
        let latency = self.activities[activity as usize].latency;
        if latency > 0.0 {
            let over = self.now + latency;
            self.waiting.push(Reverse((over.to_bits(), activity)));
        } else {
            self.begin(activity);
        }
    }

    /// An activity begins to move.
    fn begin(&mut self, activity: u32) {
        self.starts[activity as usize] = self.now;
        let work = self.activities[activity as usize].work;
        if work <= 0.0 {
            self.end(activity);
            return;
        }
        let class = self.classes.of[activity as usize];
        let progress = &mut self.progress[class as usize];
        if progress.ends.is_empty() {
            progress.level = 0.0;
            progress.at = self.now;
            progress.place = self.running.len() as u32;
            self.running.push(class);
        } else {
            progress.advance(self.now);
        }
        let level = progress.level + work;
        progress.ends.push(Reverse((level.to_bits(), activity)));
        self.sharing.begin(class);
        self.stale.push(class);
    }

    fn end(&mut self, activity: u32) {
        self.ends[activity as usize] = self.now;
        self.ended.push(activity);
    }

    /// Lets go of what waited for activities that have ended.
    fn release(&mut self) {
        while let Some(activity) = self.ended.pop() {
            for index in self.order.dependents(activity) {
                let dependent = self.order.dependents[index];
                let missing = &mut self.order.missing[dependent as usize];
                *missing -= 1;
                if *missing == 0 {
                    self.wait(dependent);
                }
            }
        }
    }

    /// Computes rates, and when the activities end if these rates stay.
    fn share(&mut self) {
        for &class in self.sharing.share() {
            self.progress[class as usize].advance(self.now);
            self.stale.push(class);
        }
        for class in self.stale.drain(..) {
            let progress = &mut self.progress[class as usize];
            progress.rate = self.sharing.rate(class);
            if let Some(&Reverse((level, _))) = progress.ends.peek() {
                let left = f64::from_bits(level) - progress.level;
                progress.next = progress.at + left.max(0.0) / progress.rate;
            }
        }
    }

    /// Goes to the next event and does all that happens at that time. Whether there was one.
    fn step(&mut self) -> Result<bool, FlowError> {
        let mut next = f64::INFINITY;
        if let Some(&Reverse((over, _))) = self.waiting.peek() {
            next = f64::from_bits(over);
        }
        for &class in &self.running {
            next = next.min(self.progress[class as usize].next);
        }
        if !next.is_finite() {
            return self.is_over();
        }
        // Never back: what is overdue by a rounding error happens now.
        self.now = next.max(self.now);
        let same_time = self.now * SAME_TIME;
        let mut place = 0;
        while let Some(&class) = self.running.get(place) {
            if self.progress[class as usize].next <= self.now + same_time {
                self.end_some(class, same_time);
                // Another class is here now if none of this one is left.
                if self.running.get(place) != Some(&class) {
                    continue;
                }
            }
            place += 1;
        }
        while let Some(&Reverse((over, activity))) = self.waiting.peek() {
            if f64::from_bits(over) > self.now + same_time {
                break;
            }
            self.waiting.pop();
            self.begin(activity);
        }
        self.release();
        Ok(true)
    }

    /// The first activity of a class ends, and those that end at the same time.
    fn end_some(&mut self, class: u32, same_time: f64) {
        let progress = &mut self.progress[class as usize];
        progress.advance(self.now);
        let reached = progress.level + progress.rate * same_time;
        let mut is_first = true;
        while let Some(&Reverse((level, activity))) = progress.ends.peek() {
            if !is_first && f64::from_bits(level) > reached {
                break;
            }
            is_first = false;
            progress.ends.pop();
            self.sharing.end(class);
            self.ends[activity as usize] = self.now;
            self.ended.push(activity);
        }
        self.stale.push(class);
        if progress.ends.is_empty() {
            let place = progress.place as usize;
            self.running.swap_remove(place);
            if let Some(&moved) = self.running.get(place) {
                self.progress[moved as usize].place = place as u32;
            }
        }
    }

    /// There is no further event, or none at a time that a number can hold.
    fn is_over(&self) -> Result<bool, FlowError> {
        let running = self.running.first().and_then(|&class| {
            let ends = &self.progress[class as usize].ends;
            ends.peek().map(|&Reverse((_, activity))| activity)
        });
        let waiting = self.waiting.peek().map(|&Reverse((_, activity))| activity);
        match running.or(waiting) {
            Some(activity) => Err(FlowError::Endless {
                activity: activity as usize,
            }),
            None => Ok(false),
        }
    }
}
