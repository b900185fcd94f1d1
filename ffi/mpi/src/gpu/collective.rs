// SPDX-License-Identifier: MIT OR Apache-2.0

//! Collectives some of whose buffers are in device memory. Datatypes that are not dense are
//! replaced by dense ones of the same size, so that all ranks go on counting the same elements:
//! libraries cut messages between elements.

use std::ffi::{c_int, c_void};
use std::mem::size_of;

use crate::gpu::call::{Call, Direction, Form, Side, dense};
use crate::gpu::elements::Elements;
use crate::gpu::staging::{Place, Staging};
use crate::library::abi::{Abi, Word};
use crate::library::buffers::Address;
use crate::library::count::Count;
use crate::library::neighbourhood::Neighbours;
use crate::library::pmpi;
use crate::types::buffer::Kind;

/// A collective on a communicator.
#[derive(Debug)]
pub struct Collective {
    call: Call,
    is_inter: bool,
    rank: usize,
    size: usize,
    /// Ranks that are sent to and received from.
    pub peers: usize,
}

/// What a rank is in a collective with a root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// The root.
    Root,
    /// One of those that the root sends to or receives from.
    Leaf,
    /// A rank of the root's group that has nothing to do.
    Idle,
}

/// How many elements a buffer has, and of which type; the type may be replaced.
pub struct Buffer<'a, N> {
    pub count: N,
    pub datatype: &'a mut Word,
}

/// Parts of one type: how many elements, and where, in elements. Places and type may be replaced.
pub struct BufferV<'a, N: Count> {
    pub counts: *const N,
    pub places: &'a mut *const N::Place,
    pub datatype: &'a mut Word,
}

/// Parts of types of their own; `places` are in bytes. Places and types may be replaced.
pub struct BufferW<'a, N, P> {
    pub counts: *const N,
    pub places: &'a mut *const P,
    pub types: &'a mut *const c_void,
}

/// A place in bytes, as wide as it is in a form of a function.
pub trait Offset: Copy {
    fn offset(self) -> isize;
    fn of(offset: usize) -> Option<Self>;
}

impl Offset for c_int {
    fn offset(self) -> isize {
        self as isize
    }

    fn of(offset: usize) -> Option<c_int> {
        c_int::try_from(offset).ok()
    }
}

impl Offset for isize {
    fn offset(self) -> isize {
        self
    }

    fn of(offset: usize) -> Option<isize> {
        isize::try_from(offset).ok()
    }
}

/// A buffer of a collective. The program gives one per call, or a part for each rank or neighbour.
pub trait Parts {
    /// Replaces what is in device memory, of `number` parts.
    ///
    /// # Safety
    ///
    /// Arrays have this many elements.
    unsafe fn replace(
        self,
        collective: &mut Collective,
        buffer: &mut impl Address,
        number: usize,
        direction: Direction,
    );
}

impl<N: Count> Parts for Buffer<'_, N> {
    unsafe fn replace(
        self,
        collective: &mut Collective,
        buffer: &mut impl Address,
        number: usize,
        direction: Direction,
    ) {
        let Buffer { count, datatype } = self;
        if collective.is_in_place(*buffer) {
            return;
        }
        let all = count.number().and_then(|count| count.checked_mul(number));
        let what = (*datatype, collective.call.comm());
        let Some(elements) = Elements::on_device(collective.call.both(), buffer.get(), all, what)
        else {
            return;
        };
        if collective.make_dense(&elements.kind, datatype) {
            let place = match collective
                .call
                .place(&elements, elements.bytes(), direction)
            {
                Ok(place) => place,
                Err(code) => return collective.call.fail(code),
            };
            *buffer = Address::at(place.address() as *mut c_void);
            collective.call.add(Side {
                landing: None,
                parts: vec![(elements, 0)],
                place,
                direction,
                form: Form::Packed,
            });
        }
    }
}

