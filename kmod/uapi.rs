// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0

//! The ABI of `/dev/libcopy`: what user space and the kernel module agree on.
//!
//! This one file is compiled into the kernel module and into the user-space library, and the C
//! header `libcopy_uapi.h` and `docs/abi.md` are generated from it. It depends on nothing.
//!
//! # Objects
//!
//! - A **file** (an open `/dev/libcopy`) belongs to at most one domain. Whoever holds the file is
//!   a member of its domain; files may be inherited by `fork` or passed over a Unix socket.
//! - A **domain** is the set of processes that may share. Region ids mean something only inside a
//!   domain.
//! - A **region** is user memory that its owner published: pinned once, copied from or to by many.
//!
//! # Rules for every ioctl
//!
//! - The kernel recognises a command by its type ([`IOC_TYPE`]) and number; the size in the
//!   command word says how large the caller's structure is. A shorter structure is extended with
//!   zeros, a longer one is accepted if what this kernel does not know is zero (`E2BIG`
//!   otherwise), so that old and new binaries and modules work together.
//! - Reserved fields and unknown flag bits must be zero.
//! - Errors that every ioctl may return and that are not repeated below:
//!   - `ENOTTY`: unknown command.
//!   - `EINVAL`: an unknown flag, a non-zero reserved field, or a structure shorter than ABI version
//!     1 had (the `*_SIZE_VER1` constants).
//!   - `E2BIG`: the structure is longer than the kernel knows and its tail is not zero.
//!   - `EFAULT`: the argument itself is not readable or writable.
//!   - `ENOMEM`: the kernel is out of memory.
//!   - `EINTR`: a signal arrived before anything was done; call again.
//! - Every ioctl except [`GET_INFO`], [`DOMAIN_CREATE`] and [`DOMAIN_JOIN`] returns `ENOTCONN` on
//!   a file that belongs to no domain.

/// Path of the device.
pub const DEVICE_PATH: &str = "/dev/libcopy";

/// Version of this ABI; grows when something is added, never changes the meaning of what is there.
pub const ABI_VERSION: u32 = 1;

/// ioctl type ("magic") of every command.
pub const IOC_TYPE: u32 = 0xCC;

/// Returns the command word for a structure that is read and written (`_IOWR` in C).
pub const fn iowr(number: u32, size: usize) -> u32 {
    (3 << 30) | ((size as u32) << 16) | (IOC_TYPE << 8) | number
}

/// Feature bit: strided copies ([`REGION_COPY_STRIDED`]).
pub const FEATURE_STRIDED: u64 = 1 << 0;
/// Feature bit: `mmap` of regions ([`REGION_ATTACH`]).
pub const FEATURE_ATTACH: u64 = 1 << 1;
/// Feature bit: third-party copies between two regions ([`TRANSFER`]).
pub const FEATURE_TRANSFER: u64 = 1 << 2;
/// Feature bit: unmapped regions stay pinned for a while and are found again.
pub const FEATURE_REUSE: u64 = 1 << 3;

/// Peers may copy from the region, and attach it for reading.
pub const RIGHT_READ: u32 = 1 << 0;
/// Peers may copy into the region, and attach it for writing. The memory must be writable.
pub const RIGHT_WRITE: u32 = 1 << 1;

/// [`DomainJoin::flags`]: join the domain that the file descriptor `fd` belongs to.
pub const JOIN_BY_FD: u32 = 1 << 0;
/// [`DomainJoin::flags`]: join the domain that has the given key.
pub const JOIN_BY_KEY: u32 = 1 << 1;

/// [`RegionCreate::flags`]: neither look into the reuse cache nor leave the pages there later.
pub const CREATE_NO_REUSE: u32 = 1 << 0;

/// [`RegionCreate::result`]: the pages were still pinned from an earlier region.
pub const RESULT_REUSED: u32 = 1 << 0;

/// [`RegionDestroy::flags`]: unpin now instead of keeping the pages for reuse.
pub const DESTROY_UNPIN: u32 = 1 << 0;

/// [`RegionWait::flags`]: destroy the region (keeping its pages for reuse) once all uses are over.
pub const WAIT_DESTROY: u32 = 1 << 0;

