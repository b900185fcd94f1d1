// SPDX-License-Identifier: MIT OR Apache-2.0

//! The network: it loses nothing, and delivers a message's packets out of order if asked to.

use super::random::Random;

/// The order in which `packets` packets arrive. No packet is overtaken by one that was sent more
/// than `window` later. The first and the last packet stay where they are ("the network delivers
/// the header and the completion packets as the first and the last ones of a message", section
/// 2.1.2).
pub fn arrival_order(packets: u64, window: u64, seed: u64) -> Vec<u64> {
    let mut order: Vec<u64> = (0..packets).collect();
    if window == 0 || packets <= 3 {
        return order;
    }
    let mut random = Random::new(seed);
    let last = packets - 1;
    let mut keyed: Vec<(u64, u64)> = (1..last)
        .map(|packet| (packet + random.below(window + 1), packet))
        .collect();
    // Packets with equal keys change places as well, or not: as another number says.
    keyed.sort_by_key(|(key, packet)| (*key, (packet ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15)));
    for (at, (_, packet)) in (1..).zip(keyed) {
        order[at] = packet;
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_lost_and_nothing_overtaken_by_more_than_the_window() {
        for window in [1, 7, 100] {
            for seed in 0..20 {
                let order = arrival_order(200, window, seed);
                let mut sorted = order.clone();
                sorted.sort_unstable();
                assert_eq!(sorted, (0..200).collect::<Vec<_>>());
                assert_eq!((order[0], order[199]), (0, 199));
                for (i, packet) in order.iter().enumerate() {
                    let latest = order[..i].iter().max().unwrap_or(&0);
                    assert!(latest.saturating_sub(*packet) <= window);
                }
                assert_eq!(order, arrival_order(200, window, seed));
            }
            assert_ne!(arrival_order(200, window, 1), arrival_order(200, 0, 1));
            assert_ne!(arrival_order(200, window, 1), arrival_order(200, window, 2));
        }
    }
}
