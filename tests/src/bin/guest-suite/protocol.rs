// SPDX-License-Identifier: MIT OR Apache-2.0

//! What holds for every ioctl: command words, structure sizes, flags, reserved fields, bad
//! addresses, files without a domain.

use crate::abi::*;
use crate::device::Device;
use crate::harness::{Context, Outcome};
use crate::kernel::Stats;
use crate::sys::{self, Map, PAGE};
use crate::{check, check_eq, check_err, tests};

tests!(protocol:
    info, fdinfo, unknown_commands, unknown_flags, reserved_fields, short_structures,
    long_structures, bad_addresses, unwritable_argument_leaves_nothing, without_domain,
    only_reports_without_writing, unaligned_argument,
);

fn info(_: &Context) -> Outcome {
    let device = Device::open()?;
    let info = device.info()?;
    check_eq!(info.abi_version, ABI_VERSION);
    check!(info.max_iov >= 1024, "max_iov {}", info.max_iov);
    check_eq!(info.page_size as usize, PAGE);
    check_eq!(info.max_region_bytes, MAX_REGION_BYTES);
    check!(info.max_regions > 0 && info.max_regions <= MAX_REGION_ID);
    check_eq!((info.reserved0, info.reserved), (0, [0, 0]));
    for bit in [FEATURE_ATTACH, FEATURE_REUSE, FEATURE_REQUEST] {
        check!(
            info.features & bit != 0,
            "feature {bit:#x} is missing in {:#x}",
            info.features
        );
    }
    device.create()?;
    check_eq!(device.info()?, info, "with a domain");
    // All fields are outputs: what was in them does not matter.
    let mut dirty = Info {
        abi_version: 77,
        reserved: [9, 9],
        ..Info::default()
    };
    device.call(GET_INFO, &mut dirty)?;
    check_eq!(dirty, info);
    Ok(())
}

fn fdinfo(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let map = Map::filled(3 * PAGE, 1)?;
    let id = device.share(&map, RIGHT_READ)?;
    device.fetch(id, 100)?;
    check_eq!(device.counter("regions")?, 1);
    check_eq!(device.counter("pins")?, 3);
    check_eq!(device.counter("bytes_from_region")?, 100);
    // Another domain counts for itself.
    check_eq!(Device::domain()?.0.counter("pins")?, 0);
    Ok(())
}

fn unknown_commands(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let mut words = [0u64; 32];
    for number in [17, 18, 20, 64, 128, 255] {
        check_err!(
            device.call(iowr(number, 16), &mut words),
            ENOTTY,
            "number {number}"
        );
    }
    for kind in [0u32, 0x54, 0xCB, 0xCD] {
        let command = GET_INFO & !0xff00 | kind << 8;
        check_err!(device.call(command, &mut words), ENOTTY, "type {kind:#x}");
    }
    // TCGETS, as isatty(3) asks.
    check_err!(device.raw(0x5401, words.as_mut_ptr() as u64), ENOTTY);
    Ok(())
}

/// A domain with two regions over memory that lives as long as this.
struct Scene {
    device: Device,
    map: Map,
    /// What `pieces` describe.
    _other: Map,
    pieces: [Piece; 1],
    id: u32,
}

impl Scene {
    fn new() -> Outcome<Self> {
        let (device, _) = Device::domain()?;
        let map = Map::filled(2 * PAGE, 1)?;
        let other = Map::filled(2 * PAGE, 2)?;
        let id = device.share(&map, RIGHT_READ | RIGHT_WRITE)?;
        let pieces = [other.piece()];
        Ok(Self {
            device,
            map,
            _other: other,
            pieces,
            id,
        })
    }

    fn create(&self) -> RegionCreate {
        RegionCreate {
            iov: self.pieces.as_ptr() as u64,
            iov_count: 1,
            rights: RIGHT_READ,
            ..Default::default()
        }
    }

    fn copy(&self) -> RegionCopy {
        RegionCopy {
            region: self.id,
            flags: COPY_FROM_REGION,
            length: 64,
            iov: self.pieces.as_ptr() as u64,
            iov_count: 1,
            ..Default::default()
        }
    }
}

