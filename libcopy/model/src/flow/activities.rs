// SPDX-License-Identifier: MIT OR Apache-2.0

//! What is simulated, and what comes out.

use super::error::FlowError;

/// What activities share: memory controllers, links, caches, cores.
#[derive(Clone, Debug, Default)]
pub struct Resources {
    names: Vec<String>,
    capacities: Vec<f64>,
}

impl Resources {
    /// None.
    pub fn new() -> Resources {
        Resources::default()
    }

    /// Adds one with a capacity in bytes per second, and returns its index.
    pub fn add(&mut self, name: impl Into<String>, capacity: f64) -> usize {
        self.names.push(name.into());
        self.capacities.push(capacity);
        self.names.len() - 1
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// The names, by index.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The capacities in bytes per second, by index.
    pub fn capacities(&self) -> &[f64] {
        &self.capacities
    }
}

/// Something that moves bytes, for example the copy of a chunk.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Activity {
    /// Bytes to move. One without work ends as soon as its latency is over.
    pub work: f64,
    /// Seconds between the end of all that it comes after and its first byte.
    pub latency: f64,
    /// Bytes per second that it never exceeds.
    pub rate_cap: Option<f64>,
    /// The indices of the resources that it uses, each with a weight: at a rate of x bytes/s it
    /// takes weight · x of the resource. The weights of a resource named twice are added.
    pub uses: Vec<(usize, f64)>,
    /// The indices of the activities that must have ended before its latency begins.
    pub after: Vec<usize>,
}

/// The times that were computed, in seconds from the beginning.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// When each activity moved its first byte (after its latency).
    pub starts: Vec<f64>,
    /// When each activity ended.
    pub ends: Vec<f64>,
    /// When the last activity ended; 0 if there is none.
    pub makespan: f64,
    /// Bytes that went through each resource: work times weight of all that used it.
    pub bytes: Vec<f64>,
}

impl Outcome {
    /// Which part of what it could have moved until the end each resource has moved, from 0 to 1.
    pub fn utilisation(&self, resources: &Resources) -> Vec<f64> {
        let possible = resources.capacities().iter();
        let possible = possible.map(|capacity| capacity * self.makespan);
        let parts = self.bytes.iter().zip(possible);
        parts
            .map(|(bytes, most)| if most > 0.0 { bytes / most } else { 0.0 })
            .collect()
    }
}

fn is_positive(value: f64) -> bool {
    value.is_finite() && value > 0.0
}

fn is_amount(value: f64) -> bool {
    value.is_finite() && value >= 0.0
}

/// Checks all values and indices, but not the order of the activities.
pub(super) fn check(resources: &Resources, activities: &[Activity]) -> Result<(), FlowError> {
    for (name, &value) in resources.names.iter().zip(&resources.capacities) {
        if !is_positive(value) {
            let name = name.clone();
            return Err(FlowError::Capacity { name, value });
        }
    }
    for (index, activity) in activities.iter().enumerate() {
        check_activity(resources, activities.len(), index, activity)?;
    }
    Ok(())
}

fn check_activity(
    resources: &Resources,
    activities: usize,
    activity: usize,
    given: &Activity,
) -> Result<(), FlowError> {
    if !is_amount(given.work) {
        let value = given.work;
        return Err(FlowError::Work { activity, value });
    }
    if !is_amount(given.latency) {
        let value = given.latency;
        return Err(FlowError::Latency { activity, value });
    }
    if let Some(value) = given.rate_cap.filter(|&cap| !is_positive(cap)) {
        return Err(FlowError::RateCap { activity, value });
    }
    for &(resource, value) in &given.uses {
        let Some(name) = resources.names.get(resource) else {
            return Err(FlowError::UnknownResource {
                activity,
                resource,
                count: resources.len(),
            });
        };
        if !is_positive(value) {
            let name = name.clone();
            return Err(FlowError::Weight {
                activity,
                name,
                value,
            });
        }
    }
    if let Some(&after) = given.after.iter().find(|&&after| after >= activities) {
        return Err(FlowError::UnknownActivity {
            activity,
            after,
            count: activities,
        });
    }
    if given.work > 0.0 && given.uses.is_empty() && given.rate_cap.is_none() {
        let work = given.work;
        return Err(FlowError::Unlimited { activity, work });
    }
    Ok(())
}
