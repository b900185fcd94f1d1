// SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR MIT OR Apache-2.0

//! The ABI of `/dev/libcopy`: what user space and the kernel module agree on.
//!
//! This one file is compiled into the kernel module and into the user-space library, and the C
//! headers and the document of the ABI are generated from it. It depends on nothing.
//!
//! # Objects
//!
//! - A **file** (an open `/dev/libcopy`) belongs to at most one domain. Whoever holds the file is
//!   a member of its domain; files may be inherited by `fork` or passed over a Unix socket.
//! - A **domain** is the set of processes that may share. Region ids mean something only inside a
//!   domain.
//! - A **region** is user memory that its owner published: pinned once, copied from or to by many.
//! - An **engine** moves bytes without the caller: the channels of a DMA engine, kernel threads, or
//!   a thread of the process that submits.
//! - A **request** is a transfer between two regions that an engine works on while its submitter
//!   goes on: a queue of fragments, claimed one by one by the engine or by CPUs that help.
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
//!   - `EINVAL`: an unknown flag, a non-zero reserved field, or a structure shorter than ABI
//!     version 1 had (the `*_SIZE_VER1` constants).
//!   - `E2BIG`: the structure is longer than the kernel knows and its tail is not zero.
//!   - `EFAULT`: the argument itself is not readable or writable. If it can be read but the answer
//!     cannot be written, the call may have taken effect: bytes were copied, a request was
//!     cancelled ([`REQUEST_CANCEL`]) or switched to CPUs ([`REQUEST_SWITCH`]), a domain was
//!     created whose key nobody knows ([`DOMAIN_CREATE`]). Regions and requests whose id could not
//!     be told do not exist.
//!   - `ENOMEM`: the kernel is out of memory.
//!   - `EINTR`: a signal arrived before anything was done; call again.
//! - Every ioctl except [`GET_INFO`] and [`ENGINE_INFO`] returns `EBADF` on a file that was not
//!   opened for reading and writing.
//! - Every ioctl except [`GET_INFO`], [`ENGINE_INFO`], [`DOMAIN_CREATE`] and [`DOMAIN_JOIN`]
//!   returns `ENOTCONN` on a file that belongs to no domain.
//!
//! # Status table
//!
//! `mmap(NULL, STATUS_BYTES, PROT_READ, MAP_SHARED, fd, STATUS_OFFSET)` on a file of a domain shows
//! its [`MAX_REQUESTS`] requests, one [`RequestStatus`] each, for waiting without a system call.
//! The entry of request `id` has the index `id % MAX_REQUESTS`. It is written by the kernel alone,
//! which reads nothing back; nobody can map it for writing (`EACCES`), nor privately (`EINVAL`).
//!
//! An engine writes the destination before `done` and `front` grow (release; load them with
//! acquire). `state` is written last: load it first. An entry whose `id` is another one belongs to
//! a later request.

/// Path of the device.
pub const DEVICE_PATH: &str = "/dev/libcopy";

/// Version of this ABI. Version 3 is without what nobody used: expected uses and waiting for them,
/// joining by file, choosing an engine by node, waiting for a part of a request, and being told by
/// `poll` or an eventfd. Numbers and fields of these are not used again.
pub const ABI_VERSION: u32 = 3;

/// ioctl type ("magic") of every command.
pub const IOC_TYPE: u32 = 0xCC;

/// Returns the command word for a structure that is read and written (`_IOWR` in C).
pub const fn iowr(number: u32, size: usize) -> u32 {
    (3 << 30) | ((size as u32) << 16) | (IOC_TYPE << 8) | number
}

/// Feature bit: `mmap` of regions ([`REGION_ATTACH`]).
pub const FEATURE_ATTACH: u64 = 1 << 0;
/// Feature bit: unmapped regions stay pinned for a while and are found again.
pub const FEATURE_REUSE: u64 = 1 << 1;
/// Feature bit: requests that engines work on ([`REQUEST_SUBMIT`]); since ABI version 2.
pub const FEATURE_REQUEST: u64 = 1 << 2;

