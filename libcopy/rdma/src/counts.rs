// SPDX-License-Identifier: MIT OR Apache-2.0

//! The counts of "Network-Assisted Noncontiguous Transfers for GPU-Aware MPI Libraries" (sections
//! "Mkey Mapping", "Micro-Benchmarks" and "Application Kernels"): memory keys, bytes of keys in
//! clear-to-send messages, WRITEs, and messages that find all keys mapped. [`software`] counts on
//! the card in software, [`over_verbs`] over two devices.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;

use libcopy_datatype::Layout;

use crate::choice::{Abilities, Choice, Method, Thresholds};
use crate::cut::{CutRule, Limits};
use crate::error::{Error, Result};
use crate::gather::{Buffer, STAGE};
use crate::iov::Shape;
use crate::keys::Memory;
use crate::pool::PoolSize;
use crate::ranks::{self, Rank};
use crate::transfer::{Link, Settings, StreamChannel};
use crate::verbs::Device;
use crate::workloads::{Workload, applications, vector};

/// What messages took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// How they were moved.
    pub method: Method,
    /// Keys that receivers mapped.
    pub keys: u64,
    /// Bytes of keys in their clear-to-send messages.
    pub cts_bytes: u64,
    /// Work requests that moved bytes: WRITEs, or SENDs of lists with [`Method::Sge`].
    pub writes: u64,
    /// Messages for which the receiver had all keys mapped already.
    pub hits: u64,
}

impl Counts {
    /// The counts in one field of a table.
    pub fn summary(&self) -> String {
        format!(
            "method={} keys={} cts_bytes={} writes={} hits={}",
            self.method, self.keys, self.cts_bytes, self.writes, self.hits
        )
    }
}

/// A case that was run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Its name, for example `vector-1024x16`; behind the names of the devices with [`over_verbs`].
    pub case: String,
    /// What was counted.
    pub counted: Counts,
    /// What the paper's formulas give.
    pub expected: Counts,
    /// Whether every byte of every message arrived where it belongs, and nowhere else.
    pub bytes_right: bool,
}

impl Row {
    /// Whether counts and bytes are right.
    pub fn is_right(&self) -> bool {
        self.bytes_right && self.counted == self.expected
    }
}

/// The names of [`Row::csv`]'s fields.
pub const CSV_HEADER: &str = "case,method,keys,cts_bytes,writes,hits,expected,right";

impl Row {
    /// The row as a line of CSV, by [`CSV_HEADER`]. No field has a comma.
    pub fn csv(&self) -> String {
        let Counts {
            method,
            keys,
            cts_bytes,
            writes,
            hits,
        } = self.counted;
        let right = if self.is_right() { "yes" } else { "no" };
        format!(
            "{},{method},{keys},{cts_bytes},{writes},{hits},{},{right}",
            self.case,
            self.expected.summary()
        )
    }
}

/// Messages of the micro-benchmark: 10 to warm up and 100.
const ITERATIONS: u64 = 110;

/// Pieces of a key in the micro-benchmarks on the card in software.
const MICRO_IOVS: usize = 16;

/// Pieces of a key for the application layouts on the card in software.
const APPLICATION_IOVS: usize = 64;

fn limits(max_iovs: usize) -> Limits {
    Limits {
        max_iovs,
        max_bytes: 1 << 31,
    }
}

/// `messages` messages of one layout from one buffer to another.
struct Case {
    name: String,
    layout: Layout,
    messages: u64,
    /// What the paper's thresholds choose with memory keys.
    method: Method,
}

/// The vectors of the micro-benchmark and the application layouts.
fn pairs() -> Result<Vec<Case>> {
    let mut all = Vec::new();
    for len in [1024, 2048, 4096] {
        for count in [16, 32, 64, 128] {
            all.push(Case {
                name: format!("vector-{len}x{count}"),
                layout: vector(count, len)?,
                messages: ITERATIONS,
                method: Method::Umr,
            });
        }
    }
    let application = |one: Workload| Case {
        name: one.name,
        layout: one.layout,
        messages: 2,
        method: one.expected,
    };
    all.extend(applications()?.into_iter().map(application));
    Ok(all)
}