impl<N: Count> Parts for BufferV<'_, N> {
    unsafe fn replace(
        self,
        collective: &mut Collective,
        buffer: &mut impl Address,
        number: usize,
        direction: Direction,
    ) {
        let BufferV {
            counts,
            places,
            datatype,
        } = self;
        if collective.is_in_place(*buffer) || counts.is_null() || places.is_null() {
            return;
        }
        // SAFETY: the caller's promise.
        let part = |i: usize| unsafe {
            (
                counts.add(i).read().number(),
                N::place(places.add(i).read()),
            )
        };
        let first = (0..number).map(part).find(|(count, _)| *count != Some(0));
        let Some((Some(first_count), first_place)) = first else {
            return;
        };
        let (both, comm) = (collective.call.both(), collective.call.comm());
        let Some(kind) = Kind::of(both.1, *datatype, comm) else {
            return;
        };
        let at = |place: isize| {
            let offset = kind.extent().wrapping_mul(place);
            buffer.get().wrapping_byte_offset(offset)
        };
        let what = (*datatype, comm);
        let first = Elements::on_device(both, at(first_place), Some(first_count), what);
        let Some(first) = first else {
            return;
        };
        let (mut all, mut bytes, mut elements) = (Vec::new(), 0, 0);
        let mut starts = Array::<N::Place>::new();
        let mut fill = || {
            for (count, place) in (0..number).map(part) {
                let count = count?;
                starts.push(N::place_of(elements)?);
                if count > 0 {
                    let part = first.others(at(place), count)?;
                    let len = part.bytes();
                    all.push((part, bytes));
                    bytes += len;
                    elements += count;
                }
            }
            Some(())
        };
        if fill().is_none() {
            // The library says what is wrong with counts; places that do not fit are too many
            // bytes.
            collective.call.fail(collective.abi().error);
            return;
        }
        if collective.make_dense(&first.kind, datatype) {
            let place = match collective.call.packed_place(&first, bytes) {
                Ok(place) => place,
                Err(code) => return collective.call.fail(code),
            };
            *buffer = Address::at(place.address() as *mut c_void);
            *places = collective.call.keep(starts.words).cast();
            collective.call.add(Side {
                landing: None,
                parts: all,
                place,
                direction,
                form: Form::Packed,
            });
        }
    }
}

impl<N: Count, P: Offset> Parts for BufferW<'_, N, P> {
    unsafe fn replace(
        self,
        collective: &mut Collective,
        buffer: &mut impl Address,
        number: usize,
        direction: Direction,
    ) {
        let BufferW {
            counts,
            places,
            types,
        } = self;
        if collective.is_in_place(*buffer)
            || counts.is_null()
            || places.is_null()
            || types.is_null()
        {
            return;
        }
        let (both, comm) = (collective.call.both(), collective.call.comm());
        let abi = both.1;
        let (mut all, mut bytes, mut is_there) = (Vec::new(), 0_usize, false);
        for i in 0..number {
            // SAFETY: the caller's promise.
            let (count, place, datatype) = unsafe {
                (
                    counts.add(i).read().number(),
                    places.add(i).read(),
                    abi.handle_at(*types, i),
                )
            };
            let at = buffer.get().wrapping_byte_offset(place.offset());
            let part = Elements::on_device(both, at, count, (datatype, comm));
            is_there |= part.is_some();
            let len = part.as_ref().map_or(0, Elements::bytes);
            all.push((part, bytes));
            bytes += len.next_multiple_of(16);
        }
        let Some(near) = all
            .iter()
            .find_map(|(part, _)| part.as_ref())
            .filter(|_| is_there)
        else {
            return;
        };
        let place = match collective.call.packed_place(near, bytes) {
            Ok(place) => place,
            Err(code) => return collective.call.fail(code),
        };
        let (mut starts, width) = (Array::<P>::new(), abi.handle_size());
        let mut handles = vec![0_u64; (number * width).div_ceil(8)];
        let mut parts = Vec::new();
        for (i, (part, offset)) in all.into_iter().enumerate() {
            // SAFETY: the caller's promise.
            let mut datatype = unsafe { abi.handle_at(*types, i) };
            let Some(start) = P::of(offset) else {
                collective.call.fail(abi.error);
                return;
            };
            starts.push(start);
            if let Some(part) = part {
                if !collective.make_dense(&part.kind, &mut datatype) {
                    return;
                }
                parts.push((part, offset));
            }
            // SAFETY: `handles` has room for each handle `i`.
            unsafe {
                let at = handles.as_mut_ptr().byte_add(i * width);
                abi.set_handle(at.cast(), datatype);
            }
        }
        *buffer = Address::at(place.address() as *mut c_void);
        *places = collective.call.keep(starts.words).cast();
        *types = collective.call.keep(handles);
        collective.call.add(Side {
            landing: None,
            parts,
            place,
            direction,
            form: Form::Packed,
        });
    }
}

