// SPDX-License-Identifier: MIT OR Apache-2.0

//! Both ends of a link over cards in software, one step at a time: any order of steps, several
//! messages in both directions, peers that end, lose, double or damage control messages, and cards
//! whose calls fail. Whatever happens, no byte outside the elements changes, and no key and no
//! region is left behind.

mod common;

use std::sync::{Arc, Mutex};

use libcopy_datatype::{Datatype, Layout, Named};
use libcopy_rdma::channel::LocalChannel;
use libcopy_rdma::emulated::{EmulatedCard, EmulatedEnd};
use libcopy_rdma::gather::Buffer;
use libcopy_rdma::keys::{Keys, Memory};
use libcopy_rdma::pool::{Pool, PoolSize};
use libcopy_rdma::transfer::{Link, Report, Settings, TransferId};
use libcopy_rdma::workloads::vector;
use libcopy_rdma::{CutRule, Error, Limits, Method, Result};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

type TestLink = Link<LocalChannel, EmulatedEnd>;

/// One process.
struct End {
    card: Arc<EmulatedCard>,
    end: Arc<EmulatedEnd>,
    keys: Arc<Mutex<Keys<EmulatedEnd>>>,
    /// None once it has been dropped.
    link: Option<TestLink>,
    /// The transfer of each message that was started, and its result.
    started: Vec<(TransferId, Option<Result<Report>>)>,
}

/// How links are made.
#[derive(Clone, Copy)]
struct Way {
    limits: [Limits; 2],
    lists: Option<Limits>,
    settings: (Option<Method>, CutRule),
    queue: usize,
    keys: usize,
}

const LIMITS: Limits = Limits {
    max_iovs: 4,
    max_bytes: 1 << 20,
};

fn way(only: Option<Method>, rule: CutRule) -> Way {
    Way {
        limits: [LIMITS; 2],
        lists: Some(LIMITS),
        settings: (only, rule),
        queue: 16,
        keys: 24,
    }
}

fn ends(way: &Way) -> ([End; 2], LocalChannel) {
    let cards = way.limits.map(EmulatedCard::new);
    let both = EmulatedEnd::pair([&cards[0], &cards[1]], way.queue, way.lists);
    let channels = LocalChannel::pair();
    let network = channels[0].watch();
    let (only, rule) = way.settings;
    let settings = Settings {
        only,
        rule,
        ..Settings::default()
    };
    let made = cards.into_iter().zip(both).zip(channels).enumerate();
    let made: Vec<End> = made
        .map(|(side, ((card, end), channel))| {
            end.hold();
            let size = PoolSize {
                initial: way.keys,
                step: way.keys,
                max: way.keys,
            };
            let maker = card.clone();
            let pool = Pool::new(size, move || Ok(maker.create())).unwrap();
            let keys = Arc::new(Mutex::new(Keys::new(Arc::new(pool))));
            let shared = Some(keys.clone());
            End {
                link: Some(Link::over(
                    end.clone(),
                    channel,
                    1 - side as u32,
                    &settings,
                    shared,
                )),
                card,
                end,
                keys,
                started: Vec::new(),
            }
        })
        .collect();
    (made.try_into().ok().unwrap(), network)
}

impl End {
    /// One step of the link. Whether anything happened.
    fn progress(&mut self) -> bool {
        let Some(link) = &mut self.link else {
            return false;
        };
        let has_moved = link.progress().unwrap_or(false);
        for (id, result) in &mut self.started {
            if result.is_none() {
                *result = link.test(*id);
            }
        }
        has_moved
    }

    fn run_one(&mut self) -> bool {
        self.link.is_some() && self.end.run_one().unwrap_or(false)
    }

    fn start(&mut self, message: &mut Message, is_sender: bool) {
        let Some(link) = &mut self.link else { return };
        let (layout, bytes) = if is_sender {
            (&message.from, message.source.as_ptr() as u64)
        } else {
            (&message.to, message.target.as_mut_ptr() as u64)
        };
        let buffer = Buffer {
            layout,
            base: bytes.wrapping_add_signed(-layout.bounds().start),
            memory: message.memory,
        };
        // SAFETY: the message's memory is used by nobody else until both links have been dropped.
        let id = unsafe {
            if is_sender {
                link.start_send(&buffer)
            } else {
                link.start_receive(&buffer)
            }
        };
        if let Ok(id) = id {
            let at = if is_sender {
                &mut message.sent
            } else {
                &mut message.received
            };
            *at = Some(self.started.len());
            self.started.push((id, None));
        }
    }

