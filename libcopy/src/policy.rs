// SPDX-License-Identifier: MIT OR Apache-2.0

//! Which path an operation takes: the only place that knows thresholds.
//!
//! The values are built in, overridden by what `libcopy tune` measured on this machine, overridden
//! by the environment. Rank 0's policy is used by the whole team, so all ranks always decide alike.

pub mod governor;

use std::fmt::Write as _;
use std::ops::RangeInclusive;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::collective::Op;
use crate::config;
use crate::error::{Error, Result};
use crate::offload::{Async, Way};
use crate::team::POLICY_WORDS;
use crate::topology::Topology;
use crate::transport::TransportKind;
use crate::tune::Profile;

/// From a size on, the transports in order of preference; the first that is usable is taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Band {
    /// Smallest message, in bytes of the largest part that one rank sends or receives.
    pub from: u64,
    /// Most preferred first; what is missing comes last, in the usual order.
    pub prefer: Vec<TransportKind>,
}

/// The bands of one operation, for a machine with a processor per rank and for a crowded one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bands {
    /// Where every rank has a processor. Ordered by size; the first starts at 0.
    pub spacious: Vec<Band>,
    /// Where ranks outnumber processors.
    pub crowded: Vec<Band>,
}

/// The thresholds in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// Messages up to this size are sent without asking the receiver first.
    pub eager_max: u64,
    /// The same where ranks outnumber processors, unless a transport is forced: asking first
    /// costs context switches.
    pub eager_max_crowded: u64,
    /// The same for broadcasts, where one copy into the ring serves all ranks.
    pub eager_bcast_crowded: u64,
    /// Bytes that shared memory hands over at a time.
    pub chunk: u64,
    /// The same where ranks outnumber processors, and every hand-over is a context switch.
    pub chunk_crowded: u64,
    /// From this size on, counting what all ranks receive, bytes received through shared memory
    /// bypass the cache.
    pub nontemporal_min: u64,
    /// Bytes of the ring through which a rank broadcasts; a power of two.
    pub cast_ring: u64,
    /// The same where ranks outnumber processors: of a message that fits, each leaf has all as
    /// soon as it gets a processor. Less in large teams: 64 MiB for all, but 4 MiB for each.
    pub cast_ring_crowded: u64,
    /// From this size on, root and leaf share the copy of a broadcast; below, and where ranks
    /// outnumber processors and the root would only keep leaves from running, the leaf copies alone.
    pub share_min: u64,
    /// The same for gathers, where the root has its own part to copy first.
    pub share_gather_min: u64,
    /// The same for scatters, where a leaf that shares must tell first where its memory is.
    pub share_scatter_min: u64,
    /// A buffer of up to this size that is used again and again is mapped by the peers through the
    /// module, and copied by load and store.
    #[serde(default = "built_in_attach_max")]
    pub attach_max: u64,
    /// Microseconds to spin before sleeping; decided by the number of ranks if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spin_us: Option<u64>,
    /// Whether collectives return while copy engines still move their bytes, and who decides.
    #[serde(skip)]
    pub asynchronous: Async,
    /// Smallest part that copy engines move, in bytes: below, protecting the buffer and waiting for
    /// the first fragment cost more than a copy.
    #[serde(default = "offload_min")]
    pub offload_min: u64,
    /// Smallest team that uses copy engines, in ranks.
    #[serde(default = "offload_ranks")]
    pub offload_ranks: u64,
    /// Pages that an engine moves between two looks whether CPUs have taken over: n of paper 003,
    /// section 3.4; 0: what the module's parameter says.
    #[serde(default)]
    pub offload_pages: u64,
    /// Whether what an engine has moved is compared with its source: 1, or 0 to trust it.
    #[serde(default)]
    pub offload_verify: u64,
    /// The transport to use for everything that is not eager.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transport: Option<TransportKind>,
    /// Broadcasts.
    pub bcast: Bands,
    /// Gathers.
    pub gather: Bands,
    /// Scatters.
    pub scatter: Bands,
    /// Allgathers.
    pub allgather: Bands,
    /// Alltoalls; profiles written before there were any do not have them.
    #[serde(default = "Bands::one_copy")]
    pub alltoall: Bands,
}