fn unknown_flags(_: &Context) -> Outcome {
    let scene = Scene::new()?;
    let (device, id) = (&scene.device, scene.id);
    let fresh = Device::open()?;
    for bit in [8u32, 16, 31].map(|n| 1 << n) {
        let mut create = DomainCreate {
            flags: bit,
            ..Default::default()
        };
        check_err!(
            fresh.call(DOMAIN_CREATE, &mut create),
            EINVAL,
            "DOMAIN_CREATE {bit:#x}"
        );
        let mut join = DomainJoin {
            flags: JOIN_BY_KEY | bit,
            key: [7; 16],
            ..Default::default()
        };
        check_err!(
            fresh.call(DOMAIN_JOIN, &mut join),
            EINVAL,
            "DOMAIN_JOIN {bit:#x}"
        );
        let mut leave = DomainLeave {
            flags: bit,
            ..Default::default()
        };
        check_err!(
            device.call(DOMAIN_LEAVE, &mut leave),
            EINVAL,
            "DOMAIN_LEAVE {bit:#x}"
        );
        let mut region = RegionCreate {
            flags: bit,
            ..scene.create()
        };
        check_err!(
            device.call(REGION_CREATE, &mut region),
            EINVAL,
            "REGION_CREATE {bit:#x}"
        );
        let mut region = RegionCreate {
            rights: RIGHT_READ | bit,
            ..scene.create()
        };
        check_err!(
            device.call(REGION_CREATE, &mut region),
            EINVAL,
            "rights {bit:#x}"
        );
        let mut destroy = RegionDestroy { id, flags: bit };
        check_err!(
            device.call(REGION_DESTROY, &mut destroy),
            EINVAL,
            "REGION_DESTROY {bit:#x}"
        );
        let mut copy = scene.copy();
        copy.flags |= bit;
        check_err!(
            device.call(REGION_COPY, &mut copy),
            EINVAL,
            "REGION_COPY {bit:#x}"
        );
        check_err!(
            device.attach(id, RIGHT_READ | bit),
            EINVAL,
            "REGION_ATTACH {bit:#x}"
        );
    }
    // Nothing happened: the region is there.
    check_eq!(device.region_info(id)?.state, 0);
    Ok(())
}

fn reserved_fields(_: &Context) -> Outcome {
    let scene = Scene::new()?;
    let device = &scene.device;
    let fresh = Device::open()?;
    let mut create = DomainCreate {
        reserved: 1,
        ..Default::default()
    };
    check_err!(fresh.call(DOMAIN_CREATE, &mut create), EINVAL);
    let mut join = DomainJoin {
        flags: JOIN_BY_KEY,
        reserved: 1,
        ..Default::default()
    };
    check_err!(fresh.call(DOMAIN_JOIN, &mut join), EINVAL);
    let mut join = DomainJoin {
        flags: JOIN_BY_KEY,
        reserved2: 3,
        ..Default::default()
    };
    check_err!(fresh.call(DOMAIN_JOIN, &mut join), EINVAL);
    let mut leave = DomainLeave {
        reserved: 1,
        ..Default::default()
    };
    check_err!(device.call(DOMAIN_LEAVE, &mut leave), EINVAL);
    let mut region = RegionCreate {
        reserved: 1,
        ..scene.create()
    };
    check_err!(device.call(REGION_CREATE, &mut region), EINVAL);
    let mut region = RegionCreate {
        reserved0: 1,
        ..scene.create()
    };
    check_err!(device.call(REGION_CREATE, &mut region), EINVAL);
    let mut copy = RegionCopy {
        region_iov: 1,
        ..scene.copy()
    };
    check_err!(device.call(REGION_COPY, &mut copy), EINVAL);
    // A distance without blocks, with and without ranges, and with a list of offsets.
    for (region_iov_count, block_len) in [(0, 0), (1, 0), (1, 64)] {
        let mut copy = RegionCopy {
            region_iov: u64::from(region_iov_count) * scene.pieces.as_ptr() as u64,
            region_iov_count,
            block_len,
            stride: 8,
            ..scene.copy()
        };
        check_err!(
            device.call(REGION_COPY, &mut copy),
            EINVAL,
            "{region_iov_count} ranges, {block_len}"
        );
    }
    Ok(())
}

