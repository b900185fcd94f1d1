// SPDX-License-Identifier: MIT OR Apache-2.0

//! A channel under the hands of a driver, with a clock of its own and no thread.

use std::time::Duration;

use super::*;
use crate::descriptor::SIZE;
use crate::rig::{BASE, COMPLETION, DATA, LENGTH, RING, Rig, pattern};

/// What `ioatdma` writes to CHANCTRL (`IOAT_CHANCTRL_RUN`).
const RUN: u16 = 0x1d;

struct Driver {
    rig: Rig,
    channel: Channel,
    now: Instant,
}

impl Driver {
    fn new() -> Self {
        let memory = Arc::new(Memory::default());
        let mut driver = Self {
            rig: Rig::new(memory.clone()),
            channel: Channel::new(memory),
            now: Instant::now(),
        };
        driver.start(RING);
        driver
    }

    /// As `ioat_alloc_chan_resources` and `ioat_restart_channel`.
    fn start(&mut self, chain: u64) {
        self.write(register::CHANCTRL, &RUN.to_le_bytes());
        self.write(register::CHANCMP, &(COMPLETION as u32).to_le_bytes());
        self.write(
            register::CHANCMP + 4,
            &((COMPLETION >> 32) as u32).to_le_bytes(),
        );
        self.write(register::CHAINADDR, &(chain as u32).to_le_bytes());
        self.write(
            register::CHAINADDR + 4,
            &((chain >> 32) as u32).to_le_bytes(),
        );
    }

    fn write(&mut self, register: u64, data: &[u8]) {
        self.channel.write(register, data);
    }

    fn read<const N: usize>(&mut self, register: u64) -> [u8; N] {
        let mut data = [0; N];
        self.channel.read(register, &mut data);
        data
    }

    fn status(&mut self) -> (u64, u64) {
        let value = u64::from_le_bytes(self.read(register::CHANSTS));
        (value & !0x3f, value & 0x7)
    }

    fn issue(&mut self, count: u16) {
        self.write(register::DMACOUNT, &count.to_le_bytes());
    }

    /// One turn; `false` when there was nothing to do.
    fn turn(&mut self) -> bool {
        match self.channel.turn(self.now) {
            Turn::Nothing => false,
            Turn::Later(time) => {
                assert!(time > self.now);
                self.now = time;
                true
            }
            Turn::Slice(slice) => {
                self.copy(&slice);
                true
            }
        }
    }

    fn copy(&mut self, slice: &Slice) {
        let result = self
            .rig
            .memory
            .copy(slice.source, slice.destination, slice.length);
        self.channel.finish(slice, result);
    }

    fn work(&mut self) {
        for _ in 0..200_000 {
            if !self.turn() {
                return;
            }
        }
        panic!("the channel never has enough");
    }

    fn slice(&mut self) -> Slice {
        match self.channel.turn(self.now) {
            Turn::Slice(slice) => slice,
            other => panic!("{other:?}"),
        }
    }

    fn command(&mut self, command: u8) {
        self.write(register::CHANCMD, &[command]);
    }

    fn arm(&mut self, fault: &str) {
        self.channel.faults.arm(fault.parse().expect("valid"));
    }
}

fn copy(source: u64, destination: u64, size: u64) -> Operation {
    Operation::Copy {
        source,
        destination,
        size,
    }
}

fn descriptor(index: u64) -> u64 {
    RING + index * SIZE as u64
}

/// A driver with a ring of `count` copies of `size` bytes each; source and destination follow each
/// other in 1 MiB steps from DATA.
fn copies(count: u64, size: u64) -> (Driver, Vec<(u64, u64)>) {
    let driver = Driver::new();
    let places: Vec<_> = (0..count)
        .map(|index| (DATA + 2 * index * size, DATA + (2 * index + 1) * size))
        .collect();
    let operations: Vec<_> = places
        .iter()
        .map(|(from, to)| copy(*from, *to, size))
        .collect();
    for (seed, (from, _)) in places.iter().enumerate() {
        driver.rig.put(*from, &pattern(seed as u64, size as usize));
    }
    driver.rig.ring(RING, &operations, 1);
    (driver, places)
}

