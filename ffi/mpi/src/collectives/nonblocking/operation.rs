// SPDX-License-Identifier: MIT OR Apache-2.0

//! A nonblocking collective of the program's: its buffers, and what the MPI library hears of its
//! end.

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use libcopy::collective::nonblocking::operation::{
    Combine, Failure, Operation as Copies, Participants, Shape,
};

use crate::comm::nonblocking_group::{NonblockingGroup, UnderWay};
use libcopy::scratch::zeros;

use crate::collectives::reductions::Elements;
use crate::library::abi::{Abi, complain};
use crate::library::errors;
use crate::library::stats::Function;
use crate::types::buffer::Kind;

/// What is received where it does not belong yet.
struct Unpack {
    bytes: Vec<u8>,
    kind: Kind,
    base: *mut c_void,
    count: usize,
}

/// Our buffers, as others reach them.
#[derive(Default)]
pub struct Own {
    send: *mut u8,
    recv: *mut u8,
    packed: Vec<u8>,
    unpack: Option<Unpack>,
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
        self.recv = bytes.as_mut_ptr();
        // The program may free its datatype and its communicator at once.
        let kind = kind.kept(abi)?;
        self.unpack = Some(Unpack {
            bytes,
            kind,
            base,
            count,
        });
        Ok(())
    }

    /// What we send is a part of what we receive, from this byte on.
    pub fn send_from_received(&mut self, at: usize) {
        self.send = self.recv.wrapping_add(at);
    }
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
        own: Own,
        copies_own: bool,
        elements: Option<Elements>,
    ) -> Operation {
        let elements = elements.map(|elements| Box::new(elements) as Box<dyn Combine>);
        let buffers = (own.send, own.recv);
        Operation {
            _under_way: members.begin(),
            // SAFETY: the caller's promise.
            copies: unsafe { Copies::begin(&members.group, shape, buffers, copies_own, elements) },
            own,
            members: members.clone(),
            function,
            code: 0,
        }
    }

    /// Whether ranks outnumber processors.
    pub fn is_oversubscribed(&self) -> bool {
        self.members.is_oversubscribed
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
        match self.own.unpack.take() {
            // SAFETY: `Own::receive` was promised the elements.
            Some(unpack) => unsafe {
                let done = unpack
                    .kind
                    .unpack_any(&unpack.bytes, unpack.base, unpack.count);
                done.err().unwrap_or(0)
            },
            None => 0,
        }
    }
}

/// The code of an operation that another rank has given up.
fn broken(abi: &Abi) -> c_int {
    errors::failure(
        abi,
        "a rank has ended, or a nonblocking collective was called with different arguments",
    )
}
