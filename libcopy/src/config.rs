// SPDX-License-Identifier: MIT OR Apache-2.0

//! The one table of `LIBCOPY_*` environment variables.
//!
//! `libcopy info` and `docs/configuration.md` show it; nothing reads such a variable past it. A
//! variable that is not in it has a wrong name: [`warn_unknown`] says so.

use std::ffi::OsString;
use std::str::FromStr;
use std::sync::Once;

use libcopy_datatype::nearest::nearest;

use crate::error::{Error, Result};
use crate::transport::TransportKind;

/// One environment variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Name of the variable.
    pub name: &'static str,
    /// What is used if it is not set; empty means "decided at run time".
    pub default: &'static str,
    /// What it does and what values it takes.
    pub help: &'static str,
    /// What it is about: the heading in `docs/configuration.md`.
    pub section: &'static str,
    /// Who sets it.
    pub for_whom: ForWhom,
    /// What it may be.
    pub values: Values,
}

/// Who sets a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForWhom {
    /// Users of programs.
    Users,
    /// Those who measure, compare and test.
    Few,
    /// Tools, for the processes that they start.
    SetByTools,
}

/// What a variable may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// Any text.
    Any,
    /// A number of bytes, with K, M or G.
    Bytes,
    /// A number that is not negative; the text says of what.
    Number(&'static str),
    /// A number of seconds, with a fraction or without.
    Seconds,
    /// Key of a team.
    Key,
    /// One of the words of a text such as "off, auto or both", or of these other ones that mean one
    /// of them.
    Words(&'static str, &'static [&'static str]),
}

use Values::{Any, Bytes, Key, Number, Seconds, Words};

/// The word of such a text that this is, in capitals or not.
fn is_among(words: &'static str, text: &str) -> Option<&'static str> {
    let mut words = words.split(", ").flat_map(|word| word.split(" or "));
    words.find(|word| word.eq_ignore_ascii_case(text))
}

/// One of the words of this text.
const fn words(text: &'static str) -> Values {
    Words(text, &[])
}

impl Values {
    /// What is expected, in words.
    fn expected(self) -> &'static str {
        match self {
            Any => "any text",
            Bytes => "a number of bytes such as 65536, 64K or 1M",
            Number(of_what) => of_what,
            Seconds => "a number of seconds",
            Key => "32 hexadecimal digits",
            Words(text, _) => text,
        }
    }

    /// Whether this is one.
    fn has(self, text: &str) -> bool {
        let text = text.trim();
        match self {
            Any => true,
            Bytes => parse_bytes(text).is_some(),
            Number(_) => text.parse::<u64>().is_ok(),
            Seconds => text.parse::<f64>().is_ok(),
            Key => text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit()),
            Words(words, others) => is_among(words, text).is_some() || others.contains(&text),
        }
    }
}

impl Setting {
    /// The value in the environment, if there is a non-empty one.
    pub fn value(&self) -> Option<String> {
        self.value_os().map(|v| v.to_string_lossy().into_owned())
    }

    /// The value in the environment as it is, whether it is text or not, for paths.
    pub fn value_os(&self) -> Option<OsString> {
        std::env::var_os(self.name).filter(|v| !v.is_empty())
    }

    /// The value in the environment, or the default.
    pub fn or_default(&self) -> String {
        self.value().unwrap_or_else(|| self.default.to_owned())
    }

    /// Whether the value is something else than 0; `otherwise` if it is not set.
    pub fn is_on(&self, otherwise: bool) -> bool {
        self.value().map_or(otherwise, |value| value.trim() != "0")
    }

    /// Parses the value; `None` if it is not set and there is no default.
    ///
    /// # Errors
    ///
    /// [`Error::Environment`]: it is not what the table expects.
    pub fn parse<T: FromStr>(&self) -> Result<Option<T>> {
        let text = self.or_default();
        if text.is_empty() {
            return Ok(None);
        }
        text.trim().parse().map(Some).map_err(|_| self.wrong(text))
    }

    /// The word of the table that is the value or the default; `None` for neither, and for one of
    /// those that mean the same as one of them.
    ///
    /// # Errors
    ///
    /// [`Error::Environment`]: it is none of the words that the table expects.
    pub fn word(&self) -> Result<Option<&'static str>> {
        self.check()?;
        Ok(match self.values {
            Words(words, _) => is_among(words, self.or_default().trim()),
            _ => None,
        })
    }

    /// Whether the value in the environment can be used, if there is one.
    ///
    /// # Errors
    ///
    /// [`Error::Environment`]: it is not what the table expects.
    pub fn check(&self) -> Result<()> {
        match self.value() {
            Some(text) if !self.values.has(&text) => Err(self.wrong(text)),
            _ => Ok(()),
        }
    }

    fn wrong(&self, value: String) -> Error {
        Error::Environment {
            name: self.name,
            value,
            expected: self.values.expected(),
        }
    }

    /// Parses a number of bytes, with an optional suffix K, M or G (powers of 1024).
    ///
    /// # Errors
    ///
    /// [`Error::Environment`]: it is no such number.
    pub fn bytes(&self) -> Result<Option<u64>> {
        let text = self.or_default();
        if text.is_empty() {
            return Ok(None);
        }
        match parse_bytes(&text) {
            Some(bytes) => Ok(Some(bytes)),
            None => Err(self.wrong(text)),
        }
    }
}

