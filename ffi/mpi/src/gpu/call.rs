// SPDX-License-Identifier: MIT OR Apache-2.0

//! A call some of whose buffers are in device memory, which goes on with other memory in their
//! place: host memory, or, where the function is the MPI library's and the library takes that,
//! device memory.

use std::any::Any;
use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::sync::Mutex;

use libcopy::lock::lock;
use libcopy::p2p::header::may_arrive;
use libcopy_gpu::{Driver, Space};

use crate::decide::active::active;
use crate::gpu::elements::{Elements, Started, said};
use crate::gpu::landing::Landing;
use crate::gpu::method::Method;
use crate::gpu::report::{Event, note, note_method};
use crate::gpu::staging::{Place, Pooled, Staging};
use crate::gpu::{delayed, elements, method, upcalls, watch};
use crate::library::abi::{Abi, Word, complain};
use crate::library::count::Count;
use crate::library::status::{Room, Status};
use crate::library::{errors, pmpi};

/// Which way the bytes of a buffer go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// It is sent.
    Out,
    /// It is received into.
    In,
    /// Both, one after the other.
    Both,
}

impl Direction {
    /// Whether it is sent.
    pub fn sends(self) -> bool {
        self != Direction::In
    }

    /// Whether it is received into.
    pub fn receives(self) -> bool {
        self != Direction::Out
    }
}

/// Bytes of what stands for a message, at most.
const MOST_OF_HEADER: usize = 8 << 10;

/// What host memory has of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Their packed bytes.
    Packed,
    /// All bytes from the first to the last one, so that their datatype fits.
    Image,
}

/// Elements in device memory, and the memory in their place.
#[derive(Debug)]
pub struct Side {
    /// Where a message is received, which may be copied to the elements without that memory; before
    /// `place`, which is used again from then on.
    pub landing: Option<Landing>,
    /// The elements, and where their bytes are in that memory.
    pub parts: Vec<(Elements, usize)>,
    pub place: Place,
    pub direction: Direction,
    pub form: Form,
}

impl Side {
    /// Packs what is sent.
    pub fn pack(&self, both: (&Driver, &Abi)) -> Result<(), c_int> {
        if !self.direction.sends() {
            return Ok(());
        }
        note(Event::Sent, 1);
        if self.is_own(true) {
            return Ok(());
        }
        self.parts.iter().try_for_each(|(elements, offset)| {
            let to = self.place.address() + *offset as u64;
            match self.form {
                Form::Packed => elements.pack(both, to),
                Form::Image => elements.copy_image(both, to, true),
            }
        })
    }

    /// Starts to unpack the first `bytes` bytes of what was received, or all.
    fn start_unpack(
        &self,
        both: (&'static Driver, &'static Abi),
        bytes: Option<u64>,
        all: &mut Vec<Started>,
    ) -> Result<(), c_int> {
        if !self.direction.receives() {
            return Ok(());
        }
        note(Event::Received, 1);
        if self.landing.as_ref().is_some_and(Landing::take) || self.is_own(false) {
            return Ok(());
        }
        for (elements, offset) in &self.parts {
            let from = self.place.address() + *offset as u64;
            match self.form {
                Form::Packed => {
                    let bytes = bytes.unwrap_or(u64::MAX);
                    all.push(elements.start_unpack(both, from, bytes)?);
                }
                Form::Image => elements.copy_image(both, from, false)?,
            }
        }
        Ok(())
    }

    /// Whether nothing is packed or unpacked, since the library has the elements themselves; counts
    /// that.
    fn is_own(&self, is_packed: bool) -> bool {
        if self.place.is_handed_over() {
            note(Event::HandedOver, 1);
        }
        if !matches!(self.place, Place::Own(_)) {
            return false;
        }
        for (elements, _) in &self.parts {
            note(Event::Bytes, elements.bytes() as u64);
            note_method(elements.size(), Method::Device, is_packed);
        }
        true
    }
}

/// A call of the program's.
#[derive(Debug)]
pub struct Call {
    driver: &'static Driver,
    pub abi: &'static Abi,
    pub comm: Word,
    /// Whether it makes a persistent request.
    pub is_persistent: bool,
    /// Whether a status says how many bytes were received.
    pub has_status: bool,
    /// Whether the function goes to the MPI library as it is, which may then be handed device
    /// memory: what it does with its buffers is the library's affair.
    pub is_library: bool,
    /// Whether it sends a message.
    is_send: bool,
    /// Whether what is sent is packed later ([`Call::begin_later`]).
    is_later: bool,
    /// Whether it makes a persistent request whose starts offer what is sent to its receiver
    /// ([`crate::gpu::requests::offer_started`]), and pack it only where that cannot be
    /// ([`crate::gpu::requests::pack_started`]).
    pub offers: bool,
    /// Whether the function lets messages get on while it waits.
    pub attends: bool,
    sides: Vec<Side>,
    /// Why the function is not to be called.
    pub failed: Option<c_int>,
    /// Arrays of the call that were made anew.
    arrays: Vec<Box<dyn Any + Send>>,
}

