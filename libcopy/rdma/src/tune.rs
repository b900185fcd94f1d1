// SPDX-License-Identifier: MIT OR Apache-2.0

//! Measures up to how many pieces, and from which block length on, memory keys and lists move a
//! message faster than packing does ("Network-Assisted Noncontiguous Transfers for GPU-Aware MPI
//! Libraries" tunes its 128 IOVs and 512 B per machine).
//!
//! Each cell is a layout of equal blocks at unequal distances, sent from one end of a connection to
//! the other by the thread that owns both, so that times of packing and unpacking count. Keys and
//! regions are made for each message, as in MPI programs where nothing is kept
//! ([`Memory::Unwatched`]).

use std::sync::Arc;
use std::time::{Duration, Instant};

use libcopy_datatype::{Datatype, Layout, Named};

use crate::channel::LocalChannel;
use crate::choice::{Abilities, Method, Threshold, Thresholds};
use crate::cut::Limits;
use crate::emulated::{EmulatedCard, EmulatedEnd};
use crate::endpoint::Endpoint;
use crate::error::{Error, Result};
use crate::gather::Buffer;
use crate::keys::{Keys, Memory};
use crate::pool::{Pool, PoolSize};
use crate::transfer::{Link, Settings};
use crate::verbs::{Connection, Device, Options, shared_keys};

/// Pieces of the layouts that are measured.
pub const COUNTS: [u64; 7] = [4, 16, 32, 64, 128, 256, 512];

/// Bytes of each piece.
pub const BLOCKS: [u64; 7] = [64, 128, 256, 512, 1024, 2048, 4096];

/// Layouts that are measured: the steps of a measurement.
pub const STEPS: usize = COUNTS.len() * BLOCKS.len();

/// Each method has as many turns at a layout; the shortest counts, as what else runs on a machine
/// only adds.
const TURNS: usize = 3;

/// Bytes of the messages of a turn, as far as these are 2 to 16.
const TURN_BYTES: u64 = 256 << 10;

/// What a layout took by one method, against packing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cell {
    /// The method.
    pub method: Method,
    /// Pieces.
    pub count: u64,
    /// Bytes of a piece.
    pub block: u64,
    /// Time per message with packing over time with the method: above 1 the method is faster.
    pub gain: f64,
}

/// What was measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Tuning {
    /// A cell per method and layout.
    pub cells: Vec<Cell>,
    /// The thresholds that follow; the built-in ones of methods that the devices do not have.
    pub thresholds: Thresholds,
}

/// A message by `method` that was packed instead costs more than packing at once. It counts as
/// twice as slow.
const REPLACED: f64 = 0.5;

/// Measures the methods that `methods` names beside packing. `time` sends messages of a layout by a
/// method and gives the time of one; none if another method was used.
///
/// # Errors
///
/// As for `time`.
pub fn measure(
    methods: &[Method],
    time: &mut dyn FnMut(Method, &Layout) -> Result<Option<Duration>>,
    done: &mut dyn FnMut(u64, u64),
) -> Result<Tuning> {
    let mut cells = Vec::new();
    for count in COUNTS {
        for block in BLOCKS {
            let layout = layout(count, block)?;
            let mut packed = Duration::MAX;
            let mut others = vec![Some(Duration::MAX); methods.len()];
            for _ in 0..TURNS {
                if let Some(one) = time(Method::Pack, &layout)? {
                    packed = packed.min(one);
                }
                for (method, other) in methods.iter().zip(&mut others) {
                    let one = time(*method, &layout)?;
                    *other = other.and_then(|best| Some(best.min(one?)));
                }
            }
            for (method, other) in methods.iter().zip(others) {
                let gain = other.map_or(REPLACED, |other| {
                    packed.as_secs_f64() / other.as_secs_f64().max(1e-9)
                });
                cells.push(Cell {
                    method: *method,
                    count,
                    block,
                    gain,
                });
            }
            done(count, block);
        }
    }
    let mut thresholds = Thresholds::default();
    for method in methods {
        match method {
            Method::Pack => {}
            Method::Sge => thresholds.sge = threshold(&cells, Method::Sge),
            Method::Umr => thresholds.umr = threshold(&cells, Method::Umr),
        }
    }
    Ok(Tuning { cells, thresholds })
}

/// The threshold below which the geometric mean of all gains is greatest: a cell that was disturbed
/// does not decide alone. A method that pays nowhere has `max_iovs` 0.
fn threshold(cells: &[Cell], method: Method) -> Threshold {
    let mut best = Threshold {
        max_iovs: 0,
        min_block: BLOCKS[BLOCKS.len() - 1],
    };
    let mut most = 0.0;
    for max_iovs in COUNTS {
        for min_block in BLOCKS {
            let inside = cells.iter().filter(|cell| {
                cell.method == method && cell.count <= max_iovs && cell.block >= min_block
            });
            let sum: f64 = inside.map(|cell| cell.gain.ln()).sum();
            if sum > most {
                most = sum;
                best = Threshold {
                    max_iovs,
                    min_block,
                };
            }
        }
    }
    best
}

