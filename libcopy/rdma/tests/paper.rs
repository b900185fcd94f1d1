// SPDX-License-Identifier: MIT OR Apache-2.0

//! The counts of "Network-Assisted Noncontiguous Transfers for GPU-Aware MPI Libraries", exactly,
//! with the card in software: keys, bytes of keys in clear-to-send messages, WRITEs, and messages
//! for which nothing was mapped.

mod common;

use std::sync::Arc;

use libcopy_rdma::emulated::EmulatedEnd;
use libcopy_rdma::keys::{Keys, Memory};
use libcopy_rdma::pool::{Pool, PoolSize};
use libcopy_rdma::ranks::{self, Rank};
use libcopy_rdma::workloads::{applications, vector};
use libcopy_rdma::{
    Abilities, CutRule, Cuts, Elements, Error, Limits, Method, Shape, Thresholds, chunk_size, iovs,
    maximal_cuts,
};
use proptest::prelude::*;

const STABLE: Memory = Memory::Generation(0);

fn limits(max_iovs: usize) -> Limits {
    Limits {
        max_iovs,
        max_bytes: 1 << 31,
    }
}

#[test]
fn blocks_4096_at_4_per_key_are_1024_keys_and_4_kib_of_cts() {
    let layout = vector(4096, 512).unwrap();
    let (mut sender, mut receiver) = (
        common::rank(0, limits(4), 1024),
        common::rank(1, limits(4), 1024),
    );
    let first = ranks::message(&mut sender, &mut receiver, &layout, &layout, STABLE).unwrap();
    assert_eq!(
        (first.keys, first.cts_bytes, first.writes),
        (1024, 4096, 1024)
    );
    let again = ranks::message(&mut sender, &mut receiver, &layout, &layout, STABLE).unwrap();
    assert_eq!((again.keys, again.cts_bytes, again.writes), (0, 0, 1024));
    assert_eq!(receiver.keys().counts().mapped, 1024);
    assert_eq!(receiver.keys().counts().hits, 1);
}

#[test]
fn vectors_of_the_micro_benchmark() {
    const MAX_IOVS: usize = 16;
    for len in [1024, 2048, 4096] {
        for count in [16, 32, 64, 128] {
            let layout = vector(count, len).unwrap();
            let (mut sender, mut receiver) = (
                common::rank(0, limits(MAX_IOVS), 16),
                common::rank(1, limits(MAX_IOVS), 16),
            );
            let expected = count.div_ceil(MAX_IOVS as u64);
            for iteration in 1..=110 {
                let done =
                    ranks::message(&mut sender, &mut receiver, &layout, &layout, STABLE).unwrap();
                assert_eq!(done.writes, expected);
                let new = if iteration == 1 { expected } else { 0 };
                assert_eq!((done.keys, done.cts_bytes), (new, 4 * new), "{iteration}");
            }
            assert_eq!(sender.keys().counts().hits, 109);
            assert_eq!(receiver.keys().counts().hits, 109);
        }
    }
}

#[test]
fn fft_alltoallw_on_2_to_8_ranks() {
    let layout = vector(64, 1024).unwrap();
    for ranks in 2..=8_u32 {
        let mut all: Vec<Rank> = (0..ranks)
            .map(|rank| common::rank(rank, limits(16), 4 * 2 * ranks as usize))
            .collect();
        for round in 0..3 {
            for from in 0..ranks as usize {
                for to in 0..ranks as usize {
                    if from == to {
                        continue;
                    }
                    let (sender, receiver) = ranks::two(&mut all, from, to);
                    let done = ranks::message(sender, receiver, &layout, &layout, STABLE).unwrap();
                    assert_eq!(done.writes, 4);
                    assert_eq!(done.cts_bytes, if round == 0 { 16 } else { 0 });
                }
            }
        }
        // A buffer per peer and direction, of four keys each.
        for rank in &all {
            let counts = rank.keys().counts();
            assert_eq!(counts.mapped, 2 * 4 * u64::from(ranks - 1));
            assert_eq!(counts.hits, 2 * 2 * u64::from(ranks - 1));
            assert_eq!(counts.evictions, 0);
        }
    }
}

#[test]
fn applications_are_moved_as_in_the_paper() {
    let card = Abilities {
        sge: None,
        umr: Some(limits(64)),
    };
    for one in applications().unwrap() {
        let shape = Shape::of(&one.layout);
        let choice = Thresholds::default().choose(&shape, &shape, &card, CutRule::Agreed);
        assert_eq!(choice.method, one.expected, "{}", one.name);
        if choice.method == Method::Umr {
            assert_eq!(choice.windows, shape.blocks.div_ceil(64), "{}", one.name);
        }
    }
}

#[test]
fn a_receiver_tells_every_sender_once() {
    let layout = vector(64, 1024).unwrap();
    let mut receiver = common::rank(0, limits(16), 4);
    let buffer = receiver.shared_buffer(&layout);
    for rank in 1..=3 {
        let mut sender = common::rank(rank, limits(16), 4);
        for round in 0..2 {
            let done =
                ranks::message_into(&mut sender, &mut receiver, &layout, &layout, buffer, STABLE)
                    .unwrap();
            assert_eq!(done.cts_bytes, if round == 0 { 16 } else { 0 });
        }
    }
    // Mapped once, whichever rank sent.
    assert_eq!(receiver.keys().counts().mapped, 4);
}