impl Call {
    /// A call on a communicator; `None` if nothing is looked at.
    #[cold]
    pub fn new(comm: Option<Word>) -> Option<Call> {
        let abi = active()?;
        Some(Call {
            driver: watch::driver()?,
            abi,
            comm: comm.unwrap_or(abi.world),
            is_persistent: false,
            has_status: true,
            is_library: false,
            is_send: false,
            is_later: false,
            offers: false,
            attends: false,
            sides: Vec::new(),
            failed: None,
            arrays: Vec::new(),
        })
    }

    /// A call that makes a persistent request; `None` if nothing is looked at.
    pub fn persistent(comm: Option<Word>) -> Option<Call> {
        let mut call = Call::new(comm)?;
        call.is_persistent = true;
        Some(call)
    }

    /// A call that sends, makes a request, and need not wait until the bytes are packed; `None` if
    /// nothing is looked at.
    pub fn later(comm: Option<Word>) -> Option<Call> {
        let mut call = Call::new(comm)?;
        call.is_later = true;
        Some(call)
    }

    /// Puts host memory in the place of elements that are in device memory; the code of the call if
    /// that cannot be done.
    fn replace<N: Count>(
        &mut self,
        direction: Direction,
        buffer: &mut *mut c_void,
        count: &mut N,
        datatype: &mut Word,
    ) -> Result<(), c_int> {
        let what = (*datatype, self.comm);
        let Some(elements) = Elements::on_device(self.both(), *buffer, count.number(), what) else {
            return Ok(());
        };
        let bytes = elements.bytes();
        let place = self.place(&elements, bytes, direction)?;
        if !elements.kind.is_dense() {
            match N::of(bytes) {
                Some(number) => (*count, *datatype) = (number, self.abi.byte),
                None => *datatype = dense(self.abi, elements.kind.size()).ok_or(self.abi.error)?,
            }
        }
        *buffer = place.address() as *mut c_void;
        let landing = match &place {
            Place::Host(staging) if direction.receives() && may_arrive(bytes as u64) => {
                Some(Landing::new(&elements, staging.address()))
            }
            _ => None,
        };
        self.add(Side {
            landing,
            parts: vec![(elements, 0)],
            place,
            direction,
            form: Form::Packed,
        });
        Ok(())
    }

    /// [`Call::replace`], whose code is the call's.
    fn replace_or_fail<N: Count>(
        &mut self,
        direction: Direction,
        buffer: &mut *mut c_void,
        count: &mut N,
        datatype: &mut Word,
    ) {
        self.is_send |= direction.sends();
        if let Err(code) = self.replace(direction, buffer, count, datatype) {
            self.failed = Some(code);
        }
    }

    /// Memory for the packed bytes of elements, or the elements themselves; the code of the call
    /// where there is no room.
    pub fn place(
        &self,
        elements: &Elements,
        bytes: usize,
        direction: Direction,
    ) -> Result<Place, c_int> {
        // A message of that length would be taken for one of ours.
        let is_special = || {
            let messages = upcalls::known().filter(|_| self.has_status);
            direction.sends() && messages.is_some_and(|known| (known.is_special)(bytes as u64))
        };
        if elements.kind.is_dense() && self.hands_over(elements) && !is_special() {
            return Ok(Place::Own(elements.first()));
        }
        if is_special() {
            return self.host_place(elements, bytes);
        }
        self.packed_place(elements, bytes)
    }

    /// Memory for the packed bytes of elements and others like them, `bytes` together; the code of
    /// the call where there is no room.
    pub fn packed_place(&self, elements: &Elements, bytes: usize) -> Result<Place, c_int> {
        if self.hands_over(elements) {
            match Pooled::new(self.driver, (Space::Device, &elements.near), bytes) {
                Ok(memory) => return Ok(Place::Device(memory)),
                // The GPU has no memory left: the host may have some.
                Err(error) => complain(&format!("{error}; packed into host memory")),
            }
        }
        self.host_place(elements, bytes)
    }

    fn host_place(&self, elements: &Elements, bytes: usize) -> Result<Place, c_int> {
        Staging::new(self.driver, &elements.near, bytes).map(Place::Host)
    }

