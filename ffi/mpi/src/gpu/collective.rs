// SPDX-License-Identifier: MIT OR Apache-2.0

//! Collectives some of whose buffers are in device memory. Datatypes that are not dense are
//! replaced by dense ones of the same size, so that all ranks go on counting the same elements:
//! libraries cut messages between elements.

use std::ffi::{c_int, c_void};

use crate::gpu::call::{Call, Direction, Form, Side, dense};
use crate::gpu::elements::Elements;
use crate::gpu::staging::{Place, Staging};
use crate::library::abi::Word;
use crate::library::buffers::Address;
use crate::library::count::Count;
use crate::library::neighbourhood::{Members, Neighbours};
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

/// A buffer of a collective. The program gives one per call, or a part for each rank or neighbour.
pub trait Parts {
    /// Replaces what is in device memory, of `number` parts; the code of the call if that cannot be
    /// done.
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
    ) -> Result<(), c_int>;
}

impl<N: Count> Parts for Buffer<'_, N> {
    unsafe fn replace(
        self,
        collective: &mut Collective,
        buffer: &mut impl Address,
        number: usize,
        direction: Direction,
    ) -> Result<(), c_int> {
        let all = self.count.number();
        let all = all.and_then(|count| count.checked_mul(number));
        let Some(elements) = collective.on_device(buffer.get(), all, *self.datatype) else {
            return Ok(());
        };
        collective.make_dense(&elements.kind, self.datatype)?;
        let place = (collective.call).place(&elements, elements.bytes(), direction)?;
        collective.put(buffer, vec![(elements, 0)], place, direction);
        Ok(())
    }
}

impl<N: Count> Parts for BufferV<'_, N> {
    unsafe fn replace(
        self,
        collective: &mut Collective,
        buffer: &mut impl Address,
        number: usize,
        direction: Direction,
    ) -> Result<(), c_int> {
        let BufferV {
            counts,
            places,
            datatype,
        } = self;
        if collective.is_in_place(*buffer) || counts.is_null() || places.is_null() {
            return Ok(());
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
            return Ok(());
        };
        let abi = collective.call.abi;
        let Some(kind) = Kind::of(abi, *datatype, collective.call.comm) else {
            return Ok(());
        };
        let at = |place: isize| {
            let offset = kind.extent().wrapping_mul(place);
            buffer.get().wrapping_byte_offset(offset)
        };
        let first = collective.on_device(at(first_place), Some(first_count), *datatype);
        let Some(first) = first else {
            return Ok(());
        };
        let (mut all, mut bytes, mut elements) = (Vec::new(), 0, 0);
        let mut starts = Vec::with_capacity(number);
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
        // The library says what is wrong with counts; places that do not fit are too many bytes.
        fill().ok_or(abi.error)?;
        collective.make_dense(&first.kind, datatype)?;
        let place = collective.call.packed_place(&first, bytes)?;
        *places = collective.call.keep(starts);
        collective.put(buffer, all, place, direction);
        Ok(())
    }
}

