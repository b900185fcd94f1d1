// SPDX-License-Identifier: MIT OR Apache-2.0

//! What FALCON-X (Hashmi et al., JPDC 2020) says that its designs gain on processors, for the
//! figures that `scripts/bench mpi` measures as well.

/// A sentence of the paper about some of the rows.
#[derive(Clone, Copy, Debug)]
pub struct Claim {
    /// Where it stands.
    pub figure: &'static str,
    /// The operation it is about.
    pub op: &'static str,
    /// What the layout's name begins with.
    pub layout: &'static str,
    /// Bytes of a block, from and up to but not including.
    pub blocks: (usize, usize),
    /// Numbers of ranks it is about, from and up to.
    pub ranks: (usize, usize),
    /// How many times as fast as which libraries.
    pub says: &'static str,
}

const ANY: (usize, usize) = (0, usize::MAX);
const SHORT: (usize, usize) = (0, 16 << 10);
const LONG: (usize, usize) = (16 << 10, usize::MAX);

const fn claim(figure: &'static str, op: &'static str, says: &'static str) -> Claim {
    Claim {
        figure,
        op,
        layout: "",
        blocks: ANY,
        ranks: ANY,
        says,
    }
}

/// All of them, in the order of the paper. Percentages are given as it gives them.
pub const CLAIMS: [Claim; 14] = [
    Claim {
        blocks: (0, (8 << 10) + 1),
        ..claim(
            "6 (a)",
            "latency",
            "up to 3 x its own shared memory, to 8 KiB",
        )
    },
    Claim {
        blocks: SHORT,
        ..claim(
            "8 (a)",
            "latency",
            "up to 3 x the best library, below 16 KiB",
        )
    },
    Claim {
        blocks: LONG,
        ..claim(
            "8 (a)",
            "latency",
            "up to 2 x the best library, from 16 KiB on",
        )
    },
    claim("8 (b)", "bandwidth", "\"similar improvements\" as in 8 (a)"),
    claim(
        "8 (c)",
        "bibandwidth",
        "twice its own bandwidth; others gain nothing over one direction",
    ),
    Claim {
        layout: "MILC_su3_zd_B",
        ..claim(
            "9 (a)",
            "typed-pingpong",
            "31.2 % over Open MPI 3.1, up to 11 x MVAPICH2-X 2.3",
        )
    },
    Claim {
        layout: "MILC_su3_zd_",
        ..claim("9", "typed-pingpong", "\"almost all the grid dimensions\"")
    },
    Claim {
        layout: "WRF_y_vec_A",
        ..claim(
            "10 (a)",
            "typed-pingpong",
            "2.1 x Open MPI 3.1, 44 % over Intel MPI 2019, 40.2 % over MVAPICH2-X (small set)",
        )
    },
    Claim {
        layout: "WRF_y_vec_D",
        ..claim(
            "10 (a)",
            "typed-pingpong",
            "22.6 % over Open MPI 3.1, 2.9 x Intel MPI 2019, 2.15 x MVAPICH2-X",
        )
    },
    Claim {
        layout: "NAS_MG_z_E",
        ..claim(
            "11 (a)",
            "typed-pingpong",
            "up to 2 x MVAPICH2-X and Intel MPI 2019, 3 x Intel MPI 2018",
        )
    },
    Claim {
        ranks: (2, 2),
        ..claim(
            "12",
            "stencil-exchange",
            "up to 5.5 x Intel MPI 2019, 2 x MVAPICH2-X (2 ranks)",
        )
    },
    Claim {
        ranks: (3, usize::MAX),
        ..claim(
            "12",
            "stencil-exchange",
            "38.7 % over Intel MPI 2019, 36 % over MVAPICH2-X (16 ranks)",
        )
    },
    Claim {
        ranks: (2, 2),
        ..claim("12", "stencil-step", "(the same, with the computation)")
    },
    Claim {
        ranks: (3, usize::MAX),
        ..claim("12", "stencil-step", "(the same, with the computation)")
    },
];
