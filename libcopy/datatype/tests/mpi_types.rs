// SPDX-License-Identifier: MIT OR Apache-2.0

//! The same types built here, by Open MPI and by MPICH: sizes, bounds and packed bytes.
//!
//! The MPI side is `tests/peers/mpi_types.c`, which reads type expressions. `LIBCOPY_TYPES` says
//! how many random types are compared (300), `LIBCOPY_TYPES_SEED` which. An MPI that is not
//! installed is left out, with a word about it.
//!
//! The oracle of the property tests stands between the two: where an MPI differs, the library
//! must say what the oracle says, and the innermost type that differs must belong to one of the
//! known [`Deviation`]s of that MPI. It is then given explicit bounds (`resized`), which all
//! agree on, and the whole is compared again; so a deviation deep in a type hides nothing else.

#[allow(dead_code)]
#[path = "datatype/generate.rs"]
mod generate;
#[allow(dead_code)]
#[path = "datatype/oracle.rs"]
mod oracle;

use libcopy_datatype::{Class, Contents, Datatype, Elements, Layout, Named};
use oracle::{Map, Tree, map};
use std::collections::{HashMap, HashSet};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

/// The MPI program of one library, running.
struct Peer {
    mpi: &'static str,
    program: PathBuf,
    child: Child,
    stream: BufReader<UnixStream>,
}

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn start(mpi: &'static str, program: &Path) -> (Child, BufReader<UnixStream>) {
    // Two that MPICH's mpirun starts at the same moment get into each other's way now and then.
    let again = (0..2).find_map(|_| try_start(mpi, program).ok());
    again.unwrap_or_else(|| try_start(mpi, program).unwrap_or_else(|ended| panic!("{ended}")))
}

