// SPDX-License-Identifier: MIT OR Apache-2.0

//! This process as a peer: operations on a layout, timed and verified.

use crate::shared::Shared;
use anyhow::Result;
use clap::ValueEnum;
use libcopy::datatype::{Datatype, InstructionSet, Layout};
use std::time::Instant;

/// What is done with a layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "lower")]
pub enum Op {
    /// From the layout to dense bytes.
    Pack,
    /// From dense bytes to the layout.
    Unpack,
    /// From the layout to another one.
    Copy,
}

impl Op {
    /// Its name in tables, and what peers are told.
    pub fn name(self) -> &'static str {
        match self {
            Op::Pack => "pack",
            Op::Unpack => "unpack",
            Op::Copy => "copy",
        }
    }
}

/// The layouts of a case, as they are made while kernels use one set of instructions.
pub struct Made {
    set: InstructionSet,
    variant: String,
    /// What is packed, unpacked and copied.
    pub layout: Layout,
    /// What `copy` copies to.
    pub target: Layout,
}

impl Made {
    /// Makes both layouts for a set of instructions, of which kernels use no more from now on.
    ///
    /// # Errors
    ///
    /// A type that is too large.
    pub fn new(
        (set, variant): &(InstructionSet, String),
        datatype: &Datatype,
        target: &Datatype,
    ) -> Result<Made> {
        set.limit();
        // A type keeps its normal form, which was made for the set that was in force then.
        let fresh = |datatype: &Datatype| Datatype::unflatten(&datatype.flatten()?);
        Ok(Made {
            set: *set,
            variant: variant.clone(),
            layout: Layout::new(&fresh(datatype)?, 1)?,
            target: Layout::new(&fresh(target)?, 1)?,
        })
    }
}

/// This process as a peer: buffers, and the layouts of the current case.
pub struct Own {
    /// The layouts for each set of instructions that is measured, at least one.
    pub made: Vec<Made>,
    /// What the layout describes, the packed bytes, and where `copy` copies to.
    pub memory: Shared,
    /// Bytes of data.
    pub size: usize,
}

/// The variant that uses libcopy.
pub const LIBCOPY: &str = "libcopy";
/// The one that copies by packing and unpacking.
pub const BOUNCE: &str = "libcopy-bounce";
/// The one that copies as many dense bytes.
pub const MEMCPY: &str = "memcpy";
/// The same, run by a peer.
pub const CONTROL: &str = "memcpy-control";

