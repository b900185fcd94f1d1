// SPDX-License-Identifier: MIT OR Apache-2.0

//! Types for tests, as expressions.

/// One of each kind of node, and a type of one element.
pub const FIXED: [&str; 7] = [
    "contiguous(5000, double)",
    "vector(3000, 3, 7, double)",
    "indexed_block(37, [0, 100, 50, 400, 900, 201, 800], double)",
    "indexed([700, 1, 900], [0, 5000, 1000], double)",
    "struct([1, 1], [0, 90000], [vector(50, 3, 5, double), vector(900, 5, 9, int)])",
    "hvector(40, 1, 5000, vector(20, 3, 7, double))",
    "vector(1, 1, 1, int)",
];