const COMMANDS: [(u32, &str); 15] = [
    (GET_INFO, "GET_INFO"),
    (DOMAIN_CREATE, "DOMAIN_CREATE"),
    (DOMAIN_JOIN, "DOMAIN_JOIN"),
    (DOMAIN_LEAVE, "DOMAIN_LEAVE"),
    (REGION_CREATE, "REGION_CREATE"),
    (REGION_DESTROY, "REGION_DESTROY"),
    (REGION_INFO, "REGION_INFO"),
    (REGION_COPY, "REGION_COPY"),
    (REGION_ATTACH, "REGION_ATTACH"),
    (ENGINE_INFO, "ENGINE_INFO"),
    (REQUEST_SUBMIT, "REQUEST_SUBMIT"),
    (REQUEST_WAIT, "REQUEST_WAIT"),
    (REQUEST_SWITCH, "REQUEST_SWITCH"),
    (REQUEST_INFO, "REQUEST_INFO"),
    (REQUEST_CANCEL, "REQUEST_CANCEL"),
];

fn size_of_command(command: u32) -> u32 {
    command >> 16 & 0x3fff
}

fn with_size(command: u32, size: u32) -> u32 {
    command & !(0x3fff << 16) | size << 16
}

/// A structure is never shorter than in the first version, which this is.
fn short_structures(_: &Context) -> Outcome {
    let (joined, _) = Device::domain()?;
    let fresh = Device::open()?;
    let mut words = [0u64; 64];
    for (command, name) in COMMANDS {
        // On the file for which the command could otherwise work.
        let device = if command == DOMAIN_CREATE || command == DOMAIN_JOIN {
            &fresh
        } else {
            &joined
        };
        let full = size_of_command(command);
        for size in [0, 1, 4, full / 2, full - 4, full - 1] {
            check_err!(
                device.call(with_size(command, size), &mut words),
                EINVAL,
                "{name} of {size} bytes"
            );
        }
    }
    Ok(())
}