impl Own {
    /// The layouts of a variant; from now on, kernels use its instructions.
    fn made<'a>(made: &'a [Made], variant: &str) -> &'a Made {
        let found = made.iter().find(|made| made.variant == variant);
        let found = found.unwrap_or(&made[0]);
        found.set.limit();
        found
    }

    fn call(&mut self, op: Op, variant: &str) -> Result<()> {
        let Made {
            layout, target: to, ..
        } = Own::made(&self.made, variant);
        let [user, packed, target] = self.memory.parts();
        match (op, variant) {
            (Op::Pack, MEMCPY) => packed.copy_from_slice(&target[..self.size]),
            (_, MEMCPY) => target[..self.size].copy_from_slice(packed),
            (Op::Pack, _) => layout.pack(user, 0, packed)?,
            (Op::Unpack, _) => layout.unpack(packed, user, 0)?,
            (Op::Copy, BOUNCE) => {
                layout.pack(user, 0, packed)?;
                to.unpack(packed, target, 0)?;
            }
            (Op::Copy, _) => layout.copy(user, 0, to, target, 0)?,
        }
        Ok(())
    }

    /// What `hash` of `type_peer.h` answers, by `variant`; the reference goes piece by piece.
    ///
    /// # Errors
    ///
    /// Buffers that do not fit the layout.
    pub fn look(&mut self, op: Op, variant: Option<&str>, round: u64) -> Result<u64> {
        let [user, packed, target] = self.memory.parts();
        match op {
            Op::Pack => {
                fill(user, round);
                packed.fill(0x5a);
            }
            Op::Unpack => {
                user.fill(0x5a);
                fill(packed, round);
            }
            Op::Copy => {
                target.fill(0x5a);
                fill(user, round);
            }
        }
        if let Some(variant) = variant {
            self.call(op, variant)?;
        } else {
            self.by_segments(op);
        }
        let [user, packed, target] = self.memory.parts();
        Ok(match op {
            Op::Pack => hash(packed),
            Op::Unpack => hash(user),
            Op::Copy => hash(target),
        })
    }

    fn by_segments(&mut self, op: Op) {
        let Made {
            layout, target: to, ..
        } = &self.made[0];
        let [user, packed, target] = self.memory.parts();
        if op != Op::Unpack {
            let mut at = 0;
            for segment in layout.segments() {
                let (from, len) = (segment.offset as usize, segment.len as usize);
                packed[at..at + len].copy_from_slice(&user[from..from + len]);
                at += len;
            }
        }
        let (layout, to) = match op {
            Op::Pack => return,
            Op::Unpack => (layout, user),
            Op::Copy => (to, target),
        };
        let mut at = 0;
        for segment in layout.segments() {
            let (from, len) = (segment.offset as usize, segment.len as usize);
            to[from..from + len].copy_from_slice(&packed[at..at + len]);
            at += len;
        }
    }

    /// Microseconds of each of `calls` batches of `batch` calls, per call.
    ///
    /// # Errors
    ///
    /// Buffers that do not fit the layout.
    pub fn time(
        &mut self,
        op: Op,
        variant: &str,
        batch: usize,
        warm: usize,
        calls: usize,
    ) -> Result<Vec<f64>> {
        let [user, packed, target] = self.memory.parts();
        let Made {
            layout, target: to, ..
        } = Own::made(&self.made, variant);
        let bytes = packed.len();
        // One loop for each, as the peers have: what is called is not decided anew for each call.
        match (op, variant) {
            (Op::Pack, MEMCPY) => sample(batch, warm, calls, || {
                packed.copy_from_slice(&target[..bytes]);
                Ok(())
            }),
            (_, MEMCPY) => sample(batch, warm, calls, || {
                target[..bytes].copy_from_slice(packed);
                Ok(())
            }),
            (Op::Pack, _) => sample(batch, warm, calls, || layout.pack(user, 0, packed)),
            (Op::Unpack, _) => sample(batch, warm, calls, || layout.unpack(packed, user, 0)),
            (Op::Copy, BOUNCE) => sample(batch, warm, calls, || {
                layout.pack(user, 0, packed)?;
                to.unpack(packed, target, 0)
            }),
            (Op::Copy, _) => sample(batch, warm, calls, || layout.copy(user, 0, to, target, 0)),
        }
    }
}

fn sample(
    batch: usize,
    warm: usize,
    calls: usize,
    mut call: impl FnMut() -> libcopy::datatype::Result<()>,
) -> Result<Vec<f64>> {
    for _ in 0..warm * batch {
        call()?;
    }
    let mut times = Vec::with_capacity(calls);
    for _ in 0..calls {
        let start = Instant::now();
        for _ in 0..batch {
            call()?;
        }
        times.push(start.elapsed().as_secs_f64() * 1e6 / batch as f64);
    }
    Ok(times)
}

fn mix(mut x: u64) -> u64 {
    x ^= x >> 29;
    x = x.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^ (x >> 32)
}

/// The pattern of `type_peer.h`.
fn fill(to: &mut [u8], round: u64) {
    for (i, chunk) in to.chunks_mut(8).enumerate() {
        let word = mix((8 * i as u64 + 8)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .wrapping_add(round.wrapping_mul(0x94d0_49bb_1331_11eb)));
        chunk.copy_from_slice(&word.to_ne_bytes()[..chunk.len()]);
    }
}

/// The hash of `type_peer.h`.
fn hash(from: &[u8]) -> u64 {
    from.chunks(8)
        .fold(mix(from.len() as u64 + 1), |sum, chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            mix((sum ^ u64::from_ne_bytes(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15))
        })
}