/// What is reduced, where to, and how many elements of which type.
pub type Reduction<'a, C> = (&'a mut *const c_void, &'a mut *mut c_void, (C, Word));

impl Collective {
    /// `None` if nothing is looked at, or if the library will refuse the communicator.
    #[cold]
    pub fn new(comm: Word) -> Option<Collective> {
        Collective::of(Call::new(Some(comm))?)
    }

    /// A collective that makes a persistent request: what is sent is packed when it is started.
    /// `None` as for a blocking one.
    #[cold]
    pub fn persistent(comm: Word) -> Option<Collective> {
        Collective::of(Call::persistent(Some(comm))?)
    }

    fn of(mut call: Call) -> Option<Collective> {
        let comm = call.comm();
        call.has_no_status();
        let abi = call.abi();
        if !abi.is_comm(comm) {
            return None;
        }
        let (mut inter, mut rank, mut size, mut remote) = (0, 0, 0, 0);
        // SAFETY: writable outputs; the library checks the communicator.
        unsafe {
            if pmpi::comm_test_inter(comm, &mut inter) != 0
                || pmpi::comm_rank(comm, &mut rank) != 0
                || pmpi::comm_size(comm, &mut size) != 0
            {
                return None;
            }
            if inter != 0 {
                pmpi::comm_remote_size(comm, &mut remote);
            }
        }
        let (size, remote) = (usize::try_from(size).ok()?, usize::try_from(remote).ok()?);
        Some(Collective {
            call,
            is_inter: inter != 0,
            rank: usize::try_from(rank).ok()?,
            size,
            peers: if inter != 0 { remote } else { size },
        })
    }

