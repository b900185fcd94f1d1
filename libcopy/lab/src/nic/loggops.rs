// SPDX-License-Identifier: MIT OR Apache-2.0

//! Whole programs in the LogGOPS model, from schedules in the manner of GOAL (Hoefler, Siebert,
//! Lumsdaine, ICPP 2009; Hoefler, Schneider, Lumsdaine, HPDC 2010): each rank has computations,
//! sends and receives that depend on each other.

use libcopy_nic::card::{Events, NS, Ps};
use std::collections::HashMap;

/// The parameters L, o, g and G. O is 0, and messages are never larger than S: each is sent at
/// once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogGops {
    /// L: from card to card.
    pub latency: Ps,
    /// o: what a send or receive takes of the processor.
    pub overhead: Ps,
    /// g: from message to message at least.
    pub gap: Ps,
    /// G for 1,024 bytes.
    pub kibibyte: Ps,
}

impl LogGops {
    /// A network of 200 Gbit/s; o and g are those that sPIN's authors assume of next-generation
    /// networks (Hoefler et al., SC 2017), L is ours.
    pub const NEXT_GENERATION: LogGops = LogGops {
        latency: 500 * NS,
        overhead: 65 * NS,
        gap: 6700,
        kibibyte: 40_960,
    };

    fn wire(&self, bytes: u64) -> Ps {
        (bytes * self.kibibyte).div_ceil(1024)
    }
}

/// What a step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The processor computes.
    Compute(Ps),
    /// Sends bytes to a rank.
    Send {
        /// To.
        to: usize,
        /// Bytes.
        bytes: u64,
        /// What the receive has to name as well.
        tag: u32,
    },
    /// Receives from a rank.
    Receive {
        /// From.
        from: usize,
        /// The tag of the send.
        tag: u32,
        /// What the card takes to process the message, if that is longer than its arrival.
        card: Ps,
    },
}

/// A step of a rank.
#[derive(Clone, Debug)]
struct Step {
    kind: Kind,
    /// Steps that wait for it.
    next: Vec<u32>,
    /// Steps that it waits for.
    waits: u32,
}

/// The steps of a rank.
#[derive(Clone, Debug, Default)]
pub struct Schedule {
    steps: Vec<Step>,
}

impl Schedule {
    /// Appends a step that begins when all of `after` have ended, and returns its number.
    ///
    /// # Panics
    ///
    /// If one of `after` is not there yet.
    pub fn step(&mut self, kind: Kind, after: &[u32]) -> u32 {
        let number = self.steps.len() as u32;
        for earlier in after {
            self.steps[*earlier as usize].next.push(number);
        }
        self.steps.push(Step {
            kind,
            next: Vec::new(),
            waits: after.len() as u32,
        });
        number
    }
}

#[derive(Debug)]
enum Event {
    Ready(usize, u32),
    Ended(usize, u32),
    /// The last byte of a message is with the receiver.
    Arrived {
        to: usize,
        from: usize,
        tag: u32,
        bytes: u64,
    },
}

#[derive(Clone, Default)]
struct Rank {
    processor: Ps,
    sending: Ps,
    receiving: Ps,
}

/// A schedule that never ends.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{steps} steps never end: a receive without its send, or steps that wait for each other")]
pub struct Deadlock {
    /// How many.
    pub steps: usize,
}

