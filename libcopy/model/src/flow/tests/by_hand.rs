// SPDX-License-Identifier: MIT OR Apache-2.0

//! Cases that were computed by hand.

use crate::flow::simulate::simulate_watched;
use crate::flow::{Activity, FlowError, Outcome, Resources, simulate};

/// Resources with these capacities.
fn resources(capacities: &[f64]) -> Resources {
    let mut resources = Resources::new();
    for (index, &capacity) in capacities.iter().enumerate() {
        resources.add(format!("r{index}"), capacity);
    }
    resources
}

/// Work on resources, each with the weight 1.
fn flow(work: f64, on: &[usize]) -> Activity {
    Activity {
        work,
        uses: on.iter().map(|&resource| (resource, 1.0)).collect(),
        ..Activity::default()
    }
}

fn run(capacities: &[f64], activities: &[Activity]) -> Outcome {
    simulate(&resources(capacities), activities).expect("this can be simulated")
}

#[track_caller]
fn assert_near(found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len(), "{found:?}, not {expected:?}");
    for (a, b) in found.iter().zip(expected) {
        assert!(
            (a - b).abs() <= 1e-12 * b.abs(),
            "{found:?}, not {expected:?}"
        );
    }
}

#[test]
fn flows_of_different_sizes_share_a_link() {
    // 4 at 3 bytes/s until 4 s (12 bytes each); 3 at 4 until 7 s (24); 2 at 6 until 8 s (30); one
    // at 12 until 10 s.
    let flows = [12.0, 24.0, 30.0, 54.0].map(|work| flow(work, &[0]));
    let outcome = run(&[12.0], &flows);
    assert_near(&outcome.ends, &[4.0, 7.0, 8.0, 10.0]);
    assert_near(&[outcome.makespan], &[10.0]);
    assert_near(&outcome.bytes, &[120.0]);
    assert_near(&outcome.utilisation(&resources(&[12.0])), &[1.0]);
}

#[test]
fn a_long_flow_gets_what_its_narrowest_link_leaves() {
    // Link 0 (10) has the long flow and one more, link 1 (6) the long flow and two. The three on
    // link 1 get 2 each, so the other one on link 0 gets 8.
    let flows = [
        flow(20.0, &[0, 1]),
        flow(80.0, &[0]),
        flow(20.0, &[1]),
        flow(20.0, &[1]),
    ];
    let outcome = run(&[10.0, 6.0], &flows);
    assert_near(&outcome.ends, &[10.0; 4]);
    assert_near(&outcome.bytes, &[100.0, 60.0]);
    assert_near(&outcome.utilisation(&resources(&[10.0, 6.0])), &[1.0, 1.0]);
}

#[test]
fn what_a_flow_leaves_is_used_at_once() {
    // As above, but the flow on link 0 alone has 40 bytes and ends at 5 s. That helps nobody, as
    // the long flow is held up by link 1.
    let flows = [
        flow(20.0, &[0, 1]),
        flow(40.0, &[0]),
        flow(20.0, &[1]),
        flow(10.0, &[1]),
    ];
    // The last has its 10 bytes at 5 s as well; then the two others on link 1 get 3 each, and have
    // 10 bytes left each.
    let outcome = run(&[10.0, 6.0], &flows);
    let end = 5.0 + 10.0 / 3.0;
    assert_near(&outcome.ends, &[end, 5.0, end, 5.0]);
}

#[test]
fn weights_count_on_the_resource_and_not_for_the_share() {
    // A copy reads and writes the same memory: weight 2. Rates are equal: 3 x = 12.
    let copy = Activity {
        uses: vec![(0, 2.0)],
        ..flow(40.0, &[])
    };
    let outcome = run(&[12.0], &[copy.clone(), flow(20.0, &[0])]);
    // 4 bytes/s each until 5 s, then the copy has 20 bytes left, at 6 bytes/s.
    assert_near(&outcome.ends, &[5.0 + 20.0 / 6.0, 5.0]);
    assert_near(&outcome.bytes, &[100.0]);
    // The weights of a resource named twice are added.
    let twice = Activity {
        uses: vec![(0, 1.5), (0, 0.5)],
        ..copy
    };
    assert_eq!(run(&[12.0], &[twice, flow(20.0, &[0])]), outcome);
}

