// SPDX-License-Identifier: MIT OR Apache-2.0

//! How often each function was intercepted or forwarded, and why.

use std::collections::BTreeMap;
use std::ffi::{CStr, OsStr};
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use libcopy::collective::Op;
use libcopy::config;
use libcopy_report::{Rank, VERSION};

use crate::library::functions::collectives;
use crate::library::{times, unusual};

/// Declares [`Function`]: what is intercepted of the table of collectives, and what has no row.
macro_rules! declare {
    ($($op:ident $arguments:tt {
         operation $operation:ident;
         arrays $arrays:tt;
         device $device:ident $buffers:tt $root:tt;
         small $small:tt;
         $($form:ident $rust:ident = $names:tt $fortran:tt $(=> $function:ident $module:ident)?;)*
     })*) => {
        declare!(@functions
            $($($( $function = $form (Some(Op::$operation)) $names, )?)*)*
            Barrier = blocking (Some(Op::Barrier)) [MPI_Barrier],
            Pack = blocking (None) [MPI_Pack],
            Unpack = blocking (None) [MPI_Unpack],
            PackExternal = blocking (None) [MPI_Pack_external],
            UnpackExternal = blocking (None) [MPI_Unpack_external],
        );
    };
    (@functions $($function:ident = $form:ident ($op:expr) [$name:ident $($other:ident)*],)*) => {
        /// The functions that are intercepted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Function {
            $(
                #[doc = concat!("`", stringify!($name), "`")]
                $function,
            )*
        }

        /// Each with the library's operation, whether it, or the start of its request, returns at
        /// once, and its name in C.
        const TABLE: &[(Function, Option<Op>, bool, &str)] = &[$(
            (Function::$function, $op, returns_at_once!($form), stringify!($name)),
        )*];
    };
}

macro_rules! returns_at_once {
    (blocking) => {
        false
    };
    ($other:ident) => {
        true
    };
}

collectives!(declare);

/// How many there are.
pub const FUNCTIONS: usize = TABLE.len();

impl Function {
    /// All of them.
    pub fn all() -> impl Iterator<Item = Function> {
        TABLE.iter().map(|row| row.0)
    }

    /// The library's operation; none for what is no collective.
    pub fn op(self) -> Option<Op> {
        TABLE[self as usize].1
    }

    /// Whether it, or the start of its request, returns at once.
    pub fn is_nonblocking(self) -> bool {
        TABLE[self as usize].2
    }

    /// Its name in C.
    pub fn name(self) -> &'static str {
        TABLE[self as usize].3
    }
}

/// How a function is done across nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Across {
    /// Bytes go from leader to leader one behind the other.
    Whole,
    /// The MPI library counts all ranks' parts in one buffer.
    Parts,
}

impl Function {
    /// How it is done where ranks are on several nodes; none if it is forwarded there.
    pub fn across_nodes(self) -> Option<Across> {
        match self {
            Function::Bcast | Function::Reduce | Function::Allreduce | Function::Barrier => {
                Some(Across::Whole)
            }
            Function::Gather
            | Function::Gatherv
            | Function::Scatter
            | Function::Scatterv
            | Function::Allgather
            | Function::Allgatherv => Some(Across::Parts),
            _ => None,
        }
    }

    /// About how many bytes a call moves on each of `size` ranks, if a part of a message has
    /// `bytes`.
    pub fn moves(self, bytes: u64, size: usize) -> u64 {
        match self.across_nodes() {
            Some(Across::Whole) => bytes,
            _ => bytes.saturating_mul(size as u64),
        }
    }
}

