// SPDX-License-Identifier: MIT OR Apache-2.0

//! Collectives of a communicator whose ranks are on several machines: inside a node by its team,
//! between nodes by the MPI library, which only the first rank of each node, its leader, calls.
//!
//! Bytes travel between leaders in the order of nodes, and inside a node in that of its ranks;
//! where a communicator has another order, or parts have gaps between them, they are put in order
//! by the rank that reads or writes the caller's buffer.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use libcopy::{Parts, Team};

use libcopy::scratch::zeros;

use crate::library::abi::{Abi, UNDEFINED, Word};
use crate::library::buffers::Division;
use crate::library::failure::Failure;
use crate::library::pmpi;
use crate::types::buffer::MOST;

/// Whether the program ends: then communicators go with the MPI library.
static OVER: AtomicBool = AtomicBool::new(false);

/// Leaves communicators to `MPI_Finalize` from now on.
pub fn finish() {
    OVER.store(true, Ordering::Relaxed);
}

/// Whether ranks on several nodes have found each other on any communicator.
static KNOWN: AtomicBool = AtomicBool::new(false);

/// Whether any communicator's collectives may be done node by node.
#[inline(always)]
pub fn are_known() -> bool {
    KNOWN.load(Ordering::Relaxed)
}

/// The communicator of the leaders.
#[derive(Debug)]
struct Leaders {
    comm: Word,
    byte: Word,
}

impl Drop for Leaders {
    fn drop(&mut self) {
        if !OVER.load(Ordering::Relaxed) {
            // SAFETY: our own communicator, which goes with the program's, so all leaders are here.
            unsafe { pmpi::comm_free(&mut self.comm) };
        }
    }
}

/// Bytes for or from each leader, and where they are.
#[derive(Debug)]
struct Blocks {
    lengths: Vec<c_int>,
    places: Vec<c_int>,
}

/// Where bytes are. Slices without any may be anywhere, even where `MPI_IN_PLACE` is.
fn address(bytes: &[u8]) -> *const c_void {
    static NOTHING: u64 = 0;
    if bytes.is_empty() {
        (&raw const NOTHING).cast()
    } else {
        bytes.as_ptr().cast()
    }
}

/// The same for bytes that are written to.
fn address_mut(bytes: &mut [u8]) -> *mut c_void {
    if bytes.is_empty() {
        address(bytes).cast_mut()
    } else {
        bytes.as_mut_ptr().cast()
    }
}

impl Leaders {
    fn barrier(&self) -> c_int {
        // SAFETY: all leaders are here.
        unsafe { pmpi::barrier(self.comm) }
    }

    fn bcast(&self, bytes: &mut [u8], root: usize) -> c_int {
        for chunk in bytes.chunks_mut(MOST) {
            let (at, count) = (address_mut(chunk), chunk.len() as c_int);
            // SAFETY: all leaders are here with as many bytes.
            let code = unsafe { pmpi::bcast(at, count, self.byte, root as c_int, self.comm) };
            if code != 0 {
                return code;
            }
        }
        0
    }

    fn gatherv(&self, send: &[u8], recv: Option<(&mut [u8], &Blocks)>, root: usize) -> c_int {
        let (from, count) = (address(send), send.len() as c_int);
        let (to, lengths, places) = match recv {
            Some((recv, blocks)) => (
                address_mut(recv),
                blocks.lengths.as_ptr(),
                blocks.places.as_ptr(),
            ),
            None => (ptr::null_mut(), ptr::null(), ptr::null()),
        };
        let (byte, root) = (self.byte, root as c_int);
        // SAFETY: all leaders are here; blocks lie in the buffer that they come with.
        unsafe {
            pmpi::gatherv(
                from, count, byte, to, lengths, places, byte, root, self.comm,
            )
        }
    }

