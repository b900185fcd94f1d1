// SPDX-License-Identifier: MIT OR Apache-2.0

//! The kernels as PTX, made from `kernels/pack.cu` by `scripts/kernels`.

use crate::launch::Kernel;

/// All kernels but `copy_bulk`, for compute capability 7.0 and newer.
static PACK: &[u8] = include_bytes!("../kernels/pack.ptx.z");

/// `copy_bulk`, for compute capability 9.0 and newer.
static BULK: &[u8] = include_bytes!("../kernels/bulk.ptx.z");

/// What benchmarks compare with, for compute capability 7.0 and newer.
static BASELINE: &[u8] = include_bytes!("../kernels/baseline.ptx.z");

/// A text that one module is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ptx {
    /// For compute capability 7.0 and newer: all kernels but [`Kernel::CopyBulk`].
    Pack,
    /// For compute capability 9.0 and newer: [`Kernel::CopyBulk`].
    Bulk,
    /// For compute capability 7.0 and newer: [`Kernel::baselines`].
    Baseline,
}

impl Ptx {
    /// The PTX, with the zero byte behind it that `cuModuleLoadData` looks for.
    pub fn text(self) -> Vec<u8> {
        let compressed = match self {
            Ptx::Pack => PACK,
            Ptx::Bulk => BULK,
            Ptx::Baseline => BASELINE,
        };
        let mut text = miniz_oxide::inflate::decompress_to_vec_zlib(compressed)
            .expect("the file was compressed by scripts/kernels, and a test decompresses it");
        text.push(0);
        text
    }

    /// The kernels in it.
    pub fn kernels(self) -> impl Iterator<Item = Kernel> {
        Kernel::all()
            .chain(Kernel::baselines())
            .filter(move |kernel| self == Ptx::of(*kernel))
    }

    /// The text that a kernel is in.
    fn of(kernel: Kernel) -> Ptx {
        if Kernel::baselines().any(|baseline| baseline == kernel) {
            Ptx::Baseline
        } else if kernel == Kernel::CopyBulk {
            Ptx::Bulk
        } else {
            Ptx::Pack
        }
    }
}

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

    use super::Ptx;

    #[test]
    fn the_ptx_is_that_of_the_source() {
        let source = include_bytes!("../kernels/pack.cu");
        let sum: String = Sha256::digest(source)
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        for part in [Ptx::Pack, Ptx::Bulk, Ptx::Baseline] {
            let ptx = String::from_utf8(part.text()).unwrap();
            assert_eq!(
                ptx.lines().next().unwrap(),
                format!("// SHA-256 of pack.cu: {sum}"),
                "run scripts/kernels after changes of pack.cu"
            );
            for kernel in part.kernels() {
                assert!(
                    ptx.contains(&format!(".visible .entry {kernel}(")),
                    "{kernel}"
                );
            }
            let entries = ptx.matches(".visible .entry").count();
            assert_eq!(entries, part.kernels().count());
        }
    }
}
