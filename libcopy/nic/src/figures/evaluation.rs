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