/// Runs one schedule per rank and returns when the last step of all ends.
///
/// # Errors
///
/// Steps that never begin.
pub fn run(model: &LogGops, mut schedules: Vec<Schedule>) -> Result<Ps, Deadlock> {
    let mut events = Events::default();
    let mut ranks = vec![Rank::default(); schedules.len()];
    let mut left = 0;
    for (rank, schedule) in schedules.iter().enumerate() {
        left += schedule.steps.len();
        for (number, step) in schedule.steps.iter().enumerate() {
            if step.waits == 0 {
                events.at(0, Event::Ready(rank, number as u32));
            }
        }
    }
    // Messages that wait for their receives, and receives that wait for their messages.
    let mut arrived: HashMap<(usize, usize, u32), Vec<u64>> = HashMap::new();
    let mut posted: HashMap<(usize, usize, u32), Vec<(u32, Ps)>> = HashMap::new();
    let mut end = 0;
    while let Some((now, event)) = events.pop() {
        match event {
            Event::Ready(rank, number) => {
                let own = &mut ranks[rank];
                match schedules[rank].steps[number as usize].kind {
                    Kind::Compute(time) => {
                        own.processor = own.processor.max(now) + time;
                        events.at(own.processor, Event::Ended(rank, number));
                    }
                    Kind::Send { to, bytes, tag } => {
                        own.processor = own.processor.max(now) + model.overhead;
                        events.at(own.processor, Event::Ended(rank, number));
                        let start = own.processor.max(own.sending);
                        let wire = model.wire(bytes);
                        own.sending = start + wire.max(model.gap);
                        let there = start + model.latency + wire;
                        events.at(
                            there,
                            Event::Arrived {
                                to,
                                from: rank,
                                tag,
                                bytes,
                            },
                        );
                    }
                    Kind::Receive { from, tag, card } => {
                        let key = (rank, from, tag);
                        match arrived.get_mut(&key).and_then(Vec::pop) {
                            Some(_) => {
                                own.processor = own.processor.max(now) + model.overhead;
                                events.at(own.processor, Event::Ended(rank, number));
                            }
                            None => posted.entry(key).or_default().push((number, card)),
                        }
                    }
                }
            }
            Event::Arrived {
                to,
                from,
                tag,
                bytes,
            } => {
                let key = (to, from, tag);
                let own = &mut ranks[to];
                let wire = model.wire(bytes);
                match posted.get_mut(&key).and_then(Vec::pop) {
                    Some((number, card)) => {
                        // Messages of several senders come one after the other.
                        own.receiving = now.max(own.receiving.max(now - wire) + wire.max(card));
                        own.processor = own.processor.max(own.receiving) + model.overhead;
                        events.at(own.processor, Event::Ended(to, number));
                    }
                    None => {
                        own.receiving = now.max(own.receiving + wire);
                        arrived.entry(key).or_default().push(bytes);
                    }
                }
            }
            Event::Ended(rank, number) => {
                end = end.max(now);
                left -= 1;
                let next = std::mem::take(&mut schedules[rank].steps[number as usize].next);
                for step in next {
                    let waiting = &mut schedules[rank].steps[step as usize];
                    waiting.waits -= 1;
                    if waiting.waits == 0 {
                        events.at(now, Event::Ready(rank, step));
                    }
                }
            }
        }
    }
    if left > 0 {
        return Err(Deadlock { steps: left });
    }
    Ok(end)
}

/// A two-dimensional Fourier transform of n × n complex numbers by rows and columns (section 5.4):
/// transform, exchange, transform, exchange.
#[derive(Clone, Copy, Debug)]
pub struct Fft2d {
    /// Ranks.
    pub ranks: usize,
    /// Time of a rank for its rows, once.
    pub transform: Ps,
    /// Bytes from each rank to each.
    pub bytes: u64,
    /// What the card takes for a message.
    pub card: Ps,
    /// What the processor takes to unpack a message.
    pub unpack: Ps,
}

impl Fft2d {
    /// The schedules of all ranks.
    pub fn schedules(&self) -> Vec<Schedule> {
        (0..self.ranks).map(|rank| self.schedule(rank)).collect()
    }

