// SPDX-License-Identifier: MIT OR Apache-2.0

//! Fig. 3: what moving a message takes when one process has an engine to itself (3a), when two
//! processes have an engine each (3b), and when they share one (3c).

use super::experiment::{Process, Run, micros};
use anyhow::Result;
use libcopy::device::{Device, Request, Submission};
use libcopy::topology::{self, Topology};
use libcopy_measure::report::Row;
use libcopy_measure::sizes;
use std::time::Instant;

/// Pages per fragment: large ones, because an emulated guest pays much for each callback.
const FRAGMENT_PAGES: u32 = 64;

/// Moves the calling thread to this NUMA node: its requests go to an engine there.
fn move_to(node: Option<u32>) {
    let its = |id: usize| u32::try_from(id).ok() == node;
    if let Some(node) = Topology::current().nodes.iter().find(|node| its(node.id)) {
        topology::pin(&node.cpus, 0);
    }
}

/// Fills in the rows.
pub fn run(run: &mut Run) -> Result<()> {
    // In a thread of its own: where it may run is of no use to what is measured next.
    let threads = std::thread::scope(|scope| scope.spawn(|| measure_all(run)).join());
    threads.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

fn measure_all(run: &mut Run) -> Result<()> {
    let mut nodes: Vec<Option<u32>> = Vec::new();
    for engine in Device::open()?.engines()? {
        if !nodes.contains(&engine.node()) {
            nodes.push(engine.node());
        }
    }
    let first = nodes[0];
    let mut sets = vec![("alone", vec![first])];
    match nodes.get(1) {
        Some(second) => sets.push(("own-engines", vec![first, *second])),
        None => run.notes.push(
            "left out: own engines; they are told apart by node, and all are on one (--numa)"
                .into(),
        ),
    }
    sets.push(("shared-engine", vec![first, first]));
    run.notes.push(format!(
        "fig3: time until all have ended, n = {FRAGMENT_PAGES}"
    ));
    for bytes in run.sizes.clone() {
        for (variant, nodes) in &sets {
            run.step(&format!("fig3 {variant} {}", sizes::short(bytes)));
            measure(run, variant, nodes, bytes)?;
        }
    }
    Ok(())
}

fn measure(run: &mut Run, variant: &str, nodes: &[Option<u32>], bytes: usize) -> Result<()> {
    let mut processes = Process::several(run, nodes.len(), bytes)?;
    let mut timings = Vec::new();
    {
        let mut shared = Vec::new();
        for process in &mut processes {
            shared.push(process.share()?);
        }
        // The first round maps the memory for the engines, which later ones find.
        for round in 0..=run.rounds {
            let start = Instant::now();
            let mut requests: Vec<Request<'_>> = Vec::new();
            for ((source, target, domain), node) in shared.iter().zip(nodes) {
                let submission = Submission::new(source.id(), target.id(), bytes as u64)
                    .fragment_pages(FRAGMENT_PAGES);
                move_to(*node);
                requests.push(domain.submit(&submission)?);
            }
            for request in &requests {
                request.wait(None)?;
            }
            let time = micros(start.elapsed());
            if round > 0 {
                timings.push(time);
            }
        }
    }
    let right = processes
        .iter()
        .enumerate()
        .all(|(which, p)| p.right(which));
    run.rows.push(Row::timed(
        "fig3",
        bytes,
        nodes.len(),
        variant,
        &timings,
        right,
    )?);
    Ok(())
}
