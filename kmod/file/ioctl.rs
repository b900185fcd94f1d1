// SPDX-License-Identifier: GPL-2.0

//! The ioctl table: which command does what.

use crate::abstractions::errno;
use crate::attach::attachment;
use crate::base::params;
use crate::domain::copy::{self, Places, Ranges};
use crate::domain::region::Region;
#[cfg(CONFIG_LIBCOPY_ENGINES)]
use crate::engine::engines;
use crate::file::argument::{only, read_pieces, read_ranges, zero, Argument};
use crate::file::domains::Shared;
use crate::file::handle::Handle;
use crate::requests::request::{Request, Submitter};
#[cfg(not(CONFIG_LIBCOPY_ENGINES))]
use crate::requests::workers as engines;
use crate::uapi::{self, *};
use kernel::mm::MmWithUser;
use kernel::page::PAGE_SIZE;
use kernel::prelude::*;
use kernel::sync::Arc;

/// Performs a command for the process with this address space, which calls.
type Handler = fn(&Handle, &MmWithUser, &Argument) -> Result;

/// Every command, with its size in the version that this table was written for.
const COMMANDS: &[(u32, Handler)] = &[
    (GET_INFO, Handle::get_info),
    (DOMAIN_CREATE, Handle::domain_create),
    (DOMAIN_JOIN, Handle::domain_join),
    (DOMAIN_LEAVE, Handle::domain_leave),
    (REGION_CREATE, Handle::region_create),
    (REGION_DESTROY, Handle::region_destroy),
    (REGION_INFO, Handle::region_info),
    (REGION_COPY, Handle::region_copy),
    (REGION_ATTACH, Handle::region_attach),
    (ENGINE_INFO, Handle::engine_info),
    (REQUEST_SUBMIT, Handle::request_submit),
    (REQUEST_WAIT, Handle::request_wait),
    (REQUEST_SWITCH, Handle::request_switch),
    (REQUEST_INFO, Handle::request_info),
    (REQUEST_CANCEL, Handle::request_cancel),
];

/// The handlers by the number of the command.
static TABLE: [Option<Handler>; 256] = {
    let mut table: [Option<Handler>; 256] = [None; 256];
    let mut index = 0;
    while index < COMMANDS.len() {
        let (command, handler) = COMMANDS[index];
        table[(command & 0xff) as usize] = Some(handler);
        index += 1;
    }
    table
};

/// Performs an ioctl on a file; `may_change` says whether it was opened for reading and writing.
///
/// - `EBADF`: it was not, and the command does more than report.
pub(crate) fn ioctl(handle: &Handle, may_change: bool, cmd: u32, address: usize) -> Result {
    if (cmd >> 8) & 0xff != IOC_TYPE || cmd >> 30 != 3 {
        return Err(ENOTTY);
    }
    let number = cmd & 0xff;
    let handler = TABLE[number as usize].ok_or(ENOTTY)?;
    if !may_change && number != GET_INFO & 0xff && number != ENGINE_INFO & 0xff {
        return Err(EBADF);
    }
    let task = kernel::current!();
    // A kernel thread has no address space.
    let mm = task.mm().ok_or(ESRCH)?;
    let size = ((cmd >> 16) & 0x3fff) as usize;
    handler(handle, mm, &Argument::new(address, size))
}

fn info() -> Info {
    Info {
        abi_version: ABI_VERSION,
        max_iov: MAX_IOV,
        features: FEATURE_ATTACH | FEATURE_REUSE | FEATURE_REQUEST,
        reserved0: 0,
        max_regions: params::max_regions(),
        max_region_bytes: MAX_REGION_BYTES,
        reuse_pages: params::reuse_pages(),
        page_size: PAGE_SIZE as u32,
        engines: engines::count(),
        reserved: [0; 2],
    }
}

impl Handle {
    fn engine_info(&self, _: &MmWithUser, arg: &Argument) -> Result {
        let args: EngineInfo = arg.read(ENGINE_INFO_SIZE_VER2)?;
        zero(args.reserved.into())?;
        arg.write(&engines::info(args.index)?)
    }

    fn get_info(&self, _: &MmWithUser, arg: &Argument) -> Result {
        arg.read::<Info>(INFO_SIZE_VER1)?;
        arg.write(&info())
    }

    fn domain_create(&self, mm: &MmWithUser, arg: &Argument) -> Result {
        let mut args: DomainCreate = arg.read(DOMAIN_CREATE_SIZE_VER1)?;
        only(args.flags | args.reserved, 0)?;
        // A domain cannot be taken back from its file, so first see whether its key can be told.
        arg.write(&args)?;
        args.key = self.enter(mm, Shared::create)?.domain.key();
        arg.write(&args)
    }

