// SPDX-License-Identifier: MIT OR Apache-2.0

//! Regions: rights, pieces, limits, owners.

use std::os::fd::AsFd;

use crate::abi::*;
use crate::device::Device;
use crate::harness::{Context, Outcome};
use crate::kernel::Stats;
use crate::rng::{Rng, pattern};
use crate::sys::{Child, Map, PAGE, SharedCounters, in_child};
use crate::{check, check_eq, check_err, tests};

tests!(region:
    rights, no_right, read_only_memory, no_access_memory, not_mapped, piece_counts,
    too_long, empty, info_describes, random_pieces(120), thousand_pieces, same_page_twice,
    ids_are_not_soon_reused, replaces, only_the_owner_destroys, max_regions,
    many_regions_of_one_page, failed_create_leaves_nothing,
);

fn rights(_: &Context) -> Outcome {
    let (device, key) = Device::domain()?;
    let map = Map::filled(PAGE, 1)?;
    let read = device.share(&map, RIGHT_READ)?;
    let write = device.share(&map, RIGHT_WRITE)?;
    let both = device.share(&map, RIGHT_READ | RIGHT_WRITE)?;
    in_child(|| {
        for peer in [&Device::member(key)?, &device] {
            let buffer = Map::filled(PAGE, 2)?;
            let piece = [buffer.piece()];
            let copy = |id, flag| peer.copy(id, flag, 0, 64, &piece);
            check_eq!(copy(read, COPY_FROM_REGION)?, 64);
            check_err!(copy(read, COPY_TO_REGION), EACCES);
            check_err!(copy(write, COPY_FROM_REGION), EACCES);
            check_eq!(copy(write, COPY_TO_REGION)?, 64);
            check_eq!(copy(both, COPY_FROM_REGION)?, 64);
            check_eq!(copy(both, COPY_TO_REGION)?, 64);
            // Rights are checked before the length is: not even an empty copy.
            check_err!(peer.copy(read, COPY_TO_REGION, 0, 0, &[]), EACCES);
            let range = [Piece { base: 0, len: 8 }];
            let vectored = |id, flag| peer.copy_ranges(id, flag, 0, 8, &range, &piece);
            check_eq!(vectored(read, COPY_FROM_REGION)?, 8);
            check_err!(vectored(read, COPY_TO_REGION), EACCES);
            check_err!(vectored(write, COPY_FROM_REGION), EACCES);
            check_eq!(vectored(write, COPY_TO_REGION)?, 8);
            check_eq!(peer.region_info(read)?.rights, RIGHT_READ);
            check_eq!(peer.region_info(write)?.rights, RIGHT_WRITE);
            check_eq!(peer.region_info(both)?.rights, RIGHT_READ | RIGHT_WRITE);
        }
        Ok(())
    })
}

fn no_right(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let map = Map::anon(PAGE)?;
    check_err!(device.publish(&[map.piece()], 0), EINVAL);
    Ok(())
}

fn read_only_memory(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let map = Map::filled(3 * PAGE, 1)?;
    map.protect(0, 3 * PAGE, libc::PROT_READ)?;
    let id = device.share(&map, RIGHT_READ)?;
    check_eq!(device.fetch(id, 3 * PAGE)?, pattern(1, 3 * PAGE));
    check_err!(device.publish(&[map.piece()], RIGHT_WRITE), EACCES);
    check_err!(
        device.publish(&[map.piece()], RIGHT_READ | RIGHT_WRITE),
        EACCES
    );
    // One read-only piece among writable ones is enough.
    let writable = Map::anon(PAGE)?;
    let pieces = [writable.piece(), map.part(PAGE, 1), writable.piece()];
    check_err!(device.publish(&pieces, RIGHT_WRITE), EACCES);
    // Never touched, so it is the zero page: it can be read, too.
    let zero = Map::new(
        PAGE,
        libc::PROT_READ,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        None,
        0,
    )?;
    let id = device.share(&zero, RIGHT_READ)?;
    check_eq!(device.fetch(id, PAGE)?, vec![0; PAGE]);
    // A constant of the program.
    static CONSTANT: [u8; 5000] = [0xab; 5000];
    let piece = Piece {
        base: CONSTANT.as_ptr() as u64,
        len: 5000,
    };
    let id = device.publish(&[piece], RIGHT_READ)?.id;
    check_eq!(device.fetch(id, 5000)?, CONSTANT);
    check_err!(device.publish(&[piece], RIGHT_WRITE), EACCES);
    Ok(())
}

