// SPDX-License-Identifier: MIT OR Apache-2.0

//! Where every field of the ABI lies. A change here breaks programs that exist.

use libcopy::uapi::*;
use std::mem::{offset_of, size_of};

macro_rules! layout {
    ($name:ident = $size:literal { $($field:ident: $offset:literal),+ $(,)? }) => {
        assert_eq!(size_of::<$name>(), $size, stringify!($name));
        $(assert_eq!(
            offset_of!($name, $field), $offset, "{}::{}", stringify!($name), stringify!($field)
        );)+
        assert_eq!(align_of::<$name>() % 4, 0);
    };
}

#[test]
fn fields_lie_where_they_always_did() {
    layout!(Info = 64 {
        abi_version: 0, max_iov: 4, features: 8, reserved0: 16, max_regions: 20,
        max_region_bytes: 24, reuse_pages: 32, page_size: 40, engines: 44, reserved: 48,
    });
    layout!(DomainCreate = 24 { flags: 0, reserved: 4, key: 8 });
    layout!(DomainJoin = 32 { flags: 0, reserved: 4, key: 8, reserved2: 24 });
    layout!(DomainLeave = 8 { flags: 0, reserved: 4 });
    layout!(Piece = 16 { base: 0, len: 8 });
    layout!(RegionCreate = 56 {
        iov: 0, iov_count: 8, rights: 12, reserved0: 16, flags: 20, replaces: 24, id: 28, result: 32,
        reserved: 36, length: 40, pages: 48,
    });
    layout!(RegionDestroy = 8 { id: 0, flags: 4 });
    layout!(RegionInfo = 48 {
        id: 0, rights: 4, length: 8, pages: 16, reserved0: 24, state: 28, reserved: 32,
    });
    layout!(RegionCopy = 72 {
        region: 0, flags: 4, offset: 8, length: 16, iov: 24, iov_count: 32,
        region_iov_count: 36, done: 40, region_iov: 48, block_len: 56, stride: 64,
    });
    layout!(RegionAttach = 32 {
        id: 0, access: 4, map_offset: 8, map_length: 16, data_offset: 24,
    });
    layout!(EngineInfo = 120 {
        index: 0, kind: 4, node: 8, channels: 12, acquired: 16, out_of_service: 20, alignment: 24,
        reserved: 28, max_transfer: 32, fragments: 40, bytes: 48, driver: 56, device: 80,
        reserved2: 112,
    });
    layout!(RequestSubmit = 64 {
        source: 0, destination: 4, source_offset: 8, destination_offset: 16, length: 24, flags: 32,
        fragment_pages: 36, reserved0: 40, id: 48, engine: 52, reserved: 56,
    });
    layout!(RequestWait = 48 {
        id: 0, flags: 4, timeout_ns: 8, reserved0: 16, done: 24, front: 32, state: 40, reserved: 44,
    });
    layout!(RequestSwitch = 40 {
        id: 0, flags: 4, copied: 8, done: 16, state: 24, reserved: 28, reserved2: 32,
    });
    layout!(RequestInfo = 80 {
        id: 0, state: 4, length: 8, done: 16, front: 24, engine_bytes: 32, cpu_bytes: 40,
        fragments: 48, fragment_pages: 56, engine: 60, mode: 64, error: 68, reserved: 72,
    });
    layout!(RequestCancel = 24 { id: 0, flags: 4, done: 8, state: 16, reserved: 20 });
    layout!(RequestStatus = 64 {
        id: 0, state: 4, next: 8, done: 16, front: 24, error: 32, reserved0: 36, reserved: 40,
    });
}

#[test]
fn commands_are_what_c_would_compute() {
    // _IOWR(0xCC, number, size)
    // 6 and 8 waited for expected uses and counted them until version 3, and are not used again.
    let all = [
        (0, GET_INFO, 64),
        (1, DOMAIN_CREATE, 24),
        (2, DOMAIN_JOIN, 32),
        (3, DOMAIN_LEAVE, 8),
        (4, REGION_CREATE, 56),
        (5, REGION_DESTROY, 8),
        (7, REGION_INFO, 48),
        (9, REGION_COPY, 72),
        (10, REGION_ATTACH, 32),
        (11, ENGINE_INFO, 120),
        (12, REQUEST_SUBMIT, 64),
        (13, REQUEST_WAIT, 48),
        (14, REQUEST_SWITCH, 40),
        (15, REQUEST_INFO, 80),
        (16, REQUEST_CANCEL, 24),
    ];
    for (number, command, size) in all {
        assert_eq!(
            command,
            0xC000_CC00 | size << 16 | number,
            "command {number}"
        );
    }
}

#[test]
fn values_never_change() {
    assert_eq!((ABI_VERSION, IOC_TYPE, MAX_IOV), (3, 0xCC, 1024));
    assert_eq!(
        (MAX_REGION_ID, ATTACH_SHIFT, MAX_REGION_BYTES),
        ((1 << 23) - 1, 40, 1 << 39)
    );
    assert_eq!((RIGHT_READ, RIGHT_WRITE, JOIN_BY_KEY), (1, 2, 2));
    assert_eq!((COPY_FROM_REGION, COPY_TO_REGION), (1, 2));
    assert_eq!((CREATE_NO_REUSE, RESULT_REUSED, DESTROY_UNPIN), (1, 1, 1));
    assert_eq!((STATE_STALE, STATE_OWNER_DEAD), (1, 2));
    assert_eq!((ENGINE_DMA, ENGINE_KTHREAD, ENGINE_WORKER), (1, 2, 3));
    assert_eq!(SUBMIT_VERIFY, 1);
    assert_eq!((REQUEST_RELEASE, SWITCH_HELP, SWITCH_NO_WAIT), (1, 1, 2));
    assert_eq!(
        (REQUEST_RUNNING, REQUEST_DONE, REQUEST_FAILED, MODE_CPU),
        (1, 2, 3, 1)
    );
    assert_eq!(
        (MAX_REQUESTS, STATUS_OFFSET, STATUS_BYTES),
        (1024, 0, 65536)
    );
}
