// SPDX-License-Identifier: MIT OR Apache-2.0

//! Calls of which rank 0 finds out which of two ways is faster ([`crate::shm::leading`]).

use std::time::Instant;

use crate::shm::leading::Class;
use crate::team::Team;

/// Calls that all ranks wait for, which are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Allgather,
    Alltoall,
    Reduction,
}

/// Shorter calls are done before they could be measured.
const SHORTEST: usize = 4 << 10;

/// A call that goes one of two ways.
#[derive(Debug)]
pub(super) struct Led {
    /// Whether it goes the other way than the usual one: the same on all ranks.
    pub(super) is_other: bool,
    /// The class of the call, its number, and when it has begun, if that is to be measured.
    call: Option<(Class, u64, Option<Instant>)>,
}

impl Led {
    /// One that goes the usual way.
    pub(super) const USUAL: Led = Led {
        is_other: false,
        call: None,
    };

    /// The next call of this kind, with `bytes` bytes of each rank. All ranks wait for all in it.
    /// Where ranks outnumber processors, what calls take says little.
    pub(super) fn of(team: &mut Team, kind: Kind, bytes: usize) -> Led {
        if bytes < SHORTEST || team.is_oversubscribed() {
            return Led::USUAL;
        }
        let class = Class::new(kind as usize, bytes);
        let (number, way, is_timed) = team.next_led(class);
        Led {
            is_other: way != 0,
            call: Some((class, number, is_timed.then(Instant::now))),
        }
    }

    /// The call has ended.
    pub(super) fn end(self, team: &mut Team) {
        if let Some((class, number, Some(started))) = self.call {
            let nanos = started.elapsed().as_nanos() as u64;
            team.note_led(class, (number, usize::from(self.is_other)), nanos);
        }
    }
}
