// SPDX-License-Identifier: MIT OR Apache-2.0

//! What the ranks of an MPI program with `libcopy_mpi.so` say about it: each rank writes a line of
//! JSON ([`Rank`]), these add up to a [`Job`], and that tells whether libcopy helped
//! ([`Job::verdict`]). `libcopy_mpi.so` and `libcopy mpi report` print the same text. With
//! `LIBCOPY_STATS=profile` they say where the program's time in MPI goes ([`Profile`]).
//!
//! ```
//! let line = r#"{"report":2,"rank":0,"library":"MPICH","bootstrap":"one rank"}"#;
//! let job = libcopy_report::Job::read(line)?;
//! assert!(job.to_string().starts_with("libcopy: no MPI function that it knows was called"));
//! # Ok::<(), libcopy_report::NotAReport>(())
//! ```

mod job;
mod profile;
mod profile_text;
mod rank;
mod text;
mod verdict;

pub use job::{Job, NotAReport};
pub use profile::{
    CSV_HEADER, CallClass, Group, NotAProfile, PROFILE_VERSION, Profile, ProfileRow, RankProfile,
    Sample, Sequence, Split, is_kept, size_class,
};
pub use rank::{Class, Rank, Time, VERSION};
pub use verdict::{Gain, Verdict, explanation, seconds};