    /// Has as many keys as it should, none of them mapped, and no region.
    fn assert_clean(self, context: &str) {
        let End {
            card, keys, link, ..
        } = self;
        drop(link);
        let mut keys = Arc::into_inner(keys).unwrap().into_inner().unwrap();
        let [end, _] = EmulatedEnd::pair([&card, &card], 4, None);
        card.fail_after(None);
        while keys.evict(&end).unwrap() {}
        let live = card.live();
        keys.pool().settle();
        assert_eq!((live.mapped, live.regions), (0, 0), "{context}");
        let free = keys.pool().counts().free;
        assert_eq!(card.live().keys, free, "{context}: keys");
        drop(keys);
        assert_eq!(card.live().keys, 0, "{context}");
    }
}

/// A message from one side to the other.
struct Message {
    sender: usize,
    from: Layout,
    to: Layout,
    source: Vec<u8>,
    target: Vec<u8>,
    memory: Memory,
    sent: Option<usize>,
    received: Option<usize>,
}

fn len(layout: &Layout) -> usize {
    (layout.bounds().end - layout.bounds().start) as usize
}

fn origin(layout: &Layout) -> isize {
    (-layout.bounds().start) as isize
}

impl Message {
    fn new(sender: usize, from: Layout, to: Layout, memory: Memory) -> Message {
        let source = (0..len(&from)).map(|index| (index * 7 + sender) as u8 | 1);
        Message {
            sender,
            source: source.collect(),
            target: vec![0; len(&to)],
            from,
            to,
            memory,
            sent: None,
            received: None,
        }
    }

    /// What the target is to be, given what it has now outside the elements.
    fn expected(&self, before: &[u8]) -> Vec<u8> {
        let mut packed = vec![0; self.from.size() as usize];
        self.from
            .pack(&self.source, origin(&self.from), &mut packed)
            .unwrap();
        // A message may be shorter than the receiver's layout.
        packed.resize(self.to.size() as usize, 0);
        let mut bytes = before.to_vec();
        self.to
            .unpack(&packed, &mut bytes, origin(&self.to))
            .unwrap();
        bytes
    }

    fn result<'a>(&self, ends: &'a [End; 2], is_sender: bool) -> Option<&'a Result<Report>> {
        let (side, index) = if is_sender {
            (self.sender, self.sent)
        } else {
            (1 - self.sender, self.received)
        };
        ends[side].started[index?].1.as_ref()
    }

    /// Nothing outside the receiver's elements has changed ever.
    fn check_outside(&self, context: &str) {
        let blank = vec![0; self.target.len()];
        let expected = self.expected(&blank);
        assert!(
            self.expected(&self.target) == expected,
            "{context}: a byte outside the elements"
        );
    }

    /// Besides, the bytes are right where the receiver says so.
    fn check(&self, ends: &[End; 2], context: &str) {
        self.check_outside(context);
        let expected = self.expected(&vec![0; self.target.len()]);
        if let Some(Ok(report)) = self.result(ends, false) {
            assert_eq!(report.bytes, self.from.size(), "{context}");
            assert!(self.target == expected, "{context}: {report:?}");
        }
    }
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Nothing,
    Lost,
    Doubled,
    Damaged,
    Ended,
    Failed,
}

const FAULTS: [Fault; 6] = [
    Fault::Nothing,
    Fault::Lost,
    Fault::Doubled,
    Fault::Damaged,
    Fault::Ended,
    Fault::Failed,
];