/// Reads "65536", "64K", "64KiB", "1M" or "inf".
pub fn parse_bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    if text.eq_ignore_ascii_case("inf") {
        return Some(u64::MAX);
    }
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let number: u64 = text[..digits].parse().ok()?;
    let shift = match text[digits..].trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        _ => return None,
    };
    number.checked_mul(1 << shift)
}

macro_rules! settings {
    ($($section:literal: {
        $($constant:ident = $name:literal, $default:literal, $for_whom:ident, $values:expr, $help:literal;)*
    })*) => {
        $($(
            #[doc = $help]
            pub static $constant: Setting = Setting {
                name: $name,
                default: $default,
                help: $help,
                section: $section,
                for_whom: ForWhom::$for_whom,
                values: $values,
            };
        )*)*
        /// Every variable, in the order in which a reader wants to see them.
        pub static SETTINGS: &[&Setting] = &[$($(&$constant),*),*];
    };
}

settings! {
    "Teams": {
        KEY = "LIBCOPY_KEY", "", SetByTools, Key, "Key of the team to join: 32 hexadecimal digits (set by `libcopy run`).";
        RANK = "LIBCOPY_RANK", "", SetByTools, Number("a number"), "Rank of this process in its team (set by `libcopy run`).";
        SIZE = "LIBCOPY_SIZE", "", SetByTools, Number("a number"), "Number of ranks of the team (set by `libcopy run`).";
        JOIN_TIMEOUT = "LIBCOPY_JOIN_TIMEOUT", "30", Users, Seconds, "Seconds to wait for ranks that do not come when joining.";
        SHM_DIR = "LIBCOPY_SHM_DIR", "/dev/shm", Users, Any, "Directory of the shared segments; must be a tmpfs. Where it has no room, or ranks see another one, they share memory without a name.";
    }
    "Transports and thresholds": {
        TRANSPORT = "LIBCOPY_TRANSPORT", "", Users, words("kmod, cma or shm"), "Use this transport for everything: kmod, cma or shm (default: the policy decides).";
        PROFILE = "LIBCOPY_PROFILE", "", Users, Any, "Profile file of `libcopy tune` (default: $XDG_CONFIG_HOME/libcopy/profile.toml; `none`: no file).";
        CALIBRATION = "LIBCOPY_CALIBRATION", "", Few, Any, "0: pack and unpack with the built-in table of the processor's vendor, whatever `libcopy tune` found.";
        CPU = "LIBCOPY_CPU", "", Few, words("avx512, avx2 or portable"), "avx512, avx2 or portable: the vector instructions that packing and unpacking use at most, to measure and test what other processors do.";
        EAGER_MAX = "LIBCOPY_EAGER_MAX", "", Few, Bytes, "Messages up to this size are sent without asking the receiver first.";
        SHM_CHUNK = "LIBCOPY_SHM_CHUNK", "", Few, Bytes, "Bytes that shared memory hands over at a time.";
        SHM_RING = "LIBCOPY_SHM_RING", "", Few, Bytes, "Bytes of each rank's broadcast ring in shared memory (a power of two).";
        NONTEMPORAL_MIN = "LIBCOPY_NONTEMPORAL_MIN", "", Few, Bytes, "From this size on, received bytes bypass the cache (`inf`: never).";
        SHARE_MIN = "LIBCOPY_SHARE_MIN", "", Few, Bytes, "From this size on, root and leaf share a copy where each has a core (`inf`: never).";
        ATTACH_MAX = "LIBCOPY_ATTACH_MAX", "", Few, Bytes, "Up to this size, peers map a buffer that is used again and again through the module (0: none, `inf`: all).";
        TOPOLOGY = "LIBCOPY_TOPOLOGY", "", Few, Any, "Directory with a snapshot of sys and proc of a machine that is taken for this one (to look at what would be chosen there).";
        SPIN = "LIBCOPY_SPIN", "", Few, Number("a number of microseconds"), "Microseconds to spin before sleeping (default: adaptive; none if ranks outnumber cores).";
    }
    "libcopy_mpi.so": {
        DISABLE = "LIBCOPY_DISABLE", "", Users, Any, "Forward every call to the MPI library if this is set to something else than 0.";
        STATS = "LIBCOPY_STATS", "", Users, Any, "At MPI_Finalize, print whether libcopy helped, what was intercepted and what was forwarded: 1 has rank 0 print it for all ranks, ranks has each rank print its own; profile has rank 0 print where the time in MPI goes, profile:FILE has each rank add a line about that to the file (see libcopy mpi profile); any other value but 0 names a file that each rank adds a line of JSON to, which libcopy mpi report reads.";
        GOVERNOR = "LIBCOPY_GOVERNOR", "1", Few, Any, "0: intercept what the thresholds say, without measuring whether forwarding is faster (for benchmarks).";
        REDUCTIONS = "LIBCOPY_REDUCTIONS", "fixed", Users, words("fixed or any"), "Order in which reductions combine floating-point numbers: fixed (a call with the same arguments gives the same bits each time) or any (whichever way costs less, so that the last bits may change from call to call).";
        MPI_MESSAGES = "LIBCOPY_MPI_MESSAGES", "1", Users, Any, "0 on any rank: forward messages between two processes.";
        MPI_NONBLOCKING = "LIBCOPY_MPI_NONBLOCKING", "1", Users, Any, "0 on any rank: forward nonblocking collectives, for tools that wait for requests past libcopy_mpi.so.";
        MPI_EVERYWHERE = "LIBCOPY_MPI_EVERYWHERE", "", Users, Any, "1: all ranks on all machines have libcopy_mpi.so, which then works across machines; a rank without it would hang the job.";
        MPI_MIN = "LIBCOPY_MPI_MIN", "", Few, Bytes, "Intercept everything of this many bytes or more, whether that pays or not (for tests and comparisons).";
        MPI_PACKED = "LIBCOPY_MPI_PACKED", "", Few, Bytes, "Pack short messages of derived types below this many bytes, whether that pays or not; 0 packs none.";
        MPI_PROTOCOL = "LIBCOPY_MPI_PROTOCOL", "best", Few, words("best, pipelined, get or mapped"), "How the data of intercepted messages move that are not dense: best, pipelined, get or mapped (to compare).";
        GPU_METHOD = "LIBCOPY_GPU_METHOD", "auto", Few, words("auto, one-shot, staged, device or peer"), "How messages get out of device memory of a GPU, and into it: one-shot (kernels write and read pinned host memory), staged (through packed bytes in device memory, copied to host memory), device (the library is handed device memory, if it takes that), peer (the receiver copies them out of the sender's device memory, where it can) or auto (by the GPU's profile).";
        GPU_AWARE = "LIBCOPY_GPU_AWARE", "ask", Users, words("yes, no or ask"), "Whether the MPI library takes device memory of a GPU: yes, no or ask (MPIX_Query_cuda_support, where the library has it).";
        RDMA = "LIBCOPY_RDMA", "commit", Users, Words("commit, all or off", &["0"]), "Which messages between machines go over RDMA, with LIBCOPY_MPI_EVERYWHERE=1: commit (those of types that were committed with MPIX_Type_commit_comm), all (those of all derived types) or off.";
        RDMA_DEVICE = "LIBCOPY_RDMA_DEVICE", "", Users, Any, "The RDMA device of this process (default: the first that can be used); none: messages that would go over RDMA go through the MPI library, packed (for tests).";
        MPI_NODE_RANKS = "LIBCOPY_MPI_NODE_RANKS", "", Few, Number("a number of ranks"), "Take this many ranks of one machine for a node of their own (to test what happens across nodes).";
    }
    "Asynchronous collectives and copy engines": {
        ASYNC = "LIBCOPY_ASYNC", "", Users, Words("off, auto, engine, cpu or both", &["0", "1"]), "Let collectives return while copy engines still move their bytes: off, auto, engine, cpu or both (default: off; auto learns which is best).";
        OFFLOAD_MIN = "LIBCOPY_OFFLOAD_MIN", "", Few, Bytes, "Parts of this size or more may be moved by copy engines (with LIBCOPY_ASYNC).";
        OFFLOAD_RANKS = "LIBCOPY_OFFLOAD_RANKS", "", Few, Number("a number of ranks"), "Teams of this many ranks or more may use copy engines (with LIBCOPY_ASYNC).";
        OFFLOAD_PAGES = "LIBCOPY_OFFLOAD_PAGES", "", Few, Number("a number of pages"), "Pages that a copy engine moves between two looks whether CPUs have taken over (default: the module's parameter fragment_pages).";
        OFFLOAD_VERIFY = "LIBCOPY_OFFLOAD_VERIFY", "", Few, Number("0 or 1"), "1: compare what a copy engine has moved with its source, and copy again where it differs (default: 0).";
        LOG = "LIBCOPY_LOG", "", Few, Any, "What to tell on standard error; policy: each choice between engine and CPU as a line of JSON.";
    }
    "Scripts and tests": {
        CACHE = "LIBCOPY_CACHE", "", Few, Any, "Directory in which scripts keep what they download and build (default: $XDG_CACHE_HOME/libcopy).";
        MIRROR = "LIBCOPY_MIRROR", "", Few, Any, "Mirror of Debian's packages for the virtual machine.";
        VM = "LIBCOPY_VM", "", Few, Any, "Set in the virtual machine: tcg, icount or kvm.";
        IOAT = "LIBCOPY_IOAT", "", Few, Any, "Set in the virtual machine: its modelled copy engines, as `scripts/vm --ioat` was told.";
        KO = "LIBCOPY_KO", "", Few, Any, "Set in the virtual machine: the module's file.";
        SHARE = "LIBCOPY_SHARE", "", Few, Any, "Set in the virtual machine: a directory that may be written.";
        DMATEST = "LIBCOPY_DMATEST", "", Few, Any, "Set in the virtual machine: the kernel's own test of DMA engines.";
    }
}