/// Peers may copy from the region, and attach it for reading.
pub const RIGHT_READ: u32 = 1 << 0;
/// Peers may copy into the region, and attach it for writing. The memory must be writable.
pub const RIGHT_WRITE: u32 = 1 << 1;

/// [`DomainJoin::flags`]: join the domain that has the given key.
pub const JOIN_BY_KEY: u32 = 1 << 1;

/// [`RegionCreate::flags`]: neither look into the reuse cache nor leave the pages there later.
pub const CREATE_NO_REUSE: u32 = 1 << 0;

/// [`RegionCreate::result`]: the pages were still pinned from an earlier region.
pub const RESULT_REUSED: u32 = 1 << 0;

/// [`RegionDestroy::flags`]: unpin now instead of keeping the pages for reuse.
pub const DESTROY_UNPIN: u32 = 1 << 0;

/// Copy flag: from the region into the caller's memory.
pub const COPY_FROM_REGION: u32 = 1 << 0;
/// Copy flag: from the caller's memory into the region.
pub const COPY_TO_REGION: u32 = 1 << 1;

/// [`EngineInfo::kind`]: channels of a DMA engine.
pub const ENGINE_DMA: u32 = 1;
/// [`EngineInfo::kind`]: a kernel thread (module parameter `engine=kthread`).
pub const ENGINE_KTHREAD: u32 = 2;
/// [`EngineInfo::kind`]: a thread of the process that submits (a module built with
/// `LIBCOPY_ENGINES=n`, which has no other engine).
pub const ENGINE_WORKER: u32 = 3;

/// [`RequestSubmit::flags`]: compare CRC32C of source and destination when everything is copied.
/// What differs is copied again by a CPU; what still differs fails with `EIO`. Until the end,
/// `done` and `front` then say only what was copied.
pub const SUBMIT_VERIFY: u32 = 1 << 0;

/// [`RequestWait::flags`]: forget the request if it has ended (whether well or not).
pub const REQUEST_RELEASE: u32 = 1 << 0;

/// [`RequestSwitch::flags`]: leave the engine working; the caller only helps.
pub const SWITCH_HELP: u32 = 1 << 0;
/// [`RequestSwitch::flags`]: return when nothing is left to claim, without waiting for fragments
/// that others still work on.
pub const SWITCH_NO_WAIT: u32 = 1 << 1;

/// State of a request: being worked on.
pub const REQUEST_RUNNING: u32 = 1;
/// State of a request: every byte is where it belongs.
pub const REQUEST_DONE: u32 = 2;
/// State of a request: ended before that; nobody writes to the destination for it any more.
pub const REQUEST_FAILED: u32 = 3;

/// [`RequestInfo::mode`]: the engine takes no more fragments.
pub const MODE_CPU: u32 = 1 << 0;

/// [`RegionInfo::state`]: what is behind the owner's addresses has changed since it was pinned.
pub const STATE_STALE: u32 = 1 << 0;
/// [`RegionInfo::state`]: the owner is gone.
pub const STATE_OWNER_DEAD: u32 = 1 << 1;

/// Number of pieces that the iovec of a region or of a copy may have.
pub const MAX_IOV: u32 = 1024;

/// Bytes that one [`REGION_COPY`] moves at most (2 GiB less a page, as for `read(2)`).
pub const MAX_COPY_BYTES: u64 = 0x7fff_f000;

/// Largest region id; ids are given out in a circle so that a stale one is not soon in use again.
pub const MAX_REGION_ID: u32 = (1 << 23) - 1;

/// `mmap` offsets handed out by [`REGION_ATTACH`] carry the region's id from this bit on; the bits
/// below make the kernel choose an address at which huge pages can be mapped as such.
pub const ATTACH_SHIFT: u32 = 40;