fn arrived(driver: &Driver, place: (u64, u64), size: u64) -> bool {
    driver.rig.get(place.0, size as usize) == driver.rig.get(place.1, size as usize)
}

#[test]
fn a_chain_is_executed_as_far_as_it_is_given() {
    let (mut driver, places) = copies(5, 3000);
    assert_eq!(driver.status(), (0, Status::Halted as u64));
    driver.issue(3);
    driver.work();
    for (index, place) in places.iter().enumerate() {
        assert_eq!(arrived(&driver, *place, 3000), index < 3, "{index}");
    }
    assert_eq!(driver.status(), (descriptor(2), Status::Done as u64));
    assert_eq!(driver.rig.completion(), driver.status());
    driver.issue(5);
    assert_eq!(driver.status().1, Status::Active as u64);
    driver.work();
    assert!(places.iter().all(|place| arrived(&driver, *place, 3000)));
    let counters = driver.channel.counters;
    assert_eq!(
        (counters.bytes, counters.copies, counters.completions),
        (15_000, 5, 5)
    );
    assert_eq!(
        u64::from_le_bytes(driver.read(register::CDAR)),
        descriptor(4)
    );
}

#[test]
fn large_descriptors_take_several_turns() {
    let (mut driver, places) = copies(1, 1 << 20);
    driver.issue(1);
    let mut turns = 0;
    while driver.turn() {
        turns += 1;
    }
    assert_eq!(turns, (1 << 20) / SLICE);
    assert!(arrived(&driver, places[0], 1 << 20));
}

#[test]
fn null_descriptors_touch_no_memory_and_complete() {
    let mut driver = Driver::new();
    driver.rig.ring(RING, &[Operation::Null], 1);
    driver.issue(1);
    driver.work();
    assert_eq!(driver.rig.completion(), (RING, Status::Done as u64));
    assert_eq!(driver.channel.counters.nulls, 1);
    assert_eq!(driver.channel.counters.bytes, 0);
    assert!(driver.channel.take_signal());
}

#[test]
fn the_count_wraps_with_the_ring() {
    // The driver's own size: 65,536 descriptors, and a count of 16 bits.
    let mut driver = Driver::new();
    let ring = BASE + (8 << 20);
    assert!(ring + (SIZE << 16) as u64 <= BASE + LENGTH);
    driver.rig.ring(ring, &vec![Operation::Null; 1 << 16], 1);
    driver.rig.put(
        ring,
        &Descriptor {
            operation: copy(DATA, DATA + 64, 8),
            interrupt: false,
            completion: true,
            next: ring + SIZE as u64,
        }
        .encode(),
    );
    driver.start(ring);
    let mut count = 0u16;
    for step in [40_000u16, 25_535, 1, 7] {
        count = count.wrapping_add(step);
        driver.issue(count);
        driver.work();
    }
    // 65,536 + 7: once around, and seven into the second round.
    assert_eq!(
        driver.status(),
        (ring + 6 * SIZE as u64, Status::Done as u64)
    );
    assert_eq!(driver.channel.counters.copies, 2);
    assert_eq!(driver.channel.counters.nulls, (1 << 16) + 5);
}

#[test]
fn interrupts_wait_for_the_driver() {
    let (mut driver, _) = copies(3, 64);
    driver.issue(1);
    driver.work();
    assert!(driver.channel.take_signal());
    assert_eq!(
        driver.read(register::CHANCTRL),
        [RUN as u8, 0],
        "blocked reads as one"
    );
    driver.issue(3);
    driver.work();
    assert!(
        !driver.channel.take_signal(),
        "not before it is armed again"
    );
    driver.write(register::CHANCTRL, &RUN.to_le_bytes());
    assert!(driver.channel.take_signal(), "what was latched");
    driver.write(register::CHANCTRL, &RUN.to_le_bytes());
    assert!(!driver.channel.take_signal(), "once");
    assert_eq!(driver.read(register::CHANCTRL), [RUN as u8 & !1, 0]);
}