/// What the names of all of them begin with.
const PREFIX: &str = "LIBCOPY_";

/// Variables that begin as ours do and are in no table: they have no effect. With each the name in
/// the table that is nearest, if one is near.
pub fn unknown() -> Vec<(String, Option<&'static str>)> {
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    unknown_among(names)
}

fn unknown_among(names: impl Iterator<Item = String>) -> Vec<(String, Option<&'static str>)> {
    let ours = names.filter(|name| name.starts_with(PREFIX) && !is_internal(name));
    ours.filter(|name| SETTINGS.iter().all(|setting| setting.name != name))
        .map(|name| {
            let known = SETTINGS.iter().map(|setting| &setting.name[PREFIX.len()..]);
            let nearest = nearest(&name[PREFIX.len()..], known);
            let setting = |short| SETTINGS.iter().find(|it| &it.name[PREFIX.len()..] == short);
            let nearest = nearest.and_then(setting).map(|setting| setting.name);
            (name, nearest)
        })
        .collect()
}

/// What tests and scripts give to their own children, and what environment modules define for a
/// package.
pub fn is_internal(name: &str) -> bool {
    const PREFIXES: [&str; 4] = ["TEST", "TYPES", "VM_", "PYPI_"];
    const NAMES: [&str; 9] = [
        "BLESS", "BASE", "DIR", "HOME", "INC", "INCLUDE", "LIB", "ROOT", "VERSION",
    ];
    let name = name.strip_prefix("LIBCOPY_").unwrap_or(name);
    NAMES.contains(&name) || PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// Says on standard error which variables of the environment are [`unknown`], once in a process.
pub fn warn_unknown() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for (name, nearest) in unknown() {
            let hint = match nearest {
                Some(nearest) => format!("did you mean {nearest}?"),
                None => "`libcopy info` lists those that are".to_owned(),
            };
            crate::refusal::say(&format!(
                "libcopy: {name} is no variable of libcopy and has no effect; {hint}\n"
            ));
        }
    });
}

