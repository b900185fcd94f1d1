// SPDX-License-Identifier: MIT OR Apache-2.0

//! `scripts/bench mpi --ops ...`: programs of tests/peers that alternate calls which are
//! intercepted and calls of the MPI library itself inside each launch (tests/peers/mpi_paired.h).

use std::path::{Path, PathBuf};

use super::settings::{Settings, positive};

/// The first columns of what the programs print.
const COLUMNS: &str = "op,bytes,ranks,variant,rounds,verified";
/// The column that has the name of the MPI library in the results, and is empty in what the
/// programs print.
const VARIANT: usize = 3;

/// What one of the benchmarks does.
#[derive(Debug)]
pub struct Benchmark {
    /// Names the files of results.
    pub name: String,
    pub title: String,
    /// Columns behind those that all have.
    columns: &'static str,
    /// The measure on the figure's axis, if it is not the time.
    pub axis: Option<&'static str>,
    pub launches: usize,
    pub programs: Vec<Program>,
    /// The file of layouts that the programs read, made by the tool with these options.
    pub layouts: Option<Layouts>,
    pub settings: Settings,
}

/// A program of tests/peers, and how it is started.
#[derive(Debug, PartialEq, Eq)]
pub struct Program {
    pub name: &'static str,
    pub ranks: usize,
    pub arguments: Vec<String>,
}

impl Program {
    fn new(
        name: &'static str,
        ranks: usize,
        arguments: impl IntoIterator<Item = String>,
    ) -> Program {
        Program {
            name,
            ranks,
            arguments: arguments.into_iter().collect(),
        }
    }
}

/// Layouts of applications.
#[derive(Debug)]
pub struct Layouts {
    pub file: PathBuf,
    /// Options of `libcopy bench types --list`.
    pub options: Vec<String>,
    /// Lines behind those that the tool prints.
    pub more: String,
}

impl Layouts {
    fn new(output: &Path, settings: &Settings) -> Layouts {
        let mut options = Vec::new();
        if settings.quick {
            options.push("--quick".to_owned());
        }
        for name in ["layouts", "sizes"] {
            if let Some(value) = settings.get(name) {
                options.extend([format!("--{name}"), value.to_owned()]);
            }
        }
        Layouts {
            file: output.join("layouts.txt"),
            options,
            more: String::new(),
        }
    }
}

/// The options that a benchmark has beside those of all.
fn settings(options: &[String], own: &[&str]) -> Result<Settings, String> {
    let all = ["ops", "csv", "plot", "mpi", "launches"];
    Settings::parse(options, &[own, &all].concat())
}

/// Which programs measure an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    PingPong,
    Dense,
    Short,
    FreshTypes,
    Collectives,
    Stencil,
    Fft2d,
    Packing,
    Vectors,
}

impl Kind {
    fn of(op: &str) -> Option<Kind> {
        Some(match op {
            "typed-pingpong" | "paper-layouts" => Kind::PingPong,
            "dense" => Kind::Dense,
            "short" => Kind::Short,
            "fresh-types" => Kind::FreshTypes,
            "collectives" | "nonblocking" => Kind::Collectives,
            "stencil" => Kind::Stencil,
            "fft2d" => Kind::Fft2d,
            "pack" | "unpack" => Kind::Packing,
            "latency" | "bandwidth" | "bibandwidth" => Kind::Vectors,
            _ => return None,
        })
    }

    /// Whether one launch measures several operations.
    fn takes_lists(self) -> bool {
        matches!(self, Kind::Packing | Kind::Vectors)
    }

    fn benchmark(self, ops: &str, options: &[String], output: &Path) -> Result<Benchmark, String> {
        match self {
            Kind::PingPong => Benchmark::ping_pong(ops, options, output),
            Kind::Dense => {
                let sizes = "2048,4096,8192,16384,32768,65536,131072";
                Benchmark::of_sizes(ops, "Dense messages", ("mpi_dense", sizes), &[], options)
            }
            Kind::Short => {
                let sizes = "8,64,128,512,1024,4096";
                let title = "Short collectives";
                Benchmark::of_sizes(ops, title, ("mpi_short", sizes), &["between"], options)
            }
            Kind::FreshTypes => Benchmark::fresh_types(ops, options),
            Kind::Collectives => Benchmark::collectives(ops, options),
            Kind::Stencil => Benchmark::stencil(ops, options),
            Kind::Fft2d => Benchmark::fft2d(ops, options),
            Kind::Packing => Benchmark::packing(ops, options, output),
            Kind::Vectors => Benchmark::vectors(ops, options),
        }
    }
}

