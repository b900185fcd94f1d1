// SPDX-License-Identifier: MIT OR Apache-2.0

//! Which way a message takes: the model of TEMPI ("Performance Model") with two more methods, on
//! tables that [`measure()`](crate::measure()) fills once per GPU and driver.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Mutex;

use crate::context::lock;
use crate::error::{Error, Result};

/// A way from a layout in GPU memory to another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    /// Packed into GPU memory, which the MPI library sends.
    Device,
    /// Packed straight into pinned host memory, which the MPI library sends or another process
    /// maps.
    OneShot,
    /// Packed into GPU memory, copied to the host, sent, and back.
    Staged,
    /// From layout to layout through CUDA IPC (FALCON-X, section 5.2).
    Peer,
    /// The same by copy engines, without kernels; equally spaced blocks only.
    Engine,
}

impl Method {
    /// All of them.
    pub const ALL: [Method; 5] = [
        Method::Device,
        Method::OneShot,
        Method::Staged,
        Method::Peer,
        Method::Engine,
    ];

    /// What it is called in options and tables.
    pub fn name(self) -> &'static str {
        match self {
            Method::Device => "device",
            Method::OneShot => "one-shot",
            Method::Staged => "staged",
            Method::Peer => "peer",
            Method::Engine => "engine",
        }
    }
}

impl std::fmt::Display for Method {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Method {
    type Err = Error;

    fn from_str(name: &str) -> Result<Method> {
        let found = Method::ALL.into_iter().find(|method| method.name() == name);
        found.ok_or_else(|| Error::Malformed {
            what: "a method's name",
            why: format!("{name:?} is none of device, one-shot, staged, peer, engine"),
        })
    }
}

/// Rows of a [`Grid`]: 2^(2 i + 6) bytes of data, from 64 bytes to 4 MiB.
pub const GRID_BYTES: usize = 9;

/// Columns of a [`Grid`]: blocks of 2^j bytes, from 1 to 256, that begin every [`GRID_STRIDE`]
/// bytes.
pub const GRID_BLOCKS: usize = 9;

/// Bytes from block to block in a measurement.
pub const GRID_STRIDE: u64 = 512;

/// Points of a [`Curve`]: 2^i contiguous bytes, from 1 byte to 8 MiB.
pub const CURVE_BYTES: usize = 24;

/// Microseconds by bytes of data and length of a block.
#[derive(Clone, Debug, PartialEq)]
pub struct Grid(pub [[f64; GRID_BLOCKS]; GRID_BYTES]);

/// Microseconds by contiguous bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve(pub [f64; CURVE_BYTES]);

/// Where a place lies among points 0, 1, 2, ...: the point below and the share of the next one.
fn between(place: f64, points: usize) -> (usize, f64) {
    let place = place.clamp(0.0, (points - 1) as f64);
    let low = (place as usize).min(points - 2);
    (low, place - low as f64)
}

fn mix(low: f64, high: f64, share: f64) -> f64 {
    low.ln() * (1.0 - share) + high.ln() * share
}

impl Grid {
    /// Bytes of data of a row.
    pub fn bytes(row: usize) -> u64 {
        1 << (2 * row + 6)
    }

    /// Microseconds for `bytes` in blocks of `block` bytes, interpolated in the logarithms of all
    /// three. Beyond the last row times grow like bytes; blocks beyond the table count as its last.
    pub fn at(&self, bytes: u64, block: u64) -> f64 {
        let bytes = bytes.max(1) as f64;
        let most = Grid::bytes(GRID_BYTES - 1) as f64;
        let (row, down) = between((bytes.log2() - 6.0) / 2.0, GRID_BYTES);
        let (column, right) = between((block.max(1) as f64).log2(), GRID_BLOCKS);
        let line = |row: usize| mix(self.0[row][column], self.0[row][column + 1], right);
        let time = (line(row) * (1.0 - down) + line(row + 1) * down).exp();
        time * (bytes / most).max(1.0)
    }
}

impl Curve {
    /// Bytes of a point.
    pub fn bytes(point: usize) -> u64 {
        1 << point
    }