/// Largest length of a region in bytes (512 GiB), so that every region can be attached.
pub const MAX_REGION_BYTES: u64 = 1 << 39;

/// Requests a domain may have at a time. A power of two.
pub const MAX_REQUESTS: u32 = 1024;

/// Fragments a request may have; larger ones get larger fragments.
pub const MAX_FRAGMENTS: u64 = 1 << 20;

/// Largest [`RequestSubmit::fragment_pages`].
pub const MAX_FRAGMENT_PAGES: u32 = 4096;

/// `mmap` offset of the status table.
pub const STATUS_OFFSET: u64 = 0;

/// Length of the status table in bytes.
pub const STATUS_BYTES: u64 = 65536;

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
/// Size of [`RegionInfo`] in ABI version 1.
pub const REGION_INFO_SIZE_VER1: usize = 48;
/// Size of [`RegionCopy`] in ABI version 1.
pub const REGION_COPY_SIZE_VER1: usize = 72;
/// Size of [`RegionAttach`] in ABI version 1.
pub const REGION_ATTACH_SIZE_VER1: usize = 32;
/// Size of [`EngineInfo`] in ABI version 2, which had it first.
pub const ENGINE_INFO_SIZE_VER2: usize = 120;
/// Size of [`RequestSubmit`] in ABI version 2.
pub const REQUEST_SUBMIT_SIZE_VER2: usize = 64;
/// Size of [`RequestWait`] in ABI version 2.
pub const REQUEST_WAIT_SIZE_VER2: usize = 48;
/// Size of [`RequestSwitch`] in ABI version 2.
pub const REQUEST_SWITCH_SIZE_VER2: usize = 40;
/// Size of [`RequestInfo`] in ABI version 2.
pub const REQUEST_INFO_SIZE_VER2: usize = 80;
/// Size of [`RequestCancel`] in ABI version 2.
pub const REQUEST_CANCEL_SIZE_VER2: usize = 24;

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
/// Takes [`DomainJoin`] with [`JOIN_BY_KEY`].
///
/// - `EISCONN`: the file belongs to a domain already.
/// - `ENOENT`: no domain has this key.
/// - `EPERM`: a domain has this key, but the caller's effective user or user namespace is not
///   its creator's.
pub const DOMAIN_JOIN: u32 = 0xC020_CC02;

/// Leaves the domain in good order: the caller's requests are cancelled (see [`REQUEST_CANCEL`]),
/// its regions are destroyed. Only the calling process leaves; others that share the file stay.
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
/// - `ENOMEM`: the owner's `RLIMIT_MEMLOCK` would be exceeded (see `mlock(2)`), or no memory. Pages
///   count once for each piece that touches them, and a region without bytes as one. What requests
///   still hold of regions that the user's processes have taken back counts, too. The processes of
///   a user pin at most twice as much as the machine has.
/// - `ENOSPC`: the domain has as many regions as the parameter `max_regions` allows, or the user's
///   processes have 65,536 together, those kept for reuse included.
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

/// Reports the state of a region. Takes and returns [`RegionInfo`].
///
/// - `ENOENT`: no such region.
/// - `EOWNERDEAD`: the owner is gone, and the region with it.
/// - `EINTR`, `ENOMEM`: a signal arrived, or memory was short, before it was known whether the
///   owner's memory has changed. That says nothing about it ([`STATE_STALE`] would); ask again.
pub const REGION_INFO: u32 = 0xC030_CC07;