/// Equal blocks at unequal distances, so that keys need a list of them.
fn layout(count: u64, block: u64) -> Result<Layout> {
    let lens = vec![block; count as usize];
    let places: Vec<i64> = (0..count as i64)
        .map(|index| index * 2 * block as i64 + index % 3 * 16)
        .collect();
    let byte = Datatype::named(Named::Uint8);
    Ok(Layout::new(&byte.hindexed(&lens, &places)?, 1)?)
}

/// Both ends of a connection per method, and memory for the longest layout.
struct Ends<E: Endpoint> {
    /// Before the memory that they may write to.
    links: Vec<(Method, [Link<LocalChannel, E>; 2])>,
    source: Vec<u8>,
    target: Vec<u8>,
}

impl<E: Endpoint> Ends<E> {
    fn new(links: Vec<(Method, [Link<LocalChannel, E>; 2])>) -> Result<Ends<E>> {
        let longest = layout(COUNTS[COUNTS.len() - 1], BLOCKS[BLOCKS.len() - 1])?;
        let bytes = longest.bounds().end as usize;
        Ok(Ends {
            links,
            source: (0..bytes).map(|index| index as u8).collect(),
            target: vec![0; bytes],
        })
    }

    /// The time of a message; none if another method was used.
    fn time(&mut self, method: Method, layout: &Layout) -> Result<Option<Duration>> {
        let Ends {
            links,
            source,
            target,
        } = self;
        let Some((_, [out, into])) = links.iter_mut().find(|(its, _)| *its == method) else {
            return Ok(None);
        };
        let [from, to] = [source.as_ptr(), target.as_mut_ptr().cast_const()].map(|start| Buffer {
            layout,
            base: start as u64,
            memory: Memory::Unwatched,
        });
        let mut message = || -> Result<Method> {
            // SAFETY: `source` and `target` have the layout's bytes, and are used by nobody else
            // until the transfers have ended or, after an error, the links were dropped, which lie
            // before them.
            let (sent, received) = unsafe { (out.start_send(&from)?, into.start_receive(&to)?) };
            loop {
                out.progress()?;
                into.progress()?;
                // The sender has all completions before its FIN ends the receive.
                if let Some(report) = into.test(received) {
                    while out.under_way() > 0 {
                        out.progress()?;
                    }
                    if let Some(sent) = out.test(sent) {
                        sent?;
                    }
                    return Ok(report?.method);
                }
            }
        };
        // Pages are touched and pools filled by the first.
        if message()? != method {
            return Ok(None);
        }
        let messages = (TURN_BYTES / layout.size().max(1)).clamp(2, 16);
        let start = Instant::now();
        for _ in 0..messages {
            if message()? != method {
                return Ok(None);
            }
        }
        Ok(Some(start.elapsed() / messages as u32))
    }
}

/// Methods beside packing that a connection has.
fn methods(abilities: &Abilities) -> Vec<Method> {
    [Method::Umr, Method::Sge]
        .into_iter()
        .filter(|method| abilities.limits(*method).is_some())
        .collect()
}

fn settings(only: Method) -> Settings {
    Settings {
        only: Some(only),
        ..Settings::default()
    }
}

/// Measures over a connection between two devices, or from a device to itself; `done` has the
/// pieces and their bytes after each of [`STEPS`].
///
/// # Errors
///
/// Devices that can only pack, that have no resources, or between which no connection comes about.
pub fn over_devices(devices: &[Arc<Device>; 2], done: &mut dyn FnMut(u64, u64)) -> Result<Tuning> {
    let methods = methods(&devices[0].abilities().common(&devices[1].abilities()));
    if methods.is_empty() {
        return Err(Error::NoDevice(format!(
            "{} and {} have neither memory keys nor lists: all messages are packed",
            devices[0].name(),
            devices[1].name()
        )));
    }
    let link = |method: Method| -> Result<(Method, [Link<LocalChannel>; 2])> {
        let end = |device: &Arc<Device>| -> Result<Arc<Connection>> {
            Ok(Arc::new(Connection::new(device, Options::of(device))?))
        };
        let [a, b] = [end(&devices[0])?, end(&devices[1])?];
        a.connect(&b.address())?;
        b.connect(&a.address())?;
        let [left, right] = LocalChannel::pair();
        let settings = settings(method);
        let keys = |device: &Arc<Device>| shared_keys(device, settings.pool);
        Ok((
            method,
            [
                Link::over(a, left, 1, &settings, keys(&devices[0])),
                Link::over(b, right, 0, &settings, keys(&devices[1])),
            ],
        ))
    };
    let all = std::iter::once(Method::Pack).chain(methods.iter().copied());
    let mut ends = Ends::new(all.map(link).collect::<Result<Vec<_>>>()?)?;
    measure(
        &methods,
        &mut |method, layout| ends.time(method, layout),
        done,
    )
}

