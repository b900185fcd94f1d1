// SPDX-License-Identifier: MIT OR Apache-2.0

//! The membership of this process in a team: joining, what may be set, and what all operations
//! begin and end with.

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::time::{ClockId, clock_gettime};

use super::decision::Decision;
use super::key::TeamKey;
use super::resumption::Resumption;
use super::usage::Usage;
use super::{places, probe};
use crate::config;
use crate::device::{Domain, RegionId};
use crate::error::{Boxed, Error, Result};
use crate::offload::{self, Offload};
use crate::op::{Call, Op};
use crate::p2p::messenger::{Means, Messenger};
use crate::p2p::registration::Registration;
use crate::plan::choose::SHORT_ALLREDUCE;
use crate::plan::{
    Call as PlanCall, Costs, Descent, Exchange, Groups, PlanCounts, Planned, Planner,
};
use crate::policy::{Async, Oversubscription, POLICY_WORDS, Path, Policy};
use crate::shm::contribution::Contributions;
use crate::shm::leading::{Class, Leader};
use crate::shm::mailbox::{Mailbox, Source, Step, Target};
use crate::shm::meeting::{Failed, Host};
use crate::shm::segment::{Blueprint, MAX_RANKS, Segment};
use crate::shm::sync::{Ordering, fence};
use crate::shm::wait::Waiter;
use crate::shm::writes::Writes;
use crate::topology::Topology;
use crate::transport::cma::Cma;
use crate::transport::kmod::Kmod;
use crate::transport::one_sided::Transport;
use crate::transport::remote_key::RemoteKey;
use crate::transport::stream::Flow;
use crate::transport::{TransportKind, TransportReport};

/// Membership of this process in a team.
///
/// The operations are collective: all ranks call the same ones in the same order. An error of
/// one breaks the team for all, since nobody could tell what the others have done; start a new
/// one. Dropping it leaves the team in good order.
///
/// A team belongs to the process that joined it. In a forked child every operation fails with
/// [`Error::Forked`], and dropping it does nothing to the team; a child may join teams of its own.
///
/// Usually each rank is a process (see [`launch()`]); threads of one process can be ranks as well:
///
/// ```
/// use libcopy::{Team, TeamKey};
///
/// # fn main() -> libcopy::Result<()> {
/// let key = TeamKey::random()?;
/// let ranks: Vec<_> = (0..3)
///     .map(|rank| {
///         std::thread::spawn(move || -> libcopy::Result<Vec<u8>> {
///             let mut team = Team::join(&key, rank, 3)?;
///             let mut bytes = vec![0; 100_000];
///             if team.rank() == 1 {
///                 bytes.fill(7);
///             }
///             team.bcast(&mut bytes, 1)?;
///             Ok(bytes)
///         })
///     })
///     .collect();
/// for rank in ranks {
///     assert_eq!(rank.join().unwrap()?, vec![7; 100_000]);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Team {
    // Fields drop in this order: the transports first, the segment (in the mailbox) last.
    /// Messages between two ranks, once there are any.
    messenger: Option<Box<Messenger>>,
    pub(crate) offload: Option<Offload>,
    kmod: Option<Kmod>,
    cma: Option<Cma>,
    pub(crate) mailbox: Mailbox,
    segment: Arc<Segment>,
    policy: Policy,
    forced: Option<TransportKind>,
    oversubscription: Oversubscription,
    reports: Vec<TransportReport>,
    /// By the coarse clock.
    last_look: Duration,
    /// The operation that asks for the time next, and what it was when one asked last.
    next_look: u64,
    last_time: Duration,
    /// What makes our plans, once there are any.
    planner: Option<Planner>,
    pub(crate) plan_counts: PlanCounts,
    /// Whether all ranks are one group, once that is known.
    is_flat: Option<bool>,
    /// How we write what others read.
    pub(crate) writes: Writes,
    /// Our calls that all ranks do in one step.
    pub(crate) contributions: Contributions,
    /// Calls that went group by group.
    pub(crate) exchanges: u64,
    /// Our chunks so far.
    pub(crate) chunks: u64,
    /// Bytes that each of our chunks has room for.
    pub(crate) chunk_room: usize,
    /// Our calls so far that go one of two ways, whichever rank 0 finds faster.
    led: u64,
    /// What it knows of them, on rank 0.
    leader: Leader,
    /// Ranks that move their parts of a gather or scatter at once, if that was set.
    at_once: Option<usize>,
    /// Memory for bytes on their way, kept because pages that were touched before cost less.
    scratch: Vec<u128>,
}

