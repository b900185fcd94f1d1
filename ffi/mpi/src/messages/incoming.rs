// SPDX-License-Identifier: MIT OR Apache-2.0

//! Messages that this process receives: a header that the MPI library has delivered, and the data
//! that it stands for.

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use libcopy::p2p::header::{self, Header};
use libcopy::p2p::segment::state;
use libcopy::p2p::{Arriving, Copying, ReceiveError, View};

use crate::comm::communicator::{self, Comm};
use crate::comm::peers::Peers;
use crate::comm::processes::{self, World};
use crate::library::abi::{Word, complain};
use crate::library::errors;
pub use crate::library::errors::raise;
use crate::library::pmpi;
use crate::library::status::Status;
use crate::messages::arguments::Elements;
use crate::messages::error_handlers::ErrorHandlers;
use crate::messages::truncation::Failed;
use crate::messages::{remote, truncation, view};
use crate::types::datatype::{self, Known};

impl World {
    /// Whether a process has sent us the header of this slot, which we have not looked at.
    fn is_posted(&self, sender: usize, slot: usize) -> bool {
        let slot = self.segment.slot(sender, slot);
        slot.state(Ordering::Acquire) == state::POSTED
            && slot.to(Ordering::Relaxed) == self.me as u32
    }

    /// Whether nobody has, as far as a few looks tell.
    #[inline]
    pub fn is_unposted(&self, slot: usize) -> bool {
        if remote::is_header(slot) {
            return false;
        }
        /// Looks that cost less than finding out whom it is from.
        const MOST: usize = 16;
        self.pids.len() <= MOST && !(0..self.pids.len()).any(|sender| self.is_posted(sender, slot))
    }
}

/// When a message arrives that may be a header: what of its type is found out before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// It is here, and is one in all likelihood: everything is found out.
    Here,
    /// The caller waits for it, so its type stays: nothing is, if the type has not earned it.
    Waiting,
    /// Later: the program may free the type meanwhile, so we keep a duplicate in place of a layout.
    Later,
    /// Later, and again and again, since the request is a persistent one: everything is.
    Often,
}

impl When {
    /// To a request of the program's.
    pub fn of_request(is_persistent: bool) -> When {
        if is_persistent {
            When::Often
        } else {
            When::Later
        }
    }
}

/// A type without a layout, of which none is made unless a header arrives.
#[derive(Debug)]
struct Unexamined {
    datatype: Word,
    /// Whether it is a duplicate of our own.
    is_ours: bool,
}

impl Drop for Unexamined {
    fn drop(&mut self) {
        if self.is_ours {
            // SAFETY: a duplicate of our own.
            unsafe { pmpi::type_free(&mut self.datatype) };
        }
    }
}

/// Where a message goes that may be a header.
#[derive(Debug)]
pub struct Arrival {
    comm: Word,
    handlers: ErrorHandlers,
    /// `None` if nothing could be found out: a header that arrives there is an error then.
    known: Option<Arc<Comm>>,
    /// `None` in the same way, or if it has not earned a layout.
    datatype: Option<Arc<Known>>,
    /// What it is then.
    unexamined: Option<Unexamined>,
    base: *mut c_void,
    count: usize,
    capacity: u64,
    /// Made in advance only where the library has to help, since the program may free the type.
    opaque: Option<View>,
    /// Bytes of the header, if a matched probe has found one.
    header: Option<u64>,
}

// SAFETY: the address is the program's, which lent it until the message is complete.
unsafe impl Send for Arrival {}

impl Arrival {
    /// `None` if no header can arrive there, or only one of a message of which fewer than `least`
    /// bytes are wanted.
    #[inline]
    pub fn new(
        world: &World,
        what: Elements,
        comm: Word,
        (least, when): (u64, When),
    ) -> Option<Arrival> {
        let least = least.max(header::SHORTEST);
        if let Some(bytes) = datatype::quick_size(what.datatype, what.count?) {
            if bytes < least {
                return None;
            }
        }
        Arrival::make(world, what, comm, (least, when))
    }

    /// Where elements of any length go, which may get the beginning of a header.
    pub fn of_any_length(world: &World, what: Elements, comm: Word, when: When) -> Option<Arrival> {
        Arrival::make(world, what, comm, (0, when))
    }

