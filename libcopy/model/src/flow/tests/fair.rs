// SPDX-License-Identifier: MIT OR Apache-2.0

//! What makes rates max-min fair.

use crate::flow::classes::Classes;
use crate::flow::sharing::Sharing;

pub fn is_near(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-8 * a.abs().max(b.abs())
}

/// No resource is used above its capacity, and every running class is held up: by its cap, or by a
/// saturated resource on which nobody has a higher rate. Rates that do this are max-min fair, and
/// no others.
pub fn assert_fair(capacities: &[f64], classes: &Classes, sharing: &Sharing) {
    let mut used = vec![0.0; capacities.len()];
    let mut highest = vec![0.0_f64; capacities.len()];
    for class in 0..classes.len() as u32 {
        let (rate, running) = (sharing.rate(class), sharing.running(class));
        for usage in classes.uses(class) {
            let resource = usage.resource as usize;
            used[resource] += f64::from(running) * rate * usage.weight;
            highest[resource] = highest[resource].max(rate);
        }
    }
    for (resource, (used, capacity)) in used.iter().zip(capacities).enumerate() {
        let is_within = *used <= capacity * (1.0 + 1e-9);
        assert!(is_within, "resource {resource}: {used} of {capacity}");
    }
    for class in 0..classes.len() as u32 {
        let rate = sharing.rate(class);
        assert_eq!(rate > 0.0, sharing.running(class) > 0, "class {class}");
        let is_held_up = classes.uses(class).iter().any(|usage| {
            let resource = usage.resource as usize;
            is_near(used[resource], capacities[resource]) && is_near(highest[resource], rate)
        });
        assert!(
            rate <= 0.0 || is_near(rate, classes.cap(class)) || is_held_up,
            "nothing holds up class {class}"
        );
    }
}