/// Copies between a region and the caller's memory.
///
/// Takes [`RegionCopy`] with exactly one of [`COPY_FROM_REGION`] and [`COPY_TO_REGION`]; `done`
/// returns the bytes copied. The copy moves `length` bytes, starting at byte `offset` of the
/// region's pieces laid end to end, to or from the caller's pieces laid end to end, which may hold
/// more. With `region_iov` it is vectored on the region's side, too: the bytes are those of the
/// ranges that `region_iov` lists, laid end to end, which may hold more; a range begins `base`
/// bytes behind `offset`. With `block_len` the ranges are `region_iov_count` blocks of that many
/// bytes each, whose offsets, relative to `offset`, are given in one of two ways: `region_iov` is
/// an array of 32-bit signed numbers, or it is zero, and each block begins `stride` bytes behind
/// the one before it. Blocks are looked at as the copy comes to them, those of an array in groups:
/// one that is not wholly in the region, and an array that cannot be read on, end the copy before
/// that block or group. It may end early with `done < length` and success when a signal arrives,
/// the caller's memory faults or a block is outside half way, or [`MAX_COPY_BYTES`] were copied;
/// call again for the rest. No lock is held while bytes move.
///
/// - `ENOENT`: no such region.
/// - `EACCES`: the region's rights do not allow this direction.
/// - `ERANGE`: `offset + length`, or one of the ranges, is beyond the end of the region; `offset`
///   is, or `stride` is longer than any region, with blocks; or the first block is outside, and
///   nothing was copied.
/// - `EINVAL`: not exactly one direction, more than [`MAX_IOV`] pieces or ranges that are not
///   blocks, pieces or ranges that hold fewer than `length` bytes, `region_iov` or `stride` without
///   ranges, or `stride` without blocks or with an array.
/// - `EFAULT`: the caller's memory cannot be read or written, or the region's has lost what was in
///   it, and nothing was copied.
/// - `ESTALE`: the owner unmapped or replaced the memory.
/// - `EOWNERDEAD`: the owner is gone.
pub const REGION_COPY: u32 = 0xC048_CC09;

/// Asks for the `mmap` offset of a region.
///
/// Takes [`RegionAttach`]. Then `mmap(NULL, map_length, prot, MAP_SHARED, fd, map_offset)` maps the
/// region's pages; the first byte of the region is `data_offset` bytes into the mapping. The
/// mapping stays valid, and its pages pinned, until it is unmapped, whatever happens to the owner.
/// Memory that can be stored to can be loaded from, so that attaching always takes [`RIGHT_READ`].
/// All pages of the region count against the `RLIMIT_MEMLOCK` of the process that maps it, together
/// with what else its user has attached; what the user has attached already is free. `mmap` itself
/// fails with `ENOMEM` beyond that limit, `EACCES` where the rights do not cover the protection,
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
pub const REGION_ATTACH: u32 = 0xC020_CC0A;

/// Describes one engine.
///
/// Takes [`EngineInfo`] with an `index` from 0 to [`Info::engines`] less 1. Works on a file without
/// a domain. Engines are looked for by this call and by [`GET_INFO`]; their channels are acquired
/// when the first request needs them. An engine that has gone keeps its index, with no channels.
///
/// - `ENOENT`: there is no engine with this index.
pub const ENGINE_INFO: u32 = 0xC078_CC0B;

/// Gives a transfer between two regions to an engine and returns at once; neither region needs to
/// be the caller's. The engine is one near the caller, its channel the one that the caller's
/// process was given (round-robin). Both regions stay pinned until the request has ended, whatever
/// happens to their owners; if one of those dies, the request ends with `EOWNERDEAD`. If an engine
/// fails, or does not answer within the parameter `engine_deadline_ms`, a CPU copies what is
/// missing.
///
/// Takes [`RequestSubmit`], returns `id`, `fragment_pages` and `engine` in it. The request lives
/// until [`REQUEST_WAIT`] releases it, until [`REQUEST_CANCEL`], or until its submitter is gone.
///
/// - `ENOENT`, `ERANGE`, `ESTALE`, `EOWNERDEAD`: as for [`REGION_COPY`], for either region.
/// - `EACCES`: the source lacks [`RIGHT_READ`] or the destination [`RIGHT_WRITE`].
/// - `EINVAL`: source and destination overlap within one region, or `fragment_pages` is above
///   [`MAX_FRAGMENT_PAGES`].
/// - `ENODEV`: there is no engine: let a CPU copy ([`REGION_COPY`]).
/// - `EAGAIN`: the caller's process, user or cgroup may have no more threads (`RLIMIT_NPROC`,
///   `pids.max`), and one is needed for what engines leave to CPUs: let a CPU copy.
/// - `ENOSPC`: the domain has [`MAX_REQUESTS`] requests that were not released, or the processes of
///   the caller's user have submitted as many as the parameter `max_user_requests` says; a request
///   that was released counts until engines are through with it.
/// - `ESHUTDOWN`: another thread has just left the domain for this process.
pub const REQUEST_SUBMIT: u32 = 0xC040_CC0C;