impl Bands {
    /// Small parts through shared memory, large ones with one copy.
    fn one_copy() -> Self {
        use TransportKind::{Cma, Kmod, Shm};
        let bands = |from| {
            [(0, [Kmod, Shm, Cma]), (from, [Kmod, Cma, Shm])]
                .map(|(from, prefer)| Band {
                    from,
                    prefer: prefer.to_vec(),
                })
                .to_vec()
        };
        Bands {
            spacious: bands(32 << 10),
            crowded: bands(128 << 10),
        }
    }
}

fn offload_min() -> u64 {
    512 << 10
}

fn offload_ranks() -> u64 {
    2
}

/// An MPI library, and those made from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rival {
    /// Open MPI.
    OpenMpi,
    /// MPICH, Intel MPI, MVAPICH.
    Mpich,
}

/// How ranks and processors go together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Crowd {
    /// Every rank has a processor.
    Spacious,
    /// Ranks outnumber processors, by up to two to one.
    Crowded,
    /// There are more than twice as many ranks as processors.
    Packed,
}

impl Crowd {
    /// All of them, the roomiest first.
    pub const ALL: [Crowd; 3] = [Crowd::Spacious, Crowd::Crowded, Crowd::Packed];

    /// So many ranks on so many processors.
    pub fn of(ranks: usize, processors: usize) -> Self {
        match ranks {
            n if n <= processors => Crowd::Spacious,
            n if n <= processors.saturating_mul(2) => Crowd::Crowded,
            _ => Crowd::Packed,
        }
    }
}

/// What an operation does with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// Through the mailbox, without asking.
    Eager,
    /// Through a transport.
    Via(TransportKind),
}

/// Bands that fit into the words for one operation and one kind of machine.
pub(crate) const MAX_BANDS: usize = 4;

/// Bytes that the broadcast rings of a crowded team take together, which are reserved as long as
/// it lives. No ring is made smaller than [`LEAST_CROWD_RING`] for that, or than in a team that is
/// not crowded.
const CROWD_RINGS: u64 = 64 << 20;

/// Bytes of a crowd's ring, however many ranks there are.
const LEAST_CROWD_RING: u64 = 4 << 20;

/// Mapped memory stays pinned until the leaves hear that its owner has closed it, hence a limit.
fn built_in_attach_max() -> u64 {
    8 << 20
}

/// The word behind the bands.
const SHARE_WORD: usize = 8 + 2 * Op::ALL.len() * MAX_BANDS;

const _: () = assert!(SHARE_WORD + 10 < POLICY_WORDS);

impl Policy {
    /// Values for a machine that was not measured.
    pub fn built_in(topology: &Topology) -> Self {
        use TransportKind::{Cma, Kmod, Shm};
        let band = |from, prefer: &[TransportKind]| Band {
            from,
            prefer: prefer.to_vec(),
        };
        // With CMA, leaves copy at the same time, and the root of a broadcast shares their work,
        // which beats two copies from some size on. In a crowd a broadcast through the ring wins: it
        // needs a system call for no leaf.
        let small = band(0, &[Kmod, Shm, Cma]);
        let once = |from| vec![small.clone(), band(from, &[Kmod, Cma, Shm])];
        let bands = Bands {
            spacious: once(32 << 10),
            crowded: once(128 << 10),
        };
        Policy {
            eager_max: 8 << 10,
            eager_max_crowded: 128 << 10,
            eager_bcast_crowded: 256 << 10,
            chunk: 8 << 10,
            chunk_crowded: 128 << 10,
            nontemporal_min: topology.llc as u64 / 2,
            cast_ring: (topology.l2 as u64 / 2)
                .next_power_of_two()
                .clamp(128 << 10, 1 << 20),
            cast_ring_crowded: 8 << 20,
            share_min: 32 << 10,
            share_gather_min: 128 << 10,
            share_scatter_min: 1 << 20,
            attach_max: built_in_attach_max(),
            spin_us: None,
            asynchronous: Async::Off,
            offload_min: offload_min(),
            offload_ranks: offload_ranks(),
            offload_pages: 0,
            offload_verify: 0,
            transport: None,
            bcast: Bands {
                crowded: vec![small.clone()],
                ..bands.clone()
            },
            // The root of a gather is there as a rule, and has its own part to copy meanwhile.
            gather: Bands {
                spacious: once(16 << 10),
                ..bands.clone()
            },
            scatter: bands.clone(),
            allgather: bands,
            alltoall: Bands::one_copy(),
        }
    }

