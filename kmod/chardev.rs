// SPDX-License-Identifier: GPL-2.0

//! The device: file operations, and the ioctl table that maps a command to its work.
//!
//! The kernel crate's `MiscDevice` has neither `poll` nor an owner for its operations (which would
//! let the module be unloaded under an open file), so the table of operations is built here.

use crate::attach;
use crate::channel::Channel;
use crate::copy;
use crate::domain::Domain;
use crate::engine;
use crate::errno;
use crate::member::{Events, Member};
use crate::params;
use crate::region::Region;
use crate::request::Request;
use crate::shim;
use crate::strided;
use crate::uapi::{self, *};
use core::mem::{size_of, MaybeUninit};
use kernel::bindings;
use kernel::ffi::{c_int, c_long, c_uint, c_ulong};
use kernel::fs::{File, LocalFile};
use kernel::mm::virt::VmaNew;
use kernel::mm::MmWithUser;
use kernel::page::PAGE_SIZE;
use kernel::prelude::*;
use kernel::seq_file::SeqFile;
use kernel::seq_print;
use kernel::sync::atomic::{Atomic, Relaxed};
use kernel::sync::poll::PollTable;
use kernel::sync::{new_mutex, Arc, Mutex, SetOnce};
use kernel::types::Opaque;
use kernel::uaccess::{UserPtr, UserSlice};

const EPOLLIN: u32 = 0x001;
const EPOLLRDNORM: u32 = 0x040;
const EPOLLERR: u32 = 0x008;

/// What an open file stands for.
#[pin_data]
struct Handle {
    /// Set once, by create or join.
    domain: SetOnce<Arc<Domain>>,
    /// The processes that use the file. The lock also serialises create and join, so that the
    /// loser takes nothing.
    #[pin]
    members: Mutex<KVec<Arc<Member>>>,
    /// The first of them, which is the only one that nearly every file ever has; found without
    /// the lock.
    first: SetOnce<Arc<Member>>,
    /// What `poll` reports.
    events: Arc<Events>,
}

