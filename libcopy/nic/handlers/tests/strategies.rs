// SPDX-License-Identifier: MIT OR Apache-2.0

//! Every strategy, packets in random orders, random datatypes: the bytes of `Layout::unpack`, and
//! the same DMA writes.
//!
//! `NIC_CASES=1000000 cargo test --release -p libcopy-nic-handlers --test strategies` is the long
//! run.

mod random;

use std::collections::BTreeSet;

use libcopy_datatype::{Datatype, Layout, Segment as Piece};
use libcopy_nic_handlers::{
    Initiator, Nic, Packet, Segment, Specialised, checkpoints, completion, local, nearest,
    pack_and_put, process_put, read_only, read_write, seek, streaming_puts,
};
use libcopy_walk::{Image, Tree};
use random::{Random, datatype};

/// One DMA write: bytes from the origin of the buffer, bytes into the packet, length.
type Write = (i32, u32, u32);

/// A card that keeps its commands.
#[derive(Default)]
struct Card {
    writes: Vec<Write>,
    events: usize,
    puts: Vec<(i32, u32, u32, bool)>,
}

impl Nic for Card {
    fn dma_to_host(&mut self, host: i32, packet: u32, len: u32) {
        self.writes.push((host, packet, len));
    }

    fn dma_event(&mut self) {
        self.events += 1;
    }

    fn stream_put(&mut self, host: i32, position: u32, len: u32, is_end: bool) {
        self.puts.push((host, position, len, is_end));
    }
}

fn cases() -> u64 {
    match std::env::var("NIC_CASES") {
        Ok(text) => text.parse().expect("NIC_CASES is not a number"),
        Err(_) => 2000,
    }
}

/// All handlers of packets that are received.
const KINDS: [&str; 9] = [
    "RO-CP",
    "RW-CP",
    "contiguous",
    "indexed",
    "indexed-block",
    "local",
    "seek",
    "struct",
    "vector",
];

/// The handler of a strategy of [`Message::strategies`].
fn kind(strategy: &str) -> &str {
    strategy.split(" with").next().unwrap_or_default()
}

struct Message {
    words: Vec<u32>,
    layout: Layout,
    /// In the order in which they arrive.
    packets: Vec<Packet>,
    /// Bytes of each but the last.
    payload: u32,
}

fn message(datatype: &Datatype, count: u64, random: &mut Random) -> Message {
    let layout = Layout::new(datatype, count).unwrap();
    let payload = 1 + random.below(layout.size() / 2 + 2) as u32;
    let mut message = Message::new(layout, payload);
    let packets = &mut message.packets;
    // In order, nearly in order, or any order; the completion comes last in any case.
    let swaps = packets.len() as u64 * random.below(3) / 2;
    for _ in 0..swaps {
        let (one, other) = (
            random.below(packets.len() as u64),
            random.below(packets.len() as u64),
        );
        packets.swap(one as usize, other as usize);
    }
    message
}

impl Message {
    /// In packets of `payload` bytes, in order.
    fn new(layout: Layout, payload: u32) -> Message {
        let size = layout.size() as u32;
        let packets = (0..size.div_ceil(payload)).map(|i| Packet {
            position: i * payload,
            len: payload.min(size - i * payload),
        });
        Message {
            words: layout.image().unwrap(),
            packets: packets.collect(),
            layout,
            payload,
        }
    }

