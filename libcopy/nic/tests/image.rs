// SPDX-License-Identifier: MIT OR Apache-2.0

//! What a plan counts as NIC memory is what the card gets.

use libcopy_datatype::{Datatype, Layout};
use libcopy_nic::card::Strategy;
use libcopy_nic::plan::{CHECKPOINT, Options, Verdict, plan};
use libcopy_nic::run::NativeHandlers;
use libcopy_nic_handlers::Segment;

#[test]
fn a_plan_counts_the_image_and_the_states_that_exist() {
    assert_eq!(size_of::<Segment>() as u64, CHECKPOINT);
    for expression in [
        "double",
        "contiguous(100000, double)",
        "vector(100, 3, 7, double)",
        "indexed_block(3, [0, 100, 50, 400, 900, 201, 800], double)",
        "indexed([7, 1, 9], [0, 50, 10], double)",
        "struct([1, 1], [0, 90000], [vector(50, 3, 5, double), vector(900, 5, 9, int)])",
        "hvector(40, 1, 5000, vector(20, 3, 7, double))",
    ] {
        let datatype: Datatype = expression.parse().unwrap();
        let layout = Layout::new(&datatype, 1).unwrap();
        let image = layout.image().unwrap();
        let bytes = size_of_val(image.as_slice()) as u64;
        assert_eq!(layout.image_bytes(), bytes, "{expression}");
        for strategy in Strategy::ALL {
            let options = Options {
                strategy: Some(strategy),
                ..Options::default()
            };
            let Verdict::Offload(plan) = plan(&layout, &options) else {
                assert_eq!(strategy, Strategy::Specialized, "{expression}");
                continue;
            };
            assert_eq!(plan.description, bytes);
            let interval = plan.interval.map_or(1, |interval| interval.bytes) as u32;
            let vhpus = options.parameters.hpus;
            let native = NativeHandlers::new(image.clone(), strategy, vhpus, interval);
            // RW-CP has the master copies besides.
            let masters = match strategy {
                Strategy::RwCp => native.masters().len(),
                _ => 0,
            };
            assert_eq!(
                plan.states,
                (native.states() + masters) as u64,
                "{strategy}"
            );
            assert_eq!(plan.nic_bytes, bytes + plan.states * CHECKPOINT);
        }
    }
}