    /// Microseconds for `bytes`, interpolated as in [`Grid::at`].
    pub fn at(&self, bytes: u64) -> f64 {
        let bytes = bytes.max(1) as f64;
        let (point, share) = between(bytes.log2(), CURVE_BYTES);
        let time = mix(self.0[point], self.0[point + 1], share).exp();
        time * (bytes / Curve::bytes(CURVE_BYTES - 1) as f64).max(1.0)
    }
}

/// What is to be sent, as far as the choice depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ask {
    /// Bytes of data.
    pub bytes: u64,
    /// Mean bytes of a block.
    pub block: u64,
    /// The MPI library takes GPU memory ([`Method::Device`]).
    pub is_aware: bool,
    /// The other side is reached by CUDA IPC ([`Method::Peer`], [`Method::Engine`]).
    pub has_peer: bool,
    /// Blocks are equally long and spaced ([`Method::Engine`]).
    pub is_regular: bool,
}

impl Ask {
    /// What is asked of all messages of a size class, so that they have one answer: bytes and
    /// blocks are the powers of two that they are not above.
    pub fn class(self) -> Ask {
        let up = |number: u64| number.checked_next_power_of_two().unwrap_or(number);
        Ask {
            bytes: up(self.bytes),
            block: up(self.block),
            ..self
        }
    }
}

/// Whether a profile's times were measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// On this GPU.
    Measured,
    /// Nowhere: they are round numbers for a recent GPU on PCIe.
    Assumed,
}

/// Times of the parts that methods consist of, in microseconds.
#[derive(Debug)]
pub struct Profile {
    /// The GPU's UUID.
    pub gpu: String,
    /// The driver's version, as [`Driver::version`](crate::Driver::version) says it.
    pub driver: i32,
    /// Whether they were measured.
    pub origin: Origin,
    /// Packing and unpacking, the packed bytes in GPU memory.
    pub pack_device: Grid,
    /// See `pack_device`.
    pub unpack_device: Grid,
    /// Packing and unpacking, the packed bytes in pinned host memory.
    pub pack_host: Grid,
    /// See `pack_host`.
    pub unpack_host: Grid,
    /// From layout to layout by a kernel.
    pub peer: Grid,
    /// From layout to layout by copy engines.
    pub engine: Grid,
    /// Contiguous bytes from GPU to host.
    pub d2h: Curve,
    /// Contiguous bytes from host to GPU.
    pub h2d: Curve,
    /// A message between hosts.
    pub cpu_cpu: Curve,
    /// A message between GPUs.
    pub gpu_gpu: Curve,
    chosen: Mutex<HashMap<Ask, Method>>,
}

/// Choices that are remembered, at most.
const MOST_CHOSEN: usize = 4096;

/// Names of the tables in a file.
const GRIDS: [&str; 6] = [
    "pack_device",
    "unpack_device",
    "pack_host",
    "unpack_host",
    "peer",
    "engine",
];
const CURVES: [&str; 4] = ["d2h", "h2d", "cpu_cpu", "gpu_gpu"];

/// First line of a file.
const HEADER: &str = "libcopy-gpu profile 1";

impl Profile {
    /// The built-in one: assumed, not measured.
    pub fn assumed(gpu: &str, driver: i32) -> Profile {
        // A start in microseconds, and bytes per microsecond for blocks from `full` bytes on.
        let grid = |start: f64, rate: f64, full: u64| {
            let mut grid = Grid([[0.0; GRID_BLOCKS]; GRID_BYTES]);
            for (row, line) in grid.0.iter_mut().enumerate() {
                for (column, time) in line.iter_mut().enumerate() {
                    let share = ((1_u64 << column) as f64 / full as f64).min(1.0);
                    *time = start + Grid::bytes(row) as f64 / (rate * share);
                }
            }
            grid
        };
        let curve = |start: f64, rate: f64| {
            let mut curve = Curve([0.0; CURVE_BYTES]);
            for (point, time) in curve.0.iter_mut().enumerate() {
                *time = start + Curve::bytes(point) as f64 / rate;
            }
            curve
        };
        Profile {
            gpu: gpu.to_owned(),
            driver,
            origin: Origin::Assumed,
            pack_device: grid(8.0, 500_000.0, 32),
            unpack_device: grid(8.0, 500_000.0, 32),
            pack_host: grid(9.0, 20_000.0, 16),
            unpack_host: grid(9.0, 20_000.0, 16),
            peer: grid(10.0, 300_000.0, 32),
            engine: grid(12.0, 100_000.0, 4096),
            d2h: curve(9.0, 22_000.0),
            h2d: curve(9.0, 22_000.0),
            cpu_cpu: curve(1.0, 8_000.0),
            gpu_gpu: curve(12.0, 15_000.0),
            chosen: Mutex::default(),
        }
    }

