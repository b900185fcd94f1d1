// SPDX-License-Identifier: MIT OR Apache-2.0

//! Classes: activities that use the same resources with the same weights and the same cap.

use std::collections::HashMap;
use std::ops::Range;

use super::activities::Activity;

/// A resource that a class uses, and how much of it per byte.
#[derive(Clone, Copy, Debug)]
pub(super) struct Use {
    pub resource: u32,
    pub weight: f64,
}

/// The classes of all activities, numbered in the order of their first activities.
#[derive(Debug)]
pub(super) struct Classes {
    /// The class of each activity.
    pub of: Vec<u32>,
    /// The cap on the rate of each class; infinite where there is none.
    caps: Vec<f64>,
    /// Where the uses of each class begin, and the end of the last.
    first: Vec<u32>,
    /// The uses of all classes.
    uses: Vec<Use>,
}

impl Classes {
    pub fn new(activities: &[Activity]) -> Classes {
        let mut classes = Classes {
            of: Vec::with_capacity(activities.len()),
            caps: Vec::new(),
            first: vec![0],
            uses: Vec::new(),
        };
        // Found by the bits of cap and weights. The map is only asked, so its order has no effect.
        let mut found: HashMap<(u64, Vec<(u32, u64)>), u32> = HashMap::new();
        for activity in activities {
            let uses = merged(&activity.uses);
            let cap = activity.rate_cap.unwrap_or(f64::INFINITY);
            let bits = uses.iter().map(|&(r, w)| (r, w.to_bits())).collect();
            let next = classes.caps.len() as u32;
            let class = *found.entry((cap.to_bits(), bits)).or_insert(next);
            if class == next {
                classes.caps.push(cap);
                let uses = uses.into_iter();
                let uses = uses.map(|(resource, weight)| Use { resource, weight });
                classes.uses.extend(uses);
                classes.first.push(classes.uses.len() as u32);
            }
            classes.of.push(class);
        }
        classes
    }

    pub fn len(&self) -> usize {
        self.caps.len()
    }

    pub fn cap(&self, class: u32) -> f64 {
        self.caps[class as usize]
    }

    /// The uses of all classes, class by class.
    pub fn all_uses(&self) -> &[Use] {
        &self.uses
    }

    /// Where the uses of a class are among all.
    pub fn range(&self, class: u32) -> Range<usize> {
        self.first[class as usize] as usize..self.first[class as usize + 1] as usize
    }

    pub fn uses(&self, class: u32) -> &[Use] {
        &self.uses[self.range(class)]
    }
}

/// The uses in the order of the resources, each resource once.
fn merged(uses: &[(usize, f64)]) -> Vec<(u32, f64)> {
    let mut sorted: Vec<_> = uses.iter().map(|&(r, weight)| (r as u32, weight)).collect();
    // By weight too: a sum must not depend on the order in which its terms were given.
    sorted.sort_unstable_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
    sorted.dedup_by(|next, kept| {
        let is_same = next.0 == kept.0;
        if is_same {
            kept.1 += next.1;
        }
        is_same
    });
    sorted
}