/// A structure from the future: fine as long as what we do not know is zero.
fn long_structures(_: &Context) -> Outcome {
    #[repr(C)]
    struct Long<T>(T, [u8; 1024]);
    fn call<T>(
        device: &Device,
        command: u32,
        argument: T,
        extra: u32,
        at: Option<u32>,
    ) -> Result<T, nix::errno::Errno> {
        let mut long = Long(argument, [0; 1024]);
        if let Some(at) = at {
            long.1[at as usize] = 1;
        }
        device.call(
            with_size(command, size_of_command(command) + extra),
            &mut long,
        )?;
        Ok(long.0)
    }
    for extra in [1, 4, 8, 64, 1000] {
        let scene = Scene::new()?;
        let (device, id) = (&scene.device, scene.id);
        for at in [0, extra - 1] {
            let fresh = Device::open()?;
            macro_rules! tail {
                ($device:expr, $command:ident, $argument:expr) => {
                    check_err!(
                        call($device, $command, $argument, extra, Some(at)).map(drop),
                        E2BIG,
                        "{} + {extra} bytes, non-zero at {at}",
                        stringify!($command)
                    );
                };
            }
            tail!(device, GET_INFO, Info::default());
            tail!(&fresh, DOMAIN_CREATE, DomainCreate::default());
            tail!(
                &fresh,
                DOMAIN_JOIN,
                DomainJoin {
                    flags: JOIN_BY_KEY,
                    ..Default::default()
                }
            );
            tail!(device, DOMAIN_LEAVE, DomainLeave::default());
            tail!(device, REGION_CREATE, scene.create());
            tail!(device, REGION_DESTROY, RegionDestroy { id, flags: 0 });
            tail!(
                device,
                REGION_INFO,
                RegionInfo {
                    id,
                    ..Default::default()
                }
            );
            tail!(device, REGION_COPY, scene.copy());
            tail!(
                device,
                REGION_ATTACH,
                RegionAttach {
                    id,
                    access: 1,
                    ..Default::default()
                }
            );
        }
        check_eq!(
            call(device, GET_INFO, Info::default(), extra, None)?,
            device.info()?
        );
        let fresh = Device::open()?;
        let key = call(&fresh, DOMAIN_CREATE, DomainCreate::default(), extra, None)?.key;
        let joining = Device::open()?;
        let join = DomainJoin {
            flags: JOIN_BY_KEY,
            key,
            ..Default::default()
        };
        call(&joining, DOMAIN_JOIN, join, extra, None)?;
        call(&joining, DOMAIN_LEAVE, DomainLeave::default(), extra, None)?;
        let region = call(device, REGION_CREATE, scene.create(), extra, None)?;
        check!(
            region.id != 0 && region.length == 2 * PAGE as u64,
            "{region:?}"
        );
        call(
            device,
            REGION_DESTROY,
            RegionDestroy {
                id: region.id,
                flags: 0,
            },
            extra,
            None,
        )?;
        let info = call(
            device,
            REGION_INFO,
            RegionInfo {
                id,
                ..Default::default()
            },
            extra,
            None,
        )?;
        check_eq!(info.length, 2 * PAGE as u64);
        check_eq!(
            call(device, REGION_COPY, scene.copy(), extra, None)?.done,
            64
        );
        let attach = RegionAttach {
            id,
            access: RIGHT_READ,
            ..Default::default()
        };
        check!(call(device, REGION_ATTACH, attach, extra, None)?.map_length > 0);
    }
    Ok(())
}

fn bad_addresses(_: &Context) -> Outcome {
    let scene = Scene::new()?;
    let device = &scene.device;
    let fresh = Device::open()?;
    let gone = Map::anon(PAGE)?;
    gone.protect(0, PAGE, libc::PROT_NONE)?;
    let half = Map::anon(2 * PAGE)?;
    half.protect(PAGE, PAGE, libc::PROT_NONE)?;
    let addresses = [
        0,
        8,
        gone.addr(),
        half.addr() + PAGE as u64 - 4,
        0xffff_8880_0000_0000,
        u64::MAX - 7,
    ];
    for (command, name) in COMMANDS {
        let device = if command == DOMAIN_CREATE || command == DOMAIN_JOIN {
            &fresh
        } else {
            device
        };
        for address in addresses {
            check_err!(
                device.raw(command, address),
                EFAULT,
                "{name} at {address:#x}"
            );
        }
    }
    // The arrays that structures point to.
    for address in addresses {
        let mut region = RegionCreate {
            iov: address,
            ..scene.create()
        };
        check_err!(
            device.call(REGION_CREATE, &mut region),
            EFAULT,
            "pieces at {address:#x}"
        );
        let mut copy = RegionCopy {
            iov: address,
            ..scene.copy()
        };
        check_err!(
            device.call(REGION_COPY, &mut copy),
            EFAULT,
            "pieces at {address:#x}"
        );
        let mut copy = RegionCopy {
            region_iov: address,
            region_iov_count: 1,
            ..scene.copy()
        };
        check_err!(
            device.call(REGION_COPY, &mut copy),
            EFAULT,
            "ranges at {address:#x}"
        );
        // At 0 there is no list.
        if address != 0 {
            let mut copy = RegionCopy {
                region_iov: address,
                region_iov_count: 8,
                block_len: 8,
                ..scene.copy()
            };
            check_err!(
                device.call(REGION_COPY, &mut copy),
                EFAULT,
                "offsets at {address:#x}"
            );
        }
    }
    for address in [0, 8, gone.addr(), 0xffff_8880_0000_0000, u64::MAX - 7] {
        let piece = [Piece {
            base: address,
            len: 64,
        }];
        check_err!(
            device.copy(scene.id, COPY_FROM_REGION, 0, 64, &piece),
            EFAULT,
            "{address:#x}"
        );
        check_err!(
            device.copy(scene.id, COPY_TO_REGION, 0, 64, &piece),
            EFAULT,
            "{address:#x}"
        );
        if address == gone.addr() {
            check_err!(
                device.publish(&piece, RIGHT_READ),
                EACCES,
                "memory without any protection"
            );
        } else {
            check_err!(
                device.publish(&piece, RIGHT_READ),
                EFAULT,
                "memory at {address:#x}"
            );
        }
    }
    check_eq!(scene.map.bytes(), crate::rng::pattern(1, 2 * PAGE));
    Ok(())
}

