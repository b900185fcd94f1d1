// SPDX-License-Identifier: MIT OR Apache-2.0

//! The kernels as PTX, made from `kernels/pack.cu` by `scripts/kernels`.

/// The PTX, compressed with zlib.
static COMPRESSED: &[u8] = include_bytes!("../kernels/pack.ptx.z");

/// The PTX of all kernels, with the zero byte behind it that `cuModuleLoadData` looks for.
pub fn ptx() -> Vec<u8> {
    let mut text = miniz_oxide::inflate::decompress_to_vec_zlib(COMPRESSED)
        .expect("the file was compressed by scripts/kernels, and a test decompresses it");
    text.push(0);
    text
}

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

    use super::ptx;
    use crate::Kernel;

    #[test]
    fn the_ptx_is_that_of_the_source() {
        let source = include_bytes!("../kernels/pack.cu");
        let sum: String = Sha256::digest(source)
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let ptx = String::from_utf8(ptx()).unwrap();
        let first = ptx.lines().next().unwrap();
        assert_eq!(
            first,
            format!("// SHA-256 of pack.cu: {sum}"),
            "run scripts/kernels after changes of pack.cu"
        );
        for kernel in Kernel::all() {
            assert!(
                ptx.contains(&format!(".visible .entry {kernel}(")),
                "{kernel}"
            );
        }
        let entries = ptx.matches(".visible .entry").count();
        assert_eq!(entries, Kernel::all().count());
    }
}
