// SPDX-License-Identifier: MIT OR Apache-2.0

//! A call some of whose buffers are in device memory, which goes on with host memory in their place.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::sync::Mutex;

use libcopy::lock::lock;
use libcopy_gpu::Driver;

use super::elements::Elements;
use super::report::{Event, note};
use super::staging::Staging;
use super::watch;
use crate::abi::{Abi, Word};
use crate::active::active;
use crate::count::Count;
use crate::messages::status::{Room, Status};
use crate::pmpi;

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

/// What host memory has of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Their packed bytes.
    Packed,
    /// All bytes from the first to the last one, so that their datatype fits.
    Image,
}

/// Elements in device memory, and the host memory in their place.
#[derive(Debug)]
pub struct Side {
    /// The elements, and where their bytes are in the host memory.
    pub parts: Vec<(Elements, usize)>,
    pub staging: Staging,
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
        self.parts.iter().try_for_each(|(elements, offset)| {
            let to = self.staging.address() + *offset as u64;
            match self.form {
                Form::Packed => elements.pack(both, to),
                Form::Image => elements.copy_out(both, to),
            }
        })
    }

    /// Unpacks the first so many bytes of what was received, or all.
    pub fn unpack(&self, both: (&Driver, &Abi), bytes: Option<u64>) -> Result<(), c_int> {
        if !self.direction.receives() {
            return Ok(());
        }
        note(Event::Received, 1);
        self.parts.iter().try_for_each(|(elements, offset)| {
            let from = self.staging.address() + *offset as u64;
            match self.form {
                Form::Packed => elements.unpack(both, from, bytes.unwrap_or(u64::MAX)),
                Form::Image => elements.copy_in(both, from),
            }
        })
    }
}

