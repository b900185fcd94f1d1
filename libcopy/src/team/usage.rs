// SPDX-License-Identifier: MIT OR Apache-2.0

//! Who uses a team that several owners share: a count and a mark in the team's segment, beside its
//! collectives.
//!
//! An MPI library's communicators over the same ranks can share one team. One rank, the leader,
//! decides which team a communicator gets, tells the others, and may do so again only when all of
//! them have given it back.

use std::sync::Arc;

use crate::shm::cause::Cause;
use crate::shm::segment::Segment;
use crate::shm::sync::Ordering;

/// Counts the users of a team. See [`super::Team::usage`].
#[derive(Clone, Debug)]
pub struct Usage(Arc<Segment>);

impl Usage {
    pub(super) fn new(segment: Arc<Segment>) -> Self {
        Usage(segment)
    }

    /// A forked child uses none of its parent's teams, and gives none back.
    fn is_here(&self) -> bool {
        self.0.home().is_here()
    }

    /// Lends the team to `users` ranks: the leader, for all of them.
    pub fn lend(&self, users: usize) {
        if !self.is_here() {
            return;
        }
        let lent = &self.0.preamble().lent;
        lent.fetch_add(users as u64, Ordering::AcqRel);
    }

    /// Gives it back: each of these ranks for itself, after its last collective.
    pub fn give_back(&self) {
        if !self.is_here() {
            return;
        }
        // A rank may be done before the leader has counted it; the sum comes out all the same.
        self.0.preamble().lent.fetch_sub(1, Ordering::AcqRel);
    }

    /// Whether all to whom it was lent have given it back. Only the leader may conclude anything
    /// from that, as nobody else lends it.
    pub fn is_idle(&self) -> bool {
        self.0.preamble().lent.load(Ordering::Acquire) == 0
    }

    /// Says that the team will not be lent again: the leader, when it is idle or broken.
    pub fn retire(&self) {
        if self.is_here() {
            self.0.preamble().retired.store(1, Ordering::Release);
        }
    }

    /// Whether it will not be lent again, so that a rank that does not use it can drop it.
    pub fn is_retired(&self) -> bool {
        self.0.preamble().retired.load(Ordering::Acquire) != 0
    }

    /// Whether an error or a death has broken the team, or this is a forked child.
    pub fn is_broken(&self) -> bool {
        !self.is_here() || self.0.preamble().broken.load(Ordering::Acquire) != 0
    }

    /// Whether ranks that called different operations, or one of them whose operation failed half
    /// way, have broken the team: no death.
    pub fn is_in_disagreement(&self) -> bool {
        let word = self.0.preamble().broken.load(Ordering::Acquire);
        Cause::from_word(word).is_some_and(Cause::is_disagreement)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use crate::{Team, TeamKey};

    #[test]
    fn a_team_is_idle_when_all_have_given_it_back() {
        let key = TeamKey::random().unwrap();
        let other = std::thread::spawn(move || Team::join(&key, 1, 2).unwrap());
        let mine = Team::join(&key, 0, 2).unwrap();
        let (leader, mut other) = (mine.usage(), other.join().unwrap());
        assert!(leader.is_idle());
        leader.lend(2);
        leader.give_back();
        assert!(!leader.is_idle(), "rank 1 still uses it");
        let user = other.usage();
        user.give_back();
        assert!(leader.is_idle());
        // The other rank may be the first.
        user.give_back();
        leader.lend(2);
        assert!(!leader.is_idle());
        leader.give_back();
        assert!(leader.is_idle() && !user.is_retired() && !user.is_broken());
        leader.retire();
        assert!(user.is_retired());
        other.give_up();
        assert!(leader.is_broken());
    }
}