/// Copy flag: from the region into the caller's memory.
pub const COPY_FROM_REGION: u32 = 1 << 0;
/// Copy flag: from the caller's memory into the region.
pub const COPY_TO_REGION: u32 = 1 << 1;
/// Copy flag: count one expected use down if the copy was complete.
pub const COPY_COUNT_USE: u32 = 1 << 2;

/// [`RegionInfo::state`]: what is behind the owner's addresses has changed since it was pinned.
pub const STATE_STALE: u32 = 1 << 0;
/// [`RegionInfo::state`]: the owner is gone.
pub const STATE_OWNER_DEAD: u32 = 1 << 1;

/// Number of pieces that the iovec of a region or of a copy may have.
pub const MAX_IOV: u32 = 1024;

/// Bytes that one [`REGION_COPY`] moves at most (2 GiB less a page, as for `read(2)`).
pub const MAX_COPY_BYTES: u64 = 0x7fff_f000;

/// Number of nested streams in a [`Layout`].
pub const MAX_STREAMS: usize = 6;

/// Largest region id; ids are given out in a circle so that a stale one is not soon in use again.
pub const MAX_REGION_ID: u32 = (1 << 23) - 1;

/// `mmap` offsets handed out by [`REGION_ATTACH`] carry the region's id from this bit on; the bits
/// below make the kernel choose an address at which huge pages can be mapped as such.
pub const ATTACH_SHIFT: u32 = 40;

/// Largest length of a region in bytes (512 GiB), so that every region can be attached.
pub const MAX_REGION_BYTES: u64 = 1 << 39;

/// Size of [`Info`] in ABI version 1; shorter structures are refused.
pub const INFO_SIZE_VER1: usize = 64;
/// Size of [`DomainCreate`] in ABI version 1.
pub const DOMAIN_CREATE_SIZE_VER1: usize = 24;
/// Size of [`DomainJoin`] in ABI version 1.
pub const DOMAIN_JOIN_SIZE_VER1: usize = 32;
/// Size of [`DomainLeave`] in ABI version 1.
pub const DOMAIN_LEAVE_SIZE_VER1: usize = 8;
/// Size of [`RegionCreate`] in ABI version 1.
pub const REGION_CREATE_SIZE_VER1: usize = 56;
/// Size of [`RegionDestroy`] in ABI version 1.
pub const REGION_DESTROY_SIZE_VER1: usize = 8;
/// Size of [`RegionWait`] in ABI version 1.
pub const REGION_WAIT_SIZE_VER1: usize = 24;
/// Size of [`RegionInfo`] in ABI version 1.
pub const REGION_INFO_SIZE_VER1: usize = 48;
/// Size of [`RegionUse`] in ABI version 1.
pub const REGION_USE_SIZE_VER1: usize = 16;
/// Size of [`RegionCopy`] in ABI version 1.
pub const REGION_COPY_SIZE_VER1: usize = 56;
/// Size of [`CopyStrided`] in ABI version 1.
pub const COPY_STRIDED_SIZE_VER1: usize = 56;
/// Size of [`Transfer`] in ABI version 1.
pub const TRANSFER_SIZE_VER1: usize = 48;
/// Size of [`RegionAttach`] in ABI version 1.
pub const REGION_ATTACH_SIZE_VER1: usize = 32;

/// Reports what the module is and can do.
///
/// Takes and returns [`Info`]; all fields are outputs. Works on a file without a domain.
pub const GET_INFO: u32 = 0xC040_CC00;

/// Creates a domain and makes the file its first member.
///
/// Takes [`DomainCreate`], returns the key in it.
///
/// - `EISCONN`: the file belongs to a domain already.
/// - `ENOSPC`: the user has 1024 domains already.
pub const DOMAIN_CREATE: u32 = 0xC018_CC01;

