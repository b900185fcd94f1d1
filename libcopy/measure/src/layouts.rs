// SPDX-License-Identifier: MIT OR Apache-2.0

//! Layouts of real applications, written from their published descriptions.
//!
//! Most are the communication kernels that Schneider, Gerstenberger and Hoefler collected
//! ("Micro-applications for communication data access patterns and MPI datatypes", EuroMPI 2012):
//! WRF, MILC, NAS LU and MG, LAMMPS, SPECFEM3D, FFT2D. COMB is the halo exchange of Lawrence
//! Livermore's benchmark of that name, SW4LITE the one of the seismic code. Here each stands once,
//! as a type expression that libcopy and the MPI programs both build, and as the numbers of the
//! loops that somebody would write by hand (`tests/peers/type_loops.c`). The two are written down
//! independently of each other; the benchmark compares what they pack.

use std::fmt::Write as _;

/// How large a case is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// From 1 KiB on.
    Small,
    /// As large as in publications.
    Medium,
    /// Up to 16 MiB.
    Large,
}

/// One layout in one size.
#[derive(Clone, Debug)]
pub struct Case {
    /// The application and the direction.
    pub layout: String,
    /// How large.
    pub tier: Tier,
    /// The type.
    pub expression: String,
    /// What its basic elements are: all of one kind.
    pub element: &'static str,
    /// The loops, for `type_loops.c`.
    pub loops: String,
}

/// A block of `block` bytes at `offset`, repeated in three dimensions, the innermost first.
struct Rows {
    offset: u64,
    block: u64,
    counts: [u64; 3],
    strides: [u64; 3],
}

fn boxes(all: &[Rows]) -> String {
    let mut text = format!("boxes {}", all.len());
    for rows in all {
        let _ = write!(text, " {} {}", rows.offset, rows.block);
        for (n, stride) in rows.counts.iter().zip(rows.strides) {
            let _ = write!(text, " {n} {stride}");
        }
    }
    text
}

/// A block in three nested loops. Nobody writes a loop of one round: those go outside.
fn rows(offset: u64, block: u64, mut counts: [u64; 3], mut strides: [u64; 3]) -> Rows {
    while counts[0] == 1 && counts != [1; 3] {
        counts.rotate_left(1);
        strides.rotate_left(1);
    }
    Rows {
        offset,
        block,
        counts,
        strides,
    }
}

fn joined<T: ToString>(list: impl IntoIterator<Item = T>) -> String {
    let words: Vec<String> = list.into_iter().map(|x| x.to_string()).collect();
    words.join(",")
}

/// The `counts` of a structure of single elements.
fn structure(places: &[u64], types: &[String]) -> String {
    format!(
        "struct([1*{}],[{}],[{}])",
        places.len(),
        joined(places),
        types.join(",")
    )
}

/// Numbers that look random and are the same on every machine.
struct Sequence(u64);

impl Sequence {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)) % n
    }
}

/// Collects the cases.
struct Book {
    cases: Vec<Case>,
}

impl Book {
    fn add(
        &mut self,
        layout: &str,
        tier: Tier,
        element: &'static str,
        expression: String,
        loops: String,
    ) {
        self.cases.push(Case {
            layout: layout.to_owned(),
            tier,
            expression,
            element,
            loops,
        });
    }