/// A call of the program's.
#[derive(Debug)]
pub struct Call {
    driver: &'static Driver,
    abi: &'static Abi,
    comm: Word,
    is_persistent: bool,
    /// Whether a status says how many bytes were received.
    has_status: bool,
    sides: Vec<Side>,
    failed: Option<c_int>,
    /// Arrays of the call that were made anew.
    arrays: Vec<Vec<u64>>,
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
            sides: Vec::new(),
            failed: None,
            arrays: Vec::new(),
        })
    }

    /// The same of a function that makes a persistent request.
    pub fn persistent(comm: Option<Word>) -> Option<Call> {
        let mut call = Call::new(comm)?;
        call.is_persistent = true;
        Some(call)
    }

    /// Puts host memory in the place of elements that are in device memory.
    fn replace<N: Count>(
        &mut self,
        direction: Direction,
        buffer: &mut *mut c_void,
        count: &mut N,
        datatype: &mut Word,
    ) {
        let what = (*datatype, self.comm);
        let both = (self.driver, self.abi);
        let Some(elements) = Elements::on_device(both, *buffer, count.number(), what) else {
            return;
        };
        let bytes = elements.bytes();
        if !elements.kind.is_dense() {
            match N::of(bytes) {
                Some(number) => (*count, *datatype) = (number, self.abi.byte),
                None => match dense(self.abi, elements.kind.size()) {
                    Some(dense) => *datatype = dense,
                    None => {
                        self.failed = Some(self.abi.error);
                        return;
                    }
                },
            }
        }
        let staging = Staging::new(self.driver, &elements.near, bytes);
        *buffer = staging.address() as *mut c_void;
        self.add(Side {
            parts: vec![(elements, 0)],
            staging,
            direction,
            form: Form::Packed,
        });
    }

    /// One more side, whose bytes are packed unless that is for later. Those of persistent collectives are packed now
    /// and at each start: MPICH 4.0 copies the send buffer of some when their request is made (`MPI_Gather_init` of few
    /// bytes).
    pub fn add(&mut self, mut side: Side) {
        if self.is_persistent {
            let is_image = side.form == Form::Image;
            let parts = side.parts.iter_mut();
            let mut kept = parts.map(|(elements, _)| elements.keep(self.abi, is_image));
            if let Some(Err(code)) = kept.find(Result::is_err) {
                self.failed = Some(code);
            }
        }
        if !self.is_persistent || !self.has_status {
            if let Err(code) = side.pack((self.driver, self.abi)) {
                self.failed = Some(code);
            }
        }
        self.sides.push(side);
    }

    /// Keeps an array until the call is complete; where it is.
    pub fn keep(&mut self, array: Vec<u64>) -> *const c_void {
        let at = array.as_ptr().cast();
        self.arrays.push(array);
        at
    }

    /// Fails, instead of calling the function.
    pub fn fail(&mut self, code: c_int) {
        self.failed = Some(code);
    }

    /// Says that the function has no status.
    pub fn has_no_status(&mut self) {
        self.has_status = false;
    }

    /// Elements that are sent.
    pub fn sends<N: Count>(
        &mut self,
        buffer: &mut *mut c_void,
        count: &mut N,
        datatype: &mut Word,
    ) {
        self.replace(Direction::Out, buffer, count, datatype);
    }

    /// Elements that are received.
    pub fn receives<N: Count>(
        &mut self,
        buffer: &mut *mut c_void,
        count: &mut N,
        datatype: &mut Word,
    ) {
        self.replace(Direction::In, buffer, count, datatype);
    }

    /// Elements that are sent, and received in their place.
    pub fn exchanges<N: Count>(
        &mut self,
        buffer: &mut *mut c_void,
        count: &mut N,
        datatype: &mut Word,
    ) {
        self.replace(Direction::Both, buffer, count, datatype);
    }

    /// Calls the function with what is in the place of the buffers, and a status if it has one, and unpacks what it
    /// has received.
    pub fn block(self, status: *mut c_void, function: impl FnOnce(*mut c_void) -> c_int) -> c_int {
        if let Some(code) = self.failed {
            return self.raise(code);
        }
        let mut room = Room::new();
        let at = if self.sides.is_empty() {
            status
        } else {
            room.instead_of(status)
        };
        let code = watch::inside(|| function(at));
        if code != 0 || self.sides.is_empty() {
            return code;
        }
        // SAFETY: the library has written a status, or, where it writes none, that of `room` says zero bytes.
        let bytes = || unsafe { Status::new(self.abi, at) }.bytes();
        match self.unpack(bytes) {
            Ok(()) => 0,
            Err(code) => self.raise(code),
        }
    }

    /// Why the function is not to be called.
    pub fn failed(&self) -> Option<c_int> {
        self.failed
    }

    /// Whether nothing was replaced.
    pub fn is_empty(&self) -> bool {
        self.sides.is_empty()
    }

    /// Unpacks what was received, which is so many bytes if a status says that.
    pub fn unpack(&self, bytes: impl Fn() -> u64) -> Result<(), c_int> {
        for side in self.sides.iter().filter(|side| side.direction.receives()) {
            side.unpack((self.driver, self.abi), self.has_status.then(&bytes))?;
        }
        Ok(())
    }

    /// Packs what is sent.
    pub fn pack(&self) -> Result<(), c_int> {
        let both = (self.driver, self.abi);
        self.sides.iter().try_for_each(|side| side.pack(both))
    }

    /// Whether it makes a persistent request.
    pub fn is_persistent(&self) -> bool {
        self.is_persistent
    }

    /// The driver and the library.
    pub fn both(&self) -> (&'static Driver, &'static Abi) {
        (self.driver, self.abi)
    }

    /// The communicator.
    pub fn comm(&self) -> Word {
        self.comm
    }

    /// The library.
    pub fn abi(&self) -> &'static Abi {
        self.abi
    }

    /// Has the communicator's error handler hear of a code, and returns it.
    pub fn raise(&self, code: c_int) -> c_int {
        // SAFETY: the communicator of the call.
        unsafe { pmpi::comm_call_errhandler(self.comm, code) };
        code
    }
}

/// Datatypes whose elements are so many bytes.
static DENSE: Mutex<Option<HashMap<usize, Word>>> = Mutex::new(None);

/// A datatype whose elements are so many bytes, one behind the other.
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