/// Makes the file a member of an existing domain.
///
/// Takes [`DomainJoin`] with exactly one of [`JOIN_BY_FD`] and [`JOIN_BY_KEY`].
///
/// - `EISCONN`: the file belongs to a domain already.
/// - `EBADF`: `fd` is not an open file, or not one of `/dev/libcopy`.
/// - `ENOTCONN`: the file behind `fd` belongs to no domain.
/// - `ENOENT`: no domain has this key.
/// - `EPERM`: a domain has this key, but the caller's effective user or user namespace is not
///   its creator's.
pub const DOMAIN_JOIN: u32 = 0xC020_CC02;

/// Leaves the domain in good order: the caller's regions are destroyed, and peers that wait are
/// not told that somebody died. Only the calling process leaves; others that share the file stay.
///
/// Takes [`DomainLeave`].
pub const DOMAIN_LEAVE: u32 = 0xC008_CC03;

/// Publishes a region: pins the memory described by an iovec, or finds it still pinned.
///
/// Takes [`RegionCreate`], returns `id`, `result`, `length` and `pages` in it. The caller's process
/// becomes the owner; the region goes with the process, with [`REGION_DESTROY`], or with the file.
///
/// - `EINVAL`: no right given, no piece, or more than [`MAX_IOV`] pieces.
/// - `EFAULT`: a piece is not mapped, or the iovec itself is not readable.
/// - `EACCES`: [`RIGHT_WRITE`] on memory that the owner may not write, or memory it may not read.
/// - `EOPNOTSUPP`: memory that cannot be pinned for long: device memory, writable mappings of
///   ordinary files.
/// - `ENOMEM`: the owner's `RLIMIT_MEMLOCK` would be exceeded (see `mlock(2)`), or no memory.
/// - `ENOSPC`: the domain has as many regions as the parameter `max_regions` allows.
/// - `EOVERFLOW`: the lengths add up to more than [`MAX_REGION_BYTES`].
/// - `ESTALE`: another thread changed the mapping while it was being pinned; call again.
/// - `ESHUTDOWN`: another thread has just left the domain for this process.
///
/// The region named by `replaces` is destroyed even if the new one cannot be created.
pub const REGION_CREATE: u32 = 0xC038_CC04;

/// Takes a region back. Copies under way finish; later ones get `ENOENT`. The pages stay pinned
/// for reuse unless [`DESTROY_UNPIN`] is given or the cache is full. Attached pages stay valid.
///
/// Takes [`RegionDestroy`].
///
/// - `ENOENT`: no such region.
/// - `EPERM`: the caller's process does not own it.
pub const REGION_DESTROY: u32 = 0xC008_CC05;

/// Waits until the expected uses of a region have been counted down to zero.
///
/// Takes [`RegionWait`]; `timeout_ns` is updated to what is left, so that a call interrupted by a
/// signal is simply repeated. Sleeps killably and interruptibly.
///
/// - `ENOENT`: no such region.
/// - `EINVAL`: the region has no expected uses.
/// - `ETIMEDOUT`: the time is over and uses are outstanding.
/// - `ECONNRESET`: a member of the domain died and uses are outstanding; they may never come.
/// - `EOWNERDEAD`: the owner of the region is gone.
/// - `EPERM`: [`WAIT_DESTROY`] by a process that does not own the region.
pub const REGION_WAIT: u32 = 0xC018_CC06;

/// Reports the state of a region. Takes and returns [`RegionInfo`].
///
/// - `ENOENT`: no such region.
/// - `EOWNERDEAD`: the owner is gone, and the region with it.
pub const REGION_INFO: u32 = 0xC030_CC07;

/// Counts expected uses down without copying, for peers that use load and store (see
/// [`REGION_ATTACH`]) or gave up. Takes [`RegionUse`], returns what is left.
///
/// - `ENOENT`: no such region.
/// - `EINVAL`: `count` is zero, the region has no expected uses, or fewer than `count` are left.
/// - `EOWNERDEAD`: the owner is gone.
pub const REGION_USE: u32 = 0xC010_CC08;

