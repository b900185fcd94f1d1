// SPDX-License-Identifier: MIT OR Apache-2.0

//! How long plans take, roughly: what each stage takes of the busiest part of the machine that it
//! uses, along the longest path of stages that wait for each other. `libcopy-model` simulates them.

use std::collections::HashMap;

use super::costs::{Machine, Resource};
use super::stage::{Plan, Progress, Source};

/// When a piece of a stage is moved.
#[derive(Clone, Copy)]
struct Time {
    /// Bytes of the stage with it.
    bytes: usize,
    start: f64,
    /// When its first chunk is done: before others who use the same parts of the machine have
    /// begun.
    first: f64,
    end: f64,
    chunk: usize,
}

/// What a rank has done.
struct Done {
    /// Of each stage that has begun, its pieces that are done.
    stages: Vec<Vec<Time>>,
    /// When each stage that has ended did.
    ended: Vec<f64>,
    now: f64,
}

impl Done {
    /// When the rank has come so far; None if that is not known yet.
    fn at(&self, progress: Progress) -> Option<f64> {
        if progress.bytes == 0 {
            let before = progress.stage.checked_sub(1);
            return before.map_or(Some(0.0), |stage| self.ended.get(stage).copied());
        }
        let times = self.stages.get(progress.stage)?;
        let piece = times.iter().position(|it| it.bytes >= progress.bytes)?;
        let before = piece.checked_sub(1).map_or(0, |piece| times[piece].bytes);
        let Time {
            bytes,
            start,
            first,
            end,
            chunk,
        } = times[piece];
        let so_far = progress.bytes - before;
        if so_far <= chunk && chunk < bytes - before {
            return Some(first);
        }
        let part = so_far as f64 / (bytes - before) as f64;
        Some(start + (end - start) * part)
    }
}

/// Seconds until the last rank returns. `bytes` is the length of a rank's buffer, `chunk` that of
/// what a rank moves before it tells the others.
pub fn price(plans: &[Plan], machine: &Machine, bytes: usize, chunk: usize) -> f64 {
    let known = Known {
        plans,
        machine,
        durations: durations(plans, machine, bytes),
        followers: followers(plans),
        bytes,
        chunk,
    };
    let mut done: Vec<Done> = plans
        .iter()
        .map(|_| Done {
            stages: Vec::new(),
            ended: Vec::new(),
            now: 0.0,
        })
        .collect();
    loop {
        let mut moved = false;
        for rank in 0..plans.len() {
            while known.advance(&mut done, rank) {
                moved = true;
            }
        }
        if !moved {
            break;
        }
    }
    done.iter().map(|it| it.now).fold(0.0, f64::max)
}

/// What each stage of each rank takes, if nobody is waited for.
fn durations(plans: &[Plan], machine: &Machine, bytes: usize) -> Vec<Vec<f64>> {
    let mut loads: HashMap<(usize, Resource), f64> = HashMap::new();
    let mut used: Vec<Vec<Vec<Resource>>> = Vec::new();
    for (rank, plan) in plans.iter().enumerate() {
        let mut of_rank = Vec::new();
        for (number, stage) in plan.stages.iter().enumerate() {
            let mut of_stage = Vec::new();
            for piece in &stage.pieces {
                for (resource, weight) in machine.route(rank, piece, bytes) {
                    *loads.entry((number, resource)).or_default() += weight * piece.bytes as f64;
                    of_stage.push(resource);
                }
            }
            of_stage.sort_unstable();
            of_stage.dedup();
            of_rank.push(of_stage);
        }
        used.push(of_rank);
    }
    let time = |number: usize, resource: &Resource| {
        loads[&(number, *resource)] / machine.capacity(*resource)
    };
    let of_rank = |of_rank: &Vec<Vec<Resource>>| {
        let stages = of_rank.iter().enumerate();
        let times = stages.map(|(number, used)| {
            let times = used.iter().map(|resource| time(number, resource));
            times.fold(0.0, f64::max)
        });
        times.collect()
    };
    used.iter().map(of_rank).collect()
}