/// What `messages` messages of equal blocks take, the first of which maps: ceil(blocks /
/// `max_iovs`) windows each.
fn expected(layout: &Layout, messages: u64, method: Method, max_iovs: usize) -> Counts {
    let shape = Shape::of(layout);
    let windows = match method {
        Method::Pack => shape.bytes.div_ceil(STAGE as u64),
        Method::Sge | Method::Umr => shape.blocks.div_ceil(max_iovs as u64),
    };
    let is_mapped = method == Method::Umr;
    let keys = if is_mapped { windows } else { 0 };
    Counts {
        method,
        keys,
        cts_bytes: 4 * keys,
        writes: messages * windows,
        hits: if is_mapped { messages - 1 } else { 0 },
    }
}

/// Adds up what messages between two ranks take.
struct Sum {
    counts: Counts,
    right: bool,
}

impl Sum {
    fn new(method: Method) -> Sum {
        Sum {
            counts: Counts {
                method,
                keys: 0,
                cts_bytes: 0,
                writes: 0,
                hits: 0,
            },
            right: true,
        }
    }

    fn send(&mut self, sender: &mut Rank, receiver: &mut Rank, layout: &Layout) -> Result<()> {
        let before = receiver.keys().counts().hits;
        let done = match self.counts.method {
            Method::Pack => ranks::packed(sender, receiver, layout, layout)?,
            Method::Sge | Method::Umr => {
                ranks::message(sender, receiver, layout, layout, Memory::Generation(0))?
            }
        };
        self.counts.keys += done.keys;
        self.counts.cts_bytes += done.cts_bytes;
        self.counts.writes += done.writes;
        self.counts.hits += receiver.keys().counts().hits - before;
        self.right &= done.right;
        Ok(())
    }

    fn row(self, case: String, expected: Counts) -> Row {
        Row {
            case,
            counted: self.counts,
            expected,
            bytes_right: self.right,
        }
    }
}

/// How many cases [`software`] runs.
///
/// # Errors
///
/// None that the layouts have.
pub fn software_cases() -> Result<usize> {
    Ok(2 + pairs()?.len() + FFT_RANKS.count())
}

/// Ranks of the FFT's alltoallw.
const FFT_RANKS: std::ops::RangeInclusive<u32> = 2..=8;

/// Runs all cases on the card in software; `done` is called for each.
///
/// # Errors
///
/// A key that cannot be mapped.
pub fn software(done: &mut dyn FnMut(&Row)) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    let mut add = |row: Row| {
        done(&row);
        rows.push(row);
    };
    // 4,096 blocks at 4 per key, the first time and again.
    let blocks = vector(4096, 512)?;
    let (mut sender, mut receiver) = (
        Rank::new(0, limits(4), 1024)?,
        Rank::new(1, limits(4), 1024)?,
    );
    let first = expected(&blocks, 1, Method::Umr, 4);
    let again = Counts {
        keys: 0,
        cts_bytes: 0,
        hits: 1,
        ..first
    };
    for (name, expected) in [("blocks-4096-first", first), ("blocks-4096-again", again)] {
        let mut sum = Sum::new(Method::Umr);
        sum.send(&mut sender, &mut receiver, &blocks)?;
        add(sum.row(name.to_owned(), expected));
    }
    for case in pairs()? {
        add(software_pair(&case)?);
    }
    for ranks in FFT_RANKS {
        add(fft(ranks)?);
    }
    Ok(rows)
}