/// Waits until a request has ended.
///
/// Takes [`RequestWait`]; `timeout_ns` is updated to what is left, so that a call interrupted by a
/// signal is simply repeated. All outputs are valid also with the errors from `ETIMEDOUT` on. Any
/// member of the domain may wait. The status table tells the same without a system call.
///
/// - `ENOENT`: no such request.
/// - `EPERM`: [`REQUEST_RELEASE`] by a process that did not submit it.
/// - `ETIMEDOUT`: the time is over. This error, and `EINTR`, are returned only if the request has
///   not ended: with [`REQUEST_RELEASE`] it is still there.
/// - `EOWNERDEAD`: the owner of a region died before everything was copied.
/// - `EIO`: verification found a difference that copying again did not mend.
/// - `ECANCELED`: the request was cancelled, or its submitter is gone.
pub const REQUEST_WAIT: u32 = 0xC030_CC0D;

/// Switches a request from the engine to CPUs: the engine claims no more fragments, the caller
/// copies what nobody has claimed, and what others have claimed is waited for. Nothing is copied
/// twice. Any member of the domain may do this, several may share the work, and it may be called
/// from a signal handler. When it returns without error, every byte is in place.
///
/// Takes [`RequestSwitch`]; `copied` is what this call has copied. Errors as for [`REQUEST_WAIT`];
/// after `EINTR` call again.
///
/// - `ETIMEDOUT`: with [`SWITCH_NO_WAIT`], others still work on fragments.
pub const REQUEST_SWITCH: u32 = 0xC028_CC0E;

/// Reports how far a request is and who did the work. Takes and returns [`RequestInfo`].
///
/// - `ENOENT`: no such request.
pub const REQUEST_INFO: u32 = 0xC050_CC0F;

/// Stops a request, waits for what the engine has begun, and forgets the request. When this returns
/// without error, nobody writes to the destination for it any more. If it had ended before, it is
/// just forgotten.
///
/// Takes [`RequestCancel`].
///
/// - `ENOENT`: no such request.
/// - `EPERM`: the caller's process did not submit it.
pub const REQUEST_CANCEL: u32 = 0xC018_CC10;

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
    /// Zero.
    pub reserved0: u32,
    /// Regions a domain may have at a time.
    pub max_regions: u32,
    /// Bytes a region may have.
    pub max_region_bytes: u64,
    /// Pages that a process may leave pinned in the reuse cache.
    pub reuse_pages: u64,
    /// Page size in bytes.
    pub page_size: u32,
    /// Number of copy engines the module drives or could drive (0: copies are done by the CPUs).
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
    /// In: [`JOIN_BY_KEY`].
    pub flags: u32,
    /// In: zero.
    pub reserved: u32,
    /// In: the key.
    pub key: [u8; 16],
    /// In: zero.
    pub reserved2: u64,
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
    /// In: zero.
    pub reserved0: u32,
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
    /// Zero.
    pub reserved0: u32,
    /// Out: `STATE_*` bits.
    pub state: u32,
    /// Zero.
    pub reserved: [u64; 2],
}

