// SPDX-License-Identifier: MIT OR Apache-2.0

//! Engines with their threads running: turns, bandwidth, and resets in the middle.

use std::time::Duration;

use super::*;
use crate::channel::SLICE;
use crate::descriptor::Operation;
use crate::registers::{CHANNEL, Status, chancmd, channel as register};
use crate::rig::{COMPLETION, DATA, RING, Rig, pattern};

struct Bench {
    engine: Arc<Engine>,
    thread: Option<thread::JoinHandle<()>>,
    rigs: Vec<Rig>,
}

impl Bench {
    /// An engine whose channels each have a ring of two descriptors of `size` bytes.
    fn new(channels: u8, bandwidth: Option<u64>, size: u64) -> Self {
        let (engine, thread) = Engine::start(0, channels, bandwidth).expect("a thread starts");
        let rigs = (0..usize::from(channels))
            .map(|index| {
                let rig =
                    Rig::new(engine.look(|state| state.functions[index].channel.memory().clone()));
                let operation = Operation::Copy {
                    source: DATA,
                    destination: DATA + (4 << 20),
                    size,
                };
                rig.put(DATA, &pattern(index as u64, size as usize));
                rig.ring(RING, &[operation; 2], 1);
                rig
            })
            .collect();
        let bench = Self {
            engine,
            thread: Some(thread),
            rigs,
        };
        for index in 0..channels {
            bench.start(index);
        }
        bench
    }

    fn write(&self, channel: u8, register: u64, data: &[u8]) {
        self.engine
            .with(|state| state.functions[usize::from(channel)].write(CHANNEL + register, data));
    }

    fn start(&self, channel: u8) {
        self.write(channel, register::CHANCTRL, &[0x1d, 0]);
        self.write(channel, register::CHANCMP, &COMPLETION.to_le_bytes());
        self.write(channel, register::CHAINADDR, &RING.to_le_bytes());
    }

    fn issue(&self, channel: u8, count: u16) {
        self.write(channel, register::DMACOUNT, &count.to_le_bytes());
    }

    fn bytes(&self, channel: u8) -> u64 {
        self.engine
            .look(|state| state.functions[usize::from(channel)].channel.counters.bytes)
    }

    fn status(&self, channel: u8) -> Status {
        self.engine
            .look(|state| state.functions[usize::from(channel)].channel.status())
    }

    fn wait(&self, what: &str, done: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while !done() {
            assert!(Instant::now() < deadline, "not within 30 s: {what}");
            thread::sleep(Duration::from_micros(200));
        }
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.engine.stop();
        self.thread.take().map(thread::JoinHandle::join);
    }
}

#[test]
fn an_engine_copies_what_it_is_given() {
    let bench = Bench::new(2, None, 1 << 20);
    for channel in 0..2 {
        bench.issue(channel, 4);
    }
    for channel in 0..2 {
        bench.wait("done", || bench.status(channel) == Status::Done);
        assert_eq!(bench.bytes(channel), 4 << 20);
        let rig = &bench.rigs[usize::from(channel)];
        assert_eq!(rig.get(DATA, 1 << 20), rig.get(DATA + (4 << 20), 1 << 20));
    }
}

/// Seconds in which one channel of an engine copies `blocks` blocks of 1 MiB, and those that they
/// take at its rate. A busy machine may take three times as long once, not ten times in a row.
fn soon_enough(channels: u8, channel: u8, rate: u32, blocks: u16) -> (f64, f64) {
    let ideal = f64::from(blocks) * f64::from(1 << 20) / f64::from(rate);
    let mut times = (0..10).map(|_| {
        let bench = Bench::new(channels, Some(rate.into()), 1 << 20);
        let begin = Instant::now();
        bench.issue(channel, blocks);
        bench.wait("done", || bench.status(channel) == Status::Done);
        begin.elapsed().as_secs_f64()
    });
    let took = times.find(|time| *time < 3.0 * ideal);
    (took.expect("within three times the ideal"), ideal)
}

