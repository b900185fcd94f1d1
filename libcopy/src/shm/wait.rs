// SPDX-License-Identifier: MIT OR Apache-2.0

//! Waiting for peers: spin a little, give the processor away, sleep; and notice who died.

use std::cell::Cell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::cause::{Cause, Kind};
use super::segment::{HEALTH_EVERY, HISTORY, Segment};
use super::sync::{Ordering, fence};
use crate::error::{Error, Result};
use crate::op::{Call, Op};
use crate::policy::Oversubscription;
use crate::topology::CPU_WORDS;

/// Longest sleep; a peer that was killed between changing something and ringing costs this much.
const NAP: Duration = Duration::from_millis(50);

/// Longest and shortest sleep of a rank that has something to do now and then.
const LONG_NAP: Duration = Duration::from_millis(8);
const SHORT_NAP: Duration = Duration::from_millis(1);

/// Longest time to give the processor away without sleeping. More does not help: where peers take
/// this long, it is because they have no processor.
const YIELDING: Duration = Duration::from_millis(1);

/// What a rank that waits does for peers that wait for bytes of an engine.
#[derive(Debug)]
pub(crate) struct Helper {
    /// The device that has the peers' requests.
    pub(crate) device: OwnedFd,
    /// Copies what nobody has begun of the request with this number.
    pub(crate) help: fn(BorrowedFd<'_>, u64),
}

/// How this rank waits.
#[derive(Debug)]
pub(crate) struct Waiter {
    segment: Arc<Segment>,
    rank: usize,
    size: usize,
    /// How long to spin before anything else; zero where ranks outnumber processors.
    spin: Duration,
    /// How often to give the processor away before sleeping; a system call each, which
    /// costs more than sleeping in the end where ranks far outnumber processors.
    yields: u32,
    /// Whether a peer is known to be busy for longer than it takes to fall asleep.
    patient: Cell<bool>,
    last_health: Cell<Instant>,
    /// How we help peers, if copy engines move bytes of this team.
    helper: Option<Helper>,
    /// The operation we are in, or were in last, and its number.
    current: Cell<(u64, Call)>,
    /// Whether we are in it.
    is_in_call: Cell<bool>,
    /// The progress hook: what a rank that sleeps has to do now and then.
    progress: Option<fn()>,
}

impl Waiter {
    pub(crate) fn new(segment: Arc<Segment>, rank: usize, size: usize) -> Self {
        Waiter {
            segment,
            rank,
            size,
            spin: Duration::ZERO,
            yields: 0,
            patient: Cell::new(false),
            last_health: Cell::new(Instant::now()),
            helper: None,
            current: Cell::new((
                0,
                Call {
                    op: Op::Control,
                    root: 0,
                    len: 0,
                },
            )),
            is_in_call: Cell::new(false),
            progress: None,
        }
    }

    /// Has `progress` called now and then by a rank that waits for long.
    pub(crate) fn set_progress_hook(&mut self, progress: Option<fn()>) {
        self.progress = progress;
    }

    /// How long to sleep at once after having waited for `waited`. What the progress hook is for
    /// does not ring, so there it depends on how long it may have waited itself.
    fn nap(&self, waited: Duration) -> Duration {
        match self.progress {
            Some(_) => (waited / 4).clamp(SHORT_NAP, LONG_NAP),
            None => NAP,
        }
    }

    /// How the ranks of the team and the processors that they may run on go together.
    pub(crate) fn oversubscription(&self) -> Oversubscription {
        let mut cpus = [0u64; CPU_WORDS];
        for rank in 0..self.size {
            for (all, word) in cpus.iter_mut().zip(&self.segment.block(rank).cpus) {
                *all |= word.load(Ordering::Relaxed);
            }
        }
        let cpus: u32 = cpus.iter().map(|word| word.count_ones()).sum();
        Oversubscription::of(self.size, cpus as usize)
    }