    /// WRF, a weather model: the halo of four 2D, three 3D and two 4D arrays of floats (i fastest,
    /// then k, then j, then the scalar), in one message. Of the 4D arrays one scalar is sent.
    /// `ni`, `nj`, `nk` are the halo's size, `mi`, `mj` that of the arrays in memory.
    fn wrf(&mut self, axis: &str, tier: Tier, [ni, nj, nk]: [u64; 3], [mi, mj]: [u64; 2]) {
        let (first_i, first_j) = (2, 1);
        let (flat, solid) = (4 * mi * mj, 4 * mi * mj * nk);
        let mut at = 0;
        let (mut places, mut loops) = (Vec::new(), Vec::new());
        let (mut vectors, mut arrays) = (Vec::new(), Vec::new());
        for dimensions in [2, 2, 2, 2, 3, 3, 3, 4, 4] {
            // The second of two scalars.
            let skipped = if dimensions == 4 { solid } else { 0 };
            let levels = if dimensions == 2 { 1 } else { nk };
            let corner = 4 * (first_i + mi * levels * first_j);
            let base = at + skipped;
            loops.push(rows(
                base + corner,
                4 * ni,
                [levels, nj, 1],
                [4 * mi, 4 * mi * levels, 0],
            ));
            places.push(base);
            arrays.push(format!(
                "subarray([{mi},{levels},{mj}],[{ni},{levels},{nj}],[{first_i},0,{first_j}],\
                 fortran,float)"
            ));
            vectors.push(if dimensions == 2 {
                format!("vector({nj},{ni},{mi},float)")
            } else {
                format!(
                    "hvector({nj},1,{},vector({nk},{ni},{mi},float))",
                    4 * mi * nk
                )
            });
            at += skipped + if dimensions == 2 { flat } else { solid };
        }
        let corners: Vec<u64> = loops.iter().map(|l| l.offset).collect();
        let loops = boxes(&loops);
        let name = format!("WRF_{axis}");
        let vector = structure(&corners, &vectors);
        self.add(&format!("{name}_vec"), tier, "float", vector, loops.clone());
        self.add(
            &format!("{name}_sa"),
            tier,
            "float",
            structure(&places, &arrays),
            loops,
        );
    }

    /// MILC, lattice quantum chromodynamics: the `su3_zdown` half of a lattice of x*y*z*t sites in
    /// even and odd ones, of which each is 6 floats.
    fn milc(&mut self, name: &str, tier: Tier, [x, y, z, t]: [u64; 4]) {
        let (run, plane, half) = (x * y / 2, x * y * z / 2, x * y * z * t / 2);
        let expression = format!(
            "hvector(2,1,{},vector({t},{run},{plane},contiguous(6,float)))",
            24 * half
        );
        let loops = boxes(&[rows(0, 24 * run, [t, 2, 1], [24 * plane, 24 * half, 0])]);
        self.add(name, tier, "float", expression, loops);
    }

    /// NAS LU: an array (5, n, n) of doubles; x is contiguous, y is not.
    fn lu(&mut self, tier: Tier, n: u64) {
        let x = format!("contiguous({},double)", 5 * n);
        let loops = boxes(&[rows(0, 40 * n, [1; 3], [0; 3])]);
        self.add("NAS_LU_x", tier, "double", x, loops);
        let y = format!("vector({n},5,{},double)", 5 * n);
        let loops = boxes(&[rows(0, 40, [n, 1, 1], [40 * n, 0, 0])]);
        self.add("NAS_LU_y", tier, "double", y, loops);
    }

    /// NAS MG: the three faces of an array of n^3 doubles, without its border.
    fn mg(&mut self, tier: Tier, n: u64) {
        let (m, row, plane) = (n - 2, 8 * n, 8 * n * n);
        let x = format!("hvector({m},1,{plane},vector({m},1,{n},double))");
        self.add(
            "NAS_MG_x",
            tier,
            "double",
            x,
            boxes(&[rows(0, 8, [m, m, 1], [row, plane, 0])]),
        );
        let y = format!("vector({m},{m},{},double)", n * n);
        self.add(
            "NAS_MG_y",
            tier,
            "double",
            y,
            boxes(&[rows(0, 8 * m, [m, 1, 1], [plane, 0, 0])]),
        );
        self.mg_z("NAS_MG_z", tier, n, n);
    }

    /// NAS MG: a plane of `nx` times `ny` doubles, x fastest, without its border.
    fn mg_z(&mut self, name: &str, tier: Tier, nx: u64, ny: u64) {
        let (m, rows_there) = (nx - 2, ny - 2);
        self.add(
            name,
            tier,
            "double",
            format!("vector({rows_there},{m},{nx},double)"),
            boxes(&[rows(0, 8 * m, [rows_there, 1, 1], [8 * nx, 0, 0])]),
        );
    }