fn no_access_memory(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let map = Map::filled(PAGE, 1)?;
    map.protect(0, PAGE, libc::PROT_NONE)?;
    check_err!(device.publish(&[map.piece()], RIGHT_READ), EACCES);
    check_err!(device.publish(&[map.piece()], RIGHT_WRITE), EACCES);
    Ok(())
}

fn not_mapped(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let map = Map::anon(5 * PAGE)?;
    map.unmap(2 * PAGE, PAGE)?;
    check_err!(device.publish(&[map.piece()], RIGHT_READ), EFAULT);
    check_err!(
        device.publish(&[map.part(2 * PAGE, PAGE)], RIGHT_READ),
        EFAULT
    );
    check_err!(
        device.publish(&[map.part(2 * PAGE - 1, 2)], RIGHT_READ),
        EFAULT
    );
    check_err!(
        device.publish(&[map.part(0, PAGE), map.part(2 * PAGE, 1)], RIGHT_READ),
        EFAULT
    );
    let fine = [map.part(0, 2 * PAGE), map.part(3 * PAGE, 2 * PAGE)];
    check_eq!(device.publish(&fine, RIGHT_READ)?.length, 4 * PAGE as u64);
    Ok(())
}

fn piece_counts(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let map = Map::filled(PAGE, 1)?;
    let pieces = vec![map.part(0, 4); 1025];
    check_err!(device.publish(&[], RIGHT_READ), EINVAL);
    check_err!(device.publish(&pieces, RIGHT_READ), EINVAL);
    check_eq!(device.publish(&pieces[..1024], RIGHT_READ)?.length, 4096);
    let mut huge = RegionCreate {
        iov: pieces.as_ptr() as u64,
        iov_count: u32::MAX,
        rights: RIGHT_READ,
        ..Default::default()
    };
    check_err!(device.call(REGION_CREATE, &mut huge), EINVAL);
    Ok(())
}

fn too_long(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let map = Map::anon(PAGE)?;
    let piece = |len| Piece {
        base: map.addr(),
        len,
    };
    check_err!(
        device.publish(&[piece(MAX_REGION_BYTES + 1)], RIGHT_READ),
        EOVERFLOW
    );
    check_err!(
        device.publish(&[piece(MAX_REGION_BYTES), piece(1)], RIGHT_READ),
        EOVERFLOW
    );
    check_err!(
        device.publish(&[piece(1 << 63), piece(1 << 63)], RIGHT_READ),
        EOVERFLOW
    );
    check_err!(
        device.publish(&[piece(u64::MAX), piece(2)], RIGHT_READ),
        EOVERFLOW
    );
    // Not too long by the number, but there is not that much memory.
    check_err!(
        device.publish(&[piece(MAX_REGION_BYTES)], RIGHT_READ),
        EFAULT | EACCES | ENOMEM
    );
    Ok(())
}

/// Pieces without a byte are pieces; a region may hold nothing at all.
fn empty(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let map = Map::filled(PAGE, 1)?;
    let nothing = Piece { base: 0, len: 0 };
    let region = device.publish(&[nothing, map.part(10, 20), nothing], RIGHT_READ)?;
    check_eq!(region.length, 20);
    check_eq!(device.fetch(region.id, 20)?, map.read(10, 20));
    let region = device.publish(&[nothing; 3], RIGHT_READ)?;
    check_eq!((region.length, region.pages), (0, 0));
    check_eq!(device.copy(region.id, COPY_FROM_REGION, 0, 0, &[])?, 0);
    check_err!(
        device.copy(region.id, COPY_FROM_REGION, 0, 1, &[map.piece()]),
        ERANGE
    );
    Ok(())
}