    /// Chooses how to wait: where ranks outnumber processors, a rank that spins keeps the one it
    /// waits for from running.
    pub(crate) fn adapt(&mut self, spin: Option<Duration>, oversubscription: Oversubscription) {
        let is_oversubscribed = oversubscription != Oversubscription::None;
        self.spin = spin.unwrap_or(if is_oversubscribed {
            Duration::ZERO
        } else {
            Duration::from_micros(100)
        });
        self.yields = if is_oversubscribed { 200 } else { u32::MAX };
    }

    /// Falls asleep at once from now on, or not any more: what is waited for leaves the processor
    /// to the application, and so should we.
    pub(crate) fn be_patient(&self, patient: bool) {
        self.patient.set(patient);
    }

    /// Helps others in this way from now on, while we wait.
    pub(crate) fn set_helper(&mut self, helper: Option<Helper>) {
        self.helper = helper;
    }

    /// Copies for peers that wait for bytes of an engine (Copy Engines 2023, section 3.4): we have
    /// nothing else to do, and they may be what we wait for.
    fn help(&self) {
        let Some(helper) = &self.helper else {
            return;
        };
        for rank in (0..self.size).filter(|rank| *rank != self.rank) {
            match self
                .segment
                .block(rank)
                .help_request
                .load(Ordering::Acquire)
            {
                0 => {}
                id => (helper.help)(helper.device.as_fd(), id),
            }
        }
    }

    /// The operation that we are in.
    pub(crate) fn call(&self) -> Call {
        self.current.get().1
    }

    /// Whether it is time to look at the others.
    pub(crate) fn is_due(&self) -> bool {
        self.last_health.get().elapsed() >= HEALTH_EVERY
    }

    /// Begins an operation, and notes for all to see which one. Nothing is noted once the team is
    /// broken: a rank that is late compares its call with our last notes.
    ///
    /// # Errors
    ///
    /// Why the team is broken.
    pub(crate) fn enter(&self, sequence: u64, call: Call) -> Result<()> {
        self.current.set((sequence, call));
        self.is_in_call.set(true);
        self.verdict()?;
        let record = &self.segment.block(self.rank).calls[sequence as usize % HISTORY];
        for (word, value) in record.words.iter().zip(call.to_words()) {
            word.store(value, Ordering::Relaxed);
        }
        record.sequence.store(sequence, Ordering::Release);
        Ok(())
    }

    /// The operation is over.
    #[inline]
    pub(crate) fn leave(&self) {
        self.is_in_call.set(false);
    }

    /// Fails if a peer's operation of this number is another one: then both may wait where the
    /// other never sends anything.
    ///
    /// # Errors
    ///
    /// The mismatch, or why the team is broken.
    pub(crate) fn compare(&self, rank: usize) -> Result<()> {
        let (sequence, mine) = self.current.get();
        let record = &self.segment.block(rank).calls[sequence as usize % HISTORY];
        if sequence == 0 || record.sequence.load(Ordering::Acquire) != sequence {
            return Ok(());
        }
        let words = [0, 1].map(|i: usize| record.words[i].load(Ordering::Acquire));
        let theirs = Call::from_words(words);
        // The lengths may differ rightly: each rank has its own part.
        if theirs == mine || record.sequence.load(Ordering::Relaxed) != sequence {
            return Ok(());
        }
        // A rank that was told of a death may have gone on to another call; that is not the reason.
        self.verdict()?;
        Err(self.mismatch(rank, theirs, mine))
    }

    /// Waits until `ready` has a result. `from` says which ranks could make it so: one of them
    /// having left is an error, the death of any rank is one anyway.
    pub(crate) fn wait<T>(
        &self,
        from: impl Fn(usize) -> bool,
        ready: impl FnMut() -> Result<Option<T>>,
    ) -> Result<T> {
        self.wait_noted(from, || (), ready)
    }

