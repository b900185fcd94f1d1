// SPDX-License-Identifier: MIT OR Apache-2.0

//! The layouts of "Network-Assisted Noncontiguous Transfers for GPU-Aware MPI Libraries", section
//! "Performance Evaluation". The application layouts are those of DDTBench (Schneider,
//! Gerstenberger, Hoefler: "Micro-applications for communication data access patterns and MPI
//! datatypes", EuroMPI 2012), with the paper's grid dimensions.

use libcopy_datatype::{Datatype, Layout, Named, Result};

use crate::choice::Method;

/// A layout of the paper.
#[derive(Clone, Debug)]
pub struct Workload {
    /// For example `milc-A`.
    pub name: String,
    /// One message's elements at either end.
    pub layout: Layout,
    /// The method that the paper's thresholds choose on a card with memory keys.
    pub expected: Method,
}

fn workload(name: impl Into<String>, datatype: &Datatype, expected: Method) -> Result<Workload> {
    Ok(Workload {
        name: name.into(),
        layout: Layout::new(datatype, 1)?,
        expected,
    })
}

/// `count` blocks of `len` bytes, one block apart.
///
/// # Errors
///
/// More bytes than fit into 63 bits.
pub fn vector(count: u64, len: u64) -> Result<Layout> {
    let byte = Datatype::named(Named::Uint8);
    Layout::new(&byte.vector(count, len, 2 * len as i64)?, 1)
}

/// The application layouts.
///
/// # Errors
///
/// None that these layouts have.
pub fn applications() -> Result<Vec<Workload>> {
    let float = Datatype::named(Named::Float);
    let double = Datatype::named(Named::Double);
    let byte = Datatype::named(Named::Uint8);
    let mut all = Vec::new();
    // MILC_su3_zd: of each of two parities, a plane of su3 vectors (24 B) per time step.
    for (name, [x, y, z, t]) in [
        ("A", [8, 8, 16, 32]),
        ("B", [8, 16, 16, 32]),
        ("C", [16, 16, 32, 32]),
        ("D", [16, 32, 32, 32_u64]),
    ] {
        let su3_vector = float.contiguous(6)?;
        let plane = su3_vector.vector(t, x * y / 2, (x * y * z / 2) as i64)?;
        let parities = plane.hvector(2, 1, (x * y * z * t / 2 * 24) as i64)?;
        all.push(workload(format!("milc-{name}"), &parities, Method::Umr)?);
    }
    // NAS_MG_y: a row of each inner plane.
    for (name, [x, y, z]) in [
        ("A", [512, 66, 66]),
        ("B", [1024, 66, 66]),
        ("C", [2048, 66, 120_u64]),
    ] {
        let rows = double.vector(z - 2, x - 2, (x * y) as i64)?;
        all.push(workload(format!("nas-mg-{name}"), &rows, Method::Umr)?);
    }
    // SPECFEM3D_mt: every second row of 1,024 single-precision numbers.
    for (name, [x, y, z]) in [
        ("A", [1024, 2, 32]),
        ("B", [1024, 2, 64]),
        ("C", [1024, 2, 128_u64]),
    ] {
        let rows = float.vector(z, x, (x * y) as i64)?;
        all.push(workload(
            format!("specfem3d-mt-{name}"),
            &rows,
            Method::Umr,
        )?);
    }
    let sw4lite = |count, len, stride| byte.vector(count, len, stride);
    all.push(workload(
        "sw4lite-x",
        &sw4lite(55, 5120, 1 << 19)?,
        Method::Umr,
    )?);
    all.push(workload(
        "sw4lite-y",
        &sw4lite(3000, 48, 5120)?,
        Method::Pack,
    )?);
    all.push(workload(
        "fft-alltoallw",
        &sw4lite(64, 1024, 8192)?,
        Method::Umr,
    )?);
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iov::Shape;

    #[test]
    fn the_shapes_are_those_of_the_paper() {
        let shapes: Vec<(String, u64, u64)> = applications()
            .unwrap()
            .iter()
            .map(|one| {
                let shape = Shape::of(&one.layout);
                assert_eq!(shape.min, shape.unit, "{}: equal blocks", one.name);
                (one.name.clone(), shape.blocks, shape.min)
            })
            .collect();
        let expected = [
            ("milc-A", 64, 768),
            ("milc-B", 64, 1536),
            ("milc-C", 64, 3072),
            ("milc-D", 64, 6144),
            ("nas-mg-A", 64, 4080),
            ("nas-mg-B", 64, 8176),
            ("nas-mg-C", 118, 16368),
            ("specfem3d-mt-A", 32, 4096),
            ("specfem3d-mt-B", 64, 4096),
            ("specfem3d-mt-C", 128, 4096),
            ("sw4lite-x", 55, 5120),
            ("sw4lite-y", 3000, 48),
            ("fft-alltoallw", 64, 1024),
        ]
        .map(|(name, blocks, len)| (name.to_owned(), blocks, len));
        assert_eq!(shapes, expected);
    }
}