    fn image(&self) -> Image<'_> {
        Image::check(&self.words).unwrap()
    }

    /// The writes of each packet in order of arrival.
    fn handled(&self, mut handler: impl FnMut(Packet, &mut Card)) -> Vec<Vec<Write>> {
        self.packets
            .iter()
            .map(|packet| {
                let mut card = Card::default();
                handler(*packet, &mut card);
                assert!(card.events == 0 && card.puts.is_empty());
                card.writes
            })
            .collect()
    }

    /// The pieces that the layout's list of segments gives, cut where packets end.
    fn expected(&self) -> Vec<Vec<Write>> {
        let segments: Vec<Piece> = self.layout.segments().collect();
        let mut starts = vec![0];
        for segment in &segments {
            starts.push(starts[starts.len() - 1] + segment.len);
        }
        let of = |packet: &Packet| {
            let (low, high) = (
                u64::from(packet.position),
                u64::from(packet.position + packet.len),
            );
            let mut writes = Vec::new();
            for (segment, start) in segments.iter().zip(&starts) {
                let (from, to) = (low.max(*start), high.min(start + segment.len));
                if from < to {
                    let host = segment.offset + (from - start) as i64;
                    writes.push((host as i32, (from - low) as u32, (to - from) as u32));
                }
            }
            writes
        };
        self.packets.iter().map(of).collect()
    }

    /// Every strategy by name, with the writes of its handlers.
    fn strategies(&self, random: &mut Random) -> Vec<(String, Vec<Vec<Write>>)> {
        let image = self.image();
        let mut all = Vec::new();
        if let Some(handler) = Specialised::of(image) {
            let writes = self.handled(|packet, card| handler.payload(image, packet, card));
            all.push((handler.name().to_owned(), writes));
        } else if let Some(handler) = Specialised::of_root(image) {
            let writes = self.handled(|packet, card| handler.payload(image, packet, card));
            all.push((format!("{} with any member", handler.name()), writes));
        }
        all.push((
            "seek".to_owned(),
            self.handled(|packet, card| seek(image, packet, card)),
        ));
        // Blocked round robin with an interval of 1 packet.
        let hpus = 1 + random.below(5) as usize;
        let mut segments = vec![Segment::start(image); hpus];
        let writes = self.handled(|packet, card| {
            let hpu = (packet.position / self.payload) as usize % hpus;
            local(image, &mut segments[hpu], packet, card);
        });
        all.push((format!("local with {hpus}"), writes));
        // An interval of some whole packets, and one that is no multiple of a packet.
        let interval = self.payload * (1 + random.below(4) as u32);
        for interval in [interval, interval / 2 + 1] {
            let kept: Vec<Segment> = checkpoints(image, interval).collect();
            assert_eq!(kept.len() as u32, (image.size() as u32).div_ceil(interval));
            let writes =
                self.handled(|packet, card| read_only(image, &kept, interval, packet, card));
            all.push((format!("RO-CP with {interval}"), writes));
        }
        let masters: Vec<Segment> = checkpoints(image, interval).collect();
        let mut owned = masters.clone();
        let mut last = vec![0; masters.len()];
        let writes = self.handled(|packet, card| {
            let own = nearest(masters.len(), interval, packet.position);
            let (segment, master) = (&mut owned[own], &masters[own]);
            let is_reverted = read_write(image, segment, master, packet, card);
            // Only a packet that comes after a later one of its interval reverts.
            assert_eq!(is_reverted, packet.position < last[own]);
            last[own] = packet.position + packet.len;
        });
        all.push((format!("RW-CP with {interval}"), writes));
        all
    }
}

/// Carries out the writes, and compares with `Layout::unpack`.
fn unpacked(message: &Message, writes: &[Vec<Write>]) {
    let bounds = message.layout.bounds();
    let origin = -bounds.start as isize;
    let len = (bounds.end - bounds.start) as usize;
    let packed: Vec<u8> = (0..message.layout.size())
        .map(|i| (i * 7 + i / 256) as u8)
        .collect();
    let mut expected = vec![0xee; len];
    message
        .layout
        .unpack(&packed, &mut expected, origin)
        .unwrap();
    let mut buffer = vec![0xee; len];
    for (packet, writes) in message.packets.iter().zip(writes) {
        for (host, at, len) in writes {
            let from = (packet.position + at) as usize;
            let to = (i64::from(*host) - bounds.start) as usize;
            buffer[to..to + *len as usize].copy_from_slice(&packed[from..from + *len as usize]);
        }
    }
    assert_eq!(buffer, expected);
}

#[test]
fn all_strategies_write_what_unpack_writes() {
    let mut random = Random(0x51c);
    let mut names = BTreeSet::new();
    let mut received = 0;
    for case in 0..cases() {
        let datatype = datatype(&mut random);
        let message = message(&datatype, 1 + random.below(4), &mut random);
        let expected = message.expected();
        for (name, writes) in message.strategies(&mut random) {
            let text = datatype.expression();
            assert_eq!(writes, expected, "case {case}, {name}, {text}");
            names.insert(kind(&name).to_owned());
        }
        if message.layout.form().is_disjoint() {
            // A layout with a byte in two pieces cannot be received in any order.
            unpacked(&message, &expected);
            received += 1;
        }
    }
    assert!(received > cases() / 2, "{received} messages were received");
    // The random types have a handler of each kind.
    assert!(names.iter().eq(KINDS), "{names:?}");
}