    /// LAMMPS, molecular dynamics: the properties of `count` of `atoms` atoms that leave a domain,
    /// each property an array: `scalars` of them, and the position. Atoms in order of their
    /// places, as after sorting, or in any order.
    fn lammps(&mut self, style: &str, scalars: u64, tier: Tier, count: u64, atoms: u64) {
        let mut random = Sequence(count);
        let mut shuffled: Vec<u64> = (0..atoms).collect();
        for i in (1..shuffled.len()).rev() {
            shuffled.swap(i, random.below(i as u64 + 1) as usize);
        }
        shuffled.truncate(count as usize);
        let mut sorted = shuffled.clone();
        sorted.sort_unstable();
        for (order, list) in [("sorted", sorted), ("shuffled", shuffled)] {
            let indexes = joined(&list);
            let triples = joined(list.iter().map(|i| 3 * i));
            let words: Vec<String> = list.iter().map(u64::to_string).collect();
            let words = words.join(" ");
            let mut types = vec![format!("indexed_block(1,[{indexes}],double)"); scalars as usize];
            types.push(format!("indexed_block(3,[{triples}],double)"));
            let places: Vec<u64> = (0..=scalars).map(|i| 8 * i * atoms).collect();
            let mut loops = format!("index {}", places.len());
            for (i, place) in places.iter().enumerate() {
                let block = if i as u64 == scalars { 24 } else { 8 };
                let _ = write!(loops, " {place} {block} {count} {words}");
            }
            self.add(
                &format!("LAMMPS_{style}_{order}"),
                tier,
                "double",
                structure(&places, &types),
                loops,
            );
        }
    }

    /// The points that two parts of a mesh share: mostly ascending in stretches, hardly ever
    /// neighbours; `neighbours` of a thousand are.
    fn shared_points(count: u64, neighbours: u64) -> Vec<u64> {
        let mut random = Sequence(count ^ neighbours);
        let mut at = 0;
        let ascending: Vec<u64> = (0..count)
            .map(|_| {
                at += if random.below(1000) < neighbours {
                    1
                } else {
                    2 + random.below(9)
                };
                at
            })
            .collect();
        let mut stretches: Vec<&[u64]> = ascending.chunks(25).collect();
        for i in (1..stretches.len()).rev() {
            stretches.swap(i, random.below(i as u64 + 1) as usize);
        }
        stretches.concat()
    }

    /// SPECFEM3D_GLOBE, seismic waves: a float per shared point of the outer core (oc), three for
    /// crust and mantle and for the inner core (cm), and the stations of mt.
    fn specfem(&mut self, tier: Tier, outer: u64, mantle: u64, inner: u64, stations: u64) {
        let words = |list: &[u64]| {
            let words: Vec<String> = list.iter().map(u64::to_string).collect();
            words.join(" ")
        };
        let points = Self::shared_points(outer, 40);
        self.add(
            "SPECFEM3D_oc",
            tier,
            "float",
            format!("indexed_block(1,[{}],float)", joined(&points)),
            format!("index 1 0 4 {outer} {}", words(&points)),
        );
        let (a, b) = (
            Self::shared_points(mantle, 14),
            Self::shared_points(inner, 14),
        );
        let behind = 12 * (a.iter().max().unwrap_or(&0) + 1);
        let triples = |list: &[u64]| {
            format!(
                "indexed_block(3,[{}],float)",
                joined(list.iter().map(|i| 3 * i))
            )
        };
        self.add(
            "SPECFEM3D_cm",
            tier,
            "float",
            structure(&[0, behind], &[triples(&a), triples(&b)]),
            format!(
                "index 2 0 12 {mantle} {} {behind} 12 {inner} {}",
                words(&a),
                words(&b)
            ),
        );
        self.add(
            "SPECFEM3D_mt",
            tier,
            "float",
            format!("vector({stations},3,6,float)"),
            boxes(&[rows(0, 12, [stations, 1, 1], [24, 0, 0])]),
        );
    }

    /// FFT2D: the transpose between the two passes of a Fourier transform of n × n complex
    /// numbers on two ranks: the columns of half of the columns, one after the other.
    fn fft(&mut self, tier: Tier, n: u64) {
        let half = n / 2;
        self.add(
            "FFT2D",
            tier,
            "double",
            format!("contiguous({half},resized(0,16,vector({half},1,{n},contiguous(2,double))))"),
            format!("columns 0 {half} {} {half}", 16 * n),
        );
    }

