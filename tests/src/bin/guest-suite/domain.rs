// SPDX-License-Identifier: MIT OR Apache-2.0

//! Who may share: by inherited file, by passed file, by key and user; and nobody else.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use crate::abi::*;
use crate::device::Device;
use crate::harness::{Context, Outcome, skip};
use crate::kernel::Stats;
use crate::sys::{self, Child, Map, PAGE, SharedCounters, in_child};
use crate::{check, check_eq, check_err, tests};

tests!(domain:
    create, keys_differ, join_by_key, inherited_file_is_a_membership, passed_file_is_a_membership,
    join_refuses_nonsense, wrong_key, other_user, effective_user_counts,
    other_user_with_passed_file, other_user_namespace, ids_of_another_domain, leave,
    leave_by_one_of_two, key_ends_with_the_domain, region_goes_with_its_file,
);

/// Shares a filled page and checks from `peer` that it can be read.
fn reads(owner: &Device, peer: &Device) -> Outcome {
    let map = Map::filled(PAGE, 42)?;
    let id = owner.share(&map, RIGHT_READ)?;
    check_eq!(peer.fetch(id, PAGE)?, map.bytes());
    owner.unpin(id)?;
    Ok(())
}

fn create(_: &Context) -> Outcome {
    let (device, key) = Device::domain()?;
    check!(key != [0; 16]);
    check_err!(device.create(), EISCONN);
    check_err!(device.join_key(key), EISCONN);
    let (_other, key) = Device::domain()?;
    check_err!(device.join_key(key), EISCONN, "another domain");
    reads(&device, &device)
}

fn keys_differ(_: &Context) -> Outcome {
    let mut keys = std::collections::HashSet::new();
    let mut ones = [0u32; 128];
    for _ in 0..64 {
        let (_device, key) = Device::domain()?;
        check!(keys.insert(key), "the key {key:02x?} came twice");
        for (bit, count) in ones.iter_mut().enumerate() {
            *count += u32::from(key[bit / 8] >> (bit % 8) & 1);
        }
    }
    // Each bit is random: 64 throws all alike have a chance of 2^-63.
    check!(
        ones.iter().all(|&count| count > 0 && count < 64),
        "a bit never changes: {ones:?}"
    );
    Ok(())
}

fn join_by_key(_: &Context) -> Outcome {
    let (device, key) = Device::domain()?;
    let map = Map::filled(PAGE, 3)?;
    let id = device.share(&map, RIGHT_READ)?;
    in_child(|| {
        let peer = Device::member(key)?;
        check_eq!(peer.fetch(id, PAGE)?, map.bytes());
        check_err!(peer.create(), EISCONN);
        Ok(())
    })
}

fn inherited_file_is_a_membership(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let map = Map::filled(PAGE, 4)?;
    let id = device.share(&map, RIGHT_READ)?;
    in_child(|| {
        check_eq!(device.fetch(id, PAGE)?, map.bytes());
        Ok(())
    })
}

fn passed_file_is_a_membership(_: &Context) -> Outcome {
    let (here, there) = UnixStream::pair()?;
    let counters = SharedCounters::new()?;
    // Forked before the domain exists: it knows nothing but what comes over the socket.
    let child = Child::spawn(|| {
        let passed = Device::from(sys::receive_fd(there.as_fd())?);
        let id = counters.await_at_least(0, 1)? as u32;
        check_eq!(passed.fetch(id, PAGE)?, crate::rng::pattern(5, PAGE));
        Ok(())
    })?;
    let (device, _) = Device::domain()?;
    let map = Map::filled(PAGE, 5)?;
    let id = device.share(&map, RIGHT_READ)?;
    sys::send_fd(here.as_fd(), device.as_fd())?;
    counters.set(0, id.into());
    child.join()
}

fn join_refuses_nonsense(_: &Context) -> Outcome {
    let (device, key) = Device::domain()?;
    let fresh = Device::open()?;
    // Without the flag, and with others: bit 0 once meant a file.
    for flags in [0, 1, JOIN_BY_KEY | 1, JOIN_BY_KEY | 4] {
        let mut join = DomainJoin {
            flags,
            key,
            ..Default::default()
        };
        check_err!(fresh.call(DOMAIN_JOIN, &mut join), EINVAL, "{flags:#x}");
    }
    fresh.join_key(key)?;
    reads(&device, &fresh)
}

fn wrong_key(_: &Context) -> Outcome {
    let (_device, key) = Device::domain()?;
    let fresh = Device::open()?;
    check_err!(fresh.join_key([0; 16]), ENOENT);
    for bit in 0..128 {
        let mut wrong = key;
        wrong[bit / 8] ^= 1 << (bit % 8);
        check_err!(fresh.join_key(wrong), ENOENT, "bit {bit}");
    }
    check!(fresh.join_key(key).is_ok());
    Ok(())
}

fn other_user(_: &Context) -> Outcome {
    let fresh = Device::open()?;
    let again = Device::open()?;
    let (_device, key) = Device::domain()?;
    in_child(|| {
        sys::become_user(1001)?;
        check_err!(fresh.join_key(key), EPERM);
        Ok(())
    })?;
    // Nor the superuser in the domain of somebody else.
    let counters = SharedCounters::new()?;
    let keys = Map::shared(PAGE)?;
    let child = Child::spawn(|| {
        sys::become_user(1001)?;
        keys.write(0, &fresh.create()?);
        counters.set(0, 1);
        counters.await_at_least(1, 1)?;
        Ok(())
    })?;
    counters.await_at_least(0, 1)?;
    let key: [u8; 16] = keys.read(0, 16).try_into().expect("16 bytes");
    check_err!(again.join_key(key), EPERM);
    counters.set(1, 1);
    child.join()
}

