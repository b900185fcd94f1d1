// SPDX-License-Identifier: MIT OR Apache-2.0

//! The thresholds in words, for `libcopy info`.

use std::fmt::Write as _;

use super::thresholds::Policy;
use crate::op::Op;
use crate::transport::TransportKind;

impl Policy {
    /// The table in words, one line per decision.
    pub fn table(&self) -> String {
        let mut table = format!(
            "eager up to {} ({} if oversubscribed, broadcasts {}, scatters {}); shared memory in chunks of {} ({} if oversubscribed), around the cache from \
             {}; broadcast ring {} ({} if oversubscribed)\n",
            bytes(self.eager_max),
            bytes(self.eager_max_oversubscribed),
            bytes(self.eager_bcast_oversubscribed),
            bytes(self.eager_scatter_max),
            bytes(self.chunk),
            bytes(self.chunk_oversubscribed),
            bytes(self.nontemporal_min),
            bytes(self.bcast_ring),
            bytes(self.bcast_ring_oversubscribed),
        );
        let _ = writeln!(
            table,
            "in one step up to {} of all others; in pieces up to {} (reductions {}), unless oversubscribed; \
             in chunks if oversubscribed allreduces up to {}, reduces {}, allgathers {}, alltoalls {}",
            bytes(self.step_max),
            bytes(self.pieces_max),
            bytes(self.reduce_pieces_max),
            bytes(self.chunked_allreduce_max),
            bytes(self.chunked_reduce_max),
            bytes(self.chunked_allgather_max),
            bytes(self.chunked_alltoall_max)
        );
        let _ = writeln!(
            table,
            "root and leaf share copies from {} (gathers {}, scatters {}), unless oversubscribed",
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
        if let Some(contention) = self.contention {
            for kind in TransportKind::ALL {
                if let Some(copies) = contention.copies(kind) {
                    let most = copies.source_mbs.map_or(String::new(), |rate| {
                        format!(", {rate} MB/s of one process' memory")
                    });
                    let _ = writeln!(
                        table,
                        "{kind}, as measured for plans: {} MB/s per processor{most}, {} ns per chunk",
                        copies.core_mbs, copies.chunk_ns
                    );
                }
            }
        }
        if let Some(kind) = self.transport {
            let _ = writeln!(table, "everything that is not eager: {kind}");
        }
        let _ = writeln!(
            table,
            "{:<10} {:<14} {:>8}  transports",
            "operation", "ranks", "from"
        );
        for op in Op::ALL {
            for oversubscribed in [false, true] {
                for band in self.bands(op, oversubscribed) {
                    let from = band
                        .from
                        .max(self.eager_max(op, oversubscribed).saturating_add(1));
                    let prefer: Vec<_> = band.prefer.iter().map(|kind| kind.name()).collect();
                    let _ = writeln!(
                        table,
                        "{:<10} {:<14} {:>8}  {}",
                        op.to_string(),
                        if oversubscribed {
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
    use crate::topology::Topology;

    #[test]
    fn every_operation_is_in_the_table() {
        let table = Policy::built_in(&Topology::read()).table();
        assert!(
            Op::ALL.iter().all(|op| table.contains(&op.to_string())),
            "{table}"
        );
    }
}
