// SPDX-License-Identifier: MIT OR Apache-2.0

//! The kernels, compiled for the processor with AddressSanitizer and UndefinedBehaviorSanitizer,
//! against `Layout::pack_range` and `Layout::unpack_range`: random types, ranges and alignments.
//!
//! `PROPTEST_CASES=1000000 cargo test --release -p libcopy-gpu --test emulated` is the long run.

mod common;
#[path = "../../datatype/tests/datatype/generate.rs"]
#[allow(dead_code)]
mod generate;
#[path = "../../datatype/tests/datatype/oracle.rs"]
#[allow(dead_code)]
mod oracle;

use std::io::{Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock};

use common::{compile, noise, random_layout};
use generate::Choices;
use libcopy_datatype::{Datatype, Layout, Named};
use libcopy_gpu::job::{FLAT, Job, Side};
use libcopy_gpu::{Batch, Kernel, Launch, Mapping, Placed, Plan, Shaped};
use proptest::prelude::*;

/// The program that runs kernels.
struct Emulator {
    process: Child,
    requests: ChildStdin,
    answers: ChildStdout,
}

/// What launches are turned into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// Nothing else.
    Single,
    /// One launch.
    Batch,
    /// Bulk copies where they fit.
    Bulk,
}

impl How {
    /// Those that launch something else than the launches themselves, and these.
    fn all(launches: &[Launch]) -> Vec<How> {
        let mut all = vec![How::Single];
        if !launches.is_empty() {
            all.push(How::Batch);
        }
        if launches.iter().any(|launch| launch.as_bulk(3).is_some()) {
            all.push(How::Bulk);
        }
        all
    }
}

/// A launch as the emulator reads it.
struct Call {
    kernel: Kernel,
    blocks: [u32; 3],
    threads: [u32; 3],
    parameter: Vec<u8>,
}

impl Call {
    fn new(kernel: Kernel, blocks: u32, parameter: &[u8]) -> Call {
        Call {
            kernel,
            blocks: [blocks, 1, 1],
            threads: [kernel.threads(), 1, 1],
            parameter: parameter.to_vec(),
        }
    }

    fn shaped(launch: &Shaped) -> Call {
        Call {
            kernel: launch.kernel,
            blocks: launch.blocks,
            threads: launch.threads,
            parameter: launch.job.as_bytes().to_vec(),
        }
    }
}

/// Memory that kernels see.
#[derive(Clone)]
struct Region {
    /// Its first address modulo 16.
    skew: u32,
    bytes: Vec<u8>,
}

impl Region {
    fn new(skew: u64, bytes: Vec<u8>) -> Region {
        Region {
            skew: skew as u32 % 16,
            bytes,
        }
    }

    /// The address of its first byte if it is number `index` of a request.
    fn address(&self, index: u64) -> u64 {
        (index << 40) + (1 << 39) + u64::from(self.skew)
    }
}