#[test]
fn an_engine_keeps_to_its_bandwidth() {
    // Half a second's work; other programs may make it slower, never faster.
    let (took, ideal) = soon_enough(1, 0, 64_000_000, 32);
    assert!(took > 0.99 * ideal, "{took} s instead of {ideal} s");
}

#[test]
fn channels_share_an_engine_evenly() {
    let bench = Bench::new(8, Some(100_000_000), 1 << 20);
    for channel in 0..8 {
        bench.issue(channel, u16::MAX);
    }
    bench.wait("some bytes", || bench.bytes(7) > 20 * SLICE);
    let bytes: Vec<_> = bench.engine.look(|state| {
        state
            .functions
            .iter()
            .map(|f| f.channel.counters.bytes)
            .collect()
    });
    let (least, most) = (
        bytes.iter().min().expect("eight"),
        bytes.iter().max().expect("eight"),
    );
    assert!(most - least <= SLICE, "{bytes:?}");
}

#[test]
fn an_idle_channel_costs_the_others_nothing() {
    // Eight times as long is what turns for idle channels would cost.
    soon_enough(8, 5, 200_000_000, 20);
}

#[test]
fn a_slow_engine_is_reset_and_suspended_at_once() {
    // A slice takes 65 s on this engine, but nobody waits for it.
    let bench = Bench::new(1, Some(1_000), 1 << 20);
    for command in [chancmd::SUSPEND, chancmd::RESET] {
        bench.issue(0, 2);
        thread::sleep(Duration::from_millis(20));
        let begin = Instant::now();
        bench.write(0, register::CHANCMD, &[command]);
        let expected = if command == chancmd::RESET {
            Status::Halted
        } else {
            Status::Suspended
        };
        bench.wait("stopped", || bench.status(0) == expected);
        assert!(
            begin.elapsed() < Duration::from_secs(30),
            "{:?}",
            begin.elapsed()
        );
        assert_eq!(bench.bytes(0), 0, "what is not paid for is not copied");
        bench.start(0);
    }
}

#[test]
fn nothing_is_written_after_a_reset() {
    let bench = Bench::new(1, None, 1 << 20);
    let rig = &bench.rigs[0];
    for round in 0..200u64 {
        bench.issue(0, 2);
        if round % 3 > 0 {
            thread::sleep(Duration::from_micros(10 * round));
        }
        bench.write(0, register::CHANCMD, &[chancmd::RESET]);
        bench.wait("halted", || {
            let mut command = [0];
            bench.engine.look(|state| {
                state.functions[0].read(CHANNEL + register::CHANCMD, &mut command);
            });
            command == [0]
        });
        // The driver may use the memory for something else from now on.
        rig.put(DATA + (4 << 20), &[0x55; 4096]);
        rig.put(COMPLETION, &[0; 8]);
        thread::sleep(Duration::from_micros(300));
        assert_eq!(rig.get(DATA + (4 << 20), 4096), [0x55; 4096]);
        assert_eq!(rig.completion(), (0, 0));
        bench.start(0);
    }
}

#[test]
fn a_delayed_channel_does_not_hold_up_its_neighbour() {
    let bench = Bench::new(2, None, 1 << 16);
    bench.engine.with(|state| {
        let fault = "delay=300".parse().expect("valid");
        state.functions[0].channel.faults.arm(fault);
    });
    let begin = Instant::now();
    bench.issue(0, 1);
    bench.issue(1, 10);
    bench.wait("the neighbour", || bench.status(1) == Status::Done);
    assert_eq!(bench.bytes(0), 0, "not yet: {:?}", begin.elapsed());
    bench.wait("the late one", || bench.status(0) == Status::Done);
    assert!(begin.elapsed() >= Duration::from_millis(300));
}

#[test]
fn the_bandwidth_can_be_changed() {
    let bench = Bench::new(1, Some(1_000_000), 1 << 20);
    bench.issue(0, 2);
    bench.wait("slow progress", || bench.bytes(0) > 0);
    assert_eq!(bench.status(0), Status::Active);
    bench.engine.with(|state| state.limiter.set_rate(None));
    bench.wait("done", || bench.status(0) == Status::Done);
}