/// Steps in a random order until nothing moves any more.
fn run(
    ends: &mut [End; 2],
    messages: &mut [Message],
    network: &LocalChannel,
    fault: Fault,
    random: &mut impl FnMut(usize) -> usize,
) {
    // The messages that each side has not started to send and to receive.
    let mut next = [[0; 2]; 2];
    let mut fault_at = random(60);
    let mut idle = 0;
    while idle < 400 {
        let side = random(2);
        let has_moved = match random(5) {
            4 => {
                // Nobody watches the memory any more; it is what it was.
                if let Some(link) = &mut ends[side].link {
                    let _ = link.expire(0);
                }
                false
            }
            0 => {
                let is_sender = random(2) == 0;
                let from = if is_sender { side } else { 1 - side };
                let its = &mut next[side][usize::from(is_sender)];
                let found = messages.iter_mut().enumerate().skip(*its);
                let found = found.into_iter().find(|(_, its)| its.sender == from);
                match found {
                    Some((index, message)) => {
                        *its = index + 1;
                        ends[side].start(message, is_sender);
                        true
                    }
                    None => false,
                }
            }
            1 => ends[side].run_one(),
            _ => ends[side].progress(),
        };
        idle = if has_moved { 0 } else { idle + 1 };
        if fault_at > 0 {
            fault_at -= 1;
            continue;
        }
        let mut queues = network.queues();
        let queue = &mut queues[side];
        let has_happened = match fault {
            Fault::Nothing => true,
            Fault::Lost => queue.pop_back().is_some(),
            Fault::Doubled => match queue.back().cloned() {
                Some(last) => {
                    queue.push_back(last);
                    true
                }
                None => false,
            },
            Fault::Damaged => match queue.back_mut() {
                Some(last) => {
                    let at = random(last.len());
                    last[at] ^= 1 << random(8);
                    true
                }
                None => false,
            },
            Fault::Ended => {
                drop(queues);
                ends[side].link = None;
                true
            }
            Fault::Failed => {
                ends[side].card.fail_after(Some(random(3) as u32));
                true
            }
        };
        if has_happened {
            fault_at = usize::MAX;
        }
    }
}

fn random_case(seed: u64, fault: Fault) {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let pairs = common::pairs();
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    let mut random = move |below: usize| {
        // xorshift64*, Vigna 2016
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % below.max(1)
    };
    let only = [
        None,
        Some(Method::Pack),
        Some(Method::Sge),
        Some(Method::Umr),
    ][random(4)];
    let rule = [CutRule::Agreed, CutRule::Maximal][random(2)];
    let mut way = way(only, rule);
    way.limits[1].max_iovs = 2 + random(4);
    way.queue = 2 + random(30);
    let memory = [Memory::Unwatched, Memory::Generation(0)][random(2)];
    let mut messages: Vec<Message> = (0..1 + random(6))
        .map(|_| {
            let (from, to) = pairs.new_tree(&mut runner).unwrap().current();
            Message::new(random(2), from, to, memory)
        })
        .collect();
    let (mut ends, network) = ends(&way);
    run(&mut ends, &mut messages, &network, fault, &mut random);
    let context = format!("seed {seed}, {fault:?}, {only:?}, {rule:?}");
    for message in &messages {
        match fault {
            // One whose RTS is damaged may be another.
            Fault::Damaged => message.check_outside(&context),
            _ => message.check(&ends, &context),
        }
        if fault == Fault::Nothing {
            for is_sender in [true, false] {
                let result = message.result(&ends, is_sender);
                assert!(matches!(result, Some(Ok(_))), "{context}: {result:?}");
            }
        }
    }
    if fault == Fault::Nothing {
        assert!(
            ends.iter()
                .all(|end| end.link.as_ref().unwrap().under_way() == 0),
            "{context}"
        );
    }
    // One end after the other: the second one has an error then for whatever is under way.
    ends[0].link = None;
    for _ in 0..3 {
        ends[1].progress();
    }
    let is_settled = ends[1].started.iter().all(|(_, result)| result.is_some());
    // One that was dropped gives no results any more.
    let is_dropped = ends[1].link.is_none();
    assert!(
        is_settled || is_dropped,
        "{context}: a transfer without a result"
    );
    for end in ends {
        end.assert_clean(&context);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]

    #[test]
    fn any_order_of_steps(seed in any::<u64>(), fault in 0..FAULTS.len()) {
        random_case(seed, FAULTS[fault]);
    }
}