/// The result cannot be given back: then nothing must have been created either.
fn unwritable_argument_leaves_nothing(_: &Context) -> Outcome {
    let scene = Scene::new()?;
    let page = Map::anon(PAGE)?;
    let argument = scene.create();
    // SAFETY: Plain data of known size.
    let bytes = unsafe {
        std::slice::from_raw_parts(
            std::ptr::from_ref(&argument).cast::<u8>(),
            std::mem::size_of::<RegionCreate>(),
        )
    };
    page.write(0, bytes);
    page.protect(0, PAGE, libc::PROT_READ)?;
    let before = Stats::read()?;
    check_err!(scene.device.raw(REGION_CREATE, page.addr()), EFAULT);
    check_eq!(Stats::read()?.since(&before, "regions")?, 0);
    let zero = Map::anon(PAGE)?;
    zero.protect(0, PAGE, libc::PROT_READ)?;
    let fresh = Device::open()?;
    check_err!(fresh.raw(DOMAIN_CREATE, zero.addr()), EFAULT);
    check_eq!(Stats::read()?.since(&before, "domains")?, 0);
    // The file is as it was.
    fresh.create()?;
    Ok(())
}

fn without_domain(_: &Context) -> Outcome {
    let scene = Scene::new()?;
    let id = scene.id;
    let lone = Device::open()?;
    check_err!(lone.leave(), ENOTCONN);
    check_err!(lone.call(REGION_CREATE, &mut scene.create()), ENOTCONN);
    check_err!(lone.destroy(id), ENOTCONN);
    check_err!(lone.region_info(id), ENOTCONN);
    check_err!(lone.call(REGION_COPY, &mut scene.copy()), ENOTCONN);
    check_err!(lone.attach(id, RIGHT_READ), ENOTCONN);
    check!(lone.info().is_ok());
    Ok(())
}

/// A file that was not opened for reading and writing tells what the module is, and does nothing.
fn only_reports_without_writing(_: &Context) -> Outcome {
    let (_device, key) = Device::domain()?;
    for mode in [libc::O_RDONLY, libc::O_WRONLY] {
        let file = Device::open_as(mode)?;
        check!(file.info().is_ok());
        check_err!(file.create(), EBADF);
        check_err!(file.join_key(key), EBADF);
        check_err!(file.leave(), EBADF);
        check_err!(file.region_info(1), EBADF);
    }
    Ok(())
}

fn unaligned_argument(_: &Context) -> Outcome {
    use std::os::fd::AsFd;
    let (device, _) = Device::domain()?;
    let map = Map::anon(2 * PAGE)?;
    // Across a page boundary, at an odd address.
    let at = PAGE - 7;
    device.raw(GET_INFO, map.addr() + at as u64)?;
    let info = device.info()?;
    check_eq!(map.read(at, 4), info.abi_version.to_le_bytes());
    // A read or write of the device means nothing.
    let byte = map.read(0, 1);
    // SAFETY: One byte that outlives the call.
    let wrote = sys::result(unsafe {
        libc::write(
            std::os::fd::AsRawFd::as_raw_fd(&device.as_fd()),
            byte.as_ptr().cast(),
            1,
        )
    } as i64);
    check_err!(wrote, EINVAL);
    Ok(())
}