    fn make(
        world: &World,
        what: Elements,
        comm: Word,
        (least, when): (u64, When),
    ) -> Option<Arrival> {
        let (base, count, datatype) = (what.buffer, what.count?, what.datatype);
        let known = communicator::of(world.abi, comm).ok();
        if let Some(known) = &known {
            if matches!(world.peers(known, comm), Peers::None) && !remote::is_possible() {
                return None;
            }
        }
        let is_examined = match when {
            When::Here | When::Often => true,
            When::Waiting | When::Later => what.have_earned(world, comm),
        };
        let mut kind = is_examined
            .then(|| datatype::of(world.abi, datatype))
            .flatten();
        let capacity = match &kind {
            Some(kind) => kind.size.checked_mul(count as u64)?,
            None if is_examined => u64::MAX,
            None => datatype::size(datatype, count)?,
        };
        if capacity < least {
            return None;
        }
        let mut unexamined = None;
        if !is_examined {
            let is_ours = when == When::Later;
            let mut own = datatype;
            // SAFETY: a datatype of the program's; a word has room for either kind of handle.
            if is_ours && unsafe { pmpi::type_dup(datatype, &mut own) } != 0 {
                kind = datatype::of(world.abi, datatype);
            } else {
                unexamined = Some(Unexamined {
                    datatype: own,
                    is_ours,
                });
            }
        }
        let opaque = match &kind {
            Some(kind) if kind.datatype.is_none() => {
                view::receiving(world.abi, kind, (base, count, datatype), comm)
            }
            _ => None,
        };
        Some(Arrival {
            comm,
            handlers: ErrorHandlers::of(world, comm),
            known,
            datatype: kind,
            unexamined,
            base,
            count,
            capacity,
            opaque,
            header: None,
        })
    }

    /// What a matched probe has found goes there: a header of `bytes` bytes.
    pub fn of_header(self, bytes: u64) -> Arrival {
        Arrival {
            header: Some(bytes),
            ..self
        }
    }

    /// The communicator.
    pub fn comm(&self) -> Word {
        self.comm
    }

    /// Where errors of the library's went when the receive was posted.
    pub fn handlers(&self) -> ErrorHandlers {
        self.handlers
    }

    /// What was received is there, as far as the library knows, which says so with this code. If it
    /// is a header, or the beginning of one, fetches the data, or begins to.
    pub fn complete(&self, world: &World, status: Status, code: c_int) -> Option<Fetching> {
        if code != 0 || status.bytes() > self.capacity {
            let cut = self.cut(world, status, code);
            return cut.map(|failed| Fetching::Over(Err(failed)));
        }
        let slot = header::slot_of(status.bytes())?;
        if status.is_cancelled() {
            return None;
        }
        self.fetch(world, slot, status.source())
    }

    /// As [`Arrival::complete`], waiting until the data is there, whose length the program's status
    /// gets; returns an error code that the library has not reported, or 0.
    pub fn conclude(&self, world: &World, status: Status, code: c_int) -> c_int {
        match self.complete(world, status, code).map(|it| it.wait(world)) {
            None => 0,
            Some(Ok(bytes)) => {
                status.set_bytes(bytes);
                0
            }
            Some(Err(failed)) => {
                if let Some(bytes) = failed.bytes {
                    status.set_bytes(bytes);
                }
                if code == 0 { failed.code } else { 0 }
            }
        }
    }

    /// The library has received less than a header, or says that it has: receives the beginning of
    /// the message.
    #[cold]
    fn cut(&self, world: &World, status: Status, code: c_int) -> Option<Failed> {
        if code != 0 && !truncation::is_truncation(world, code) || status.is_cancelled() {
            return None;
        }
        if code == 0
            && self.capacity < header::SHORTEST
            && remote::cut_short(world, self.comm, status)
        {
            return Some(world.abi.truncate.into());
        }
        let mut made = None;
        let view = self.view(world, &mut made)?;
        remote::give_back(view, self.capacity);
        let mut bytes = [0; header::START];
        let start = &mut bytes[..self.capacity.min(header::START as u64) as usize];
        // SAFETY: the elements have these bytes.
        if unsafe { view.pack(0..start.len() as u64, start.as_mut_ptr()) }.is_err() {
            return None;
        }
        let known = self.known.as_deref();
        let senders = truncation::senders(world, known, self.comm, status.source())?;
        let found = truncation::find(world, senders, status, self.header, start)?;
        // Where the library has left the buffer as it was, it stays so.
        let is_there = code == 0 || world.choice.delivers_beginnings();
        let wanted = if is_there { self.capacity } else { 0 };
        // SAFETY: the program's elements, which it has lent until the request is complete; no more
        // than they hold.
        unsafe { truncation::receive(world, found, view, (wanted, self.capacity)) }
    }