/// Copies between a region and the caller's memory.
///
/// Takes [`RegionCopy`] with exactly one of [`COPY_FROM_REGION`] and [`COPY_TO_REGION`]; `done` returns
/// the bytes copied. The copy moves `length` bytes, starting at byte `offset` of the region's
/// pieces laid end to end, to or from the caller's pieces laid end to end, which may hold more.
/// It may end early with `done < length` and success when a signal arrives, the caller's memory
/// faults half way, or [`MAX_COPY_BYTES`] were copied; call again for the rest. No lock is held while bytes move.
///
/// - `ENOENT`: no such region.
/// - `EACCES`: the region's rights do not allow this direction.
/// - `ERANGE`: `offset + length` is beyond the end of the region.
/// - `EINVAL`: not exactly one direction, more than [`MAX_IOV`] pieces, or pieces that hold fewer
///   than `length` bytes.
/// - `EFAULT`: the caller's memory cannot be read or written and nothing was copied.
/// - `ESTALE`: the owner unmapped or replaced the memory.
/// - `EOWNERDEAD`: the owner is gone.
pub const REGION_COPY: u32 = 0xC038_CC09;

/// Copies between a region and the caller's memory along layouts.
///
/// Takes [`CopyStrided`]. Both layouts must describe the same number of bytes; their blocks may
/// differ. A null layout pointer means "contiguous". Errors as for [`REGION_COPY`], and:
///
/// - `EINVAL`: more than [`MAX_STREAMS`] streams, layouts of different size, layouts whose extent
///   overflows, no layout on either side, or a `skip` beyond the end.
/// - `ERANGE`: the region's layout reaches outside the region.
pub const REGION_COPY_STRIDED: u32 = 0xC038_CC0A;

/// Copies from one region to another; neither needs to be the caller's ("third party").
///
/// Takes [`Transfer`]; `done` returns the bytes copied, fewer than `length` when a signal arrived.
///
/// - `ENOENT`: no such region.
/// - `EACCES`: the source lacks [`RIGHT_READ`] or the destination [`RIGHT_WRITE`].
/// - `ERANGE`: beyond the end of a region.
/// - `EINVAL`: source and destination overlap within one region.
/// - `ESTALE`, `EOWNERDEAD`: as for [`REGION_COPY`], for either region.
pub const TRANSFER: u32 = 0xC030_CC0B;

/// Asks for the `mmap` offset of a region.
///
/// Takes [`RegionAttach`]. Then `mmap(NULL, map_length, prot, MAP_SHARED, fd, map_offset)` maps the
/// region's pages; the first byte of the region is `data_offset` bytes into the mapping. The
/// mapping stays valid, and its pages pinned, until it is unmapped, whatever happens to the owner.
/// Memory that can be stored to can be loaded from, so that attaching always takes
/// [`RIGHT_READ`]. `mmap` itself fails with `EACCES` where the rights do not cover the protection,
/// `EINVAL` for a private mapping or a length beyond the end, `ENOENT`, `EOWNERDEAD` or `ENOTCONN`
/// if the region or the domain is gone meanwhile, `EOPNOTSUPP` as below, and `ESTALE` if a change
/// of the owner's memory was announced since this call: repeat it, and it tells whether the change
/// was real.
///
/// - `ENOENT`: no such region.
/// - `EINVAL`: no access asked for.
/// - `EACCES`: the rights do not cover the access asked for.
/// - `EOPNOTSUPP`: pieces that do not meet at page boundaries have no linear mapping.
/// - `ESTALE`, `EOWNERDEAD`: as for [`REGION_COPY`].
pub const REGION_ATTACH: u32 = 0xC020_CC0C;

/// Argument of [`GET_INFO`]; all outputs.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Info {
    /// [`ABI_VERSION`] of the module.
    pub abi_version: u32,
    /// Pieces an iovec may have.
    pub max_iov: u32,
    /// `FEATURE_*` bits.
    pub features: u64,
    /// Nested streams a layout may have.
    pub max_streams: u32,
    /// Regions a domain may have at a time.
    pub max_regions: u32,
    /// Bytes a region may have.
    pub max_region_bytes: u64,
    /// Pages that a process may leave pinned in the reuse cache.
    pub reuse_pages: u64,
    /// Page size in bytes.
    pub page_size: u32,
    /// Number of copy engines the module drives (0: copies are done by the CPUs).
    pub engines: u32,
    /// Zero.
    pub reserved: [u64; 2],
}