    fn schedule(&self, rank: usize) -> Schedule {
        let mut schedule = Schedule::default();
        let mut before: Vec<u32> = Vec::new();
        for tag in 0..2 {
            // Receives are posted before the computation: no message is unexpected.
            let receives: Vec<u32> = (1..self.ranks)
                .map(|distance| {
                    let from = (rank + self.ranks - distance) % self.ranks;
                    let card = self.card;
                    schedule.step(Kind::Receive { from, tag, card }, &before)
                })
                .collect();
            let transform = schedule.step(Kind::Compute(self.transform), &before);
            let mut all = vec![transform];
            for distance in 1..self.ranks {
                let to = (rank + distance) % self.ranks;
                let bytes = self.bytes;
                all.push(schedule.step(Kind::Send { to, bytes, tag }, &[transform]));
            }
            // The rank's own block is transposed as well.
            all.push(schedule.step(Kind::Compute(self.unpack), &[transform]));
            for receive in receives {
                if self.unpack > 0 {
                    all.push(schedule.step(Kind::Compute(self.unpack), &[receive]));
                } else {
                    all.push(receive);
                }
            }
            before = all;
        }
        schedule
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODEL: LogGops = LogGops {
        latency: 1000,
        overhead: 100,
        gap: 10,
        kibibyte: 1024,
    };

    fn receive(from: usize) -> Kind {
        Kind::Receive {
            from,
            tag: 0,
            card: 0,
        }
    }

    fn send(to: usize, bytes: u64) -> Kind {
        Kind::Send { to, bytes, tag: 0 }
    }

    #[test]
    fn a_ping_takes_two_overheads_the_latency_and_its_bytes() {
        let mut schedules = vec![Schedule::default(); 2];
        schedules[0].step(send(1, 500), &[]);
        schedules[1].step(receive(0), &[]);
        assert_eq!(run(&MODEL, schedules), Ok(100 + 1000 + 500 + 100));
    }

    #[test]
    fn a_link_carries_one_message_at_a_time_and_a_card_processes_one() {
        // Two messages from one sender: the second starts when the first has left.
        let mut schedules = vec![Schedule::default(); 2];
        for _ in 0..2 {
            schedules[0].step(send(1, 500), &[]);
            schedules[1].step(receive(0), &[]);
        }
        assert_eq!(run(&MODEL, schedules), Ok(100 + 500 + 1000 + 500 + 100));
        // From two senders: they arrive at once, and the second waits for the first, as long as the
        // card takes for it.
        for (card, end) in [(0, 100 + 1000 + 1000 + 100), (800, 100 + 1000 + 1600 + 100)] {
            let mut schedules = vec![Schedule::default(); 3];
            for from in [1, 2] {
                schedules[from].step(send(0, 500), &[]);
                schedules[0].step(Kind::Receive { from, tag: 0, card }, &[]);
            }
            assert_eq!(run(&MODEL, schedules), Ok(end));
        }
    }

    #[test]
    fn steps_wait_for_each_other() {
        let mut schedule = Schedule::default();
        let first = schedule.step(Kind::Compute(50), &[]);
        let second = schedule.step(Kind::Compute(60), &[]);
        schedule.step(Kind::Compute(1), &[first, second]);
        assert_eq!(run(&MODEL, vec![schedule]), Ok(111));
        let mut schedule = Schedule::default();
        schedule.step(receive(0), &[]);
        assert_eq!(run(&MODEL, vec![schedule]), Err(Deadlock { steps: 1 }));
    }

    #[test]
    fn a_transform_has_two_computations_and_two_exchanges() {
        let fft = Fft2d {
            ranks: 2,
            transform: 10_000,
            bytes: 500,
            card: 0,
            unpack: 0,
        };
        let exchange = 100 + 1000 + 500 + 100;
        assert_eq!(run(&MODEL, fft.schedules()), Ok(2 * (10_000 + exchange)));
        let slower = Fft2d {
            unpack: 3000,
            ..fft
        };
        let end = run(&MODEL, slower.schedules()).unwrap();
        // Of two blocks one is unpacked while the other arrives.
        assert!(end > 2 * (10_000 + exchange + 3000) && end <= 2 * (10_000 + exchange + 6000));
    }
}