fn effective_user_counts(_: &Context) -> Outcome {
    let fresh = Device::open()?;
    let (_device, key) = Device::domain()?;
    in_child(|| {
        sys::set_effective_user(1001)?;
        check_err!(fresh.join_key(key), EPERM);
        sys::set_effective_user(0)?;
        fresh.join_key(key)?;
        Ok(())
    })
}

fn other_user_with_passed_file(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let map = Map::filled(PAGE, 6)?;
    let id = device.share(&map, RIGHT_READ)?;
    in_child(|| {
        sys::become_user(1001)?;
        // Any process that was given the file is a member: the file is the capability.
        check_eq!(device.fetch(id, PAGE)?, map.bytes());
        Ok(())
    })
}

fn other_user_namespace(_: &Context) -> Outcome {
    let fresh = Device::open()?;
    let (_device, key) = Device::domain()?;
    in_child(|| {
        if let Err(errno) = sys::new_user_namespace() {
            return skip(format!("no user namespaces here: {errno}"));
        }
        check_err!(fresh.join_key(key), EPERM);
        Ok(())
    })
}

/// Ids are no secret, and need not be: in another domain they mean nothing.
fn ids_of_another_domain(_: &Context) -> Outcome {
    let (mine, _) = Device::domain()?;
    let map = Map::filled(PAGE, 7)?;
    let mut top = 0;
    for _ in 0..40 {
        let rights = RIGHT_READ | RIGHT_WRITE;
        let rest = RegionCreate {
            rights,
            ..Default::default()
        };
        top = top.max(mine.publish_with(&[map.piece()], rest)?.id);
    }
    in_child(|| {
        let (theirs, _) = Device::domain()?;
        let buffer = Map::anon(PAGE)?;
        for id in 0..=top.max(1000) + 10 {
            check_err!(theirs.region_info(id), ENOENT, "id {id}");
            let piece = [buffer.piece()];
            check_err!(
                theirs.copy(id, COPY_FROM_REGION, 0, 8, &piece),
                ENOENT,
                "id {id}"
            );
            check_err!(
                theirs.copy(id, COPY_TO_REGION, 0, 8, &piece),
                ENOENT,
                "id {id}"
            );
            check_err!(theirs.destroy(id), ENOENT, "id {id}");
            check_err!(theirs.attach(id, RIGHT_READ), ENOENT, "id {id}");
            let range = [Piece { base: 0, len: 8 }];
            let vectored = theirs.copy_ranges(id, COPY_FROM_REGION, 0, 8, &range, &piece);
            check_err!(vectored, ENOENT, "id {id}");
        }
        // At id 0 there is the status table of their own domain.
        for id in (1..=top).chain([MAX_REGION_ID]) {
            let offset = u64::from(id) << ATTACH_SHIFT;
            let map = Map::new(
                PAGE,
                libc::PROT_READ,
                libc::MAP_SHARED,
                Some(theirs.as_fd()),
                offset,
            );
            check!(map.is_err(), "mmap of the foreign region {id} works");
        }
        Ok(())
    })?;
    check_eq!(map.bytes(), crate::rng::pattern(7, PAGE));
    Ok(())
}

fn leave(_: &Context) -> Outcome {
    let (device, key) = Device::domain()?;
    let before = Stats::read()?;
    let counters = SharedCounters::new()?;
    let child = Child::spawn(|| {
        let peer = Device::member(key)?;
        let map = Map::filled(PAGE, 8)?;
        let id = peer.share(&map, RIGHT_READ)?;
        counters.set(0, id.into());
        counters.await_at_least(1, 1)?;
        peer.leave()?;
        counters.set(2, 1);
        check_err!(peer.region_info(id), ENOTCONN | ENOENT);
        counters.await_at_least(3, 1)?;
        Ok(())
    })?;
    let id = counters.await_at_least(0, 1)? as u32;
    check_eq!(device.fetch(id, PAGE)?, crate::rng::pattern(8, PAGE));
    counters.set(1, 1);
    counters.await_at_least(2, 1)?;
    // Left in good order: the region is gone, its owner did not die.
    check_err!(device.fetch(id, PAGE), ENOENT);
    check_err!(device.region_info(id), ENOENT);
    check_eq!(Stats::read()?.since(&before, "member_deaths")?, 0);
    reads(&device, &device)?;
    counters.set(3, 1);
    child.join()
}

fn leave_by_one_of_two(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let map = Map::filled(PAGE, 9)?;
    let id = device.share(&map, RIGHT_READ)?;
    in_child(|| {
        check_eq!(device.fetch(id, 8)?, map.read(0, 8));
        device.leave()?;
        Ok(())
    })?;
    check_eq!(device.fetch(id, PAGE)?, map.bytes());
    reads(&device, &device)
}

fn key_ends_with_the_domain(_: &Context) -> Outcome {
    let (device, key) = Device::domain()?;
    let member = Device::member(key)?;
    drop(device);
    // The creator is gone; the domain lives on with its members.
    let second = Device::member(key)?;
    reads(&member, &second)?;
    drop((member, second));
    check_err!(Device::member(key).map(drop), ENOENT);
    Ok(())
}

fn region_goes_with_its_file(_: &Context) -> Outcome {
    let (device, key) = Device::domain()?;
    let member = Device::member(key)?;
    let map = Map::filled(PAGE, 10)?;
    let id = member.share(&map, RIGHT_READ)?;
    check_eq!(device.fetch(id, PAGE)?, map.bytes());
    drop(member);
    check_err!(device.fetch(id, PAGE), ENOENT | EOWNERDEAD);
    Ok(())
}
