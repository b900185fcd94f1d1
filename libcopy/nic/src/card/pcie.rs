// SPDX-License-Identifier: MIT OR Apache-2.0

//! The DMA queue and the PCIe link behind it: first in, first out.
//!
//! A request stays in the queue until it is in host memory, so that its depth is the rate of
//! requests times their latency as long as the link keeps up: that is how the paper explains its
//! figure 15.

use super::parameters::{Parameters, Ps};
use std::collections::VecDeque;

/// The queue of DMA requests.
#[derive(Debug)]
pub struct DmaQueue {
    parameters: Parameters,
    /// When each request in the queue will be in host memory.
    leaving: VecDeque<Ps>,
    free_at: Ps,
    requests: u64,
    bytes: u64,
    deepest: usize,
    /// Time and depth after each request, if that is recorded.
    history: Option<Vec<(Ps, usize)>>,
}

impl DmaQueue {
    /// An empty queue; `is_recorded` keeps its depth over time.
    pub fn new(parameters: &Parameters, is_recorded: bool) -> DmaQueue {
        DmaQueue {
            parameters: *parameters,
            leaving: VecDeque::new(),
            free_at: 0,
            requests: 0,
            bytes: 0,
            deepest: 0,
            history: is_recorded.then(Vec::new),
        }
    }

    /// A write of `bytes` bytes, issued at `now`, which must not be before the last one. Returns
    /// when the link has taken it; in host memory it is `pcie_write` later.
    pub fn write(&mut self, now: Ps, bytes: u64) -> Ps {
        while self.leaving.front().is_some_and(|time| *time <= now) {
            self.leaving.pop_front();
        }
        let end = self.free_at.max(now) + self.parameters.pcie(bytes);
        self.free_at = end;
        self.leaving.push_back(end + self.parameters.pcie_write);
        self.requests += 1;
        self.bytes += bytes;
        self.deepest = self.deepest.max(self.leaving.len());
        if let Some(history) = &mut self.history {
            history.push((now, self.leaving.len()));
        }
        end
    }

    /// All requests.
    pub fn requests(&self) -> u64 {
        self.requests
    }

    /// All payload bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The most requests that were in the queue at once.
    pub fn deepest(&self) -> usize {
        self.deepest
    }

    /// Time and depth after each request, in order; empty unless recorded.
    pub fn into_history(self) -> Vec<(Ps, usize)> {
        self.history.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_leave_one_after_the_other() {
        let parameters = Parameters::PAPER;
        let mut queue = DmaQueue::new(&parameters, true);
        let each = parameters.pcie(64);
        assert_eq!(queue.write(0, 64), each);
        assert_eq!(queue.write(1, 64), 2 * each);
        assert_eq!(queue.write(each, 64), 3 * each);
        // The first one is in host memory, the second and the third are on their way.
        let later = each + parameters.pcie_write;
        assert_eq!(queue.write(later, 64), later + each);
        let much_later = 10 * later;
        assert_eq!(queue.write(much_later, 64), much_later + each);
        assert_eq!(
            (queue.requests(), queue.bytes(), queue.deepest()),
            (5, 320, 3)
        );
        let depths: Vec<usize> = queue.into_history().iter().map(|(_, d)| *d).collect();
        assert_eq!(depths, [1, 2, 3, 3, 1]);
    }
}
