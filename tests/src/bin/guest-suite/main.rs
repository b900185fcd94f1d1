// SPDX-License-Identifier: MIT OR Apache-2.0

//! The guest suite: drives `/dev/libcopy` through its raw ABI, and the library's collectives where
//! they need a guest, from many processes, on a kernel that has the module loaded, and looks after
//! every test whether anything was left behind.

mod attach;
mod blocks;
mod collective;
mod copy;
mod coverage;
mod death;
mod device;
mod dmatest;
mod domain;
mod faults;
mod fuse;
mod fuzz;
mod harness;
mod ioat;
mod kernel;
mod latency;
mod matrix;
mod memory;
mod offload;
mod pinning;
mod protocol;
mod ranges;
mod region;
mod request;
mod request_copier;
mod request_death;
mod request_engines;
mod request_faults;
mod request_setup;
mod request_worker;
mod reuse;
mod rng;
mod soak;
mod stress;
mod sys;
mod unload;
mod watcher;

use libcopy::uapi as abi;
use std::process::ExitCode;

use harness::{Context, Test};

const USAGE: &str = "\
Usage: guest-suite [OPTION]...

Tests the module behind /dev/libcopy. Run it as root, in a virtual machine.

  --list           print the names of the tests
  --filter SUBSTR  only tests whose name contains SUBSTR; may be repeated: any of them
  --group NAME     only the tests NAME::...; may be repeated. The group ioat is there only with
                   LIBCOPY_IOAT set, as by scripts/vm --ioat, the group latency only with
                   LIBCOPY_VM=icount, as by scripts/vm --accel icount
  --seed N         seed of the random tests (default 1)
  --kills N        processes that each of the two kill stresses kills (default 15; 30)
  --touches N      collectives whose buffers offload::random_touches touches (default 60)
  --operations N   operations of stress::random_operations (default 20000)
  --soak SECONDS   how long soak::everything_at_once runs with each kind of engine (default 5)
  --scale N        factor on every time limit, for slow kernels (default 1)
  --module FILE    libcopy.ko, for the tests that unload and load it (default: $LIBCOPY_KO)
  -h, --help       this text

With LIBCOPY_TEST_ALL=1 tests repeat what is random or slow more often, as with scripts/test --all and
scripts/test --only proven; a second default is for that.
";

fn all() -> Vec<&'static Test> {
    let engines = match std::env::var_os("LIBCOPY_IOAT") {
        Some(_) => ioat::TESTS,
        None => &[],
    };
    let latency = if harness::is_clock_counted() {
        latency::TESTS
    } else {
        &[]
    };
    [
        protocol::TESTS,
        domain::TESTS,
        region::TESTS,
        memory::TESTS,
        pinning::TESTS,
        copy::TESTS,
        ranges::TESTS,
        blocks::TESTS,
        request::TESTS,
        request_death::TESTS,
        request_engines::TESTS,
        request_copier::TESTS,
        request_worker::TESTS,
        request_faults::TESTS,
        matrix::TESTS,
        reuse::TESTS,
        attach::TESTS,
        death::TESTS,
        watcher::TESTS,
        collective::TESTS,
        offload::TESTS,
        soak::TESTS,
        fuzz::TESTS,
        stress::TESTS,
        faults::TESTS,
        unload::TESTS,
        latency,
    ]
    .into_iter()
    .flatten()
    .chain(engines)
    .collect()
}

fn main() -> ExitCode {
    let is_full = std::env::var_os("LIBCOPY_TEST_ALL").is_some_and(|asked| asked == "1");
    let mut context = Context {
        seed: 1,
        scale: 1,
        kills: if is_full { 30 } else { 15 },
        touches: 60,
        soak: 5,
        operations: 20_000,
        is_full,
        module: std::env::var("LIBCOPY_KO").ok(),
    };
    let mut filters: Vec<String> = Vec::new();
    let mut groups = Vec::new();
    let mut list = false;
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
        let number = |text: String| text.parse::<u32>().map_err(|e| format!("{text}: {e}"));
        let parsed: Result<(), String> = (|| {
            match word.as_str() {
                "--list" => list = true,
                "--filter" => filters.push(value()?),
                "--group" => groups.push(format!("{}::", value()?)),
                "--seed" => context.seed = number(value()?)?.into(),
                "--kills" => context.kills = number(value()?)?,
                "--touches" => context.touches = number(value()?)?,
                "--operations" => context.operations = number(value()?)?.into(),
                "--soak" => context.soak = number(value()?)?,
                "--scale" => context.scale = number(value()?)?.max(1),
                "--module" => context.module = Some(value()?),
                "-h" | "--help" => {
                    print!("{USAGE}");
                    std::process::exit(0);
                }
                "hold" => death::hold(),
                _ => return Err(format!("unknown option {word:?} (see --help)")),
            }
            Ok(())
        })();
        if let Err(message) = parsed {
            eprintln!("guest-suite: {message}");
            return ExitCode::from(2);
        }
    }
    let tests: Vec<&Test> = all()
        .into_iter()
        .filter(|test| {
            let named = |filter: &String| test.name.contains(filter);
            filters.is_empty() || filters.iter().any(named)
        })
        .filter(|test| {
            let inside = |group: &String| test.name.starts_with(group);
            groups.is_empty() || groups.iter().any(inside)
        })
        .collect();
    if list {
        for test in &tests {
            println!("{}", test.name);
        }
        return ExitCode::SUCCESS;
    }
    let _ = sys::mount("debugfs", "/sys/kernel/debug", "debugfs");
    if let Err(error) = device::Device::open() {
        eprintln!("guest-suite: cannot open /dev/libcopy: {error} (is the module loaded?)");
        return ExitCode::from(2);
    }
    println!(
        "{} tests, seed {}, limits times {}",
        tests.len(),
        context.seed,
        context.scale
    );
    let tally = harness::run(&tests, &context);
    coverage::report();
    print!("{} passed, {} failed", tally.passed, tally.failed);
    if tally.skipped > 0 {
        print!(", {} skipped", tally.skipped);
    }
    println!();
    // The filter of a longer run may be about other tests; whether any ran, scripts/test looks at.
    let none = tests.is_empty() && !filters.is_empty();
    if tally.failed == 0 && (tally.passed > 0 || none) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
