// SPDX-License-Identifier: MIT OR Apache-2.0

//! `libcopy::device::Watcher`: the number of memory changes when its pages do, and only then.

use std::ffi::c_void;
use std::os::fd::AsFd;

use libcopy::device::Watcher;

use crate::abi::Piece;
use crate::harness::{Context, Outcome};
use crate::kernel::{Stats, growth};
use crate::sys::{self, Map, PAGE, in_child};
use crate::{check, check_eq, tests};

tests!(watcher:
    watched_from_the_second_time_on, replaced_memory_has_another_number, unchanged_memory_keeps_its_number,
    only_the_pieces_count, others_are_found_changed, of_no_use, many, refused(60),
);

/// A way to put other pages behind addresses, and its name.
type Change<'a> = (&'static str, &'a dyn Fn(&Map) -> Outcome);

/// Memory of a file that is shortened.
const TRUNCATED: &str = "ftruncate";

/// Asks until there is a number.
fn number(watcher: &mut Watcher, pieces: &[Piece]) -> Outcome<u64> {
    let found = (0..1000).find_map(|_| watcher.generation(pieces.iter().copied()));
    found.ok_or_else(|| "the memory is not watched".to_owned().into())
}

/// The same for memory that is known: the next call gives a number.
fn known(watcher: &mut Watcher, map: &Map) -> Outcome<u64> {
    let found = watcher.generation([map.piece()]);
    found.ok_or_else(|| "the memory is not watched any more".to_owned().into())
}

fn watched_from_the_second_time_on(_: &Context) -> Outcome {
    let mut watcher = Watcher::new()?;
    let map = Map::filled(8 * PAGE, 1)?;
    let (first, pins) = growth("pins", || Ok(watcher.generation([map.piece()])))?;
    check_eq!((first, pins), (None, 0));
    let (second, pins) = growth("pins", || Ok(watcher.generation([map.piece()])))?;
    check_eq!((second, pins), (Some(1), 8));
    let (again, pins) = growth("pins", || {
        Ok((0..10)
            .map(|_| watcher.generation([map.piece()]))
            .collect::<Vec<_>>())
    })?;
    check_eq!((again, pins), (vec![Some(1); 10], 0));
    check_eq!(watcher.take_over(), Vec::<u64>::new());
    // The same pages by other pieces, and a part of them.
    let parts = [
        map.part(100, 20),
        map.part(5 * PAGE, PAGE * 3),
        map.part(0, 5 * PAGE),
    ];
    check_eq!(watcher.generation(parts), Some(1));
    let part = number(&mut watcher, &[map.part(PAGE, 10)])?;
    check!(part != 1);
    check_eq!(known(&mut watcher, &map)?, 1);
    Ok(())
}

fn replaced_memory_has_another_number(_: &Context) -> Outcome {
    let mut watcher = Watcher::new()?;
    let len = 16 * PAGE;
    let memfd = sys::memfd(len, 0)?;
    let changes: [Change<'_>; 6] = [
        ("mmap over all", &|map| {
            map.replace(0, len)?;
            Ok(())
        }),
        ("mmap over one page", &|map| {
            map.replace(5 * PAGE, PAGE)?;
            Ok(())
        }),
        ("munmap and mmap", &|map| {
            map.unmap(0, len)?;
            map.replace(0, len)?;
            Ok(())
        }),
        ("MADV_DONTNEED", &|map| {
            map.advise(PAGE, PAGE, libc::MADV_DONTNEED)?;
            Ok(())
        }),
        ("mremap", &|map| {
            let other = Map::filled(PAGE, 3)?;
            let (from, to) = (other.addr() as *mut c_void, map.addr() + 9 * PAGE as u64);
            // SAFETY: both are maps of this test, to which there is no reference; the page at `to`
            // gives way.
            let got = unsafe {
                let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
                libc::mremap(from, PAGE, PAGE, flags, to as *mut c_void)
            };
            other.leak();
            check_eq!(got as u64, to);
            Ok(())
        }),
        (TRUNCATED, &|_| {
            sys::truncate(memfd.as_fd(), 0)?;
            sys::truncate(memfd.as_fd(), len)?;
            Ok(())
        }),
    ];
    for (what, change) in changes {
        let map = match what {
            TRUNCATED => Map::file(len, memfd.as_fd())?,
            _ => Map::anon(len)?,
        };
        map.fill(1);
        let before = number(&mut watcher, &[map.piece()])?;
        check_eq!(known(&mut watcher, &map)?, before, "{what}");
        watcher.take_over();
        change(&map)?;
        map.fill(2);
        let after = known(&mut watcher, &map)?;
        check!(after != before, "{what}: still number {before}");
        check_eq!(watcher.take_over(), [before], "{what}");
        check_eq!(known(&mut watcher, &map)?, after, "{what}");
        // What is there no more has no number.
        map.unmap(3 * PAGE, PAGE)?;
        check_eq!(watcher.generation([map.piece()]), None, "{what}");
        check_eq!(watcher.take_over(), [after], "{what}");
    }
    Ok(())
}