    /// COMB: faces and an edge of a mesh of n^3 cells with a border of one, three variables of
    /// doubles in a message.
    fn comb(&mut self, tier: Tier, n: u64) {
        let m = n + 2;
        let each = 8 * m * m * m;
        for (name, subsizes, starts) in [
            ("COMB_x", [n, n, 1], [1, 1, n]),
            ("COMB_y", [n, 1, n], [1, n, 1]),
            ("COMB_z", [1, n, n], [n, 1, 1]),
            ("COMB_edge", [n, 1, 1], [1, n, n]),
        ] {
            let one = format!(
                "subarray([{m},{m},{m}],[{}],[{}],c,double)",
                joined(subsizes),
                joined(starts)
            );
            let places = [0, each, 2 * each];
            let loops: Vec<Rows> = places
                .iter()
                .map(|place| {
                    let first = 8 * ((starts[0] * m + starts[1]) * m + starts[2]);
                    // A row of single cells is a loop, one of several is a block.
                    rows(
                        place + first,
                        8 * subsizes[2],
                        [subsizes[1], subsizes[0], 1],
                        [8 * m, 8 * m * m, 0],
                    )
                })
                .collect();
            let types = [one.clone(), one.clone(), one];
            self.add(
                name,
                tier,
                "double",
                structure(&places, &types),
                boxes(&loops),
            );
        }
    }

    /// SW4LITE, earthquakes: the sides of an array (i fastest, j, k, component) of doubles, two
    /// points deep.
    fn sw4(&mut self, tier: Tier, n: u64) {
        self.add(
            "SW4LITE_x",
            tier,
            "double",
            format!("vector({},2,{n},double)", 3 * n * n),
            boxes(&[rows(0, 16, [3 * n * n, 1, 1], [8 * n, 0, 0])]),
        );
        self.add(
            "SW4LITE_y",
            tier,
            "double",
            format!("vector({},{},{},double)", 3 * n, 2 * n, n * n),
            boxes(&[rows(0, 16 * n, [3 * n, 1, 1], [8 * n * n, 0, 0])]),
        );
    }

    /// The faces of n^3 doubles.
    fn stencil(&mut self, tier: Tier, n: u64) {
        for (name, subsizes, starts) in [
            ("stencil_x", [n, n, 1], [0, 0, n - 1]),
            ("stencil_y", [n, 1, n], [0, n - 1, 0]),
            ("stencil_z", [1, n, n], [n - 1, 0, 0]),
        ] {
            let first = 8 * ((starts[0] * n + starts[1]) * n + starts[2]);
            self.add(
                name,
                tier,
                "double",
                format!(
                    "subarray([{n},{n},{n}],[{}],[{}],c,double)",
                    joined(subsizes),
                    joined(starts)
                ),
                boxes(&[rows(
                    first,
                    8 * subsizes[2],
                    [subsizes[1], subsizes[0], 1],
                    [8 * n, 8 * n * n, 0],
                )]),
            );
        }
    }

    /// What a halo of two cells takes from n^3 doubles along the dimension whose cells follow one
    /// another: the last two cells of each row of an array with a border of two.
    fn halo(&mut self, tier: Tier, n: u64) {
        let m = n + 4;
        self.add(
            "halo3D_z2",
            tier,
            "double",
            format!("subarray([{m},{m},{m}],[{n},{n},2],[2,2,{n}],c,double)"),
            boxes(&[rows(
                8 * ((2 * m + 2) * m + n),
                16,
                [n, n, 1],
                [8 * m, 8 * m * m, 0],
            )]),
        );
    }

    /// Blocks of `block` bytes, every other one, `bytes` in all.
    fn vector(&mut self, tier: Tier, block: u64, bytes: u64) {
        let (n, length) = (bytes / block, block / 8);
        self.add(
            &format!("vector_{block}B"),
            tier,
            "double",
            format!("vector({n},{length},{},double)", 2 * length),
            boxes(&[rows(0, block, [n, 1, 1], [2 * block, 0, 0])]),
        );
    }

    /// A box of bytes whose rows have an odd length, `n` planes of it.
    fn odd(&mut self, tier: Tier, n: u64) {
        self.add(
            "subarray_47B",
            tier,
            "byte",
            format!("subarray([{n},20,64],[{n},13,47],[0,3,9],c,byte)"),
            boxes(&[rows(3 * 64 + 9, 47, [13, n, 1], [64, 20 * 64, 0])]),
        );
    }
}