/// A CTS for keys that comes a second time, where keys can be had the second time only: the FIN of
/// the second is not that of the packing that the receiver offers after the first.
#[test]
fn a_doubled_cts_ends_the_link() {
    random_case(12_232_077_643_723_856_332, Fault::Doubled);
}

/// Progress on both sides, requests at once, until nothing moves.
fn settle(ends: &mut [End; 2]) {
    let mut has_moved = true;
    while has_moved {
        has_moved = false;
        for end in ends.iter_mut() {
            has_moved |= end.progress();
            has_moved |= end.run_one();
        }
    }
}

fn one_message(memory: Memory) -> Message {
    // Ten pieces of 24 bytes: three windows of four.
    let layout = vector(10, 24).unwrap();
    Message::new(0, layout.clone(), layout, memory)
}

/// Each call of either card fails once; each end ends after each step.
#[test]
fn errors_at_every_point_leave_nothing() {
    for method in Method::ALL {
        for side in 0..2 {
            let (mut failures, mut refused) = (0, 0);
            for call in 0.. {
                let (mut ends, _network) = ends(&way(Some(method), CutRule::Agreed));
                let mut message = one_message(Memory::Unwatched);
                ends[side].card.fail_after(Some(call));
                ends[1].start(&mut message, false);
                ends[0].start(&mut message, true);
                settle(&mut ends);
                let context = format!("{method}, call {call} of side {side}");
                message.check(&ends, &context);
                let results = [true, false].map(|is_sender| message.result(&ends, is_sender));
                let has_failed = results.iter().any(|its| !matches!(its, Some(Ok(_))));
                failures += u32::from(has_failed);
                // An end that cannot even pack has told the other one, which does not wait.
                let is_local = |its: &Option<&_>| matches!(its, Some(Err(Error::Register { .. })));
                if results.iter().any(is_local) {
                    let is_told =
                        |its: &Option<&_>| matches!(its, Some(Err(Error::Refused { .. })));
                    assert!(results.iter().any(is_told), "{context}: {results:?}");
                    refused += 1;
                }
                // The last of all calls has been passed when none fails.
                let is_over = ends[side].card.fail_left().is_some();
                ends[1 - side].link = None;
                for end in ends {
                    end.assert_clean(&context);
                }
                if is_over {
                    break;
                }
            }
            assert!(method == Method::Pack || failures > 0, "{method} {side}");
            assert!(method != Method::Pack || refused > 0, "{method} {side}");
        }
        for side in 0..2 {
            for steps in 0..12 {
                let (mut ends, _network) = ends(&way(Some(method), CutRule::Agreed));
                let mut message = one_message(Memory::Generation(1));
                ends[1].start(&mut message, false);
                ends[0].start(&mut message, true);
                for step in 0..steps {
                    ends[step % 2].progress();
                    ends[step % 2].run_one();
                }
                ends[side].link = None;
                settle(&mut ends);
                let context = format!("{method}, side {side} after {steps} steps");
                message.check(&ends, &context);
                let its = message.result(&ends, side == 1);
                assert!(its.is_some(), "{context}: no result");
                for end in ends {
                    end.assert_clean(&context);
                }
            }
        }
    }
}

/// What a message has left for the next one: for the same memory it is used, for other memory it is
/// not, and a generation that has ended has nothing left.
#[test]
fn keys_and_regions_are_kept_for_a_generation() {
    for method in [Method::Sge, Method::Umr] {
        let (mut ends, _network) = ends(&way(Some(method), CutRule::Agreed));
        let mut message = one_message(Memory::Generation(1));
        let mut is_kept = |ends: &mut [End; 2], generation| {
            message.memory = Memory::Generation(generation);
            message.target.fill(0);
            ends[1].start(&mut message, false);
            ends[0].start(&mut message, true);
            settle(ends);
            message.check(ends, method.name());
            [true, false].map(|is_sender| {
                let report = *message.result(ends, is_sender).unwrap().as_ref().unwrap();
                assert_eq!((report.method, report.fell_back), (method, false));
                report.is_kept
            })
        };
        assert_eq!(is_kept(&mut ends, 1), [false; 2]);
        assert_eq!(is_kept(&mut ends, 1), [true; 2]);
        assert_eq!(is_kept(&mut ends, 2), [false; 2], "{method}: other memory");
        assert_eq!(is_kept(&mut ends, 2), [true; 2]);
        let live = ends.each_ref().map(|end| end.card.live().regions);
        assert_eq!(live, [1, 1], "{method}: what was there before is gone");
        for end in &mut ends {
            let link = end.link.as_mut().unwrap();
            link.expire(1).unwrap();
            link.expire(2).unwrap();
        }
        // The peer is told by a step that moves nothing.
        settle(&mut ends);
        settle(&mut ends);
        for end in &ends {
            let live = end.card.live();
            assert_eq!((live.mapped, live.regions), (0, 0), "{method}");
        }
        assert_eq!(is_kept(&mut ends, 2), [false; 2]);
        for end in ends {
            end.assert_clean(method.name());
        }
    }
}