/// Argument of [`DOMAIN_CREATE`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DomainCreate {
    /// In: zero.
    pub flags: u32,
    /// In: zero.
    pub reserved: u32,
    /// Out: 128 random bits. Processes of the same user that know them may join.
    pub key: [u8; 16],
}

/// Argument of [`DOMAIN_JOIN`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DomainJoin {
    /// In: [`JOIN_BY_FD`] or [`JOIN_BY_KEY`].
    pub flags: u32,
    /// In: an open file of the domain, with [`JOIN_BY_FD`]; zero otherwise.
    pub fd: i32,
    /// In: the key, with [`JOIN_BY_KEY`]; zero otherwise.
    pub key: [u8; 16],
    /// In: zero.
    pub reserved: u64,
}

/// Argument of [`DOMAIN_LEAVE`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DomainLeave {
    /// In: zero.
    pub flags: u32,
    /// In: zero.
    pub reserved: u32,
}

/// One piece of memory; the same as `struct iovec` on 64-bit systems.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    /// Address in the caller's address space.
    pub base: u64,
    /// Bytes; may be zero.
    pub len: u64,
}

/// Argument of [`REGION_CREATE`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegionCreate {
    /// In: address of an array of [`Piece`].
    pub iov: u64,
    /// In: number of pieces, 1 to [`MAX_IOV`].
    pub iov_count: u32,
    /// In: `RIGHT_*` bits that peers get; at least one.
    pub rights: u32,
    /// In: expected uses that [`REGION_WAIT`] waits for; 0 if nobody will wait.
    pub uses: u32,
    /// In: `CREATE_*` bits.
    pub flags: u32,
    /// In: a region of the caller to destroy in the same step (0: none); it is not an error if it
    /// is gone already.
    pub replaces: u32,
    /// Out: id of the region, 1 to [`MAX_REGION_ID`].
    pub id: u32,
    /// Out: `RESULT_*` bits.
    pub result: u32,
    /// In: zero.
    pub reserved: u32,
    /// Out: length in bytes.
    pub length: u64,
    /// Out: pages the region holds.
    pub pages: u64,
}

/// Argument of [`REGION_DESTROY`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegionDestroy {
    /// In: the region.
    pub id: u32,
    /// In: `DESTROY_*` bits.
    pub flags: u32,
}

/// Argument of [`REGION_WAIT`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegionWait {
    /// In: the region.
    pub id: u32,
    /// In: `WAIT_*` bits.
    pub flags: u32,
    /// In: nanoseconds to wait, negative for ever. Out: what is left (unchanged if negative).
    pub timeout_ns: i64,
    /// Out: expected uses left.
    pub uses_left: u32,
    /// In: zero.
    pub reserved: u32,
}

/// Argument of [`REGION_INFO`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegionInfo {
    /// In: the region.
    pub id: u32,
    /// Out: `RIGHT_*` bits.
    pub rights: u32,
    /// Out: length in bytes.
    pub length: u64,
    /// Out: pages the region holds.
    pub pages: u64,
    /// Out: physically contiguous runs that these pages form.
    pub runs: u64,
    /// Out: expected uses left.
    pub uses_left: u32,
    /// Out: `STATE_*` bits.
    pub state: u32,
    /// Zero.
    pub reserved: u64,
}

/// Argument of [`REGION_USE`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegionUse {
    /// In: the region.
    pub id: u32,
    /// In: zero.
    pub flags: u32,
    /// In: uses to count down, at least 1.
    pub count: u32,
    /// Out: expected uses left.
    pub uses_left: u32,
}

/// Argument of [`REGION_COPY`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegionCopy {
    /// In: the region.
    pub region: u32,
    /// In: `COPY_*` bits.
    pub flags: u32,
    /// In: first byte within the region.
    pub offset: u64,
    /// In: bytes to copy; may be zero.
    pub length: u64,
    /// In: address of an array of [`Piece`] of the caller.
    pub iov: u64,
    /// In: number of pieces, 0 to [`MAX_IOV`].
    pub iov_count: u32,
    /// In: zero.
    pub reserved: u32,
    /// Out: bytes copied.
    pub done: u64,
    /// In: zero.
    pub reserved2: u64,
}

