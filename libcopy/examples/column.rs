// SPDX-License-Identifier: MIT OR Apache-2.0

//! Packs a column of a matrix, and unpacks it as a row of another one.

use libcopy::datatype::{Datatype, Layout, Named};

const ROWS: usize = 4;
const COLUMNS: usize = 6;

fn main() -> libcopy::Result<()> {
    // The matrix as bytes: element (row, column) is 10 * row + column.
    let numbers = (0..ROWS * COLUMNS).map(|i| (10 * (i / COLUMNS) + i % COLUMNS) as f64);
    let matrix: Vec<u8> = numbers.flat_map(f64::to_ne_bytes).collect();

    // A datatype says where data lie: one number of each row, COLUMNS numbers from one to the next.
    let column = Datatype::named(Named::Double).vector(ROWS as u64, 1, COLUMNS as i64)?;
    // A layout is a number of elements of a type, ready to be moved. Make it once, use it often.
    let column = Layout::new(&column, 1)?;
    let row = Layout::new(&Datatype::named(Named::Double), ROWS as u64)?;

    // The third column begins at the third number of the matrix, 16 bytes behind its start.
    let mut packed = vec![0; column.size() as usize];
    column.pack(&matrix, 2 * size_of::<f64>() as isize, &mut packed)?;
    let mut other = vec![0; packed.len()];
    row.unpack(&packed, &mut other, 0)?;

    let numbers = other.chunks_exact(size_of::<f64>());
    let numbers = numbers.map(|bytes| f64::from_ne_bytes(bytes.try_into().expect("8 bytes")));
    println!("{:?}", numbers.collect::<Vec<_>>());
    Ok(())
}
