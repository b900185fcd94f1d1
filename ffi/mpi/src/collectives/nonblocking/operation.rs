// SPDX-License-Identifier: MIT OR Apache-2.0

//! A nonblocking collective of the program's: its buffers, and what the MPI library hears of its
//! end.

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use libcopy::collective::nonblocking::operation::{
    Combine, Failure, Operation as Copies, Participants, Shape,
};
use libcopy::collective::nonblocking::table::{Place, Places};
use libcopy::policy::Oversubscription;
use libcopy::scratch::zeros;

use crate::collectives::reductions::Elements;
use crate::comm::nonblocking_group::{NonblockingGroup, UnderWay};
use crate::library::abi::{Abi, complain};
use crate::library::buffers::Division;
use crate::library::errors;
use crate::library::stats::Function;
use crate::types::buffer::Kind;
use crate::types::parts::Partition;

/// What is received where it does not belong yet.
struct Unpack {
    bytes: Vec<u8>,
    base: *mut c_void,
    elements: Received,
}

/// The elements that it is.
enum Received {
    /// So many of one datatype.
    Some(Kind, usize),
    /// Parts, but that of this rank.
    Parts(Partition, Option<usize>),
}

/// Our buffers, as others reach them.
#[derive(Default)]
pub struct Own {
    send: *mut u8,
    recv: *mut u8,
    packed: Vec<u8>,
    unpack: Option<Unpack>,
    /// Where the parts are, if they differ in length.
    places: Option<Places>,
}

impl Own {
    /// Has `count` elements sent, which stay as they are.
    ///
    /// # Safety
    ///
    /// The elements are readable until the operation is over.
    pub unsafe fn send(
        &mut self,
        group: &Participants,
        kind: &Kind,
        base: *const c_void,
        count: usize,
    ) -> Result<(), c_int> {
        let len = kind.size() * count;
        if kind.is_dense() && group.is_reachable(base.cast(), len) {
            self.send = base.cast_mut().cast();
            return Ok(());
        }
        // SAFETY: the caller's promise.
        self.packed = unsafe { kind.copy_out(base, count)? };
        self.send = self.packed.as_mut_ptr();
        Ok(())
    }

    /// Has `count` elements received. Where `keep` gives a range of them, those are there already.
    ///
    /// # Safety
    ///
    /// The elements are writable, and used by nobody else, until the operation is over.
    pub unsafe fn receive(
        &mut self,
        (abi, group): (&Abi, &Participants),
        kind: &Kind,
        base: *mut c_void,
        count: usize,
        keep: Option<(usize, usize)>,
    ) -> Result<(), c_int> {
        let len = kind.size() * count;
        if kind.is_dense() && group.is_reachable(base.cast(), len) {
            self.recv = base.cast();
            return Ok(());
        }
        let mut bytes = zeros(len).map_err(errors::no_room)?;
        if let Some((first, elements)) = keep {
            // SAFETY: the caller's promise.
            let own = unsafe { kind.copy_out(kind.element(base, first), elements)? };
            bytes[kind.size() * first..][..own.len()].copy_from_slice(&own);
        }
        // The program may free its datatype and its communicator at once.
        let elements = Received::Some(kind.kept(abi)?, count);
        self.receive_apart(bytes, base, elements);
        Ok(())
    }

    /// Has `count` elements received elsewhere than where they belong until the end, as others need
    /// what is there.
    ///
    /// # Safety
    ///
    /// As for [`Own::receive`].
    pub unsafe fn receive_behind(
        &mut self,
        abi: &Abi,
        kind: &Kind,
        base: *mut c_void,
        count: usize,
    ) -> Result<(), c_int> {
        let bytes = zeros(kind.size() * count).map_err(errors::no_room)?;
        self.receive_apart(bytes, base, Received::Some(kind.kept(abi)?, count));
        Ok(())
    }

    fn receive_apart(&mut self, mut bytes: Vec<u8>, base: *mut c_void, elements: Received) {
        self.recv = bytes.as_mut_ptr();
        self.unpack = Some(Unpack {
            bytes,
            base,
            elements,
        });
    }

    /// Has parts sent, which stay as they are, and says where they are.
    ///
    /// # Safety
    ///
    /// As for [`Own::send`].
    pub unsafe fn send_parts(
        &mut self,
        group: &Participants,
        parts: &Partition,
        base: *const c_void,
    ) -> Result<Vec<Place>, c_int> {
        if is_reachable(group, parts, base) {
            self.send = base.cast_mut().cast();
            return Ok(places(&parts.division(Some(0))));
        }
        let division = parts.packed_parts();
        let mut packed = zeros(parts.total()).map_err(errors::no_room)?;
        for rank in 0..group.size() {
            // SAFETY: the caller's promise.
            unsafe { parts.pack_part(base, rank, &mut packed, &division)? };
        }
        self.packed = packed;
        self.send = self.packed.as_mut_ptr();
        Ok(places(&division))
    }

    /// Has parts received, all but that of the rank `keep`, which is there already, and says where.
    ///
    /// # Safety
    ///
    /// As for [`Own::receive`].
    pub unsafe fn receive_parts(
        &mut self,
        (abi, group): (&Abi, &Participants),
        parts: &Partition,
        base: *mut c_void,
        keep: Option<usize>,
    ) -> Result<Vec<Place>, c_int> {
        if is_reachable(group, parts, base) {
            self.recv = base.cast();
            return Ok(places(&parts.division(Some(0))));
        }
        let division = parts.packed_parts();
        let mut bytes = zeros(parts.total()).map_err(errors::no_room)?;
        if let Some(rank) = keep {
            // SAFETY: the caller's promise.
            unsafe { parts.pack_part(base, rank, &mut bytes, &division)? };
        }
        self.receive_apart(bytes, base, Received::Parts(parts.kept(abi)?, keep));
        Ok(places(&division))
    }

