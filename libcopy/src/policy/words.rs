// SPDX-License-Identifier: MIT OR Apache-2.0

//! The thresholds as words of the segment, in which rank 0 hands them to the others.

use super::bands::{Band, MAX_BANDS};
use super::contention::{CONTENTION_WORDS, Contention};
use super::executor::Async;
use super::thresholds::Policy;
use crate::error::Result;
use crate::op::Op;
use crate::topology::Topology;
use crate::transport::TransportKind;

/// Words of the policy that rank 0 hands to all.
pub(crate) const POLICY_WORDS: usize = 96;

/// The word behind the bands.
const SHARE_WORD: usize = 8 + 2 * Op::ALL.len() * MAX_BANDS;

/// The first word of what was measured with several readers.
const CONTENTION_WORD: usize = SHARE_WORD + 19;

const _: () = assert!(CONTENTION_WORD + CONTENTION_WORDS <= POLICY_WORDS);

impl Policy {
    /// The policy as words, for the other ranks.
    pub(crate) fn to_words(&self) -> [u64; POLICY_WORDS] {
        let mut words = [0; POLICY_WORDS];
        let scalars = [
            self.eager_max,
            self.chunk,
            self.chunk_oversubscribed,
            self.nontemporal_min,
            self.bcast_ring,
            self.spin_us.map_or(u64::MAX, |us| us.min(u64::MAX - 1)),
            self.transport.map_or(0, TransportKind::number),
            self.bcast_ring_oversubscribed,
        ];
        words[..scalars.len()].copy_from_slice(&scalars);
        words[SHARE_WORD] = self.share_min;
        words[SHARE_WORD + 1] = self.eager_max_oversubscribed;
        words[SHARE_WORD + 2] = self.eager_bcast_oversubscribed;
        words[SHARE_WORD + 3] = self.share_gather_min;
        words[SHARE_WORD + 4] = self.share_scatter_min;
        words[SHARE_WORD + 5] = self.asynchronous.number();
        words[SHARE_WORD + 6] = self.offload_min;
        words[SHARE_WORD + 7] = self.offload_ranks;
        words[SHARE_WORD + 8] = self.offload_pages;
        words[SHARE_WORD + 9] = self.offload_verify;
        words[SHARE_WORD + 10] = self.attach_max;
        words[SHARE_WORD + 11] = self.step_max;
        words[SHARE_WORD + 12] = self.pieces_max;
        words[SHARE_WORD + 13] = self.reduce_pieces_max;
        words[SHARE_WORD + 14] = self.chunked_allreduce_max;
        words[SHARE_WORD + 15] = self.chunked_reduce_max;
        words[SHARE_WORD + 16] = self.chunked_allgather_max;
        words[SHARE_WORD + 17] = self.chunked_alltoall_max;
        words[SHARE_WORD + 18] = self.eager_scatter_max;
        if let Some(contention) = self.contention {
            words[CONTENTION_WORD..][..CONTENTION_WORDS].copy_from_slice(&contention.to_words());
        }
        let mut slots = words[8..SHARE_WORD].chunks_exact_mut(MAX_BANDS);
        for op in Op::ALL {
            for (oversubscribed, slots) in [false, true].into_iter().zip(&mut slots) {
                for (slot, band) in slots.iter_mut().zip(self.bands(op, oversubscribed)) {
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
        policy.chunk_oversubscribed = words[2];
        policy.nontemporal_min = words[3];
        policy.bcast_ring = words[4];
        policy.spin_us = (words[5] != u64::MAX).then_some(words[5]);
        policy.transport = TransportKind::from_number(words[6]);
        policy.bcast_ring_oversubscribed = words[7];
        policy.share_min = words[SHARE_WORD];
        policy.eager_max_oversubscribed = words[SHARE_WORD + 1];
        policy.eager_bcast_oversubscribed = words[SHARE_WORD + 2];
        policy.share_gather_min = words[SHARE_WORD + 3];
        policy.share_scatter_min = words[SHARE_WORD + 4];
        policy.asynchronous = Async::from_number(words[SHARE_WORD + 5]);
        policy.offload_min = words[SHARE_WORD + 6];
        policy.offload_ranks = words[SHARE_WORD + 7];
        policy.offload_pages = words[SHARE_WORD + 8];
        policy.offload_verify = words[SHARE_WORD + 9];
        policy.attach_max = words[SHARE_WORD + 10];
        policy.step_max = words[SHARE_WORD + 11];
        policy.pieces_max = words[SHARE_WORD + 12];
        policy.reduce_pieces_max = words[SHARE_WORD + 13];
        policy.chunked_allreduce_max = words[SHARE_WORD + 14];
        policy.chunked_reduce_max = words[SHARE_WORD + 15];
        policy.chunked_allgather_max = words[SHARE_WORD + 16];
        policy.chunked_alltoall_max = words[SHARE_WORD + 17];
        policy.eager_scatter_max = words[SHARE_WORD + 18];
        policy.contention = Contention::from_words(&words[CONTENTION_WORD..][..CONTENTION_WORDS]);
        let mut slots = words[8..SHARE_WORD].chunks_exact(MAX_BANDS);
        for op in Op::ALL {
            for (oversubscribed, slots) in [false, true].into_iter().zip(&mut slots) {
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
                policy.set_bands(op, oversubscribed, bands);
            }
        }
        policy.checked()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_say_everything() {
        let mut policy = Policy::built_in(&Topology::read()).checked().unwrap();
        policy.transport = Some(TransportKind::Cma);
        policy.spin_us = Some(7);
        policy.attach_max = 12345;
        (policy.step_max, policy.pieces_max, policy.reduce_pieces_max) = (1, 2, 3);
        policy.chunked_allreduce_max = 4;
        policy.chunked_reduce_max = 5;
        policy.eager_scatter_max = 8;
        (policy.chunked_allgather_max, policy.chunked_alltoall_max) = (6, 7);
        policy.contention = Some(Contention {
            port_mbs: Some(31_000),
            ..Contention::default()
        });
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
}