    #[cold]
    fn fetch(&self, world: &World, number: usize, source: c_int) -> Option<Fetching> {
        let (known, mut made) = (self.known.as_ref(), None);
        let remote = known.and_then(|its| remote::sender(world, number, its, self.comm, source));
        if let Some(rank) = remote {
            let Some(view) = self.view(world, &mut made) else {
                return Some(unseen(world, UNDESCRIBED));
            };
            let received = remote::receive(world, rank, view, self.capacity)?;
            return Some(Fetching::Over(received));
        }
        let senders = truncation::senders(world, known.map(|known| &**known), self.comm, source)?;
        let is_posted = |sender: usize| world.is_posted(sender, number);
        if !senders.clone().any(is_posted) {
            return None;
        }
        // What cannot be looked at is not passed off as the program's data.
        let Some(view) = self.view(world, &mut made) else {
            return Some(unseen(world, UNDESCRIBED));
        };
        let mut bytes = [0u8; header::BYTES];
        // SAFETY: this many bytes were received.
        let packed = unsafe { view.pack(0..header::BYTES as u64, bytes.as_mut_ptr()) };
        if let Err(code) = packed {
            return Some(unseen(world, &format!("packing gives error code {code}")));
        }
        let header = Header::read(&bytes, world.magic)?;
        let sender = header.sender as usize;
        if header.slot as usize != number || !senders.contains(&sender) || !is_posted(sender) {
            return None;
        }
        let slot = world.segment.slot(sender, number);
        if header.sequence != slot.sequence(Ordering::Relaxed) {
            return None;
        }
        if header.total > self.capacity {
            let room = (self.capacity, self.capacity);
            // SAFETY: the program's elements, which it has lent until the request is complete; no
            // more than they hold.
            let failed = unsafe { truncation::receive(world, (sender, number), view, room) }?;
            return Some(Fetching::Over(Err(failed)));
        }
        Some(self.pull(world, &header, view))
    }

    /// A view of its elements, which was made in advance or just now.
    fn view<'a>(&'a self, world: &World, made: &'a mut Option<View>) -> Option<&'a View> {
        if let Some(view) = &self.opaque {
            return Some(view);
        }
        let view = match &self.unexamined {
            Some(unexamined) => {
                let known = datatype::of(world.abi, unexamined.datatype)?;
                let elements = (self.base, self.count, unexamined.datatype);
                view::receiving(world.abi, &known, elements, self.comm)?
            }
            None => view::new(self.datatype.as_ref()?, self.base, self.count)?,
        };
        Some(made.insert(view))
    }

    fn pull(&self, world: &World, header: &Header, view: &View) -> Fetching {
        let total = header.total;
        // A device may copy longer than `world` is borrowed.
        // SAFETY: the slot says that the header is the one which its sender posted. The program has
        // lent its buffer to the receive, which is not complete before what this returns is over.
        let begun = unsafe {
            match processes::world() {
                Some(lasting) => lasting.begin(header, view, self.capacity),
                None => world
                    .receive(header, view, self.capacity)
                    .map(Arriving::Here),
            }
        };
        match begun {
            Ok(Arriving::Here(bytes)) => Fetching::Over(Ok(bytes)),
            Ok(Arriving::Copied(copying)) => Fetching::Copying(copying, total),
            Err(error) => Fetching::Over(Err(code_of(world, total, error).into())),
        }
    }
}

/// Data that a header stands for.
pub enum Fetching {
    /// The number of bytes that are here, or why they are not.
    Over(Result<u64, Failed>),
    /// A device copies them; the length of the message in bytes.
    Copying(Copying<'static>, u64),
}

impl Fetching {
    /// Goes on; once it is over, the bytes, or why they are not here.
    pub fn advance(&mut self, world: &World) -> Option<Result<u64, Failed>> {
        match self {
            Fetching::Over(result) => Some(*result),
            Fetching::Copying(copying, total) => {
                let received = copying.advance()?;
                let result = received.map_err(|error| code_of(world, *total, error).into());
                *self = Fetching::Over(result);
                Some(result)
            }
        }
    }

    /// The same, waiting until it is over.
    fn wait(mut self, world: &World) -> Result<u64, Failed> {
        world.attend_until(|| self.advance(world))
    }
}

/// The error code of a message of `total` bytes that was not received.
fn code_of(world: &World, total: u64, error: ReceiveError) -> c_int {
    match error {
        ReceiveError::Truncated => world.abi.truncate,
        ReceiveError::Claimed => {
            complain("a message was fetched twice");
            world.abi.error
        }
        ReceiveError::Failed(why) => {
            let text = format!("a message of {total} bytes: {why}");
            complain(&text);
            errors::failure(world.abi, &text)
        }
    }
}

/// Why a header is not looked at.
const UNDESCRIBED: &str = "its elements are none that can be described";

/// Something arrived that must be a header, but nobody can tell what it says.
fn unseen(world: &World, why: &str) -> Fetching {
    complain(&format!(
        "a message was received without its data: {why}; try LIBCOPY_MPI_MESSAGES=0"
    ));
    Fetching::Over(Err(world.abi.error.into()))
}