    fn scatterv(&self, send: Option<(&[u8], &Blocks)>, recv: &mut [u8], root: usize) -> c_int {
        let (from, lengths, places) = match send {
            Some((send, blocks)) => (
                address(send),
                blocks.lengths.as_ptr(),
                blocks.places.as_ptr(),
            ),
            None => (ptr::null(), ptr::null(), ptr::null()),
        };
        let (to, count) = (address_mut(recv), recv.len() as c_int);
        let (byte, root) = (self.byte, root as c_int);
        // SAFETY: as above.
        unsafe {
            pmpi::scatterv(
                from, lengths, places, byte, to, count, byte, root, self.comm,
            )
        }
    }

    /// Our own block is there already.
    fn allgatherv(&self, abi: &Abi, all: &mut [u8], blocks: &Blocks) -> c_int {
        let own = abi.in_place as *const c_void;
        let (to, byte) = (address_mut(all), self.byte);
        let (lengths, places) = (blocks.lengths.as_ptr(), blocks.places.as_ptr());
        // SAFETY: as above.
        unsafe { pmpi::allgatherv(own, 0, byte, to, lengths, places, byte, self.comm) }
    }

    fn reduce(&self, what: What, send: &[u8], mut recv: Option<&mut [u8]>, root: usize) -> c_int {
        let most = MOST / what.size * what.size;
        for (i, from) in send.chunks(most).enumerate() {
            let to = match &mut recv {
                Some(recv) => recv[i * most..].as_mut_ptr().cast(),
                None => ptr::null_mut(),
            };
            let count = (from.len() / what.size) as c_int;
            // SAFETY: all leaders are here with as many elements, which are dense.
            let code = unsafe {
                let (from, kind) = (from.as_ptr().cast(), what.datatype);
                pmpi::reduce(from, to, count, kind, what.op, root as c_int, self.comm)
            };
            if code != 0 {
                return code;
            }
        }
        0
    }

    fn allreduce(&self, abi: &Abi, what: What, all: &mut [u8]) -> c_int {
        let most = MOST / what.size * what.size;
        for part in all.chunks_mut(most) {
            let count = (part.len() / what.size) as c_int;
            // SAFETY: as above.
            let code = unsafe {
                let (own, to) = (abi.in_place as *const c_void, part.as_mut_ptr().cast());
                pmpi::allreduce(own, to, count, what.datatype, what.op, self.comm)
            };
            if code != 0 {
                return code;
            }
        }
        0
    }
}

/// What is reduced, for the MPI library.
#[derive(Clone, Copy, Debug)]
pub struct What {
    /// The datatype of elements.
    pub datatype: Word,
    /// The operation.
    pub op: Word,
    /// Bytes of an element.
    pub size: usize,
}

/// Combines elements of one slice into those of another.
pub type Combine<'a> = &'a mut dyn FnMut(&[u8], &mut [u8]);

/// The nodes of a communicator.
#[derive(Debug)]
pub struct Nodes {
    abi: &'static Abi,
    /// At a leader.
    leaders: Option<Leaders>,
    /// Our node.
    node: usize,
    /// The ranks of each node, in their order in its team.
    members: Vec<Vec<usize>>,
    /// Each rank's node, and its place there.
    places: Vec<(usize, usize)>,
}

impl Nodes {
    /// Nodes of which each rank says who its leader is; `None` if there is only one, or if there is
    /// but one rank on each. Collective over the communicator; the outcome is the same everywhere.
    ///
    /// # Errors
    ///
    /// The library's error code.
    pub fn new(
        abi: &'static Abi,
        comm: Word,
        rank: usize,
        leaders: &[c_int],
    ) -> Result<Option<Nodes>, c_int> {
        let mut firsts: Vec<c_int> = leaders.to_vec();
        firsts.sort_unstable();
        firsts.dedup();
        if firsts.len() == 1 || firsts.len() == leaders.len() {
            return Ok(None);
        }
        let mut members = vec![Vec::new(); firsts.len()];
        let mut places = Vec::new();
        for (rank, leader) in leaders.iter().enumerate() {
            let node = firsts.partition_point(|first| first < leader);
            places.push((node, members[node].len()));
            members[node].push(rank);
        }
        let is_leader = places[rank].1 == 0;
        let color = if is_leader { 0 } else { UNDEFINED };
        let mut new: Word = 0;
        // SAFETY: all ranks are here; a word has room for either kind of handle.
        match unsafe { pmpi::comm_split(comm, color, rank as c_int, &mut new) } {
            0 => {}
            code => return Err(code),
        }
        let leaders = is_leader.then(|| {
            // SAFETY: our own communicator. What goes wrong on it, the program's error handler
            // hears of on the program's communicator.
            unsafe { pmpi::comm_set_errhandler(new, abi.errors_return) };
            Leaders {
                comm: new,
                byte: abi.byte,
            }
        });
        KNOWN.store(true, Ordering::Relaxed);
        Ok(Some(Nodes {
            abi,
            leaders,
            node: places[rank].0,
            members,
            places,
        }))
    }

