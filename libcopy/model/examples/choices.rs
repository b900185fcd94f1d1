//! Chosen ways as CSV (temporary).
use libcopy::plan::choose::{self, Way};
use libcopy::plan::{Call, Costs, Lengths, Operation};
use libcopy_model::machines::MACHINES;
use std::io::Write;

fn main() {
    let only: Option<String> = std::env::args().nth(1);
    let built_in = std::env::args().nth(2).is_some();
    for preset in &MACHINES {
        if only
            .as_ref()
            .is_some_and(|it| it != "all" && it != preset.name)
        {
            continue;
        }
        let (object, cores) = preset.objects();
        let mut counts = vec![2, 3, 8, 16, 24, 48, 64];
        counts.retain(|it| *it < cores.len());
        counts.push(cores.len());
        for ranks in counts {
            let places: Vec<usize> = cores[..ranks].to_vec();
            for op in Operation::ALL {
                for bytes in [64usize, 1 << 10, 16 << 10, 64 << 10, 1 << 20, 16 << 20] {
                    if op == Operation::Barrier && bytes > 64 {
                        continue;
                    }
                    let call = Call {
                        operation: op,
                        root: 0,
                        lengths: Lengths::Same(if op == Operation::Barrier { 0 } else { bytes }),
                        in_rank_order: op.is_scan(),
                        element: if op.combines() { 8 } else { 1 },
                    };
                    let start = std::time::Instant::now();
                    let costs = if built_in {
                        Costs::BUILT_IN
                    } else {
                        preset.costs
                    };
                    let way: Way = choose::best(&object, &places, &call, costs).unwrap();
                    let took = start.elapsed().as_secs_f64() * 1e3;
                    println!(
                        "{},{ranks},{},{bytes},{:?}|{:?}|{:?}|{},{took:.3}",
                        preset.name,
                        op.name(),
                        way.levels
                            .iter()
                            .map(|l| format!("{l:?}"))
                            .collect::<Vec<_>>()
                            .join("+"),
                        way.shape.workers,
                        way.shape.prefix,
                        way.chunk
                    );
                    std::io::stdout().flush().unwrap();
                }
            }
        }
    }
}
