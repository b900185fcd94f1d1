// SPDX-License-Identifier: MIT OR Apache-2.0

//! Random calls of the C API; `scripts/fuzz` makes more of them under the address sanitizer.

mod calls;

/// As many rounds as `LIBCOPY_TEST_ROUNDS` says.
#[test]
fn random_calls_are_answered() {
    let rounds =
        std::env::var("LIBCOPY_TEST_ROUNDS").map(|rounds| rounds.parse().expect("a number"));
    let rounds = rounds.unwrap_or(1000);
    let mut made = 0;
    for seed in 0..rounds {
        println!("seed {seed}");
        made += calls::run(calls::Choices::random(seed));
    }
    assert!(made > 500 * rounds, "{made} calls");
}
