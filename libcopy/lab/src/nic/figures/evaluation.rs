// SPDX-License-Identifier: MIT OR Apache-2.0

//! All figures, in the order of the paper.

use super::applications::{figure_19, figures_16_17_18};
use super::claim::Figure;
use super::micro::{figure_8, figure_12, figure_13a, figures_10_11, figures_13bc, figures_14_15};
use super::study::{Error, Study};

/// Makes all figures.
///
/// # Errors
///
/// A type that cannot be built or received: a defect of this crate, or no application's type at
/// all.
pub fn figures(study: &mut Study<'_>) -> Result<Vec<Figure>, Error> {
    let mut all = vec![figure_8(study)?];
    all.extend(figures_10_11(study)?);
    all.push(figure_12(study)?);
    all.push(figure_13a(study)?);
    all.extend(figures_13bc(study)?);
    all.extend(figures_14_15(study)?);
    all.extend(figures_16_17_18(study)?);
    all.push(figure_19(study)?);
    Ok(all)
}

/// How often [`Study::progress`] is called.
pub fn steps(study: &Study<'_>) -> u64 {
    // Five strategies: figure 8 by block size, 12 and 14 by five numbers of blocks, 13a by the
    // number of HPUs; 10 and 11, 13b, 13c; and figure 19 by the number of ranks.
    let (blocks, hpus, ranks) = if study.is_quick {
        (7, 6, 3)
    } else {
        (13, 9, 4)
    };
    5 * (blocks + 5 + hpus + 5) + 3 + study.applications.len() as u64 + ranks
}

#[cfg(test)]
mod tests {
    use super::super::claim::{Held, csv};
    use super::*;
    use crate::nic::host::HostTable;
    use libcopy::datatype::Layout;

    #[test]
    fn every_figure_has_claims_and_none_is_wrong_without_a_reason() {
        let applications: Vec<(String, Layout)> = [
            ("one packet", "vector(100, 1, 2, double)"),
            ("vector", "vector(20000, 16, 40, double)"),
            ("nested", "hvector(30, 1, 80000, vector(500, 2, 9, double))"),
            ("tiny", "vector(100000, 1, 2, float)"),
        ]
        .map(|(name, expression)| {
            let layout = Layout::new(&expression.parse().unwrap(), 1).unwrap();
            (name.to_owned(), layout)
        })
        .to_vec();
        let mut done = 0;
        let mut progress = |_: &str| done += 1;
        let host = HostTable::built_in();
        let mut study = Study {
            is_quick: true,
            host: &host,
            applications: &applications,
            progress: &mut progress,
        };
        let expected = steps(&study);
        let all = figures(&mut study).unwrap();
        assert_eq!(done, expected);
        let numbers: Vec<&str> = all.iter().map(|figure| figure.number).collect();
        assert_eq!(
            numbers,
            [
                "8", "10", "11", "12", "13a", "13b", "13c", "14", "15", "16", "17", "18", "19"
            ]
        );
        for figure in &all {
            assert!(!figure.claims.is_empty(), "{}", figure.number);
            for series in &figure.series {
                assert!(
                    !series.points.is_empty(),
                    "{} {}",
                    figure.number,
                    series.name
                );
                let is_finite = series
                    .points
                    .iter()
                    .all(|p| p.0.is_finite() && p.1.is_finite());
                assert!(is_finite, "{} {}", figure.number, series.name);
            }
            for claim in &figure.claims {
                assert_ne!(claim.held, Held::No, "{claim:?}");
            }
        }
        let text = csv(all.iter().flat_map(|figure| &figure.claims));
        println!("{text}");
        let claims: usize = all.iter().map(|figure| figure.claims.len()).sum();
        assert_eq!(text.lines().count(), claims + 1);
    }
}
