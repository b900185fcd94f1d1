// SPDX-License-Identifier: MIT OR Apache-2.0

//! Random cases.

use proptest::prelude::*;

use super::fair::{assert_fair, is_near};
use super::reference;
use crate::flow::classes::Classes;
use crate::flow::simulate::simulate_watched;
use crate::flow::{Activity, Resources, simulate};

/// A case: capacities and activities.
type Case = (Vec<f64>, Vec<Activity>);

fn resources(capacities: &[f64]) -> Resources {
    let mut resources = Resources::new();
    for (index, &capacity) in capacities.iter().enumerate() {
        resources.add(format!("r{index}"), capacity);
    }
    resources
}

/// Few different values, so that there are classes, and events at the same time; and any.
fn amount() -> impl Strategy<Value = f64> {
    prop_oneof![
        3 => prop::sample::select(vec![1.0, 2.0, 3.0, 8.0]),
        1 => 0.01..20.0,
    ]
}

fn activity(index: usize, resources: usize) -> impl Strategy<Value = Activity> {
    let usage = (0..resources, prop_oneof![4 => Just(1.0), 1 => amount()]);
    (
        prop_oneof![1 => Just(0.0), 9 => amount()],
        prop_oneof![2 => Just(0.0), 1 => amount()],
        prop_oneof![4 => Just(None), 1 => amount().prop_map(Some)],
        prop::collection::vec(usage, 1..5),
        prop::collection::vec(0..index.max(1), 0..3),
    )
        .prop_map(move |(work, latency, rate_cap, uses, after)| Activity {
            work,
            latency,
            rate_cap,
            uses,
            after: if index == 0 { Vec::new() } else { after },
        })
}

fn case() -> impl Strategy<Value = Case> {
    (1_usize..12, 1_usize..40).prop_flat_map(|(resources, activities)| {
        (
            prop::collection::vec(amount(), resources),
            (0..activities)
                .map(|index| activity(index, resources))
                .collect::<Vec<_>>(),
        )
    })
}

proptest! {
    #[test]
    fn ends_are_those_of_the_reference((capacities, activities) in case()) {
        let resources = resources(&capacities);
        let outcome = simulate(&resources, &activities).unwrap();
        let expected = reference::ends(&resources, &activities);
        for (index, (&found, &expected)) in outcome.ends.iter().zip(&expected).enumerate() {
            prop_assert!(
                is_near(found, expected),
                "activity {index} ends at {found}, not {expected}"
            );
        }
        prop_assert_eq!(&simulate(&resources, &activities).unwrap(), &outcome);
    }

    #[test]
    fn rates_are_max_min_fair((capacities, activities) in case()) {
        let classes = Classes::new(&activities);
        let mut times = Vec::new();
        simulate_watched(&resources(&capacities), &activities, |now, sharing| {
            assert_fair(&capacities, &classes, sharing);
            times.push(now);
        })
        .unwrap();
        prop_assert!(times.is_sorted());
    }

    /// The order in which activities, their uses and their predecessors are given changes nothing.
    #[test]
    fn the_order_of_the_input_is_free(
        (capacities, activities) in case(),
        keys in prop::collection::vec(any::<u32>(), 40),
    ) {
        let resources = resources(&capacities);
        let mut order: Vec<usize> = (0..activities.len()).collect();
        order.sort_by_key(|&index| keys[index]);
        let mut places = vec![0; order.len()];
        for (place, &index) in order.iter().enumerate() {
            places[index] = place;
        }
        let moved: Vec<Activity> = order
            .iter()
            .map(|&index| {
                let mut activity = activities[index].clone();
                activity.uses.reverse();
                activity.after.reverse();
                for after in &mut activity.after {
                    *after = places[*after];
                }
                activity
            })
            .collect();
        let outcome = simulate(&resources, &activities).unwrap();
        let other = simulate(&resources, &moved).unwrap();
        for (index, &end) in outcome.ends.iter().enumerate() {
            let found = other.ends[places[index]];
            prop_assert!(is_near(found, end), "activity {index} ends at {found}, not {end}");
        }
        prop_assert!(is_near(other.makespan, outcome.makespan));
    }
}
