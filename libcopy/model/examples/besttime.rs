//! Times.
use libcopy::plan::{Call, Costs, Lengths, Operation, Plans, choose};
use libcopy_model::machines::Preset;
use std::time::{Duration, Instant};
fn main() {
    let only = std::env::args().nth(1);
    for (name, ranks) in [("epyc-9654", 192), ("epyc-7742", 128), ("grace", 144)] {
        let preset = Preset::named(name).unwrap();
        let (object, places, _) = preset.with_ranks(ranks);
        for (op, bytes) in [
            (Operation::Barrier, 0),
            (Operation::Bcast, 1 << 20),
            (Operation::Reduce, 16384),
            (Operation::Allreduce, 1024),
            (Operation::Allreduce, 65536),
            (Operation::Allreduce, 1 << 20),
            (Operation::ReduceScatter, 1024),
            (Operation::ReduceScatter, 8192),
            (Operation::Allgather, 64),
            (Operation::Allgather, 65536),
            (Operation::Gather, 65536),
            (Operation::Alltoall, 16384),
            (Operation::Scan, 1024),
            (Operation::Exscan, 1 << 20),
        ] {
            if only.as_ref().is_some_and(|it| it != op.name()) {
                continue;
            }
            let call = Call {
                operation: op,
                root: 0,
                lengths: Lengths::Same(bytes),
                in_rank_order: op.is_scan(),
                element: if op.combines() { 8 } else { 1 },
            };
            let mut least = Duration::MAX;
            let mut way = None;
            let mut first = None;
            for _ in 0..15 {
                let start = Instant::now();
                way = choose::best(&object, &places, &call, Costs::BUILT_IN);
                least = least.min(start.elapsed());
                first.get_or_insert(start.elapsed());
            }
            let way = way.unwrap();
            let start = Instant::now();
            let plans = Plans::new(&way.tree, &call, way.shape);
            let plan = plans.rank(ranks - 1);
            println!(
                "{name} {ranks} {} {bytes}: best {:.2} ms (first {:.2}), own plan {:?}, {} stages, {:?} {:?} {}",
                op.name(),
                least.as_secs_f64() * 1e3,
                first.unwrap().as_secs_f64() * 1e3,
                start.elapsed(),
                plan.stages.len(),
                way.levels,
                way.shape.workers,
                way.chunk
            );
        }
    }
}