    /// [`Waiter::wait`] for ranks that ring only for those who have said that they sleep: `note`
    /// says so, in each sleep, before what is waited for is looked at for the last time.
    pub(crate) fn wait_noted<T>(
        &self,
        from: impl Fn(usize) -> bool,
        note: impl Fn(),
        mut ready: impl FnMut() -> Result<Option<T>>,
    ) -> Result<T> {
        if let Some(result) = ready()? {
            return Ok(result);
        }
        if !self.spin.is_zero() && !self.patient.get() {
            let start = Instant::now();
            loop {
                for _ in 0..64 {
                    if let Some(result) = ready()? {
                        return Ok(result);
                    }
                    std::hint::spin_loop();
                }
                if start.elapsed() > self.spin {
                    break;
                }
            }
        }
        // Other processes of this machine may keep the processor for long after each of
        // these, hence the limit in time.
        let start = Instant::now();
        let mut yields = 0;
        let limit = if self.patient.get() { 0 } else { self.yields };
        while start.elapsed() < YIELDING && yields < limit {
            std::thread::yield_now();
            if let Some(result) = ready()? {
                return Ok(result);
            }
            yields += 1;
        }
        let mut ready = || {
            note();
            ready().transpose()
        };
        let bell = &self.segment.block(self.rank).bell;
        loop {
            if let Some(result) = bell.park(self.nap(start.elapsed()), &mut ready) {
                return result;
            }
            self.help();
            if let Some(progress) = self.progress {
                progress();
            }
            if let Some(result) = self.check_unless(&from, || ready().transpose())? {
                return Ok(result);
            }
        }
    }

    /// Fails if the team is broken; from time to time, looks whether everybody is alive.
    pub(crate) fn check(&self, from: &impl Fn(usize) -> bool) -> Result<()> {
        self.check_unless(from, || Ok(None)).map(|_: Option<()>| ())
    }

    /// As [`Waiter::check`], unless `ready` has a result: what we wait for may have come before the
    /// peer went. Then the team is whole for all others, too.
    pub(crate) fn check_unless<T>(
        &self,
        from: &impl Fn(usize) -> bool,
        ready: impl FnOnce() -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        let error = match self.look(from) {
            Ok(None) => return Ok(None),
            Ok(Some(left)) => match ready() {
                Ok(None) => self.break_team(left),
                result => return result,
            },
            Err(error) => match ready() {
                Ok(None) => error,
                result => return result,
            },
        };
        Err(error)
    }

    /// The error that a rank has left which should not, if one has: nobody is told of it yet. Fails
    /// if the team is broken, or if a rank has died.
    fn look(&self, from: &impl Fn(usize) -> bool) -> Result<Option<Error>> {
        self.verdict()?;
        if !self.is_due() {
            return Ok(None);
        }
        self.last_health.set(Instant::now());
        self.segment.look_around()?;
        for rank in (0..self.size).filter(|rank| *rank != self.rank) {
            if self.segment.block(rank).left.load(Ordering::Acquire) != 0 {
                self.compare(rank)?;
                if from(rank) {
                    return Ok(Some(Error::PeerLeft { rank }));
                }
            } else if self.segment.has_died(rank) {
                return Err(self.break_team(Error::PeerDied { rank }));
            }
            self.compare(rank)?;
        }
        Ok(None)
    }

    /// The error that broke the team, if one did, or that of a forked child. In an operation, what
    /// went wrong in a later one is none: whoever is there has ended ours, so that we can, too; if
    /// it had called something else in ours, comparing the calls shows that.
    #[inline]
    pub(crate) fn verdict(&self) -> Result<()> {
        self.segment.check_home()?;
        match self.segment.preamble().broken.load(Ordering::Acquire) {
            0 => Ok(()),
            word => self.explain(word),
        }
    }

    #[cold]
    fn explain(&self, first: u64) -> Result<()> {
        let (number, _) = self.current.get();
        let concerns_us =
            |cause: &Cause| !self.is_in_call.get() || cause.number <= Cause::counted(number);
        let cause_of = |word| {
            Cause::from_word(word).ok_or_else(|| Error::corrupt("the state of the team", word))
        };
        let preamble = self.segment.preamble();
        let mut cause = cause_of(first)?;
        // The details are those of the first one.
        let is_first = concerns_us(&cause);
        if !is_first {
            match preamble.earlier.load(Ordering::Acquire) {
                0 => return Ok(()),
                inverse => cause = cause_of(!inverse)?,
            }
            if !concerns_us(&cause) {
                return Ok(());
            }
        }
        let rank = cause.rank;
        let detail = |i: usize| preamble.details[i].load(Ordering::Relaxed);
        Err(match cause.kind {
            Kind::Died => Error::PeerDied { rank },
            Kind::Left => Error::PeerLeft { rank },
            Kind::Mismatch if is_first => Error::Mismatch {
                rank,
                theirs: Call::from_words([detail(0), detail(1)]).to_string(),
                expected: Call::from_words([detail(2), detail(3)]).to_string(),
            },
            Kind::NotJoined => Error::Join {
                rank,
                why: self.segment.reason(),
            },
            Kind::Mismatch | Kind::Broken => Error::Broken { rank },
        })
    }

