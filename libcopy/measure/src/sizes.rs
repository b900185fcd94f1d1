// SPDX-License-Identifier: MIT OR Apache-2.0

//! Message sizes as people write them: `4096`, `4K`, `1M`, and lists and ranges of them.

use std::str::FromStr;

/// What `--sizes` takes: single sizes and ranges with a common factor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sizes(pub Vec<usize>);

/// Factor between the sizes of a range that does not name one.
const FACTOR: usize = 4;

/// The sizes from `first` to `last`, each `factor` times the one before; `last` is always there.
pub fn range(first: usize, last: usize, factor: usize) -> Vec<usize> {
    let mut sizes = Vec::new();
    let mut size = first;
    while size < last {
        sizes.push(size);
        size = size.saturating_mul(factor);
    }
    sizes.push(last);
    sizes
}

/// Reads one size: a number with an optional unit K, M or G (powers of 1024).
///
/// # Errors
///
/// What is no size, or one beyond the address space, is named.
pub fn parse(text: &str) -> Result<usize, String> {
    let wrong = || format!("size {text:?} is not a number like 4096, 4K, 1M or 1GiB");
    let upper = text.trim().to_ascii_uppercase();
    let digits = upper.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match &upper[digits.len()..] {
        "" | "B" => 0,
        "K" | "KB" | "KIB" => 10,
        "M" | "MB" | "MIB" => 20,
        "G" | "GB" | "GIB" => 30,
        _ => return Err(wrong()),
    };
    let number: usize = digits.parse().map_err(|_| wrong())?;
    number.checked_mul(1 << shift).ok_or_else(wrong)
}

/// Writes a size the short way: `64K`, `1M`, `100`.
pub fn short(bytes: usize) -> String {
    match bytes {
        0 => "0".into(),
        b if b % (1 << 30) == 0 => format!("{}G", b >> 30),
        b if b % (1 << 20) == 0 => format!("{}M", b >> 20),
        b if b % (1 << 10) == 0 => format!("{}K", b >> 10),
        b => b.to_string(),
    }
}

impl FromStr for Sizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut sizes = Vec::new();
        for part in text.split(',') {
            let (span, factor) = match part.split_once(':') {
                Some((span, factor)) => (
                    span,
                    factor
                        .parse()
                        .ok()
                        .filter(|f| *f >= 2)
                        .ok_or_else(|| format!("factor {factor:?} is not a number above 1"))?,
                ),
                None => (part, FACTOR),
            };
            match span.split_once('-') {
                Some((first, last)) => {
                    let (first, last) = (parse(first)?, parse(last)?);
                    if first == 0 || first > last {
                        return Err(format!(
                            "range {span:?} must go from a size above 0 to a larger one"
                        ));
                    }
                    sizes.extend(range(first, last, factor));
                }
                None => sizes.push(parse(span)?),
            }
        }
        sizes.sort_unstable();
        sizes.dedup();
        Ok(Sizes(sizes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_ranges() {
        assert_eq!("1,4K".parse::<Sizes>().unwrap().0, [1, 4096]);
        assert_eq!(
            "64K-1M".parse::<Sizes>().unwrap().0,
            [65536, 262144, 1048576]
        );
        assert_eq!("1-8:2".parse::<Sizes>().unwrap().0, [1, 2, 4, 8]);
        assert_eq!("1-6:2".parse::<Sizes>().unwrap().0, [1, 2, 4, 6]);
        assert_eq!("1MiB".parse::<Sizes>().unwrap().0, [1 << 20]);
    }

    #[test]
    fn nonsense_names_the_value() {
        for wrong in ["", "4X", "-4", "9-3", "0-3", "1-4:1", "99999999999999G"] {
            assert!(wrong.parse::<Sizes>().is_err(), "{wrong:?}");
        }
        assert!("4X".parse::<Sizes>().unwrap_err().contains("4X"));
    }

    #[test]
    fn short_forms_read_back() {
        for bytes in [0, 1, 1000, 4096, 65536, 3 << 20, 4 << 30] {
            assert_eq!(parse(&short(bytes)).unwrap(), bytes);
        }
    }
}