/// All cases, layout by layout.
pub fn cases() -> Vec<Case> {
    use Tier::{Large, Medium, Small};
    let mut book = Book { cases: Vec::new() };
    book.wrf("x", Small, [3, 8, 8], [18, 14]);
    book.wrf("x", Medium, [3, 44, 65], [31, 51]);
    book.wrf("x", Large, [3, 1000, 65], [31, 1007]);
    book.wrf("y", Small, [8, 3, 8], [18, 14]);
    book.wrf("y", Medium, [23, 3, 65], [31, 51]);
    book.wrf("y", Large, [1000, 3, 65], [1008, 16]);
    book.milc("MILC_su3_zdown", Small, [8; 4]);
    book.milc("MILC_su3_zdown", Medium, [16; 4]);
    book.milc("MILC_su3_zdown", Large, [32; 4]);
    book.lu(Small, 33);
    book.lu(Medium, 102);
    book.lu(Large, 408);
    book.mg(Small, 34);
    book.mg(Medium, 130);
    book.mg(Large, 258);
    for (style, scalars) in [("full", 5), ("atomic", 3)] {
        book.lammps(style, scalars, Small, 100, 115);
        book.lammps(style, scalars, Medium, 3062, 3534);
        book.lammps(style, scalars, Large, 48_992, 56_544);
    }
    book.specfem(Small, 300, 180, 60, 180);
    book.specfem(Medium, 3225, 8990, 2807, 7600);
    book.specfem(Large, 400_000, 90_000, 28_000, 300_000);
    book.fft(Small, 64);
    book.fft(Medium, 512);
    book.fft(Large, 1024);
    book.fft(Large, 2048);
    book.comb(Small, 16);
    book.comb(Medium, 100);
    book.comb(Large, 180);
    book.sw4(Small, 20);
    book.sw4(Medium, 100);
    book.sw4(Large, 180);
    book.stencil(Small, 32);
    book.stencil(Medium, 128);
    book.stencil(Large, 256);
    book.halo(Small, 28);
    book.halo(Medium, 124);
    book.halo(Large, 252);
    for block in [8, 16, 64, 256, 512, 1024, 4096] {
        book.vector(Small, block, 16 << 10);
        book.vector(Medium, block, 256 << 10);
        book.vector(Large, block, 4 << 20);
    }
    book.vector(Large, 8, 16 << 20);
    book.odd(Small, 10);
    book.odd(Medium, 100);
    book.odd(Large, 4000);
    by_layout(&book)
}

/// Lists of blocks of 1 to 2, ..., 1 to 16 doubles, in ascending places with gaps of 1 to 4
/// doubles. Lengths and gaps are random numbers, the same in each run.
pub fn irregular_cases() -> Vec<Case> {
    const COUNTS: [usize; 7] = [1000, 3000, 10_000, 30_000, 100_000, 300_000, 1_000_000];
    const LONGEST: [u64; 10] = [2, 3, 4, 5, 6, 8, 10, 12, 14, 16];
    let mut cases = Vec::new();
    for count in COUNTS {
        for longest in LONGEST {
            let mut state = longest;
            let mut below = |bound: u64| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) % bound
            };
            let mut end = 0;
            let blocks: Vec<(u64, u64)> = (0..count)
                .map(|_| {
                    let (length, at) = (1 + below(longest), end);
                    end = at + length + 1 + below(4);
                    (length, at)
                })
                .collect();
            let lengths = joined(blocks.iter().map(|block| block.0));
            let places = joined(blocks.iter().map(|block| block.1));
            let mut loops = format!("lengths {count}");
            for (length, at) in blocks {
                let _ = write!(loops, " {at} {length}");
            }
            cases.push(Case {
                layout: format!("1..{longest} x {count}"),
                tier: match count {
                    1000 | 10_000 | 100_000 => Tier::Medium,
                    _ => Tier::Large,
                },
                expression: format!("indexed([{lengths}],[{places}],double)"),
                element: "double",
                loops,
            });
        }
    }
    cases
}