/// Calls after which a rank asks for the time, which takes some of the time of a short call, as
/// long as so many take less than this.
const CALLS_IN_A_ROW: u64 = 16;
const IN_A_ROW: Duration = Duration::from_millis(20);

/// The time of a clock that changes every few milliseconds, and costs less than half of what an
/// exact one does.
#[inline]
fn coarse_time() -> Duration {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC_COARSE);
    time.map_or(Duration::ZERO, Duration::from)
}

impl Team {
    /// Joins the team with this key as `rank` of `size`; returns when all ranks are there.
    ///
    /// # Errors
    ///
    /// As for [`Team::join_with`] and [`Policy::load`].
    pub fn join(key: &TeamKey, rank: usize, size: usize) -> Result<Self> {
        Self::join_with(key, rank, size, Policy::load()?)
    }

    /// [`Team::join`] with a policy of the caller's; the one of rank 0 counts.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] if no team can have this size or rank, or the policy does not fit;
    /// [`Error::JoinTimeout`] if not all ranks come in time, [`Error::Join`] if another rank cannot
    /// join, [`Error::InUse`] if the key or the rank is taken, [`Error::TeamSize`] if rank 0 says
    /// another size, [`Error::System`] if the segment cannot be made, [`Error::PeerDied`] if a rank
    /// dies meanwhile.
    pub fn join_with(key: &TeamKey, rank: usize, size: usize, policy: Policy) -> Result<Self> {
        check_size(size)?;
        if rank >= size {
            return Err(Error::argument("rank", rank, ..size));
        }
        let seconds: f64 = config::JOIN_TIMEOUT.parse()?.unwrap_or(30.0);
        let started = Instant::now();
        let patience = Duration::try_from_secs_f64(seconds.clamp(0.0, 1e6));
        let deadline = started + patience.unwrap_or(Duration::from_secs(30));
        let directory = PathBuf::from(config::SHM_DIR.or_default());
        let policy = policy.checked()?;
        let mut blueprint = blueprint(&policy, size);
        blueprint.is_chosen = config::SHM_DIR.value().is_some();
        let opened = Segment::open(&directory, key, rank, size, &blueprint, deadline)?;
        let (segment, mut host) = opened;
        let segment = Arc::new(segment);
        let mut mailbox = Mailbox::new(segment.clone(), rank, size);
        let gathered = gathered(&segment, &mailbox, host.as_mut(), started, deadline);
        // From here on nobody needs the name: either all have the file open, or nobody will.
        if rank == 0 || gathered.is_err() {
            segment.unlink();
        }
        if let (Err(error), Some(host)) = (&gathered, &mut host) {
            segment.refuse(host, error);
        }
        gathered?;
        let mut words = [0; POLICY_WORDS];
        for (word, shared) in words.iter_mut().zip(&segment.preamble().policy) {
            *word = shared.load(Ordering::Relaxed);
        }
        let policy = Policy::from_words(words)?;
        let oversubscription = mailbox.waiter.oversubscription();
        mailbox.waiter.adapt(policy.spin(), oversubscription);
        let mut team = Team {
            messenger: None,
            offload: None,
            kmod: None,
            cma: None,
            mailbox,
            segment,
            forced: None,
            policy,
            oversubscription,
            reports: Vec::new(),
            last_look: coarse_time(),
            next_look: 0,
            last_time: Duration::ZERO,
            planner: None,
            plan_counts: PlanCounts::default(),
            is_flat: None,
            writes: Writes::default(),
            contributions: Contributions::new(size),
            exchanges: 0,
            chunks: 0,
            chunk_room: 0,
            led: 0,
            leader: Leader::default(),
            at_once: None,
            scratch: Vec::new(),
        };
        if rank == 0 && team.groups() == Groups::Machine {
            places::publish(&team.segment, size);
        }
        // Its barriers let no rank go on before.
        let probed = team.probe_transports();
        team.settle(probed.map_err(Box::new))?;
        if let Some(kind) = team.policy.transport {
            team.force(kind)?;
        }
        team.prepare_offload();
        Ok(team)
    }

    /// The memory that the ranks share: the bytes that it takes now, and on rank 0 the name that
    /// its file had while the others joined; `None` where the directory had no room for it
    /// (`LIBCOPY_SHM_DIR`).
    pub fn shared_memory(&self) -> (usize, Option<&std::path::Path>) {
        self.segment.memory()
    }

