// SPDX-License-Identifier: MIT OR Apache-2.0

//! Sends a column of a matrix to the rank on the right, as a row.

use libcopy::datatype::{Datatype, Layout, Named};
use libcopy::{SendBuffer, Team};

const ROWS: usize = 4000;
const COLUMNS: usize = 8;

fn main() -> libcopy::Result<()> {
    let mut team = Team::from_env()?;
    let (rank, size) = (team.rank(), team.size());
    let matrix = vec![rank as u8; ROWS * COLUMNS];
    // One byte of each row.
    let column = Datatype::named(Named::Byte).vector(ROWS as u64, 1, COLUMNS as i64)?;
    let column = Layout::new(&column, 1)?;

    let (right, left) = ((rank + 1) % size, (rank + size - 1) % size);
    let mut row = vec![0u8; ROWS];
    team.messages_in(|messages| {
        let received = messages.irecv(&mut row, left, 7)?;
        // The third column; it is complete when the work is.
        messages.isend(SendBuffer::typed(&matrix, 2, &column)?, right, 7)?;
        messages.wait(received)
    })?;
    assert_eq!(row, vec![left as u8; ROWS]);
    println!("rank {rank} has the column of rank {left}");
    Ok(())
}
