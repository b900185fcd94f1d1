// SPDX-License-Identifier: MIT OR Apache-2.0
//! Broadcasts a matrix from rank 0 to everybody.
use libcopy::Team;

fn main() -> libcopy::Result<()> {
    let mut team = Team::from_env()?; // rank, size and key, set by `libcopy run`
    let mut matrix = vec![team.rank() as u8; 8 << 20];
    team.bcast(&mut matrix, 0)?;
    assert!(matrix.iter().all(|byte| *byte == 0));
    println!("rank {} of {} has it", team.rank(), team.size());
    team.barrier()
}
