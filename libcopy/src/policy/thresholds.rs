// SPDX-License-Identifier: MIT OR Apache-2.0

//! The thresholds, and the path that follows from them.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::bands::{Band, Bands, MAX_BANDS};
use super::contention::Contention;
use super::executor::{Async, Executor};
use crate::error::{Error, Result};
use crate::op::Op;
use crate::topology::Topology;
use crate::transport::TransportKind;

/// The thresholds in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// Messages up to this size are sent without asking the receiver first.
    pub eager_max: u64,
    /// Messages up to this size are sent without asking where ranks outnumber processors, unless a
    /// transport is forced: asking first costs context switches.
    #[serde(alias = "eager_max_crowded")]
    pub eager_max_oversubscribed: u64,
    /// Broadcasts up to this size are sent without asking where ranks outnumber processors: one
    /// copy into the ring serves all ranks.
    #[serde(alias = "eager_bcast_crowded")]
    pub eager_bcast_oversubscribed: u64,
    /// Scatters of parts up to this size are sent without asking where ranks outnumber processors:
    /// a root that fills the rings of its leaves waits for each of them.
    #[serde(default = "eager_scatter_max")]
    pub eager_scatter_max: u64,
    /// Bytes that a rank reads of all others together, at most, where a short collective takes one
    /// step: each rank publishes its bytes and reads those of the others.
    #[serde(default = "step_max")]
    pub step_max: u64,
    /// Broadcasts, gathers and scatters up to this size go piece by piece through the root's place
    /// for short ones; unless ranks outnumber processors.
    #[serde(default = "pieces_max")]
    pub pieces_max: u64,
    /// Reductions of which each rank reads up to so many bytes of the others go piece by piece,
    /// too.
    #[serde(default = "reduce_pieces_max")]
    pub reduce_pieces_max: u64,
    /// Allgathers of which a rank gives up to so many bytes go in chunks where ranks outnumber
    /// processors, too.
    #[serde(default = "chunked_allgather_max")]
    pub chunked_allgather_max: u64,
    /// The same of alltoalls of which a rank gives up to so many to all others together.
    #[serde(default = "chunked_alltoall_max")]
    pub chunked_alltoall_max: u64,
    /// Allreduces up to this size do.
    #[serde(default = "chunked_allreduce_max")]
    pub chunked_allreduce_max: u64,
    /// The same of reduces to a root.
    #[serde(default = "chunked_reduce_max")]
    pub chunked_reduce_max: u64,
    /// Bytes that shared memory hands over at a time.
    pub chunk: u64,
    /// Bytes that shared memory hands over at a time where ranks outnumber processors, and every
    /// hand-over is a context switch.
    #[serde(alias = "chunk_crowded")]
    pub chunk_oversubscribed: u64,
    /// From this size on, counting what all ranks receive, bytes received through shared memory
    /// bypass the cache.
    pub nontemporal_min: u64,
    /// Bytes of the ring through which a rank broadcasts; a power of two.
    #[serde(alias = "cast_ring")]
    pub bcast_ring: u64,
    /// Bytes of the ring through which a rank broadcasts where ranks outnumber processors: of a
    /// message that fits, each leaf has all as soon as it gets a processor. Less in large teams: 64
    /// MiB for all, but 4 MiB for each.
    #[serde(alias = "cast_ring_crowded", alias = "bcast_ring_crowded")]
    pub bcast_ring_oversubscribed: u64,
    /// From this size on, root and leaf share the copy of a broadcast; below, and where ranks
    /// outnumber processors and the root would only keep leaves from running, the leaf copies
    /// alone.
    pub share_min: u64,
    /// From this size on, root and leaf share the copies of a gather, in which the root has its own
    /// part to copy first.
    pub share_gather_min: u64,
    /// From this size on, root and leaf share the copies of a scatter, in which a leaf that shares
    /// must tell first where its memory is.
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
    /// Pages that an engine moves between two looks whether CPUs have taken over: n of Copy Engines
    /// 2023, section 3.4; 0: what the module's parameter says.
    #[serde(default)]
    pub offload_pages: u64,
    /// Whether what an engine has moved is compared with its source: 1, or 0 to trust it.
    #[serde(default)]
    pub offload_verify: u64,
    /// The transport to use for everything that is not eager.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transport: Option<TransportKind>,
    /// What `libcopy tune --contention` has measured, which has a place of its own in the file.
    #[serde(skip)]
    pub contention: Option<Contention>,
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

