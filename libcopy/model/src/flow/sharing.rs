// SPDX-License-Identifier: MIT OR Apache-2.0

//! Rates of the running classes: max-min fair, shared out anew only where something changes.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use super::classes::{Classes, Use};

/// A resource counts as saturated from this part of its capacity on. Rounding errors are far
/// smaller; where it is not quite saturated that costs time, never a wrong rate.
const SATURATED: f64 = 1.0 - 1e-9;

/// Rates of classes that are shared out at different times are equal if they differ by less, as a
/// part of the rate.
const EQUAL: f64 = 1e-10;

/// A rate that would change by less stays as it is.
const UNCHANGED: f64 = 1e-12;

/// After this number of rounds, whatever a chain of saturated resources connects is shared out.
/// Otherwise a change that goes through a long chain would take a round for each resource.
const ROUNDS: u32 = 8;

/// A sum from which so much was subtracted that this part is left is added up anew, as it would be
/// mostly rounding errors.
const CANCELLED: f64 = 1e-3;

#[derive(Clone, Debug, Default)]
struct Class {
    /// How many of its activities run.
    running: u32,
    /// What the next call of [`Sharing::share`] adds to that.
    change: i32,
    /// Bytes per second of each.
    rate: f64,
    /// The same, while rates are shared out; negative until the rate is known.
    next_rate: f64,
    /// The last change whose classes it belonged to.
    epoch: u64,
    /// The rate that it reaches on its own: by its cap, or by a resource that only it uses.
    limit: f64,
}

#[derive(Clone, Debug, Default)]
struct Resource {
    capacity: f64,
    /// Bytes per second that go through it. Not kept where only one class uses it: such a resource
    /// is a limit of the class, and the class has nobody to share it with.
    used: f64,
    /// The uses of running classes.
    users: Vec<u32>,
    /// The last change that looked at it. What is below concerns that change only.
    epoch: u64,
    /// Whether all classes that use it are shared out.
    is_whole: bool,
    /// Whether it was saturated before this change.
    was_saturated: bool,
    /// Whether it holds up classes that are shared out.
    holds_up: bool,
    /// How many classes that use it are shared out, and the sum of their weights, each times the
    /// number of activities.
    shared: u32,
    shared_weight: f64,
    /// What the other classes use.
    others: f64,
    /// What classes use whose rate is known.
    filled: f64,
    /// As `shared`, but only those that have no rate yet.
    open: u32,
    weight: f64,
    /// The sum when it was last added up.
    exact_weight: f64,
}

impl Resource {
    fn is_shared(&self) -> bool {
        self.users.len() > 1
    }

    fn is_saturated(&self) -> bool {
        self.used >= self.capacity * SATURATED
    }

    fn left(&self) -> f64 {
        (self.capacity - self.others - self.filled).max(0.0)
    }
}

/// Positive numbers are ordered like their bits.
type Bits = u64;

/// The classes that run, and their rates.
#[derive(Debug)]
pub(super) struct Sharing<'a> {
    uses: &'a Classes,
    classes: Vec<Class>,
    resources: Vec<Resource>,
    /// The class of each use, and the place of the use among the users of its resource.
    class_of: Vec<u32>,
    places: Vec<u32>,
    epoch: u64,
    /// Classes with a change, each once.
    pending: Vec<u32>,
    /// The classes that are shared out, and the resources that they use.
    set: Vec<u32>,
    seen: Vec<u32>,
    /// Saturated resources whose classes are still to be added.
    queue: Vec<u32>,
    /// Classes of the set with the rates that they reach on their own.
    limits: Vec<(Bits, u32)>,
    /// The rates at which resources will be saturated, too low where classes have got their rate
    /// since.
    levels: BinaryHeap<Reverse<(Bits, u32)>>,
    changed: Vec<u32>,
    /// Whether all classes of a saturated resource are added as soon as one of them is.
    is_eager: bool,
}