fn info_describes(_: &Context) -> Outcome {
    let (device, key) = Device::domain()?;
    let map = Map::filled(4 * PAGE, 1)?;
    // 10 bytes of the first page, all of the second, one of the third.
    let made = device.publish(&[map.part(PAGE - 10, PAGE + 11)], RIGHT_READ)?;
    check!(made.id >= 1 && made.id <= MAX_REGION_ID, "{made:?}");
    check_eq!((made.length, made.pages), (PAGE as u64 + 11, 3));
    in_child(|| {
        let info = Device::member(key)?.region_info(made.id)?;
        check_eq!(info.length, made.length);
        check_eq!(info.pages, 3);
        check_eq!((info.state, info.rights), (0, RIGHT_READ));
        Ok(())
    })?;
    check_err!(device.region_info(0), ENOENT);
    check_err!(device.region_info(MAX_REGION_ID), ENOENT);
    check_err!(device.region_info(MAX_REGION_ID + 1), ENOENT);
    check_err!(device.region_info(u32::MAX), ENOENT);
    Ok(())
}

/// Pieces of any length at any offset, in any order, also overlapping.
pub fn random_cut(rng: &mut Rng, map: &Map, count: usize, longest: usize) -> Vec<Piece> {
    (0..count)
        .map(|_| {
            let len = match rng.below(6) {
                0 => 0,
                1 => rng.index(longest + 1),
                2 => (rng.index(3) * PAGE).min(longest),
                _ => rng.index(100.min(longest + 1)),
            };
            let mut offset = rng.index(map.len() - len + 1);
            if rng.one_in(4) && offset / PAGE * PAGE + len <= map.len() {
                offset = offset / PAGE * PAGE;
            }
            map.part(offset, len)
        })
        .collect()
}

/// Pieces in ascending order that do not overlap, so that the order of writing does not matter.
fn ascending_pieces(rng: &mut Rng, map: &Map, longest: usize) -> Vec<Piece> {
    let (mut pieces, mut at) = (Vec::new(), rng.index(100));
    while at < map.len() && pieces.len() < 60 {
        let len = rng.index(longest).min(map.len() - at);
        pieces.push(map.part(at, len));
        at += len + rng.index(300);
    }
    pieces
}

/// Two regions in random pieces, and a random range of each, equally long.
pub struct Scattered {
    source: Map,
    target: Map,
    from: Vec<Piece>,
    to: Vec<Piece>,
    /// The region to read, and where in it.
    pub source_at: (u32, u64),
    /// The region to write, and where in it.
    pub target_at: (u32, u64),
    /// Bytes to move.
    pub length: usize,
    before: Vec<u8>,
}

impl Scattered {
    /// Publishes two maps of `pages` pages in pieces of less than `longest` bytes.
    pub fn new(device: &Device, rng: &mut Rng, pages: usize, longest: usize) -> Outcome<Self> {
        let source = Map::filled(pages * PAGE, rng.word())?;
        let target = Map::filled(pages * PAGE, rng.word())?;
        let from = ascending_pieces(rng, &source, longest);
        let to = ascending_pieces(rng, &target, longest);
        let readable = gathered(&source, &from).len();
        let before = gathered(&target, &to);
        let (s, d) = (rng.index(readable + 1), rng.index(before.len() + 1));
        Ok(Self {
            length: rng.index((readable - s).min(before.len() - d) + 1),
            source_at: (device.publish(&from, RIGHT_READ)?.id, s as u64),
            target_at: (device.publish(&to, RIGHT_WRITE)?.id, d as u64),
            source,
            target,
            from,
            to,
            before,
        })
    }

    /// Checks every byte of the target, those around the range too, and unpins both.
    pub fn check(self, device: &Device, seed: u64) -> Outcome {
        let bytes = gathered(&self.source, &self.from);
        let mut expected = self.before;
        let (s, d) = (self.source_at.1 as usize, self.target_at.1 as usize);
        expected[d..d + self.length].copy_from_slice(&bytes[s..s + self.length]);
        check!(
            gathered(&self.target, &self.to) == expected,
            "seed {seed}, {} bytes from {s} to {d}",
            self.length
        );
        device.unpin(self.source_at.0)?;
        device.unpin(self.target_at.0)?;
        Ok(())
    }
}

/// What a peer must see: the pieces' bytes end to end.
pub fn gathered(map: &Map, pieces: &[Piece]) -> Vec<u8> {
    pieces
        .iter()
        .flat_map(|piece| match piece.len {
            0 => Vec::new(),
            len => map.read((piece.base - map.addr()) as usize, len as usize),
        })
        .collect()
}