impl Emulator {
    fn start() -> Emulator {
        let options = [
            "-O1",
            "-fsanitize=address,undefined",
            "-fno-sanitize-recover=all",
        ];
        let program = compile("kernels/emulated.cc", "emulated", &options);
        let mut process = Command::new(program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the emulator starts");
        Emulator {
            requests: process.stdin.take().expect("a pipe"),
            answers: process.stdout.take().expect("a pipe"),
            process,
        }
    }

    /// Runs what `how` makes of launches; changes the regions as they do.
    fn run(&mut self, regions: &mut [Region], launches: &[Launch], how: How) {
        let batch = Batch::of(launches).filter(|_| how == How::Batch);
        let table = batch.as_ref().map_or(&[][..], |batch| batch.table());
        let table = Region::new(0, table.to_vec());
        let calls: Vec<Call> = match &batch {
            Some(batch) => {
                let parameter = batch.parameter(table.address(regions.len() as u64));
                vec![Call::new(
                    Kernel::Batch,
                    batch.blocks(),
                    parameter.as_bytes(),
                )]
            }
            None => launches
                .iter()
                .map(|launch| {
                    let bulk = launch.as_bulk(3).filter(|_| how == How::Bulk);
                    let launch = bulk.unwrap_or(*launch);
                    Call::new(launch.kernel, launch.blocks, launch.job.as_bytes())
                })
                .collect(),
        };
        if let Err(error) = self.execute(regions, table, &calls) {
            let status = self.process.wait();
            panic!("{error}; the emulator ended with {status:?}: {how:?} {launches:#?}");
        }
    }

    /// Runs calls; changes the regions as they do. `table` is one more region.
    fn execute(
        &mut self,
        regions: &mut [Region],
        mut table: Region,
        calls: &[Call],
    ) -> std::io::Result<()> {
        let mut request = Vec::new();
        request.extend_from_slice(&(regions.len() as u32 + 1).to_le_bytes());
        for region in regions.iter().chain([&table]) {
            request.extend_from_slice(&region.skew.to_le_bytes());
            request.extend_from_slice(&(region.bytes.len() as u64).to_le_bytes());
            request.extend_from_slice(&region.bytes);
        }
        request.extend_from_slice(&(calls.len() as u32).to_le_bytes());
        for call in calls {
            let name = call.kernel.to_string();
            let lengths = [name.len() as u32];
            let parameter = [call.parameter.len() as u32];
            for number in lengths
                .iter()
                .chain(&call.blocks)
                .chain(&call.threads)
                .chain(&parameter)
            {
                request.extend_from_slice(&number.to_le_bytes());
            }
            request.extend_from_slice(name.as_bytes());
            request.extend_from_slice(&call.parameter);
        }
        self.requests.write_all(&request)?;
        self.requests.flush()?;
        for region in regions.iter_mut().chain([&mut table]) {
            self.answers.read_exact(&mut region.bytes)?;
        }
        Ok(())
    }
}

/// The one emulator of this test program. Adds the kernels to those that were used.
fn run(regions: &mut [Region], launches: &[Launch], how: How, used: &mut Vec<Kernel>) {
    used.extend(launches.iter().map(|launch| launch.kernel));
    used.extend(match how {
        How::Single => None,
        How::Batch => Some(Kernel::Batch),
        How::Bulk => Some(Kernel::CopyBulk),
    });
    emulator().run(regions, launches, how);
}

fn emulator() -> MutexGuard<'static, Emulator> {
    static EMULATOR: OnceLock<Mutex<Emulator>> = OnceLock::new();
    let emulator = EMULATOR.get_or_init(|| Mutex::new(Emulator::start()));
    emulator.lock().unwrap_or_else(|e| e.into_inner())
}

/// Runs a launch of a baseline kernel.
fn run_shaped(regions: &mut [Region], launch: &Shaped, used: &mut Vec<Kernel>) {
    used.push(launch.kernel);
    let none = Region::new(0, Vec::new());
    let ran = emulator().execute(regions, none, &[Call::shaped(launch)]);
    assert!(ran.is_ok(), "{ran:?} {launch:#?}");
}

/// A layout, and a buffer that it fits into.
struct Case {
    layout: Layout,
    plan: Plan,
    buffer: usize,
    /// Index of the layout's origin in the buffer.
    origin: isize,
}

impl Case {
    fn new(layout: Layout, slack: u64) -> Case {
        let bounds = layout.bounds();
        Case {
            plan: Plan::of(&layout).expect("few pieces"),
            buffer: (bounds.end - bounds.start) as usize + slack as usize % 7,
            origin: -bounds.start as isize,
            layout,
        }
    }

    fn placed(&self, address: u64, tables: u64) -> Placed<'_> {
        Placed {
            plan: &self.plan,
            origin: address.wrapping_add_signed(self.origin as i64),
            tables,
        }
    }
}