fn software_pair(case: &Case) -> Result<Row> {
    let shape = Shape::of(&case.layout);
    let max_iovs = if case.messages == ITERATIONS {
        MICRO_IOVS
    } else {
        APPLICATION_IOVS
    };
    let card = Abilities {
        sge: None,
        umr: Some(limits(max_iovs)),
    };
    let Choice { method, windows } =
        Thresholds::default().choose(&shape, &shape, &card, CutRule::Agreed);
    let mut sum = Sum::new(method);
    let keys = windows as usize;
    let mut ends = [
        Rank::new(0, limits(max_iovs), keys)?,
        Rank::new(1, limits(max_iovs), keys)?,
    ];
    let (sender, receiver) = ranks::two(&mut ends, 0, 1);
    for _ in 0..case.messages {
        sum.send(sender, receiver, &case.layout)?;
    }
    let expected = expected(&case.layout, case.messages, case.method, max_iovs);
    Ok(sum.row(case.name.clone(), expected))
}

/// Three alltoallw of 64 blocks of 1 KiB, the first of which maps. The sum over all ranks, as
/// receivers.
fn fft(ranks: u32) -> Result<Row> {
    const ROUNDS: u64 = 3;
    let layout = vector(64, 1024)?;
    let windows = 64_usize.div_ceil(MICRO_IOVS);
    // A buffer per peer and direction.
    let keys = windows * 2 * ranks as usize;
    let mut all = (0..ranks)
        .map(|rank| Rank::new(rank, limits(MICRO_IOVS), keys))
        .collect::<Result<Vec<Rank>>>()?;
    let mut sum = Sum::new(Method::Umr);
    for _ in 0..ROUNDS {
        for from in 0..ranks as usize {
            for to in (0..ranks as usize).filter(|to| *to != from) {
                let (sender, receiver) = ranks::two(&mut all, from, to);
                sum.send(sender, receiver, &layout)?;
            }
        }
    }
    let pairs = u64::from(ranks * (ranks - 1));
    let one = expected(&layout, ROUNDS, Method::Umr, MICRO_IOVS);
    let expected = Counts {
        method: one.method,
        keys: one.keys * pairs,
        cts_bytes: one.cts_bytes * pairs,
        writes: one.writes * pairs,
        hits: one.hits * pairs,
    };
    Ok(sum.row(format!("fft-alltoallw-{ranks}"), expected))
}

/// How many cases [`over_verbs`] runs.
///
/// # Errors
///
/// None that the layouts have.
pub fn verbs_cases() -> Result<usize> {
    Ok(pairs()?.len())
}

/// Runs the cases of two ranks over a reliable connection between two devices, with the method that
/// the thresholds choose for these devices; `done` is called for each. What is expected follows
/// from what a work request of the devices can have: memory keys where both devices have them.
/// `is_wanted` says by its name whether a case is run.
///
/// # Errors
///
/// A device without resources, a connection that fails.
pub fn over_verbs(
    devices: &[Arc<Device>; 2],
    is_wanted: &dyn Fn(&str) -> bool,
    done: &mut dyn FnMut(&Row),
) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for case in pairs()?.into_iter().filter(|case| is_wanted(&case.name)) {
        let row = verbs_pair(devices, &case)?;
        done(&row);
        rows.push(row);
    }
    Ok(rows)
}

fn memory(layout: &Layout) -> (Vec<u8>, isize) {
    let bounds = layout.bounds();
    let bytes = vec![0; (bounds.end - bounds.start) as usize];
    (bytes, (-bounds.start) as isize)
}

fn buffer<'a>(layout: &'a Layout, bytes: *const u8) -> Buffer<'a> {
    Buffer {
        layout,
        base: (bytes as u64).wrapping_add_signed(-layout.bounds().start),
        // Each end's memory stays where it is until its link has been dropped.
        memory: Memory::Generation(0),
    }
}