fn random_pieces(context: &Context) -> Outcome {
    let mut rng = context.rng();
    let (device, key) = Device::domain()?;
    let map = Map::filled(64 * PAGE, 11)?;
    for round in 0..150 {
        let count = match rng.below(10) {
            0 => 1024,
            1..=3 => 1 + rng.index(1024),
            _ => 1 + rng.index(8),
        };
        let longest = if count > 100 { 500 } else { 20 * PAGE };
        let pieces = random_cut(&mut rng, &map, count, longest);
        let expected = gathered(&map, &pieces);
        let region = device
            .publish(&pieces, RIGHT_READ)
            .map_err(|e| format!("seed {}, round {round}: {e}", context.seed))?;
        check_eq!(region.length as usize, expected.len(), "round {round}");
        let seen = device.fetch(region.id, expected.len())?;
        if seen != expected {
            let at = seen.iter().zip(&expected).position(|(a, b)| a != b);
            check!(
                false,
                "seed {}, round {round}: byte {at:?} of {count} pieces",
                context.seed
            );
        }
        match rng.below(3) {
            0 => device.unpin(region.id)?,
            1 => device.destroy(region.id)?,
            _ => {}
        }
        // The peer's view of a part, now and then.
        if round % 30 == 0 && !expected.is_empty() {
            let rights = RegionCreate {
                rights: RIGHT_READ,
                ..Default::default()
            };
            let region = device.publish_with(&pieces, rights)?;
            let start = rng.index(expected.len());
            let len = rng.index(expected.len() - start + 1);
            in_child(|| {
                let peer = Device::member(key)?;
                let buffer = Map::anon((len + 1).next_multiple_of(PAGE))?;
                peer.copy_all(region.id, COPY_FROM_REGION, start as u64, &buffer, 0, len)?;
                check!(
                    buffer.read(0, len) == expected[start..start + len],
                    "round {round}"
                );
                Ok(())
            })?;
        }
    }
    Ok(())
}

fn thousand_pieces(_: &Context) -> Outcome {
    let (device, key) = Device::domain()?;
    // Every piece on a page of its own, at a different offset and of a different length.
    let map = Map::filled(1024 * PAGE, 12)?;
    let pieces: Vec<Piece> = (0..1024)
        .map(|i| map.part(i * PAGE + i % 97, 1 + i % 3000))
        .collect();
    let expected = gathered(&map, &pieces);
    let region = device.publish(&pieces, RIGHT_READ | RIGHT_WRITE)?;
    check_eq!(
        (region.length as usize, region.pages),
        (expected.len(), 1024)
    );
    in_child(|| {
        let peer = Device::member(key)?;
        check!(peer.fetch(region.id, expected.len())? == expected);
        let new = pattern(13, expected.len());
        peer.store(region.id, 0, &new)?;
        check!(peer.fetch(region.id, expected.len())? == new);
        Ok(())
    })?;
    check!(gathered(&map, &pieces) == pattern(13, expected.len()));
    // What lies between the pieces is untouched.
    let before = pattern(12, map.len());
    for i in 0..1024 {
        let start = i * PAGE + i % 97 + 1 + i % 3000;
        let len = (i + 1) * PAGE - start;
        check!(
            map.read(start, len) == before[start..start + len],
            "behind piece {i}"
        );
    }
    Ok(())
}

fn same_page_twice(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let map = Map::filled(PAGE, 14)?;
    let region = device.publish(&[map.piece(), map.part(100, 50), map.piece()], RIGHT_READ)?;
    let mut expected = map.bytes();
    expected.extend(map.read(100, 50));
    expected.extend(map.bytes());
    check!(device.fetch(region.id, expected.len())? == expected);
    Ok(())
}

fn ids_are_not_soon_reused(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let map = Map::anon(PAGE)?;
    let mut seen = std::collections::HashSet::new();
    for _ in 0..500 {
        let id = device.share(&map, RIGHT_READ)?;
        check!((1..=MAX_REGION_ID).contains(&id), "id {id}");
        check!(
            seen.insert(id),
            "id {id} came again after {} regions",
            seen.len()
        );
        device.destroy(id)?;
        check_err!(device.region_info(id), ENOENT);
    }
    Ok(())
}

