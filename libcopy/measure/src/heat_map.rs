// SPDX-License-Identifier: MIT OR Apache-2.0

//! Figures of shares: a table whose cells are the darker the more they have.

use crate::ratio_plot::{FONT, escape};
use std::fmt::Write as _;

/// What is drawn.
pub struct HeatMap {
    /// Title.
    pub title: String,
    /// Lines under it.
    pub notes: Vec<String>,
    /// What the columns are about.
    pub axis: String,
    /// The columns' names.
    pub columns: Vec<String>,
    /// The rows' names, and a share for each column; zero where there is none.
    pub rows: Vec<(String, Vec<f64>)>,
}

const LEFT: f64 = 210.0;
const CELL: (f64, f64) = (48.0, 22.0);

/// White for nothing to dark blue for the most, by the root, so that small shares are seen.
fn colour(share: f64, most: f64) -> (String, bool) {
    let weight = if most > 0.0 {
        (share / most).clamp(0.0, 1.0).sqrt()
    } else {
        0.0
    };
    let mix = |from: f64, to: f64| (from + (to - from) * weight).round() as u8;
    let (red, green, blue) = (mix(255.0, 0.0), mix(255.0, 62.0), mix(255.0, 128.0));
    (format!("#{red:02x}{green:02x}{blue:02x}"), weight > 0.55)
}

/// A share in percent, with two digits; nothing for what rounds to zero.
fn percent(share: f64) -> String {
    match 100.0 * share {
        0.0..0.005 => String::new(),
        percent @ 0.005..0.995 => format!("{percent:.2}"),
        percent @ 0.995..9.95 => format!("{percent:.1}"),
        percent => format!("{percent:.0}"),
    }
}

/// Draws it as SVG.
pub fn draw(map: &HeatMap) -> String {
    let top = 44.0 + 17.0 * map.notes.len() as f64 + 34.0;
    let width = (LEFT + CELL.0 * map.columns.len() as f64 + 24.0).max(720.0);
    let height = top + CELL.1 * map.rows.len() as f64 + 24.0;
    let most = map.rows.iter().flat_map(|(_, shares)| shares);
    let most = most.fold(0.0f64, |most, share| most.max(*share));
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\"><rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    let mut write = |(x, y): (f64, f64), size: f64, anchor: &str, fill: &str, text: &str| {
        let _ = writeln!(
            svg,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"{size}\" text-anchor=\"{anchor}\" \
             fill=\"{fill}\" {FONT}>{}</text>",
            escape(text)
        );
    };
    write((16.0, 28.0), 18.0, "start", "black", &map.title);
    for (at, note) in map.notes.iter().enumerate() {
        let y = 48.0 + 17.0 * at as f64;
        write((16.0, y), 12.0, "start", "black", note);
    }
    let middle = |column: usize| LEFT + CELL.0 * (column as f64 + 0.5);
    write((LEFT - 8.0, top - 8.0), 11.0, "end", "black", &map.axis);
    for (column, name) in map.columns.iter().enumerate() {
        write((middle(column), top - 8.0), 10.0, "middle", "black", name);
    }
    let mut cells = String::new();
    for (row, (name, shares)) in map.rows.iter().enumerate() {
        let y = top + CELL.1 * row as f64;
        write((LEFT - 8.0, y + 15.0), 11.0, "end", "black", name);
        for (column, share) in shares.iter().enumerate() {
            let (fill, is_dark) = colour(*share, most);
            let _ = writeln!(
                cells,
                "<rect x=\"{:.1}\" y=\"{y:.1}\" width=\"{}\" height=\"{}\" fill=\"{fill}\" \
                 stroke=\"#ddd\"/>",
                middle(column) - CELL.0 / 2.0,
                CELL.0,
                CELL.1
            );
            let text = percent(*share);
            if !text.is_empty() {
                let ink = if is_dark { "white" } else { "black" };
                let _ = writeln!(
                    cells,
                    "<text x=\"{:.1}\" y=\"{:.1}\" font-size=\"10\" text-anchor=\"middle\" \
                     fill=\"{ink}\" {FONT}>{text}</text>",
                    middle(column),
                    y + 15.0
                );
            }
        }
    }
    svg.push_str(&cells);
    svg.push_str("</svg>\n");
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_the_darker_the_more_they_have() {
        assert_eq!(colour(0.0, 0.5), ("#ffffff".to_owned(), false));
        assert_eq!(colour(0.5, 0.5), ("#003e80".to_owned(), true));
        assert_eq!(colour(0.0, 0.0).0, "#ffffff");
        let texts = [0.0, 0.00004, 0.0012, 0.0344, 0.5].map(percent);
        assert_eq!(texts, ["", "", "0.12", "3.4", "50"]);
    }

    #[test]
    fn a_figure_has_a_cell_for_each_row_and_column() {
        let map = HeatMap {
            title: "a < b".to_owned(),
            notes: vec!["two ranks".to_owned()],
            axis: "size".to_owned(),
            columns: vec!["8 B".to_owned(), "16 B".to_owned()],
            rows: vec![("MPI_Send".to_owned(), vec![0.25, 0.0])],
        };
        let svg = draw(&map);
        assert!(svg.contains("a &lt; b") && svg.ends_with("</svg>\n"));
        assert_eq!(svg.matches("stroke=\"#ddd\"").count(), 2);
        assert_eq!(svg.matches(">25</text>").count(), 1);
    }
}