    /// Joins the team that `LIBCOPY_KEY`, `LIBCOPY_RANK` and `LIBCOPY_SIZE` name; without them,
    /// a team of one.
    ///
    /// # Errors
    ///
    /// As for [`Team::join`], and [`Error::Environment`] if a variable is missing or unusable.
    pub fn from_env() -> Result<Self> {
        let Some(key) = config::KEY.parse::<TeamKey>()? else {
            return Self::join(&TeamKey::random()?, 0, 1);
        };
        let number = |setting: &config::Setting| {
            setting.parse()?.ok_or(Error::Environment {
                name: setting.name,
                value: String::new(),
                expected: "a number, as LIBCOPY_KEY is set",
            })
        };
        let rank = number(&config::RANK)?;
        if rank == 0 {
            config::warn_unknown();
        }
        Self::join(&key, rank, number(&config::SIZE)?)
    }

    /// Our rank, 0 to `size - 1`.
    pub fn rank(&self) -> usize {
        self.mailbox.rank()
    }

    /// The ranks but ours.
    pub(crate) fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let me = self.rank();
        (0..self.size()).filter(move |rank| *rank != me)
    }

    /// Number of ranks.
    pub fn size(&self) -> usize {
        self.mailbox.size()
    }

    /// Whether ranks outnumber the processors that they may run on.
    pub fn is_oversubscribed(&self) -> bool {
        self.oversubscription != Oversubscription::None
    }

    /// How ranks and the processors that they may run on go together.
    pub fn oversubscription(&self) -> Oversubscription {
        self.oversubscription
    }

    /// Takes ranks to outnumber processors by this much from now on, if the team's own do not: as
    /// others, of other teams, run on them, too. All ranks call it with the same value, before
    /// their first operation.
    pub fn share_processors(&mut self, oversubscription: Oversubscription) {
        if oversubscription > self.oversubscription {
            self.set_oversubscription(oversubscription);
        }
    }

    /// Takes ranks and processors to go together so from now on. All ranks call it with the same
    /// value, at the same place of their program.
    #[doc(hidden)]
    pub fn set_oversubscription(&mut self, oversubscription: Oversubscription) {
        self.oversubscription = oversubscription;
        let spin = self.policy.spin();
        self.mailbox.waiter.adapt(spin, oversubscription);
        self.unset_groups();
    }

    /// Each transport, whether this team can use it, and why.
    pub fn transports(&self) -> &[TransportReport] {
        &self.reports
    }

    /// The transport set with [`Team::set_transport`] or `LIBCOPY_TRANSPORT`.
    pub fn transport(&self) -> Option<TransportKind> {
        self.forced
    }

    /// The thresholds in force; rank 0's, on every rank.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Has `progress` called now and then, every 1 to 8 milliseconds, while this rank waits for
    /// others in a collective for longer than a moment: for what else must go on in this process so
    /// that these others can come, like messages of another library that it alone moves.
    pub fn set_progress_hook(&mut self, progress: Option<fn()>) {
        self.mailbox.waiter.set_progress_hook(progress);
    }

    /// Whether collectives return while copy engines still move their bytes, from now on, as
    /// `LIBCOPY_ASYNC` says it at the start. Collective: all ranks call it with the same argument.
    /// Without the module or an engine it makes no difference.
    ///
    /// # Errors
    ///
    /// As for [`Team::bcast`]; [`Error::Mismatch`] if the ranks say different things.
    pub fn set_async(&mut self, choice: Async) -> Result<()> {
        let call = Call {
            op: Op::Control,
            root: 1,
            len: choice.number(),
        };
        self.operation(call, |team| Ok(team.agree(call)?))?;
        self.policy.asynchronous = choice;
        self.prepare_offload();
        Ok(())
    }

    fn prepare_offload(&mut self) {
        let choice = self.policy.asynchronous;
        match (&mut self.offload, &self.kmod) {
            (Some(offload), _) => offload.set_choice(choice),
            (None, Some(kmod)) if choice != Async::Off => {
                let log = config::LOG
                    .value()
                    .is_some_and(|what| what.contains("policy"));
                let verify = self.policy.offload_verify != 0;
                let place = (
                    self.segment.clone(),
                    self.mailbox.rank(),
                    self.mailbox.size(),
                );
                self.offload = Offload::new(kmod.domain(), place, choice, verify, log);
                let device = kmod.domain().as_fd().try_clone_to_owned().ok();
                self.mailbox.waiter.set_helper(device.map(offload::helper));
            }
            _ => {}
        }
    }

    /// Makes all ranks use one transport for everything that is not eager; `None` leaves it to
    /// the policy. Collective: all ranks call it with the same argument. A transport that cannot
    /// be used is refused on every rank, and the team stays whole.
    ///
    /// # Errors
    ///
    /// As for [`Team::bcast`]; [`Error::Transport`] if it cannot be used, and the team stays whole
    /// then.
    pub fn set_transport(&mut self, kind: Option<TransportKind>) -> Result<()> {
        let code = kind.map_or(0, TransportKind::number);
        let call = Call {
            op: Op::Control,
            root: 0,
            len: code,
        };
        self.operation(call, |team| Ok(team.agree(call)?))?;
        match kind {
            Some(kind) => self.force(kind),
            None => {
                self.forced = None;
                self.price_anew();
                Ok(())
            }
        }
    }

    /// Changes thresholds on the way, for measuring; all ranks make the same change.
    pub(crate) fn try_policy(&mut self, change: impl FnOnce(&mut Policy)) -> Result<()> {
        let mut policy = self.policy.clone();
        change(&mut policy);
        self.policy = policy.checked()?;
        if let Some(kmod) = &mut self.kmod {
            kmod.set_attach_max(self.policy.attach_max);
        }
        Ok(())
    }

    fn force(&mut self, kind: TransportKind) -> Result<()> {
        if let Some(report) = self.reports.iter().find(|r| r.kind == kind && !r.usable) {
            return Err(Error::Transport {
                kind,
                why: report.why.clone(),
            });
        }
        self.forced = Some(kind);
        self.price_anew();
        Ok(())
    }

    /// Fails on every rank unless all make the same call.
    fn agree(&mut self, call: Call) -> Result<()> {
        self.mailbox
            .tell(Target::All, Step::Message, call, [0; 6])?;
        for rank in self.others() {
            self.mailbox
                .expect(Source::Cast(rank), call, &[Step::Message])?;
        }
        Ok(())
    }

    /// Does an operation: begins it, runs it and ends it. One that does not return, since `run`
    /// panics or what it calls throws, breaks the team, as an error does.
    #[inline]
    pub(crate) fn operation(
        &mut self,
        call: Call,
        run: impl FnOnce(&mut Self) -> Boxed<()>,
    ) -> Boxed<()> {
        let unless_done = Unwinding(self);
        let team = &mut *unless_done.0;
        let result = team.begin(call).and_then(|()| run(team));
        std::mem::forget(unless_done);
        self.settle(result)
    }

    /// Starts an operation; all ranks count along.
    fn begin(&mut self, call: Call) -> Boxed<()> {
        self.check_home()?;
        if let Some(offload) = &self.offload {
            offload.reap();
        }
        self.mailbox.sequence += 1;
        self.mailbox.waiter.enter(self.mailbox.sequence, call)?;
        if self.mailbox.sequence < self.next_look {
            return Ok(());
        }
        let since = coarse_time().saturating_sub(self.last_time);
        let calls = if since < IN_A_ROW { CALLS_IN_A_ROW } else { 1 };
        self.next_look = self.mailbox.sequence + calls;
        self.last_time += since;
        Ok(self.look_around()?)
    }

    /// Fails if the team is broken.
    pub(crate) fn look_around(&mut self) -> Result<()> {
        self.mailbox.waiter.verdict()?;
        // A rank that only ever sends small messages never waits; it looks around here.
        let now = coarse_time();
        if now.saturating_sub(self.last_look) > Duration::from_millis(200) {
            self.last_look = now;
            // One that left may have sent its part of this operation before.
            self.mailbox.waiter.check(&|_| false)?;
        }
        Ok(())
    }

    /// Ends an operation: an error breaks the team, so that nobody waits for us, and takes back
    /// what we had opened, so that nobody who is late copies to memory that the caller uses again.
    #[inline]
    pub(crate) fn settle<T>(&mut self, result: Boxed<T>) -> Boxed<T> {
        let result = self.settle_within(result);
        self.mailbox.waiter.leave();
        result
    }

    #[inline]
    fn settle_within<T>(&mut self, result: Boxed<T>) -> Boxed<T> {
        if result.is_ok() && self.offload.is_none() {
            self.check_home()?;
            return result;
        }
        self.settle_anything(result)
    }

    #[cold]
    fn settle_anything<T>(&mut self, result: Boxed<T>) -> Boxed<T> {
        // In a forked child nothing is ours to be ended.
        self.check_home()?;
        if let Some(offload) = &mut self.offload {
            offload.ended();
        }
        result
            .map_err(|error| {
                if let Some(messenger) = &mut self.messenger {
                    messenger.give_up();
                }
                if let Some(kmod) = &mut self.kmod {
                    kmod.close();
                }
                if let Some(offload) = &self.offload {
                    offload.abandon();
                }
                match *error {
                    Error::Mismatch { .. } | Error::Broken { .. } => error,
                    error => self.mailbox.waiter.break_team(error).into(),
                }
            })
            .inspect_err(|_| self.mailbox.waiter.wait_for_puts())
    }

    /// Fails in a forked child of the process that joined the team.
    #[inline]
    pub(crate) fn check_home(&self) -> Result<()> {
        self.segment.check_home()
    }

    /// Our messages, and what waits for peers.
    pub(crate) fn messages(&mut self) -> Result<(&mut Messenger, &Waiter)> {
        self.check_home()?;
        if self.messenger.is_none() {
            let may = |kind| self.forced.is_none_or(|forced| forced == kind);
            let cma = self.cma.as_ref().filter(|_| may(TransportKind::Cma));
            let kmod = self.kmod.as_ref().filter(|_| may(TransportKind::Kmod));
            let key = self.segment.preamble().domain_key.each_ref();
            let key = key.map(|word| word.load(Ordering::Relaxed));
            let means = Means {
                pids: cma.map(|cma| cma.pids().to_vec()),
                registration: kmod.and_then(|_| Registration::join(probe::joined(key), false)),
                eager_max: self.policy.eager_max,
            };
            let messenger = Messenger::new(self.segment.clone(), means)?;
            self.messenger = Some(Box::new(messenger));
        }
        match &mut self.messenger {
            Some(messenger) => Ok((messenger, &self.mailbox.waiter)),
            None => Err(Error::Broken {
                rank: self.mailbox.rank(),
            }),
        }
    }

    /// Who uses the team, where several owners share it.
    #[doc(hidden)]
    pub fn usage(&self) -> Usage {
        Usage::new(self.segment.clone())
    }

    /// How the ranks go on without the team after a disagreement.
    #[doc(hidden)]
    pub fn resumption(&self) -> Resumption {
        Resumption::new(self.segment.clone(), self.rank(), self.size())
    }

    /// Breaks the team: nobody waits for this rank any more, whatever it would have done next.
    #[doc(hidden)]
    pub fn give_up(&mut self) {
        let rank = self.rank();
        let waiter = &self.mailbox.waiter;
        waiter.break_team(Error::Broken { rank });
    }

    /// How a part of `len` bytes moves.
    pub(crate) fn decide(&self, op: Op, len: usize) -> Decision {
        let path = self.path(op, len);
        let offloads =
            path == Path::Via(TransportKind::Kmod) && self.policy.offloads(len as u64, self.size());
        let shares = self.policy.shares(op, len as u64, self.is_oversubscribed());
        let announces = match path {
            _ if offloads && self.policy.asynchronous.never_by_cpu() => false,
            Path::Eager => false,
            Path::Via(TransportKind::Shm) => !(op == Op::Bcast && self.is_oversubscribed()),
            Path::Via(_) => shares,
        };
        Decision {
            path,
            offloads,
            shares,
            announces,
        }
    }

    /// The path for a part of `len` bytes.
    fn path(&self, op: Op, len: usize) -> Path {
        // Eager ranks send before they receive, so a whole message must fit into a ring, and more
        // than one so that they need not wait for the call before.
        let ring = match op {
            Op::Bcast => self.segment.bcast_ring(),
            Op::Gather | Op::Scatter | Op::Alltoall => self.segment.pair_ring(),
            _ => self.segment.pair_ring().min(self.segment.bcast_ring()),
        };
        let fits = len <= ring / 4;
        let usable = |kind| self.is_usable(kind);
        self.policy.path(
            (op, len as u64),
            (self.is_oversubscribed(), fits),
            self.forced,
            usable,
        )
    }

    /// Which ranks become groups in plans.
    fn groups(&self) -> Groups {
        if self.size() > 2 && !self.is_oversubscribed() {
            Groups::Machine
        } else {
            Groups::One
        }
    }

    /// What we do in a call.
    pub(crate) fn plan(&mut self, call: &PlanCall<'_>) -> Arc<Planned> {
        self.planner().plan(call)
    }

    /// Our steps of short calls where ranks are in several groups, if there are any.
    pub(crate) fn exchange(&mut self) -> Option<Arc<Exchange>> {
        if self.is_flat() {
            return None;
        }
        self.planner().exchange()
    }

    /// Our part in short broadcasts with this root where ranks are in several groups, if there is
    /// one.
    pub(crate) fn descent(&mut self, root: usize) -> Option<Descent> {
        if self.is_flat() {
            return None;
        }
        self.planner().descent(root)
    }

    fn planner(&mut self) -> &mut Planner {
        let (rank, size, groups) = (self.rank(), self.size(), self.groups());
        let costs = match &self.planner {
            None => self.costs(),
            // It has its own.
            Some(_) => Costs::BUILT_IN,
        };
        let segment = &self.segment;
        self.planner
            .get_or_insert_with(|| Planner::new(places::read(segment, size), rank, groups, costs))
    }

    /// Makes groups of at most `most` ranks in their order from now on, whatever the machine is.
    /// All ranks call it with the same number, at the same place of their program.
    #[doc(hidden)]
    pub fn set_groups(&mut self, most: usize) {
        let places = places::read(&self.segment, self.size());
        let groups = Groups::InOrder(most);
        self.planner = Some(Planner::new(places, self.rank(), groups, self.costs()));
        self.is_flat = Some(false);
    }

    /// Makes one group of all ranks from now on, whatever the machine is. All ranks call it at the
    /// same place of their program.
    #[doc(hidden)]
    pub fn set_flat(&mut self) {
        self.set_groups(self.size().max(2));
        self.is_flat = Some(true);
    }

    /// Has at most this number of ranks move their parts of a gather or scatter at once from now
    /// on, whatever was measured. All ranks call it with the same number, at the same place of
    /// their program.
    #[doc(hidden)]
    pub fn set_at_once(&mut self, ranks: usize) {
        let places = places::read(&self.segment, self.size());
        let costs = Costs {
            at_once: ranks,
            ..self.costs()
        };
        self.planner = Some(Planner::new(places, self.rank(), Groups::Machine, costs));
        self.at_once = Some(ranks);
    }

    /// Whether ranks move their parts of a gather or scatter in turns: where more at once would
    /// wait for each other at the root's memory, as was measured.
    pub(crate) fn takes_turns(&self) -> bool {
        let at_once = match self.at_once {
            Some(ranks) => ranks,
            None if self.groups() == Groups::Machine => self.costs().at_once,
            None => usize::MAX,
        };
        at_once < self.size() - 1
    }

    /// Takes [`Team::set_groups`] and [`Team::set_flat`] back. All ranks call it at the same place
    /// of their program.
    #[doc(hidden)]
    pub fn unset_groups(&mut self) {
        self.planner = None;
        self.is_flat = None;
        self.at_once = None;
    }

    /// What copies take here, by the transport that long ones go through: the same on all ranks, as
    /// they agree on what is usable, on what is forced, and on the policy.
    fn costs(&self) -> Costs {
        let Some(contention) = self.policy.contention else {
            return Costs::BUILT_IN;
        };
        let mut kinds = TransportKind::ALL.into_iter();
        let usable = kinds.find(|kind| self.is_usable(*kind));
        contention.costs(self.forced.or(usable).unwrap_or(TransportKind::Shm))
    }

    /// Has ways chosen by what copies take now.
    fn price_anew(&mut self) {
        let costs = self.costs();
        if let Some(planner) = &mut self.planner {
            planner.set_costs(costs);
        }
    }

    /// Whether all ranks are one group of short reductions, and nobody has set another one. As for
    /// each reduction, that does not depend on what was measured.
    pub(crate) fn is_flat(&mut self) -> bool {
        if let Some(known) = self.is_flat {
            return known;
        }
        let is_flat = self.groups() == Groups::One || self.plan(&SHORT_ALLREDUCE).depth <= 1;
        self.is_flat = Some(is_flat);
        is_flat
    }

    /// What became of our plans.
    #[doc(hidden)]
    pub fn plan_counts(&self) -> PlanCounts {
        self.plan_counts
    }

    /// Chunks that we have written so far.
    #[doc(hidden)]
    pub fn chunks_written(&self) -> u64 {
        self.chunks
    }

    /// The number of our next call that goes one of two ways, which one, that of all ranks, and
    /// whether we are to measure it: `measures` says who does those of its class.
    pub(crate) fn next_led(&mut self, class: Class, measures: usize) -> (u64, usize, bool) {
        self.led += 1;
        let choice = self.segment.preamble().choices.of(class);
        let is_timed = self.rank() == measures && self.leader.wants_time(class, self.led);
        (self.led, choice.way(self.led), is_timed)
    }

    /// Such a call went this way and took so long.
    pub(crate) fn note_led(&mut self, class: Class, call: (u64, usize), nanos: u64) {
        let choices = &self.segment.preamble().choices;
        self.leader.note(choices, class, call, nanos);
    }

    /// The shared memory.
    pub(crate) fn segment(&self) -> &Segment {
        &self.segment
    }

    /// The domain of the team, if it uses the module.
    pub(crate) fn domain(&self) -> Option<&Domain> {
        self.kmod.as_ref().map(Kmod::domain)
    }

    pub(crate) fn is_usable(&self, kind: TransportKind) -> bool {
        match kind {
            TransportKind::Kmod => self.kmod.is_some(),
            TransportKind::Cma => self.cma.is_some(),
            TransportKind::Shm => true,
        }
    }

    /// How shared memory hands over a message, of which all ranks together receive `len` bytes.
    pub(crate) fn flow(&self, len: usize) -> Flow {
        // Four in the ring at a time, whichever ring it is.
        let ring = self.segment.bcast_ring().min(self.segment.pair_ring());
        Flow {
            chunk: self.policy.chunk(self.is_oversubscribed()),
            largest: ring / 4,
            streaming: self.policy.streaming(len),
        }
    }

    /// Bytes of the ring from one rank to another.
    pub(crate) fn pair_ring(&self) -> usize {
        self.segment.pair_ring()
    }

    /// The one-sided transport of this kind; shared memory has none.
    pub(crate) fn one_sided(&self, kind: TransportKind) -> Result<&dyn Transport> {
        let transport = match kind {
            TransportKind::Kmod => self.kmod.as_ref().map(|t| t as &dyn Transport),
            TransportKind::Cma => self.cma.as_ref().map(|t| t as &dyn Transport),
            TransportKind::Shm => None,
        };
        transport.ok_or(Error::corrupt("a transport", kind.number()))
    }

    /// Copies from byte `at` of what a rank has opened; the inner error is that of the transport.
    /// A rank that fails has its memory back: what is copied after that is not what it gave.
    ///
    /// # Safety
    ///
    /// As for [`Transport::pull`].
    pub(crate) unsafe fn pull(
        &self,
        rank: usize,
        key: RemoteKey,
        at: u64,
        to: *mut u8,
        len: usize,
    ) -> Boxed<Result<()>> {
        let transport = self.one_sided(key.kind())?;
        // SAFETY: the caller's promise.
        let copied = unsafe { transport.pull(rank, key, at, to, len) };
        fence(Ordering::Acquire);
        self.mailbox.waiter.verdict()?;
        Ok(copied)
    }

    /// Copies to byte `at` of what a rank has opened, which does not get it back meanwhile; the
    /// inner error is that of the transport.
    ///
    /// # Safety
    ///
    /// As for [`Transport::push`].
    pub(crate) unsafe fn push(
        &self,
        rank: usize,
        key: RemoteKey,
        at: u64,
        from: *const u8,
        len: usize,
    ) -> Boxed<Result<()>> {
        let transport = self.one_sided(key.kind())?;
        let waiter = &self.mailbox.waiter;
        // SAFETY: the caller's promise.
        Ok(waiter.put(rank, || unsafe { transport.push(rank, key, at, from, len) })?)
    }

    /// Opens memory to the peers through `kind`, or, where that fails (memory that cannot be
    /// pinned, limits), through the next transport. Nothing if only shared memory is left.
    ///
    /// # Safety
    ///
    /// As for [`Transport::open`].
    pub(crate) unsafe fn open(
        &mut self,
        kind: TransportKind,
        base: *mut u8,
        len: usize,
        writable: bool,
    ) -> Option<RemoteKey> {
        for next in TransportKind::ALL.into_iter().skip_while(|k| *k != kind) {
            let transport: &mut dyn Transport = match next {
                TransportKind::Kmod => match &mut self.kmod {
                    Some(kmod) => kmod,
                    None => continue,
                },
                TransportKind::Cma => match &mut self.cma {
                    Some(cma) => cma,
                    None => continue,
                },
                TransportKind::Shm => break,
            };
            // SAFETY: the caller's promise.
            if let Ok(key) = unsafe { transport.open(base, len, writable) } {
                return Some(key);
            }
        }
        None
    }

    /// Opens memory of a leaf to the root through the module, or not at all.
    ///
    /// # Safety
    ///
    /// As for [`Transport::open`].
    pub(crate) unsafe fn open_leaf(
        &mut self,
        base: *mut u8,
        len: usize,
        writable: bool,
    ) -> Option<RemoteKey> {
        let kmod = self.kmod.as_mut()?;
        // SAFETY: the caller's promise.
        unsafe { kmod.open(base, len, writable) }.ok()
    }

    /// Opens memory to the peers through the module, or not at all, never to be mapped.
    ///
    /// # Safety
    ///
    /// As for [`Transport::open`].
    pub(crate) unsafe fn open_region(
        &mut self,
        base: *mut u8,
        len: usize,
        writable: bool,
    ) -> Option<RegionId> {
        let kmod = self.kmod.as_mut()?;
        // SAFETY: the caller's promise.
        let region = unsafe { kmod.open_unmapped(base, len, writable) }.ok()?;
        // The guard of the last call has split mappings, which looks like another memory.
        kmod.compare(region);
        Some(region)
    }

    /// Memory of at least `len` bytes, aligned for any type.
    pub(crate) fn take_scratch(&mut self, len: usize) -> Result<Vec<u128>> {
        let mut scratch = std::mem::take(&mut self.scratch);
        let words = len.div_ceil(16);
        if scratch.len() < words {
            scratch.clear();
            let more = scratch.try_reserve_exact(words);
            more.map_err(|_| Error::system(format!("making room for {len} bytes"), Errno::ENOMEM))?;
            scratch.resize(words, 0);
        }
        Ok(scratch)
    }

    /// Gives it back, unless it is too large to be kept.
    pub(crate) fn keep_scratch(&mut self, scratch: Vec<u128>) {
        if scratch.len() <= (1 << 20) / 16 {
            self.scratch = scratch;
        }
    }

    /// A copy failed on some rank; see [`Transport::invalidate`].
    pub(crate) fn invalidate(&mut self, kind: TransportKind) {
        if let (TransportKind::Kmod, Some(kmod)) = (kind, &mut self.kmod) {
            kmod.invalidate();
        }
    }

    fn probe_transports(&mut self) -> Result<()> {
        let found = probe::probe(&self.segment, &mut self.mailbox)?;
        self.kmod = found.kmod;
        if let Some(kmod) = &mut self.kmod {
            kmod.set_attach_max(self.policy.attach_max);
        }
        self.cma = found.cma;
        self.reports = found.reports;
        Ok(())
    }

    /// The topology of this machine, for programs that pin ranks.
    pub fn topology() -> Topology {
        Topology::read()
    }
}