    /// Built-in values, overridden by the machine's profile, overridden by the environment.
    pub fn load() -> Result<Self> {
        let topology = Topology::current();
        let mut policy = match Profile::current()? {
            Some(policy) => policy,
            None => Self::built_in(topology),
        };
        let set = |setting: &config::Setting, value: &mut u64| -> Result<()> {
            if let Some(bytes) = setting.bytes()? {
                *value = bytes;
            }
            Ok(())
        };
        if config::EAGER_MAX.value().is_some() {
            set(&config::EAGER_MAX, &mut policy.eager_max)?;
            policy.eager_max_crowded = policy.eager_max;
            policy.eager_bcast_crowded = policy.eager_max;
        }
        if config::SHM_CHUNK.value().is_some() {
            set(&config::SHM_CHUNK, &mut policy.chunk)?;
            policy.chunk_crowded = policy.chunk;
        }
        set(&config::NONTEMPORAL_MIN, &mut policy.nontemporal_min)?;
        if config::SHARE_MIN.value().is_some() {
            set(&config::SHARE_MIN, &mut policy.share_min)?;
            policy.share_gather_min = policy.share_min;
            policy.share_scatter_min = policy.share_min;
        }
        set(&config::ATTACH_MAX, &mut policy.attach_max)?;
        if config::SHM_RING.value().is_some() {
            set(&config::SHM_RING, &mut policy.cast_ring)?;
            policy.cast_ring_crowded = policy.cast_ring;
        }
        if let Some(spin) = config::SPIN.parse("a number of microseconds")? {
            policy.spin_us = Some(spin);
        }
        if let Some(choice) = config::ASYNC.parse("off, auto, engine, cpu or both")? {
            policy.asynchronous = choice;
        }
        set(&config::OFFLOAD_MIN, &mut policy.offload_min)?;
        if let Some(ranks) = config::OFFLOAD_RANKS.parse("a number of ranks")? {
            policy.offload_ranks = ranks;
        }
        if let Some(pages) = config::OFFLOAD_PAGES.parse("a number of pages")? {
            policy.offload_pages = pages;
        }
        if let Some(verify) = config::OFFLOAD_VERIFY.parse("0 or 1")? {
            policy.offload_verify = verify;
        }
        if let Some(kind) = config::TRANSPORT.parse("kmod, cma or shm")? {
            policy.transport = Some(kind);
        }
        policy.checked()
    }

    /// Refuses values that would not work.
    pub(crate) fn checked(mut self) -> Result<Self> {
        for ring in [self.cast_ring, self.cast_ring_crowded] {
            if !(4096..=1 << 30).contains(&ring) || !ring.is_power_of_two() {
                let allowed = "a power of two from 4K to 1G";
                return Err(Error::argument("the broadcast ring", ring, allowed));
            }
        }
        let rings = [self.cast_ring, self.cast_ring_crowded];
        for (chunk, ring) in [&mut self.chunk, &mut self.chunk_crowded]
            .into_iter()
            .zip(rings)
        {
            if *chunk < 64 {
                return Err(Error::argument(
                    "the chunk",
                    format!("{chunk} bytes"),
                    "64 or more",
                ));
            }
            // Chunks are whole cache lines, and two of them must be in flight.
            *chunk = (*chunk - *chunk % 64).min(ring / 2);
        }
        for op in Op::ALL {
            for crowded in [false, true] {
                let bands = self.bands(op, crowded);
                let sorted = bands.windows(2).all(|pair| pair[0].from < pair[1].from);
                if !sorted || bands.first().is_none_or(|band| band.from != 0) {
                    return Err(Error::argument(
                        "the bands of an operation",
                        format!(
                            "{:?} for {op}",
                            bands.iter().map(|b| b.from).collect::<Vec<_>>()
                        ),
                        "ascending from 0",
                    ));
                }
                if bands.len() > MAX_BANDS {
                    return Err(Error::argument(
                        "the number of bands",
                        bands.len(),
                        "4 or less",
                    ));
                }
            }
        }
        Ok(self)
    }