#[test]
fn weights_that_differ_much() {
    let on = |uses: &[(usize, f64)], work| Activity {
        work,
        uses: uses.to_vec(),
        ..Activity::default()
    };
    // Resource 1 holds the heavy one up at 1e-3 bytes/s, which takes 1e6 of resource 0. The two
    // light ones share the rest. Their weights vanish beside the heavy one's: 1e9 + 2e-9 is 1e9.
    let outcome = run(
        &[2e6, 1e-3, 1e18],
        &[
            on(&[(0, 1e-9)], 5e14),
            on(&[(0, 1e9), (1, 1.0)], 1e-3),
            on(&[(0, 1e-9), (2, 1.0)], 5e14),
        ],
    );
    assert_near(&outcome.ends, &[1.0; 3]);
}

#[test]
fn a_cap_leaves_the_rest_to_the_others() {
    let capped = Activity {
        rate_cap: Some(2.0),
        ..flow(20.0, &[0])
    };
    let outcome = run(
        &[12.0],
        &[capped.clone(), flow(50.0, &[0]), flow(50.0, &[0])],
    );
    assert_near(&outcome.ends, &[10.0; 3]);
    // A cap alone is enough.
    let alone = Activity {
        uses: Vec::new(),
        ..capped
    };
    assert_near(&run(&[], &[alone]).ends, &[10.0]);
}

#[test]
fn latency_comes_before_the_first_byte() {
    let late = Activity {
        latency: 2.0,
        ..flow(10.0, &[0])
    };
    // The first has the link for itself for 2 s (20 bytes); then both get 5 bytes/s: the late one
    // ends at 4 s, and the first has 10 bytes left, at 10.
    let outcome = run(&[10.0], &[flow(40.0, &[0]), late]);
    assert_near(&outcome.starts, &[0.0, 2.0]);
    assert_near(&outcome.ends, &[5.0, 4.0]);
}

#[test]
fn activities_wait_for_others() {
    let after = |work, latency, after: &[usize]| Activity {
        latency,
        after: after.to_vec(),
        ..flow(work, &[0])
    };
    let activities = [
        // A barrier: no work and no resource. It ends with the later of its two, and its latency.
        Activity {
            latency: 0.5,
            after: vec![1, 2],
            ..Activity::default()
        },
        flow(10.0, &[0]),
        flow(20.0, &[0]),
        after(10.0, 0.0, &[0]),
        after(0.0, 1.0, &[3]),
        // Waiting twice for the same is waiting for it.
        after(5.0, 0.0, &[4, 4]),
    ];
    // 1 and 2 at 5 bytes/s until 2 s, then 2 at 10 until 3 s.
    let outcome = run(&[10.0], &activities);
    assert_near(&outcome.ends, &[3.5, 2.0, 3.0, 4.5, 5.5, 6.0]);
    assert_near(&outcome.starts[3..], &[3.5, 5.5, 5.5]);
    assert_near(&[outcome.makespan], &[6.0]);
}

#[test]
fn a_pipeline_of_chunks() {
    // A chain of three copies of four chunks, 1 s each: chunk c of step s after chunk c of step s-1
    // and chunk c-1 of step s.
    let mut activities = Vec::new();
    for step in 0..3 {
        for chunk in 0..4 {
            let mut after = Vec::new();
            if step > 0 {
                after.push((step - 1) * 4 + chunk);
            }
            if chunk > 0 {
                after.push(step * 4 + chunk - 1);
            }
            activities.push(Activity {
                after,
                ..flow(7.0, &[step])
            });
        }
    }
    let outcome = run(&[7.0; 3], &activities);
    for (index, &end) in outcome.ends.iter().enumerate() {
        assert_near(&[end], &[(index / 4 + index % 4 + 1) as f64]);
    }
}

