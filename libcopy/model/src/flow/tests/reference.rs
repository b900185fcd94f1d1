// SPDX-License-Identifier: MIT OR Apache-2.0

//! The same simulation without any shortcut: at each event, the rate of each running activity from
//! nothing, and the remaining work of each.

use crate::flow::{Activity, Resources};

/// When each activity ends. The input must be one that `simulate` takes.
pub fn ends(resources: &Resources, activities: &[Activity]) -> Vec<f64> {
    let count = activities.len();
    let mut ends = vec![f64::NAN; count];
    let mut ready = vec![f64::NAN; count];
    let mut left: Vec<f64> = activities.iter().map(|activity| activity.work).collect();
    let mut now = 0.0;
    loop {
        // What ends without work may let others go at the same time.
        loop {
            let mut is_same = true;
            for index in 0..count {
                let mut after = activities[index].after.iter();
                if ready[index].is_nan() && after.all(|&before| !ends[before].is_nan()) {
                    ready[index] = now + activities[index].latency;
                    is_same = false;
                }
                let is_ready = ready[index] <= now * (1.0 + 1e-11);
                if ends[index].is_nan() && is_ready && left[index] <= 0.0 {
                    ends[index] = now;
                    is_same = false;
                }
            }
            if is_same {
                break;
            }
        }
        let is_open = |index: &usize| ends[*index].is_nan() && !ready[*index].is_nan();
        let is_ready = |index: &usize| ready[*index] <= now * (1.0 + 1e-11);
        let open: Vec<usize> = (0..count).filter(is_open).collect();
        if open.is_empty() {
            return ends;
        }
        let running: Vec<usize> = open.iter().copied().filter(is_ready).collect();
        let rates = rates(resources, activities, &running);
        let waits = open.iter().filter(|index| !is_ready(index));
        let first = waits.map(|&index| ready[index]);
        let over = running
            .iter()
            .zip(&rates)
            .map(|(&i, rate)| now + left[i] / rate);
        let next = first.chain(over).fold(f64::INFINITY, f64::min).max(now);
        for (&index, rate) in running.iter().zip(&rates) {
            let is_over = now + left[index] / rate <= next * (1.0 + 1e-11);
            left[index] = if is_over {
                0.0
            } else {
                left[index] - rate * (next - now)
            };
        }
        now = next;
    }
}

/// Progressive filling, one saturated resource or one cap at a time.
fn rates(resources: &Resources, activities: &[Activity], running: &[usize]) -> Vec<f64> {
    let mut rates = vec![f64::NAN; running.len()];
    let weight = |index: usize, resource: usize| -> f64 {
        let uses = activities[index].uses.iter();
        uses.filter(|usage| usage.0 == resource)
            .map(|usage| usage.1)
            .sum()
    };
    while rates.iter().any(|rate| rate.is_nan()) {
        let mut lowest = (f64::INFINITY, Vec::new());
        for (resource, &capacity) in resources.capacities().iter().enumerate() {
            let (mut left, mut open) = (capacity, Vec::new());
            for (place, &index) in running.iter().enumerate() {
                let weight = weight(index, resource);
                if rates[place].is_nan() && weight > 0.0 {
                    open.push((place, weight));
                } else if weight > 0.0 {
                    left -= weight * rates[place];
                }
            }
            let level = left / open.iter().map(|&(_, weight)| weight).sum::<f64>();
            if level < lowest.0 && !open.is_empty() {
                lowest = (level, open.iter().map(|&(place, _)| place).collect());
            }
        }
        for (place, &index) in running.iter().enumerate() {
            let cap = activities[index].rate_cap.unwrap_or(f64::INFINITY);
            if rates[place].is_nan() && cap < lowest.0 {
                lowest = (cap, vec![place]);
            }
        }
        for place in lowest.1 {
            rates[place] = lowest.0;
        }
    }
    rates
}
