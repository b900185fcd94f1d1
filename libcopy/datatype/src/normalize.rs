// SPDX-License-Identifier: MIT OR Apache-2.0

//! The canonical form: one small tree for all ways to describe the same layout.
//!
//! The idea is TEMPI's ("Adding Fast GPU Derived Datatype Handling to Existing MPIs"): translate a
//! type into streams and dense pieces, then rewrite until nothing changes. Here the rewriting also
//! covers irregular types, and never changes the order of bytes:
//!
//! ```text
//! elision      Stream 1 × c                          →  c
//! folding      Stream n × Dense l, stride l          →  Dense n·l
//! flattening   Stream n × (Stream m × c, stride t),
//!              stride m·t                            →  Stream n·m × c, stride t
//! merging      Dense a, then Dense b right behind    →  Dense a+b
//! recognition  c at 0, s, 2s, … (n-1)s               →  Stream n × c, stride s
//!              a list that repeats with a period p   →  Stream n/p × (its first p entries)
//! splicing     a short list within a list            →  its entries
//! ```
//!
//! Nodes are numbered children first; the last one is the root. Every node's first byte (in
//! type-map order) is at its origin, so equal shapes are equal nodes wherever they are.

mod arena;
mod joined;
mod lists;
mod long;
mod members;
mod peel;
mod rewrite;
mod translate;