/// Packs and unpacks a range.
fn packs_and_unpacks(
    case: &Case,
    range: std::ops::Range<u64>,
    skews: [u64; 2],
    used: &mut Vec<Kernel>,
) {
    let bytes = (range.end - range.start) as usize;
    let user = Region::new(skews[0], noise(skews[0], case.buffer));
    let packed = Region::new(skews[1], vec![0xa5; bytes]);
    let tables = Region::new(0, case.plan.tables().to_vec());
    let mut regions = [Region::new(0, Vec::new()), user.clone(), packed, tables];
    let place = case.placed(regions[1].address(1), regions[3].address(3));
    let stream = regions[2].address(2);

    let mut expected = vec![0; bytes];
    case.layout
        .pack_range(&user.bytes, case.origin, range.start, &mut expected)
        .unwrap();
    let launches = place.pack(range.clone(), stream);
    for how in How::all(&launches) {
        regions[2].bytes.fill(0xa5);
        run(&mut regions, &launches, how, used);
        assert!(
            regions[2].bytes == expected,
            "packed {range:?} by {how:?} {launches:#?}"
        );
        assert!(
            regions[1].bytes == user.bytes,
            "packing wrote into the buffer"
        );
    }

    let Some(launches) = place.unpack(range.clone(), stream) else {
        assert!(!case.layout.form().is_disjoint());
        return;
    };
    let before = noise(skews[1] + 99, case.buffer);
    let mut buffer = before.clone();
    case.layout
        .unpack_range(&expected, range.start, &mut buffer, case.origin)
        .unwrap();
    for how in How::all(&launches) {
        regions[1].bytes.clone_from(&before);
        run(&mut regions, &launches, how, used);
        assert!(
            regions[1].bytes == buffer,
            "unpacked {range:?} by {how:?} {launches:#?}"
        );
    }
}

/// Packs and unpacks all of a layout as other libraries would, where their mappings fit.
fn baselines_pack_and_unpack(case: &Case, skews: [u64; 2], used: &mut Vec<Kernel>) {
    let size = case.layout.size();
    let user = Region::new(skews[0], noise(skews[0], case.buffer));
    let packed = Region::new(skews[1], vec![0xa5; size as usize]);
    let mut regions = [Region::new(0, Vec::new()), user.clone(), packed];
    let place = case.placed(regions[1].address(1), 0);
    let stream = regions[2].address(2);
    let mut expected = vec![0; size as usize];
    case.layout
        .pack(&user.bytes, case.origin, &mut expected)
        .unwrap();
    let before = noise(skews[1] + 99, case.buffer);
    let mut buffer = before.clone();
    case.layout
        .unpack_range(&expected, 0, &mut buffer, case.origin)
        .unwrap();
    let elements = [1, 2, 4, 8, 16].map(|element| Mapping::Yaksa { element });
    // TEMPI's kernels go on in loops where a grid has too few blocks.
    let one_block = |launch: Shaped| Shaped {
        blocks: [1, 1, 1],
        ..launch
    };
    let launches = |is_pack: bool| {
        let mappings = elements.into_iter().chain([Mapping::Tempi]);
        let made = mappings.filter_map(move |mapping| place.baseline(mapping, stream, is_pack));
        let small = place.baseline(Mapping::Tempi, stream, is_pack);
        made.chain(small.map(one_block))
    };
    for launch in launches(true) {
        regions[1].bytes.clone_from(&user.bytes);
        regions[2].bytes.fill(0xa5);
        run_shaped(&mut regions, &launch, used);
        assert!(regions[2].bytes == expected, "packed by {launch:#?}");
    }
    for launch in launches(false) {
        regions[1].bytes.clone_from(&before);
        regions[2].bytes.clone_from(&expected);
        run_shaped(&mut regions, &launch, used);
        assert!(regions[1].bytes == buffer, "unpacked by {launch:#?}");
    }
}

