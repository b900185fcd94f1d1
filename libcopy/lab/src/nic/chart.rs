// SPDX-License-Identifier: MIT OR Apache-2.0

//! Figures as one drawing: a panel each, with the paper's claims below.

use super::figures::{Claim, Figure, Held, Series};
use anyhow::{Result, anyhow};
use plotters::prelude::*;

const FONT: &str = "DejaVu Sans, Helvetica, Arial, sans-serif";
const WIDTH: u32 = 620;
const CHART: u32 = 340;
const LINE: u32 = 17;
/// Characters in a line of a claim.
const FITS: usize = 92;
/// Lines of claims that have room.
const LINES: u32 = 12;
/// Colours that colour-blind readers tell apart (Okabe and Ito).
const COLORS: [RGBColor; 7] = [
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x56, 0xb4, 0xe9),
    RGBColor(0x60, 0x60, 0x60),
];

/// A scale: logarithmic if values differ by more than 30 times.
#[derive(Clone, Copy)]
struct Scale {
    low: f64,
    high: f64,
    is_log: bool,
}

impl Scale {
    fn of(values: impl Iterator<Item = f64> + Clone) -> Scale {
        let low = values.clone().fold(f64::INFINITY, f64::min);
        let high = values.fold(f64::NEG_INFINITY, f64::max);
        let is_log = low > 0.0 && high > 30.0 * low;
        let mut scale = Scale { low, high, is_log };
        (scale.low, scale.high) = (scale.to(low), scale.to(high));
        if !is_log {
            scale.low = scale.low.min(0.0);
        }
        let margin = ((scale.high - scale.low) * 0.05).max(1e-6);
        scale.high += margin;
        if is_log {
            scale.low -= margin;
        }
        scale
    }

    fn to(self, value: f64) -> f64 {
        if self.is_log { value.log2() } else { value }
    }

    fn label(self, position: f64) -> String {
        let value = if self.is_log {
            position.exp2()
        } else {
            position
        };
        if value >= 10.0 || value == 0.0 {
            format!("{value:.0}")
        } else {
            format!("{value:.2}")
        }
    }
}

/// Lines of at most [`FITS`] characters.
fn wrapped(text: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let last = lines.len() - 1;
        if !lines[last].is_empty() && lines[last].chars().count() + word.chars().count() >= FITS {
            lines.push(format!("    {word}"));
        } else {
            if !lines[last].is_empty() {
                lines[last].push(' ');
            }
            lines[last].push_str(word);
        }
    }
    lines
}

fn claim_lines(claim: &Claim) -> Vec<String> {
    let mark = if claim.held == Held::Yes {
        "✓"
    } else {
        "≠"
    };
    wrapped(&format!(
        "{mark} {}: paper {}, ours {}",
        claim.claim, claim.paper, claim.ours
    ))
}

fn failed<E: std::error::Error + Send + Sync>(error: DrawingAreaErrorKind<E>) -> anyhow::Error {
    anyhow!("cannot draw the figure: {error}")
}

/// Draws all figures as SVG, under a line that says that they are simulated.
pub fn draw(figures: &[Figure], note: &str) -> Result<String> {
    let panel = CHART + LINES * LINE;
    let rows = figures.len().div_ceil(2);
    let (width, height) = (2 * WIDTH, 60 + rows as u32 * panel);
    let mut drawing = String::new();
    {
        let area = SVGBackend::with_string(&mut drawing, (width, height)).into_drawing_area();
        area.fill(&WHITE).map_err(failed)?;
        let (top, panels) = area.split_vertically(60);
        let title = TextStyle::from((FONT, 20).into_font());
        let small = TextStyle::from((FONT, 12).into_font());
        let heading = "Simulated: datatypes on a network card, and the claims of the paper";
        top.draw_text(heading, &title, (16, 8)).map_err(failed)?;
        top.draw_text(note, &small, (16, 38)).map_err(failed)?;
        for (figure, cell) in figures.iter().zip(panels.split_evenly((rows, 2))) {
            let (chart, claims) = cell.split_vertically(CHART);
            draw_panel(&chart, figure)?;
            let lines = figure.claims.iter().flat_map(claim_lines);
            for (i, line) in lines.take(LINES as usize).enumerate() {
                let place = (20, (i as u32 * LINE) as i32);
                claims.draw_text(&line, &small, place).map_err(failed)?;
            }
        }
        area.present().map_err(failed)?;
    }
    Ok(drawing)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn draw_panel(area: &Area<'_>, figure: &Figure) -> Result<()> {
    let points = || figure.series.iter().flat_map(|series| &series.points);
    let (x, y) = (
        Scale::of(points().map(|p| p.0)),
        Scale::of(points().map(|p| p.1)),
    );
    let caption = format!("Fig. {}: {}", figure.number, figure.title);
    let mut chart = ChartBuilder::on(area)
        .caption(caption, (FONT, 14))
        .margin(8)
        .margin_right(24)
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d(x.low..x.high, y.low..y.high)
        .map_err(failed)?;
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .x_label_formatter(&|v| x.label(*v))
        .y_label_formatter(&|v| y.label(*v))
        .x_desc(figure.x)
        .y_desc(figure.y)
        .label_style((FONT, 12))
        .draw()
        .map_err(failed)?;
    for (Series { name, points }, color) in figure.series.iter().zip(COLORS.iter().cycle()) {
        let placed: Vec<(f64, f64)> = points.iter().map(|p| (x.to(p.0), y.to(p.1))).collect();
        let color = *color;
        chart
            .draw_series(LineSeries::new(placed, color.stroke_width(2)))
            .map_err(failed)?
            .label(name)
            .legend(move |(x, y)| {
                PathElement::new(vec![(x, y), (x + 18, y)], color.stroke_width(2))
            });
    }
    chart
        .configure_series_labels()
        .background_style(WHITE.mix(0.8))
        .border_style(RGBColor(0xcc, 0xcc, 0xcc))
        .label_font((FONT, 11))
        .position(SeriesLabelPosition::UpperLeft)
        .draw()
        .map_err(failed)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drawing_has_the_claims_beside_the_lines() {
        let figure = Figure {
            number: "8",
            title: "a title",
            x: "blocks",
            y: "Gbit/s",
            series: vec![Series::new("seek", vec![(4.0, 1.0), (4096.0, 200.0)])],
            claims: vec![Claim {
                figure: "8",
                claim: "line rate".to_owned(),
                paper: "64 bytes".to_owned(),
                ours: "128 bytes".to_owned(),
                held: Held::No,
            }],
        };
        let drawing = draw(&[figure], "a note").unwrap();
        for word in [
            "Simulated",
            "a title",
            "seek",
            "64 bytes",
            "128 bytes",
            "a note",
        ] {
            assert!(drawing.contains(word), "{word}");
        }
    }
}