/// Measures on the card in software, whose times say nothing of any device.
///
/// # Errors
///
/// A thread that cannot be started.
pub fn in_software(done: &mut dyn FnMut(u64, u64)) -> Result<Tuning> {
    const QUEUE: usize = 256;
    const LIMITS: Limits = Limits {
        max_iovs: 32,
        max_bytes: 1 << 30,
    };
    let link = |method: Method| -> Result<(Method, [Link<LocalChannel, EmulatedEnd>; 2])> {
        let cards = [0, 1].map(|_| EmulatedCard::new(LIMITS));
        let [a, b] = EmulatedEnd::pair([&cards[0], &cards[1]], QUEUE, Some(LIMITS));
        let [left, right] = LocalChannel::pair();
        let settings = settings(method);
        let keys = |card: &Arc<EmulatedCard>| -> Result<_> {
            let maker = card.clone();
            let pool = Pool::new(PoolSize::default(), move || Ok(maker.create()))?;
            Ok(Some(Arc::new(std::sync::Mutex::new(Keys::new(Arc::new(
                pool,
            ))))))
        };
        Ok((
            method,
            [
                Link::over(a, left, 1, &settings, keys(&cards[0])?),
                Link::over(b, right, 0, &settings, keys(&cards[1])?),
            ],
        ))
    };
    let all = [Method::Pack, Method::Umr, Method::Sge];
    let mut ends = Ends::new(all.into_iter().map(link).collect::<Result<Vec<_>>>()?)?;
    measure(
        &all[1..],
        &mut |method, layout| ends.time(method, layout),
        done,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a machine takes on which `method` pays up to `max` pieces of at least `min` bytes.
    fn machine(max: u64, min: u64) -> impl FnMut(Method, &Layout) -> Result<Option<Duration>> {
        move |method, layout| {
            let count = layout.segment_count();
            let block = layout.size() / count;
            let is_fast = method == Method::Pack || count <= max && block >= min;
            let fast = if method == Method::Pack { 10 } else { 8 };
            Ok(Some(Duration::from_micros(if is_fast { fast } else { 12 })))
        }
    }

    #[test]
    fn the_threshold_is_where_a_method_pays() {
        for (max, min) in [(128, 512), (4, 4096), (512, 64), (32, 2048)] {
            let tuning = measure(&[Method::Umr], &mut machine(max, min), &mut |_, _| ()).unwrap();
            let found = tuning.thresholds.umr;
            assert_eq!((found.max_iovs, found.min_block), (max, min));
            assert_eq!(tuning.cells.len(), STEPS);
            // Lists were not measured.
            assert_eq!(tuning.thresholds.sge, Thresholds::default().sge);
        }
    }

    #[test]
    fn one_disturbed_layout_does_not_decide() {
        let mut right = machine(128, 512);
        let mut disturbed = |method: Method, layout: &Layout| -> Result<Option<Duration>> {
            let time = right(method, layout)?;
            let is_disturbed = method == Method::Sge && layout.size() == 16 * 1024;
            Ok(time.map(|time| if is_disturbed { 2 * time } else { time }))
        };
        let tuning = measure(&[Method::Sge], &mut disturbed, &mut |_, _| ()).unwrap();
        let found = tuning.thresholds.sge;
        assert_eq!((found.max_iovs, found.min_block), (128, 512));
    }

    #[test]
    fn a_method_that_never_pays_is_never_used() {
        let never: [fn(Method) -> Option<u64>; 2] = [
            |method| Some(if method == Method::Pack { 10 } else { 11 }),
            |method| (method == Method::Pack).then_some(10),
        ];
        for time in never {
            let mut time = |method: Method, _: &Layout| -> Result<Option<Duration>> {
                Ok(time(method).map(Duration::from_micros))
            };
            let found = measure(&[Method::Umr], &mut time, &mut |_, _| ()).unwrap();
            assert_eq!(found.thresholds.umr.max_iovs, 0);
        }
    }

    #[test]
    fn every_layout_is_measured_on_the_card_in_software() {
        let mut steps = Vec::new();
        let tuning = in_software(&mut |count, block| steps.push((count, block))).unwrap();
        assert_eq!(steps.len(), STEPS);
        assert_eq!(tuning.cells.len(), 2 * STEPS);
        // Keys move every layout; 512 pieces at 32 per list are 16 requests, which the queue has
        // room for too.
        let is_replaced = |cell: &&Cell| cell.gain == REPLACED;
        assert_eq!(tuning.cells.iter().find(is_replaced), None);
        assert!(tuning.cells.iter().all(|cell| cell.gain > 0.0));
        let text = tuning.thresholds.to_string();
        assert_eq!(text.parse(), Ok(tuning.thresholds), "{text}");
    }
}