#[test]
fn without_a_watch_every_message_maps_and_unmaps() {
    let layout = vector(32, 1024).unwrap();
    let (mut sender, mut receiver) = (common::rank(0, limits(8), 4), common::rank(1, limits(8), 4));
    for _ in 0..5 {
        let done = ranks::message(
            &mut sender,
            &mut receiver,
            &layout,
            &layout,
            Memory::Unwatched,
        )
        .unwrap();
        assert_eq!((done.keys, done.cts_bytes, done.writes), (4, 16, 4));
        assert_eq!(sender.card.live().mapped, 0);
        assert_eq!(receiver.card.live().mapped, 0);
    }
    assert_eq!(receiver.keys().counts().hits, 0);
}

#[test]
fn memory_that_was_replaced_is_mapped_again() {
    let layout = vector(32, 1024).unwrap();
    let (mut sender, mut receiver) = (
        common::rank(0, limits(8), 4),
        common::rank(1, limits(8), 16),
    );
    let generation = |number| Memory::Generation(number);
    let first =
        ranks::message(&mut sender, &mut receiver, &layout, &layout, generation(0)).unwrap();
    assert_eq!(first.cts_bytes, 16);
    let replaced =
        ranks::message(&mut sender, &mut receiver, &layout, &layout, generation(1)).unwrap();
    assert_eq!((replaced.keys, replaced.cts_bytes), (4, 16));
    // The sender was told, and the old keys came back when it had acknowledged.
    assert_eq!(receiver.keys().counts().evictions, 1);
    assert_eq!(receiver.card.live().mapped, 4);
}

fn end_of(rank: &Rank) -> Arc<EmulatedEnd> {
    EmulatedEnd::pair([&rank.card, &rank.card], 16, None)[0].clone()
}

#[test]
fn eviction_waits_for_the_ranks_that_have_the_keys() {
    let layout = vector(32, 1024).unwrap();
    // Room for one buffer of four keys.
    let rank = common::rank(1, limits(8), 4);
    let end = end_of(&rank);
    let mut keys = rank.keys();
    let cuts = Cuts::Every(8 * 1024);
    let buffers = [1_u64 << 20, 2 << 20].map(|base| Elements::new(&layout, base));
    // SAFETY: nobody is told of the keys, so that nothing is written.
    let map = |keys: &mut Keys<_>, index: usize| unsafe {
        keys.map(&*end, &buffers[index], &cuts, STABLE, Some(7))
    };
    let mapped = map(&mut keys, 0).unwrap();
    keys.finish(Some(&*end), mapped).unwrap();
    let exhausted = map(&mut keys, 1);
    assert_eq!(
        exhausted.unwrap_err(),
        Error::PoolExhausted {
            free: 0,
            total: 4,
            wanted: 4
        }
    );
    assert_eq!(rank.card.live().mapped, 4, "still the peer's");
    assert!(keys.take_forget(6).is_empty());
    let forget = keys.take_forget(7);
    assert_eq!(forget.len(), 1);
    keys.forgotten(&*end, 7, forget[0]).unwrap();
    assert_eq!(rank.card.live().mapped, 0);
    let mapped = map(&mut keys, 1).unwrap();
    assert_eq!(keys.announce(&*end, &mapped).unwrap().len(), 4);
    keys.finish(Some(&*end), mapped).unwrap();
}

#[test]
fn a_message_without_free_keys_is_packed_and_frees_some() {
    let layout = vector(32, 1024).unwrap();
    let (mut sender, mut receiver) = (
        common::rank(0, limits(8), 16),
        common::rank(1, limits(8), 4),
    );
    let buffers = [(); 2].map(|()| receiver.shared_buffer(&layout));
    let methods = [0, 1, 1, 0].map(|index| {
        let buffer = buffers[index];
        let done =
            ranks::message_into(&mut sender, &mut receiver, &layout, &layout, buffer, STABLE);
        let done = done.unwrap();
        assert!(done.right);
        done.method
    });
    let expected = [Method::Umr, Method::Pack, Method::Umr, Method::Pack];
    assert_eq!(methods, expected);
}

#[test]
fn a_peer_that_is_gone_keeps_no_key() {
    let layout = vector(32, 1024).unwrap();
    let rank = common::rank(1, limits(8), 4);
    let end = end_of(&rank);
    let mut keys = rank.keys();
    let elements = Elements::new(&layout, 1 << 20);
    for card in [Some(&*end), None] {
        let cuts = Cuts::Every(8 * 1024);
        // SAFETY: nobody is told of the keys, so that nothing is written.
        let mapped = unsafe { keys.map(&*end, &elements, &cuts, STABLE, Some(0)) }.unwrap();
        keys.finish(Some(&*end), mapped).unwrap();
        assert!(keys.evict(&*end).unwrap());
        assert_eq!(rank.card.live().mapped, 4);
        keys.rank_gone(card, 0).unwrap();
        let live = rank.card.live();
        assert_eq!((live.mapped, live.regions), (0, 0));
        // Without a connection that could unmap them, they are destroyed.
        assert_eq!(live.keys, if card.is_some() { 4 } else { 0 });
        assert!(keys.take_forget(0).is_empty());
    }
}

