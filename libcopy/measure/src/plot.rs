// SPDX-License-Identifier: MIT OR Apache-2.0

//! Figures: one panel per operation, both axes logarithmic, one line per variant with a band from
//! the 10th to the 90th percentile. Written as SVG, and rendered from it as PNG with a font that
//! is compiled in, so that a machine without fonts (the guest) draws the same picture.

use crate::report::{Report, Row, SIMULATED, digits, first_seen, write_file};
use crate::sizes;
use anyhow::{Context, Result, anyhow, bail};
use plotters::coord::Shift;
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use resvg::{tiny_skia, usvg};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What is on the vertical axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Axis {
    /// Time of one call.
    Latency,
    /// Message size divided by the time of one call.
    Bandwidth,
}

/// What `bytes` of a row are, on the horizontal axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bytes {
    /// Those of the message.
    Message,
    /// Those of a block.
    Block,
    /// Those of a block; the bytes of every message.
    BlockOf(usize),
    /// How many read at once; the bytes that each reads.
    Readers(usize),
}

/// What is on both axes.
#[derive(Clone, Copy, Debug)]
pub struct Axes {
    /// The vertical one. Bandwidths need the bytes of messages.
    pub y: Axis,
    /// The horizontal one.
    pub x: Bytes,
}

impl From<Axis> for Axes {
    fn from(y: Axis) -> Self {
        Axes {
            y,
            x: Bytes::Message,
        }
    }
}

const FONT: &str = "DejaVu Sans, Helvetica, Arial, sans-serif";
const PANEL: (u32, u32) = (560, 400);
const LEGEND_ROW: u32 = 26;
/// The PNG has twice the SVG's measures: sharp in print.
const PNG_SCALE: f32 = 2.0;