impl Handle {
    fn new() -> Result<Pin<KBox<Self>>> {
        let events = Arc::new(
            Events {
                completed: Atomic::new(0),
            },
            GFP_KERNEL_ACCOUNT,
        )?;
        KBox::pin_init(
            pin_init!(Self {
                domain: SetOnce::new(),
                members <- new_mutex!(KVec::new()),
                first: SetOnce::new(),
                events,
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    fn domain(&self) -> Result<&Arc<Domain>> {
        self.domain.as_ref().ok_or_else(errno::enotconn)
    }

    /// The calling process as a member; it becomes one with its first use of an inherited file.
    fn member(&self, mm: &MmWithUser) -> Result<Arc<Member>> {
        let domain = self.domain()?;
        if let Some(first) = self.first.as_ref() {
            if first.is(mm) && !first.has_left() {
                return Ok(first.clone());
            }
        }
        {
            let members = self.members.lock();
            if let Some(known) = members
                .iter()
                .find(|member| member.is(mm) && !member.has_left())
            {
                return Ok(known.clone());
            }
        }
        // The memory manager's locks are taken in here, so ours is not held.
        let new = Member::new(mm, domain, &self.events)?;
        let mut members = self.members.lock();
        if let Some(known) = members
            .iter()
            .find(|member| member.is(mm) && !member.has_left())
        {
            let known = known.clone();
            drop(members);
            new.depart();
            return Ok(known);
        }
        members.retain(|member| !member.has_left());
        if let Err(error) = members.push(new.clone(), GFP_KERNEL_ACCOUNT) {
            drop(members);
            new.depart();
            return Err(error.into());
        }
        drop(members);
        self.first.populate(new.clone());
        Ok(new)
    }

    /// Puts the file into the domain that `find` returns, already counted as a file of it, with the
    /// calling process as its first member.
    fn enter(&self, find: impl FnOnce() -> Result<Arc<Domain>>) -> Result<&Arc<Domain>> {
        if self.domain.as_ref().is_some() {
            return Err(errno::eisconn());
        }
        let mm = current_mm()?;
        let domain = find()?;
        // What can be interrupted comes first: an error leaves the file as it was.
        let entered = Member::new(mm, &domain, &self.events).and_then(|member| {
            let mut members = self.members.lock();
            let room = if self.domain.as_ref().is_some() {
                Err(errno::eisconn())
            } else {
                members.reserve(1, GFP_KERNEL_ACCOUNT).map_err(Error::from)
            };
            if let Err(error) = room {
                drop(members);
                member.depart();
                return Err(error);
            }
            self.domain.populate(domain.clone());
            let _ = members.push_within_capacity(member.clone());
            drop(members);
            self.first.populate(member);
            Ok(())
        });
        if let Err(error) = entered {
            domain.file_released();
            return Err(error);
        }
        self.domain()
    }
}

/// The caller's address space.
///
/// - `ESRCH`: a kernel thread has none.
fn current_mm() -> Result<&'static MmWithUser> {
    let task = kernel::current!();
    let mm = task.mm().ok_or(ESRCH)?;
    // SAFETY: The address space of the current task stays while it runs this system call, which is
    // as long as any value returned here is kept.
    Ok(unsafe { &*core::ptr::from_ref(mm) })
}

/// An ioctl argument of the caller: read once, extended with zeros, written back once.
struct Argument {
    address: usize,
    size: usize,
}

impl Argument {
    /// Reads the structure. `least` is its size in the first version of the ABI.
    fn read<T: Default + core::marker::Copy>(&self, least: usize) -> Result<T> {
        if self.size < least {
            return Err(EINVAL);
        }
        let known = usize::min(self.size, size_of::<T>());
        let mut reader = UserSlice::new(UserPtr::from_addr(self.address), self.size).reader();
        let mut value = T::default();
        // SAFETY: All argument types are `repr(C)` integers without padding (checked in uapi.rs by
        // their sizes), so every byte pattern is a value.
        let bytes = unsafe {
            core::slice::from_raw_parts_mut(
                core::ptr::from_mut(&mut value).cast::<MaybeUninit<u8>>(),
                known,
            )
        };
        reader.read_raw(bytes)?;
        while !reader.is_empty() {
            let mut tail = [0u8; 64];
            let len = usize::min(reader.len(), tail.len());
            reader.read_slice(&mut tail[..len])?;
            if tail[..len].iter().any(|byte| *byte != 0) {
                return Err(E2BIG);
            }
        }
        Ok(value)
    }

    fn write<T>(&self, value: &T) -> Result {
        let known = usize::min(self.size, size_of::<T>());
        let mut writer = UserSlice::new(UserPtr::from_addr(self.address), known).writer();
        // SAFETY: As in `read`: no padding, so all bytes are initialised.
        let bytes =
            unsafe { core::slice::from_raw_parts(core::ptr::from_ref(value).cast::<u8>(), known) };
        writer.write_slice(bytes)
    }
}

fn read_layout(address: u64) -> Result<Option<Layout>> {
    if address == 0 {
        return Ok(None);
    }
    Argument {
        address: address as usize,
        size: size_of::<Layout>(),
    }
    .read(size_of::<Layout>())
    .map(Some)
}

/// Reads the pieces of a region; see [`shim::untagged_address`].
fn read_pieces(address: u64, count: u32) -> Result<KVVec<Piece>> {
    if count == 0 || count > MAX_IOV {
        return Err(EINVAL);
    }
    let count = count as usize;
    let mut pieces = KVVec::with_capacity(count, GFP_KERNEL_ACCOUNT)?;
    let mut reader = UserSlice::new(
        UserPtr::from_addr(address as usize),
        count * size_of::<Piece>(),
    )
    .reader();
    for _ in 0..count {
        let mut words = [0u8; 16];
        reader.read_slice(&mut words)?;
        let word = |at: usize| {
            let mut bytes = [0u8; 8];
            bytes.copy_from_slice(&words[at..at + 8]);
            u64::from_ne_bytes(bytes)
        };
        pieces.push(
            Piece {
                base: shim::untagged_address(word(0)),
                len: word(8),
            },
            GFP_KERNEL_ACCOUNT,
        )?;
    }
    Ok(pieces)
}

fn only(flags: u32, known: u32) -> Result {
    if flags & !known != 0 {
        return Err(EINVAL);
    }
    Ok(())
}

fn zero(reserved: u64) -> Result {
    if reserved != 0 {
        return Err(EINVAL);
    }
    Ok(())
}

impl Handle {
    fn ioctl(&self, cmd: u32, address: usize) -> Result {
        if (cmd >> 8) & 0xff != IOC_TYPE || cmd >> 30 != 3 {
            return Err(ENOTTY);
        }
        let arg = Argument {
            address,
            size: ((cmd >> 16) & 0x3fff) as usize,
        };
        const fn number(command: u32) -> u32 {
            command & 0xff
        }
        const INFO: u32 = number(GET_INFO);
        const CREATE_DOMAIN: u32 = number(DOMAIN_CREATE);
        const JOIN: u32 = number(DOMAIN_JOIN);
        const LEAVE: u32 = number(DOMAIN_LEAVE);
        const CREATE: u32 = number(REGION_CREATE);
        const DESTROY: u32 = number(REGION_DESTROY);
        const WAIT: u32 = number(REGION_WAIT);
        const REGION: u32 = number(REGION_INFO);
        const USE: u32 = number(REGION_USE);
        const COPY: u32 = number(REGION_COPY);
        const STRIDED: u32 = number(REGION_COPY_STRIDED);
        const MOVE: u32 = number(TRANSFER);
        const ATTACH: u32 = number(REGION_ATTACH);
        const ENGINE: u32 = number(ENGINE_INFO);
        const SUBMIT: u32 = number(REQUEST_SUBMIT);
        const AWAIT: u32 = number(REQUEST_WAIT);
        const SWITCH: u32 = number(REQUEST_SWITCH);
        const REQUEST: u32 = number(REQUEST_INFO);
        const CANCEL: u32 = number(REQUEST_CANCEL);
        match cmd & 0xff {
            INFO => arg
                .read::<Info>(INFO_SIZE_VER1)
                .and_then(|_| arg.write(&info())),
            CREATE_DOMAIN => self.domain_create(&arg),
            JOIN => self.domain_join(&arg),
            LEAVE => self.domain_leave(&arg),
            CREATE => self.region_create(&arg),
            DESTROY => self.region_destroy(&arg),
            WAIT => self.region_wait(&arg),
            REGION => self.region_info(&arg),
            USE => self.region_use(&arg),
            COPY => self.region_copy(&arg),
            STRIDED => self.region_copy_strided(&arg),
            MOVE => self.transfer(&arg),
            ATTACH => self.region_attach(&arg),
            ENGINE => engine_info(&arg),
            SUBMIT => self.request_submit(&arg),
            AWAIT => self.request_wait(&arg),
            SWITCH => self.request_switch(&arg),
            REQUEST => self.request_info(&arg),
            CANCEL => self.request_cancel(&arg),
            _ => Err(ENOTTY),
        }
    }

    fn domain_create(&self, arg: &Argument) -> Result {
        let mut args: DomainCreate = arg.read(DOMAIN_CREATE_SIZE_VER1)?;
        only(args.flags | args.reserved, 0)?;
        // A domain cannot be taken back from its file, so first see whether its key can be told.
        arg.write(&args)?;
        args.key = self.enter(Domain::create)?.key();
        arg.write(&args)
    }

    fn domain_join(&self, arg: &Argument) -> Result {
        let args: DomainJoin = arg.read(DOMAIN_JOIN_SIZE_VER1)?;
        zero(args.reserved)?;
        match args.flags {
            JOIN_BY_KEY => {
                only(args.fd as u32, 0)?;
                self.enter(|| Domain::join_by_key(&args.key))?;
            }
            JOIN_BY_FD => {
                if args.key != [0; 16] {
                    return Err(EINVAL);
                }
                let fd = u32::try_from(args.fd).map_err(|_| EBADF)?;
                let file = LocalFile::fget(fd).map_err(|_| EBADF)?;
                let domain = of_file(&file).ok_or(EBADF)?.domain()?.clone();
                self.enter(|| domain.join().map(|()| domain.clone()))?;
            }
            _ => return Err(EINVAL),
        }
        Ok(())
    }

    fn domain_leave(&self, arg: &Argument) -> Result {
        let args: DomainLeave = arg.read(DOMAIN_LEAVE_SIZE_VER1)?;
        only(args.flags | args.reserved, 0)?;
        self.domain()?;
        let mm = current_mm()?;
        let member = {
            let mut members = self.members.lock();
            let index = members
                .iter()
                .position(|member| member.is(mm) && !member.has_left());
            index.and_then(|index| members.remove(index).ok())
        };
        if let Some(member) = member {
            member.cancel_requests();
            member.depart();
        }
        Ok(())
    }

    fn region_create(&self, arg: &Argument) -> Result {
        let mut args: RegionCreate = arg.read(REGION_CREATE_SIZE_VER1)?;
        only(args.flags, CREATE_NO_REUSE)?;
        only(args.rights, RIGHT_READ | RIGHT_WRITE)?;
        zero(args.reserved.into())?;
        let mm = current_mm()?;
        let member = self.member(mm)?;
        if args.rights == 0 {
            return Err(EINVAL);
        }
        let pieces = read_pieces(args.iov, args.iov_count)?;
        if args.replaces != 0 {
            if let Ok(old) = member.domain.find(args.replaces) {
                Member::destroy(&member, &old, true);
            }
        }
        let (region, result) =
            Region::create(mm, &member, pieces, args.rights, args.uses, args.flags)?;
        args.id = region.id;
        args.result = result;
        args.length = region.length();
        args.pages = region.mapping.pages().pages().len() as u64;
        arg.write(&args).inspect_err(|_| {
            // A region whose id nobody knows would stay until the process ends.
            Member::destroy(&member, &region, false);
        })
    }

    fn region_destroy(&self, arg: &Argument) -> Result {
        let args: RegionDestroy = arg.read(REGION_DESTROY_SIZE_VER1)?;
        only(args.flags, DESTROY_UNPIN)?;
        let region = self.find(args.id)?;
        if !region.owner.is(current_mm()?) {
            return Err(EPERM);
        }
        let keep = args.flags & DESTROY_UNPIN == 0;
        if Member::destroy(&region.owner, &region, keep) {
            Ok(())
        } else {
            Err(ENOENT)
        }
    }

    fn region_wait(&self, arg: &Argument) -> Result {
        let mut args: RegionWait = arg.read(REGION_WAIT_SIZE_VER1)?;
        only(args.flags, WAIT_DESTROY)?;
        zero(args.reserved.into())?;
        let region = self.find(args.id)?;
        let destroy = args.flags & WAIT_DESTROY != 0;
        if destroy && !region.owner.is(current_mm()?) {
            return Err(EPERM);
        }
        let result = region.wait(&mut args.timeout_ns);
        args.uses_left = region.uses_left();
        if result.is_ok() && destroy {
            Member::destroy(&region.owner, &region, true);
        }
        arg.write(&args)?;
        result
    }

    fn region_info(&self, arg: &Argument) -> Result {
        let mut args: uapi::RegionInfo = arg.read(REGION_INFO_SIZE_VER1)?;
        let region = self.find(args.id)?;
        let pages = region.mapping.pages();
        args = uapi::RegionInfo {
            id: args.id,
            rights: region.rights,
            length: pages.length(),
            pages: pages.pages().len() as u64,
            uses_left: region.uses_left(),
            state: region.state(),
            reserved: [0; 2],
        };
        arg.write(&args)
    }

    fn region_use(&self, arg: &Argument) -> Result {
        let mut args: RegionUse = arg.read(REGION_USE_SIZE_VER1)?;
        only(args.flags, 0)?;
        let region = self.find(args.id)?;
        if region.owner.is_dead() {
            return Err(errno::eownerdead());
        }
        args.uses_left = region.count_use(args.count)?;
        arg.write(&args)
    }

    fn region_copy(&self, arg: &Argument) -> Result {
        let mut args: RegionCopy = arg.read(REGION_COPY_SIZE_VER1)?;
        only(
            args.flags,
            COPY_FROM_REGION | COPY_TO_REGION | COPY_COUNT_USE,
        )?;
        zero(u64::from(args.reserved) | args.reserved2)?;
        if args.iov_count > MAX_IOV {
            return Err(EINVAL);
        }
        let region = self.find(args.region)?;
        copy::region_copy(&region, &mut args)?;
        arg.write(&args)
    }

    fn region_copy_strided(&self, arg: &Argument) -> Result {
        let mut args: CopyStrided = arg.read(COPY_STRIDED_SIZE_VER1)?;
        only(
            args.flags,
            COPY_FROM_REGION | COPY_TO_REGION | COPY_COUNT_USE,
        )?;
        zero(args.reserved)?;
        let region = self.find(args.region)?;
        let region_layout = read_layout(args.region_layout)?;
        let user_layout = read_layout(args.user_layout)?;
        strided::copy_strided(
            &region,
            &mut args,
            region_layout.as_ref(),
            user_layout.as_ref(),
        )?;
        arg.write(&args)
    }

    fn transfer(&self, arg: &Argument) -> Result {
        let mut args: Transfer = arg.read(TRANSFER_SIZE_VER1)?;
        only(args.flags, COPY_COUNT_USE)?;
        zero(args.reserved.into())?;
        let source = self.find(args.source)?;
        let destination = self.find(args.destination)?;
        copy::transfer(&source, &destination, &mut args)?;
        arg.write(&args)
    }

    fn region_attach(&self, arg: &Argument) -> Result {
        let mut args: RegionAttach = arg.read(REGION_ATTACH_SIZE_VER1)?;
        only(args.access, RIGHT_READ | RIGHT_WRITE)?;
        let region = self.find(args.id)?;
        attach::prepare(&region, &mut args)?;
        arg.write(&args)
    }

    fn request_submit(&self, arg: &Argument) -> Result {
        let mut args: RequestSubmit = arg.read(REQUEST_SUBMIT_SIZE_VER2)?;
        only(
            args.flags,
            SUBMIT_VERIFY | SUBMIT_COUNT_USE | SUBMIT_EVENTFD,
        )?;
        zero(args.reserved)?;
        if args.fragment_pages > MAX_FRAGMENT_PAGES
            || (args.flags & SUBMIT_EVENTFD == 0 && args.eventfd != 0)
        {
            return Err(EINVAL);
        }
        let member = self.member(current_mm()?)?;
        let source = member.domain.find(args.source)?;
        let destination = member.domain.find(args.destination)?;
        let (engine, channel) = engine::choose(&member, args.node)?;
        let request = Request::new(&member, source, destination, &args, engine)?;
        let request = member.domain.requests.publish(request)?;
        if let Err(error) = member.adopt_request(request.id) {
            member.domain.requests.remove(request.id);
            Request::fail(&request, errno::ecanceled());
            return Err(error);
        }
        args.id = request.id;
        args.engine = engine;
        args.fragment_pages = request.fragment_pages();
        // Before the first byte moves: a request whose id nobody knows would be of no use.
        arg.write(&args).inspect_err(|_| {
            member.disown_request(request.id);
            Request::fail(&request, errno::ecanceled());
        })?;
        if !Request::begin(&request) {
            Channel::submit(&channel, &request);
        }
        Ok(())
    }

    fn request_wait(&self, arg: &Argument) -> Result {
        let mut args: RequestWait = arg.read(REQUEST_WAIT_SIZE_VER2)?;
        only(args.flags, REQUEST_RELEASE)?;
        zero(args.reserved.into())?;
        let mm = current_mm()?;
        let request = self.find_request(args.id)?;
        let release = args.flags & REQUEST_RELEASE != 0;
        if release && !request.submitter.is(mm) {
            return Err(EPERM);
        }
        let waited = request.wait(args.until, &mut args.timeout_ns);
        // Read once, and first: what is told, and whether the request is forgotten, follow from it.
        args.state = request.state();
        args.done = request.done();
        args.front = request.front();
        let ended = args.state != REQUEST_RUNNING;
        // A request that has ended since the time was over, or the signal came, has ended in time: it
        // would not be there any more for a caller who heard otherwise and asked again.
        let late = |error: &Error| *error == ETIMEDOUT || *error == EINTR;
        let result = match waited {
            Err(error) if ended && late(&error) => request.answer(args.until).unwrap_or(Err(error)),
            other => other,
        };
        arg.write(&args)?;
        if release && ended {
            request.submitter.disown_request(args.id);
        }
        result
    }

    fn request_switch(&self, arg: &Argument) -> Result {
        let mut args: RequestSwitch = arg.read(REQUEST_SWITCH_SIZE_VER2)?;
        only(args.flags, SWITCH_HELP | SWITCH_NO_WAIT)?;
        zero(u64::from(args.reserved) | args.reserved2)?;
        args.copied = 0;
        let request = self.find_request(args.id)?;
        let result = Request::switch(&request, &mut args);
        arg.write(&args)?;
        result
    }

    fn request_info(&self, arg: &Argument) -> Result {
        let args: uapi::RequestInfo = arg.read(REQUEST_INFO_SIZE_VER2)?;
        arg.write(&self.find_request(args.id)?.info())
    }

    fn request_cancel(&self, arg: &Argument) -> Result {
        let mut args: RequestCancel = arg.read(REQUEST_CANCEL_SIZE_VER2)?;
        only(args.flags | args.reserved, 0)?;
        let request = self.find_request(args.id)?;
        if !request.submitter.is(current_mm()?) {
            return Err(EPERM);
        }
        Request::fail(&request, errno::ecanceled());
        // Whatever the outcome, it is the end; only a signal comes before it.
        let _ = request.wait(0, &mut -1);
        args.state = request.state();
        if args.state == REQUEST_RUNNING {
            return Err(EINTR);
        }
        args.done = request.done();
        request.submitter.disown_request(args.id);
        arg.write(&args)
    }

    fn find_request(&self, id: u32) -> Result<Arc<Request>> {
        self.member(current_mm()?)?.domain.requests.find(id)
    }

    /// Finds a region for the calling process, which thereby becomes a member: its death must be
    /// noticed by those who wait for its uses.
    fn find(&self, id: u32) -> Result<Arc<Region>> {
        self.member(current_mm()?)?.domain.find(id)
    }

    fn poll(&self, file: &File, table: PollTable<'_>) -> u32 {
        let Some(domain) = self.domain.as_ref() else {
            return EPOLLERR;
        };
        table.register_wait(file, &domain.changed);
        if self.events.completed.load(Relaxed) > 0 {
            EPOLLIN | EPOLLRDNORM
        } else {
            0
        }
    }

    fn show(&self, seq: &SeqFile) {
        let Some(domain) = self.domain.as_ref() else {
            seq_print!(seq, "libcopy-domain:\tnone\n");
            return;
        };
        seq_print!(seq, "libcopy-domain-regions:\t{}\n", domain.live());
        let (mut idle, mut bytes, mut members) = (0, 0, 0);
        for member in self.members.lock().iter() {
            let (count, size) = member.idle();
            idle += count;
            bytes += size;
            members += 1;
        }
        seq_print!(
            seq,
            "libcopy-domain-requests:\t{}\n",
            domain.requests.live()
        );
        seq_print!(seq, "libcopy-file-members:\t{members}\n");
        seq_print!(seq, "libcopy-file-idle-mappings:\t{idle}\n");
        seq_print!(seq, "libcopy-file-idle-bytes:\t{bytes}\n");
        for (name, value) in domain.stats.iter() {
            seq_print!(seq, "libcopy-{name}:\t{value}\n");
        }
    }

    /// The file is closed for good: all that was created through it goes.
    fn release(&self) {
        let members = core::mem::take(&mut *self.members.lock());
        for member in &members {
            member.file_closed();
        }
        if let Some(domain) = self.domain.as_ref() {
            domain.file_released();
        }
    }
}

fn engine_info(arg: &Argument) -> Result {
    let args: EngineInfo = arg.read(ENGINE_INFO_SIZE_VER2)?;
    zero(args.reserved.into())?;
    arg.write(&engine::info(args.index)?)
}

fn info() -> Info {
    Info {
        abi_version: ABI_VERSION,
        max_iov: MAX_IOV,
        features: FEATURE_STRIDED
            | FEATURE_ATTACH
            | FEATURE_TRANSFER
            | FEATURE_REUSE
            | FEATURE_REQUEST,
        max_streams: MAX_STREAMS as u32,
        max_regions: params::max_regions(),
        max_region_bytes: MAX_REGION_BYTES,
        reuse_pages: params::reuse_pages(),
        page_size: PAGE_SIZE as u32,
        engines: engine::count(),
        reserved: [0; 2],
    }
}

/// The handle behind a file, if it is one of ours.
fn of_file(file: &LocalFile) -> Option<&Handle> {
    // SAFETY: The file is alive for as long as the reference.
    let (operations, private) = unsafe {
        let raw = file.as_ptr();
        ((*raw).f_op, (*raw).private_data)
    };
    if operations != OPERATIONS.load(Relaxed) {
        return None;
    }
    // SAFETY: A file with our operations has a handle as private data until it is released.
    Some(unsafe { &*private.cast::<Handle>() })
}

/// The registered table of operations, by which a file is recognised as ours.
static OPERATIONS: Atomic<*const bindings::file_operations> = Atomic::new(core::ptr::null());

/// The registered device.
///
/// # Invariants
///
/// `misc` is registered from construction to drop and points to `operations`.
#[pin_data(PinnedDrop)]
pub(crate) struct Device {
    operations: KBox<bindings::file_operations>,
    #[pin]
    misc: Opaque<bindings::miscdevice>,
}

// SAFETY: The device may be deregistered from any thread.
unsafe impl Send for Device {}
// SAFETY: Nothing is touched through a shared reference.
unsafe impl Sync for Device {}

impl Device {
    /// Registers `/dev/libcopy`.
    pub(crate) fn register(module: &'static ThisModule) -> Result<impl PinInit<Self, Error>> {
        let operations = KBox::new(
            bindings::file_operations {
                owner: module.as_ptr(),
                open: Some(fop_open),
                release: Some(fop_release),
                unlocked_ioctl: Some(fop_ioctl),
                // No compat_ioctl: the ABI's pieces are 64-bit, and 32-bit callers get ENOTTY.
                mmap: Some(fop_mmap),
                #[cfg(CONFIG_TRANSPARENT_HUGEPAGE)]
                get_unmapped_area: Some(attach::get_unmapped_area),
                poll: Some(fop_poll),
                show_fdinfo: Some(fop_show_fdinfo),
                ..pin_init::zeroed()
            },
            GFP_KERNEL_ACCOUNT,
        )?;
        let fops: *const bindings::file_operations = &*operations;
        OPERATIONS.store(fops, Relaxed);
        Ok(try_pin_init!(Self {
            operations,
            // INVARIANT: Registered if construction succeeds.
            misc <- Opaque::try_ffi_init(move |slot: *mut bindings::miscdevice| {
                let device = bindings::miscdevice {
                    minor: bindings::MISC_DYNAMIC_MINOR as c_int,
                    name: c"libcopy".as_char_ptr(),
                    fops,
                    ..pin_init::zeroed()
                };
                // SAFETY: The slot is ours to initialise and stays where it is.
                unsafe { slot.write(device) };
                // SAFETY: The device was just filled in; its operations live as long as it.
                kernel::error::to_result(unsafe { bindings::misc_register(slot) })
            }),
        }? Error))
    }
}

#[pinned_drop]
impl PinnedDrop for Device {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: Registered by the type invariant.
        unsafe { bindings::misc_deregister(self.misc.get()) };
    }
}

/// # Safety
///
/// `file` is an open file of ours and outlives the result.
unsafe fn handle<'a>(file: *mut bindings::file) -> &'a Handle {
    // SAFETY: `fop_open` stored the pointer and `fop_release` takes it back.
    unsafe { &*(*file).private_data.cast::<Handle>() }
}

unsafe extern "C" fn fop_open(inode: *mut bindings::inode, file: *mut bindings::file) -> c_int {
    // SAFETY: Called with a valid inode and file.
    let ret = unsafe { bindings::generic_file_open(inode, file) };
    if ret != 0 {
        return ret;
    }
    match Handle::new() {
        Ok(new) => {
            // SAFETY: The box is not moved out of, only turned into a pointer and back.
            let new = KBox::into_raw(unsafe { Pin::into_inner_unchecked(new) });
            // SAFETY: The file is being opened, its private data is ours to set.
            unsafe { (*file).private_data = new.cast() };
            0
        }
        Err(error) => error.to_errno(),
    }
}

unsafe extern "C" fn fop_release(_: *mut bindings::inode, file: *mut bindings::file) -> c_int {
    // SAFETY: This is the last call on the file; the pointer came from `fop_open`.
    let handle = unsafe { KBox::from_raw((*file).private_data.cast::<Handle>()) };
    handle.release();
    0
}

unsafe extern "C" fn fop_ioctl(file: *mut bindings::file, cmd: c_uint, arg: c_ulong) -> c_long {
    // SAFETY: Called on an open file of ours.
    match unsafe { handle(file) }.ioctl(cmd, arg) {
        Ok(()) => 0,
        Err(error) => error.to_errno() as c_long,
    }
}

unsafe extern "C" fn fop_mmap(
    file: *mut bindings::file,
    vma: *mut bindings::vm_area_struct,
) -> c_int {
    // SAFETY: Called on an open file of ours.
    let handle = unsafe { handle(file) };
    // SAFETY: The VMA is being set up.
    let (vma, page_offset) = unsafe { (VmaNew::from_raw(vma), (*vma).vm_pgoff) };
    let (id, first) = attach::decode(page_offset);
    let map = || {
        // No region has the id zero; its share of the offsets is the status table's.
        if page_offset == 0 {
            return handle.domain()?.requests.table()?.map(vma);
        }
        let room = attach::Room::new()?;
        let region = handle.domain()?.find(id)?;
        room.map(region, first, vma)
    };
    match map() {
        Ok(()) => 0,
        Err(error) => error.to_errno(),
    }
}

unsafe extern "C" fn fop_poll(
    file: *mut bindings::file,
    table: *mut bindings::poll_table_struct,
) -> bindings::__poll_t {
    // SAFETY: Called on an open file of ours with a valid table.
    unsafe {
        let table = PollTable::from_raw(table);
        handle(file).poll(File::from_raw_file(file), table)
    }
}

unsafe extern "C" fn fop_show_fdinfo(seq: *mut bindings::seq_file, file: *mut bindings::file) {
    // SAFETY: Called on an open file of ours with a valid sequence.
    unsafe { handle(file).show(SeqFile::from_raw(seq)) }
}