    /// Whether the library is handed these in device memory.
    fn hands_over(&self, elements: &Elements) -> bool {
        let there = (self.driver, &elements.near);
        self.is_library && method::hands_over(there, elements.size(), elements.kind.is_dense())
    }

    /// Says that the function goes to the MPI library as it is.
    pub fn goes_to_library(&mut self) {
        self.is_library = true;
    }

    /// Whether a buffer is in device memory still. The function has to be the MPI library's own
    /// then.
    pub fn is_handed_over(&self) -> bool {
        self.sides.iter().any(|side| side.place.is_handed_over())
    }

    /// Calls the function with what is in the place of the buffers.
    pub fn go_on(&self, function: impl FnOnce() -> c_int) -> c_int {
        watch::with(self.is_handed_over(), function)
    }

    /// After the library has received into device memory, with this status and code: what came may
    /// stand for a message that has to be fetched, which is done in host memory. The code.
    ///
    /// # Safety
    ///
    /// The library has written the status, unless it has failed.
    pub unsafe fn arrived(&mut self, status: *mut c_void, code: c_int) -> c_int {
        let Some(messages) = upcalls::known().filter(|_| self.has_status) else {
            return code;
        };
        let (driver, abi, comm) = (self.driver, self.abi, self.comm);
        for side in &mut self.sides {
            if !side.direction.receives() || !side.place.is_handed_over() {
                continue;
            }
            let Some((elements, _)) = side.parts.first() else {
                continue;
            };
            let room = elements.bytes();
            let bytes = match code {
                // SAFETY: the caller's promise.
                0 => unsafe { Status::new(abi, status) }.bytes() as usize,
                // Cut off: its beginning may still say whose it is.
                _ => room,
            };
            if !(messages.may_be_header)(bytes as u64) && code == 0 {
                continue;
            }
            let staging = match Staging::new(driver, &elements.near, room) {
                Ok(staging) => staging,
                Err(code) => return code,
            };
            let landing = Landing::new(elements, staging.address());
            let (from, to) = (side.place.address(), staging.address());
            let copied = bytes.min(room).min(MOST_OF_HEADER);
            // SAFETY: the memory that the library has received into, and as much host memory.
            let answer = unsafe { libcopy_gpu::copy(driver, to, from, copied) };
            if let Err(code) = said(abi, answer) {
                return code;
            }
            // SAFETY: `to` is host memory of `room` bytes; the library wrote `status`.
            let answer =
                unsafe { (messages.arrived)((to as *mut c_void, room), comm, status, code) };
            if answer != 0 {
                return answer;
            }
            side.landing = Some(landing);
            side.place = Place::Host(staging);
        }
        code
    }

    /// One more side, whose bytes are packed unless that is for later. Those of persistent
    /// collectives are packed now and at each start: MPICH 4.0 copies the send buffer of some when
    /// their request is made (`MPI_Gather_init` of few bytes).
    pub fn add(&mut self, mut side: Side) {
        if self.is_persistent {
            let is_image = side.form == Form::Image;
            let parts = side.parts.iter_mut();
            let mut kept = parts.map(|(elements, _)| elements.keep(self.abi, is_image));
            if let Some(Err(code)) = kept.find(Result::is_err) {
                self.failed = Some(code);
            }
        }
        if !self.is_later && (!self.is_persistent || !self.has_status) {
            if let Err(code) = side.pack((self.driver, self.abi)) {
                self.failed = Some(code);
            }
        }
        self.sides.push(side);
    }