    fn bands(&self, op: Op, crowded: bool) -> &[Band] {
        let bands = match op {
            Op::Bcast => &self.bcast,
            Op::Gather => &self.gather,
            Op::Scatter => &self.scatter,
            Op::Alltoall => &self.alltoall,
            // Reductions gather their slices.
            _ => &self.allgather,
        };
        if crowded {
            &bands.crowded
        } else {
            &bands.spacious
        }
    }

    fn bands_mut(&mut self, op: Op, crowded: bool) -> &mut Vec<Band> {
        let bands = match op {
            Op::Bcast => &mut self.bcast,
            Op::Gather => &mut self.gather,
            Op::Scatter => &mut self.scatter,
            Op::Alltoall => &mut self.alltoall,
            _ => &mut self.allgather,
        };
        if crowded {
            &mut bands.crowded
        } else {
            &mut bands.spacious
        }
    }

    /// Replaces the bands of an operation.
    pub fn set_bands(&mut self, op: Op, crowded: bool, bands: Vec<Band>) {
        *self.bands_mut(op, crowded) = bands;
    }

    /// The path for a part of `bytes` bytes; `forced` is for all that is not eager.
    pub fn path(
        &self,
        op: Op,
        bytes: u64,
        crowded: bool,
        forced: Option<TransportKind>,
        usable: impl Fn(TransportKind) -> bool,
    ) -> Path {
        if bytes <= self.eager_max(op, crowded && forced.is_none()) {
            return Path::Eager;
        }
        if let Some(kind) = forced {
            return Path::Via(kind);
        }
        let band = self
            .bands(op, crowded)
            .iter()
            .rev()
            .find(|band| band.from <= bytes);
        let prefer = band.map_or(&[][..], |band| &band.prefer);
        let kind = prefer
            .iter()
            .copied()
            .chain(TransportKind::ALL)
            .find(|kind| usable(*kind));
        Path::Via(kind.unwrap_or(TransportKind::Shm))
    }

    /// Whether this library is faster than an MPI library with messages of `bytes` bytes per rank
    /// (for reductions, the bytes that each rank contributes) inside a machine, as far as
    /// `scripts/bench mpi` found. The same on every rank of every machine, because all ranks of a
    /// communicator must decide alike.
    pub fn beats_mpi(rival: Rival, op: Op, bytes: u64, crowd: Crowd) -> bool {
        Self::against_mpi(rival, op, crowd).is_some_and(|bytes_won| bytes_won.contains(&bytes))
    }

    /// The smallest message for which [`Policy::beats_mpi`] may hold, however ranks and processors go
    /// together; `None` if it never does.
    pub fn least_against_mpi(rival: Rival, op: Op) -> Option<u64> {
        let ranges = Crowd::ALL.map(|crowd| Self::against_mpi(rival, op, crowd));
        ranges
            .into_iter()
            .flatten()
            .map(|bytes| *bytes.start())
            .min()
    }

    /// The same for collectives that return at once, in which whoever waits does the work.
    pub fn beats_mpi_nonblocking(rival: Rival, op: Op, bytes: u64, crowded: bool) -> bool {
        Self::nonblocking(rival, op, crowded).is_some_and(|least| bytes >= least)
    }

    /// The smallest message for which [`Policy::beats_mpi_nonblocking`] may hold, whether ranks
    /// outnumber processors or not; `None` if it never does.
    pub fn least_nonblocking(rival: Rival, op: Op) -> Option<u64> {
        let each = [false, true].map(|crowded| Self::nonblocking(rival, op, crowded));
        each.into_iter().flatten().min()
    }