impl<'a> Sharing<'a> {
    pub fn new(uses: &'a Classes, capacities: &[f64]) -> Sharing<'a> {
        let mut class_of = vec![0; uses.all_uses().len()];
        for class in 0..uses.len() as u32 {
            class_of[uses.range(class)].fill(class);
        }
        let resource = |&capacity| Resource {
            capacity,
            ..Resource::default()
        };
        Sharing {
            classes: vec![Class::default(); uses.len()],
            resources: capacities.iter().map(resource).collect(),
            places: vec![0; class_of.len()],
            class_of,
            uses,
            epoch: 0,
            pending: Vec::new(),
            set: Vec::new(),
            seen: Vec::new(),
            queue: Vec::new(),
            limits: Vec::new(),
            levels: BinaryHeap::new(),
            changed: Vec::new(),
            is_eager: false,
        }
    }

    /// One more activity of a class, from the next [`Sharing::share`] on.
    pub fn begin(&mut self, class: u32) {
        self.change(class, 1);
    }

    /// One less.
    pub fn end(&mut self, class: u32) {
        self.change(class, -1);
    }

    fn change(&mut self, class: u32, by: i32) {
        let state = &mut self.classes[class as usize];
        if state.change == 0 {
            self.pending.push(class);
        }
        state.change += by;
    }

    /// Bytes per second of each activity of a class.
    pub fn rate(&self, class: u32) -> f64 {
        self.classes[class as usize].rate
    }

    /// How many activities of a class run.
    #[cfg(test)]
    pub fn running(&self, class: u32) -> u32 {
        self.classes[class as usize].running
    }

    /// Applies what has changed, and returns the running classes that have another rate now.
    pub fn share(&mut self) -> &[u32] {
        self.changed.clear();
        self.set.clear();
        self.seen.clear();
        self.epoch += 1;
        // Classes that have changed share with all others on the resources that were saturated.
        self.is_eager = true;
        let mut pending = std::mem::take(&mut self.pending);
        // One activity may have ended and the next of its class have begun: nothing has changed.
        // Or its number went down and up again, and it stands here twice.
        pending.retain(|&class| self.apply(class));
        for &class in &pending {
            if self.classes[class as usize].running > 0 {
                self.take(class);
            }
        }
        pending.clear();
        self.pending = pending;
        self.is_eager = false;
        for round in 1.. {
            self.take_queued();
            self.fill();
            if !self.widen() {
                break;
            }
            if round == ROUNDS {
                self.open_saturated();
            }
        }
        self.keep_rates();
        &self.changed
    }

    /// Adds the classes of the resources in the queue.
    fn take_queued(&mut self) {
        while let Some(resource) = self.queue.pop() {
            for place in 0..self.resources[resource as usize].users.len() {
                let usage = self.resources[resource as usize].users[place];
                self.take(self.class_of[usage as usize]);
            }
        }
    }

    /// Adds, now and from now on, all classes of saturated resources.
    fn open_saturated(&mut self) {
        self.is_eager = true;
        for index in 0..self.seen.len() {
            let resource = self.seen[index];
            if self.resources[resource as usize].was_saturated {
                self.open(resource);
            }
        }
    }

    /// The rates that were found are the rates.
    fn keep_rates(&mut self) {
        for &resource in &self.seen {
            let state = &mut self.resources[resource as usize];
            state.used = if state.users.is_empty() {
                0.0
            } else {
                state.others + state.filled
            };
        }
        for &class in &self.set {
            let state = &mut self.classes[class as usize];
            if state.rate != state.next_rate {
                state.rate = state.next_rate;
                self.changed.push(class);
            }
        }
    }

    /// Applies the change of a class; what is saturated and now used less is to be shared out.
    fn apply(&mut self, class: u32) -> bool {
        let state = &mut self.classes[class as usize];
        let by = std::mem::take(&mut state.change);
        if by == 0 {
            return false;
        }
        let was_running = state.running > 0;
        state.running = state
            .running
            .checked_add_signed(by)
            .expect("only what has begun ends");
        let is_running = state.running > 0;
        let rate = state.rate;
        if !is_running {
            state.rate = 0.0;
        }
        for (usage, &Use { resource, weight }) in self.uses.range(class).zip(self.uses.uses(class))
        {
            let state = &self.resources[resource as usize];
            if by < 0 && state.is_shared() && state.is_saturated() {
                self.open(resource);
            }
            let state = &mut self.resources[resource as usize];
            let more = f64::from(by) * weight * rate;
            state.used += more;
            if state.epoch == self.epoch {
                state.others += more;
            }
            match (was_running, is_running) {
                (false, true) => {
                    if let [first] = state.users[..] {
                        let class = &self.classes[self.class_of[first as usize] as usize];
                        let weight = self.uses.all_uses()[first as usize].weight;
                        state.used = f64::from(class.running) * weight * class.rate;
                    }
                    self.places[usage] = state.users.len() as u32;
                    state.users.push(usage as u32);
                }
                (true, false) => {
                    let place = self.places[usage];
                    state.users.swap_remove(place as usize);
                    if let Some(&moved) = state.users.get(place as usize) {
                        self.places[moved as usize] = place;
                    }
                }
                _ => {}
            }
        }
        true
    }

    /// Looks at a resource for the first time in this change.
    fn see(&mut self, resource: u32) {
        let state = &mut self.resources[resource as usize];
        if state.epoch == self.epoch {
            return;
        }
        state.epoch = self.epoch;
        state.is_whole = false;
        state.shared = 0;
        state.shared_weight = 0.0;
        state.others = state.used;
        state.was_saturated = state.is_saturated();
        self.seen.push(resource);
        if state.was_saturated && self.is_eager {
            self.open(resource);
        }
    }

    /// All classes that use a resource are to be shared out.
    fn open(&mut self, resource: u32) {
        self.see(resource);
        let state = &mut self.resources[resource as usize];
        if !state.is_whole {
            state.is_whole = true;
            self.queue.push(resource);
        }
    }

    /// Adds a class to those that are shared out.
    fn take(&mut self, class: u32) {
        let state = &mut self.classes[class as usize];
        if state.epoch == self.epoch {
            return;
        }
        state.epoch = self.epoch;
        let (running, rate) = (f64::from(state.running), state.rate);
        self.set.push(class);
        let mut limit = self.uses.cap(class);
        for &Use { resource, weight } in self.uses.uses(class) {
            let weight = running * weight;
            let state = &self.resources[resource as usize];
            if !state.is_shared() {
                limit = limit.min(state.capacity / weight);
                continue;
            }
            self.see(resource);
            let state = &mut self.resources[resource as usize];
            state.shared += 1;
            state.shared_weight += weight;
            state.others -= weight * rate;
        }
        self.classes[class as usize].limit = limit;
    }

    /// Progressive filling of what the classes outside of the set leave.
    fn fill(&mut self) {
        let mut levels = std::mem::take(&mut self.levels).into_vec();
        levels.clear();
        for &resource in &self.seen {
            let state = &mut self.resources[resource as usize];
            if state.shared as usize == state.users.len() {
                state.is_whole = true;
                // What is left of the sum is a rounding error.
                state.others = 0.0;
            }
            state.filled = 0.0;
            state.holds_up = false;
            state.open = state.shared;
            state.weight = state.shared_weight;
            state.exact_weight = state.shared_weight;
            if state.open > 0 {
                let level = state.left() / state.weight;
                levels.push(Reverse((level.to_bits(), resource)));
            }
        }
        self.levels = levels.into();
        self.limits.clear();
        for &class in &self.set {
            let state = &mut self.classes[class as usize];
            state.next_rate = -1.0;
            if state.limit < f64::INFINITY {
                self.limits.push((state.limit.to_bits(), class));
            }
        }
        self.limits.sort_unstable();
        self.raise();
    }

    /// Raises the rates of all classes of the set until each has met its limit.
    fn raise(&mut self) {
        let mut next_limit = 0;
        // Rounding errors must not make a later rate lower, let alone zero.
        let mut level = 0.0_f64;
        loop {
            let limit = self.limits.get(next_limit).copied();
            if let Some((_, class)) = limit {
                if self.classes[class as usize].next_rate >= 0.0 {
                    next_limit += 1;
                    continue;
                }
            }
            let Some(top) = self.levels.peek_mut() else {
                let Some((rate, class)) = limit else { break };
                level = level.max(f64::from_bits(rate));
                self.settle(class, level);
                next_limit += 1;
                continue;
            };
            let Reverse((stored, resource)) = *top;
            if let Some((rate, class)) = limit.filter(|&(rate, _)| rate <= stored) {
                drop(top);
                level = level.max(f64::from_bits(rate));
                self.settle(class, level);
                next_limit += 1;
                continue;
            }
            let state = &self.resources[resource as usize];
            if state.open == 0 {
                PeekMut::pop(top);
                continue;
            }
            let current = (state.left() / state.weight).max(level).to_bits();
            if current > stored {
                let mut top = top;
                *top = Reverse((current, resource));
                continue;
            }
            PeekMut::pop(top);
            level = level.max(f64::from_bits(stored));
            self.resources[resource as usize].holds_up = true;
            for place in 0..self.resources[resource as usize].users.len() {
                let usage = self.resources[resource as usize].users[place];
                let class = self.class_of[usage as usize];
                let state = &self.classes[class as usize];
                if state.epoch == self.epoch && state.next_rate < 0.0 {
                    self.settle(class, level);
                }
            }
        }
    }

    /// A class has its rate.
    fn settle(&mut self, class: u32, rate: f64) {
        let state = &mut self.classes[class as usize];
        // Other classes are not shared out, and activities not scheduled, for rounding errors.
        let is_same = (rate - state.rate).abs() <= UNCHANGED * rate;
        let rate = if is_same { state.rate } else { rate };
        state.next_rate = rate;
        let running = f64::from(state.running);
        for &Use { resource, weight } in self.uses.uses(class) {
            let weight = running * weight;
            let index = resource as usize;
            let resource = &mut self.resources[index];
            if !resource.is_shared() {
                continue;
            }
            resource.filled += weight * rate;
            resource.open -= 1;
            resource.weight -= weight;
            if resource.weight < CANCELLED * resource.exact_weight && resource.open > 0 {
                let exact = self.open_weight(index);
                let resource = &mut self.resources[index];
                resource.weight = exact;
                resource.exact_weight = exact;
            }
        }
    }

    /// The sum of the weights of those classes of the set that have no rate yet.
    fn open_weight(&self, resource: usize) -> f64 {
        let mut sum = 0.0;
        for &usage in &self.resources[resource].users {
            let class = &self.classes[self.class_of[usage as usize] as usize];
            if class.epoch == self.epoch && class.next_rate < 0.0 {
                sum += f64::from(class.running) * self.uses.all_uses()[usage as usize].weight;
            }
        }
        sum
    }

    /// Adds the classes of resources on which the new rates of some do not go with the old ones of
    /// the others. Whether there is such a resource.
    fn widen(&mut self) -> bool {
        let mut is_wider = false;
        for index in 0..self.seen.len() {
            let resource = self.seen[index];
            if self.disturbs_others(resource) {
                self.open(resource);
                is_wider = true;
            }
        }
        is_wider
    }

    /// Whether the classes of a resource that are not shared out would have other rates if they
    /// were. The others were fair before: each has a resource that was saturated, on which no rate
    /// was higher.
    fn disturbs_others(&self, resource: u32) -> bool {
        let state = &self.resources[resource as usize];
        if state.is_whole {
            return false;
        }
        if state.left() > state.capacity * (1.0 - SATURATED) {
            // It may have held up some of them.
            return state.was_saturated;
        }
        let (mut own, mut others) = (0.0_f64, 0.0_f64);
        for &usage in &state.users {
            let class = &self.classes[self.class_of[usage as usize] as usize];
            if class.epoch == self.epoch {
                own = own.max(class.next_rate);
            } else {
                others = others.max(class.rate);
            }
        }
        // It held up others, which may now have as much; or it holds up one, which may.
        (state.was_saturated && own > others * (1.0 + EQUAL))
            || (state.holds_up && own < others * (1.0 - EQUAL))
    }
}