fn unchanged_memory_keeps_its_number(_: &Context) -> Outcome {
    let mut watcher = Watcher::new()?;
    // Never written to before it is watched.
    let map = Map::anon(64 * PAGE)?;
    let before = number(&mut watcher, &[map.piece()])?;
    let mut is_same = |what: &str| {
        check_eq!(known(&mut watcher, &map)?, before, "{what}");
        Ok(())
    };
    map.fill(1);
    is_same("written to")?;
    map.protect(0, 64 * PAGE, libc::PROT_NONE)?;
    is_same("protected")?;
    map.protect(0, 64 * PAGE, sys::RW)?;
    is_same("protected no more")?;
    in_child(|| {
        map.fill(2);
        Ok(())
    })?;
    is_same("written to by a child")?;
    let child = sys::Child::spawn(|| {
        std::thread::sleep(std::time::Duration::from_millis(200));
        Ok(())
    })?;
    map.fill(3);
    is_same("written to while there is a child")?;
    child.join()?;
    is_same("the child has ended")?;
    check!(map.bytes() == vec![3; 64 * PAGE]);
    Ok(())
}

fn only_the_pieces_count(_: &Context) -> Outcome {
    let mut watcher = Watcher::new()?;
    let map = Map::filled(64 * PAGE, 1)?;
    // A page in every four.
    let column: Vec<Piece> = (0..16)
        .map(|i| map.part(4 * i * PAGE + 100, 1000))
        .collect();
    let before = number(&mut watcher, &column)?;
    map.replace(PAGE, 3 * PAGE)?;
    map.unmap(61 * PAGE, 3 * PAGE)?;
    check_eq!(watcher.generation(column.iter().copied()), Some(before));
    map.replace(32 * PAGE, PAGE)?;
    let after = watcher.generation(column.iter().copied());
    check!(after.is_some() && after != Some(before), "{after:?}");
    Ok(())
}

/// Memory that nobody asks for any more is given back when other memory comes.
fn others_are_found_changed(_: &Context) -> Outcome {
    let mut watcher = Watcher::new()?;
    let gone = Map::filled(4 * PAGE, 1)?;
    let stays = Map::filled(4 * PAGE, 1)?;
    let gone_was = number(&mut watcher, &[gone.piece()])?;
    let stays_was = number(&mut watcher, &[stays.piece()])?;
    known(&mut watcher, &gone)?;
    drop(gone);
    let before = Stats::read()?;
    let next = Map::filled(PAGE, 1)?;
    number(&mut watcher, &[next.piece()])?;
    check_eq!(watcher.take_over(), [gone_was]);
    check_eq!(Stats::read()?.since(&before, "unpins")?, 4);
    check_eq!(known(&mut watcher, &stays)?, stays_was);
    Ok(())
}

/// A program that unmaps a buffer after each use has it pinned seldom.
fn of_no_use(_: &Context) -> Outcome {
    let mut watcher = Watcher::new()?;
    let map = Map::filled(4 * PAGE, 1)?;
    let ((), pins) = growth("pins", || {
        for _ in 0..1000 {
            watcher.generation([map.piece()]);
            map.replace(0, 4 * PAGE)?;
        }
        Ok(())
    })?;
    check!(pins > 0 && pins <= 4 * 16, "{pins} pages pinned");
    // Now it stays: it is watched again.
    let stable = number(&mut watcher, &[map.piece()])?;
    check_eq!(known(&mut watcher, &map)?, stable);
    Ok(())
}

/// There are bounds for what is watched.
fn many(_: &Context) -> Outcome {
    let mut watcher = Watcher::new()?;
    let map = Map::anon(600 * 2 * PAGE)?;
    let before = Stats::read()?;
    for index in 0..600 {
        let piece = map.part(2 * index * PAGE, 10);
        let first = number(&mut watcher, &[piece])?;
        check_eq!(watcher.generation([piece]), Some(first));
    }
    let regions = Stats::read()?.since(&before, "regions")?;
    check!((200..=256).contains(&regions), "{regions} regions");
    check_eq!(watcher.take_over().len() as i64, 600 - regions);
    watcher.give_up();
    check_eq!(Stats::read()?.since(&before, "regions")?, 0);
    check_eq!(watcher.take_over().len() as i64, regions);
    Ok(())
}

/// Where no more may be locked there is no number, and later there is one again.
fn refused(_: &Context) -> Outcome {
    in_child(|| {
        let mut watcher = Watcher::new()?;
        sys::limit_locked(64 << 10)?;
        sys::become_user(1000)?;
        let map = Map::filled(32 * PAGE, 1)?;
        for _ in 0..300 {
            check_eq!(watcher.generation([map.piece()]), None);
        }
        let few = map.part(0, 8 * PAGE);
        let small = number(&mut watcher, &[few])?;
        check_eq!(watcher.generation([few]), Some(small));
        Ok(())
    })
}