impl<N, P> Parts for BufferW<'_, N, P>
where
    N: Count,
    P: Copy + Send + TryFrom<usize> + TryInto<isize> + 'static,
{
    unsafe fn replace(
        self,
        collective: &mut Collective,
        buffer: &mut impl Address,
        number: usize,
        direction: Direction,
    ) -> Result<(), c_int> {
        let BufferW {
            counts,
            places,
            types,
        } = self;
        let are_there = !counts.is_null() && !places.is_null() && !types.is_null();
        if collective.is_in_place(*buffer) || !are_there {
            return Ok(());
        }
        let abi = collective.call.abi;
        let (mut all, mut bytes) = (Vec::new(), 0_usize);
        for i in 0..number {
            // SAFETY: the caller's promise.
            let (count, place, datatype) = unsafe {
                (
                    counts.add(i).read().number(),
                    places.add(i).read(),
                    abi.handle_at(*types, i),
                )
            };
            let place = place.try_into().map_err(|_| abi.error)?;
            let at = buffer.get().wrapping_byte_offset(place);
            let part = collective.on_device(at, count, datatype);
            let len = part.as_ref().map_or(0, Elements::bytes);
            all.push((part, bytes));
            bytes += len.next_multiple_of(16);
        }
        let Some(near) = all.iter().find_map(|(part, _)| part.as_ref()) else {
            return Ok(());
        };
        let place = collective.call.packed_place(near, bytes)?;
        let (mut starts, width) = (Vec::with_capacity(number), abi.handle_size());
        let mut handles = vec![0_u64; (number * width).div_ceil(8)];
        let mut parts = Vec::new();
        for (i, (part, offset)) in all.into_iter().enumerate() {
            // SAFETY: the caller's promise.
            let mut datatype = unsafe { abi.handle_at(*types, i) };
            starts.push(P::try_from(offset).map_err(|_| abi.error)?);
            if let Some(part) = part {
                collective.make_dense(&part.kind, &mut datatype)?;
                parts.push((part, offset));
            }
            // SAFETY: `handles` has room for each handle `i`.
            unsafe {
                let at = handles.as_mut_ptr().byte_add(i * width);
                abi.set_handle(at.cast(), datatype);
            }
        }
        *places = collective.call.keep(starts);
        *types = collective.call.keep(handles).cast();
        collective.put(buffer, parts, place, direction);
        Ok(())
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
        let comm = call.comm;
        call.has_status = false;
        if !call.abi.is_comm(comm) {
            return None;
        }
        let members = Members::of(comm)?;
        Some(Collective {
            call,
            is_inter: members.is_inter,
            rank: usize::try_from(members.rank).ok()?,
            size: usize::try_from(members.size).ok()?,
            peers: usize::try_from(members.peers()).ok()?,
        })
    }

    fn role(&self, root: c_int) -> Role {
        match self.is_inter {
            false if usize::try_from(root) == Ok(self.rank) => Role::Root,
            true if root == self.call.abi.root => Role::Root,
            true if root < 0 => Role::Idle,
            _ => Role::Leaf,
        }
    }

    fn is_in_place(&self, buffer: impl Address) -> bool {
        buffer.get() as usize == self.call.abi.in_place
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
        self.call.is_library = true;
    }

    /// Elements, if they are in device memory.
    fn on_device(&self, at: *mut c_void, count: Option<usize>, datatype: Word) -> Option<Elements> {
        if self.is_in_place(at) {
            return None;
        }
        Elements::on_device(self.call.both(), at, count, (datatype, self.call.comm))
    }

    /// Replaces a datatype by a dense one of its size.
    fn make_dense(&self, kind: &Kind, datatype: &mut Word) -> Result<(), c_int> {
        if !kind.is_dense() {
            *datatype = dense(self.call.abi, kind.size()).ok_or(self.call.abi.error)?;
        }
        Ok(())
    }

    /// Puts memory for packed bytes in the place of a buffer with these parts.
    fn put(
        &mut self,
        buffer: &mut impl Address,
        parts: Vec<(Elements, usize)>,
        place: Place,
        direction: Direction,
    ) {
        *buffer = Address::at(place.address() as *mut c_void);
        self.call.add(Side {
            landing: None,
            parts,
            place,
            direction,
            form: Form::Packed,
        });
    }

    /// [`Parts::replace`], whose code is the call's.
    unsafe fn replace(
        &mut self,
        parts: impl Parts,
        buffer: &mut impl Address,
        number: usize,
        direction: Direction,
    ) {
        // SAFETY: the caller's promise.
        if let Err(code) = unsafe { parts.replace(self, buffer, number, direction) } {
            self.call.failed = Some(code);
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
        unsafe { self.replace(parts, buffer, 1, direction) };
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
                self.replace(sent, send, 1, Direction::Out);
            }
            if role == Role::Root {
                self.replace(received, recv, self.peers, direction);
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
                self.replace(sent, send, self.peers, Direction::Out);
            }
            if role == Role::Leaf || role == Role::Root && !self.is_inter {
                self.replace(received, recv, 1, Direction::In);
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
            self.replace(sent, send, 1, Direction::Out);
            self.replace(received, recv, self.peers, direction);
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
            self.replace(sent, send, self.peers, Direction::Out);
            self.replace(received, recv, self.peers, direction);
        }
    }

    /// Neighbours that are sent to, those that are received from, and the direction of what is
    /// received: nothing comes from `MPI_PROC_NULL`.
    fn neighbours(&self) -> (usize, usize, Direction) {
        let Some(neighbours) = Neighbours::of(self.call.abi, self.call.comm) else {
            return (0, 0, Direction::In);
        };
        let has_nobody = neighbours.sources.iter().any(|rank| *rank < 0);
        let direction = if has_nobody {
            Direction::Both
        } else {
            Direction::In
        };
        let (to, from) = (neighbours.destinations.len(), neighbours.sources.len());
        (to, from, direction)
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
            self.replace(sent, send, 1, Direction::Out);
            self.replace(received, recv, from, direction);
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
            self.replace(sent, send, to, Direction::Out);
            self.replace(received, recv, from, direction);
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
        let Some(elements) = self.on_device(buffer.get(), count, datatype) else {
            return;
        };
        let (driver, abi) = self.call.both();
        // In host memory, also for a library that takes the other: only some of those reduce there.
        let staged = elements.span().ok_or(abi.error).and_then(|(low, len)| {
            let staging = Staging::new(driver, &elements.near, len)?;
            Ok((staging.address().wrapping_add_signed(-low), staging))
        });
        let (origin, staging) = match staged {
            Ok(staged) => staged,
            Err(code) => return self.call.failed = Some(code),
        };
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