#[test]
fn suspending_stops_in_the_middle_and_resuming_goes_on() {
    let (mut driver, places) = copies(2, 4 * SLICE);
    driver.issue(2);
    driver.turn();
    let slice = driver.slice();
    driver.command(chancmd::SUSPEND);
    assert_eq!(
        driver.status().1,
        Status::Active as u64,
        "a slice is in work"
    );
    driver.copy(&slice);
    assert_eq!(driver.status(), (0, Status::Suspended as u64));
    assert!(!driver.turn());
    driver.command(chancmd::RESUME);
    driver.work();
    assert!(
        places
            .iter()
            .all(|place| arrived(&driver, *place, 4 * SLICE))
    );
    driver.command(chancmd::SUSPEND);
    assert_eq!(driver.status(), (descriptor(1), Status::Suspended as u64));
    driver.command(chancmd::RESUME);
    assert_eq!(driver.status(), (descriptor(1), Status::Done as u64));
    assert_eq!(driver.channel.counters.suspensions, 2);
}

#[test]
fn a_slice_that_has_not_begun_is_given_back() {
    let (mut driver, places) = copies(1, 4096);
    driver.issue(1);
    let slice = driver.slice();
    assert!(!driver.channel.cancels(&slice));
    driver.command(chancmd::SUSPEND);
    assert!(driver.channel.cancels(&slice));
    driver.channel.abandon();
    assert_eq!(driver.status().1, Status::Suspended as u64);
    assert!(!arrived(&driver, places[0], 4096));
    driver.command(chancmd::RESUME);
    driver.work();
    assert!(arrived(&driver, places[0], 4096));
    assert_eq!(driver.channel.counters.bytes, 4096);
}

#[test]
fn a_suspended_channel_takes_a_new_chain() {
    // As ioat_restart_channel after an error that needed no reset.
    let (mut driver, places) = copies(4, 4096);
    driver.issue(4);
    driver.turn();
    driver.command(chancmd::SUSPEND);
    driver.issue(4);
    assert!(!driver.turn(), "a count alone does not wake it");
    driver.start(descriptor(2));
    driver.issue(2);
    driver.work();
    assert_eq!(
        driver.rig.completion(),
        (descriptor(3), Status::Done as u64)
    );
    let there: Vec<_> = places
        .iter()
        .map(|place| arrived(&driver, *place, 4096))
        .collect();
    assert_eq!(there, [true, false, true, true]);
}

#[test]
fn a_reset_lasts_until_the_engine_is_out() {
    let (mut driver, places) = copies(2, 2 * SLICE);
    driver.issue(2);
    let slice = driver.slice();
    driver.command(chancmd::RESET);
    assert_eq!(driver.read(register::CHANCMD), [chancmd::RESET], "pending");
    assert!(driver.channel.cancels(&slice));
    driver.copy(&slice);
    assert_eq!(driver.read(register::CHANCMD), [0]);
    assert_eq!(driver.status(), (0, Status::Halted as u64));
    driver.issue(2);
    assert!(!driver.turn(), "what was given before the reset is gone");
    assert!(!arrived(&driver, places[0], 2 * SLICE));
    assert_eq!(
        driver.rig.completion(),
        (0, 0),
        "no completion after a reset"
    );
    assert_eq!(
        driver.channel.counters.bytes, SLICE,
        "but the bytes were written"
    );
    driver.start(RING);
    driver.issue(2);
    driver.work();
    assert!(
        places
            .iter()
            .all(|place| arrived(&driver, *place, 2 * SLICE))
    );
    driver.command(chancmd::RESET);
    assert_eq!(
        driver.read(register::CHANCMD),
        [0],
        "an idle channel is reset at once"
    );
    assert_eq!(driver.channel.counters.resets, 2);
}

#[test]
fn an_abort_halts() {
    let (mut driver, places) = copies(2, 2 * SLICE);
    driver.issue(2);
    let slice = driver.slice();
    driver.command(chancmd::ABORT);
    driver.copy(&slice);
    assert_eq!(driver.status(), (0, Status::Halted as u64));
    driver.work();
    assert!(!arrived(&driver, places[0], 2 * SLICE));
    driver.start(descriptor(1));
    driver.issue(1);
    driver.work();
    assert!(arrived(&driver, places[1], 2 * SLICE));
}