fn verbs_pair(devices: &[Arc<Device>; 2], case: &Case) -> Result<Row> {
    let layout = &case.layout;
    let [a, b] = devices;
    let shape = Shape::of(layout);
    let abilities = a.abilities().common(&b.abilities());
    let choice = Thresholds::default().choose(&shape, &shape, &abilities, CutRule::Agreed);
    let max_iovs = abilities
        .limits(choice.method)
        .map_or(1, |limits| limits.max_iovs);
    let expected = expected(layout, case.messages, choice.method, max_iovs);
    let keys = choice.windows as usize + 1;
    let settings = Settings {
        pool: PoolSize {
            initial: 2 * keys,
            step: keys,
            max: 4 * keys,
        },
        ..Settings::default()
    };
    let (left, right) = UnixStream::pair().map_err(|error| Error::Verbs {
        function: "socketpair",
        errno: error.raw_os_error().unwrap_or(libc::EMFILE),
    })?;
    let (mut source, origin) = memory(layout);
    ranks::fill(&mut source);
    let mut packed = vec![0; layout.size() as usize];
    layout.pack(&source, origin, &mut packed)?;
    let mut wanted = memory(layout).0;
    layout.unpack(&packed, &mut wanted, origin)?;
    let (source, wanted) = (&source, &wanted);
    let its = settings.clone();
    let (sent, received) = thread::scope(|scope| {
        let sender = scope.spawn(move || -> Result<u64> {
            let mut link = Link::new(a, StreamChannel::new(left, 1), 1, its)?;
            let from = buffer(layout, source.as_ptr());
            let mut requests = 0;
            for _ in 0..case.messages {
                // SAFETY: `source` has the layout's bytes, and nobody changes it.
                requests += unsafe { link.send(&from)? }.requests;
            }
            Ok(requests)
        });
        let receiver = scope.spawn(move || -> Result<(Counts, bool)> {
            let (mut target, _) = memory(layout);
            let mut link = Link::new(b, StreamChannel::new(right, 0), 0, settings)?;
            let (mut method, mut is_right) = (choice.method, true);
            for _ in 0..case.messages {
                target.fill(0);
                // SAFETY: `target` has the layout's bytes, and nobody else uses it until the link
                // is dropped.
                let report = unsafe { link.receive(&buffer(layout, target.as_ptr()))? };
                if report.method != choice.method {
                    method = report.method;
                }
                is_right &= target == *wanted;
            }
            let counts = link.key_counts();
            // It ends before its memory.
            drop(link);
            Ok((
                Counts {
                    method,
                    keys: counts.mapped,
                    cts_bytes: counts.key_bytes,
                    writes: 0,
                    hits: counts.hits,
                },
                is_right,
            ))
        });
        (sender.join(), receiver.join())
    });
    let ended = |_| Error::PeerGone {
        rank: 0,
        reason: "its thread panicked".to_owned(),
    };
    let writes = sent.map_err(ended)??;
    let (counts, bytes_right) = received.map_err(ended)??;
    Ok(Row {
        case: format!("{}-{}/{}", a.name(), b.name(), case.name),
        counted: Counts { writes, ..counts },
        expected,
        bytes_right,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_right_with_its_counts_and_its_bytes() {
        let counts = Counts {
            method: Method::Umr,
            keys: 4,
            cts_bytes: 16,
            writes: 8,
            hits: 1,
        };
        let row = Row {
            case: "one".to_owned(),
            counted: counts,
            expected: counts,
            bytes_right: true,
        };
        assert_eq!(
            row.csv(),
            "one,umr,4,16,8,1,method=umr keys=4 cts_bytes=16 writes=8 hits=1,yes"
        );
        let fewer = Counts { keys: 3, ..counts };
        for wrong in [
            Row {
                counted: fewer,
                ..row.clone()
            },
            Row {
                bytes_right: false,
                ..row
            },
        ] {
            assert!(wrong.csv().ends_with(",no"), "{wrong:?}");
        }
    }

    /// What the paper's text says, as numbers.
    #[test]
    fn what_is_expected_is_the_papers() {
        let blocks = expected(&vector(4096, 512).unwrap(), 1, Method::Umr, 4);
        assert_eq!(
            (blocks.keys, blocks.cts_bytes, blocks.writes),
            (1024, 4096, 1024)
        );
        let vectors = expected(&vector(128, 4096).unwrap(), 110, Method::Umr, 16);
        assert_eq!(
            (vectors.keys, vectors.writes, vectors.hits),
            (8, 8 * 110, 109)
        );
    }
}