/// Colours that colour-blind readers tell apart (Okabe and Ito), and a marker for black and white.
const STYLES: [(&str, RGBColor, Marker); 18] = [
    ("libcopy", RGBColor(0xe6, 0x9f, 0x00), Marker::Circle),
    ("libcopy-kmod", RGBColor(0xd5, 0x5e, 0x00), Marker::Circle),
    ("libcopy-cma", RGBColor(0x00, 0x72, 0xb2), Marker::Triangle),
    ("libcopy-shm", RGBColor(0x00, 0x9e, 0x73), Marker::Square),
    ("openmpi", RGBColor(0xcc, 0x79, 0xa7), Marker::Cross),
    ("mpich", RGBColor(0x56, 0xb4, 0xe9), Marker::Diamond),
    ("memcpy", RGBColor(0x60, 0x60, 0x60), Marker::None),
    ("flat", RGBColor(0x00, 0x72, 0xb2), Marker::Triangle),
    (SIMULATED, RGBColor(0x60, 0x60, 0x60), Marker::None),
    // Of the device benchmark; those that share a colour share no panel.
    ("4k", RGBColor(0xd5, 0x5e, 0x00), Marker::Diamond),
    ("thp", RGBColor(0x00, 0x72, 0xb2), Marker::Square),
    ("hugetlb", RGBColor(0x00, 0x9e, 0x73), Marker::Triangle),
    ("kmod-bulk", RGBColor(0xe6, 0x9f, 0x00), Marker::Diamond),
    ("cma-iovec", RGBColor(0x56, 0xb4, 0xe9), Marker::Square),
    ("cma-bulk", RGBColor(0x00, 0x9e, 0x73), Marker::Square),
    ("attach", RGBColor(0xcc, 0x79, 0xa7), Marker::Cross),
    ("attach-touched", RGBColor(0xcc, 0x79, 0xa7), Marker::Square),
    ("attach-first", RGBColor(0x56, 0xb4, 0xe9), Marker::Triangle),
];
/// For peers that have no colour of their own.
const MORE: [(RGBColor, Marker); 7] = [
    (RGBColor(0xd5, 0x5e, 0x00), Marker::Circle),
    (RGBColor(0x00, 0x72, 0xb2), Marker::Triangle),
    (RGBColor(0x00, 0x9e, 0x73), Marker::Square),
    (RGBColor(0xcc, 0x79, 0xa7), Marker::Cross),
    (RGBColor(0x56, 0xb4, 0xe9), Marker::Diamond),
    (RGBColor(0xe6, 0x9f, 0x00), Marker::Circle),
    (RGBColor(0x00, 0x00, 0x00), Marker::Square),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Marker {
    None,
    Circle,
    Triangle,
    Square,
    Cross,
    Diamond,
}

#[derive(Clone)]
struct Line {
    name: String,
    color: RGBColor,
    marker: Marker,
    width: u32,
    dashed: bool,
}

/// The lines of all panels; a variant looks the same in each.
fn lines(names: &[&str]) -> Vec<Line> {
    // What policy chose lies under the transport it chose, if that is there: both stay visible.
    let under = |name: &str| name == "libcopy" && names.iter().any(|n| n.starts_with("libcopy-"));
    let known = |name: &str| {
        STYLES
            .iter()
            .find(|(known, ..)| *known == name)
            .map(|(_, color, marker)| (*color, *marker))
    };
    let used: Vec<RGBColor> = names.iter().filter_map(|n| Some(known(n)?.0)).collect();
    let solid = MORE.iter().filter(|(color, _)| !used.contains(color));
    // When all colours are taken, dashed ones with the markers of others.
    let again = |shift| {
        let markers = MORE.iter().cycle().skip(shift);
        MORE.iter()
            .zip(markers)
            .map(|(its, other)| (its.0, other.1))
    };
    let dashed = (1..MORE.len()).flat_map(again).map(|style| (style, true));
    let mut more = solid.map(|style| (*style, false)).chain(dashed);
    let mut lines: Vec<Line> = names
        .iter()
        .map(|name| {
            let is_dashed = ["memcpy", SIMULATED].contains(name);
            let own = known(name).map(|style| (style, is_dashed));
            let unknown = ((BLACK, Marker::None), true);
            let ((color, marker), dashed) = own.or_else(|| more.next()).unwrap_or(unknown);
            Line {
                name: (*name).to_owned(),
                color,
                marker: if under(name) { Marker::None } else { marker },
                width: if under(name) { 9 } else { 2 },
                dashed,
            }
        })
        .collect();
    lines.sort_by_key(|l| u32::MAX - l.width);
    lines
}

/// The paths of a plot: that name with `.png` and with `.svg`.
pub fn paths(path: &Path) -> (PathBuf, PathBuf) {
    (path.with_extension("png"), path.with_extension("svg"))
}

/// Writes the figure of a report. Returns the paths of the PNG and the SVG file.
///
/// # Errors
///
/// No operation has two sizes, or a file cannot be written.
pub fn write(report: &Report, axes: impl Into<Axes>, path: &Path) -> Result<(PathBuf, PathBuf)> {
    write_drawing(&draw(report, axes)?, path)
}

/// Writes an SVG drawing, and a PNG of it. Returns the paths of the PNG and the SVG file.
///
/// # Errors
///
/// The drawing is no SVG, or a file cannot be written.
pub fn write_drawing(drawing: &str, path: &Path) -> Result<(PathBuf, PathBuf)> {
    let (png, svg) = paths(path);
    write_file(&svg, drawing)?;
    write_file(&png, render(drawing)?)?;
    Ok((png, svg))
}

fn render(drawing: &str) -> Result<Vec<u8>> {
    let mut options = usvg::Options::default();
    let fonts = Arc::make_mut(&mut options.fontdb);
    // One face: it stands for the bold one in the PNG, which would be 700 kB more in the tool.
    fonts.load_font_data(dejavu::sans::regular().to_vec());
    let tree = usvg::Tree::from_str(drawing, &options).context("our own SVG is not valid")?;
    let size = tree
        .size()
        .to_int_size()
        .scale_by(PNG_SCALE)
        .context("the figure has no size")?;
    let mut pixels =
        tiny_skia::Pixmap::new(size.width(), size.height()).context("no memory for the picture")?;
    resvg::render(
        &tree,
        tiny_skia::Transform::from_scale(PNG_SCALE, PNG_SCALE),
        &mut pixels.as_mut(),
    );
    pixels.encode_png().context("cannot encode the picture")
}

fn value(row: &Row, time: f64, axes: Axes) -> f64 {
    match axes.y {
        Axis::Latency => time,
        Axis::Bandwidth => {
            let bytes = match axes.x {
                Bytes::BlockOf(bytes) => bytes,
                Bytes::Readers(bytes) => row.bytes * bytes,
                Bytes::Message | Bytes::Block => row.bytes,
            };
            bytes as f64 / time / 1e3
        }
    }
}

/// Draws the figure as SVG.
fn draw(report: &Report, axes: impl Into<Axes>) -> Result<String> {
    let axes = axes.into();
    let rows: Vec<&Row> = report
        .rows
        .iter()
        .filter(|r| r.bytes > 0 && r.time.p10 > 0.0)
        .collect();
    // A panel needs a line, and a line two sizes.
    let ops: Vec<&str> = first_seen(rows.iter().map(|r| r.op.as_str()))
        .into_iter()
        .filter(|op| {
            let mut sizes: Vec<usize> = rows
                .iter()
                .filter(|r| r.op == *op)
                .map(|r| r.bytes)
                .collect();
            sizes.sort_unstable();
            sizes.dedup();
            sizes.len() > 1
        })
        .collect();
    if ops.is_empty() {
        bail!("nothing to plot: a figure needs at least two message sizes (see --sizes)");
    }
    let names = first_seen(
        rows.iter()
            .filter(|r| ops.contains(&r.op.as_str()))
            .map(|r| r.variant.as_str()),
    );
    let lines = lines(&names);

    let columns = if ops.len() == 1 {
        1
    } else if ops.len() <= 4 {
        2
    } else {
        3
    };
    let width = PANEL.0 * columns.max(2) as u32;
    let heads = head_lines(report, width);
    let per_row = ((width - 40) / legend_width(&lines)).max(1) as usize;
    let legend_rows = lines.len().div_ceil(per_row) as u32;
    let head = 46 + 20 * heads.len() as u32 + LEGEND_ROW * legend_rows + 8;
    let panel_height = if ops.len() == 1 {
        PANEL.1 * 3 / 2
    } else {
        PANEL.1
    };
    let height = head + panel_height * ops.len().div_ceil(columns) as u32;

    let mut drawing = String::new();
    {
        let area = SVGBackend::with_string(&mut drawing, (width, height)).into_drawing_area();
        area.fill(&WHITE).map_err(failed)?;
        let (top, panels) = area.split_vertically(head);
        draw_head(&top, report, &heads, &lines, per_row)?;
        let cells = panels.split_evenly((ops.len().div_ceil(columns), columns));
        for (op, cell) in ops.iter().zip(&cells) {
            let rows: Vec<&Row> = rows.iter().copied().filter(|r| r.op == *op).collect();
            draw_panel(cell, op, &rows, &lines, axes)?;
        }
        area.present().map_err(failed)?;
    }
    Ok(drawing)
}

fn failed<E: std::error::Error + Send + Sync>(error: DrawingAreaErrorKind<E>) -> anyhow::Error {
    anyhow!("cannot draw the figure: {error}")
}

fn text(size: f64, bold: bool) -> TextStyle<'static> {
    let style = if bold {
        FontStyle::Bold
    } else {
        FontStyle::Normal
    };
    TextStyle::from((FONT, size, style).into_font()).color(&BLACK)
}