    fn domain_join(&self, mm: &MmWithUser, arg: &Argument) -> Result {
        let args: DomainJoin = arg.read(DOMAIN_JOIN_SIZE_VER1)?;
        only(args.reserved, 0)?;
        zero(args.reserved2)?;
        if args.flags != JOIN_BY_KEY {
            return Err(EINVAL);
        }
        self.enter(mm, || Shared::join_by_key(&args.key))?;
        Ok(())
    }

    fn domain_leave(&self, mm: &MmWithUser, arg: &Argument) -> Result {
        let args: DomainLeave = arg.read(DOMAIN_LEAVE_SIZE_VER1)?;
        only(args.flags | args.reserved, 0)?;
        self.leave(mm)
    }

    fn region_create(&self, mm: &MmWithUser, arg: &Argument) -> Result {
        let mut args: RegionCreate = arg.read(REGION_CREATE_SIZE_VER1)?;
        only(args.flags, CREATE_NO_REUSE)?;
        only(args.rights, RIGHT_READ | RIGHT_WRITE)?;
        only(args.reserved0 | args.reserved, 0)?;
        let process = self.process(mm)?;
        if args.rights == 0 {
            return Err(EINVAL);
        }
        let pieces = read_pieces(args.iov, args.iov_count)?;
        if args.replaces != 0 {
            if let Ok(old) = process.shared.regions.find(args.replaces) {
                // Only the process's own.
                if Arc::ptr_eq(&old.owner, &process.member) {
                    process.shared.destroy(&old, true);
                }
            }
        }
        let (region, result) = process.create_region(mm, pieces, args.rights, args.flags)?;
        args.id = region.id;
        args.result = result;
        args.length = region.length();
        args.pages = region.mapping.pages().pages().len() as u64;
        arg.write(&args).inspect_err(|_| {
            // A region whose id nobody knows would stay until the process ends.
            process.shared.destroy(&region, false);
        })
    }

    fn region_destroy(&self, mm: &MmWithUser, arg: &Argument) -> Result {
        let args: RegionDestroy = arg.read(REGION_DESTROY_SIZE_VER1)?;
        only(args.flags, DESTROY_UNPIN)?;
        let region = self.find(mm, args.id)?;
        if !region.owner.is(mm) {
            return Err(EPERM);
        }
        let keep = args.flags & DESTROY_UNPIN == 0;
        if self.shared()?.destroy(&region, keep) {
            Ok(())
        } else {
            Err(ENOENT)
        }
    }

    fn region_info(&self, mm: &MmWithUser, arg: &Argument) -> Result {
        let mut args: uapi::RegionInfo = arg.read(REGION_INFO_SIZE_VER1)?;
        let region = self.find(mm, args.id)?;
        let pages = region.mapping.pages();
        args = uapi::RegionInfo {
            id: args.id,
            rights: region.rights,
            length: pages.length(),
            pages: pages.pages().len() as u64,
            reserved0: 0,
            state: region.state()?,
            reserved: [0; 2],
        };
        arg.write(&args)
    }

    fn region_copy(&self, mm: &MmWithUser, arg: &Argument) -> Result {
        let mut args: RegionCopy = arg.read(REGION_COPY_SIZE_VER1)?;
        only(args.flags, COPY_FROM_REGION | COPY_TO_REGION)?;
        if args.iov_count > MAX_IOV {
            return Err(EINVAL);
        }
        let ranges = match (args.block_len, args.region_iov_count) {
            (0, 0) => {
                zero(args.region_iov | args.stride as u64)?;
                Ranges::Whole
            }
            (0, count) => {
                zero(args.stride as u64)?;
                Ranges::Listed(read_ranges(args.region_iov, count)?)
            }
            (_, 0) => {
                zero(args.region_iov | args.stride as u64)?;
                Ranges::Blocks(Places::Stride(0))
            }
            _ => Ranges::Blocks(match args.region_iov {
                0 => Places::Stride(args.stride),
                list => {
                    zero(args.stride as u64)?;
                    Places::List(list as usize)
                }
            }),
        };
        let region = self.find(mm, args.region)?;
        copy::region_copy(&region, &mut args, &ranges)?;
        arg.write(&args)
    }

    fn region_attach(&self, mm: &MmWithUser, arg: &Argument) -> Result {
        let mut args: RegionAttach = arg.read(REGION_ATTACH_SIZE_VER1)?;
        only(args.access, RIGHT_READ | RIGHT_WRITE)?;
        let region = self.find(mm, args.id)?;
        attachment::prepare(&region, &mut args)?;
        arg.write(&args)
    }