    fn nonblocking(rival: Rival, op: Op, crowded: bool) -> Option<u64> {
        let least = match (op, crowded) {
            (Op::Allgather, _) | (Op::Reduce | Op::Allreduce, true) => 64 << 10,
            // Slices change hands between the caches, which at 1 MiB costs more than it saves.
            (Op::Reduce | Op::Allreduce, false) => 4 << 20,
            (Op::Gather, _) | (Op::Scatter, false) => 256 << 10,
            // A request of our own costs more than a short message saves.
            (Op::Bcast, false) => 1 << 20,
            // MPICH polls, which hurts it wherever ranks share a processor.
            (Op::Bcast | Op::Scatter | Op::Alltoall, true) => match rival {
                Rival::Mpich => 256 << 10,
                Rival::OpenMpi if op == Op::Bcast => 4 << 20,
                Rival::OpenMpi => 1 << 20,
            },
            (Op::Alltoall, false) | (Op::Control | Op::Barrier | Op::ReduceScatter, _) => {
                return None;
            }
        };
        Some(least)
    }

    /// The same where the ranks are on several machines, and the MPI library goes on moving the bytes
    /// between these: as far as `scripts/mpi-nodes` with `tests/peers/mpi_coll.c` found, whose network
    /// is no slower than memory, so that only what is copied inside the nodes counts.
    pub fn beats_mpi_across(op: Op, bytes: u64) -> bool {
        let least = match op {
            Op::Bcast | Op::Gather => 4 << 20,
            Op::Allgather | Op::Reduce => 1 << 20,
            _ => return false,
        };
        bytes >= least
    }

    fn against_mpi(rival: Rival, op: Op, crowd: Crowd) -> Option<RangeInclusive<u64>> {
        let (least, most) = match (op, crowd) {
            (Op::Gather | Op::ReduceScatter, _)
            | (
                Op::Bcast | Op::Alltoall | Op::Scatter | Op::Allgather | Op::Allreduce,
                Crowd::Spacious,
            ) => (64 << 10, u64::MAX),
            // Where leaves wait for one root, context switches count until the bytes do.
            (Op::Scatter, _) => (512 << 10, u64::MAX),
            (Op::Allgather, crowd) => match (rival, crowd) {
                (Rival::Mpich, _) => (64 << 10, 1 << 20),
                // The more ranks, the more switches; Open MPI's ring has few of them.
                (Rival::OpenMpi, Crowd::Packed) => return None,
                (Rival::OpenMpi, _) => (256 << 10, 1 << 20),
            },
            // MPICH polls, which hurts it wherever ranks share a processor.
            (Op::Bcast | Op::Alltoall | Op::Allreduce, crowd) => match (rival, op) {
                (Rival::Mpich, _) => (64 << 10, u64::MAX),
                // As measured: with two ranks per processor its tree needs fewer context switches.
                (Rival::OpenMpi, Op::Bcast) if crowd == Crowd::Packed => (256 << 10, u64::MAX),
                (Rival::OpenMpi, Op::Bcast) => (512 << 10, u64::MAX),
                (Rival::OpenMpi, Op::Allreduce) if crowd == Crowd::Packed => (2 << 20, u64::MAX),
                (Rival::OpenMpi, Op::Allreduce) => (1 << 20, u64::MAX),
                // Everybody copies its own parts in either, and there nobody waits to be told.
                (Rival::OpenMpi, _) => return None,
            },
            // Open MPI's root fetches and combines while the leaves go on, which averages well as
            // long as few ranks wait for it.
            (Op::Reduce, crowd) => match (rival, crowd) {
                (Rival::OpenMpi, Crowd::Spacious) => return None,
                (Rival::OpenMpi, _) => (1 << 20, u64::MAX),
                (Rival::Mpich, _) => (64 << 10, u64::MAX),
            },
            (Op::Control | Op::Barrier, _) => return None,
        };
        Some(least..=most)
    }

    fn eager_max(&self, op: Op, crowded: bool) -> u64 {
        match (crowded, op) {
            (false, _) => self.eager_max,
            (true, Op::Bcast) => self.eager_bcast_crowded,
            (true, _) => self.eager_max_crowded,
        }
    }

    /// Bytes that shared memory hands over at a time.
    pub(crate) fn chunk(&self, crowded: bool) -> usize {
        (if crowded {
            self.chunk_crowded
        } else {
            self.chunk
        }) as usize
    }

