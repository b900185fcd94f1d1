// SPDX-License-Identifier: MIT OR Apache-2.0

//! Plans as flows: each chunk of a piece is an activity that uses what its bytes pass.

use std::collections::HashMap;

use libcopy::plan::{Machine, Plan, Progress, Resource};

use crate::flow::{Activity, FlowError, Resources, simulate};

/// When a rank is at work on a stage.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Work {
    /// The rank.
    pub rank: usize,
    /// The stage.
    pub stage: usize,
    /// When it has ended the stage before.
    pub start: f64,
    /// When it ends this one.
    pub end: f64,
}

/// What a simulation says. Times are in seconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Simulation {
    /// When the last rank returns.
    pub seconds: f64,
    /// What the ranks do when.
    pub work: Vec<Work>,
    /// Which part of the time the busiest resource is in use, and its name.
    pub busiest: (f64, String),
}

/// The activities of all ranks.
struct Activities<'a> {
    machine: &'a Machine,
    resources: Resources,
    numbers: HashMap<Resource, usize>,
    /// What is taken of a rank's lines, and of its looks at others', by rank.
    lines: HashMap<usize, usize>,
    looks: HashMap<usize, usize>,
    all: Vec<Activity>,
    /// For each rank and stage: bytes of the stage so far and the activity that moved them. The
    /// first one ends when the stage before has ended. Behind the last stage there is one more.
    moved: Vec<Vec<Vec<(usize, usize)>>>,
    /// For each rank and stage, what waits until the stage may begin.
    gates: Vec<Vec<usize>>,
    /// What a rank sees of an activity of another one, by that and the rank.
    signals: HashMap<(usize, usize), usize>,
}

/// Simulates the plans of all ranks. `bytes` is the length of a rank's buffer, `chunk` that of what
/// a rank moves before it tells the others. Times are in seconds.
///
/// # Errors
///
/// Plans that wait for each other in a circle.
pub fn run(
    plans: &[Plan],
    machine: &Machine,
    bytes: usize,
    chunk: usize,
) -> Result<Simulation, FlowError> {
    let mut activities = Activities {
        machine,
        resources: Resources::new(),
        numbers: HashMap::new(),
        lines: HashMap::new(),
        looks: HashMap::new(),
        all: Vec::new(),
        moved: Vec::new(),
        gates: Vec::new(),
        signals: HashMap::new(),
    };
    for (rank, plan) in plans.iter().enumerate() {
        activities.add(rank, plan, bytes, chunk.max(1));
    }
    for (rank, plan) in plans.iter().enumerate() {
        activities.connect(rank, plan);
    }
    let outcome = simulate(&activities.resources, &activities.all)?;
    let mut work = Vec::new();
    for (rank, stages) in activities.moved.iter().enumerate() {
        let begins = stages.iter().map(|moved| outcome.ends[moved[0].1]);
        let begins: Vec<f64> = begins.collect();
        for (stage, pair) in begins.windows(2).enumerate() {
            work.push(Work {
                rank,
                stage,
                start: pair[0],
                end: pair[1],
            });
        }
    }
    let utilisation = outcome.utilisation(&activities.resources);
    let names = activities.resources.names().iter().cloned();
    let busiest = utilisation.into_iter().zip(names);
    let busiest = busiest.max_by(|one, other| one.0.total_cmp(&other.0));
    Ok(Simulation {
        seconds: work.iter().map(|it| it.end).fold(0.0, f64::max),
        work,
        busiest: busiest.unwrap_or_default(),
    })
}