/// Argument of [`REGION_COPY`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegionCopy {
    /// In: the region.
    pub region: u32,
    /// In: `COPY_*` bits.
    pub flags: u32,
    /// In: first byte within the region; ranges count from here.
    pub offset: u64,
    /// In: bytes to copy; may be zero.
    pub length: u64,
    /// In: address of an array of [`Piece`] of the caller.
    pub iov: u64,
    /// In: number of pieces, 0 to [`MAX_IOV`].
    pub iov_count: u32,
    /// In: number of ranges of the region, 0 to [`MAX_IOV`]; 0: one of `length` bytes. Of blocks,
    /// any number.
    pub region_iov_count: u32,
    /// Out: bytes copied.
    pub done: u64,
    /// In: address of an array of [`Piece`] whose `base` counts from `offset`, or of the 32-bit
    /// offsets of blocks; zero without ranges, and for blocks at equal distances.
    pub region_iov: u64,
    /// In: bytes of each block; zero if the ranges are no blocks.
    pub block_len: u64,
    /// In: bytes from the beginning of a block to that of the next one, without an array; zero
    /// otherwise.
    pub stride: i64,
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

/// Argument of [`ENGINE_INFO`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineInfo {
    /// In: the engine.
    pub index: u32,
    /// Out: [`ENGINE_DMA`], [`ENGINE_KTHREAD`] or [`ENGINE_WORKER`].
    pub kind: u32,
    /// Out: its NUMA node; -1 if it is near none.
    pub node: i32,
    /// Out: channels that exist and that nobody else uses.
    pub channels: u32,
    /// Out: channels that the module has acquired.
    pub acquired: u32,
    /// Out: acquired channels that are out of service after a failure.
    pub out_of_service: u32,
    /// Out: what addresses and lengths must be multiples of for the engine to copy them, in bytes.
    pub alignment: u32,
    /// In: zero.
    pub reserved: u32,
    /// Out: bytes that one descriptor moves at most.
    pub max_transfer: u64,
    /// Out: fragments this engine has moved.
    pub fragments: u64,
    /// Out: bytes this engine has moved.
    pub bytes: u64,
    /// Out: name of the driver, ended by a zero.
    pub driver: [u8; 24],
    /// Out: name of the (first) device, ended by a zero.
    pub device: [u8; 32],
    /// Zero.
    pub reserved2: u64,
}

/// Argument of [`REQUEST_SUBMIT`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestSubmit {
    /// In: region to copy from.
    pub source: u32,
    /// In: region to copy to.
    pub destination: u32,
    /// In: first byte within the source.
    pub source_offset: u64,
    /// In: first byte within the destination.
    pub destination_offset: u64,
    /// In: bytes to copy; may be zero.
    pub length: u64,
    /// In: `SUBMIT_*` bits.
    pub flags: u32,
    /// In: pages per fragment; 0: as the parameter `fragment_pages` says. Out: as it is.
    pub fragment_pages: u32,
    /// In: zero.
    pub reserved0: u64,
    /// Out: id of the request; never zero.
    pub id: u32,
    /// Out: index of the engine.
    pub engine: u32,
    /// In: zero.
    pub reserved: u64,
}

/// Argument of [`REQUEST_WAIT`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestWait {
    /// In: the request.
    pub id: u32,
    /// In: [`REQUEST_RELEASE`] or zero.
    pub flags: u32,
    /// In: nanoseconds to wait, negative for ever. Out: what is left (unchanged if negative).
    pub timeout_ns: i64,
    /// In: zero.
    pub reserved0: u64,
    /// Out: bytes in place, anywhere.
    pub done: u64,
    /// Out: bytes in place from the front without a gap.
    pub front: u64,
    /// Out: `REQUEST_*` state.
    pub state: u32,
    /// In: zero.
    pub reserved: u32,
}