#[test]
fn a_key_that_cannot_be_mapped_costs_no_key() {
    let layout = vector(32, 1024).unwrap();
    let rank = common::rank(0, limits(8), 4);
    let end = end_of(&rank);
    let elements = Elements::new(&layout, 1 << 20);
    let mut keys = rank.keys();
    // SAFETY: nothing is sent out of the keys.
    let mut map =
        |cuts: &Cuts| unsafe { keys.map(&*end, &elements, cuts, STABLE, None) }.unwrap_err();
    // Cuts for a card with longer lists.
    let wrong = map(&Cuts::Every(16 * 1024));
    assert!(
        matches!(wrong, Error::TooManyIovs { found: 16, .. }),
        "{wrong}"
    );
    // The third key: registering is the first call.
    rank.card.fail_after(Some(3));
    map(&Cuts::Every(8 * 1024));
    let live = rank.card.live();
    assert_eq!((live.keys, live.mapped, live.regions), (4, 0, 0));
    assert_eq!(rank.pool.counts().free, 4);
}

#[test]
fn no_message_creates_a_key() {
    let card = libcopy_rdma::emulated::EmulatedCard::new(limits(8));
    let maker = card.clone();
    let main = std::thread::current().id();
    let later = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let armed = later.clone();
    let size = PoolSize {
        initial: 8,
        step: 8,
        max: 64,
    };
    let pool = Pool::new(size, move || {
        let is_armed = armed.load(std::sync::atomic::Ordering::SeqCst);
        assert!(!is_armed || std::thread::current().id() != main);
        Ok(maker.create())
    })
    .unwrap();
    later.store(true, std::sync::atomic::Ordering::SeqCst);
    let pool = Arc::new(pool);
    let [end, _] = EmulatedEnd::pair([&card, &card], 16, None);
    let mut keys = Keys::new(pool.clone());
    let layout = vector(32, 1024).unwrap();
    for buffer in 1..=4_u64 {
        // Four keys each: the second message leaves none free.
        let cuts = Cuts::Every(8 * 1024);
        let elements = Elements::new(&layout, buffer << 20);
        // SAFETY: nobody is told of the keys, so that nothing is written.
        let mapped = unsafe { keys.map(&*end, &elements, &cuts, STABLE, Some(1)) }.unwrap();
        keys.finish(Some(&*end), mapped).unwrap();
        pool.settle();
    }
    assert!(pool.counts().added >= 8);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Random pairs of layouts: with either rule both ends have as many windows, none is too long,
    /// and every byte arrives where unpacking the packed bytes puts it, and nowhere else.
    #[test]
    fn every_byte_goes_to_its_place(
        (from, to) in common::pairs(),
        max_iovs in 2_usize..9,
        max_bytes in prop_oneof![Just(1_u64 << 31), 1_u64..300],
    ) {
        let limits = Limits { max_iovs, max_bytes };
        for rule in [CutRule::Agreed, CutRule::Maximal] {
            let (mut sender, mut receiver) = (common::rank(0, limits, 4096), common::rank(1, limits, 4096));
            let done = ranks::message_by(&mut sender, &mut receiver, &from, &to, STABLE, rule).unwrap();
            prop_assert!(done.right);
            let shapes = [&from, &to].map(Shape::of);
            let csize = chunk_size(&shapes[0], &shapes[1], &limits);
            if rule == CutRule::Agreed {
                prop_assert_eq!(done.writes, shapes[0].bytes.div_ceil(csize));
            }
        }
    }

    /// No more windows than the paper's rule makes, and none that could have been longer.
    #[test]
    fn maximal_cuts_are_fewest((from, to) in common::pairs(), max_iovs in 2_usize..9) {
        let limits = limits(max_iovs);
        let lists = [&from, &to].map(|layout| iovs(layout, 1 << 40).unwrap());
        let bytes = from.size();
        let maximal = maximal_cuts(&lists[0], &lists[1], &limits).unwrap();
        let shapes = [&from, &to].map(Shape::of);
        let agreed = Cuts::Every(chunk_size(&shapes[0], &shapes[1], &limits));
        prop_assert!(maximal.count(bytes) <= agreed.count(bytes));
        // A naive oracle: the greatest length at which both ends have at most `max_iovs` pieces,
        // byte by byte.
        let mut naive = Vec::new();
        let (mut start, mut end) = (0, 0);
        while start < bytes {
            while end < bytes && lists.iter().all(|list| common::pieces(list, start, end + 1) <= max_iovs) {
                end += 1;
            }
            naive.push(end - start);
            start = end;
        }
        prop_assert_eq!(maximal.lengths(bytes).collect::<Vec<_>>(), naive);
    }
}
