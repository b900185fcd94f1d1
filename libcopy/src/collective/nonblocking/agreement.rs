// SPDX-License-Identifier: MIT OR Apache-2.0

//! How the ranks of a communicator agree on something without waiting for each other: each says
//! some words, and asks later whether all have said theirs. The first rank that asks for the n-th
//! time answers for all that do.

use std::sync::atomic::{AtomicU64, Ordering};

/// Words that a rank says.
pub const WORDS: usize = 40;
/// Classes of calls whose ways ranks agree on separately: the first topics.
pub const CLASSES: usize = 16;
/// The topic of how long parts are that not all ranks know.
pub const LENGTHS: usize = CLASSES;
/// What ranks may agree on separately.
pub const TOPICS: usize = CLASSES + 1;
/// Answers that are kept for ranks that come later.
const ANSWERS: u64 = 64;

/// What one rank has said.
#[repr(C, align(64))]
struct Cell {
    words: [AtomicU64; WORDS],
    /// Rounds for which it has said something, and of which it has read what all said.
    said: AtomicU64,
    heard: AtomicU64,
    /// How often it has asked.
    asked: AtomicU64,
}

/// Each answer with its number, shifted by one bit.
type Answers = [AtomicU64; ANSWERS as usize];

/// Bytes for `ranks` ranks.
pub(super) const fn bytes(ranks: usize) -> usize {
    TOPICS * (size_of::<Answers>() + ranks * size_of::<Cell>())
}

/// What ranks agree on.
pub struct Topic<'a> {
    answers: &'a Answers,
    cells: &'a [Cell],
    rank: usize,
}

/// How far this rank has got.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    rounds: u64,
    asked: u64,
}

impl<'a> Topic<'a> {
    /// The topic of this number in memory of which all zeros are the beginning.
    ///
    /// # Safety
    ///
    /// `memory` has [`bytes`] bytes, is aligned to 64 bytes, and is changed only by this.
    pub(super) unsafe fn of(memory: *const u8, ranks: usize, topic: usize, rank: usize) -> Self {
        assert!(topic < TOPICS && rank < ranks, "a topic and a rank");
        let at = topic * (bytes(ranks) / TOPICS);
        // SAFETY: within the memory; both are aligned, as their sizes are multiples of 64 bytes.
        unsafe {
            let answers = memory.add(at);
            let cells = answers.add(size_of::<Answers>()).cast();
            Topic {
                answers: &*answers.cast(),
                cells: std::slice::from_raw_parts(cells, ranks),
                rank,
            }
        }
    }

    /// Says `own` for the round that comes next, and returns what all have said for it, or nothing
    /// if the ranks are to ask later. The n-th answer is the same for all ranks. `wait` is called
    /// again and again if this rank has asked 64 times more than another one.
    pub fn ask(
        &self,
        progress: &mut Progress,
        own: &[u64; WORDS],
        mut wait: impl FnMut(),
    ) -> Option<Vec<[u64; WORDS]>> {
        let (cell, round) = (&self.cells[self.rank], progress.rounds + 1);
        let all = |of: fn(&Cell) -> &AtomicU64, least: u64| {
            let mut cells = self.cells.iter();
            cells.all(|cell| of(cell).load(Ordering::Acquire) >= least)
        };
        // Not before all have read what was said last.
        if cell.said.load(Ordering::Relaxed) < round && all(|cell| &cell.heard, round - 1) {
            for (word, own) in cell.words.iter().zip(own) {
                word.store(*own, Ordering::Relaxed);
            }
            cell.said.store(round, Ordering::Release);
        }
        progress.asked += 1;
        let asked = progress.asked;
        let answer = &self.answers[(asked % ANSWERS) as usize];
        let mut seen = answer.load(Ordering::Acquire);
        while seen >> 1 < asked {
            // The answer before in the same place is still needed.
            while !all(|cell| &cell.asked, asked.saturating_sub(ANSWERS)) {
                wait();
            }
            let next = asked << 1 | u64::from(all(|cell| &cell.said, round));
            match answer.compare_exchange(seen, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => seen = next,
                Err(now) => seen = now,
            }
        }
        let words = (seen & 1 != 0).then(|| {
            let words = |cell: &Cell| cell.words.each_ref().map(|n| n.load(Ordering::Relaxed));
            let words = self.cells.iter().map(words).collect();
            progress.rounds = round;
            cell.heard.store(round, Ordering::Release);
            words
        });
        cell.asked.store(asked, Ordering::Release);
        words
    }
}

#[cfg(test)]
mod tests {
    use super::super::table::Table;
    use super::*;

    /// Ranks that ask as fast as they can get the same answers, and what all said for the same
    /// round.
    #[test]
    fn all_ranks_get_the_same_answers() {
        const RANKS: usize = 3;
        const QUESTIONS: usize = 4_000;
        let (table, _file) = Table::create(RANKS, 1, [1, 2]).unwrap();
        let table = &table;
        let run = |rank: usize| {
            let topic = table.topic(5, rank);
            let (mut progress, mut heard, mut rounds) = (Progress::default(), Vec::new(), 0);
            for question in 0..QUESTIONS {
                let own = [rounds * RANKS as u64 + rank as u64; WORDS];
                let all = topic.ask(&mut progress, &own, std::thread::yield_now);
                if question % (rank + 2) == 0 {
                    std::thread::yield_now();
                }
                rounds += u64::from(all.is_some());
                heard.push(all);
            }
            heard
        };
        let heard: Vec<_> = std::thread::scope(|scope| {
            let ranks: Vec<_> = (0..RANKS)
                .map(|rank| scope.spawn(move || run(rank)))
                .collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        assert!(heard.iter().all(|other| *other == heard[0]));
        let rounds: Vec<_> = heard[0].iter().flatten().collect();
        // No rank asks 65 times before all have asked once, and so have said something.
        assert!(!rounds.is_empty());
        for (round, said) in rounds.into_iter().enumerate() {
            for (rank, words) in said.iter().enumerate() {
                assert_eq!(words, &[(round * RANKS + rank) as u64; WORDS]);
            }
        }
        // Another topic has none of that.
        let mut progress = Progress::default();
        assert_eq!(
            table.topic(4, 0).ask(&mut progress, &[0; WORDS], || ()),
            None
        );
    }
}