/// One level of a [`Layout`]: `count` repetitions, `stride` bytes apart.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stream {
    /// Repetitions; 0 makes the layout empty.
    pub count: u64,
    /// Bytes from one repetition to the next; may be negative.
    pub stride: i64,
}

/// Nested streams over a block of contiguous bytes.
///
/// The bytes are visited in this order: for each index of `streams[0]` (outermost), for each index
/// of `streams[1]`, ..., the `block` bytes at `offset + sum(index[i] * streams[i].stride)`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// Where the block of all indices zero starts, relative to the region or to `user_addr`.
    pub offset: i64,
    /// Contiguous bytes per block.
    pub block: u64,
    /// Number of streams in use, 0 to [`MAX_STREAMS`].
    pub stream_count: u32,
    /// In: zero.
    pub reserved: u32,
    /// The streams, outermost first; those beyond `stream_count` are zero.
    pub streams: [Stream; MAX_STREAMS],
}

/// Argument of [`REGION_COPY_STRIDED`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyStrided {
    /// In: the region.
    pub region: u32,
    /// In: `COPY_*` bits.
    pub flags: u32,
    /// In: address of the [`Layout`] of the region's side, or 0: contiguous from byte 0.
    pub region_layout: u64,
    /// In: address that the caller's layout is relative to.
    pub user_addr: u64,
    /// In: address of the [`Layout`] of the caller's side, or 0: contiguous at `user_addr`.
    pub user_layout: u64,
    /// In: bytes of the layouts' packed order to skip, to continue a copy that ended early.
    pub skip: u64,
    /// Out: bytes copied, beyond `skip`.
    pub done: u64,
    /// In: zero.
    pub reserved: u64,
}

/// Argument of [`TRANSFER`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transfer {
    /// In: region to copy from.
    pub source: u32,
    /// In: region to copy to.
    pub destination: u32,
    /// In: first byte within the source.
    pub source_offset: u64,
    /// In: first byte within the destination.
    pub destination_offset: u64,
    /// In: bytes to copy.
    pub length: u64,
    /// In: [`COPY_COUNT_USE`] counts one use of **both** regions (of those that expect any).
    pub flags: u32,
    /// In: zero.
    pub reserved: u32,
    /// Out: bytes copied.
    pub done: u64,
}

/// Argument of [`REGION_ATTACH`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegionAttach {
    /// In: the region.
    pub id: u32,
    /// In: access wanted, `RIGHT_*` bits.
    pub access: u32,
    /// Out: offset to pass to `mmap`.
    pub map_offset: u64,
    /// Out: length to pass to `mmap`.
    pub map_length: u64,
    /// Out: where the first byte of the region is in the mapping.
    pub data_offset: u64,
}

const _: () = {
    use core::mem::size_of;
    assert!(GET_INFO == iowr(0, size_of::<Info>()));
    assert!(DOMAIN_CREATE == iowr(1, size_of::<DomainCreate>()));
    assert!(DOMAIN_JOIN == iowr(2, size_of::<DomainJoin>()));
    assert!(DOMAIN_LEAVE == iowr(3, size_of::<DomainLeave>()));
    assert!(REGION_CREATE == iowr(4, size_of::<RegionCreate>()));
    assert!(REGION_DESTROY == iowr(5, size_of::<RegionDestroy>()));
    assert!(REGION_WAIT == iowr(6, size_of::<RegionWait>()));
    assert!(REGION_INFO == iowr(7, size_of::<RegionInfo>()));
    assert!(REGION_USE == iowr(8, size_of::<RegionUse>()));
    assert!(REGION_COPY == iowr(9, size_of::<RegionCopy>()));
    assert!(REGION_COPY_STRIDED == iowr(10, size_of::<CopyStrided>()));
    assert!(TRANSFER == iowr(11, size_of::<Transfer>()));
    assert!(REGION_ATTACH == iowr(12, size_of::<RegionAttach>()));
    assert!(size_of::<Piece>() == 16);
    assert!(size_of::<Layout>() == 24 + 16 * MAX_STREAMS);
};