/// For Miri, which interprets: each handler with some packets of a small message, the second packet
/// the last.
#[test]
fn each_handler_receives_a_small_message() {
    let mut names = BTreeSet::new();
    for (expression, payload) in [
        ("contiguous(5, double)", 9),
        ("vector(6, 1, 2, double)", 11),
        ("indexed_block(2, [0, 5, 3, 9], int)", 7),
        ("indexed([3, 1, 2], [0, 5, 9], int)", 5),
        (
            "struct([1, 1], [0, 90], [vector(3, 1, 2, int), indexed([2, 1], [0, 4], double)])",
            8,
        ),
        (
            "struct([1, 1], [0, 90], [hvector(2, 1, 40, vector(2, 1, 2, int)), int])",
            6,
        ),
    ] {
        let layout = Layout::new(&expression.parse().unwrap(), 1).unwrap();
        let size = layout.size() as u32;
        let mut message = Message::new(layout, payload);
        let packets = message.packets.len();
        assert!((4..9).contains(&packets), "{packets} packets");
        message.packets.swap(1, packets - 1);
        let expected = message.expected();
        for (name, writes) in message.strategies(&mut Random(size.into())) {
            assert_eq!(writes, expected, "{name}, {expression}");
            names.insert(kind(&name).to_owned());
        }
        let mut card = Card::default();
        process_put(message.image(), message.packets[0], &mut card);
        let [first, ..] = expected[0][..] else {
            panic!("{expression}")
        };
        let (host, position, len, _) = card.puts[0];
        assert_eq!((host, position, len), first);
    }
    assert!(names.iter().eq(KINDS), "{names:?}");
}

/// A host that keeps what it sends.
#[derive(Default)]
struct Host {
    copies: Vec<Write>,
    put: Option<u32>,
    puts: Vec<(i32, u32, u32, bool)>,
}

impl Initiator for Host {
    fn copy(&mut self, host: i32, packed: u32, len: u32) {
        self.copies.push((host, packed, len));
    }

    fn put(&mut self, len: u32) {
        assert!(self.put.is_none());
        self.put = Some(len);
    }

    fn stream_put(&mut self, host: i32, position: u32, len: u32, is_end: bool) {
        self.puts.push((host, position, len, is_end));
    }
}

#[test]
fn what_is_sent_is_the_packed_stream() {
    let mut random = Random(0x5e4d);
    for _ in 0..cases() {
        let datatype = datatype(&mut random);
        let message = message(&datatype, 1 + random.below(3), &mut random);
        let image = message.image();
        let size = image.size() as u32;
        let mut whole: Vec<Write> = Vec::new();
        for segment in message.layout.segments() {
            let at = whole.last().map_or(0, |(_, at, len)| at + len);
            whole.push((segment.offset as i32, at, segment.len as u32));
        }
        let mut host = Host::default();
        pack_and_put(image, &mut host);
        assert_eq!((&host.copies, host.put), (&whole, Some(size)));
        streaming_puts(image, &mut host);
        let ends = |(host, at, len): &Write| (*host, *at, *len, at + len == size);
        if size > 0 {
            let expected: Vec<_> = whole.iter().map(ends).collect();
            assert_eq!(host.puts, expected);
        }
        assert!(host.puts.last().is_some_and(|put| put.3));
        // Packets in any order, each with its part.
        let mut card = Card::default();
        for packet in &message.packets {
            process_put(image, *packet, &mut card);
        }
        card.puts.sort_by_key(|put| put.1);
        let mut expected = Vec::new();
        for (packet, writes) in message.packets.iter().zip(message.expected()) {
            let moved = |(host, at, len): &Write| ends(&(*host, at + packet.position, *len));
            expected.extend(writes.iter().map(moved));
        }
        expected.sort_by_key(|put| put.1);
        assert_eq!(card.puts, expected);
        assert!(card.writes.is_empty() && card.events == 0);
    }
}

#[test]
fn the_completion_handler_issues_the_only_event() {
    let mut card = Card::default();
    completion(&mut card);
    assert_eq!((card.events, card.writes.len(), card.puts.len()), (1, 0, 0));
}

#[test]
fn a_message_without_data_is_sent_as_one() {
    let words = "contiguous(0,int)".parse::<Datatype>().unwrap();
    let words = Layout::new(&words, 1).unwrap().image().unwrap();
    let image = Image::check(&words).unwrap();
    assert!(Specialised::of(image).is_none());
    assert_eq!(checkpoints(image, 64).count(), 0);
    let mut host = Host::default();
    streaming_puts(image, &mut host);
    assert_eq!(host.puts, [(0, 0, 0, true)]);
    let mut card = Card::default();
    seek(
        image,
        Packet {
            position: 0,
            len: 0,
        },
        &mut card,
    );
    process_put(
        image,
        Packet {
            position: 0,
            len: 0,
        },
        &mut card,
    );
    assert_eq!(card.puts, [(0, 0, 0, true)]);
    assert!(card.writes.is_empty());
}