    /// Writes to a rank's memory, unless that may have it back.
    ///
    /// # Errors
    ///
    /// Why the team is broken.
    pub(crate) fn put<T>(&self, rank: usize, write: impl FnOnce() -> T) -> Result<T> {
        let puts = &self.segment.block(self.rank).puts;
        puts.run(rank, || self.verdict(), write)
    }

    /// Waits until nobody writes to our memory any more, after the team was broken. It takes the
    /// time of a copy, or as long as a rank in the middle of one is stopped.
    pub(crate) fn wait_for_puts(&self) {
        fence(Ordering::SeqCst);
        for rank in (0..self.size).filter(|rank| *rank != self.rank) {
            let is_under_way = || self.segment.block(rank).puts.are_to(self.rank);
            while is_under_way() && !self.segment.has_died(rank) {
                std::thread::sleep(SHORT_NAP);
                if self.segment.look_around().is_err() {
                    break;
                }
            }
        }
    }

    /// Breaks the team for everybody and returns the error for us. That a peer is gone is only the
    /// reason where nobody gave another one before: it may have gone because of that.
    #[cold]
    pub(crate) fn break_team(&self, error: Error) -> Error {
        let (kind, rank) = match &error {
            Error::PeerDied { rank } => (Kind::Died, *rank),
            Error::PeerLeft { rank } => (Kind::Left, *rank),
            Error::Join { rank, .. } => (Kind::NotJoined, *rank),
            _ => (Kind::Broken, self.rank),
        };
        let why = match &error {
            Error::Join { why, .. } => why,
            _ => "",
        };
        // Outside of operations we have ended the last one, which nobody has to fail. A rank may
        // die in any.
        let number = match kind {
            Kind::Died => 0,
            _ => self.current.get().0 + u64::from(!self.is_in_call.get()),
        };
        let cause = Cause { number, kind, rank };
        let first = self.break_with(cause, [0; 4], why);
        match error {
            Error::PeerDied { .. } | Error::PeerLeft { .. } if !first => {
                self.verdict().err().unwrap_or(error)
            }
            error => error,
        }
    }

    /// Breaks the team since two ranks disagree about the operation that we are in.
    #[cold]
    pub(crate) fn mismatch(&self, rank: usize, theirs: Call, expected: Call) -> Error {
        self.mismatch_in(self.current.get().0, rank, theirs, expected)
    }

    /// The same about an earlier operation, whose number is not known: all fail, in whatever
    /// operation they are.
    #[cold]
    pub(crate) fn mismatch_before(&self, rank: usize, theirs: Call, expected: Call) -> Error {
        self.mismatch_in(0, rank, theirs, expected)
    }

    fn mismatch_in(&self, number: u64, rank: usize, theirs: Call, expected: Call) -> Error {
        let ([a, b], [c, d]) = (theirs.to_words(), expected.to_words());
        let cause = Cause {
            number,
            kind: Kind::Mismatch,
            rank,
        };
        self.break_with(cause, [a, b, c, d], "");
        Error::Mismatch {
            rank,
            theirs: theirs.to_string(),
            expected: expected.to_string(),
        }
    }