fn try_start(mpi: &'static str, program: &Path) -> Result<(Child, BufReader<UnixStream>), String> {
    // A path of its own for every start, and a short one: sockets allow 107 bytes.
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let socket = std::env::temp_dir().join(format!(
        "libcopy-{}-{mpi}-{number}.sock",
        std::process::id()
    ));
    let listener = UnixListener::bind(&socket).expect("can listen");
    listener.set_nonblocking(true).expect("a socket");
    let mut command = Command::new(format!("mpirun.{mpi}"));
    if mpi == "openmpi" {
        command.args(["--bind-to", "none", "--allow-run-as-root"]);
    }
    let mut child = command
        .args(["-n", "1"])
        .arg(program)
        .arg("--control")
        .arg(&socket)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("mpirun starts");
    let begin = Instant::now();
    let stream = loop {
        match listener.accept() {
            Ok((stream, _)) => break stream,
            Err(_) => {
                let ended = child.try_wait().expect("a child");
                if ended.is_some() {
                    let _ = std::fs::remove_file(&socket);
                    return Err(format!("mpirun.{mpi} ended: {ended:?}"));
                }
                assert!(begin.elapsed() < PATIENCE, "mpirun.{mpi} does not start");
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    };
    let _ = std::fs::remove_file(&socket);
    stream.set_nonblocking(false).expect("a socket");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    let mut stream = BufReader::new(stream);
    let mut hello = String::new();
    stream.read_line(&mut hello).expect("a greeting");
    assert!(hello.starts_with("hello 0 1 "), "{hello}");
    Ok((child, stream))
}

impl Peer {
    /// None if the library is not installed.
    fn new(mpi: &'static str) -> Option<Peer> {
        let compiler = format!("mpicc.{mpi}");
        for tool in [&compiler, &format!("mpirun.{mpi}")] {
            if Command::new(tool).arg("--version").output().is_err() {
                eprintln!("skipped: '{tool}' is not installed, so {mpi} is not compared");
                return None;
            }
        }
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
        // Tests may run in several processes at the same time.
        let program = directory.join(format!("mpi_types.{mpi}.{}", std::process::id()));
        let output = Command::new(compiler)
            .args(["-std=gnu11", "-O1", "-o"])
            .arg(&program)
            .arg(here("../../tests/peers/mpi_types.c"))
            .output()
            .expect("a compiler");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{errors}");
        let (child, stream) = start(mpi, &program);
        Some(Peer {
            mpi,
            program,
            child,
            stream,
        })
    }

    /// The answer; a library that dies of the question is started anew.
    fn ask(&mut self, question: &str) -> String {
        let mut answer = String::new();
        let asked = writeln!(self.stream.get_mut(), "{question}");
        if asked.is_ok() && self.stream.read_line(&mut answer).is_ok() && !answer.is_empty() {
            return answer.trim_end().to_owned();
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        (self.child, self.stream) = start(self.mpi, &self.program);
        "died".to_owned()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = writeln!(self.stream.get_mut(), "quit");
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(5) {
            if !matches!(self.child.try_wait(), Ok(None)) {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.program);
    }
}

fn mix(mut x: u64) -> u64 {
    x ^= x >> 29;
    x = x.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^ (x >> 32)
}

/// The pattern of `type_peer.h`.
fn fill(to: &mut [u8], round: u64) {
    for (i, chunk) in to.chunks_mut(8).enumerate() {
        let word = mix((8 * i as u64 + 8)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .wrapping_add(round.wrapping_mul(0x94d0_49bb_1331_11eb)));
        chunk.copy_from_slice(&word.to_ne_bytes()[..chunk.len()]);
    }
}

/// The hash of `type_peer.h`.
fn hash(from: &[u8]) -> u64 {
    from.chunks(8)
        .fold(mix(from.len() as u64 + 1), |sum, chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            mix((sum ^ u64::from_ne_bytes(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15))
        })
}

/// Where an MPI departs from MPI 4.1, section 5.1.7, on purpose or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Deviation {
    /// A type, a member or a block without data has a place in the bounds or the alignment of what
    /// is built on it. (Both; Open MPI then reports the largest number as true lower bound.)
    EmptyCounts,
    /// Only structs of different members are padded to their alignment; a vector with an odd
    /// stride is not, nor a struct of one basic type, which is made an hindexed: see [`basic`].
    /// (MPICH)
    OnlyStructsPadded,
    /// A struct's bounds are those of all its members, not of the resized ones alone. (MPICH)
    MarkersIgnored,
    /// The true bounds of a darray reach to its elements' bounds, not to their data. (MPICH)
    DarrayTrueBounds,
    /// A long double is moved as a value of ten bytes, without its padding. (MPICH)
    LongDoubleValue,
    /// Elements that overlap because of a negative extent are not all packed right. (MPICH)
    NegativeExtent,
    /// A stride or an extent of -1 byte is taken for "none given". (Open MPI)
    MinusOne,
    /// The extent is padded after every block, so blocks whose places do not ascend are padded
    /// twice. (Open MPI)
    PaddedAsItGrows,
}

impl Deviation {
    /// Whether explicit bounds make the type the same; else another one takes its place.
    fn is_pinned(self) -> bool {
        !matches!(
            self,
            Deviation::DarrayTrueBounds
                | Deviation::LongDoubleValue
                | Deviation::NegativeExtent
                | Deviation::MinusOne
        )
    }
}

/// How often what happened.
#[derive(Debug, Default)]
struct Tally {
    same: usize,
    refused: usize,
    /// Of the same ones, how many were compared in external32 as well.
    external: usize,
    deviations: HashMap<Deviation, usize>,
    differences: Vec<String>,
}

/// Layouts beyond this many bytes are compared by their bounds only.
const SPAN: i128 = 1 << 24;

/// What the MPI program says of a type that is as ours.
fn facts(datatype: &Datatype) -> String {
    format!(
        "type {} {} {} {} {}",
        datatype.size(),
        datatype.lower_bound(),
        datatype.extent(),
        datatype.true_lower_bound(),
        datatype.true_extent()
    )
}

/// Without data there is no lowest byte; libraries differ in what they say then.
fn agree(datatype: &Datatype, answer: &str) -> bool {
    let words = if datatype.size() == 0 { 4 } else { 6 };
    let ours = facts(datatype);
    answer
        .split(' ')
        .take(words)
        .eq(ours.split(' ').take(words))
}

fn children(tree: &mut Tree) -> Vec<&mut Tree> {
    match tree {
        Tree::Named(_) => Vec::new(),
        Tree::Struct(blocks) => blocks.iter_mut().map(|block| &mut block.2).collect(),
        Tree::Dup(child)
        | Tree::Contiguous(_, child)
        | Tree::Vector(_, _, _, child)
        | Tree::Hvector(_, _, _, child)
        | Tree::Indexed(_, child)
        | Tree::Hindexed(_, child)
        | Tree::IndexedBlock(_, _, child)
        | Tree::HindexedBlock(_, _, child)
        | Tree::Subarray(_, _, child)
        | Tree::Darray(_, _, _, child)
        | Tree::Resized(_, _, child) => vec![child],
    }
}

/// The basic type that MPICH takes a type for: what one element at 0 with its own bounds comes down
/// to. Integers differ in their size only (but for `wchar_t`), and a complex number is the pair of
/// its parts, so that `MPI_C_DOUBLE_COMPLEX` and `MPI_2DOUBLE_PRECISION` are the same. Types of
/// several elements are the same as nothing else. Found out by asking MPICH 4.0.2 for the extents
/// of structs of any two types.
fn basic(tree: &Tree) -> Option<Vec<(Class, u32)>> {
    if let Tree::Named(named) = tree {
        let parts = named.elements().iter().flat_map(|element| {
            let size = element.size;
            match element.class {
                _ if *named == Named::Wchar => vec![(Class::Bytes, size)],
                Class::Complex | Class::QuadComplex => vec![(Class::Float, size / 2); 2],
                Class::Float | Class::Quad => vec![(Class::Float, size)],
                Class::Signed | Class::Unsigned | Class::Bytes => vec![(Class::Signed, size)],
            }
        });
        return Some(parts.collect());
    }
    let mut copy = tree.clone();
    let [child] = &children(&mut copy)[..] else {
        return None;
    };
    let (whole, part) = (map(tree), map(child));
    let same = whole.entries == part.entries && (whole.lb, whole.ub) == (part.lb, part.ub);
    basic(child).filter(|_| same)
}

/// Why an MPI may give a type other bounds; its children have the same ones.
fn known(mpi: &str, tree: &Tree, ours: &Datatype) -> Option<Deviation> {
    let mut tree = tree.clone();
    let has_empty_block = match &tree {
        Tree::Indexed(blocks, _) | Tree::Hindexed(blocks, _) => blocks.iter().any(|b| b.0 == 0),
        Tree::Struct(blocks) => blocks.iter().any(|b| b.0 == 0),
        _ => false,
    };
    let is_struct = matches!(tree, Tree::Struct(_));
    let is_darray = matches!(tree, Tree::Darray(..));
    let places: Vec<i64> = match &tree {
        Tree::Indexed(blocks, _) | Tree::Hindexed(blocks, _) => {
            blocks.iter().map(|b| b.1).collect()
        }
        Tree::Struct(blocks) => blocks.iter().map(|b| b.1).collect(),
        Tree::IndexedBlock(_, places, _) | Tree::HindexedBlock(_, places, _) => places.clone(),
        _ => Vec::new(),
    };
    let maps: Vec<Map> = children(&mut tree).iter().map(|child| map(child)).collect();
    let empty = ours.size() == 0 || has_empty_block || maps.iter().any(|m| m.entries.is_empty());
    let marked = maps.iter().any(|child| child.marked);
    let align = i64::from(ours.alignment());
    let alike = match &tree {
        Tree::Struct(blocks) if blocks.len() > 1 => {
            let first = basic(&blocks[0].2);
            first.is_some() && blocks.iter().all(|block| basic(&block.2) == first)
        }
        _ => true,
    };
    let mpich = mpi == "mpich";
    if empty {
        Some(Deviation::EmptyCounts)
    } else if mpich && is_struct && marked {
        Some(Deviation::MarkersIgnored)
    } else if mpich && is_darray {
        Some(Deviation::DarrayTrueBounds)
    } else if mpich && align > 1 && (!is_struct || alike) {
        Some(Deviation::OnlyStructsPadded)
    } else if !mpich && align > 1 && places.windows(2).any(|pair| pair[0] > pair[1]) {
        Some(Deviation::PaddedAsItGrows)
    } else {
        None
    }
}

/// Why an MPI may move other bytes of a type with the same bounds.
fn moves_otherwise(mpi: &str, tree: &Tree) -> Option<Deviation> {
    let strides = |child: &Tree, stride: i64| stride * map(child).extent();
    match tree {
        Tree::Named(
            Named::LongDouble
            | Named::CLongDoubleComplex
            | Named::CxxLongDoubleComplex
            | Named::LongDoubleInt,
        ) if mpi == "mpich" => Some(Deviation::LongDoubleValue),
        Tree::Resized(_, extent, _) if mpi == "mpich" && *extent < 0 => {
            Some(Deviation::NegativeExtent)
        }
        Tree::Vector(_, _, stride, child) if strides(child, *stride) == -1 => {
            Some(Deviation::MinusOne)
        }
        Tree::Hvector(_, _, -1, _) => Some(Deviation::MinusOne),
        Tree::Named(_) => None,
        _ if children(&mut tree.clone())
            .iter()
            .any(|c| map(c).extent() == -1) =>
        {
            Some(Deviation::MinusOne)
        }
        _ => None,
    }
    .filter(|deviation| mpi == "openmpi" || *deviation != Deviation::MinusOne)
}

/// What the oracle says, in the words of [`facts`].
fn oracle(tree: &Tree) -> String {
    let map = map(tree);
    let (low, high) = map.true_bounds();
    let lb = map.lb.unwrap_or(0);
    format!(
        "type {} {lb} {} {low} {}",
        map.size(),
        map.extent(),
        high - low
    )
}

/// Gives explicit bounds to the innermost types whose bounds differ, and replaces those that are
/// known to be moved otherwise. What cannot be explained is the error.
fn pin(peer: &mut Peer, tree: &mut Tree, found: &mut HashSet<Deviation>) -> Result<(), String> {
    // Something in place of what is empty would be there as often as nothing is now, which may be
    // a thousand times a thousand times.
    let is_empty = map(tree).entries.is_empty();
    for child in children(tree).into_iter().filter(|_| !is_empty) {
        pin(peer, child, found)?;
    }
    if let Some(deviation) = moves_otherwise(peer.mpi, tree) {
        found.insert(deviation);
        *tree = Tree::Named(Named::CDoubleComplex);
        return Ok(());
    }
    let datatype = generate::build(tree).map_err(|e| e.to_string())?;
    let expression = datatype.expression();
    let answer = peer.ask(&format!("type {expression}"));
    // Even where the bounds agree, Open MPI may lose its way among members without data.
    let has_empty = match &*tree {
        Tree::Struct(blocks) => blocks.iter().any(|b| map(&b.2).entries.is_empty()),
        _ => false,
    };
    if answer.starts_with("bad ") || agree(&datatype, &answer) && !has_empty {
        return Ok(());
    }
    let (ours, right) = (facts(&datatype), oracle(tree));
    let Some(deviation) = known(peer.mpi, tree, &datatype).filter(|_| ours == right) else {
        return Err(format!(
            "bounds of {}:\n  ours   {ours}\n  oracle {right}\n  theirs {answer}",
            shown(&expression)
        ));
    };
    found.insert(deviation);
    // A type that is empty here and not there is the same in no way; something else serves.
    *tree = if datatype.size() == 0 || !deviation.is_pinned() {
        Tree::Named(Named::Short)
    } else {
        // MPICH counts empty members among the true bounds too, which nothing pins.
        let mut full = tree.clone();
        match &mut full {
            Tree::Struct(blocks) => blocks.retain(|b| b.0 > 0 && !map(&b.2).entries.is_empty()),
            Tree::Indexed(blocks, _) | Tree::Hindexed(blocks, _) => blocks.retain(|b| b.0 > 0),
            _ => {}
        }
        let (lb, extent) = (datatype.lower_bound(), datatype.extent());
        Tree::Resized(lb, extent, Box::new(full))
    };
    Ok(())
}

fn shown(expression: &str) -> String {
    expression.chars().take(600).collect()
}

/// Compares one type with one library.
fn compare(peer: &mut Peer, tree: &Tree, count: u64, round: u64, tally: &mut Tally) {
    let Err(difference) = attempt(peer, tree, count, round, tally) else {
        return;
    };
    let (mut pinned, mut found) = (tree.clone(), HashSet::new());
    let result = pin(peer, &mut pinned, &mut found).and_then(|()| {
        if found.is_empty() {
            Err(difference)
        } else {
            attempt(peer, &pinned, count, round, tally)
        }
    });
    for deviation in found {
        *tally.deviations.entry(deviation).or_default() += 1;
    }
    if let Err(difference) = result {
        tally
            .differences
            .push(format!("{}: {difference}", peer.mpi));
    }
}

/// Compares one type as it is; the error is the difference.
fn attempt(
    peer: &mut Peer,
    tree: &Tree,
    count: u64,
    round: u64,
    tally: &mut Tally,
) -> Result<(), String> {
    let datatype = generate::build(tree).map_err(|e| e.to_string())?;
    let expression = datatype.expression();
    let again: Datatype = expression.parse().expect("is an expression");
    assert_eq!(again.expression(), expression);
    let answer = peer.ask(&format!("type {expression}"));
    if answer.starts_with("bad ") {
        tally.refused += 1;
        return Ok(());
    }
    let differ = |what: &str, ours: &str, theirs: &str| {
        let shown = shown(&expression);
        format!("{what} of {count} x {shown}:\n  ours   {ours}\n  theirs {theirs}")
    };
    if !agree(&datatype, &answer) {
        return Err(differ("size and bounds", &facts(&datatype), &answer));
    }
    let layout = Layout::new(&datatype, count).map_err(|e| e.to_string())?;
    let area = layout.bounds();
    let (low, high) = (area.start.min(0), area.end.max(0));
    if i128::from(high) - i128::from(low) > SPAN || i128::from(layout.size()) > SPAN {
        tally.same += 1;
        return Ok(());
    }
    let (span, origin) = ((high - low) as usize, -low as isize);
    let size = layout.size() as usize;
    let ready = peer.ask(&format!("buffers {span} {origin} {size} {count}"));
    assert_eq!(ready, "ok");

    let mut user = vec![0; span];
    let mut packed = vec![0x5a; size];
    fill(&mut user, round);
    layout.pack(&user, origin, &mut packed).expect("packs");
    let one = map(tree);
    let all = Map::place((0..count as i64).map(|i| (i * one.extent(), &one)));
    let right = all.bytes().into_iter().map(|at| user[(at - low) as usize]);
    if !right.eq(packed.iter().copied()) {
        return Err(differ(
            "packed bytes",
            "others than the oracle's",
            "not asked",
        ));
    }
    let ours = format!("hash {:016x}", hash(&packed));
    let theirs = peer.ask(&format!("hash pack {round}"));
    if ours != theirs {
        return Err(differ("packed bytes", &ours, &theirs));
    }
    // Where pieces overlap, MPI leaves it open which of them is unpacked last.
    let mut taken = HashSet::new();
    let once = layout
        .segments()
        .all(|s| (s.offset..s.offset + s.len as i64).all(|byte| taken.insert(byte)));
    if once {
        user.fill(0x5a);
        fill(&mut packed, round);
        layout.unpack(&packed, &mut user, origin).expect("unpacks");
        let ours = format!("hash {:016x}", hash(&user));
        let theirs = peer.ask(&format!("hash unpack {round}"));
        if ours != theirs {
            return Err(differ("unpacked bytes", &ours, &theirs));
        }
    }
    if size > 0 && has_plain_external(&datatype) {
        external(
            peer,
            &datatype,
            count,
            round,
            once,
            (&mut user, origin),
            tally,
        )
        .map_err(|(what, ours, theirs)| differ(what, &ours, &theirs))?;
    }
    tally.same += 1;
    Ok(())
}

/// Whether external32 has all elements in the same number of bytes, and the libraries agree on
/// which: they do not for `long double` and complex numbers.
fn has_plain_external(datatype: &Datatype) -> bool {
    let mut elements = Elements::new(datatype, 1).expect("has a size");
    elements.all(|(element, _)| {
        let is_odd = match element.class {
            Class::Complex | Class::QuadComplex => true,
            Class::Float | Class::Quad => element.size > 8,
            Class::Signed | Class::Unsigned | Class::Bytes => false,
        };
        element.size == element.external && !is_odd
    })
}

/// Compares what is packed and, if no byte is there twice (`once`), unpacked in external32; the
/// error is what differs, ours and theirs.
fn external(
    peer: &mut Peer,
    datatype: &Datatype,
    count: u64,
    round: u64,
    once: bool,
    (user, origin): (&mut [u8], isize),
    tally: &mut Tally,
) -> Result<(), (&'static str, String, String)> {
    let size = datatype.external_size(count).expect("fits") as usize;
    let mut packed = vec![0x5a; size];
    fill(user, round);
    let written = datatype.pack_external(count, user, origin, &mut packed);
    assert_eq!(written.expect("packs"), size);
    let ours = format!("hash {:016x}", hash(&packed));
    let theirs = peer.ask(&format!("external pack {round}"));
    // MPICH 4.0 refuses pairs of different numbers, or dies of them, and of other types here and
    // there.
    if theirs.starts_with("bad ") || theirs == "died" && peer.mpi == "mpich" {
        return Ok(());
    }
    if ours != theirs {
        return Err(("external32 packed", ours, theirs));
    }
    if once {
        user.fill(0x5a);
        fill(&mut packed, round);
        let read = datatype.unpack_external(count, &packed, user, origin);
        assert_eq!(read.expect("unpacks"), size);
        let ours = format!("hash {:016x}", hash(user));
        let theirs = peer.ask(&format!("external unpack {round}"));
        if theirs == "died" && peer.mpi == "mpich" {
            return Ok(());
        }
        if ours != theirs {
            return Err(("external32 unpacked", ours, theirs));
        }
    }
    tally.external += 1;
    Ok(())
}

fn judge(mpi: &str, tally: &Tally, cases: usize) {
    eprintln!(
        "{mpi}: {} of {cases} the same ({} of them in external32 as well), {} that it cannot build, {} \
         differences; known deviations: {:?}",
        tally.same,
        tally.external,
        tally.refused,
        tally.differences.len(),
        tally.deviations
    );
    for difference in tally.differences.iter().take(20) {
        eprintln!("{difference}");
    }
    assert!(
        tally.differences.is_empty(),
        "{} differences",
        tally.differences.len()
    );
    assert!(
        tally.same * 2 > cases,
        "only {} of {cases} compared",
        tally.same
    );
    assert!(
        tally.external * 10 > cases,
        "only {} of {cases} compared in external32",
        tally.external
    );
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| {
        value
            .parse()
            .unwrap_or_else(|_| panic!("{name}={value} is not a number"))
    })
}

fn random_types(mpi: &'static str) {
    let Some(mut peer) = Peer::new(mpi) else {
        return;
    };
    let (cases, seed) = (
        number("LIBCOPY_TYPES", 300),
        number("LIBCOPY_TYPES_SEED", 1),
    );
    let mut tally = Tally::default();
    for case in 0..cases {
        let state = seed.wrapping_mul(1 << 32).wrapping_add(case);
        let list: Vec<u16> = (1..=160u64)
            .map(|i| mix(mix(state) ^ i.wrapping_mul(0x9e37_79b9_7f4a_7c15)) as u16)
            .collect();
        let mut choices = generate::Choices::new(&list);
        let (tree, _) = generate::tree(&mut choices, 1 + (case % 8) as u32, 1000);
        compare(&mut peer, &tree, 1 + case % 3, case, &mut tally);
    }
    judge(mpi, &tally, cases as usize);
}

/// A type as a description, so that the oracle can look at it and at what it is made of.
fn described(datatype: &Datatype) -> Tree {
    let one = |child: &Datatype| Box::new(described(child));
    let pairs = |lengths: &[u64], places: &[i64]| {
        let lengths = lengths.iter().copied();
        lengths.zip(places.iter().copied()).collect()
    };
    match datatype.contents() {
        Contents::Named(named) => Tree::Named(*named),
        Contents::Contiguous { count, child } => Tree::Contiguous(*count, one(child)),
        Contents::Vector {
            count,
            blocklength,
            stride,
            child,
        } => Tree::Vector(*count, *blocklength, *stride, one(child)),
        Contents::Hvector {
            count,
            blocklength,
            stride,
            child,
        } => Tree::Hvector(*count, *blocklength, *stride, one(child)),
        Contents::Indexed {
            blocklengths,
            displacements,
            child,
        } => Tree::Indexed(pairs(blocklengths, displacements), one(child)),
        Contents::Hindexed {
            blocklengths,
            displacements,
            child,
        } => Tree::Hindexed(pairs(blocklengths, displacements), one(child)),
        Contents::Struct {
            blocklengths,
            displacements,
            children,
        } => Tree::Struct(
            blocklengths
                .iter()
                .zip(displacements.iter())
                .zip(children.iter())
                .map(|((&n, &at), child)| (n, at, described(child)))
                .collect(),
        ),
        Contents::Subarray {
            sizes,
            subsizes,
            starts,
            order,
            child,
        } => Tree::Subarray(
            (0..sizes.len())
                .map(|d| (sizes[d], subsizes[d], starts[d]))
                .collect(),
            *order,
            one(child),
        ),
        Contents::Darray {
            rank,
            sizes,
            distributions,
            processes,
            order,
            child,
            ..
        } => Tree::Darray(
            (0..sizes.len())
                .map(|d| (sizes[d], distributions[d], processes[d]))
                .collect(),
            *rank,
            *order,
            one(child),
        ),
        Contents::Resized {
            lower_bound,
            extent,
            child,
        } => Tree::Resized(*lower_bound, *extent, one(child)),
        other => panic!("{other:?} is not among the hard cases"),
    }
}

/// What has gone wrong elsewhere before.
const HARD: &[&str] = &[
    "indexed([0,0,3,0],[9,-4,2,100],int)",
    "indexed([0,0],[7,8],double)",
    "indexed([],[],int)",
    "hindexed([2,0,1],[16,1000000,0],short)",
    "struct([0,1,0],[-100,8,500],[double,int,char])",
    "struct([1,1],[0,8],[int,vector(0,3,5,double)])",
    "vector(0,5,7,int)",
    "vector(4,0,7,int)",
    "contiguous(0,resized(-4,40,int))",
    "contiguous(20705,struct([1,1],[0,8],[double,int]))",
    "contiguous(20705,struct([1,1,1],[0,4,8],[int,char,double]))",
    "contiguous(20705,double_int)",
    "contiguous(20705,short_int)",
    "struct([1,4],[179,106],[c_double_complex,2double_precision])",
    "struct([1,1],[0,57],[complex,contiguous(1,2real)])",
    "struct([1,1],[0,57],[2int,complex])",
    "struct([1,1],[0,57],[contiguous(2,double),double_complex])",
    "struct([1,1],[0,57],[vector(2,1,2,int),vector(2,1,2,int)])",
    "vector(3,2,-4,double)",
    "vector(5,3,2,int)",
    "resized(-8,-24,contiguous(2,int))",
    "contiguous(3,resized(4,-16,int))",
    "subarray([5,6,7],[2,3,4],[1,2,3],fortran,resized(0,12,int))",
    "subarray([1],[1],[0],c,byte)",
    "darray(6,5,[10,9],[block,cyclic(2)],[2,3],c,int)",
    "darray(4,3,[3],[block],[4],c,int)",
    "hvector(2000000000,1,2000000000,byte)",
    "vector(2147483647,1,3,int)",
    "contiguous(2147483647,contiguous(1000,double))",
    "contiguous(3000000000,int)",
];

fn hard_cases(mpi: &'static str) {
    let Some(mut peer) = Peer::new(mpi) else {
        return;
    };
    let mut tally = Tally::default();
    for (i, text) in HARD.iter().enumerate() {
        let datatype: Datatype = text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
        let tree = described(&datatype);
        compare(&mut peer, &tree, 1 + i as u64 % 2, i as u64, &mut tally);
    }
    judge(mpi, &tally, HARD.len());
}

#[test]
fn random_types_are_the_same_in_open_mpi() {
    random_types("openmpi");
}

#[test]
fn random_types_are_the_same_in_mpich() {
    random_types("mpich");
}

#[test]
fn hard_cases_are_the_same_in_open_mpi() {
    hard_cases("openmpi");
}

#[test]
fn hard_cases_are_the_same_in_mpich() {
    hard_cases("mpich");
}
