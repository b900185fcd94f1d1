// SPDX-License-Identifier: MIT OR Apache-2.0

//! Figures of ratios: per operation a panel, per case a row, per peer a dot.

use crate::sample::geometric_mean;
use std::fmt::Write as _;

/// What is drawn.
pub struct Figure {
    /// Title.
    pub title: String,
    /// What machine it was.
    pub machine: String,
    /// A line under it.
    pub notes: String,
    /// What the dots stand for.
    pub series: Vec<String>,
    /// Panels, side by side: their names and rows. All have the rows of the first.
    pub panels: Vec<(String, Vec<Row>)>,
}

/// A case.
pub struct Row {
    /// What stands to its left.
    pub label: String,
    /// A ratio for each of the series.
    pub ratios: Vec<Option<f64>>,
}

/// Okabe and Ito's colours, which colour-blind readers tell apart.
const COLOURS: [&str; 6] = [
    "#d55e00", "#0072b2", "#009e73", "#cc79a7", "#606060", "#56b4e9",
];
/// Of all texts of figures that are written here.
pub(crate) const FONT: &str = "font-family=\"DejaVu Sans, Helvetica, Arial, sans-serif\"";

/// A text as SVG has it.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

/// Draws it as SVG.
pub fn draw(figure: &Figure) -> String {
    let (row, left, panel, top) = (15.0, 230.0, 400.0, 116.0);
    let ratios = figure
        .panels
        .iter()
        .flat_map(|(_, rows)| rows)
        .flat_map(|row| row.ratios.iter().flatten().copied());
    let (low, high) = ratios.fold((0.8f64, 1.25f64), |(low, high), r| {
        (low.min(r), high.max(r))
    });
    // What is far slower than memcpy of as many bytes stands at the edge.
    let (low, high) = (low.log2().floor().max(-4.0), high.log2().ceil());
    let place = |ratio: f64| ((ratio.log2() - low) / (high - low)).clamp(0.0, 1.0) * panel;
    let rows = figure.panels.first().map_or(0, |(_, rows)| rows.len());
    // The title needs as much, and the notes.
    let width = (left + (panel + 24.0) * figure.panels.len() as f64).max(960.0);
    let height = top + row * rows as f64 + 56.0;
    let mut svg = String::new();
    let write = |svg: &mut String, x: f64, y: f64, size: f64, anchor: &str, text: &str| {
        let _ = writeln!(
            svg,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"{size}\" text-anchor=\"{anchor}\" {FONT}>{}</text>",
            escape(text)
        );
    };
    let _ = writeln!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\"><rect width=\"100%\" height=\"100%\" fill=\"white\"/>"
    );
    write(&mut svg, 16.0, 28.0, 20.0, "start", &figure.title);
    write(&mut svg, 16.0, 50.0, 12.0, "start", &figure.machine);
    write(&mut svg, 16.0, 67.0, 12.0, "start", &figure.notes);
    for (i, name) in figure.series.iter().enumerate() {
        let x = 24.0 + 140.0 * i as f64;
        let colour = COLOURS[i % COLOURS.len()];
        let _ = writeln!(
            svg,
            "<circle cx=\"{x}\" cy=\"84\" r=\"4\" fill=\"{colour}\"/>"
        );
        write(&mut svg, x + 10.0, 88.0, 13.0, "start", name);
    }
    for (p, (name, rows)) in figure.panels.iter().enumerate() {
        let x0 = left + (panel + 24.0) * p as f64;
        let bottom = top + row * rows.len() as f64;
        write(&mut svg, x0 + panel / 2.0, top - 8.0, 14.0, "middle", name);
        for power in low as i32..=high as i32 {
            let ratio = f64::from(power).exp2();
            let (x, weight) = (x0 + place(ratio), if power == 0 { 1.6 } else { 0.4 });
            let _ = writeln!(
                svg,
                "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{top}\" y2=\"{bottom}\" stroke=\"#888\" \
                 stroke-width=\"{weight}\"/>"
            );
            write(
                &mut svg,
                x,
                bottom + 16.0,
                11.0,
                "middle",
                &ratio.to_string(),
            );
        }
        for (i, line) in rows.iter().enumerate() {
            let y = top + row * (i as f64 + 0.5);
            if p == 0 {
                write(&mut svg, left - 8.0, y + 4.0, 11.0, "end", &line.label);
            }
            for (o, ratio) in line.ratios.iter().enumerate() {
                if let Some(ratio) = ratio {
                    let _ = writeln!(
                        svg,
                        "<circle cx=\"{:.1}\" cy=\"{y:.1}\" r=\"3.4\" fill=\"{}\" \
                         fill-opacity=\"0.85\"/>",
                        x0 + place(*ratio),
                        COLOURS[o % COLOURS.len()]
                    );
                }
            }
        }
        let means: Vec<String> = figure
            .series
            .iter()
            .enumerate()
            .filter_map(|(o, name)| {
                let ratios: Vec<f64> = rows.iter().filter_map(|row| row.ratios[o]).collect();
                Some(format!("{name} {:.2}", geometric_mean(&ratios)?))
            })
            .collect();
        let means = format!("geometric mean: {}", means.join(", "));
        write(
            &mut svg,
            x0 + panel / 2.0,
            bottom + 38.0,
            11.0,
            "middle",
            &means,
        );
    }
    svg.push_str("</svg>\n");
    svg
}