/// What became of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// libcopy did it.
    Intercepted,
    /// libcopy did it inside each of several nodes, and the MPI library between them.
    Nodes,
    /// The message is one that the MPI library moves as fast.
    Small,
    /// The communicator has no team yet: its large calls have not earned one, or its ranks have not
    /// met for nonblocking ones.
    NotYet,
    /// The communicator spans several machines, and each has one of its ranks, or this is nothing
    /// that is done across machines.
    Machines,
    /// It is an intercommunicator.
    Intercommunicator,
    /// It has one rank.
    OneRank,
    /// It has no topology that tells all neighbours, or not on all of its ranks.
    Topology,
    /// The arguments are not ours to judge: the MPI library says what is wrong with them. Or the
    /// operation or datatype of a reduction is the user's own.
    Arguments,
    /// The MPI library is as fast: dense bytes, or long pieces, that are packed; a collective that
    /// is longer than what is faster here; or a class of calls that the governor forwards.
    NoGain,
    /// The ranks have not agreed to work together, or have no way that pays.
    NoTeam,
    /// Making the team failed, on this rank or on another one, or an erroneous call has broken it.
    BrokenTeam,
    /// `LIBCOPY_DISABLE` is set, the MPI library is an unknown one, or a tool wraps such functions.
    Disabled,
    /// The datatype has not been used often enough to be worth a layout.
    Fresh,
}

const OUTCOMES: [(Outcome, &str); 14] = [
    (Outcome::Intercepted, "intercepted"),
    (Outcome::Nodes, "by nodes"),
    (Outcome::Small, "small"),
    (Outcome::NotYet, "not yet"),
    (Outcome::Machines, "machines"),
    (Outcome::Intercommunicator, "intercomm"),
    (Outcome::OneRank, "one rank"),
    (Outcome::Topology, "topology"),
    (Outcome::Arguments, "arguments"),
    (Outcome::NoGain, "no gain"),
    (Outcome::NoTeam, "no team"),
    (Outcome::BrokenTeam, "broken team"),
    (Outcome::Disabled, "disabled"),
    (Outcome::Fresh, "fresh"),
];

/// Columns that a table has always; the others are there where they are not empty.
const ALWAYS: usize = Outcome::NotYet as usize + 1;

static COUNTS: [[AtomicU64; OUTCOMES.len()]; FUNCTIONS] =
    [const { [const { AtomicU64::new(0) }; OUTCOMES.len()] }; FUNCTIONS];
static BYTES: AtomicU64 = AtomicU64::new(0);

/// What is wanted at the end.
#[derive(Debug, PartialEq, Eq)]
pub enum Wanted {
    /// One report of all ranks.
    Job,
    /// One of each rank.
    Ranks,
    /// A line of each rank in a file.
    File(PathBuf),
    /// A profile: of all ranks in one report, or a line of each in a file.
    Profile(Option<PathBuf>),
}

/// What is wanted, if anything is; counting costs small messages as much as deciding about them.
pub fn wanted() -> Option<&'static Wanted> {
    #[unsafe(link_section = "libcopy_hot")]
    static WANTED: OnceLock<Option<Wanted>> = OnceLock::new();
    let find = || {
        let value = config::STATS.value_os()?;
        config::STATS.is_on(false).then(|| match value.to_str() {
            Some("1") => Wanted::Job,
            Some("ranks") => Wanted::Ranks,
            Some("profile") => Wanted::Profile(None),
            _ => match value.as_bytes().strip_prefix(b"profile:") {
                Some(file) => Wanted::Profile(Some(OsStr::from_bytes(file).into())),
                None => Wanted::File(value.into()),
            },
        })
    };
    WANTED.get_or_init(find).as_ref()
}

/// Whether calls are counted by what became of them: for anything but a profile.
pub fn are_wanted() -> bool {
    wanted().is_some_and(|wanted| !matches!(wanted, Wanted::Profile(_)))
}

/// Counts a call; `bytes` is what this rank sent or received, for calls that were intercepted.
#[inline(always)]
pub fn count(function: Function, outcome: Outcome, bytes: u64) {
    // Whoever wants statistics has times taken, too, from the beginning.
    if unusual::is_timed() {
        count_now(function, outcome, bytes);
    }
}

#[cold]
fn count_now(function: Function, outcome: Outcome, bytes: u64) {
    if are_wanted() {
        COUNTS[function as usize][outcome as usize].fetch_add(1, Ordering::Relaxed);
        BYTES.fetch_add(bytes, Ordering::Relaxed);
        if let Outcome::Intercepted | Outcome::Nodes = outcome {
            times::intercepted();
        }
    }
}