/// The parameter sets of figures 9 to 11 of the paper on FALCON-X: its MILC, WRF_y_vec and
/// NAS_MG_z. Of WRF it gives the bounds in i alone; with the 65 levels and 3 rows of our other
/// cases D has its 3.8 MB.
pub fn paper_cases() -> Vec<Case> {
    let mut book = Book { cases: Vec::new() };
    for (set, sites) in [
        ("A", [16, 16, 32, 32]),
        ("B", [32, 32, 32, 32]),
        ("C", [64, 64, 32, 32]),
        ("D", [128, 128, 32, 32]),
        ("E", [128, 128, 64, 64]),
    ] {
        // Two lattices of E are 1.6 GB.
        let tier = if set == "E" {
            Tier::Large
        } else {
            Tier::Medium
        };
        book.milc(&format!("MILC_su3_zd_{set}"), tier, sites);
    }
    for (set, ime, ie) in [
        ("A", 140, 136),
        ("B", 268, 264),
        ("C", 524, 520),
        ("D", 1036, 1032),
    ] {
        let mut wrf = Book { cases: Vec::new() };
        wrf.wrf(
            &format!("y_vec_{set}"),
            Tier::Medium,
            [ie - 8 + 1, 3, 65],
            [ime - 4 + 1, 16],
        );
        book.cases.extend(wrf.cases.into_iter().filter(|c| {
            // The other one has subarrays, which the paper does not show.
            c.layout.ends_with("_vec")
        }));
    }
    for case in &mut book.cases {
        if let Some(name) = case.layout.strip_suffix("_vec") {
            case.layout = name.to_owned();
        }
    }
    for (set, nx, ny) in [
        ("A", 258, 130),
        ("B", 512, 258),
        ("C", 768, 258),
        ("D", 1024, 258),
        ("E", 2048, 258),
    ] {
        book.mg_z(&format!("NAS_MG_z_{set}"), Tier::Medium, nx, ny);
    }
    book.cases
}

/// Layout by layout, sizes ascending within.
fn by_layout(book: &Book) -> Vec<Case> {
    let mut sorted: Vec<Case> = Vec::new();
    for case in &book.cases {
        if sorted.iter().any(|c| c.layout == case.layout) {
            continue;
        }
        sorted.extend(
            book.cases
                .iter()
                .filter(|c| c.layout == case.layout)
                .cloned(),
        );
    }
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;
    use libcopy::datatype::{Datatype, Layout};

    #[test]
    fn sizes_and_segments_are_the_published_ones() {
        let cases = cases();
        let find = |layout: &str, tier: Tier| {
            let case = cases.iter().find(|c| c.layout == layout && c.tier == tier);
            let datatype: Datatype = case.unwrap().expression.parse().unwrap();
            let layout = Layout::new(&datatype, 1).unwrap();
            (layout.size(), layout.segment_count())
        };
        for (layout, tier, bytes, segments) in [
            ("WRF_x_vec", Tier::Medium, 173_712, 14_476),
            ("WRF_x_sa", Tier::Medium, 173_712, 14_476),
            ("WRF_y_vec", Tier::Medium, 90_804, 987),
            ("WRF_y_sa", Tier::Medium, 90_804, 987),
            ("MILC_su3_zdown", Tier::Small, 12_288, 16),
            ("MILC_su3_zdown", Tier::Large, 786_432, 64),
            ("NAS_LU_y", Tier::Medium, 4080, 102),
            ("NAS_MG_x", Tier::Medium, 131_072, 16_384),
            ("NAS_MG_x", Tier::Large, 524_288, 65_536),
            ("SPECFEM3D_mt", Tier::Medium, 91_200, 7600),
            ("FFT2D", Tier::Medium, 1_048_576, 65_536),
            ("stencil_x", Tier::Large, 524_288, 65_536),
            ("stencil_y", Tier::Large, 524_288, 256),
            ("stencil_z", Tier::Large, 524_288, 1),
            ("halo3D_z2", Tier::Medium, 246_016, 15_376),
            ("vector_512B", Tier::Medium, 262_144, 512),
            ("subarray_47B", Tier::Medium, 61_100, 1300),
        ] {
            assert_eq!(find(layout, tier), (bytes, segments), "{layout}");
        }
        let paper = |layout: &str| {
            let cases = paper_cases();
            let case = cases.iter().find(|c| c.layout == layout).unwrap();
            let datatype: Datatype = case.expression.parse().unwrap();
            datatype.size()
        };
        // "Roughly a 768 KB message", "a total of 3.8 MB message size".
        assert_eq!(paper("MILC_su3_zd_B"), 786_432);
        assert_eq!(paper("WRF_y_vec_D"), 4_046_700);
        assert_eq!(paper("NAS_MG_z_E"), 2046 * 256 * 8);
        assert_eq!(find("LAMMPS_full_sorted", Tier::Medium).0, 195_968);
        assert_eq!(find("SPECFEM3D_oc", Tier::Medium).0, 12_900);
        assert_eq!(find("SPECFEM3D_cm", Tier::Medium).0, 141_564);
    }
}
