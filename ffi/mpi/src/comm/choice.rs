// SPDX-License-Identifier: MIT OR Apache-2.0

//! Which messages are intercepted, which are packed here and moved by the library as bytes, and
//! which it moves as fast as we do: measured with two ranks, by vectors of 512 bytes to 64 KiB in
//! pieces of 8 bytes to 4 KiB, and by the layouts of applications (`scripts/bench mpi --ops
//! typed-pingpong`).

use libcopy::p2p::header::wire_size;

use crate::decide::{active, protocol};
use crate::library::abi::{Abi, function};
use crate::library::pmpi;
use crate::types::datatype::Known;

/// Bytes from which on a dense message is intercepted.
const LEAST_DENSE: u64 = 256 << 10;

/// What a library is good at.
#[derive(Debug)]
pub struct Choice {
    /// Bytes from which on a message that is not dense is intercepted.
    least: u64,
    /// Bytes below which such a message may be packed here and moved as bytes. Never more than the
    /// library sends at once: what is longer, Open MPI writes into the receiver's memory as a whole
    /// if both sides are dense, whether there is room for it or not.
    packed: u64,
    /// What it takes longer to move packed bytes than elements, apart from packing, in nanoseconds
    /// per KiB: packing has to make up for that.
    toll: u64,
    /// Bytes below which the rest is about.
    short: u64,
    /// Pieces of at least this many bytes it moves as fast in short messages.
    long_piece: u64,
    /// Pieces of fewer bytes, if they follow a rule, as well, in messages of fewer bytes than
    /// these.
    tiny: (u64, u64),
    /// This many pieces, of this many bytes at least, it has the kernel copy at once.
    few_pieces: (u64, u64),
    /// What it says of a message that is too long.
    truncated: Truncated,
}

/// How many bytes a status names whose message is longer than its receive.
#[derive(Debug)]
enum Truncated {
    /// Those of the message.
    Total,
    /// Those that there was room for, unless the message is not dense and longer than this: then
    /// those of the message.
    Room(u64),
    /// None: what an earlier operation has left there, which is 1 for most.
    Unset,
}

pub(super) const OPEN_MPI_4: Choice = Choice {
    least: 4000,
    packed: 4000,
    toll: 15,
    short: 32 << 10,
    long_piece: 4 << 10,
    tiny: (0, 0),
    few_pieces: (0, 0),
    truncated: Truncated::Total,
};

pub(super) const OPEN_MPI_5: Choice = Choice {
    tiny: (16, 12 << 10),
    ..OPEN_MPI_4
};

pub(super) const MPICH_4: Choice = Choice {
    least: 12 << 10,
    packed: 8000,
    toll: 60,
    short: 32 << 10,
    long_piece: 256,
    tiny: (0, 0),
    few_pieces: (0, 0),
    truncated: Truncated::Unset,
};

pub(super) const MPICH_5: Choice = Choice {
    least: 8000,
    toll: 90,
    long_piece: 1024,
    few_pieces: (64, 2 << 10),
    truncated: Truncated::Room(EAGER_OF_MPICH_5),
    ..MPICH_4
};

/// Bytes up to which MPICH 5.0 sends elements that are not dense without asking the receiver first.
const EAGER_OF_MPICH_5: u64 = 16 << 10;

/// Nanoseconds that it takes here to find out what to do.
const FIXED: u64 = 20;

impl Choice {
    /// For this library.
    pub fn of(abi: &Abi) -> &'static Choice {
        // What Open MPI has from 5.0 on.
        function!(NEW = c"PMPI_Isendrecv");
        if abi.is_open_mpi() {
            if NEW.if_any() != 0 {
                &OPEN_MPI_5
            } else {
                &OPEN_MPI_4
            }
        } else if pmpi::is_mpi_5() {
            &MPICH_5
        } else {
            &MPICH_4
        }
    }

    /// From how many bytes on messages are intercepted, dense ones and others, or what
    /// `LIBCOPY_MPI_MIN` asks for; never fewer than the shortest header has.
    pub fn least(&self) -> [u64; 2] {
        let floor = wire_size(0) as u64;
        [LEAST_DENSE, self.least].map(|usual| active::least().unwrap_or(usual).max(floor))
    }

    /// How many bytes the library says of a message of `total` bytes that came where there was room
    /// for `capacity`.
    pub fn truncated(&self, is_dense: bool, total: u64, capacity: u64) -> u64 {
        match self.truncated {
            Truncated::Room(eager) if is_dense || total <= eager => capacity,
            Truncated::Room(_) | Truncated::Total => total,
            Truncated::Unset => 1,
        }
    }

    /// Whether the library delivers the bytes of a message that is too long which there is room
    /// for.
    pub fn delivers_beginnings(&self) -> bool {
        !matches!(self.truncated, Truncated::Unset)
    }

    /// Whether the library moves `bytes` of a type in `pieces` pieces as fast as we do together.
    pub fn is_fast(&self, is_regular: bool, bytes: u64, pieces: u64) -> bool {
        if active::least().is_some() {
            return false;
        }
        let each = bytes / pieces.max(1);
        let is_tiny = each < self.tiny.0 && bytes < self.tiny.1 && is_regular;
        bytes < self.short && each >= self.long_piece
            || is_tiny
            || (2..=self.few_pieces.0).contains(&pieces) && each >= self.few_pieces.1
    }

    /// Whether `bytes` of elements are packed here, if they stay on this machine and packing pays.
    pub fn packs(&self, known: &Known, count: usize) -> bool {
        let bytes = known.size.saturating_mul(count as u64);
        let pieces = known.pieces.saturating_mul(count as u64);
        if known.datatype.is_none() || known.dense || pieces < 2 || bytes == 0 {
            return false;
        }
        bytes < self.below()
    }

    /// Nanoseconds that packing `bytes` has to take less, on both sides together, than in the
    /// library; `None` if the environment says what is packed.
    pub fn toll(&self, bytes: u64) -> Option<u64> {
        (!protocol::is_packing_asked()).then(|| FIXED + bytes * self.toll / 1024)
    }

    /// Bytes below which messages are packed; from `LIBCOPY_MPI_MIN` bytes on everything is
    /// intercepted, for tests.
    pub(super) fn below(&self) -> u64 {
        let asked = protocol::packed().or_else(active::least);
        asked.map_or(self.packed, |asked| asked.min(self.packed))
    }
}
