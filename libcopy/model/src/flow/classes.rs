// SPDX-License-Identifier: MIT OR Apache-2.0

//! Classes: activities that use the same resources with the same weights and the same cap.

use std::collections::HashMap;
use std::ops::Range;

use super::activities::Activity;

/// The classes of all activities, numbered in the order of their first activities.
#[derive(Debug)]
pub(super) struct Classes {
    /// The class of each activity.
    pub of: Vec<u32>,
    /// The cap on the rate of each class; infinite where there is none.
    caps: Vec<f64>,
    /// Where the uses of each class begin in the two lists below, and the end of the last.
    first: Vec<u32>,
    /// The resource of each use.
    resources: Vec<u32>,
    /// The weight of each use.
    weights: Vec<f64>,
}

impl Classes {
    pub fn new(activities: &[Activity]) -> Classes {
        let mut classes = Classes {
            of: Vec::with_capacity(activities.len()),
            caps: Vec::new(),
            first: vec![0],
            resources: Vec::new(),
            weights: Vec::new(),
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
                for (resource, weight) in uses {
                    classes.resources.push(resource);
                    classes.weights.push(weight);
                }
                classes.first.push(classes.resources.len() as u32);
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

    /// How many uses all classes have.
    pub fn uses_len(&self) -> usize {
        self.resources.len()
    }

    /// The uses of a class, for [`Classes::resource`] and [`Classes::weight`].
    pub fn uses(&self, class: u32) -> Range<u32> {
        self.first[class as usize]..self.first[class as usize + 1]
    }

    pub fn resource(&self, usage: u32) -> usize {
        self.resources[usage as usize] as usize
    }

    pub fn weight(&self, usage: u32) -> f64 {
        self.weights[usage as usize]
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
