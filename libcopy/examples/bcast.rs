// SPDX-License-Identifier: MIT OR Apache-2.0

//! Broadcasts a matrix, then gathers a kilobyte of everybody.

use libcopy::Team;

fn main() -> libcopy::Result<()> {
    // Rank, size and key come from the environment, set by `libcopy run`.
    let mut team = Team::from_env()?;
    let mut matrix = vec![0u8; 8 << 20];
    if team.rank() == 0 {
        matrix.fill(42);
    }
    team.bcast(&mut matrix, 0)?;
    assert!(matrix.iter().all(|byte| *byte == 42));

    // Everybody contributes its rank; rank 0 collects.
    let mine = [team.rank() as u8; 1000];
    if team.rank() == 0 {
        let mut all = vec![0u8; mine.len() * team.size()];
        team.gather(&mine, Some(&mut all), 0)?;
        println!(
            "{} ranks, the last one is {}",
            team.size(),
            all[all.len() - 1]
        );
    } else {
        team.gather(&mine, None, 0)?;
    }
    team.barrier()
}