    /// Whether nobody else had broken the team before. A forked child breaks nothing.
    fn break_with(&self, cause: Cause, details: [u64; 4], why: &str) -> bool {
        if !self.segment.home().is_here() {
            return true;
        }
        let preamble = self.segment.preamble();
        let claim = &preamble.claim;
        let first = claim
            .compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok();
        if first {
            for (word, value) in preamble.details.iter().zip(details) {
                word.store(value, Ordering::Relaxed);
            }
            self.segment.write_reason(why);
            preamble.broken.store(cause.to_word(), Ordering::Release);
        } else {
            preamble
                .earlier
                .fetch_max(!cause.to_word(), Ordering::AcqRel);
            // Others look at it once they see the first cause: before that our memory must not be
            // used again. The first rank may have been killed before it wrote why.
            let start = Instant::now();
            while preamble.broken.load(Ordering::Acquire) == 0 && start.elapsed() < HEALTH_EVERY {
                std::thread::yield_now();
            }
            let (set, seen) = (Ordering::AcqRel, Ordering::Relaxed);
            let _ = preamble
                .broken
                .compare_exchange(0, cause.to_word(), set, seen);
        }
        for rank in 0..self.size {
            self.segment.block(rank).bell.ring();
        }
        first
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::transport::TransportKind;
    use crate::transport::remote_key::RemoteKey;
    use crate::{Team, TeamKey};

    fn pair() -> [Team; 2] {
        let key = TeamKey::random().unwrap();
        let other = std::thread::spawn(move || Team::join(&key, 1, 2).unwrap());
        [Team::join(&key, 0, 2).unwrap(), other.join().unwrap()]
    }

    /// A rank that is told of a death leaves, which is not what went wrong for the others.
    #[test]
    fn who_leaves_because_of_a_death_is_not_the_reason() {
        let teams = pair();
        let [a, b] = [&teams[0].mailbox.waiter, &teams[1].mailbox.waiter];
        a.break_team(Error::PeerDied { rank: 7 });
        let error = b.break_team(Error::PeerLeft { rank: 0 });
        assert!(matches!(error, Error::PeerDied { rank: 7 }), "{error}");
        let error = b.break_team(Error::PeerDied { rank: 7 });
        assert!(matches!(error, Error::PeerDied { rank: 7 }), "{error}");
    }

    /// A rank may leave as soon as it has given what others wait for.
    #[test]
    fn who_has_given_what_was_waited_for_may_leave() {
        use std::cell::Cell;
        let [a, b] = pair();
        drop(b);
        let waiter = &a.mailbox.waiter;
        // It comes between the waiter's last look for it and its look for ranks that have left.
        let given = Cell::new(false);
        let from = |_| {
            given.set(true);
            true
        };
        waiter
            .wait(from, || Ok(given.get().then_some(())))
            .expect("it was given");
        waiter.verdict().expect("nothing is broken");
        let error = waiter.wait(|_| true, || Ok(None::<()>)).unwrap_err();
        assert!(matches!(error, Error::PeerLeft { rank: 1 }), "{error}");
        assert!(waiter.verdict().is_err());
    }

    #[test]
    fn who_waits_calls_the_progress_hook() {
        use std::sync::atomic::{AtomicU32, Ordering};
        static DONE: AtomicU32 = AtomicU32::new(0);
        let [mut a, mut b] = pair();
        a.set_progress_hook(Some(|| {
            DONE.fetch_add(1, Ordering::Relaxed);
        }));
        let late = std::thread::spawn(move || {
            // The other rank waits until its progress hook has run, however busy the machine is.
            while DONE.load(Ordering::Relaxed) < 3 {
                std::thread::yield_now();
            }
            b.barrier().unwrap();
            b
        });
        a.barrier().unwrap();
        assert!(DONE.load(Ordering::Relaxed) >= 3);
        late.join().unwrap();
    }

    /// Bytes that another rank is about to write do not come after the call has failed here, and no
    /// others are written then.
    #[test]
    fn who_fails_waits_for_what_is_written_to_its_memory() {
        use std::sync::atomic::{AtomicU32, Ordering};
        static DONE: AtomicU32 = AtomicU32::new(0);
        let [mut a, b] = pair();
        let writer = std::thread::spawn(move || {
            let waiter = &b.mailbox.waiter;
            let put = waiter.put(0, || {
                DONE.store(1, Ordering::Release);
                while waiter.verdict().is_ok() {
                    std::thread::yield_now();
                }
                std::thread::sleep(Duration::from_millis(20));
                DONE.store(2, Ordering::Release);
            });
            put.expect("the team was whole");
            waiter.put(0, || panic!("this memory was given back"))
        });
        while DONE.load(Ordering::Acquire) == 0 {
            std::thread::yield_now();
        }
        let error = a.settle::<()>(Err(Error::argument("root", 9usize, ..2usize).into()));
        assert!(matches!(*error.unwrap_err(), Error::Argument { .. }));
        assert_eq!(DONE.load(Ordering::Acquire), 2);
        let error = writer.join().unwrap().unwrap_err();
        assert!(matches!(error, Error::Broken { rank: 0 }), "{error}");
    }

    /// Bytes that were read of a rank which may use its memory again are none of a call.
    #[test]
    fn what_is_read_of_a_rank_that_has_failed_is_an_error() {
        let [a, b] = pair();
        let (from, mut to) = ([7u8; 64], [0u8; 64]);
        let key = RemoteKey::Cma {
            base: from.as_ptr() as u64,
            len: 64,
        };
        let mut pull = || {
            // SAFETY: there is room for these bytes.
            unsafe { b.pull(0, key, 0, to.as_mut_ptr(), 64) }
        };
        if !b.is_usable(TransportKind::Cma) {
            return;
        }
        pull().unwrap().unwrap();
        a.mailbox.waiter.break_team(Error::Broken { rank: 0 });
        let error = *pull().unwrap_err();
        assert!(matches!(error, Error::Broken { rank: 0 }), "{error}");
        assert_eq!(to, from);
    }

    /// What goes wrong in a call is nothing to a rank that is still in the one before: who has gone
    /// on has done its part there. A cause with the number of its call, or of one before, is.
    #[test]
    fn what_breaks_a_later_call_does_not_break_this_one() {
        let call = Call::new(Op::Barrier, 0, 0);
        let broken = |error: &Error| matches!(error, Error::Broken { rank: 1 });
        for outside in [false, true] {
            let teams = pair();
            let [a, b] = [&teams[0].mailbox.waiter, &teams[1].mailbox.waiter];
            let next = teams[0].mailbox.sequence + 1;
            let late = || {
                a.enter(next, call).unwrap();
                a.wait(|_| false, || Ok(a.is_due().then_some(())))
            };
            b.enter(next, call).unwrap();
            if outside {
                b.leave();
            } else {
                b.enter(next + 1, call).unwrap();
            }
            b.break_team(Error::Broken { rank: 1 });
            // Also where it takes until the rank looks whether all are well.
            late().expect("this call is whole");
            // It fails outside of calls, and in the next one, which is not noted.
            a.leave();
            assert!(broken(&a.verdict().unwrap_err()));
            let error = a.enter(next + 1, call).unwrap_err();
            assert!(broken(&error), "{error}");
            b.compare(0).expect("nothing was noted");
            // A second one tells those who are further behind.
            a.enter(next, call).unwrap();
            b.mismatch_before(0, call, call);
            let error = a.verdict().unwrap_err();
            assert!(matches!(error, Error::Broken { rank: 0 }), "{error}");
        }
    }

    #[test]
    fn a_call_after_a_death_is_not_taken_for_a_disagreement() {
        for died in [false, true] {
            let teams = pair();
            let [a, b] = [&teams[0].mailbox.waiter, &teams[1].mailbox.waiter];
            let next = teams[0].mailbox.sequence + 1;
            let call = |op| Call {
                op,
                root: 0,
                len: 0,
            };
            b.enter(next, call(Op::Scatter)).unwrap();
            a.enter(next, call(Op::Barrier)).unwrap();
            if died {
                a.break_team(Error::PeerDied { rank: 7 });
            }
            let error = b.compare(0).unwrap_err();
            if died {
                assert!(matches!(error, Error::PeerDied { rank: 7 }), "{error}")
            } else {
                assert!(matches!(error, Error::Mismatch { rank: 0, .. }), "{error}")
            }
        }
    }
}
