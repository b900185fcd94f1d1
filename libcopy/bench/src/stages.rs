// SPDX-License-Identifier: MIT OR Apache-2.0

//! A simulated collective as a figure: which rank is in which stage when.

use libcopy_model::simulate::{Simulation, Work};
use std::fmt::Write as _;

/// Which rank is in which stage of `operation` when, as SVG.
pub fn draw(simulation: &Simulation, ranks: usize, operation: &str) -> String {
    const COLOURS: [&str; 6] = [
        "#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9",
    ];
    let (left, top, wide) = (60.0, 30.0, 900.0);
    let row = (600.0 / ranks as f64).clamp(2.0, 20.0);
    let height = top + row * ranks as f64 + 40.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {height:.0}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<text x=\"{left}\" y=\"18\">{operation}: stages of {ranks} ranks (simulated)</text>\n",
        left + wide + 20.0
    );
    let scale = wide / simulation.seconds.max(f64::MIN_POSITIVE);
    for Work {
        rank,
        stage,
        start,
        end,
    } in &simulation.work
    {
        let width = (end - start) * scale;
        if width > 0.0 {
            let _ = writeln!(
                svg,
                "<rect x=\"{:.2}\" y=\"{:.2}\" width=\"{width:.2}\" height=\"{:.2}\" fill=\"{}\"/>",
                left + start * scale,
                top + row * *rank as f64,
                row * 0.9,
                COLOURS[stage % COLOURS.len()]
            );
        }
    }
    let bottom = top + row * ranks as f64 + 16.0;
    let _ = write!(
        svg,
        "<text x=\"{left}\" y=\"{bottom:.0}\">0</text>\n<text x=\"{:.0}\" y=\"{bottom:.0}\" text-anchor=\"end\">{:.1} \
         us</text>\n<text x=\"10\" y=\"{:.0}\">rank 0</text>\n<text x=\"10\" y=\"{:.0}\">{}</text>\n</svg>\n",
        left + wide,
        simulation.seconds * 1e6,
        top + 10.0,
        top + row * ranks as f64,
        ranks - 1
    );
    svg
}
