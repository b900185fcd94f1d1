// SPDX-License-Identifier: MIT OR Apache-2.0

//! The model's tables are measured (with the stand-in driver: the times say nothing), kept and
//! found again.

mod common;
#[path = "common/cuda.rs"]
#[allow(dead_code)]
mod cuda;
#[path = "../../datatype/tests/datatype/generate.rs"]
#[allow(dead_code)]
mod generate;
#[path = "../../datatype/tests/datatype/oracle.rs"]
#[allow(dead_code)]
mod oracle;

use std::time::Duration;

use cuda::{Cuda, driver};
use libcopy_gpu::{
    Ask, Device, Effort, Method, Origin, Profile, grid_layout, measure, profile_path,
};

#[test]
fn a_profile_is_measured_kept_and_found_again() {
    Cuda::start();
    let cache = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("gpu-profiles");
    let _ = std::fs::remove_dir_all(&cache);
    // SAFETY: the only test of this program that reads the environment.
    unsafe { std::env::set_var("XDG_CACHE_HOME", &cache) };
    let device = &Device::all(driver()).unwrap()[0];
    let gpu = device.uuid.to_string();
    assert!(Profile::saved(&gpu, 12_000).is_none());
    let mut shares = Vec::new();
    let profile = measure(
        driver(),
        device,
        Effort::for_device(device),
        &mut |share, _| shares.push(share),
    )
    .unwrap();
    assert_eq!(profile.origin, Origin::Measured);
    assert!(shares.is_sorted() && shares.len() > 200, "{}", shares.len());
    assert_eq!(shares.last(), Some(&1.0));
    for (name, numbers) in profile.tables() {
        assert!(numbers.iter().all(|n| n.is_finite() && *n > 0.0), "{name}");
    }
    let path = profile.save().unwrap();
    assert_eq!(Some(&path), profile_path(&gpu, 12_000).as_ref());
    assert!(path.starts_with(&cache));
    let saved = Profile::saved(&gpu, 12_000).unwrap();
    assert_eq!(saved.to_text(), profile.to_text());
    // Another driver's is not taken.
    assert!(Profile::saved(&gpu, 12_010).is_none());
    let found = Profile::of(driver(), device).unwrap();
    assert_eq!(found.origin, Origin::Measured);
    let ask = Ask {
        bytes: 1000,
        block: 8,
        is_aware: false,
        has_peer: false,
        is_regular: true,
    };
    assert!([Method::OneShot, Method::Staged].contains(&found.choose(&ask)));

    // Without one, or with a damaged one, the built-in table.
    std::fs::write(&path, &profile.to_text()[..500]).unwrap();
    assert!(Profile::saved(&gpu, 12_000).is_none());
    let other = &Device::all(driver()).unwrap()[1];
    assert_eq!(
        Profile::of(driver(), other).unwrap().origin,
        Origin::Assumed
    );
}

#[test]
fn no_time_means_extrapolated_tables() {
    Cuda::start();
    let device = &Device::all(driver()).unwrap()[0];
    let effort = Effort {
        budget: Duration::ZERO,
        ..Effort::for_device(device)
    };
    let profile = measure(driver(), device, effort, &mut |_, _| ()).unwrap();
    for (name, numbers) in profile.tables() {
        assert!(numbers.iter().all(|n| n.is_finite() && *n > 0.0), "{name}");
    }
}

#[test]
fn layouts_of_the_tables_have_their_bytes_within_the_span() {
    for row in 0..9 {
        for column in 0..9 {
            let bytes = libcopy_gpu::Grid::bytes(row);
            for span in [1 << 12, 1 << 20, 1 << 31] {
                let layout = grid_layout(bytes, 1 << column, span).unwrap();
                let bounds = layout.layout().bounds();
                assert_eq!(layout.layout().size(), bytes);
                assert!(
                    layout.layout().form().is_disjoint(),
                    "{bytes} {column} {span}"
                );
                assert!(bounds.start == 0 && bounds.end as u64 <= bytes.max(span) + 512);
            }
        }
    }
}