    /// Bytes of a node's ranks.
    fn total(&self, node: usize, lengths: &[usize]) -> usize {
        self.members[node].iter().map(|rank| lengths[*rank]).sum()
    }

    /// Bytes of all other nodes' ranks.
    fn foreign(&self, lengths: &[usize]) -> usize {
        lengths.iter().sum::<usize>() - self.total(self.node, lengths)
    }

    /// Lengths of our node's ranks' parts, one behind the other from `first` on.
    fn tight(&self, lengths: &[usize], first: usize) -> Division {
        let mut end = first;
        let (mut counts, mut offsets) = (Vec::new(), Vec::new());
        for rank in &self.members[self.node] {
            counts.push(lengths[*rank]);
            offsets.push(end);
            end += lengths[*rank];
        }
        Division { counts, offsets }
    }

    /// Our node's ranks' parts of a buffer that is divided among all.
    fn own_parts(&self, parts: Parts<'_>) -> Division {
        let ranks = self.members[self.node].iter();
        let own = ranks.map(|rank| (parts.counts[*rank], parts.offsets[*rank]));
        let (counts, offsets) = own.unzip();
        Division { counts, offsets }
    }

    /// Parts of our team, of which only one has any bytes.
    fn only(&self, place: usize, length: usize) -> Division {
        let size = self.members[self.node].len();
        let mut counts = vec![0; size];
        counts[place] = length;
        let offsets = vec![0; size];
        Division { counts, offsets }
    }

    /// A block of each node's bytes, one behind the other; ours has none where `skip` says so.
    fn blocks(&self, lengths: &[usize], skip: bool) -> Blocks {
        let mut blocks = Blocks {
            lengths: Vec::new(),
            places: Vec::new(),
        };
        let mut end = 0;
        for node in 0..self.members.len() {
            let length = if skip && node == self.node {
                0
            } else {
                self.total(node, lengths)
            };
            blocks.lengths.push(length as c_int);
            blocks.places.push(end as c_int);
            end += length;
        }
        blocks
    }

    /// The same where the bytes of each node's ranks are one behind the other in the caller's
    /// buffer; ours is left out.
    fn blocks_in_place(&self, parts: Parts<'_>) -> Option<Blocks> {
        let mut blocks = Blocks {
            lengths: Vec::new(),
            places: Vec::new(),
        };
        for (node, ranks) in self.members.iter().enumerate() {
            let (first, length) = if node == self.node {
                (0, 0)
            } else {
                run(ranks.iter().copied(), parts)?
            };
            blocks.lengths.push(length as c_int);
            blocks.places.push(c_int::try_from(first).ok()?);
        }
        Some(blocks)
    }

    /// The ranks of other nodes, in the order of their bytes.
    fn others(&self) -> impl Iterator<Item = usize> {
        let members = self.members.iter().enumerate();
        let others = members.filter(|(node, _)| *node != self.node);
        others.flat_map(|(_, ranks)| ranks.iter().copied())
    }

    /// Takes back what our team waits for if the MPI library has failed.
    fn across(&self, team: &mut Team, code: c_int) -> Result<(), Failure> {
        match code {
            0 => Ok(()),
            code => {
                team.give_up();
                Err(Failure::Code(code))
            }
        }
    }

    /// Returns when all ranks have come.
    pub fn barrier(&self, team: &mut Team) -> Result<(), Failure> {
        team.barrier()?;
        if let Some(leaders) = &self.leaders {
            self.across(team, leaders.barrier())?;
        }
        Ok(team.barrier()?)
    }