/// Where the time of those who receive goes, instead of a comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Breakdown {
    pub protocol: String,
    /// Milliseconds for each layout.
    pub budget: usize,
}

impl Benchmark {
    /// The benchmarks of the operations that --ops names, one after the other; none if `libcopy
    /// bench peers` measures them. `output` is the directory for files.
    pub fn all(ops: &str, options: &[String], output: &Path) -> Result<Vec<Benchmark>, String> {
        // Operations next to each other that one program measures.
        let mut groups: Vec<(Kind, String)> = Vec::new();
        let mut foreign = None;
        for op in ops.split(',') {
            let Some(kind) = Kind::of(op) else {
                foreign = Some(op);
                continue;
            };
            match groups.last_mut() {
                Some((last, list)) if *last == kind && kind.takes_lists() => {
                    list.push_str(&format!(",{op}"));
                }
                _ => groups.push((kind, op.to_owned())),
            }
        }
        if let (Some(op), Some((_, paired))) = (foreign, groups.first()) {
            return Err(format!(
                "--ops '{ops}': '{paired}' is measured inside each launch, and '{op}' is not: name them in two calls \
                 (see --help)"
            ));
        }
        let groups = groups.iter();
        groups
            .map(|(kind, ops)| kind.benchmark(ops, options, output))
            .collect()
    }

    fn new(
        name: &str,
        title: &str,
        columns: &'static str,
        launches: (usize, usize),
        settings: Settings,
    ) -> Result<Benchmark, String> {
        settings.libraries()?;
        Ok(Benchmark {
            name: name.to_owned(),
            title: title.to_owned(),
            columns,
            axis: None,
            launches: settings.number("launches", settings.either(launches.0, launches.1))?,
            programs: Vec::new(),
            layouts: None,
            settings,
        })
    }

    /// The layouts of applications in messages between two ranks.
    fn ping_pong(ops: &str, options: &[String], output: &Path) -> Result<Benchmark, String> {
        let settings = settings(options, &["layouts", "sizes", "breakdown"])?;
        let mut layouts = Layouts::new(output, &settings);
        let mut title = "Layouts of applications, ping-pong of two ranks";
        if ops == "paper-layouts" {
            layouts.options.push("--paper".to_owned());
            title = "Layouts of applications as FALCON-X has them, ping-pong of two ranks";
        } else if settings.get("layouts").or(settings.get("sizes")).is_none() {
            let dense = [1 << 20, 2 << 20, 4 << 20, 16 << 20];
            let lines = dense.map(|bytes| format!("contiguous\tcontiguous({bytes},byte)\n"));
            layouts.more = lines.concat();
        }
        let budget = settings.either(80, 200).to_string();
        let mut benchmark = Benchmark::new(ops, title, ",layout", (2, 5), settings)?;
        benchmark.breakdown()?;
        let file = layouts.file.display().to_string();
        benchmark.programs = vec![Program::new("mpi_pingpong", 2, [file, budget])];
        benchmark.layouts = Some(layouts);
        Ok(benchmark)
    }

    /// What --breakdown asks for.
    pub fn breakdown(&self) -> Result<Option<Breakdown>, String> {
        let Some(protocol) = self.settings.get("breakdown") else {
            return Ok(None);
        };
        let protocol = match protocol {
            "best" | "pipelined" | "get" | "mapped" => protocol,
            // What these were called before they had the names of docs/design/p2p-protocol.md.
            "stream" => "pipelined",
            "fetch" => "get",
            "attach" => "mapped",
            _ => {
                return Err(format!(
                    "--breakdown '{protocol}' is not best, pipelined, get or mapped"
                ));
            }
        };
        Ok(Some(Breakdown {
            protocol: protocol.to_owned(),
            budget: self.settings.either(80, 200) / 8,
        }))
    }

    /// Collectives of several numbers of ranks.
    fn collectives(ops: &str, options: &[String]) -> Result<Benchmark, String> {
        let settings = settings(options, &["ranks"])?;
        let list = match ops {
            "nonblocking" => {
                "ibcast,igather,igatherv,iallgather,iallgatherv,ialltoall,iallreduce,ireduce,ireduce_scatter,iscan"
            }
            _ => "bcast,gather,allgather,alltoall,allreduce",
        };
        let most = settings.either(4 << 20, 16 << 20).to_string();
        let budget = settings.either(80, 200).to_string();
        let ranks = settings.numbers("ranks", "2,4,8")?;
        let title = format!("MPI collectives ({ops})");
        let mut benchmark = Benchmark::new(ops, &title, "", (2, 5), settings)?;
        let words = ["--ops", list, "--max", &most, "--time", &budget].map(str::to_owned);
        let programs = ranks
            .into_iter()
            .map(|ranks| Program::new("mpi_coll", ranks, words.clone()));
        benchmark.programs = programs.collect();
        Ok(benchmark)
    }