    /// Keeps an array until the call is complete; where it is.
    pub fn keep<T: Send + 'static>(&mut self, array: Vec<T>) -> *const T {
        let at = array.as_ptr();
        self.arrays.push(Box::new(array));
        at
    }

    /// Elements that are sent.
    pub fn sends<N: Count>(
        &mut self,
        buffer: &mut *mut c_void,
        count: &mut N,
        datatype: &mut Word,
    ) {
        self.replace_or_fail(Direction::Out, buffer, count, datatype);
    }

    /// Elements that are received.
    pub fn receives<N: Count>(
        &mut self,
        buffer: &mut *mut c_void,
        count: &mut N,
        datatype: &mut Word,
    ) {
        self.replace_or_fail(Direction::In, buffer, count, datatype);
    }

    /// Elements that are sent, and received in their place.
    pub fn exchanges<N: Count>(
        &mut self,
        buffer: &mut *mut c_void,
        count: &mut N,
        datatype: &mut Word,
    ) {
        self.replace_or_fail(Direction::Both, buffer, count, datatype);
    }

    /// Calls the function with what is in the place of the buffers, and a status if it has one, and
    /// unpacks what it has received.
    pub fn block(
        mut self,
        status: *mut c_void,
        function: impl FnOnce(*mut c_void) -> c_int,
    ) -> c_int {
        if let Some(code) = self.failed {
            return self.raise(code);
        }
        delayed::flush();
        if !self.attends() {
            upcalls::before_waiting();
        }
        let mut room = Room::new();
        let at = if self.sides.is_empty() {
            status
        } else {
            room.instead_of(status)
        };
        let mut code = self.go_on(|| function(at));
        if self.is_handed_over() {
            // SAFETY: the library's function has written a status.
            code = unsafe { self.arrived(at, code) };
        }
        if code != 0 || self.sides.is_empty() {
            return code;
        }
        // SAFETY: the library has written a status, or, where it writes none, that of `room` says
        // zero bytes.
        let bytes = || unsafe { Status::new(self.abi, at) }.bytes();
        match self.unpack(bytes) {
            Ok(()) => 0,
            Err(code) => self.raise(code),
        }
    }

    /// Whether messages get on while it waits, as in receives that are not short.
    fn attends(&self) -> bool {
        self.attends || self.sides.iter().any(|side| side.landing.is_some())
    }

    /// Whether nothing was replaced.
    pub fn is_empty(&self) -> bool {
        self.sides.is_empty()
    }

    /// Unpacks what was received: `bytes()` bytes where the call has a status, else all.
    pub fn unpack(&self, bytes: impl Fn() -> u64) -> Result<(), c_int> {
        elements::wait(&mut self.start_unpack(bytes)?)
    }

    /// [`Call::unpack`] without waiting.
    pub fn start_unpack(&self, bytes: impl Fn() -> u64) -> Result<Vec<Started>, c_int> {
        let mut all = Vec::new();
        for side in &self.sides {
            let bytes = self.has_status.then(&bytes);
            side.start_unpack((self.driver, self.abi), bytes, &mut all)?;
        }
        Ok(all)
    }

    /// Packs what is sent.
    pub fn pack(&self) -> Result<(), c_int> {
        let both = (self.driver, self.abi);
        self.sides.iter().try_for_each(|side| side.pack(both))
    }

    /// Starts to pack what is sent.
    pub fn start_pack(&self) -> Result<Vec<Started>, c_int> {
        let both = (self.driver, self.abi);
        let mut all = Vec::new();
        for side in &self.sides {
            note(Event::Sent, 1);
            if side.is_own(true) {
                continue;
            }
            for (elements, offset) in &side.parts {
                let to = side.place.address() + *offset as u64;
                all.push(elements.start_pack(both, to)?);
            }
        }
        Ok(all)
    }

    /// Whether it sends a message that is not a persistent request's.
    pub fn sends_now(&self) -> bool {
        self.is_send && !self.is_persistent
    }

    /// The elements of a message that it sends.
    pub fn sent(&self) -> Option<&Elements> {
        let mut sides = self.sides.iter().filter(|side| side.direction.sends());
        sides.next()?.parts.first().map(|(elements, _)| elements)
    }

    /// The driver and the library.
    pub fn both(&self) -> (&'static Driver, &'static Abi) {
        (self.driver, self.abi)
    }

    /// Has the communicator's error handler hear of a code, and returns it.
    pub fn raise(&self, code: c_int) -> c_int {
        errors::raise(self.comm, code)
    }
}

/// Dense datatypes by the bytes of an element.
static DENSE: Mutex<Option<HashMap<usize, Word>>> = Mutex::new(None);

/// A datatype of `bytes` dense bytes.
pub fn dense(abi: &Abi, bytes: usize) -> Option<Word> {
    let count = c_int::try_from(bytes).ok()?;
    let mut all = lock(&DENSE);
    let all = all.get_or_insert_default();
    if let Some(datatype) = all.get(&bytes) {
        return Some(*datatype);
    }
    let mut datatype = 0;
    // SAFETY: a word has room for either kind of handle.
    let answers = unsafe {
        [
            pmpi::type_contiguous(count, abi.byte, &mut datatype),
            pmpi::type_commit(&mut datatype),
        ]
    };
    if answers != [0; 2] {
        return None;
    }
    all.insert(bytes, datatype);
    Some(datatype)
}

/// Frees the datatypes.
pub fn free_types() {
    for (_, mut datatype) in lock(&DENSE).take().into_iter().flatten() {
        // SAFETY: our own datatype, which nobody uses any more.
        unsafe { pmpi::type_free(&mut datatype) };
    }
}