    fn abi(&self) -> &'static Abi {
        self.call.abi()
    }

    fn role(&self, root: c_int) -> Role {
        match self.is_inter {
            false if usize::try_from(root) == Ok(self.rank) => Role::Root,
            true if root == self.abi().root => Role::Root,
            true if root < 0 => Role::Idle,
            _ => Role::Leaf,
        }
    }

    fn is_in_place(&self, buffer: impl Address) -> bool {
        buffer.get() as usize == self.abi().in_place
    }

    /// The direction of a receive buffer, which has what is sent if that is in place.
    fn received(&self, send: impl Address) -> Direction {
        if self.is_in_place(send) {
            Direction::Both
        } else {
            Direction::In
        }
    }

    /// Says that the function goes to the MPI library as it is.
    pub fn goes_to_library(&mut self) {
        self.call.goes_to_library();
    }

    /// Replaces a datatype by a dense one of its size.
    fn make_dense(&mut self, kind: &Kind, datatype: &mut Word) -> bool {
        if kind.is_dense() {
            return true;
        }
        match dense(self.abi(), kind.size()) {
            Some(dense) => {
                *datatype = dense;
                true
            }
            None => {
                self.call.fail(self.abi().error);
                false
            }
        }
    }

    /// Broadcasts.
    ///
    /// # Safety
    ///
    /// As the MPI standard says, for this and the functions below.
    pub unsafe fn bcast(&mut self, (buffer, parts): (&mut impl Address, impl Parts), root: c_int) {
        let direction = match self.role(root) {
            Role::Root => Direction::Out,
            Role::Leaf => Direction::In,
            Role::Idle => return,
        };
        // SAFETY: the caller's promise.
        unsafe { parts.replace(self, buffer, 1, direction) };
    }

    /// Gathers, of parts of one or of several lengths.
    pub unsafe fn gather(
        &mut self,
        (send, sent): (&mut impl Address, impl Parts),
        (recv, received): (&mut impl Address, impl Parts),
        root: c_int,
    ) {
        let role = self.role(root);
        let direction = self.received(*send);
        // SAFETY: the caller's promise.
        unsafe {
            if role == Role::Leaf || role == Role::Root && !self.is_inter {
                sent.replace(self, send, 1, Direction::Out);
            }
            if role == Role::Root {
                received.replace(self, recv, self.peers, direction);
            }
        }
    }

    /// Scatters, likewise.
    pub unsafe fn scatter(
        &mut self,
        (send, sent): (&mut impl Address, impl Parts),
        (recv, received): (&mut impl Address, impl Parts),
        root: c_int,
    ) {
        let role = self.role(root);
        // SAFETY: the caller's promise.
        unsafe {
            if role == Role::Root {
                sent.replace(self, send, self.peers, Direction::Out);
            }
            if role == Role::Leaf || role == Role::Root && !self.is_inter {
                received.replace(self, recv, 1, Direction::In);
            }
        }
    }

    /// Gathers to all, likewise.
    pub unsafe fn allgather(
        &mut self,
        (send, sent): (&mut impl Address, impl Parts),
        (recv, received): (&mut impl Address, impl Parts),
    ) {
        let direction = self.received(*send);
        // SAFETY: the caller's promise.
        unsafe {
            sent.replace(self, send, 1, Direction::Out);
            received.replace(self, recv, self.peers, direction);
        }
    }

    /// Sends from all to all, likewise, and of parts of several types.
    pub unsafe fn alltoall(
        &mut self,
        (send, sent): (&mut impl Address, impl Parts),
        (recv, received): (&mut impl Address, impl Parts),
    ) {
        let direction = self.received(*send);
        // SAFETY: the caller's promise.
        unsafe {
            sent.replace(self, send, self.peers, Direction::Out);
            received.replace(self, recv, self.peers, direction);
        }
    }

    /// Neighbours that are sent to, those that are received from, and the direction of what is
    /// received: nothing comes from `MPI_PROC_NULL`.
    fn neighbours(&self) -> (usize, usize, Direction) {
        match Neighbours::of(self.abi(), self.call.comm()) {
            None => (0, 0, Direction::In),
            Some(neighbours) => {
                let has_nobody = neighbours.sources.iter().any(|rank| *rank < 0);
                let direction = if has_nobody {
                    Direction::Both
                } else {
                    Direction::In
                };
                (
                    neighbours.destinations.len(),
                    neighbours.sources.len(),
                    direction,
                )
            }
        }
    }

    /// Gathers from neighbours.
    pub unsafe fn neighbor_allgather(
        &mut self,
        (send, sent): (&mut impl Address, impl Parts),
        (recv, received): (&mut impl Address, impl Parts),
    ) {
        let (_, from, direction) = self.neighbours();
        // SAFETY: the caller's promise.
        unsafe {
            sent.replace(self, send, 1, Direction::Out);
            received.replace(self, recv, from, direction);
        }
    }

    /// Sends to neighbours and receives from them.
    pub unsafe fn neighbor_alltoall(
        &mut self,
        (send, sent): (&mut impl Address, impl Parts),
        (recv, received): (&mut impl Address, impl Parts),
    ) {
        let (to, from, direction) = self.neighbours();
        // SAFETY: the caller's promise.
        unsafe {
            sent.replace(self, send, to, Direction::Out);
            received.replace(self, recv, from, direction);
        }
    }

    /// Elements of a reduction, whose datatype the operation knows.
    fn reduced(
        &mut self,
        buffer: &mut impl Address,
        count: Option<usize>,
        datatype: Word,
        direction: Direction,
    ) {
        if self.is_in_place(*buffer) {
            return;
        }
        let what = (datatype, self.call.comm());
        let both = self.call.both();
        let Some(elements) = Elements::on_device(both, buffer.get(), count, what) else {
            return;
        };
        let Some((low, len)) = elements.span() else {
            self.call.fail(both.1.error);
            return;
        };
        // In host memory, also for a library that takes the other: only some of those reduce there.
        let staging = match Staging::new(both.0, &elements.near, len) {
            Ok(staging) => staging,
            Err(code) => return self.call.fail(code),
        };
        let origin = staging.address().wrapping_add_signed(-low);
        *buffer = Address::at(origin as *mut c_void);
        self.call.add(Side {
            landing: None,
            parts: vec![(elements, 0)],
            place: Place::Host(staging),
            // What lies between elements keeps its bytes.
            direction: match direction {
                Direction::Out => Direction::Out,
                _ => Direction::Both,
            },
            form: Form::Image,
        });
    }

    /// `MPI_Reduce`
    pub fn reduce(
        &mut self,
        (send, recv, (count, datatype)): Reduction<'_, impl Count>,
        root: c_int,
    ) {
        let role = self.role(root);
        let direction = self.received(*send);
        if role == Role::Leaf || role == Role::Root && !self.is_inter {
            self.reduced(send, count.number(), datatype, Direction::Out);
        }
        if role == Role::Root {
            self.reduced(recv, count.number(), datatype, direction);
        }
    }

    /// `MPI_Allreduce`, `MPI_Scan`, `MPI_Exscan`
    pub fn allreduce(&mut self, (send, recv, (count, datatype)): Reduction<'_, impl Count>) {
        let direction = self.received(*send);
        self.reduced(send, count.number(), datatype, Direction::Out);
        self.reduced(recv, count.number(), datatype, direction);
    }

    /// `MPI_Reduce_scatter`
    ///
    /// # Safety
    ///
    /// There is a count for each rank of the local group.
    pub unsafe fn reduce_scatter<N: Count>(
        &mut self,
        (send, recv, (counts, datatype)): Reduction<'_, *const N>,
    ) {
        if counts.is_null() {
            return;
        }
        // SAFETY: the caller's promise.
        let count = |rank: usize| unsafe { counts.add(rank).read() }.number();
        let all = (0..self.size).try_fold(0_usize, |all, rank| all.checked_add(count(rank)?));
        let own = count(self.rank);
        self.scattered((send, recv), (all, own), datatype);
    }

    /// `MPI_Reduce_scatter_block`
    pub fn reduce_scatter_block(
        &mut self,
        (send, recv, (count, datatype)): Reduction<'_, impl Count>,
    ) {
        let own = count.number();
        let all = own.and_then(|own| own.checked_mul(self.size));
        self.scattered((send, recv), (all, own), datatype);
    }

    fn scattered(
        &mut self,
        (send, recv): (&mut impl Address, &mut impl Address),
        (all, own): (Option<usize>, Option<usize>),
        datatype: Word,
    ) {
        let direction = self.received(*send);
        self.reduced(send, all, datatype, Direction::Out);
        let received = if direction == Direction::Both {
            all
        } else {
            own
        };
        self.reduced(recv, received, datatype, direction);
    }

    /// Calls the function, and unpacks what it has received.
    pub fn block(self, function: impl FnOnce() -> c_int) -> c_int {
        self.call.block(std::ptr::null_mut(), |_| function())
    }

    /// Calls a function that makes a request.
    pub fn begin(self, request: *const c_void, function: impl FnOnce() -> c_int) -> c_int {
        self.call.begin(request, function)
    }
}

/// An array of numbers of some width, in words that it is aligned in.
struct Array<T> {
    words: Vec<u64>,
    length: usize,
    _of: std::marker::PhantomData<T>,
}

impl<T: Copy> Array<T> {
    fn new() -> Self {
        const { assert!(size_of::<T>() <= size_of::<u64>()) };
        Array {
            words: Vec::new(),
            length: 0,
            _of: std::marker::PhantomData,
        }
    }

    fn push(&mut self, value: T) {
        self.length += 1;
        self.words
            .resize((self.length * size_of::<T>()).div_ceil(8), 0);
        // SAFETY: `words` has room for `length` values, aligned as words are.
        unsafe {
            let array = self.words.as_mut_ptr().cast::<T>();
            array.add(self.length - 1).write(value);
        }
    }
}