/// How many ranks follow a stage of a rank, or look whether it has begun.
fn followers(plans: &[Plan]) -> HashMap<(usize, Option<usize>), usize> {
    let mut all: Vec<((usize, Option<usize>), usize)> = Vec::new();
    for (rank, plan) in plans.iter().enumerate() {
        for stage in &plan.stages {
            let sources = stage.pieces.iter().flat_map(|piece| &piece.from);
            let sources = sources.map(|source| match source.after {
                Some(after) => (after.rank, Some(after.progress.stage)),
                None => (source.span.rank, None),
            });
            let after = stage.after.iter();
            let after = after.map(|after| (after.rank, Some(after.progress.stage)));
            let of_others = after.chain(sources).filter(|(other, _)| *other != rank);
            all.extend(of_others.map(|followed| (followed, rank)));
        }
    }
    all.sort_unstable();
    all.dedup();
    let mut followers = HashMap::new();
    for (followed, _) in all {
        *followers.entry(followed).or_default() += 1;
    }
    followers
}

/// What does not change while times are computed.
struct Known<'a> {
    plans: &'a [Plan],
    machine: &'a Machine,
    durations: Vec<Vec<f64>>,
    followers: HashMap<(usize, Option<usize>), usize>,
    bytes: usize,
    chunk: usize,
}

impl Known<'_> {
    /// Until a rank sees how far another one is: the line goes to one after the other.
    fn latency(&self, writer: usize, stage: Option<usize>, reader: usize) -> f64 {
        if writer == reader {
            return 0.0;
        }
        let followers = self.followers.get(&(writer, stage)).copied().unwrap_or(1);
        let machine = self.machine;
        machine.latency(writer, reader) + followers as f64 * machine.costs.line
    }

    /// Computes the time of a rank's next piece, if those that it waits for are known.
    fn advance(&self, done: &mut [Done], rank: usize) -> bool {
        let own = &done[rank];
        let number = own.ended.len();
        let Some(stage) = self.plans[rank].stages.get(number) else {
            return false;
        };
        let mut start = own.now;
        if own.stages.len() == number {
            for after in &stage.after {
                let Some(at) = done[after.rank].at(after.progress) else {
                    return false;
                };
                start = start.max(at + self.latency(after.rank, Some(after.progress.stage), rank));
            }
            // It gets one line after the other.
            start += stage.after.len() as f64 * self.machine.costs.line;
            let own = &mut done[rank];
            own.now = start;
            own.stages.push(Vec::new());
        }
        let number_of_piece = done[rank].stages[number].len();
        let Some(piece) = stage.pieces.get(number_of_piece) else {
            let own = &mut done[rank];
            own.ended.push(own.now);
            return true;
        };
        let duration = self.durations[rank][number] * piece.bytes as f64 / stage.bytes() as f64;
        let chunk = self.chunk.min(piece.bytes);
        let chunks = piece.bytes.div_ceil(chunk.max(1)) as f64;
        let route = self.machine.route(rank, piece, self.bytes).into_iter();
        let alone = route.map(|(it, weight)| weight * chunk as f64 / self.machine.capacity(it));
        let alone = alone.fold(0.0, f64::max);
        let mut last: f64 = 0.0;
        for source in &piece.from {
            let Some((first_there, all_there)) = self.arrival(done, source, piece.bytes, rank)
            else {
                return false;
            };
            start = start.max(first_there);
            last = last.max(all_there);
        }
        let of_sources = chunks * piece.from.len() as f64 * self.machine.costs.chunk;
        // The last chunk follows when most others are done.
        let end = (start + duration).max(last + alone) + of_sources;
        let own = &mut done[rank];
        let before = own.stages[number].last().map_or(0, |time| time.bytes);
        own.stages[number].push(Time {
            bytes: before + piece.bytes,
            start,
            first: (start + alone + of_sources / chunks).min(end),
            end,
            chunk,
        });
        own.now = end;
        true
    }

    /// When the first chunk of a source is seen, and when the last.
    fn arrival(
        &self,
        done: &[Done],
        source: &Source,
        bytes: usize,
        reader: usize,
    ) -> Option<(f64, f64)> {
        let Some(after) = source.after else {
            let latency = self.latency(source.span.rank, None, reader);
            return Some((latency, latency));
        };
        let latency = self.latency(after.rank, Some(after.progress.stage), reader);
        let last = done[after.rank].at(after.progress)? + latency;
        let mut first = after.progress;
        let chunk = self.chunk.min(bytes);
        first.bytes = first.bytes.saturating_sub(bytes - chunk);
        let first = if source.in_order {
            done[after.rank].at(first)? + latency
        } else {
            last
        };
        Some((first, last))
    }
}