#[test]
fn two_events_at_one_time() {
    // 0.1 + 0.2 is not quite 0.3: a flow that ends then and one that starts then are one event.
    let later = |latency, after: &[usize]| Activity {
        latency,
        after: after.to_vec(),
        ..flow(1.0, &[0])
    };
    let pause = Activity {
        latency: 0.1,
        ..Activity::default()
    };
    let activities = [flow(3.0, &[0]), pause, later(0.2, &[1]), later(0.0, &[0])];
    let mut times = Vec::new();
    let outcome = simulate_watched(&resources(&[10.0]), &activities, |now, _| times.push(now));
    assert_near(&outcome.unwrap().ends, &[0.3, 0.1, 0.5, 0.5]);
    assert_near(&times, &[0.0, 0.1, 0.3, 0.5]);
}

#[test]
fn nothing_takes_no_time() {
    assert_eq!(run(&[], &[]), Outcome::default());
    let outcome = run(&[1.0], &[]);
    assert_eq!(outcome.utilisation(&resources(&[1.0])), [0.0]);
    assert_near(&run(&[], &[Activity::default()]).ends, &[0.0]);
}

fn refused(capacities: &[f64], activities: &[Activity]) -> FlowError {
    simulate(&resources(capacities), activities).expect_err("this cannot be simulated")
}

#[test]
fn a_circle_is_named() {
    let after = |after: &[usize]| Activity {
        after: after.to_vec(),
        ..flow(1.0, &[0])
    };
    // 0 only waits for the circle of 2 and 3, and 1 is before it.
    let activities = [after(&[3]), after(&[]), after(&[1, 3]), after(&[2])];
    let FlowError::Cycle { activity } = refused(&[1.0], &activities) else {
        panic!("no circle was found");
    };
    assert!([2, 3].contains(&activity), "{activity}");
    assert_eq!(
        refused(&[1.0], &[after(&[0])]),
        FlowError::Cycle { activity: 0 }
    );
}

#[test]
fn values_out_of_range_are_named() {
    let good = || flow(1.0, &[0]);
    for value in [f64::NAN, f64::INFINITY, -1.0] {
        let work = refused(&[1.0], &[good(), flow(value, &[0])]);
        assert!(matches!(work, FlowError::Work { activity: 1, .. }));
        let latency = Activity {
            latency: value,
            ..good()
        };
        let latency = refused(&[1.0], &[latency]);
        assert!(matches!(latency, FlowError::Latency { activity: 0, .. }));
    }
    for value in [f64::NAN, f64::INFINITY, -1.0, 0.0] {
        let capacity = refused(&[1.0, value], &[]);
        assert!(matches!(&capacity, FlowError::Capacity { name, .. } if name == "r1"));
        let cap = Activity {
            rate_cap: Some(value),
            ..good()
        };
        let cap = refused(&[1.0], &[cap]);
        assert!(matches!(cap, FlowError::RateCap { activity: 0, .. }));
        let weight = Activity {
            uses: vec![(0, value)],
            ..good()
        };
        let weight = refused(&[1.0], &[weight]);
        assert!(matches!(&weight, FlowError::Weight { name, .. } if name == "r0"));
    }
}

#[test]
fn what_does_not_exist_is_named() {
    assert_eq!(
        refused(&[1.0], &[flow(1.0, &[1])]).to_string(),
        "activity 0 uses resource 1, but there are only 1"
    );
    let after = Activity {
        after: vec![7],
        ..flow(1.0, &[0])
    };
    assert_eq!(
        refused(&[1.0], &[after]).to_string(),
        "activity 0 comes after activity 7, but there are only 1"
    );
    assert_eq!(
        refused(&[1.0], &[flow(2.0, &[])]),
        FlowError::Unlimited {
            activity: 0,
            work: 2.0
        }
    );
}

#[test]
fn times_too_large_for_a_number_are_an_error() {
    let flows = [flow(1.0, &[1]), flow(1e300, &[0])];
    assert_eq!(
        refused(&[1e-300, 1.0], &flows),
        FlowError::Endless { activity: 1 }
    );
}