/// Width of a text in the compiled-in font, roughly.
fn text_width(text: &str, size: f64) -> u32 {
    (text.chars().count() as f64 * size * 0.6) as u32
}

fn legend_width(lines: &[Line]) -> u32 {
    lines
        .iter()
        .map(|l| text_width(&l.name, 15.0))
        .max()
        .unwrap_or(0)
        + 64
}

/// The lines under the title: machine, and how it was measured.
fn head_lines(report: &Report, width: u32) -> Vec<String> {
    let mut wrapped = Vec::new();
    let fits = (f64::from(width - 40) / (13.0 * 0.58)) as usize;
    for line in [report.machine.line(), report.notes.join(" · ")] {
        let mut current = String::new();
        for word in line.split(' ') {
            if !current.is_empty() && current.chars().count() + word.chars().count() >= fits {
                wrapped.push(std::mem::take(&mut current));
            }
            if !current.is_empty() {
                current.push(' ');
            }
            current.push_str(word);
        }
        wrapped.push(current);
    }
    wrapped
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

fn draw_head(
    area: &Area<'_>,
    report: &Report,
    heads: &[String],
    lines: &[Line],
    per_row: usize,
) -> Result<()> {
    area.draw_text(&report.title, &text(22.0, true), (20, 14))
        .map_err(failed)?;
    for (i, head) in heads.iter().enumerate() {
        area.draw_text(head, &text(13.0, false), (20, 44 + 20 * i as i32))
            .map_err(failed)?;
    }
    let top = 44 + 20 * heads.len() as i32 + 16;
    let step = legend_width(lines) as i32;
    // In the order of the table, which is the reader's.
    let mut order: Vec<&Line> = lines.iter().collect();
    order.sort_by_key(|l| {
        STYLES
            .iter()
            .position(|(n, ..)| *n == l.name)
            .unwrap_or(STYLES.len())
    });
    for (i, line) in order.iter().enumerate() {
        let x = 24 + step * (i % per_row) as i32;
        let y = top + LEGEND_ROW as i32 * (i / per_row) as i32;
        stroke(line, vec![(x, y), (x + 34, y)], |e| {
            area.draw(&e).map_err(failed)
        })?;
        for shape in marker_shape(line.marker, (x + 17, y)) {
            area.draw(&Polygon::new(shape, line.color.filled()))
                .map_err(failed)?;
        }
        let style = text(15.0, false).pos(Pos::new(HPos::Left, VPos::Center));
        area.draw_text(&line.name, &style, (x + 42, y))
            .map_err(failed)?;
    }
    Ok(())
}

/// A line as one path or, dashed, as several.
fn stroke(
    line: &Line,
    points: Vec<(i32, i32)>,
    mut draw: impl FnMut(PathElement<(i32, i32)>) -> Result<()>,
) -> Result<()> {
    let style = line.color.stroke_width(line.width);
    if !line.dashed {
        return draw(PathElement::new(points, style));
    }
    let (dash, gap) = (7.0, 4.0);
    let mut at: f64 = 0.0;
    for pair in points.windows(2) {
        let (from, to) = (pair[0], pair[1]);
        let (dx, dy) = (f64::from(to.0 - from.0), f64::from(to.1 - from.1));
        let length = dx.hypot(dy);
        let mut done = 0.0;
        while done < length {
            let phase = at % (dash + gap);
            let on = phase < dash;
            let left: f64 = if on { dash - phase } else { dash + gap - phase };
            let step = left.min(length - done).max(0.01);
            if on {
                let point = |d: f64| {
                    (
                        from.0 + (dx * d / length).round() as i32,
                        from.1 + (dy * d / length).round() as i32,
                    )
                };
                draw(PathElement::new(
                    vec![point(done), point(done + step)],
                    style,
                ))?;
            }
            done += step;
            at += step;
        }
    }
    Ok(())
}

fn marker_shape(marker: Marker, (x, y): (i32, i32)) -> Vec<Vec<(i32, i32)>> {
    match marker {
        Marker::None => vec![],
        Marker::Circle => vec![
            (0..12)
                .map(|i| {
                    let a = f64::from(i) * std::f64::consts::PI / 6.0;
                    (
                        x + (4.6 * a.cos()).round() as i32,
                        y + (4.6 * a.sin()).round() as i32,
                    )
                })
                .collect(),
        ],
        Marker::Triangle => vec![vec![(x - 5, y + 4), (x + 5, y + 4), (x, y - 5)]],
        Marker::Square => vec![vec![
            (x - 4, y - 4),
            (x + 4, y - 4),
            (x + 4, y + 4),
            (x - 4, y + 4),
        ]],
        Marker::Diamond => vec![vec![(x - 5, y), (x, y - 5), (x + 5, y), (x, y + 5)]],
        Marker::Cross => vec![
            vec![
                (x - 5, y - 3),
                (x - 3, y - 5),
                (x + 5, y + 3),
                (x + 3, y + 5),
            ],
            vec![
                (x - 5, y + 3),
                (x - 3, y + 5),
                (x + 5, y - 3),
                (x + 3, y - 5),
            ],
        ],
    }
}

/// Ticks of a logarithmic axis: decades, and between them if the range is short.
fn ticks(low: f64, high: f64) -> (Vec<f64>, Vec<f64>) {
    let between: Vec<f64> = (low.floor() as i32..=high.ceil() as i32)
        .flat_map(|d| (1..10).map(move |m| f64::from(d) + f64::from(m).log10()))
        .filter(|t| (low..=high).contains(t))
        .collect();
    let of = |steps: &[u32]| -> Vec<f64> {
        between
            .iter()
            .copied()
            .filter(|t| {
                let m = 10f64.powf(t - t.floor() + 1e-9) as u32;
                steps.contains(&m)
            })
            .collect()
    };
    let decades = of(&[1]);
    let labels = match decades.len() {
        0 | 1 => of(&[1, 2, 3, 5, 7]),
        2 => of(&[1, 2, 5]),
        _ => decades,
    };
    (labels, between)
}

/// An axis of logarithms with chosen ticks.
struct LogAxis {
    low: f64,
    high: f64,
    labels: Vec<f64>,
    light: Vec<f64>,
}

impl Ranged for LogAxis {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let share = (value - self.low) / (self.high - self.low);
        limit.0 + (share * f64::from(limit.1 - limit.0)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        if hint.weight().allow_light_points() {
            self.light.clone()
        } else {
            self.labels.clone()
        }
    }

    fn range(&self) -> Range<f64> {
        self.low..self.high
    }
}

fn draw_panel(area: &Area<'_>, op: &str, rows: &[&Row], lines: &[Line], axes: Axes) -> Result<()> {
    let x = |row: &Row| (row.bytes as f64).log2();
    let y = |row: &Row, time: f64| value(row, time, axes).log10();
    let fold = |values: &mut dyn Iterator<Item = f64>| {
        values.fold((f64::MAX, f64::MIN), |(l, h), v| (l.min(v), h.max(v)))
    };
    let (left, right) = fold(&mut rows.iter().map(|r| x(r)));
    let (low, high) = fold(
        &mut rows
            .iter()
            .flat_map(|r| [y(r, r.time.p10), y(r, r.time.p90)]),
    );
    let margin = ((high - low) * 0.06).max(0.05);
    let (low, high) = (low - margin, high + margin);
    let (y_labels, y_light) = ticks(low, high);
    let mut sizes_there: Vec<usize> = rows.iter().map(|r| r.bytes).collect();
    sizes_there.sort_unstable();
    sizes_there.dedup();
    let every = sizes_there.len().div_ceil(9);
    let x_labels: Vec<f64> = sizes_there
        .iter()
        .step_by(every)
        .map(|b| (*b as f64).log2())
        .collect();
    let x_light: Vec<f64> = sizes_there.iter().map(|b| (*b as f64).log2()).collect();

    let mut ranks: Vec<usize> = rows.iter().map(|r| r.ranks).collect();
    ranks.sort_unstable();
    ranks.dedup();
    let caption = match ranks[..] {
        [n] if n > 1 && !op.contains("threads") => format!("{op}, {n} ranks"),
        _ => op.to_owned(),
    };
    let mut chart = ChartBuilder::on(area)
        .caption(caption, text(17.0, true))
        .margin(8)
        .margin_right(36)
        .x_label_area_size(46)
        .y_label_area_size(66)
        .build_cartesian_2d(
            LogAxis {
                low: left - 0.2,
                high: right + 0.2,
                labels: x_labels,
                light: x_light,
            },
            LogAxis {
                low,
                high,
                labels: y_labels,
                light: y_light,
            },
        )
        .map_err(failed)?;
    chart
        .configure_mesh()
        .bold_line_style(RGBColor(0xcc, 0xcc, 0xcc).stroke_width(1))
        .light_line_style(RGBColor(0xee, 0xee, 0xee).stroke_width(1))
        .axis_style(BLACK.stroke_width(1))
        .x_label_formatter(&|v| sizes::short(v.exp2().round() as usize))
        .y_label_formatter(&|v| {
            let value = 10f64.powf(*v);
            if value >= 0.995 {
                format!("{:.0}", value)
            } else {
                digits(value).trim_end_matches('0').to_owned()
            }
        })
        .x_desc(match axes.x {
            Bytes::Message => "message size (bytes)",
            Bytes::Block | Bytes::BlockOf(_) => "block size (bytes)",
            Bytes::Readers(_) => "readers at once",
        })
        .y_desc(match axes.y {
            Axis::Latency => "latency (µs)",
            Axis::Bandwidth => "bandwidth (GB/s)",
        })
        .label_style(text(14.0, false))
        .axis_desc_style(text(14.0, false))
        .draw()
        .map_err(failed)?;

    let mut groups = ranks.clone();
    groups.reverse();
    for band in [true, false] {
        for line in lines {
            // Rows of different thread counts are lines of their own.
            for n in &groups {
                let mut of: Vec<&&Row> = rows
                    .iter()
                    .filter(|r| r.variant == line.name && r.ranks == *n)
                    .collect();
                of.sort_by_key(|r| r.bytes);
                if of.is_empty() {
                    continue;
                }
                if band {
                    let up = of.iter().map(|r| (x(r), y(r, r.time.p10)));
                    let back = of.iter().rev().map(|r| (x(r), y(r, r.time.p90)));
                    let outline: Vec<(f64, f64)> = up.chain(back).collect();
                    chart
                        .draw_series(std::iter::once(Polygon::new(
                            outline,
                            line.color.mix(0.18).filled(),
                        )))
                        .map_err(failed)?;
                    continue;
                }
                let points: Vec<(i32, i32)> = of
                    .iter()
                    .map(|r| chart.backend_coord(&(x(r), y(r, r.time.median))))
                    .collect();
                let plane = area.strip_coord_spec();
                let origin = plane.get_base_pixel();
                let points: Vec<(i32, i32)> = points
                    .into_iter()
                    .map(|(a, b)| (a - origin.0, b - origin.1))
                    .collect();
                stroke(line, points.clone(), |e| plane.draw(&e).map_err(failed))?;
                for point in points {
                    for shape in marker_shape(line.marker, point) {
                        plane
                            .draw(&Polygon::new(shape, line.color.filled()))
                            .map_err(failed)?;
                    }
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::sample::Spread;
    use std::collections::HashSet;

    fn report() -> Report {
        let mut rows = Vec::new();
        for op in ["bcast", "gather"] {
            for (i, (variant, ..)) in STYLES[..7].iter().enumerate() {
                for bytes in sizes::range(4096, 16 << 20, 4) {
                    let median = 1.0 + bytes as f64 / (1000.0 * (i + 1) as f64);
                    rows.push(Row {
                        op: op.into(),
                        bytes,
                        ranks: 2,
                        variant: (*variant).into(),
                        time: Spread {
                            median,
                            p10: median * 0.9,
                            p90: median * 1.3,
                        },
                        verified: true,
                    });
                }
            }
        }
        Report {
            title: "libcopy against its peers".into(),
            machine: Machine::here(),
            notes: vec![],
            rows,
            ratios: vec![],
        }
    }

    #[test]
    fn figure_names_variants_machine_and_axes() {
        let drawing = draw(&report(), Axis::Bandwidth).unwrap();
        for word in [
            "openmpi",
            "memcpy",
            "bcast, 2 ranks",
            "GB/s",
            "message size",
            "Linux",
        ] {
            assert!(drawing.contains(word), "{word}");
        }
        let png = render(&drawing).unwrap();
        assert_eq!(&png[1..4], b"PNG");
    }

    #[test]
    fn lines_beyond_the_colours_are_told_apart() {
        let names: Vec<String> = (0..20).map(|i| format!("method {i}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let looks: HashSet<String> = lines(&names)
            .iter()
            .map(|line| format!("{:?} {} {:?}", line.color, line.dashed, line.marker))
            .collect();
        assert_eq!(looks.len(), names.len(), "{looks:?}");
    }

    #[test]
    fn one_size_is_not_a_figure() {
        let mut report = report();
        report.rows.retain(|r| r.bytes == 4096);
        assert!(
            draw(&report, Axis::Latency)
                .unwrap_err()
                .to_string()
                .contains("two message sizes")
        );
    }

    #[test]
    fn short_ranges_have_labels_between_the_decades() {
        assert_eq!(ticks(0.0, 3.0).0, [0.0, 1.0, 2.0, 3.0]);
        assert!(ticks(0.2, 0.9).0.len() >= 3);
    }
}