    /// Says where the parts are that are sent and received.
    pub fn divide(&mut self, sent: Vec<Place>, received: Vec<Place>) {
        self.places = Some(Places { sent, received });
    }

    /// What we send is a part of what we receive, from this byte on.
    pub fn send_from_received(&mut self, at: usize) {
        self.send = self.recv.wrapping_add(at);
    }
}

/// Whether others reach parts where they are.
fn is_reachable(group: &Participants, parts: &Partition, base: *const c_void) -> bool {
    parts.span().is_some_and(|(first, len)| {
        group.is_reachable(base.wrapping_byte_offset(first).cast(), len)
    })
}

fn places(division: &Division) -> Vec<Place> {
    let parts = division.offsets.iter().zip(&division.counts);
    let place = |(at, len): (&usize, &usize)| Place {
        at: *at as u64,
        len: *len as u64,
    };
    parts.map(place).collect()
}

impl Combine for Elements {
    fn size(&self) -> usize {
        Elements::size(self)
    }

    unsafe fn add(&self, from: *const u8, to: *mut u8, len: usize) -> Result<(), String> {
        // SAFETY: the caller's promise.
        match unsafe { Elements::add(self, from, to, len) } {
            0 => Ok(()),
            code => Err(format!("MPI_Reduce_local failed with code {code}")),
        }
    }
}

/// One that is under way.
pub struct Operation {
    // Dropped before our buffers are.
    copies: Copies,
    own: Own,
    members: Arc<NonblockingGroup>,
    function: Function,
    code: c_int,
    _under_way: UnderWay,
}

// SAFETY: what its addresses lead to the program has lent us until the operation is over.
unsafe impl Send for Operation {}

impl Operation {
    /// Makes it known to the others. `copies_own` says whether our own part is elsewhere.
    ///
    /// # Safety
    ///
    /// The buffers have the parts of the shape until this is over.
    pub unsafe fn begin(
        members: &Arc<NonblockingGroup>,
        (function, shape): (Function, Shape),
        mut own: Own,
        copies_own: bool,
        elements: Option<Elements>,
    ) -> Operation {
        let elements = elements.map(|elements| Box::new(elements) as Box<dyn Combine>);
        let (buffers, parts) = ((own.send, own.recv), (copies_own, own.places.take()));
        Operation {
            _under_way: members.begin(),
            // SAFETY: the caller's promise.
            copies: unsafe { Copies::begin(&members.group, shape, buffers, parts, elements) },
            own,
            members: members.clone(),
            function,
            code: 0,
        }
    }

    /// Whether ranks outnumber processors.
    pub fn is_oversubscribed(&self) -> bool {
        self.members.oversubscription != Oversubscription::None
    }

    /// Whether it is one of this communicator's, up to this number.
    pub fn is_before(&self, members: &NonblockingGroup, number: u64) -> bool {
        self.copies.is_before(&members.group, number)
    }

    /// Tells of a failure, once.
    fn tell(&mut self, abi: &Abi) {
        let (Some((failure, is_first)), 0) = (self.copies.failure(), self.code) else {
            return;
        };
        self.code = match failure {
            Failure::Broken => broken(abi),
            Failure::Mismatch(why) | Failure::Failed(why) => {
                let text = format!("{}: {why}", self.function.name());
                if is_first {
                    complain(&text);
                }
                match failure {
                    Failure::Mismatch(_) => abi.truncate,
                    _ => errors::failure(abi, &text),
                }
            }
        };
    }

    /// Goes on with it, as far as about `budget` bytes, `usize::MAX` if somebody waits for it;
    /// returns whether anything was moved.
    pub fn advance(&mut self, abi: &Abi, budget: usize) -> bool {
        let moved = self.copies.advance(budget);
        self.tell(abi);
        moved
    }

    /// Whether everything that we have to do with is over.
    pub fn is_over(&self) -> bool {
        self.copies.is_over()
    }

    /// Looks whether those live with whom we have to do something yet.
    pub fn look(&mut self, abi: &Abi) {
        self.copies.look();
        self.tell(abi);
    }

    /// Puts what was received where it belongs, and says how it ended.
    pub fn conclude(mut self, abi: &Abi) -> c_int {
        // Said before the last piece was, so a thread that has seen that sees this.
        if self.members.group.table.broken().load(Ordering::Acquire) != 0 {
            return match self.code {
                0 => broken(abi),
                code => code,
            };
        }
        let Some(Unpack {
            bytes,
            base,
            elements,
        }) = self.own.unpack.take()
        else {
            return 0;
        };
        // SAFETY: `Own` was promised the elements when they were to be received.
        let done = unsafe {
            match elements {
                Received::Some(kind, count) => kind.unpack_any(&bytes, base, count),
                Received::Parts(parts, keep) => parts.unpack(base, keep, &bytes),
            }
        };
        done.err().unwrap_or(0)
    }
}

/// The code of an operation that another rank has given up.
fn broken(abi: &Abi) -> c_int {
    errors::failure(
        abi,
        "a rank has ended, or a nonblocking collective was called with different arguments",
    )
}