fn check_size(size: usize) -> Result<()> {
    if size == 0 || size > MAX_RANKS {
        return Err(Error::argument("size of a team", size, 1..=MAX_RANKS));
    }
    Ok(())
}

/// What rank 0 makes the segment by.
fn blueprint(policy: &Policy, size: usize) -> Blueprint {
    let cpus = crate::topology::affinity().len();
    let cpus = cpus.max(Topology::current().cpus.len());
    Blueprint {
        pair_ring: policy.pair_ring(size),
        bcast_ring: policy.bcast_ring(size, cpus),
        policy: policy.to_words(),
        is_chosen: false,
    }
}

/// Waits until all ranks have joined.
fn gathered(
    segment: &Segment,
    mailbox: &Mailbox,
    mut host: Option<&mut Host>,
    started: Instant,
    deadline: Instant,
) -> Result<()> {
    let size = mailbox.size();
    let mut pause = Duration::from_micros(50);
    loop {
        let absent = |rank: &usize| segment.block(*rank).joined.load(Ordering::Acquire) == 0;
        let mut missing = (0..size).filter(absent);
        let Some(rank) = missing.next() else {
            return Ok(());
        };
        let missing = 1 + missing.count();
        if Instant::now() > deadline {
            let waited = started.elapsed();
            let error = Error::JoinTimeout {
                rank,
                missing,
                size,
                waited,
            };
            return Err(mailbox.waiter.break_team(error));
        }
        mailbox.waiter.check(&|_| true)?;
        if let Some(Failed { rank, why }) = host.as_mut().and_then(|host| segment.serve(host)) {
            return Err(mailbox.waiter.break_team(Error::Join { rank, why }));
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(2));
    }
}

/// A rank in an operation, dropped where that unwinds.
struct Unwinding<'a>(&'a mut Team);

impl Drop for Unwinding<'_> {
    fn drop(&mut self) {
        let rank = self.0.rank();
        self.0.give_up();
        // The team is broken, and keeps the reason.
        let _ = self.0.settle::<()>(Err(Error::Broken { rank }.into()));
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        // A forked child has inherited it; the rank is its parent.
        if self.check_home().is_err() {
            return;
        }
        // Before the others hear that we left: our memory is still read or written.
        if let Some(offload) = &self.offload {
            offload.retire();
        }
        if let Some(mut messenger) = self.messenger.take() {
            let waiter = &self.mailbox.waiter;
            messenger.leave(|| waiter.verdict().is_err());
        }
        let me = self.segment.block(self.mailbox.rank());
        me.left.store(1, Ordering::Release);
        for rank in 0..self.mailbox.size() {
            self.segment.block(rank).bell.ring();
        }
    }
}