fn replaces(_: &Context) -> Outcome {
    let (device, key) = Device::domain()?;
    let map = Map::filled(2 * PAGE, 15)?;
    let before = Stats::read()?;
    let first = device.share(&map, RIGHT_READ)?;
    let rest = RegionCreate {
        rights: RIGHT_READ,
        replaces: first,
        ..Default::default()
    };
    let second = device.publish_with(&[map.piece()], rest)?;
    check!(second.id != first);
    // The pages of what is replaced are found again in the same step.
    check_eq!(second.result & RESULT_REUSED, RESULT_REUSED);
    check_err!(device.region_info(first), ENOENT);
    check_eq!(device.fetch(second.id, 100)?, map.read(0, 100));
    check_eq!(Stats::read()?.since(&before, "regions")?, 1);
    // Gone already: no error.
    let third = device.publish_with(&[map.piece()], rest)?;
    check!(device.region_info(second.id).is_ok());
    // A region of somebody else is not ours to replace.
    in_child(|| {
        let peer = Device::member(key)?;
        let own = Map::anon(PAGE)?;
        let rest = RegionCreate {
            rights: RIGHT_READ,
            replaces: third.id,
            ..Default::default()
        };
        let _ = peer.publish_with(&[own.piece()], rest);
        Ok(())
    })?;
    check_eq!(
        device.fetch(third.id, 100)?,
        map.read(0, 100),
        "replaced by a stranger"
    );
    Ok(())
}

fn only_the_owner_destroys(_: &Context) -> Outcome {
    let (device, key) = Device::domain()?;
    let map = Map::filled(PAGE, 16)?;
    let id = device.share(&map, RIGHT_READ)?;
    let counters = SharedCounters::new()?;
    let child = Child::spawn(|| {
        check_err!(Device::member(key)?.destroy(id), EPERM);
        // A forked child is another process, also on the inherited file.
        check_err!(device.destroy(id), EPERM);
        check_err!(device.unpin(id), EPERM);
        let own = Map::filled(PAGE, 17)?;
        counters.set(0, device.share(&own, RIGHT_READ)?.into());
        counters.await_at_least(1, 1)?;
        Ok(())
    })?;
    let theirs = counters.await_at_least(0, 1)? as u32;
    check_eq!(device.fetch(theirs, PAGE)?, pattern(17, PAGE));
    check_err!(device.destroy(theirs), EPERM);
    check!(device.region_info(theirs).is_ok());
    counters.set(1, 1);
    child.join()?;
    device.destroy(id)?;
    check_err!(device.destroy(id), ENOENT);
    check_err!(device.destroy(0), ENOENT);
    Ok(())
}

fn max_regions(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let limit = device.info()?.max_regions;
    let map = Map::anon(PAGE)?;
    let mut last = 0;
    for n in 0..limit {
        last = device
            .share(&map, RIGHT_READ)
            .map_err(|e| format!("region {n} of {limit} cannot be created: {e}"))?;
    }
    check_err!(device.share(&map, RIGHT_READ), ENOSPC);
    device.destroy(last)?;
    device.share(&map, RIGHT_READ)?;
    check_err!(device.share(&map, RIGHT_READ), ENOSPC);
    Ok(())
}

fn many_regions_of_one_page(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let map = Map::filled(PAGE, 18)?;
    let ids: Vec<u32> = (0..200)
        .map(|i| {
            device
                .publish(&[map.part(i, 1)], RIGHT_READ)
                .map(|region| region.id)
        })
        .collect::<Result<_, _>>()?;
    for (i, id) in ids.iter().enumerate() {
        check_eq!(device.fetch(*id, 1)?, map.read(i, 1), "region {i}");
    }
    Ok(())
}

fn failed_create_leaves_nothing(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let map = Map::filled(300 * PAGE, 19)?;
    let before = Stats::read()?;
    // Fails at the very end, with hundreds of pages pinned.
    map.unmap(299 * PAGE, PAGE)?;
    check_err!(device.publish(&[map.piece()], RIGHT_READ), EFAULT);
    check_err!(device.publish(&[map.piece()], RIGHT_WRITE), EFAULT);
    let mut pieces = vec![map.part(0, 50); 1000];
    pieces.push(map.part(299 * PAGE, 1));
    check_err!(device.publish(&pieces, RIGHT_READ), EFAULT);
    let after = Stats::read()?;
    check_eq!(
        after.since(&before, "pins")?,
        after.since(&before, "unpins")?
    );
    check_eq!(after.since(&before, "regions")?, 0);
    let _ = device.as_fd();
    Ok(())
}
