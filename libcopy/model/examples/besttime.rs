//! Times.
use libcopy::plan::{Call, Costs, Lengths, Operation, Plans, choose};
use libcopy_model::machines::Preset;
fn main() {
    for (name, ranks) in [("epyc-9654", 192), ("epyc-7742", 128), ("epyc-9654", 64)] {
        let preset = Preset::named(name).unwrap();
        let (object, cores) = preset.objects();
        let places: Vec<usize> = (0..ranks).map(|r| cores[r % cores.len()]).collect();
        for (op, bytes) in [
            (Operation::Bcast, 65536),
            (Operation::Bcast, 1 << 20),
            (Operation::Allgather, 65536),
            (Operation::Allreduce, 65536),
            (Operation::Allreduce, 1 << 20),
            (Operation::Barrier, 0),
            (Operation::ReduceScatter, 8192),
        ] {
            let call = Call {
                operation: op,
                root: 0,
                lengths: Lengths::Same(bytes),
                in_rank_order: false,
                element: if op.combines() { 8 } else { 1 },
            };
            let start = std::time::Instant::now();
            let way = choose::best(&object, &places, &call, Costs::BUILT_IN).unwrap();
            let t = start.elapsed();
            let start = std::time::Instant::now();
            let plans = Plans::new(&way.tree, &call, way.shape);
            let plan = plans.rank(ranks - 1);
            println!(
                "{name} {ranks} {} {bytes}: best {t:?}, own plan {:?}, {} stages, levels {:?} {:?} chunk {}",
                op.name(),
                start.elapsed(),
                plan.stages.len(),
                way.levels,
                way.shape.workers,
                way.chunk
            );
        }
    }
}