    /// Whether root and leaf share a copy of this size.
    pub(crate) fn shares(&self, op: Op, bytes: u64, crowded: bool) -> bool {
        let least = match op {
            Op::Bcast => self.share_min,
            Op::Gather => self.share_gather_min,
            Op::Scatter => self.share_scatter_min,
            _ => return false,
        };
        !crowded && bytes >= least
    }

    /// Whether a copy engine may move a part of this size, in a team of this many ranks.
    pub(crate) fn offloads(&self, bytes: u64, ranks: usize) -> bool {
        ![Async::Off, Async::Fixed(Way::Cpu)].contains(&self.asynchronous)
            && bytes >= self.offload_min.max(64 << 10)
            && ranks as u64 >= self.offload_ranks
    }

    /// Whether received bytes should bypass the cache; `bytes` is what all ranks receive.
    pub(crate) fn streaming(&self, bytes: usize) -> bool {
        bytes as u64 >= self.nontemporal_min
    }

    pub(crate) fn spin(&self) -> Option<Duration> {
        self.spin_us.map(Duration::from_micros)
    }

    /// Bytes of the ring from one rank to all; rank 0 decides before it knows the others.
    pub(crate) fn cast_ring(&self, size: usize, cpus: usize) -> usize {
        let ring = if size > cpus {
            let share = (CROWD_RINGS / size as u64 + 1).next_power_of_two() / 2;
            let least = self.cast_ring.max(LEAST_CROWD_RING);
            self.cast_ring_crowded.min(share.max(least))
        } else {
            self.cast_ring
        };
        ring as usize
    }

    /// Bytes of the ring between two ranks: there are as many as pairs of ranks.
    pub(crate) fn pair_ring(&self, size: usize) -> usize {
        let share = (16 << 20) / (size * size);
        let ring = if share.is_power_of_two() {
            share
        } else {
            share.next_power_of_two() / 2
        };
        ring.max(8 << 10).min(self.cast_ring as usize)
    }

    /// The table in words, one line per decision.
    pub fn table(&self) -> String {
        let mut table = format!(
            "eager up to {} ({} if crowded, broadcasts {}); shared memory in chunks of {} ({} if crowded), around the cache from \
             {}; broadcast ring {} ({} if crowded)\n",
            bytes(self.eager_max),
            bytes(self.eager_max_crowded),
            bytes(self.eager_bcast_crowded),
            bytes(self.chunk),
            bytes(self.chunk_crowded),
            bytes(self.nontemporal_min),
            bytes(self.cast_ring),
            bytes(self.cast_ring_crowded),
        );
        let _ = writeln!(
            table,
            "root and leaf share copies from {} (gathers {}, scatters {}), unless crowded",
            bytes(self.share_min),
            bytes(self.share_gather_min),
            bytes(self.share_scatter_min)
        );
        let _ = writeln!(
            table,
            "kmod: peers map buffers of up to {} that are used again and again",
            match self.attach_max {
                u64::MAX => "any size".to_owned(),
                most => bytes(most),
            }
        );
        if let Some(kind) = self.transport {
            let _ = writeln!(table, "everything that is not eager: {kind}");
        }
        let _ = writeln!(
            table,
            "{:<10} {:<14} {:>8}  transports",
            "operation", "ranks", "from"
        );
        for op in Op::ALL {
            for crowded in [false, true] {
                for band in self.bands(op, crowded) {
                    let from = band.from.max(self.eager_max(op, crowded).saturating_add(1));
                    let prefer: Vec<_> = band.prefer.iter().map(|kind| kind.name()).collect();
                    let _ = writeln!(
                        table,
                        "{:<10} {:<14} {:>8}  {}",
                        op.to_string(),
                        if crowded {
                            "more than cpus"
                        } else {
                            "up to cpus"
                        },
                        bytes(from),
                        prefer.join(", "),
                    );
                }
            }
        }
        table
    }