    /// `MPI_Pack` and `MPI_Unpack` of the layouts of applications.
    fn packing(ops: &str, options: &[String], output: &Path) -> Result<Benchmark, String> {
        let settings = settings(options, &["layouts", "sizes"])?;
        let layouts = Layouts::new(output, &settings);
        let budget = settings.either(60, 200).to_string();
        let title = "MPI_Pack and MPI_Unpack";
        let mut benchmark = Benchmark::new("packing", title, ",layout", (2, 5), settings)?;
        let words = [layouts.file.display().to_string(), budget, ops.to_owned()];
        benchmark.programs = vec![Program::new("mpi_packing", 1, words)];
        benchmark.layouts = Some(layouts);
        Ok(benchmark)
    }

    /// A program that is given sizes: dense messages between neighbours, or short collectives.
    fn of_sizes(
        ops: &str,
        title: &'static str,
        (program, sizes): (&'static str, &str),
        more: &[&str],
        options: &[String],
    ) -> Result<Benchmark, String> {
        let settings = settings(options, &[&["ranks", "sizes"], more].concat())?;
        let sizes = settings.numbers("sizes", sizes)?;
        let sizes: Vec<_> = sizes.iter().map(usize::to_string).collect();
        let budget = settings.either(30, 100).to_string();
        let ranks = settings.numbers("ranks", "2")?;
        let mut words = vec![budget, sizes.join(",")];
        for name in more {
            if settings.get(name).is_some() {
                words.push(settings.number(name, 0)?.to_string());
            }
        }
        let mut benchmark = Benchmark::new(ops, title, "", (2, 5), settings)?;
        let programs = ranks
            .into_iter()
            .map(|ranks| Program::new(program, ranks, words.clone()));
        benchmark.programs = programs.collect();
        Ok(benchmark)
    }

    /// Types that are made for one use, and the same types kept.
    fn fresh_types(ops: &str, options: &[String]) -> Result<Benchmark, String> {
        let settings = settings(options, &["sizes"])?;
        let sizes = settings.numbers("sizes", "128,512,2048,8192,32768,131072")?;
        let sizes: Vec<_> = sizes.iter().map(usize::to_string).collect();
        let budget = settings.either(60, 200).to_string();
        let title = "Types made for one use, and kept";
        let mut benchmark = Benchmark::new(ops, title, ",layout", (1, 5), settings)?;
        benchmark.programs = vec![Program::new("mpi_fresh", 2, [budget, sizes.join(",")])];
        Ok(benchmark)
    }

    /// Latency and bandwidths of 2 MiB in blocks of 128 bytes to 2 MiB.
    fn vectors(ops: &str, options: &[String]) -> Result<Benchmark, String> {
        let settings = settings(options, &[])?;
        let budget = settings.either(80, 200).to_string();
        let factor = settings.either(4, 2).to_string();
        let (name, title) = (ops.replace(',', "-"), "Vector types of 2 MiB, two ranks");
        let mut benchmark = Benchmark::new(&name, title, ",layout,block", (2, 5), settings)?;
        benchmark.axis = Some("bandwidth");
        let words = [ops.to_owned(), budget, factor];
        benchmark.programs = vec![Program::new("mpi_vector", 2, words)];
        Ok(benchmark)
    }

    /// The faces of a cube, cut in halves in every way.
    fn stencil(ops: &str, options: &[String]) -> Result<Benchmark, String> {
        let settings = settings(options, &["ranks", "cells"])?;
        let cells = settings.number("cells", settings.either(128, 512))?;
        let budget = settings.either(300, 1000).to_string();
        let ranks = settings.numbers("ranks", "2,4,8")?;
        let title = format!("7-point stencil on {cells} x {cells} x {cells} doubles");
        let mut benchmark = Benchmark::new(ops, &title, ",layout", (1, 3), settings)?;
        for ranks in ranks {
            // What is sent lies in larger pieces the slower the index is that is cut.
            let cuts: &[Option<&str>] = match ranks {
                2 => &[Some("2x1x1"), Some("1x2x1"), Some("1x1x2")],
                4 => &[Some("2x2x1"), Some("1x2x2")],
                8 => &[Some("2x2x2")],
                _ => &[None],
            };
            for cut in cuts {
                let words = [cells.to_string(), budget.clone()];
                let words = words.into_iter().chain(cut.map(str::to_owned));
                let program = Program::new("mpi_stencil", ranks, words);
                benchmark.programs.push(program);
            }
        }
        Ok(benchmark)
    }

    /// Fourier transforms, transposed by `MPI_Alltoallw`.
    fn fft2d(ops: &str, options: &[String]) -> Result<Benchmark, String> {
        let settings = settings(options, &["ranks"])?;
        let budget = settings.either(200, 500).to_string();
        let edges: &[usize] = settings.either(&[512, 1024], &[512, 1024, 2048, 4096]);
        let ranks = settings.numbers("ranks", "2,4,8")?;
        let title = "Fourier transforms in two dimensions";
        let mut benchmark = Benchmark::new(ops, title, ",layout", (1, 3), settings)?;
        for ranks in ranks {
            for edge in edges {
                let words = [edge.to_string(), budget.clone()];
                benchmark
                    .programs
                    .push(Program::new("mpi_fft2d", ranks, words));
            }
        }
        Ok(benchmark)
    }

    /// The first line of the results.
    pub fn header(&self) -> String {
        format!("{COLUMNS}{}\n", self.columns)
    }

    /// What a launch has printed, as lines of the results with the library's name.
    pub fn results(&self, printed: &str, mpi: &str) -> Result<String, String> {
        let header = self.header();
        let columns = header.split(',').count();
        let mut results = String::new();
        for line in printed.lines() {
            let mut fields: Vec<&str> = line.split(',').collect();
            if fields[0] == "op" {
                continue;
            }
            if fields.len() != columns || positive(fields[1]).is_none() {
                return Err(format!("'{line}' is no line of {}", header.trim_end()));
            }
            fields[VARIANT] = mpi;
            results.push_str(&fields.join(","));
            results.push('\n');
        }
        Ok(results)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(ops: &str, line: &str) -> Result<Benchmark, String> {
        let options: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
        let mut all = Benchmark::all(ops, &options, "/out".as_ref())?;
        assert_eq!(all.len(), 1);
        Ok(all.remove(0))
    }

    fn lines(benchmark: &Benchmark) -> Vec<String> {
        let programs = benchmark.programs.iter();
        let lines = programs.map(|program| {
            let Program {
                name,
                ranks,
                arguments,
            } = program;
            format!("{name} {ranks}: {}", arguments.join(" "))
        });
        lines.collect()
    }

    #[test]
    fn what_the_tool_measures_has_no_benchmark_here() {
        for ops in ["", "bcast", "bcast,gather"] {
            let all = Benchmark::all(ops, &[], "/out".as_ref()).unwrap();
            assert!(all.is_empty(), "{ops}");
        }
        let mixed = Benchmark::all("latency,bcast", &[], "/out".as_ref());
        let why = mixed.unwrap_err();
        assert!(why.contains("'bcast' is not"), "{why}");
    }

    #[test]
    fn several_benchmarks_follow_each_other() {
        let ops = "collectives,typed-pingpong,pack,unpack,latency,bandwidth";
        let all = Benchmark::all(ops, &[], "/out".as_ref()).unwrap();
        let names: Vec<_> = all.iter().map(|it| it.name.as_str()).collect();
        let expected = [
            "collectives",
            "typed-pingpong",
            "packing",
            "latency-bandwidth",
        ];
        assert_eq!(names, expected);
        let words = ["--layouts".to_owned(), "milc".to_owned()];
        assert!(Benchmark::all(ops, &words, "/out".as_ref()).is_err());
    }

    #[test]
    fn every_cut_of_a_cube_is_measured() {
        let quick = of("stencil", "--quick --ranks 2,3,4").unwrap();
        assert_eq!(
            lines(&quick),
            [
                "mpi_stencil 2: 128 300 2x1x1",
                "mpi_stencil 2: 128 300 1x2x1",
                "mpi_stencil 2: 128 300 1x1x2",
                "mpi_stencil 3: 128 300",
                "mpi_stencil 4: 128 300 2x2x1",
                "mpi_stencil 4: 128 300 1x2x2",
            ]
        );
        assert_eq!(
            (quick.launches, of("stencil", "").unwrap().launches),
            (1, 3)
        );
        assert!(
            of("stencil", "--cells 64")
                .unwrap()
                .title
                .contains("64 x 64")
        );
    }

    #[test]
    fn programs_get_their_budgets() {
        let quick = |ops| lines(&of(ops, "--quick --launches 1").unwrap()).remove(0);
        assert_eq!(
            quick("nonblocking"),
            "mpi_coll 2: --ops ibcast,igather,igatherv,iallgather,iallgatherv,ialltoall,iallreduce,ireduce,\
             ireduce_scatter,iscan --max 4194304 --time 80"
        );
        assert_eq!(
            quick("unpack,pack"),
            "mpi_packing 1: /out/layouts.txt 60 unpack,pack"
        );
        assert_eq!(
            quick("fresh-types"),
            "mpi_fresh 2: 60 128,512,2048,8192,32768,131072"
        );
        assert_eq!(
            lines(&of("dense", "--ranks 2,4 --sizes 4096,8192").unwrap()),
            ["mpi_dense 2: 100 4096,8192", "mpi_dense 4: 100 4096,8192"]
        );
        assert_eq!(quick("short"), "mpi_short 2: 30 8,64,128,512,1024,4096");
        assert_eq!(
            lines(&of("short", "--sizes 8 --between 4194304").unwrap()),
            ["mpi_short 2: 100 8 4194304"]
        );
        assert!(of("dense", "--between 4096").is_err());
        assert_eq!(
            quick("latency,bandwidth"),
            "mpi_vector 2: latency,bandwidth 80 4"
        );
        assert_eq!(quick("fft2d"), "mpi_fft2d 2: 512 200");
        assert_eq!(
            lines(&of("fft2d", "-n 2").unwrap())[3],
            "mpi_fft2d 2: 4096 500"
        );
        assert_eq!(
            of("latency,bandwidth", "").unwrap().name,
            "latency-bandwidth"
        );
    }

    #[test]
    fn layouts_are_the_tools_and_dense_bytes() {
        let all = of("typed-pingpong", "").unwrap();
        let layouts = all.layouts.as_ref().unwrap();
        assert!(layouts.options.is_empty(), "{layouts:?}");
        assert_eq!(layouts.more.lines().count(), 4);
        assert!(
            layouts
                .more
                .starts_with("contiguous\tcontiguous(1048576,byte)\n")
        );
        let some = of("typed-pingpong", "--quick --layouts milc --breakdown get").unwrap();
        let layouts = some.layouts.as_ref().unwrap();
        assert_eq!(layouts.options, ["--quick", "--layouts", "milc"]);
        assert_eq!(layouts.more, "");
        let expected = Breakdown {
            protocol: "get".to_owned(),
            budget: 10,
        };
        assert_eq!(some.breakdown(), Ok(Some(expected.clone())));
        let former = of("typed-pingpong", "--quick --breakdown fetch").unwrap();
        assert_eq!(former.breakdown(), Ok(Some(expected)));
        let paper = of("paper-layouts", "").unwrap().layouts.unwrap();
        assert_eq!(
            (paper.options, paper.more),
            (vec!["--paper".to_owned()], String::new())
        );
        assert!(of("typed-pingpong", "--breakdown sea").is_err());
    }

    #[test]
    fn options_that_a_benchmark_does_not_use_are_refused() {
        for (ops, line) in [
            ("fresh-types", "--ranks 2"),
            ("collectives", "--layouts milc"),
            ("latency", "--sizes 4"),
            ("fft2d", "--cells 8"),
            ("pack", "--mpi lam"),
            ("stencil", "--launches 0"),
        ] {
            assert!(of(ops, line).is_err(), "{ops} {line}");
        }
    }

    #[test]
    fn lines_get_the_librarys_name() {
        let benchmark = of("latency", "").unwrap();
        let text = include_str!("../samples/mpi-vector.csv");
        let results = benchmark.results(text, "mpich").unwrap();
        assert_eq!(results.lines().count(), text.lines().count());
        for (result, line) in results.lines().zip(text.lines()) {
            assert_eq!(result.replacen(",mpich,", ",,", 1), line);
            assert_eq!(result.split(',').nth(VARIANT), Some("mpich"));
        }
        // Collectives come with a header, which is not repeated.
        let benchmark = of("collectives", "").unwrap();
        let text = include_str!("../samples/mpi-coll.csv");
        assert_eq!(text.lines().next(), Some(benchmark.header().trim_end()));
        let results = benchmark.results(text, "openmpi").unwrap();
        assert_eq!(results.lines().count(), text.lines().count() - 1);
        assert!(results.starts_with("bcast,65536,2,openmpi,"), "{results}");
    }

    #[test]
    fn what_is_no_result_is_not_taken_for_one() {
        let benchmark = of("collectives", "").unwrap();
        let text = include_str!("../samples/mpi-coll.csv");
        let cut = &text[..text.trim_end().rfind(',').unwrap()];
        assert!(benchmark.results(cut, "mpich").is_err());
        assert!(
            benchmark
                .results("a,warning,of,some,MPI,library\n", "mpich")
                .is_err()
        );
        assert_eq!(benchmark.results("", "mpich"), Ok(String::new()));
    }
}
