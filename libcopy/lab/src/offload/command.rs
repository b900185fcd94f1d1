// SPDX-License-Identifier: MIT OR Apache-2.0

//! `libcopy-lab offload`: its options, and the list of experiments.

use super::experiment::{Run, counter};
use super::{engines, fragments, model, programs};
use anyhow::{Context, Result, ensure};
use clap::Args;
use libcopy::device::{Device, EngineKind};
use libcopy_measure::machine::Machine;
use libcopy_measure::output::Output;
use libcopy_measure::progress;
use libcopy_measure::report::{Ratio, Report};
use libcopy_measure::sizes;

/// `libcopy-lab offload`
#[derive(Args, Clone, Debug)]
pub struct PaperArgs {
    /// Message sizes of Fig. 3: `256K,1M`, `256K-16M` (steps of four)
    #[arg(long, value_name = "LIST")]
    pub sizes: Option<sizes::Sizes>,

    /// Times that every figure is measured
    #[arg(long, default_value_t = 5)]
    pub rounds: usize,

    /// Smaller messages and three rounds: about a minute in the emulated guest
    #[arg(long)]
    pub quick: bool,

    /// Only these experiments
    #[arg(long, value_name = "NAME", value_delimiter = ',',
          value_parser = clap::builder::PossibleValuesParser::new(EXPERIMENTS.iter().map(|e| e.name)))]
    pub only: Vec<String>,

    #[command(flatten)]
    pub output: Output,
}

/// One experiment of the paper.
struct Experiment {
    name: &'static str,
    /// What the paper says, for the notes.
    claim: &'static str,
    run: fn(&mut Run) -> Result<()>,
}

const EXPERIMENTS: &[Experiment] = &[
    Experiment {
        name: "fig3",
        claim: "two processes that share an engine take almost twice the time of one (Fig. 3c)",
        run: engines::run,
    },
    Experiment {
        name: "fragments",
        claim: "a callback takes 1 us for n = 1 and 4 us for n = 8; small n switches sooner (3.4)",
        run: fragments::run,
    },
    Experiment {
        name: "latency",
        claim: "enhanced CPU takes up to 67 % less for bcast and 85 % for gather, hybrid more than it \
                (Figs. 6 and 7)",
        run: programs::latency,
    },
    Experiment {
        name: "overlap",
        claim: "bcast with computation takes up to 45 % less (enhanced CPU) and 58 % less (hybrid), \
                gather 76 % and 72 % (Figs. 8 and 9)",
        run: programs::overlap,
    },
    Experiment {
        name: "application",
        claim: "the synthetic application takes up to 51 % less (enhanced CPU) and 57 % less (hybrid) \
                (Fig. 10)",
        run: programs::application,
    },
    Experiment {
        name: "hiding",
        claim: "computation as long as a copy hides it (3.2)",
        run: programs::hiding,
    },
    Experiment {
        name: "touch",
        claim: "CPUs finish what is touched too early (3.4)",
        run: programs::touch,
    },
    Experiment {
        name: "regret",
        claim: "the interval between calls tells which way is best (4.4)",
        run: programs::regret,
    },
];

/// Runs `libcopy-lab offload`.
pub fn run(args: &PaperArgs) -> Result<()> {
    let engines = Device::open().and_then(|d| d.engines()).context(
        "the experiments need the kernel module and copy engines. On a machine without them run \
         `scripts/vm run --ioat 2x8,bw=200M --numa -- target/release/libcopy-lab offload --quick`",
    )?;
    ensure!(
        !engines.is_empty(),
        "the module has found no engine; see `libcopy info`, load it with engine=kthread, or run this \
         with `scripts/vm run --ioat 2x8,bw=200M --numa -- ...`"
    );
    args.output.check(None)?;
    let model = model::Model::find();
    let sizes = match &args.sizes {
        Some(sizes) => sizes.0.clone(),
        None if args.quick => sizes::range(256 << 10, 4 << 20, 4),
        None => sizes::range(256 << 10, 16 << 20, 4),
    };
    let chosen: Vec<&Experiment> = EXPERIMENTS
        .iter()
        .filter(|e| args.only.is_empty() || args.only.iter().any(|name| name == e.name))
        .collect();
    let mut notes: Vec<String> = engines
        .iter()
        .map(|e| {
            let kind = match e.kind() {
                EngineKind::Dma => "",
                _ => ", no copy engine but a CPU",
            };
            format!(
                "engine {}: {} ({}), node {}, {} channels{kind}",
                e.info.index,
                e.driver(),
                e.device(),
                e.info.node,
                e.info.channels
            )
        })
        .collect();
    if let Some(model) = &model {
        notes.push(format!(
            "MODELLED engines ({}) in an emulated guest: shapes and ratios count, times do not",
            model.shape()
        ));
    }
    for experiment in &chosen {
        notes.push(format!("paper, {}: {}", experiment.name, experiment.claim));
    }
    let mut run = Run {
        rounds: if args.quick {
            args.rounds.min(3)
        } else {
            args.rounds
        }
        .max(1),
        quick: args.quick,
        sizes: sizes.into_iter().filter(|s| *s > 0).collect(),
        bar: progress::bar(0),
        rows: Vec::new(),
        notes,
        round_number: 1,
    };
    let before = model.as_ref().map(model::Model::bytes).transpose()?;
    let engine_before = counter("bytes_engine");
    let quarantined_before = counter("channels_quarantined");
    for experiment in &chosen {
        (experiment.run)(&mut run).with_context(|| experiment.name.to_owned())?;
    }
    run.bar.finish_and_clear();
    let mut accounts_differ = None;
    if let (Some(model), Some(before)) = (&model, before) {
        let counted = model.bytes()? - before;
        let grown = |name, before: Option<u64>| Some(counter(name)? - before?);
        let ours = grown("bytes_engine", engine_before);
        let quarantined = grown("channels_quarantined", quarantined_before).unwrap_or(0);
        run.notes.push(format!(
            "bytes moved by engines: {counted} by the model's account, {} by the module's; {quarantined} \
             times a channel was out of service, and proved itself with a copy that only the model counts",
            ours.map_or("unknown".to_owned(), |ours| ours.to_string())
        ));
        accounts_differ = ours.filter(|ours| *ours != counted && quarantined == 0);
    }
    let report = Report {
        title: "libcopy-lab offload".into(),
        machine: Machine::here(),
        notes: run.notes,
        rows: run.rows,
        ratios: vec![Ratio::Faster(
            "own-engines".into(),
            vec!["shared-engine".into()],
        )],
    };
    args.output.write(&report)?;
    ensure!(
        accounts_differ.is_none(),
        "the engines and the module have counted different numbers of bytes: somebody else uses them"
    );
    Ok(())
}