impl Activities<'_> {
    fn push(
        &mut self,
        work: f64,
        latency: f64,
        uses: Vec<(usize, f64)>,
        after: Vec<usize>,
    ) -> usize {
        self.all.push(Activity {
            work,
            latency,
            rate_cap: None,
            uses,
            after,
        });
        self.all.len() - 1
    }

    /// The activities of a rank, one after the other.
    fn add(&mut self, rank: usize, plan: &Plan, bytes: usize, chunk: usize) {
        let mut stages = Vec::new();
        let mut gates = Vec::new();
        let mut last = self.push(0.0, 0.0, Vec::new(), Vec::new());
        for stage in &plan.stages {
            let mut moved = vec![(0, last)];
            let mut so_far = 0;
            last = self.push(0.0, 0.0, Vec::new(), vec![last]);
            gates.push(last);
            for piece in &stage.pieces {
                let route = self.machine.route(rank, piece, bytes);
                let uses: Vec<(usize, f64)> = route
                    .into_iter()
                    .map(|(it, weight)| (self.number(it), weight))
                    .collect();
                for start in (0..piece.bytes).step_by(chunk) {
                    let length = chunk.min(piece.bytes - start);
                    let latency = self.machine.costs.chunk * piece.from.len() as f64;
                    let activity = self.push(length as f64, latency, uses.clone(), vec![last]);
                    so_far += length;
                    moved.push((so_far, activity));
                    last = activity;
                }
            }
            stages.push(moved);
            last = self.push(0.0, 0.0, Vec::new(), vec![last]);
        }
        stages.push(vec![(0, last)]);
        self.moved.push(stages);
        self.gates.push(gates);
    }

    fn number(&mut self, resource: Resource) -> usize {
        let capacity = self.machine.capacity(resource);
        let name = self.machine.name(resource);
        let resources = &mut self.resources;
        let add = || resources.add(name, capacity);
        *self.numbers.entry(resource).or_insert_with(add)
    }

    /// What each activity of a rank waits for.
    fn connect(&mut self, rank: usize, plan: &Plan) {
        for (number, stage) in plan.stages.iter().enumerate() {
            let begins = self.gates[rank][number];
            for after in &stage.after {
                self.wait(begins, after.rank, rank, after.progress);
            }
            let mut next = 1;
            let mut before = 0;
            for piece in &stage.pieces {
                let end = before + piece.bytes;
                while let Some((so_far, activity)) = self.moved[rank][number]
                    .get(next)
                    .copied()
                    .filter(|it| it.0 <= end)
                {
                    for source in &piece.from {
                        let writer = source.after.map_or(source.span.rank, |after| after.rank);
                        if writer == rank {
                            continue;
                        }
                        // That it has begun the call is seen, too.
                        let begun = Progress { stage: 0, bytes: 0 };
                        let mut progress = source.after.map_or(begun, |after| after.progress);
                        if source.in_order {
                            progress.bytes = progress.bytes.saturating_sub(end - so_far);
                        }
                        self.wait(activity, writer, rank, progress);
                    }
                    next += 1;
                }
                before = end;
            }
        }
    }

    /// An activity waits until its rank sees how far another one is.
    fn wait(&mut self, activity: usize, writer: usize, reader: usize, progress: Progress) {
        let stages = &self.moved[writer];
        let stage = stages.get(progress.stage).or(stages.last());
        let awaited = stage.and_then(|moved| {
            let index = moved.partition_point(|(so_far, _)| *so_far < progress.bytes);
            moved.get(index).map(|it| it.1)
        });
        let Some(awaited) = awaited else { return };
        let key = (awaited, reader);
        let signal = match self.signals.get(&key) {
            Some(signal) => *signal,
            None => {
                // The line goes to one reader after the other, and a reader gets one at a time.
                let latency = self.machine.latency(writer, reader);
                let lines = [(&mut self.lines, writer), (&mut self.looks, reader)];
                let uses = lines.map(|(numbers, rank)| {
                    let name = format!("lines of rank {rank}");
                    let add = || self.resources.add(name, 1.0 / self.machine.costs.line);
                    (*numbers.entry(rank).or_insert_with(add), 1.0)
                });
                let signal = self.push(1.0, latency, uses.to_vec(), vec![awaited]);
                self.signals.insert(key, signal);
                signal
            }
        };
        let after = &mut self.all[activity].after;
        if !after.contains(&signal) {
            after.push(signal);
        }
    }
}
