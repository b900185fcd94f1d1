//! Simulates ways of two CSV files where they differ (temporary).
use libcopy::plan::choose::{buffer, ways};
use libcopy::plan::{Call, Lengths, Operation, Plans};
use libcopy_model::{machines::Preset, simulate};
use std::io::Write;

fn main() {
    let mut args = std::env::args().skip(1);
    let read = |path: String| -> Vec<(String, String)> {
        let text = std::fs::read_to_string(path).unwrap();
        text.lines()
            .map(|line| {
                let mut parts: Vec<&str> = line.splitn(5, ',').collect();
                let way = parts.pop().unwrap();
                (parts.join(","), way.rsplit_once(',').unwrap().0.to_owned())
            })
            .collect()
    };
    let old = read(args.next().unwrap());
    let new = read(args.next().unwrap());
    for ((cell, old), (other, new)) in old.iter().zip(&new) {
        assert_eq!(cell, other);
        if old == new {
            continue;
        }
        let parts: Vec<&str> = cell.split(',').collect();
        let preset = Preset::named(parts[0]).unwrap();
        let ranks: usize = parts[1].parse().unwrap();
        let op = Operation::ALL
            .into_iter()
            .find(|op| op.name() == parts[2])
            .unwrap();
        let bytes: usize = parts[3].parse().unwrap();
        let call = Call {
            operation: op,
            root: 0,
            lengths: Lengths::Same(if op == Operation::Barrier { 0 } else { bytes }),
            in_rank_order: op.is_scan(),
            element: if op.combines() { 8 } else { 1 },
        };
        let (object, places, machine) = preset.with_ranks(ranks);
        let all = ways(&object, &places, &call);
        let time = |text: &str| {
            let way = all.iter().find(|way| {
                let levels: Vec<String> = way.levels.iter().map(|l| format!("{l:?}")).collect();
                let its = format!(
                    "{:?}|{:?}|{:?}|{}",
                    levels.join("+"),
                    way.shape.workers,
                    way.shape.prefix,
                    way.chunk
                );
                its.replace("\"\"", "") == text.replace("\"\"", "")
            });
            let way = way.unwrap_or_else(|| panic!("{text}"));
            let plans = Plans::new(&way.tree, &call, way.shape).all();
            simulate::run(&plans, &machine, buffer(&call, ranks), way.chunk)
                .unwrap()
                .seconds
                * 1e6
        };
        let (one, other) = (time(old), time(new));
        println!(
            "{:+.2}% {cell}: {old} {one:.2} -> {new} {other:.2}",
            (other / one - 1.0) * 100.0
        );
        std::io::stdout().flush().unwrap();
    }
}
