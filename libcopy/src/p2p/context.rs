// SPDX-License-Identifier: MIT OR Apache-2.0

//! The processes of one machine that send each other messages, as one of them sees it.

use std::fmt;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use libcopy_datatype::Layout;

use super::header::Header;
use super::path::PathLearner;
use super::protocol::Protocol;
use super::registration::Registration;
use super::segment::{LANES, Segment};
use super::view::{DeviceCopy, DeviceHandle, View};
use crate::process::Home;
use crate::transport::process_memory;

/// What the code that matches messages knows better than this module.
pub trait Owner: fmt::Debug + Send + Sync {
    /// Whether a process has not ended.
    fn lives(&self, member: usize, pid: i32) -> bool {
        let _ = member;
        process_memory::lives(pid)
    }

    /// The layout of a message's elements, if it is known without asking the sender.
    fn layout(&self, header: &Header) -> Option<Layout> {
        let _ = header;
        None
    }

    /// How this process copies a message of the process `pid` out of device memory, into elements;
    /// `None` if it cannot. `layout` is the sender's, `None` for dense bytes.
    fn reach(
        &self,
        (pid, header): (i32, &Header),
        handle: &DeviceHandle,
        layout: Option<&Layout>,
        to: &View,
    ) -> Option<Box<dyn DeviceCopy>> {
        let _ = (pid, header, handle, layout, to);
        None
    }

    /// Whether messages go through lanes where a process must not read another one's memory.
    /// Otherwise the caller has to send them in another way.
    fn streams_without_rights(&self) -> bool {
        false
    }
}

/// So many messages are packed soon for a process that may depend on buffering, before it is waited
/// for again: a program that does depend on it loses a ten-thousandth of a second per message.
const PACKED_SOON: u32 = 1000;

static BEGINNING: LazyLock<Instant> = LazyLock::new(Instant::now);

/// The processes, what they share, and what this one has of it.
#[derive(Debug)]
pub struct Context {
    /// Our number among them.
    pub me: usize,
    /// Their process identifiers, as our namespace has them.
    pub pids: Vec<i32>,
    /// Random numbers of these processes, which their headers have.
    pub magic: [u64; 2],
    /// The memory that they share.
    pub segment: Segment,
    /// How data that are not dense move.
    pub protocol: Protocol,
    /// Memory that is published through the kernel module, if all have it.
    pub registration: Option<Registration>,
    /// What messages took that could come out of mapped memory.
    pub paths: PathLearner,
    owner: Box<dyn Owner>,
    /// The process that it belongs to.
    pub(super) home: Home,
    /// Lanes that nobody uses.
    free_lanes: AtomicU32,
    /// When each process was last seen to be receiving something of ours, in nanoseconds since
    /// [`BEGINNING`]; 0: never.
    busy: Vec<AtomicU64>,
    /// How many more messages for each process are packed soon, since it has left one without a
    /// receive for long.
    buffering: Vec<AtomicU32>,
}

impl Context {
    /// Nothing is under way yet.
    ///
    /// # Safety
    ///
    /// The processes with these identifiers, `me` among them, share the segment. All of them use
    /// it, from its beginning on, through this module alone: what is in it says where a process
    /// reads and writes another one's memory.
    pub unsafe fn new(
        (me, pids): (usize, Vec<i32>),
        (magic, segment): ([u64; 2], Segment),
        (protocol, registration): (Protocol, Option<Registration>),
        owner: Box<dyn Owner>,
    ) -> Context {
        Context {
            me,
            busy: pids.iter().map(|_| AtomicU64::new(0)).collect(),
            buffering: pids.iter().map(|_| AtomicU32::new(0)).collect(),
            pids,
            magic,
            segment,
            protocol,
            registration,
            paths: PathLearner::default(),
            owner,
            home: Home::here(),
            free_lanes: AtomicU32::new((1 << LANES) - 1),
        }
    }

    /// Whether the memory of this process or of another one may not be read by the other any more,
    /// as either of them has said.
    #[inline]
    pub fn is_closed(&self, other: usize) -> bool {
        let lost = |member| self.segment.lost_rights(member).load(Ordering::Relaxed) != 0;
        lost(self.me) || lost(other)
    }

    /// Whether nothing is sent to a process past other libraries that move messages.
    pub(super) fn is_refused(&self, other: usize) -> bool {
        self.is_closed(other) && !self.owner.streams_without_rights()
    }

    /// Whether a process has not ended.
    pub(super) fn lives(&self, member: usize) -> bool {
        self.owner.lives(member, self.pids[member])
    }

    /// The layout of a message's elements, if it is known without asking the sender.
    pub(super) fn known_layout(&self, header: &Header) -> Option<Layout> {
        self.owner.layout(header)
    }

    /// How a message is copied out of device memory of its sender's.
    pub(super) fn reach(
        &self,
        header: &Header,
        handle: &DeviceHandle,
        layout: Option<&Layout>,
        to: &View,
    ) -> Option<Box<dyn DeviceCopy>> {
        let pid = self.pids[header.sender as usize];
        self.owner.reach((pid, header), handle, layout, to)
    }

    /// Takes a lane that nobody uses.
    pub(super) fn take_lane(&self) -> Option<usize> {
        let first = |free: u32| (free != 0).then(|| free & (free - 1));
        let (set, fetch) = (Ordering::AcqRel, Ordering::Relaxed);
        let before = self.free_lanes.fetch_update(set, fetch, first);
        before.ok().map(|free| free.trailing_zeros() as usize)
    }

    /// Gives it back.
    pub(super) fn give_lane_back(&self, lane: usize) {
        self.free_lanes.fetch_or(1 << lane, Ordering::AcqRel);
    }

    /// A process is receiving something of ours.
    pub(super) fn note_busy(&self, member: usize) {
        let now = BEGINNING.elapsed().as_nanos() as u64;
        self.busy[member].store(now, Ordering::Relaxed);
    }

    /// For how long a process has not been seen to be receiving something of ours; `None` if it
    /// never was.
    pub(super) fn idle(&self, member: usize) -> Option<Duration> {
        let busy = self.busy[member].load(Ordering::Relaxed);
        let since = || {
            BEGINNING
                .elapsed()
                .saturating_sub(Duration::from_nanos(busy))
        };
        (busy != 0).then(since)
    }

    /// Whether a process has no receive that may have matched a message of ours, but for one that
    /// it is in. It fetches what that one matches, so that nobody has to pack for it.
    pub(super) fn is_without_receives(&self, member: usize) -> bool {
        let requests = self.segment.receive_requests(member);
        requests.load(Ordering::Relaxed) == 1 && self.buffering[member].load(Ordering::Relaxed) == 0
    }

    /// A long message was packed, as its receiver is late. If it has no receive, it may depend on
    /// buffering (MPI 4.1, section 3.5): the next [`PACKED_SOON`] that are packed for it are packed
    /// soon.
    pub(super) fn note_packed(&self, member: usize) {
        let more = |soon: u32| Some(soon.checked_sub(1).unwrap_or(PACKED_SOON));
        let requests = self.segment.receive_requests(member);
        if requests.load(Ordering::Relaxed) == 1 {
            let order = Ordering::Relaxed;
            let _ = self.buffering[member].fetch_update(order, order, more);
        }
    }
}