/// A generation that ends during a message changes nothing for that message.
#[test]
fn a_generation_ends_during_a_message() {
    for method in [Method::Sge, Method::Umr] {
        for steps in 0..12 {
            let (mut ends, _network) = ends(&way(Some(method), CutRule::Agreed));
            let mut message = one_message(Memory::Generation(1));
            ends[1].start(&mut message, false);
            ends[0].start(&mut message, true);
            for step in 0..steps {
                ends[step % 2].progress();
                ends[step % 2].run_one();
            }
            for end in &mut ends {
                end.link.as_mut().unwrap().expire(1).unwrap();
            }
            settle(&mut ends);
            let context = format!("{method} after {steps} steps");
            message.check(&ends, &context);
            assert!(
                matches!(message.result(&ends, false), Some(Ok(_))),
                "{context}"
            );
            for end in ends {
                end.assert_clean(&context);
            }
        }
    }
}

/// Memory that is kept makes room for that of a message, which is not packed.
#[test]
fn what_is_kept_gives_way_to_the_limit_of_locked_memory() {
    for method in [Method::Sge, Method::Umr] {
        for side in 0..2 {
            let (mut ends, _network) = ends(&way(Some(method), CutRule::Agreed));
            let mut messages = [1, 2].map(|generation| one_message(Memory::Generation(generation)));
            let mut reports = Vec::new();
            for message in &mut messages {
                ends[1].start(message, false);
                ends[0].start(message, true);
                settle(&mut ends);
                message.check(&ends, method.name());
                reports.push(*message.result(&ends, side == 0).unwrap().as_ref().unwrap());
                // The next call of this end's card registers the next message.
                ends[side].card.fail_after(Some(0));
            }
            let fell_back = reports.iter().map(|report| report.fell_back);
            assert_eq!(fell_back.collect::<Vec<_>>(), [false; 2], "{method} {side}");
            assert_eq!(ends[side].card.live().regions, 1, "{method} {side}");
        }
    }
}

/// Both ends send first, several at a time, with fewer requests in the queue than the messages
/// take.
#[test]
fn both_ends_send_first_and_queues_are_short() {
    for method in Method::ALL {
        let mut way = way(Some(method), CutRule::Agreed);
        way.queue = 4;
        way.keys = 64;
        let (mut ends, _network) = ends(&way);
        let mut messages: Vec<Message> = (0..10)
            .map(|index| Message {
                sender: index % 2,
                ..one_message(Memory::Unwatched)
            })
            .collect();
        for message in &mut messages {
            let sender = message.sender;
            ends[sender].start(message, true);
        }
        settle(&mut ends);
        for message in &mut messages {
            let receiver = 1 - message.sender;
            ends[receiver].start(message, false);
        }
        settle(&mut ends);
        for message in &messages {
            message.check(&ends, method.name());
            for is_sender in [true, false] {
                let report = *message.result(&ends, is_sender).unwrap().as_ref().unwrap();
                assert_eq!((report.method, report.fell_back), (method, false));
            }
        }
        for end in ends {
            end.assert_clean(method.name());
        }
    }
}