#[test]
fn read_and_write_errors_halt_and_say_so() {
    for (fault, errors, bytes) in [
        ("read-error after=1", chanerr::READ_DATA, 4096),
        ("write-error after=1", chanerr::WRITE_DATA, 4096 + 2048),
        ("halt after=1", chanerr::SRC_ADDR, 4096),
    ] {
        let (mut driver, places) = copies(3, 4096);
        driver.arm(fault);
        driver.issue(1);
        driver.work();
        assert!(driver.channel.take_signal());
        driver.write(register::CHANCTRL, &RUN.to_le_bytes());
        driver.issue(3);
        driver.work();
        assert_eq!(
            u32::from_le_bytes(driver.read(register::CHANERR)),
            errors,
            "{fault}"
        );
        assert_eq!(driver.status(), (descriptor(0), Status::Halted as u64));
        assert_eq!(
            driver.rig.completion(),
            driver.status(),
            "the driver reads it from memory"
        );
        assert!(driver.channel.take_signal(), "and is told");
        assert!(arrived(&driver, places[0], 4096));
        assert!(!arrived(&driver, places[1], 4096));
        assert!(!arrived(&driver, places[2], 4096));
        assert_eq!(driver.channel.counters.bytes, bytes);
        // A halted channel with errors does not start.
        driver.start(descriptor(1));
        driver.issue(2);
        assert!(!driver.turn());
        driver.write(register::CHANERR, &errors.to_le_bytes());
        assert_eq!(driver.read(register::CHANERR), [0; 4]);
        driver.start(descriptor(1));
        driver.issue(2);
        driver.work();
        assert!(places.iter().all(|place| arrived(&driver, *place, 4096)));
        assert_eq!(
            (
                driver.channel.counters.halts,
                driver.channel.counters.faults
            ),
            (1, 1)
        );
    }
}

#[test]
fn the_driver_may_switch_off_completions_and_interrupts_of_errors() {
    let (mut driver, _) = copies(1, 64);
    driver.write(register::CHANCTRL, &[0, 0]);
    driver.arm("read-error");
    driver.issue(1);
    driver.work();
    assert_eq!(driver.status(), (0, Status::Halted as u64));
    assert_eq!(driver.rig.completion(), (0, 0));
    assert!(!driver.channel.take_signal());
}

#[test]
fn a_hung_channel_only_knows_reset() {
    let (mut driver, places) = copies(2, 4096);
    driver.arm("hang after=1");
    driver.issue(2);
    driver.work();
    assert!(driver.channel.is_hung());
    assert_eq!(driver.status(), (descriptor(0), Status::Active as u64));
    driver.command(chancmd::SUSPEND);
    assert_eq!(driver.status().1, Status::Active as u64);
    driver.command(chancmd::RESET);
    assert_eq!(driver.status(), (0, Status::Halted as u64));
    assert!(!arrived(&driver, places[1], 4096));
    driver.start(descriptor(1));
    driver.issue(1);
    driver.work();
    assert!(arrived(&driver, places[1], 4096));
}

#[test]
fn a_lost_interrupt_loses_nothing_else() {
    let (mut driver, places) = copies(2, 4096);
    driver.arm("lost-interrupt");
    driver.issue(1);
    driver.work();
    assert!(!driver.channel.take_signal());
    assert_eq!(
        driver.rig.completion(),
        (descriptor(0), Status::Done as u64)
    );
    assert!(arrived(&driver, places[0], 4096));
    driver.issue(2);
    driver.work();
    assert!(driver.channel.take_signal());
    assert_eq!(driver.channel.counters.lost_interrupts, 1);
}

#[test]
fn a_delayed_copy_is_late_as_a_whole() {
    let (mut driver, places) = copies(1, 4096);
    driver.arm("delay=250");
    driver.issue(1);
    let begin = driver.now;
    assert!(
        matches!(driver.channel.turn(begin), Turn::Later(time) if time == begin + Duration::from_millis(250))
    );
    assert!(!arrived(&driver, places[0], 4096));
    driver.now = begin + Duration::from_millis(249);
    assert!(matches!(driver.channel.turn(driver.now), Turn::Later(_)));
    // It can still be suspended and thrown away.
    driver.command(chancmd::SUSPEND);
    assert_eq!(driver.status().1, Status::Suspended as u64);
    driver.command(chancmd::RESUME);
    driver.now = begin + Duration::from_millis(250);
    driver.work();
    assert!(arrived(&driver, places[0], 4096));
}