/// Copies from layout to layout.
fn copies(from: &Case, to: &Case, skews: [u64; 2], used: &mut Vec<Kernel>) {
    let source = Region::new(skews[0], noise(skews[0], from.buffer));
    let target = Region::new(skews[1], noise(skews[1] + 7, to.buffer));
    let mut expected = target.bytes.clone();
    let mut regions = [
        Region::new(0, Vec::new()),
        source,
        target,
        Region::new(0, from.plan.tables().to_vec()),
        Region::new(0, to.plan.tables().to_vec()),
    ];
    let from_place = from.placed(regions[1].address(1), regions[3].address(3));
    let to_place = to.placed(regions[2].address(2), regions[4].address(4));
    let Some(launches) = to_place.copy_from(&from_place) else {
        return;
    };
    let mut packed = vec![0; from.layout.size() as usize];
    from.layout
        .pack(&regions[1].bytes, from.origin, &mut packed)
        .unwrap();
    to.layout
        .unpack_range(&packed, 0, &mut expected, to.origin)
        .unwrap();
    let before = regions[2].bytes.clone();
    for how in How::all(&launches) {
        regions[2].bytes.clone_from(&before);
        run(&mut regions, &launches, how, used);
        assert!(
            regions[2].bytes == expected,
            "copied by {how:?} {launches:#?}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(2000),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn random_types_are_packed_unpacked_and_copied(list in prop::collection::vec(any::<u16>(), 0..120)) {
        let mut choices = Choices::new(&list);
        let layout = random_layout(&mut choices);
        let other = random_layout(&mut choices);
        choices.go_on();
        let size = layout.size();
        let case = Case::new(layout, choices.below(7));
        let skews = [choices.below(16), choices.below(16)];
        let mut used = Vec::new();
        packs_and_unpacks(&case, 0..size, skews, &mut used);
        baselines_pack_and_unpack(&case, skews, &mut used);
        let (a, b) = (choices.below(size + 1), choices.below(size + 1));
        packs_and_unpacks(&case, a.min(b)..a.max(b), skews, &mut used);

        let (small, large) = if other.size() < size { (other, case.layout.clone()) } else { (case.layout.clone(), other) };
        copies(&Case::new(small, 0), &Case::new(large, 3), skews, &mut used);
    }
}

/// Blocks from 1 byte to 4 KiB, at all alignments: what each kernel is for.
#[test]
fn all_kernels_are_used() {
    let mut used = Vec::new();
    let byte = Datatype::named(Named::Byte);
    for len in [
        1, 2, 3, 4, 6, 8, 12, 16, 24, 31, 32, 33, 48, 100, 512, 1024, 4096,
    ] {
        for gap in [1, 3, 4, 8, 16, 48] {
            let vector = byte.vector(37, len, (len + gap) as i64).unwrap();
            let places: Vec<i64> = (0..23).map(|i| (i * i % 29) * (len + gap) as i64).collect();
            let listed = byte.indexed_block(len, &places).unwrap();
            let lengths: Vec<u64> = (0..23).map(|i| len + i % 3 * gap.min(len)).collect();
            let places: Vec<i64> = (0..23).map(|i| i * (3 * (len + gap)) as i64).collect();
            let pieces = byte.indexed(&lengths, &places).unwrap();
            // One element: two of them would be more than blocks under strides.
            let single = Case::new(Layout::new(&vector, 1).unwrap(), 0);
            for datatype in [vector, listed, pieces] {
                let case = Case::new(Layout::new(&datatype, 2).unwrap(), 0);
                for skews in [[0, 0], [0, 8], [4, 4], [1, 3], [6, 0]] {
                    packs_and_unpacks(&case, 0..case.layout.size(), skews, &mut used);
                    copies(&case, &case, skews, &mut used);
                }
            }
            for skews in [[0, 0], [0, 8], [4, 4], [6, 0]] {
                baselines_pack_and_unpack(&single, skews, &mut used);
            }
        }
    }
    // These two compute: the_product_of_matrices_is_right, and tests/peers/mpi_gpu.c.
    let mappings =
        Kernel::baselines().filter(|kernel| !matches!(kernel, Kernel::Gemm | Kernel::Stencil));
    for kernel in Kernel::all().chain(mappings) {
        assert!(used.contains(&kernel), "{kernel} was never chosen");
    }
}

/// The threads of a block are divided among the dimensions of the cuboid of TEMPI ("Kernel
/// Selection").
#[test]
fn tempi_has_a_dimension_of_the_block_per_dimension_of_the_type() {
    let byte = Datatype::named(Named::Byte);
    let row = byte.vector(13, 100, 256).unwrap();
    let cuboid = row.hvector(47, 1, 131_072).unwrap();
    let case = Case::new(Layout::new(&cuboid, 1).unwrap(), 0);
    let launch = case
        .placed(4096, 0)
        .baseline(Mapping::Tempi, 1 << 30, true)
        .unwrap();
    // Words of 4 bytes: 25 in a row, 13 rows, 47 planes.
    assert_eq!(launch.kernel, Kernel::TempiPack(4));
    assert_eq!(launch.threads, [32, 8, 1]);
    assert_eq!(launch.blocks, [1, 2, 47]);
    let elements = case
        .placed(4096, 0)
        .baseline(Mapping::Yaksa { element: 1 }, 1 << 30, true)
        .unwrap();
    assert_eq!(elements.blocks, [(100 * 13 * 47_u32).div_ceil(256), 1, 1]);
    // An element of 8 bytes does not fit into rows of 100, and irregular types have no such
    // mapping.
    let eight = Mapping::Yaksa { element: 8 };
    assert_eq!(case.placed(4096, 0).baseline(eight, 1 << 30, true), None);
    let pieces = byte.indexed(&[5, 3, 4], &[0, 9, 14]).unwrap();
    let case = Case::new(Layout::new(&pieces, 1).unwrap(), 0);
    let placed = case.placed(4096, 8192);
    assert_eq!(placed.baseline(Mapping::Tempi, 1 << 30, true), None);
}

/// Five dimensions, and more planes than a grid may have blocks in z.
#[test]
fn baselines_of_many_dimensions_are_right() {
    let byte = Datatype::named(Named::Byte);
    let mut used = Vec::new();
    let mut datatype = byte.vector(3, 4, 8).unwrap();
    for (count, stride) in [(5, 32), (2, 200), (3, 500), (2, 2000)] {
        datatype = datatype.hvector(count, 1, stride).unwrap();
    }
    let case = Case::new(Layout::new(&datatype, 1).unwrap(), 0);
    baselines_pack_and_unpack(&case, [0, 0], &mut used);
    baselines_pack_and_unpack(&case, [3, 4], &mut used);
    // Planes that are not divided into more than one block, since they are the third dimension:
    // 70,000 > 65,535.
    let row = byte.vector(300, 1, 2).unwrap();
    let datatype = row.hvector(70_000, 1, 601).unwrap();
    let layout = Layout::new(&datatype, 1).unwrap();
    let case = Case::new(layout, 0);
    let launch = case.placed(0, 0).baseline(Mapping::Tempi, 0, true).unwrap();
    assert_eq!(launch.blocks, [1, 2, 65_535]);
    assert!(used.contains(&Kernel::TempiUnpack(4)) && used.contains(&Kernel::YaksaUnpack(4)));
}

/// The product of matrices of small integers, which floats hold exactly.
#[test]
fn the_product_of_matrices_is_right() {
    const EDGE: usize = 128;
    let number = |i: usize| (i * 7 % 11) as f32 - 5.0;
    let floats = |values: &[f32]| values.iter().flat_map(|f| f.to_le_bytes()).collect();
    let factors: Vec<f32> = (0..2 * EDGE * EDGE).map(number).collect();
    let mut expected = vec![0.0; EDGE * EDGE];
    for (i, sum) in expected.iter_mut().enumerate() {
        let (row, column) = (i / EDGE, i % EDGE);
        *sum = (0..EDGE)
            .map(|k| factors[row * EDGE + k] * factors[EDGE * EDGE + k * EDGE + column])
            .sum::<f32>();
    }
    // Fewer blocks than tiles, and as many.
    for blocks in [3, 4] {
        let mut regions = [
            Region::new(0, Vec::new()),
            Region::new(0, floats(&factors)),
            Region::new(0, vec![0xff; 4 * EDGE * EDGE]),
        ];
        let flat = |base| Side {
            base,
            kind: FLAT,
            ..Side::default()
        };
        let launch = Shaped {
            kernel: Kernel::Gemm,
            blocks: [blocks, 1, 1],
            threads: [256, 1, 1],
            job: Job {
                to: flat(regions[2].address(2)),
                from: flat(regions[1].address(1)),
                units: EDGE as u64,
                ..Job::default()
            },
        };
        run_shaped(&mut regions, &launch, &mut Vec::new());
        assert!(regions[2].bytes == floats(&expected) as Vec<u8>);
    }
}

/// Packs a range of a layout of which only the first `buffer` bytes are there, and looks for
/// `expected`.
fn packs_far(layout: &Layout, buffer: &[u8], range: std::ops::Range<u64>, expected: &[u8]) {
    let plan = Plan::of(layout).expect("few pieces");
    let mut regions = [
        Region::new(0, Vec::new()),
        Region::new(0, buffer.to_vec()),
        Region::new(1, vec![0xa5; expected.len()]),
        Region::new(0, plan.tables().to_vec()),
    ];
    let place = Placed {
        plan: &plan,
        origin: regions[1].address(1),
        tables: regions[3].address(3),
    };
    let launches = place.pack(range, regions[2].address(2));
    for how in How::all(&launches) {
        regions[2].bytes.fill(0xa5);
        run(&mut regions, &launches, how, &mut Vec::new());
        assert!(regions[2].bytes == expected, "{how:?} {launches:#?}");
    }
}

/// Bulk copies of more than their stages hold, by one block and by several, with blocks longer than
/// a stage.
#[test]
fn stages_of_bulk_copies_are_not_used_too_early() {
    let byte = Datatype::named(Named::Byte);
    let mut used = Vec::new();
    for (count, len) in [(300, 1024), (9, 50_000), (40, 16_384), (3, 16_400)] {
        let datatype = byte.vector(count, len, (len + 48) as i64).unwrap();
        let case = Case::new(Layout::new(&datatype, 1).unwrap(), 0);
        packs_and_unpacks(&case, 0..case.layout.size(), [0, 0], &mut used);
        let wide = byte.vector(count, len, (len + 16) as i64).unwrap();
        let wide = Case::new(Layout::new(&wide, 1).unwrap(), 0);
        copies(&case, &wide, [0, 0], &mut used);
    }
    assert!(used.contains(&Kernel::CopyBulk));
}

#[test]
fn positions_beyond_2_31_are_right() {
    let byte = Datatype::named(Named::Byte);
    // Again and again the same 12 bytes of 23, so that much data takes little memory.
    let blocks = byte.vector(4, 3, 5).unwrap();
    let pieces = byte.indexed(&[5, 3, 4], &[0, 9, 14]).unwrap();
    let buffer = noise(5, 23);
    for (datatype, places) in [
        (blocks, [0, 1, 2, 5, 6, 7, 10, 11, 12, 15, 16, 17]),
        (pieces, [0, 1, 2, 3, 4, 9, 10, 11, 14, 15, 16, 17]),
    ] {
        let many = datatype.hvector(1 << 33, 1, 0).unwrap();
        let layout = Layout::new(&many, 1).unwrap();
        for start in [
            (1 << 31) - 100,
            (1 << 31) + 1,
            12 << 32,
            (12 << 33) - 400_u64,
        ] {
            let range = start..start + 399;
            let expected: Vec<u8> = range
                .clone()
                .map(|at| buffer[places[(at % 12) as usize]])
                .collect();
            packs_far(&layout, &buffer, range, &expected);
        }
    }
}

#[test]
fn offsets_beyond_2_31_are_right() {
    let byte = Datatype::named(Named::Byte);
    let buffer = noise(6, 64);
    let far = 1 << 33;
    let blocks = byte.indexed_block(3, &[8, 20, far, 1, 50]).unwrap();
    let pieces = byte
        .indexed(&[3, 5, 7, 2, 4], &[8, 20, 30, 1, far])
        .unwrap();
    for (datatype, range, places) in [
        (&blocks, 0..6, vec![8, 9, 10, 20, 21, 22]),
        (&blocks, 9..15, vec![1, 2, 3, 50, 51, 52]),
        (&pieces, 2..10, vec![10, 20, 21, 22, 23, 24, 30, 31]),
    ] {
        let layout = Layout::new(datatype, 1).unwrap();
        let expected: Vec<u8> = places.iter().map(|at| buffer[*at]).collect();
        packs_far(&layout, &buffer, range, &expected);
    }
}