    fn request_submit(&self, mm: &MmWithUser, arg: &Argument) -> Result {
        let mut args: RequestSubmit = arg.read(REQUEST_SUBMIT_SIZE_VER2)?;
        only(args.flags, SUBMIT_VERIFY)?;
        zero(args.reserved0 | args.reserved)?;
        if args.fragment_pages > MAX_FRAGMENT_PAGES {
            return Err(EINVAL);
        }
        let process = self.process(mm)?;
        let source = process.shared.regions.find(args.source)?;
        let destination = process.shared.regions.find(args.destination)?;
        let (engine, channel) = engines::choose(&process.member)?;
        let submitter = Submitter {
            member: &process.member,
            requests: &process.shared.requests,
            queue: &process.queue,
            hand_over: engines::pass_on,
        };
        let request = Request::new(&submitter, source, destination, &args, engine)?;
        let request = process.shared.requests.publish(request)?;
        if let Err(error) = process.member.adopt_request(request.id) {
            process.shared.requests.remove(request.id);
            Request::fail(&request, errno::ecanceled());
            return Err(error);
        }
        args.id = request.id;
        args.engine = engine;
        args.fragment_pages = request.fragment_pages();
        // Before the first byte moves: a request whose id nobody knows would be of no use.
        arg.write(&args).inspect_err(|_| {
            process.shared.disown_request(&request);
            Request::fail(&request, errno::ecanceled());
        })?;
        if !Request::begin(&request) {
            engines::submit(&channel, &request);
        }
        Ok(())
    }

    fn request_wait(&self, mm: &MmWithUser, arg: &Argument) -> Result {
        let mut args: RequestWait = arg.read(REQUEST_WAIT_SIZE_VER2)?;
        only(args.flags, REQUEST_RELEASE)?;
        zero(args.reserved0 | u64::from(args.reserved))?;
        let request = self.find_request(mm, args.id)?;
        let release = args.flags & REQUEST_RELEASE != 0;
        if release && !request.submitter.is(mm) {
            return Err(EPERM);
        }
        let waited = request.wait(&mut args.timeout_ns);
        // Read once, and first: what is told, and whether the request is forgotten, follow from it.
        args.state = request.state();
        args.done = request.done();
        args.front = request.front();
        let ended = args.state != REQUEST_RUNNING;
        // A request that has ended since the time was over, or the signal came, has ended in time:
        // it would not be there any more for a caller who heard otherwise and asked again.
        let late = |error: &Error| *error == ETIMEDOUT || *error == EINTR;
        let result = match waited {
            Err(error) if ended && late(&error) => request.outcome().unwrap_or(Err(error)),
            other => other,
        };
        arg.write(&args)?;
        if release && ended {
            self.shared()?.disown_request(&request);
        }
        result
    }

    fn request_switch(&self, mm: &MmWithUser, arg: &Argument) -> Result {
        let mut args: RequestSwitch = arg.read(REQUEST_SWITCH_SIZE_VER2)?;
        only(args.flags, SWITCH_HELP | SWITCH_NO_WAIT)?;
        zero(u64::from(args.reserved) | args.reserved2)?;
        args.copied = 0;
        let request = self.find_request(mm, args.id)?;
        let result = Request::switch(&request, &mut args);
        arg.write(&args)?;
        result
    }

    fn request_info(&self, mm: &MmWithUser, arg: &Argument) -> Result {
        let args: uapi::RequestInfo = arg.read(REQUEST_INFO_SIZE_VER2)?;
        arg.write(&self.find_request(mm, args.id)?.info())
    }

    fn request_cancel(&self, mm: &MmWithUser, arg: &Argument) -> Result {
        let mut args: RequestCancel = arg.read(REQUEST_CANCEL_SIZE_VER2)?;
        only(args.flags | args.reserved, 0)?;
        let request = self.find_request(mm, args.id)?;
        if !request.submitter.is(mm) {
            return Err(EPERM);
        }
        Request::fail(&request, errno::ecanceled());
        // Whatever the outcome, it is the end; only a signal comes before it.
        let _ = request.wait(&mut -1);
        args.state = request.state();
        if args.state == REQUEST_RUNNING {
            return Err(EINTR);
        }
        args.done = request.done();
        self.shared()?.disown_request(&request);
        arg.write(&args)
    }

    fn find_request(&self, mm: &MmWithUser, id: u32) -> Result<Arc<Request>> {
        self.shared_with(mm)?.requests.find(id)
    }

    /// Finds a region for the calling process, which thereby becomes a member.
    fn find(&self, mm: &MmWithUser, id: u32) -> Result<Arc<Region>> {
        self.shared_with(mm)?.regions.find(id)
    }
}