// Two ranks of an EPYC of Zen 4 that share a cache: a broadcast of 16 KiB took 1.1 us in pieces and
// 2.5 through the ring, one of 64 KiB 6.3 and 5.8 in chunks; allreduces of 32 KiB are faster in
// chunks. `libcopy tune` measures the three anew.
/// A scatter of 16 KiB to each of four ranks on two processors took 16 us through rings and 7 by
/// CMA, to each of 16 ranks 11 and 9, of 8 KiB to each of 16 ranks 16 and 8; 4 KiB took as long
/// either way (`libcopy bench coll --ops scatter`, EPYC of Zen 4, 30 November 2026).
fn eager_scatter_max() -> u64 {
    4 << 10
}

fn step_max() -> u64 {
    8 << 10
}

fn pieces_max() -> u64 {
    32 << 10
}

fn reduce_pieces_max() -> u64 {
    16 << 10
}

// In chunks all ranks wait for each other a few times, where those of a plan wait one by one, and
// each wait is a switch to another rank. On two processors of an EPYC of Zen 4, by plans or in
// chunks of 32 KiB as they went before, and in large chunks, in turns, with 4, 8 and 16 ranks: an
// allreduce of 256 KiB took 222 and 85 us, 426 and 146, 881 and 323, of 1 MiB 817 and 360, 1,481
// and 789, 3,225 and 1,798; a reduce of 256 KiB 130 and 72, 195 and 83, 555 and 259; an allgather
// of 256 KiB 296 and 88, 954 and 298, 3,715 and 1,558; an alltoall of 16 KiB for each 29 and 11, 31
// and 25, 166 and 107, of 256 KiB 354 and 177, but with 8 and 16 ranks as long. Longer ones gain
// less. `libcopy tune` measures them anew.
fn chunked_allgather_max() -> u64 {
    4 << 20
}

fn chunked_alltoall_max() -> u64 {
    4 << 20
}

fn chunked_allreduce_max() -> u64 {
    4 << 20
}

fn chunked_reduce_max() -> u64 {
    4 << 20
}

fn offload_min() -> u64 {
    512 << 10
}

fn offload_ranks() -> u64 {
    2
}

/// What an operation does with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// Through the mailbox, without asking.
    Eager,
    /// Through a transport.
    Via(TransportKind),
}

/// Bytes that the broadcast rings of a oversubscribed team take together, which are reserved as
/// long as it lives. No ring is made smaller than [`LEAST_OVERSUBSCRIBED_RING`] for that, or than
/// in a team that is not oversubscribed.
const OVERSUBSCRIBED_RINGS: u64 = 64 << 20;

/// Bytes of the ring of a oversubscribed team, however many ranks there are.
const LEAST_OVERSUBSCRIBED_RING: u64 = 4 << 20;

/// Mapped memory stays pinned until the leaves hear that its owner has closed it, hence a limit.
fn built_in_attach_max() -> u64 {
    8 << 20
}

impl Policy {
    /// Values for a machine that was not measured.
    pub fn built_in(topology: &Topology) -> Self {
        use TransportKind::{Cma, Kmod, Shm};
        let band = |from, prefer: &[TransportKind]| Band {
            from,
            prefer: prefer.to_vec(),
        };
        // With CMA, leaves copy at the same time, and the root of a broadcast shares their work,
        // which beats two copies from some size on. In a oversubscribed team a broadcast through
        // the ring wins: it needs a system call for no leaf.
        let small = band(0, &[Kmod, Shm, Cma]);
        let once = |from| vec![small.clone(), band(from, &[Kmod, Cma, Shm])];
        let bands = Bands {
            dedicated: once(32 << 10),
            oversubscribed: once(128 << 10),
        };
        Policy {
            eager_max: 8 << 10,
            eager_max_oversubscribed: 128 << 10,
            eager_bcast_oversubscribed: 256 << 10,
            eager_scatter_max: eager_scatter_max(),
            step_max: step_max(),
            pieces_max: pieces_max(),
            reduce_pieces_max: reduce_pieces_max(),
            chunked_allgather_max: chunked_allgather_max(),
            chunked_alltoall_max: chunked_alltoall_max(),
            chunked_allreduce_max: chunked_allreduce_max(),
            chunked_reduce_max: chunked_reduce_max(),
            chunk: 8 << 10,
            chunk_oversubscribed: 128 << 10,
            nontemporal_min: topology.llc as u64 / 2,
            bcast_ring: (topology.l2 as u64 / 2)
                .next_power_of_two()
                .clamp(128 << 10, 1 << 20),
            bcast_ring_oversubscribed: 8 << 20,
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
            contention: None,
            bcast: Bands {
                oversubscribed: vec![small.clone()],
                ..bands.clone()
            },
            // The root of a gather is there as a rule, and has its own part to copy meanwhile. A
            // ring that is filled more than once costs a switch to the other rank each time: 64
            // ranks on two processors scattered 32 KiB to each in 700 us, and do so by CMA in 15.
            gather: Bands {
                dedicated: once(16 << 10),
                oversubscribed: vec![band(0, &[Kmod, Cma, Shm])],
            },
            scatter: Bands {
                oversubscribed: vec![band(0, &[Kmod, Cma, Shm])],
                ..bands.clone()
            },
            allgather: bands,
            alltoall: Bands::one_copy(),
        }
    }

