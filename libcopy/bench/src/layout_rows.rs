// SPDX-License-Identifier: MIT OR Apache-2.0

//! A layout as a figure: memory as rows of bytes.

use libcopy::datatype::{Datatype, Layout};
use std::fmt::Write as _;

/// An expression of a type for people: its beginning, if it is long.
pub fn short(expression: &str) -> String {
    if expression.chars().count() <= 200 {
        return expression.to_owned();
    }
    let shown: String = expression.chars().take(200).collect();
    format!("{shown}...")
}

/// Bytes in a row of the drawing.
const ROW: i64 = 64;
/// Rows of the drawing.
const ROWS: i64 = 64;
/// Size of a byte in the drawing.
const CELL: i64 = 12;

/// Memory as rows of bytes, read like text, as SVG; data is dark, and the darker the later it is
/// packed.
pub fn draw(datatype: &Datatype, layout: &Layout) -> String {
    let bounds = layout.bounds();
    let low = bounds.start.min(datatype.lower_bound());
    let first = low.div_euclid(ROW) * ROW;
    let end = bounds.end.max(datatype.upper_bound());
    let rows = ((i128::from(end) - i128::from(first) + i128::from(ROW) - 1) / i128::from(ROW))
        .clamp(1, ROWS.into()) as i64;
    let (left, top) = (90, 46);
    let (width, height) = (left + ROW * CELL + 20, top + rows * CELL + 20);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         width=\"{width}\" height=\"{height}\" font-family=\"monospace\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    let name = short(&datatype.expression())
        .replace('&', "&amp;")
        .replace('<', "&lt;");
    let _ = writeln!(svg, "<text x=\"10\" y=\"16\">{name}</text>");
    let _ = writeln!(
        svg,
        "<text x=\"10\" y=\"32\">{} bytes of data in {} segments; pale: first packed, dark: \
         last</text>",
        layout.size(),
        layout.segment_count()
    );
    let place = |at: i64| {
        let at = at - first;
        (left + at % ROW * CELL, top + at / ROW * CELL)
    };
    let visible = first + rows * ROW;
    for row in 0..rows {
        let (x, y) = place(first + row * ROW);
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\" fill=\"#666\">{}</text>\
             <rect x=\"{x}\" y=\"{y}\" width=\"{}\" height=\"{CELL}\" fill=\"#f4f4f4\" \
             stroke=\"#ddd\"/>",
            left - 6,
            y + CELL - 2,
            first + row * ROW,
            ROW * CELL
        );
    }
    let mut packed = 0u64;
    for segment in layout.segments().take(4096) {
        let part = packed as f64 / layout.size() as f64;
        packed += segment.len;
        let shade = |from: f64, to: f64| (from + (to - from) * part) as u8;
        let colour = format!(
            "#{:02x}{:02x}{:02x}",
            shade(150.0, 10.0),
            shade(190.0, 40.0),
            shade(240.0, 110.0)
        );
        let stop = segment
            .offset
            .saturating_add(segment.len as i64)
            .min(visible);
        let mut at = segment.offset;
        // A piece goes on in the next row.
        while at < stop {
            let end = stop.min((at - first) / ROW * ROW + first + ROW);
            let (x, y) = place(at);
            let _ = writeln!(
                svg,
                "<rect x=\"{x}\" y=\"{y}\" width=\"{}\" height=\"{CELL}\" fill=\"{colour}\" \
                 stroke=\"white\" stroke-width=\"0.6\"/>",
                (end - at) * CELL
            );
            at = end;
        }
    }
    if end > visible || layout.segment_count() > 4096 {
        let _ = writeln!(
            svg,
            "<text x=\"{left}\" y=\"{}\" fill=\"#666\">... up to {end}</text>",
            height - 6
        );
    }
    svg.push_str("</svg>\n");
    svg
}