    /// Microseconds that a method takes; the formulas of TEMPI, where `one_shot` packs into host
    /// memory.
    pub fn time(&self, method: Method, bytes: u64, block: u64) -> f64 {
        let grid = |grid: &Grid| grid.at(bytes, block);
        match method {
            Method::Device => {
                grid(&self.pack_device) + self.gpu_gpu.at(bytes) + grid(&self.unpack_device)
            }
            Method::OneShot => {
                grid(&self.pack_host) + self.cpu_cpu.at(bytes) + grid(&self.unpack_host)
            }
            Method::Staged => {
                grid(&self.pack_device)
                    + self.d2h.at(bytes)
                    + self.cpu_cpu.at(bytes)
                    + self.h2d.at(bytes)
                    + grid(&self.unpack_device)
            }
            Method::Peer => grid(&self.peer),
            Method::Engine => grid(&self.engine),
        }
    }

    /// The method that takes the least time of those that are possible. Answers are remembered.
    pub fn choose(&self, ask: &Ask) -> Method {
        if let Some(known) = lock(&self.chosen).get(ask) {
            return *known;
        }
        let is_possible = |method: &Method| match method {
            Method::Device => ask.is_aware,
            Method::OneShot | Method::Staged => true,
            Method::Peer => ask.has_peer,
            Method::Engine => ask.has_peer && ask.is_regular,
        };
        let time = |method: &Method| self.time(*method, ask.bytes, ask.block);
        let best = Method::ALL
            .into_iter()
            .filter(is_possible)
            .min_by(|a, b| time(a).total_cmp(&time(b)))
            .unwrap_or(Method::Staged);
        let mut chosen = lock(&self.chosen);
        if chosen.len() >= MOST_CHOSEN {
            chosen.clear();
        }
        chosen.insert(*ask, best);
        best
    }

    /// Whether an MPI library that takes GPU memory is given `bytes` contiguous bytes of a GPU, and
    /// not a copy in host memory: [`Method::Device`] and [`Method::Staged`] of what needs no
    /// packing.
    pub fn is_handed_over(&self, bytes: u64) -> bool {
        let copies = self.d2h.at(bytes) + self.cpu_cpu.at(bytes) + self.h2d.at(bytes);
        self.gpu_gpu.at(bytes) <= copies
    }

    /// Whether `bytes` contiguous bytes of a GPU are copied by the receiver out of the sender's
    /// memory, and not by way of host memory, or of an MPI library that takes GPU memory:
    /// [`Method::Peer`] of what needs no packing.
    pub fn is_copied_by_peer(&self, bytes: u64, is_aware: bool) -> bool {
        let copies = self.d2h.at(bytes) + self.cpu_cpu.at(bytes) + self.h2d.at(bytes);
        let others = if is_aware {
            copies.min(self.gpu_gpu.at(bytes))
        } else {
            copies
        };
        self.peer.at(bytes, bytes) <= others
    }

    fn grids(&mut self) -> [&mut Grid; 6] {
        [
            &mut self.pack_device,
            &mut self.unpack_device,
            &mut self.pack_host,
            &mut self.unpack_host,
            &mut self.peer,
            &mut self.engine,
        ]
    }

    fn curves(&mut self) -> [&mut Curve; 4] {
        [
            &mut self.d2h,
            &mut self.h2d,
            &mut self.cpu_cpu,
            &mut self.gpu_gpu,
        ]
    }

    /// The tables by name, all numbers in a row (grids row by row), in microseconds.
    pub fn tables(&self) -> Vec<(&'static str, Vec<f64>)> {
        let grids = [
            &self.pack_device,
            &self.unpack_device,
            &self.pack_host,
            &self.unpack_host,
            &self.peer,
            &self.engine,
        ];
        let curves = [&self.d2h, &self.h2d, &self.cpu_cpu, &self.gpu_gpu];
        let grids = GRIDS.into_iter().zip(grids.map(|grid| grid.0.concat()));
        let curves = CURVES.into_iter().zip(curves.map(|curve| curve.0.to_vec()));
        grids.chain(curves).collect()
    }

