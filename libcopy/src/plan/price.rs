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
    end: f64,
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
        if progress.stage < self.ended.len() && progress.bytes == 0 {
            return Some(
                progress
                    .stage
                    .checked_sub(1)
                    .map_or(0.0, |stage| self.ended[stage]),
            );
        }
        if progress.bytes == 0 {
            let before = progress.stage.checked_sub(1);
            return before.map_or(Some(0.0), |stage| self.ended.get(stage).copied());
        }
        let times = self.stages.get(progress.stage)?;
        let piece = times.iter().position(|it| it.bytes >= progress.bytes)?;
        let before = piece.checked_sub(1).map_or(0, |piece| times[piece].bytes);
        let Time { bytes, start, end } = times[piece];
        let part = (progress.bytes - before) as f64 / (bytes - before) as f64;
        Some(start + (end - start) * part)
    }
}

/// Seconds until the last rank returns. `bytes` is the length of a rank's buffer, `chunk` that of
/// what a rank moves before it tells the others.
pub fn price(plans: &[Plan], machine: &Machine, bytes: usize, chunk: usize) -> f64 {
    let durations = durations(plans, machine, bytes);
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
            while advance(plans, machine, &durations, chunk, &mut done, rank) {
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

/// Computes the time of a rank's next piece, if those that it waits for are known.
fn advance(
    plans: &[Plan],
    machine: &Machine,
    durations: &[Vec<f64>],
    chunk: usize,
    done: &mut [Done],
    rank: usize,
) -> bool {
    let own = &done[rank];
    let number = own.ended.len();
    let Some(stage) = plans[rank].stages.get(number) else {
        return false;
    };
    let mut start = own.now;
    if own.stages.len() == number {
        for after in &stage.after {
            let Some(at) = done[after.rank].at(after.progress) else {
                return false;
            };
            start = start.max(at + machine.latency(after.rank, rank));
        }
        // It gets one line after the other.
        start += stage.after.len() as f64 * machine.costs.line;
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
    let duration = durations[rank][number] * piece.bytes as f64 / stage.bytes() as f64;
    let chunk = chunk.min(piece.bytes);
    let of_chunk = duration * chunk as f64 / piece.bytes as f64;
    let chunks = piece.bytes.div_ceil(chunk.max(1)) as f64;
    let mut last: f64 = 0.0;
    for source in &piece.from {
        let Some((first_there, all_there)) =
            arrival(machine, done, source, piece.bytes, chunk, rank)
        else {
            return false;
        };
        start = start.max(first_there);
        last = last.max(all_there);
    }
    let sources = piece.from.len() as f64;
    let end = (start + duration).max(last + of_chunk) + chunks * sources * machine.costs.chunk;
    let own = &mut done[rank];
    let before = own.stages[number].last().map_or(0, |time| time.bytes);
    own.stages[number].push(Time {
        bytes: before + piece.bytes,
        start,
        end,
    });
    own.now = end;
    true
}

/// When the first chunk of a source is seen, and when the last.
fn arrival(
    machine: &Machine,
    done: &[Done],
    source: &Source,
    bytes: usize,
    chunk: usize,
    reader: usize,
) -> Option<(f64, f64)> {
    let Some(after) = source.after else {
        let latency = machine.latency(source.span.rank, reader);
        return Some((latency, latency));
    };
    let latency = machine.latency(after.rank, reader);
    let last = done[after.rank].at(after.progress)? + latency;
    let mut first = after.progress;
    first.bytes = first.bytes.saturating_sub(bytes - chunk);
    let first = if source.in_order {
        done[after.rank].at(first)? + latency
    } else {
        last
    };
    Some((first, last))
}