#[test]
fn a_corrupted_byte_is_one_byte() {
    let (mut driver, places) = copies(2, 4096);
    driver.arm("corrupt");
    driver.issue(2);
    driver.work();
    let (from, to) = (
        driver.rig.get(places[0].0, 4096),
        driver.rig.get(places[0].1, 4096),
    );
    let wrong: Vec<_> = (0..4096).filter(|at| from[*at] != to[*at]).collect();
    assert_eq!(wrong, [2048]);
    assert!(arrived(&driver, places[1], 4096));
    assert_eq!(
        driver.status(),
        (descriptor(1), Status::Done as u64),
        "nobody says so"
    );
}

#[test]
fn what_is_not_memory_is_an_address_error() {
    let outside = BASE + LENGTH;
    for (operation, errors) in [
        (copy(outside - 8, DATA, 16), chanerr::SRC_ADDR),
        (copy(DATA, outside - 8, 16), chanerr::DEST_ADDR),
        (copy(0, DATA, 16), chanerr::SRC_ADDR),
        (copy(DATA, u64::MAX - 4, 16), chanerr::DEST_ADDR),
    ] {
        let mut driver = Driver::new();
        driver.rig.ring(RING, &[operation], 1);
        driver.issue(1);
        driver.work();
        assert_eq!(driver.channel.errors(), errors, "{operation:?}");
    }
}

#[test]
fn bad_chains_are_refused() {
    for (chain, errors) in [
        (RING + 8, chanerr::CHAIN_ADDR_VALUE),
        (BASE + LENGTH, chanerr::NEXT_ADDR),
        // Memory full of zeroes: a size of zero.
        (DATA, chanerr::LENGTH),
    ] {
        let mut driver = Driver::new();
        driver.start(chain);
        driver.issue(1);
        driver.work();
        assert_eq!(driver.channel.errors(), errors, "{chain:#x}");
        assert_eq!(driver.status(), (0, Status::Halted as u64));
    }
    let mut driver = Driver::new();
    let crooked = Descriptor {
        operation: Operation::Null,
        interrupt: false,
        completion: true,
        next: RING + 4,
    };
    driver.rig.put(RING, &crooked.encode());
    driver.issue(2);
    driver.work();
    assert_eq!(driver.channel.errors(), chanerr::NEXT_DESC_ALIGN);
    assert_eq!(driver.rig.completion(), (RING, Status::Halted as u64));
}

#[test]
fn a_completion_that_cannot_be_written_halts() {
    let (mut driver, _) = copies(1, 64);
    driver.write(register::CHANCMP, &0u64.to_le_bytes());
    driver.issue(1);
    driver.work();
    assert_eq!(driver.channel.errors(), chanerr::COMPLETION_ADDR);
    assert_eq!(driver.status().1, Status::Halted as u64);
}

#[test]
fn the_first_reader_claims_the_channel() {
    let mut driver = Driver::new();
    driver.write(register::CHANCTRL, &[0, 0]);
    assert_eq!(driver.read(register::CHANCTRL), [0, 0]);
    assert_eq!(driver.read(register::CHANCTRL), [0, 1]);
    driver.write(register::CHANCTRL, &[0, 0]);
    assert_eq!(driver.read(register::CHANCTRL), [0, 0]);
}

#[test]
fn any_access_is_survived() {
    use proptest::prelude::*;
    let write = (0u64..0x90, proptest::collection::vec(any::<u8>(), 1..9));
    proptest!(|(writes in proptest::collection::vec(write, 1..60))| {
        let (mut driver, _) = copies(2, 256);
        for (offset, data) in writes {
            driver.write(offset, &data);
            let mut seen = vec![0; data.len()];
            driver.channel.read(offset, &mut seen);
            for _ in 0..4 {
                driver.turn();
            }
        }
        driver.command(chancmd::RESET);
        driver.write(register::CHANERR, &[0xff; 4]);
        driver.start(RING);
        driver.issue(2);
        for _ in 0..4 {
            driver.turn();
        }
        prop_assert_eq!(driver.status(), (descriptor(1), Status::Done as u64));
    });
}
