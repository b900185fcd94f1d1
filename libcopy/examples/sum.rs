// SPDX-License-Identifier: MIT OR Apache-2.0

//! Adds everybody's numbers.

use libcopy::Team;

fn main() -> libcopy::Result<()> {
    let mut team = Team::from_env()?;
    let mine = vec![team.rank() as f64; 1 << 20];
    let mut sum = vec![0.0; mine.len()];
    team.allreduce(Some(&mine), &mut sum, |from: &[f64], into: &mut [f64]| {
        for (a, b) in from.iter().zip(into) {
            *b += a;
        }
    })?;
    if team.rank() == 0 {
        println!("{} ranks, the sum is {}", team.size(), sum[0]);
    }
    Ok(())
}