    /// Refuses values that would not work.
    pub(crate) fn checked(mut self) -> Result<Self> {
        for ring in [self.bcast_ring, self.bcast_ring_oversubscribed] {
            if !(4096..=1 << 30).contains(&ring) || !ring.is_power_of_two() {
                let allowed = "a power of two from 4K to 1G";
                return Err(Error::argument("the broadcast ring", ring, allowed));
            }
        }
        let rings = [self.bcast_ring, self.bcast_ring_oversubscribed];
        for (chunk, ring) in [&mut self.chunk, &mut self.chunk_oversubscribed]
            .into_iter()
            .zip(rings)
        {
            if *chunk < 64 {
                return Err(Error::argument("the chunk", *chunk, 64usize..));
            }
            // Chunks are whole cache lines, and two of them must be in flight.
            *chunk = (*chunk - *chunk % 64).min(ring / 2);
        }
        for op in Op::ALL {
            for oversubscribed in [false, true] {
                let bands = self.bands(op, oversubscribed);
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
                        ..=4usize,
                    ));
                }
            }
        }
        self.contention = self.contention.map(Contention::checked).transpose()?;
        Ok(self)
    }

    pub(super) fn bands(&self, op: Op, oversubscribed: bool) -> &[Band] {
        let bands = match op {
            Op::Bcast => &self.bcast,
            Op::Gather => &self.gather,
            Op::Scatter => &self.scatter,
            Op::Alltoall => &self.alltoall,
            // Reductions gather their slices.
            _ => &self.allgather,
        };
        if oversubscribed {
            &bands.oversubscribed
        } else {
            &bands.dedicated
        }
    }

    fn bands_mut(&mut self, op: Op, oversubscribed: bool) -> &mut Vec<Band> {
        let bands = match op {
            Op::Bcast => &mut self.bcast,
            Op::Gather => &mut self.gather,
            Op::Scatter => &mut self.scatter,
            Op::Alltoall => &mut self.alltoall,
            _ => &mut self.allgather,
        };
        if oversubscribed {
            &mut bands.oversubscribed
        } else {
            &mut bands.dedicated
        }
    }

    /// Replaces the bands of an operation.
    pub fn set_bands(&mut self, op: Op, oversubscribed: bool, bands: Vec<Band>) {
        *self.bands_mut(op, oversubscribed) = bands;
    }

    /// The path for a part of `bytes` bytes, which may be sent without asking only if that `fits`
    /// into a ring; `forced` is for all that is not eager.
    pub fn path(
        &self,
        (op, bytes): (Op, u64),
        (oversubscribed, fits): (bool, bool),
        forced: Option<TransportKind>,
        usable: impl Fn(TransportKind) -> bool,
    ) -> Path {
        if fits && bytes <= self.eager_max(op, oversubscribed && forced.is_none()) {
            return Path::Eager;
        }
        if let Some(kind) = forced {
            return Path::Via(kind);
        }
        let band = self
            .bands(op, oversubscribed)
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

    pub(super) fn eager_max(&self, op: Op, oversubscribed: bool) -> u64 {
        match (oversubscribed, op) {
            (false, _) => self.eager_max,
            (true, Op::Bcast) => self.eager_bcast_oversubscribed,
            (true, Op::Scatter) => self.eager_scatter_max,
            (true, _) => self.eager_max_oversubscribed,
        }
    }

    /// Bytes that shared memory hands over at a time.
    pub(crate) fn chunk(&self, oversubscribed: bool) -> usize {
        (if oversubscribed {
            self.chunk_oversubscribed
        } else {
            self.chunk
        }) as usize
    }

    /// Whether root and leaf share a copy of this size.
    pub(crate) fn shares(&self, op: Op, bytes: u64, oversubscribed: bool) -> bool {
        let least = match op {
            Op::Bcast => self.share_min,
            Op::Gather => self.share_gather_min,
            Op::Scatter => self.share_scatter_min,
            _ => return false,
        };
        !oversubscribed && bytes >= least
    }

    /// Whether a copy engine may move a part of this size, in a team of this many ranks.
    pub(crate) fn offloads(&self, bytes: u64, ranks: usize) -> bool {
        ![Async::Off, Async::Fixed(Executor::Cpu)].contains(&self.asynchronous)
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
    pub(crate) fn bcast_ring(&self, size: usize, cpus: usize) -> usize {
        let ring = if size > cpus {
            let share = (OVERSUBSCRIBED_RINGS / size as u64 + 1).next_power_of_two() / 2;
            let least = self.bcast_ring.max(LEAST_OVERSUBSCRIBED_RING);
            self.bcast_ring_oversubscribed.min(share.max(least))
        } else {
            self.bcast_ring
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
        ring.max(8 << 10).min(self.bcast_ring as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> Policy {
        Policy::built_in(&Topology::read()).checked().unwrap()
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
            let ranks = (false, true);
            policy.path((Op::Bcast, bytes), ranks, None, |kind| {
                usable.contains(&kind)
            })
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
    fn what_fits_into_no_ring_takes_one_copy_where_each_leaf_has_its_own_part() {
        let policy = policy();
        let [_, cma, shm] = TransportKind::ALL;
        let path = |op, bytes, fits| {
            let ranks = (true, fits);
            policy.path((op, bytes), ranks, None, |kind| [cma, shm].contains(&kind))
        };
        for op in [Op::Gather, Op::Scatter] {
            assert_eq!(path(op, 4 << 10, true), Path::Eager, "{op}");
            assert_eq!(path(op, 4 << 10, false), Path::Via(cma), "{op}");
            assert_eq!(path(op, 64 << 10, false), Path::Via(cma), "{op}");
        }
        // A root that fills all rings waits for the leaves; those of a gather do not.
        assert_eq!(path(Op::Scatter, 64 << 10, true), Path::Via(cma));
        assert_eq!(path(Op::Gather, 64 << 10, true), Path::Eager);
        assert_eq!(path(Op::Allgather, 64 << 10, false), Path::Via(shm));
    }

    #[test]
    fn rings_of_large_oversubscribed_teams_are_smaller() {
        let mut policy = policy();
        policy.bcast_ring = 1 << 20;
        policy.bcast_ring_oversubscribed = 8 << 20;
        assert_eq!(policy.bcast_ring(2, 2), 1 << 20);
        assert_eq!(policy.bcast_ring(8, 2), 8 << 20);
        assert_eq!(policy.bcast_ring(9, 2), 4 << 20);
        assert_eq!(policy.bcast_ring(1000, 2), 4 << 20);
        // What somebody asked for is not cut.
        (policy.bcast_ring, policy.bcast_ring_oversubscribed) = (16 << 20, 16 << 20);
        assert_eq!(policy.bcast_ring(1000, 2), 16 << 20);
        policy.bcast_ring = 64 << 10;
        policy.bcast_ring_oversubscribed = 64 << 10;
        assert_eq!(policy.bcast_ring(1000, 2), 64 << 10);
    }

    #[test]
    fn useless_values_are_refused() {
        let with = |change: &dyn Fn(&mut Policy)| {
            let mut policy = policy();
            change(&mut policy);
            policy.checked()
        };
        assert!(with(&|p| p.bcast_ring = 100_000).is_err());
        assert!(with(&|p| p.chunk = 0).is_err());
        assert!(with(&|p| p.set_bands(Op::Bcast, true, vec![])).is_err());
        assert_eq!(
            with(&|p| p.chunk = 1 << 40).unwrap().chunk,
            policy().bcast_ring / 2
        );
    }
}