    /// The policy as words, for the other ranks.
    pub(crate) fn to_words(&self) -> [u64; POLICY_WORDS] {
        let mut words = [0; POLICY_WORDS];
        let scalars = [
            self.eager_max,
            self.chunk,
            self.chunk_crowded,
            self.nontemporal_min,
            self.cast_ring,
            self.spin_us.map_or(u64::MAX, |us| us.min(u64::MAX - 1)),
            self.transport.map_or(0, TransportKind::number),
            self.cast_ring_crowded,
        ];
        words[..scalars.len()].copy_from_slice(&scalars);
        words[SHARE_WORD] = self.share_min;
        words[SHARE_WORD + 1] = self.eager_max_crowded;
        words[SHARE_WORD + 2] = self.eager_bcast_crowded;
        words[SHARE_WORD + 3] = self.share_gather_min;
        words[SHARE_WORD + 4] = self.share_scatter_min;
        words[SHARE_WORD + 5] = self.asynchronous.number();
        words[SHARE_WORD + 6] = self.offload_min;
        words[SHARE_WORD + 7] = self.offload_ranks;
        words[SHARE_WORD + 8] = self.offload_pages;
        words[SHARE_WORD + 9] = self.offload_verify;
        words[SHARE_WORD + 10] = self.attach_max;
        let mut slots = words[8..SHARE_WORD].chunks_exact_mut(MAX_BANDS);
        for op in Op::ALL {
            for (crowded, slots) in [false, true].into_iter().zip(&mut slots) {
                for (slot, band) in slots.iter_mut().zip(self.bands(op, crowded)) {
                    let mut prefer = 0;
                    for kind in band.prefer.iter().rev().take(3) {
                        prefer = prefer << 2 | kind.number();
                    }
                    *slot = band.from.min(1 << 48) << 8 | prefer << 1 | 1;
                }
            }
        }
        words
    }

    /// The policy that rank 0 wrote.
    pub(crate) fn from_words(words: [u64; POLICY_WORDS]) -> Result<Self> {
        let mut policy = Self::built_in(&Topology::read());
        policy.eager_max = words[0];
        policy.chunk = words[1];
        policy.chunk_crowded = words[2];
        policy.nontemporal_min = words[3];
        policy.cast_ring = words[4];
        policy.spin_us = (words[5] != u64::MAX).then_some(words[5]);
        policy.transport = TransportKind::from_number(words[6]);
        policy.cast_ring_crowded = words[7];
        policy.share_min = words[SHARE_WORD];
        policy.eager_max_crowded = words[SHARE_WORD + 1];
        policy.eager_bcast_crowded = words[SHARE_WORD + 2];
        policy.share_gather_min = words[SHARE_WORD + 3];
        policy.share_scatter_min = words[SHARE_WORD + 4];
        policy.asynchronous = Async::from_number(words[SHARE_WORD + 5]);
        policy.offload_min = words[SHARE_WORD + 6];
        policy.offload_ranks = words[SHARE_WORD + 7];
        policy.offload_pages = words[SHARE_WORD + 8];
        policy.offload_verify = words[SHARE_WORD + 9];
        policy.attach_max = words[SHARE_WORD + 10];
        let mut slots = words[8..SHARE_WORD].chunks_exact(MAX_BANDS);
        for op in Op::ALL {
            for (crowded, slots) in [false, true].into_iter().zip(&mut slots) {
                let band = |slot: &u64| Band {
                    from: slot >> 8,
                    prefer: (0..3)
                        .filter_map(|i| TransportKind::from_number(slot >> (1 + 2 * i) & 3))
                        .collect(),
                };
                let bands = slots
                    .iter()
                    .filter(|slot| **slot & 1 == 1)
                    .map(band)
                    .collect();
                policy.set_bands(op, crowded, bands);
            }
        }
        policy.checked()
    }
}