    /// Copies the root's bytes into everybody's.
    pub fn bcast(&self, team: &mut Team, bytes: &mut [u8], root: usize) -> Result<(), Failure> {
        let (home, seat) = self.places[root];
        let first = self.node == home && seat != 0;
        if first {
            team.bcast(bytes, seat)?;
        }
        if let Some(leaders) = &self.leaders {
            self.across(team, leaders.bcast(bytes, home))?;
        }
        if !first {
            team.bcast(bytes, 0)?;
        }
        Ok(())
    }

    /// Collects parts of these lengths, which all ranks know, at the root; without a part of its
    /// own, it has that in place already.
    pub fn gatherv(
        &self,
        team: &mut Team,
        own: Option<&[u8]>,
        into: Option<(&mut [u8], Parts<'_>)>,
        lengths: &[usize],
        root: usize,
    ) -> Result<(), Failure> {
        let (home, seat) = self.places[root];
        let Some((recv, parts)) = into else {
            let own = own.unwrap_or_default();
            let place = if self.node == home { seat } else { 0 };
            return self.give(team, own, lengths, (home, place));
        };
        if parts.counts != lengths {
            // What comes does not fit, but those who send it must not wait for us.
            let (all, offsets) = one_behind_the_other(lengths);
            let (mut room, counts) = (zeros(all)?, lengths);
            let parts = Parts {
                counts,
                offsets: &offsets,
            };
            self.gatherv(team, own, Some((&mut room, parts)), lengths, root)?;
            return Err(Failure::Code(self.abi.truncate));
        }
        let near = self.own_parts(parts);
        let near = near.parts();
        match own {
            Some(own) => team.gatherv(own, Some((recv, near)), seat)?,
            None => team.gatherv_in_place(recv, Some(near), seat)?,
        }
        if let (Some(leaders), Some(blocks)) = (&self.leaders, self.blocks_in_place(parts)) {
            return self.across(team, leaders.gatherv(&[], Some((recv, &blocks)), home));
        }
        let mut far = zeros(self.foreign(lengths))?;
        match &self.leaders {
            Some(leaders) => {
                let blocks = self.blocks(lengths, true);
                self.across(team, leaders.gatherv(&[], Some((&mut far, &blocks)), home))?;
            }
            None => team.scatterv(None, &mut far, 0)?,
        }
        let mut rest = &far[..];
        for rank in self.others() {
            let (part, behind) = rest.split_at(lengths[rank]);
            recv[parts.offsets[rank]..][..part.len()].copy_from_slice(part);
            rest = behind;
        }
        Ok(())
    }

    /// What a rank that is not the root does in a gather: our node's bytes go to `place`.
    fn give(
        &self,
        team: &mut Team,
        own: &[u8],
        lengths: &[usize],
        (home, place): (usize, usize),
    ) -> Result<(), Failure> {
        let Some(leaders) = &self.leaders else {
            team.gatherv(own, None, place)?;
            if self.node == home && place != 0 {
                team.scatterv(None, &mut [0u8; 0], 0)?;
            }
            return Ok(());
        };
        if self.node != home {
            let mut all = zeros(self.total(self.node, lengths))?;
            let parts = self.tight(lengths, 0);
            let parts = parts.parts();
            team.gatherv(own, Some((&mut all, parts)), 0)?;
            return self.across(team, leaders.gatherv(&all, None, home));
        }
        team.gatherv(own, None, place)?;
        let mut far = zeros(self.foreign(lengths))?;
        let blocks = self.blocks(lengths, true);
        self.across(team, leaders.gatherv(&[], Some((&mut far, &blocks)), home))?;
        let parts = self.only(place, far.len());
        let parts = parts.parts();
        Ok(team.scatterv(Some((&far, parts)), &mut [], 0)?)
    }

    /// Hands out the root's parts, which have these lengths.
    pub fn scatterv(
        &self,
        team: &mut Team,
        whole: Option<(&[u8], Parts<'_>)>,
        own: &mut [u8],
        lengths: &[usize],
        root: usize,
    ) -> Result<(), Failure> {
        let (home, seat) = self.places[root];
        let Some((bytes, parts)) = whole else {
            let place = if self.node == home { seat } else { 0 };
            return self.take(team, own, lengths, (home, place));
        };
        if parts.counts != lengths {
            // Others get what there is; nobody waits for more.
            let (all, offsets) = one_behind_the_other(lengths);
            let mut room = zeros(all)?;
            for (rank, at) in offsets.iter().enumerate() {
                let length = lengths[rank].min(parts.counts[rank]);
                let from = &bytes[parts.offsets[rank]..][..length];
                room[*at..][..length].copy_from_slice(from);
            }
            let parts = Parts {
                counts: lengths,
                offsets: &offsets,
            };
            self.scatterv(team, Some((&room, parts)), own, lengths, root)?;
            return Err(Failure::Code(self.abi.truncate));
        }
        let direct = self.leaders.as_ref().zip(self.blocks_in_place(parts));
        if let Some((leaders, blocks)) = direct {
            self.across(
                team,
                leaders.scatterv(Some((bytes, &blocks)), &mut [], home),
            )?;
        } else {
            let mut far = zeros(self.foreign(lengths))?;
            far.clear();
            for rank in self.others() {
                far.extend_from_slice(&bytes[parts.offsets[rank]..][..lengths[rank]]);
            }
            match &self.leaders {
                Some(leaders) => {
                    let blocks = self.blocks(lengths, true);
                    let code = leaders.scatterv(Some((&far, &blocks)), &mut [], home);
                    self.across(team, code)?;
                }
                None => team.gatherv(&far, None, 0)?,
            }
        }
        let near = self.own_parts(parts);
        let near = near.parts();
        Ok(team.scatterv(Some((bytes, near)), own, seat)?)
    }

    /// What a rank that is not the root does in a scatter: our node's bytes come from `place`.
    fn take(
        &self,
        team: &mut Team,
        own: &mut [u8],
        lengths: &[usize],
        (home, place): (usize, usize),
    ) -> Result<(), Failure> {
        let hands_over = self.node == home && place != 0;
        let Some(leaders) = &self.leaders else {
            if hands_over {
                team.gatherv(&[0u8; 0], None, 0)?;
            }
            return Ok(team.scatterv(None, own, place)?);
        };
        if hands_over {
            let mut far = zeros(self.foreign(lengths))?;
            let parts = self.only(place, far.len());
            let parts = parts.parts();
            team.gatherv(&[0u8; 0], Some((&mut far, parts)), 0)?;
            let blocks = self.blocks(lengths, true);
            let code = leaders.scatterv(Some((&far, &blocks)), &mut [], home);
            self.across(team, code)?;
            return Ok(team.scatterv(None, own, place)?);
        }
        let mut all = zeros(self.total(self.node, lengths))?;
        self.across(team, leaders.scatterv(None, &mut all, home))?;
        let parts = self.tight(lengths, 0);
        let parts = parts.parts();
        Ok(team.scatterv(Some((&all, parts)), own, 0)?)
    }

    /// Collects everybody's parts everywhere; without a part of our own, it is in place already.
    pub fn allgatherv(
        &self,
        team: &mut Team,
        own: Option<&[u8]>,
        recv: &mut [u8],
        parts: Parts<'_>,
    ) -> Result<(), Failure> {
        let total: usize = parts.counts.iter().sum();
        let order = self.members.iter().flatten().copied();
        let first = run(order, parts).map(|(first, _)| first);
        let mut room = match first {
            None => zeros(total)?,
            Some(_) => Vec::new(),
        };
        match &self.leaders {
            None => {
                let me = self.me(team);
                let mine = own.unwrap_or(&recv[parts.offsets[me]..][..parts.counts[me]]);
                team.gatherv(mine, None, 0)?;
            }
            Some(leaders) => {
                let blocks = self.blocks(parts.counts, false);
                let near = self.tight(parts.counts, blocks.places[self.node] as usize);
                let near = near.parts();
                let all = match first {
                    Some(first) => {
                        let all = &mut recv[first..first + total];
                        match own {
                            Some(own) => team.gatherv(own, Some((all, near)), 0)?,
                            None => team.gatherv_in_place(all, Some(near), 0)?,
                        }
                        all
                    }
                    None => {
                        let me = self.me(team);
                        let mine = own.unwrap_or(&recv[parts.offsets[me]..][..parts.counts[me]]);
                        team.gatherv(mine, Some((&mut room, near)), 0)?;
                        &mut room[..]
                    }
                };
                self.across(team, leaders.allgatherv(self.abi, all, &blocks))?;
            }
        }
        if let Some(first) = first {
            return Ok(team.bcast(&mut recv[first..first + total], 0)?);
        }
        team.bcast(&mut room, 0)?;
        let mut rest = &room[..];
        for rank in self.members.iter().flatten() {
            let (part, behind) = rest.split_at(parts.counts[*rank]);
            recv[parts.offsets[*rank]..][..part.len()].copy_from_slice(part);
            rest = behind;
        }
        Ok(())
    }

    fn me(&self, team: &Team) -> usize {
        self.members[self.node][team.rank()]
    }

    /// Combines everybody's elements at the root; without elements of its own, they are in place.
    pub fn reduce(
        &self,
        team: &mut Team,
        own: Option<&[u8]>,
        into: Option<&mut [u8]>,
        root: usize,
        (what, combine): (What, Combine<'_>),
    ) -> Result<(), Failure> {
        let (home, seat) = self.places[root];
        let send = own.or(into.as_deref()).unwrap_or_default();
        let Some(leaders) = &self.leaders else {
            team.reduce_bytes(Some(send), None, 0, what.size, combine)?;
            if self.node == home && seat != 0 {
                team.scatterv(None, into.unwrap_or_default(), 0)?;
            }
            return Ok(());
        };
        let mut near = zeros(send.len())?;
        team.reduce_bytes(Some(send), Some(&mut near), 0, what.size, combine)?;
        if self.node != home || into.is_some() {
            return self.across(team, leaders.reduce(what, &near, into, home));
        }
        let mut all = zeros(near.len())?;
        self.across(team, leaders.reduce(what, &near, Some(&mut all), home))?;
        let parts = self.only(seat, all.len());
        let parts = parts.parts();
        Ok(team.scatterv(Some((&all, parts)), &mut [], 0)?)
    }

    /// Combines everybody's elements everywhere; without elements of our own, they are in place.
    pub fn allreduce(
        &self,
        team: &mut Team,
        own: Option<&[u8]>,
        recv: &mut [u8],
        (what, combine): (What, Combine<'_>),
    ) -> Result<(), Failure> {
        match &self.leaders {
            None => team.reduce_bytes(Some(own.unwrap_or(recv)), None, 0, what.size, combine)?,
            Some(leaders) => {
                team.reduce_bytes(own, Some(&mut *recv), 0, what.size, combine)?;
                self.across(team, leaders.allreduce(self.abi, what, recv))?;
            }
        }
        Ok(team.bcast(recv, 0)?)
    }
}

/// Where the parts of these ranks begin and how long they are together, if they lie one behind the
/// other in this order.
fn run(ranks: impl Iterator<Item = usize>, parts: Parts<'_>) -> Option<(usize, usize)> {
    let mut whole: Option<(usize, usize)> = None;
    for rank in ranks.filter(|rank| parts.counts[*rank] != 0) {
        let (place, length) = (parts.offsets[rank], parts.counts[rank]);
        whole = match whole {
            None => Some((place, length)),
            Some((first, all)) if first + all == place => Some((first, all + length)),
            Some(_) => return None,
        };
    }
    Some(whole.unwrap_or((0, 0)))
}

/// Bytes of all parts, and where each starts if they lie one behind the other.
fn one_behind_the_other(lengths: &[usize]) -> (usize, Vec<usize>) {
    let mut end = 0;
    let starts = lengths.iter().map(|length| {
        end += length;
        end - length
    });
    let starts = starts.collect();
    (end, starts)
}