    /// The file's text.
    pub fn to_text(&self) -> String {
        let mut text = format!("{HEADER}\ngpu {}\ndriver {}\n", self.gpu, self.driver);
        for (name, numbers) in self.tables() {
            text.push_str(name);
            for number in numbers {
                let _ = write!(text, " {number:.4}");
            }
            text.push('\n');
        }
        text
    }

    /// A file's text, as a measured profile.
    ///
    /// # Errors
    ///
    /// [`Error::Malformed`]: the line that is wrong.
    pub fn from_text(text: &str) -> Result<Profile> {
        let malformed = |why: String| Error::Malformed {
            what: "the GPU profile",
            why,
        };
        let mut lines = text.lines();
        if lines.next() != Some(HEADER) {
            return Err(malformed(format!("its first line is not {HEADER:?}")));
        }
        let mut profile = Profile::assumed("", 0);
        profile.origin = Origin::Measured;
        let mut missing: Vec<&str> = ["gpu", "driver"]
            .into_iter()
            .chain(GRIDS)
            .chain(CURVES)
            .collect();
        for line in lines {
            let (name, value) = line.split_once(' ').unwrap_or((line, ""));
            missing.retain(|other| *other != name);
            if name == "gpu" {
                profile.gpu = value.to_owned();
                continue;
            }
            if name == "driver" {
                profile.driver = value
                    .parse()
                    .map_err(|_| malformed(format!("driver {value:?} is no number")))?;
                continue;
            }
            let numbers: Vec<f64> = value
                .split(' ')
                .filter_map(|number| number.parse().ok())
                .filter(|number: &f64| number.is_finite() && *number > 0.0)
                .collect();
            let mut places: Vec<&mut f64> = if let Some(i) = GRIDS.iter().position(|n| *n == name) {
                profile.grids()[i].0.iter_mut().flatten().collect()
            } else if let Some(i) = CURVES.iter().position(|n| *n == name) {
                profile.curves()[i].0.iter_mut().collect()
            } else {
                return Err(malformed(format!("it has a line {name:?}")));
            };
            if numbers.len() != places.len() {
                return Err(malformed(format!(
                    "{name} has {} positive numbers instead of {}",
                    numbers.len(),
                    places.len()
                )));
            }
            for (place, number) in places.iter_mut().zip(numbers) {
                **place = number;
            }
        }
        if missing.is_empty() {
            Ok(profile)
        } else {
            Err(malformed(format!("it lacks {}", missing.join(", "))))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured() -> Profile {
        let mut profile = Profile::assumed("GPU-1", 12_040);
        profile.origin = Origin::Measured;
        profile.peer.0[3][4] = 77.25;
        profile.h2d.0[23] = 1234.5;
        profile
    }

    #[test]
    fn a_file_is_read_as_it_was_written() {
        let profile = measured();
        let again = Profile::from_text(&profile.to_text()).unwrap();
        assert_eq!((again.gpu.as_str(), again.driver), ("GPU-1", 12_040));
        assert_eq!(again.origin, Origin::Measured);
        for ((name, a), (_, b)) in again.tables().into_iter().zip(profile.tables()) {
            for (a, b) in a.iter().zip(b) {
                assert!((a - b).abs() < 1e-4, "{name}: {a} {b}");
            }
        }
    }

    #[test]
    fn damaged_files_are_refused() {
        let text = measured().to_text();
        let cut = &text[..text.len() / 2];
        let swapped = text.replace("peer ", "pear ");
        let negative = text.replace("77.2500", "-1");
        for (damaged, why) in [
            ("", "first line"),
            (cut, "numbers"),
            (swapped.as_str(), "pear"),
            (negative.as_str(), "80 positive numbers instead of 81"),
        ] {
            let error = Profile::from_text(damaged).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
        let lines: Vec<&str> = text.lines().filter(|l| !l.starts_with("d2h")).collect();
        let error = Profile::from_text(&lines.join("\n")).unwrap_err();
        assert!(error.to_string().contains("lacks d2h"), "{error}");
    }

    #[test]
    fn tables_are_interpolated_in_logarithms() {
        let mut profile = measured();
        for row in 0..GRID_BYTES {
            for column in 0..GRID_BLOCKS {
                // A power of both: interpolation is exact.
                profile.peer.0[row][column] =
                    (Grid::bytes(row) as f64).powf(0.5) * (1_u64 << column) as f64;
            }
        }
        for (bytes, block) in [
            (64, 1),
            (100, 3),
            (5000, 17),
            (4 << 20, 256),
            (1 << 20, 200),
        ] {
            let expected = (bytes as f64).powf(0.5) * block as f64;
            let found = profile.peer.at(bytes, block);
            assert!((found / expected - 1.0).abs() < 1e-9, "{bytes} {block}");
        }
        // Beyond the table: like bytes; blocks are cut.
        let last = profile.peer.at(4 << 20, 256);
        assert!((profile.peer.at(16 << 20, 256) / last - 4.0).abs() < 1e-9);
        assert_eq!(profile.peer.at(4 << 20, 4096), last);
        assert_eq!(profile.peer.at(1, 1), profile.peer.at(64, 1));
        assert!((profile.h2d.at(16 << 20) / 1234.5 - 2.0).abs() < 1e-9);
    }

    #[test]
    fn times_are_the_sums_of_the_paper() {
        let profile = measured();
        let (bytes, block) = (100_000, 40);
        let [device, one_shot, staged, peer, engine] =
            Method::ALL.map(|method| profile.time(method, bytes, block));
        let packs = profile.pack_device.at(bytes, block) + profile.unpack_device.at(bytes, block);
        assert_eq!(
            device,
            profile.pack_device.at(bytes, block)
                + profile.gpu_gpu.at(bytes)
                + profile.unpack_device.at(bytes, block)
        );
        let copies = profile.d2h.at(bytes) + profile.cpu_cpu.at(bytes) + profile.h2d.at(bytes);
        assert!((staged - packs - copies).abs() < 1e-9);
        let host = profile.pack_host.at(bytes, block) + profile.unpack_host.at(bytes, block);
        assert!((one_shot - host - profile.cpu_cpu.at(bytes)).abs() < 1e-9);
        assert_eq!(peer, profile.peer.at(bytes, block));
        assert_eq!(engine, profile.engine.at(bytes, block));
    }

    #[test]
    fn contiguous_bytes_are_handed_over_where_that_takes_less() {
        let mut profile = measured();
        assert!(profile.is_handed_over(1 << 20));
        profile.gpu_gpu = Curve([1e6; CURVE_BYTES]);
        assert!(!profile.is_handed_over(1 << 20));
    }

    #[test]
    fn contiguous_bytes_are_copied_by_the_peer_where_that_takes_less() {
        let mut profile = measured();
        assert!(profile.is_copied_by_peer(1 << 20, false));
        profile.gpu_gpu = Curve([0.1; CURVE_BYTES]);
        assert!(!profile.is_copied_by_peer(1 << 20, true));
        assert!(profile.is_copied_by_peer(1 << 20, false));
        profile.peer = Grid([[1e6; GRID_BLOCKS]; GRID_BYTES]);
        assert!(!profile.is_copied_by_peer(1 << 20, false));
    }

    #[test]
    fn the_fastest_possible_method_is_chosen_and_remembered() {
        let mut profile = measured();
        let ask = |is_aware, has_peer, is_regular| Ask {
            bytes: 1 << 20,
            block: 1,
            is_aware,
            has_peer,
            is_regular,
        };
        // Single bytes over PCIe are slow, so that what packs on the GPU wins; blocks of 64 bytes
        // are not.
        assert_eq!(profile.choose(&ask(false, false, false)), Method::Staged);
        let long = Ask {
            block: 64,
            ..ask(false, false, false)
        };
        assert_eq!(profile.choose(&long), Method::OneShot);
        assert_eq!(profile.choose(&ask(true, false, true)), Method::Device);
        assert_eq!(profile.choose(&ask(true, true, false)), Method::Peer);
        assert_eq!(profile.choose(&ask(true, true, true)), Method::Peer);
        profile.engine = Grid([[0.1; GRID_BLOCKS]; GRID_BYTES]);
        assert_eq!(
            profile.choose(&ask(true, true, true)),
            Method::Peer,
            "remembered"
        );
        let other = Ask {
            bytes: (1 << 20) + 1,
            ..ask(true, true, true)
        };
        assert_eq!(profile.choose(&other), Method::Engine);
        // All of a size class have one answer.
        let mut class = other.class();
        assert_eq!((class.bytes, class.block), (2 << 20, 1));
        class.block = 33;
        assert_eq!(class.class().block, 64);
        for method in Method::ALL {
            assert_eq!(method.name().parse(), Ok(method));
        }
        assert!("pear".parse::<Method>().is_err());
    }
}