/// Argument of [`REQUEST_SWITCH`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestSwitch {
    /// In: the request.
    pub id: u32,
    /// In: `SWITCH_*` bits.
    pub flags: u32,
    /// Out: bytes that this call has copied.
    pub copied: u64,
    /// Out: bytes in place, anywhere.
    pub done: u64,
    /// Out: `REQUEST_*` state.
    pub state: u32,
    /// In: zero.
    pub reserved: u32,
    /// In: zero.
    pub reserved2: u64,
}

/// Argument of [`REQUEST_INFO`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestInfo {
    /// In: the request.
    pub id: u32,
    /// Out: `REQUEST_*` state.
    pub state: u32,
    /// Out: bytes to copy.
    pub length: u64,
    /// Out: bytes in place, anywhere.
    pub done: u64,
    /// Out: bytes in place from the front without a gap.
    pub front: u64,
    /// Out: bytes that the engine moved.
    pub engine_bytes: u64,
    /// Out: bytes that CPUs copied.
    pub cpu_bytes: u64,
    /// Out: fragments.
    pub fragments: u64,
    /// Out: pages per fragment.
    pub fragment_pages: u32,
    /// Out: index of the engine.
    pub engine: u32,
    /// Out: `MODE_*` bits.
    pub mode: u32,
    /// Out: errno of a request that failed, otherwise zero.
    pub error: i32,
    /// Zero.
    pub reserved: u64,
}

/// Argument of [`REQUEST_CANCEL`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestCancel {
    /// In: the request.
    pub id: u32,
    /// In: zero.
    pub flags: u32,
    /// Out: bytes in place, anywhere.
    pub done: u64,
    /// Out: `REQUEST_*` state in which the request was forgotten.
    pub state: u32,
    /// In: zero.
    pub reserved: u32,
}

/// One entry of the status table.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestStatus {
    /// The request that the entry describes; zero: none yet.
    pub id: u32,
    /// `REQUEST_*` state.
    pub state: u32,
    /// Fragments claimed so far.
    pub next: u64,
    /// Bytes in place, anywhere.
    pub done: u64,
    /// Bytes in place from the front without a gap.
    pub front: u64,
    /// Errno of a request that failed, otherwise zero.
    pub error: i32,
    /// Zero.
    pub reserved0: u32,
    /// Zero.
    pub reserved: [u64; 3],
}

const _: () = {
    use core::mem::size_of;
    assert!(GET_INFO == iowr(0, size_of::<Info>()));
    assert!(DOMAIN_CREATE == iowr(1, size_of::<DomainCreate>()));
    assert!(DOMAIN_JOIN == iowr(2, size_of::<DomainJoin>()));
    assert!(DOMAIN_LEAVE == iowr(3, size_of::<DomainLeave>()));
    assert!(REGION_CREATE == iowr(4, size_of::<RegionCreate>()));
    assert!(REGION_DESTROY == iowr(5, size_of::<RegionDestroy>()));
    assert!(REGION_INFO == iowr(7, size_of::<RegionInfo>()));
    assert!(REGION_COPY == iowr(9, size_of::<RegionCopy>()));
    assert!(REGION_ATTACH == iowr(10, size_of::<RegionAttach>()));
    assert!(ENGINE_INFO == iowr(11, size_of::<EngineInfo>()));
    assert!(REQUEST_SUBMIT == iowr(12, size_of::<RequestSubmit>()));
    assert!(REQUEST_WAIT == iowr(13, size_of::<RequestWait>()));
    assert!(REQUEST_SWITCH == iowr(14, size_of::<RequestSwitch>()));
    assert!(REQUEST_INFO == iowr(15, size_of::<RequestInfo>()));
    assert!(REQUEST_CANCEL == iowr(16, size_of::<RequestCancel>()));
    assert!(size_of::<RequestStatus>() as u64 * MAX_REQUESTS as u64 == STATUS_BYTES);
    assert!(size_of::<Piece>() == 16);
};