/// Cards with lists of different lengths: windows are those of the shorter.
#[test]
fn ends_with_different_limits_agree() {
    for method in [Method::Sge, Method::Umr] {
        for short in 0..2 {
            let mut way = way(Some(method), CutRule::Agreed);
            way.limits[short].max_iovs = 2;
            way.lists = Some(Limits {
                max_iovs: 2,
                ..LIMITS
            });
            let (mut ends, _network) = ends(&way);
            let mut message = one_message(Memory::Unwatched);
            ends[1].start(&mut message, false);
            ends[0].start(&mut message, true);
            settle(&mut ends);
            message.check(&ends, method.name());
            let report = *message.result(&ends, true).unwrap().as_ref().unwrap();
            assert_eq!((report.method, report.requests), (method, 5));
        }
    }
}

/// A message may be shorter than the receiver's layout, and not longer.
#[test]
fn shorter_messages_fit_and_longer_ones_are_refused() {
    let byte = Datatype::named(Named::Uint8);
    for method in Method::ALL {
        for (bytes, is_right) in [(0, true), (100, true), (240, true), (241, false)] {
            let (mut ends, _network) = ends(&way(Some(method), CutRule::Agreed));
            let from = Layout::new(&byte, bytes).unwrap();
            let mut message = Message::new(0, from, vector(10, 24).unwrap(), Memory::Unwatched);
            ends[0].start(&mut message, true);
            ends[1].start(&mut message, false);
            settle(&mut ends);
            for is_sender in [true, false] {
                let result = message.result(&ends, is_sender).unwrap();
                let size = Error::Size {
                    sender: bytes,
                    receiver: 240,
                };
                match result {
                    Ok(report) => assert_eq!(report.bytes, bytes),
                    Err(error) => assert_eq!(*error, size),
                }
                assert_eq!(result.is_ok(), is_right, "{method} {bytes}");
            }
            message.check(&ends, method.name());
            // The link is as good as before.
            let mut again = one_message(Memory::Unwatched);
            ends[0].start(&mut again, true);
            ends[1].start(&mut again, false);
            settle(&mut ends);
            assert!(matches!(again.result(&ends, false), Some(Ok(_))));
        }
    }
}

fn buffer(layout: &Layout, bytes: *const u8) -> Buffer<'_> {
    Buffer {
        layout,
        base: bytes as u64,
        memory: Memory::Unwatched,
    }
}

/// The caller carries the RTS, in another order than messages were started.
#[test]
fn messages_that_the_caller_matches() {
    let (mut ends, _network) = ends(&way(Some(Method::Umr), CutRule::Agreed));
    let mut messages = [24_u64, 16, 8].map(|len| {
        let layout = vector(10, len).unwrap();
        Message::new(0, layout.clone(), layout, Memory::Unwatched)
    });
    let mut rts = Vec::new();
    for message in &mut messages {
        let from = buffer(&message.from, message.source.as_ptr());
        let link = ends[0].link.as_mut().unwrap();
        // SAFETY: the messages are used by nobody else until the links have been dropped.
        let (id, bytes) = unsafe { link.start_matched_send(&from).unwrap() };
        assert!(bytes.len() <= libcopy_rdma::message::MAX_RTS);
        message.sent = Some(ends[0].started.len());
        ends[0].started.push((id, None));
        rts.push(bytes);
    }
    for index in [2, 0, 1] {
        let message = &mut messages[index];
        let to = buffer(&message.to, message.target.as_mut_ptr());
        let link = ends[1].link.as_mut().unwrap();
        // SAFETY: as above.
        let id = unsafe { link.start_matched_receive(&to, &rts[index]).unwrap() };
        message.received = Some(ends[1].started.len());
        ends[1].started.push((id, None));
    }
    settle(&mut ends);
    for message in &messages {
        message.check(&ends, "matched");
        assert!(matches!(message.result(&ends, false), Some(Ok(_))));
    }
    // An RTS whose number is under way, and what is none, end the link.
    let to = buffer(&messages[0].to, messages[0].target.as_ptr());
    let link = ends[1].link.as_mut().unwrap();
    // SAFETY: as above.
    let error = unsafe {
        link.start_matched_receive(&to, &rts[0]).unwrap();
        link.start_matched_receive(&to, &rts[0]).unwrap_err()
    };
    assert!(matches!(error, Error::Corrupt { .. }), "{error}");
    assert_eq!(link.progress(), Err(error));
    for end in ends {
        end.assert_clean("matched");
    }
}