/// "64 KiB" for 65536.
fn bytes(n: u64) -> String {
    match n {
        u64::MAX => "never".to_owned(),
        n if n >= 1 << 20 && n % (1 << 20) == 0 => format!("{}M", n >> 20),
        n if n >= 1 << 10 && n % (1 << 10) == 0 => format!("{}K", n >> 10),
        n => n.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> Policy {
        Policy::built_in(&Topology::read()).checked().unwrap()
    }

    #[test]
    fn what_may_be_taken_by_any_crowd_is_found_first() {
        assert_eq!(Crowd::of(2, 2), Crowd::Spacious);
        assert_eq!(Crowd::of(4, 2), Crowd::Crowded);
        assert_eq!(Crowd::of(5, 2), Crowd::Packed);
        for rival in [Rival::OpenMpi, Rival::Mpich] {
            for op in Op::ALL {
                for crowd in Crowd::ALL {
                    for bytes in (10..30).map(|shift| 1u64 << shift) {
                        if Policy::beats_mpi(rival, op, bytes, crowd) {
                            let least = Policy::least_against_mpi(rival, op);
                            assert!(least.is_some_and(|least| least <= bytes), "{op}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn words_say_everything() {
        let mut policy = policy();
        policy.transport = Some(TransportKind::Cma);
        policy.spin_us = Some(7);
        policy.attach_max = 12345;
        policy.set_bands(
            Op::Gather,
            true,
            vec![
                Band {
                    from: 0,
                    prefer: vec![TransportKind::Shm],
                },
                Band {
                    from: 4096,
                    prefer: vec![TransportKind::Cma, TransportKind::Kmod],
                },
            ],
        );
        assert_eq!(Policy::from_words(policy.to_words()).unwrap(), policy);
    }

    #[test]
    fn damaged_words_are_errors() {
        assert!(Policy::from_words([0; POLICY_WORDS]).is_err());
        assert!(Policy::from_words([u64::MAX; POLICY_WORDS]).is_err());
    }

    #[test]
    fn the_first_usable_transport_of_the_band_is_taken() {
        let mut policy = policy();
        policy.eager_max = 100;
        let prefer = vec![TransportKind::Kmod, TransportKind::Cma];
        let bands = vec![
            Band {
                from: 0,
                prefer: vec![TransportKind::Shm],
            },
            Band { from: 1000, prefer },
        ];
        policy.set_bands(Op::Bcast, false, bands);
        let path = |bytes, usable: &[TransportKind]| {
            policy.path(Op::Bcast, bytes, false, None, |kind| usable.contains(&kind))
        };
        let [kmod, cma, shm] = TransportKind::ALL;
        assert_eq!(path(100, &[kmod, cma, shm]), Path::Eager);
        assert_eq!(path(999, &[kmod, cma, shm]), Path::Via(shm));
        assert_eq!(path(1000, &[kmod, cma, shm]), Path::Via(kmod));
        assert_eq!(path(u64::MAX, &[cma, shm]), Path::Via(cma));
        assert_eq!(path(1000, &[shm]), Path::Via(shm));
        assert_eq!(path(1000, &[]), Path::Via(shm));
    }

    #[test]
    fn rings_of_large_crowds_are_smaller() {
        let mut policy = policy();
        policy.cast_ring = 1 << 20;
        policy.cast_ring_crowded = 8 << 20;
        assert_eq!(policy.cast_ring(2, 2), 1 << 20);
        assert_eq!(policy.cast_ring(8, 2), 8 << 20);
        assert_eq!(policy.cast_ring(9, 2), 4 << 20);
        assert_eq!(policy.cast_ring(1000, 2), 4 << 20);
        // What somebody asked for is not cut.
        (policy.cast_ring, policy.cast_ring_crowded) = (16 << 20, 16 << 20);
        assert_eq!(policy.cast_ring(1000, 2), 16 << 20);
        policy.cast_ring = 64 << 10;
        policy.cast_ring_crowded = 64 << 10;
        assert_eq!(policy.cast_ring(1000, 2), 64 << 10);
    }

    #[test]
    fn useless_values_are_refused() {
        let with = |change: &dyn Fn(&mut Policy)| {
            let mut policy = policy();
            change(&mut policy);
            policy.checked()
        };
        assert!(with(&|p| p.cast_ring = 100_000).is_err());
        assert!(with(&|p| p.chunk = 0).is_err());
        assert!(with(&|p| p.set_bands(Op::Bcast, true, vec![])).is_err());
        assert_eq!(
            with(&|p| p.chunk = 1 << 40).unwrap().chunk,
            policy().cast_ring / 2
        );
        assert!(policy().table().contains("allgather"));
    }
}