impl FromStr for TransportKind {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        TransportKind::ALL
            .into_iter()
            .find(|kind| kind.name().eq_ignore_ascii_case(text.trim()))
            .ok_or_else(|| Error::argument("transport", text.to_owned(), "kmod, cma or shm"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_with_suffixes() {
        assert_eq!(parse_bytes("65536"), Some(65536));
        assert_eq!(parse_bytes("64K"), Some(65536));
        assert_eq!(parse_bytes(" 64 KiB "), Some(65536));
        assert_eq!(parse_bytes("1m"), Some(1 << 20));
        assert_eq!(parse_bytes("inf"), Some(u64::MAX));
        assert_eq!(parse_bytes("17179869184G"), None);
        assert_eq!(parse_bytes("12q"), None);
        assert_eq!(parse_bytes(""), None);
        assert_eq!(parse_bytes("K"), None);
    }

    #[test]
    fn unknown_names_are_told_with_the_nearest() {
        let names = [
            "LIBCOPY_TRANSPROT",
            "LIBCOPY_SPIN",
            "HOME",
            "LIBCOPY_TEST_MPI",
            "LIBCOPY_XYZZY",
        ];
        let unknown = unknown_among(names.into_iter().map(str::to_owned));
        let expected = [
            ("LIBCOPY_TRANSPROT".to_owned(), Some("LIBCOPY_TRANSPORT")),
            ("LIBCOPY_XYZZY".to_owned(), None),
        ];
        assert_eq!(unknown, expected);
    }

    #[test]
    fn values_are_what_is_expected() {
        for (values, good, bad) in [
            (Bytes, "64K", "64Q"),
            (Number("a number"), "7", "-7"),
            (Seconds, "0.5", "soon"),
            (Seconds, "inf", "3 s"),
            (Key, "0123456789abcdef0123456789ABCDEF", "0123"),
            (words("one, two or three"), "two", "one, two"),
            (words("one, two or three"), " Three ", "or"),
            (Words("off or on", &["0"]), "0", "1"),
        ] {
            assert!(values.has(good), "{values:?} {good}");
            assert!(!values.has(bad), "{values:?} {bad}");
        }
        // Defaults are values, and help texts name the words.
        for setting in SETTINGS.iter().filter(|it| !it.default.is_empty()) {
            assert!(setting.values.has(setting.default), "{}", setting.name);
        }
        for setting in SETTINGS {
            let Words(text, _) = setting.values else {
                continue;
            };
            for word in text.split(", ").flat_map(|word| word.split(" or ")) {
                assert!(setting.help.contains(word), "{}: {word}", setting.name);
            }
        }
    }

    #[test]
    fn names_are_unique_and_ours() {
        for (i, s) in SETTINGS.iter().enumerate() {
            assert!(s.name.starts_with("LIBCOPY_"));
            assert!(!s.help.is_empty());
            assert!(
                SETTINGS[..i].iter().all(|t| t.name != s.name),
                "{} twice",
                s.name
            );
        }
    }
}