/// The machine's name, and the file that this process runs.
pub fn place() -> (String, String) {
    let mut name = [0u8; 256];
    // SAFETY: room for a name and its end, which a longer one has not.
    let answer = unsafe { libc::gethostname(name.as_mut_ptr().cast(), name.len() - 1) };
    let host = match CStr::from_bytes_until_nul(&name) {
        Ok(name) if answer == 0 => name.to_string_lossy().into_owned(),
        _ => "unknown".to_owned(),
    };
    let program = std::env::current_exe();
    let program = program.map_or("unknown".to_owned(), |path| path.display().to_string());
    (host, program)
}

/// Whose numbers they are, and how many calls there were: the rest is not known here. The rank in
/// `MPI_COMM_WORLD` is -1 where that is not known.
pub fn rank(rank: i64, library: &str) -> Rank {
    let (host, program) = place();
    let functions = TABLE.iter().zip(&COUNTS).map(|((_, _, _, name), counts)| {
        let names = OUTCOMES.iter().map(|(_, name)| (*name).to_owned());
        let counts = counts.iter().map(|n| n.load(Ordering::Relaxed));
        ((*name).to_owned(), names.zip(counts).collect())
    });
    let was_called =
        |(_, counts): &(String, BTreeMap<String, u64>)| counts.values().any(|count| *count > 0);
    Rank {
        report: VERSION,
        rank,
        host,
        program,
        pid: std::process::id(),
        library: library.to_owned(),
        bytes: BYTES.load(Ordering::Relaxed),
        time: times::sums(),
        functions: functions.filter(was_called).collect(),
        ..Rank::default()
    }
}

/// The table, a line per function that was called.
pub fn report(own: &Rank) -> String {
    let mut text = format!(
        "libcopy_mpi: rank {} on {}, process {}, {}\nlibcopy_mpi: {}, {} bytes intercepted\nlibcopy_mpi: {:<24}",
        own.rank, own.host, own.pid, own.program, own.library, own.bytes, "function"
    );
    let counts = COUNTS
        .each_ref()
        .map(|counts| counts.each_ref().map(|n| n.load(Ordering::Relaxed)));
    let is_shown =
        |column: usize| column < ALWAYS || counts.iter().any(|counts| counts[column] != 0);
    let columns: Vec<usize> = (0..OUTCOMES.len()).filter(|at| is_shown(*at)).collect();
    for column in &columns {
        let _ = write!(text, " {:>12}", OUTCOMES[*column].1);
    }
    for ((_, _, _, name), counts) in TABLE.iter().zip(&counts) {
        if counts.iter().any(|n| *n != 0) {
            let _ = write!(text, "\nlibcopy_mpi: {name:<24}");
            for column in &columns {
                let _ = write!(text, " {:>12}", counts[*column]);
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_stand_in_the_order_of_their_columns() {
        for (column, (outcome, name)) in OUTCOMES.into_iter().enumerate() {
            assert_eq!(outcome as usize, column, "{name}");
        }
        let first = OUTCOMES[..ALWAYS].iter().map(|(_, name)| *name);
        assert!(first.eq(["intercepted", "by nodes", "small", "not yet"]));
    }

    /// A column that nothing was counted in is not there, but for the first ones.
    #[test]
    fn a_table_has_the_columns_that_it_needs() {
        COUNTS[Function::Bcast as usize][Outcome::OneRank as usize].store(3, Ordering::Relaxed);
        let table = report(&rank(0, "MPICH"));
        let lines: Vec<&str> = table.lines().collect();
        let words = |line: &str| -> Vec<String> {
            line.split("  ")
                .map(|word| word.trim().to_owned())
                .filter(|word| !word.is_empty())
                .collect()
        };
        let head = words(lines[2]);
        let expected = ["intercepted", "by nodes", "small", "not yet", "one rank"];
        assert_eq!(head[head.len() - 5..], expected, "{table}");
        assert!(lines[3].starts_with("libcopy_mpi: MPI_Bcast "), "{table}");
        assert!(
            lines[3].ends_with(" 3") && !table.contains("fresh"),
            "{table}"
        );
    }

    /// What a column means is said where most calls are in it.
    #[test]
    fn each_outcome_has_an_explanation() {
        for (_, name) in OUTCOMES {
            assert!(libcopy_report::explanation(name).is_some(), "{name}");
        }
    }
}
