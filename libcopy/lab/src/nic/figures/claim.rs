// SPDX-License-Identifier: MIT OR Apache-2.0

//! What the paper claims, and what the simulation says of it.

use std::fmt::Write as _;

/// First line of the table of claims as CSV.
pub const HEADER: &str = "figure,claim,paper,ours,held";

/// Whether a claim holds here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Held {
    /// It does.
    Yes,
    /// It does not, and should.
    No,
    /// It does not, for this reason.
    Differs(String),
}

impl Held {
    /// Yes, or else the reason.
    pub fn or_differs(holds: bool, reason: &str) -> Held {
        if holds {
            Held::Yes
        } else {
            Held::Differs(reason.to_owned())
        }
    }

    /// Its word in the table.
    pub fn word(&self) -> String {
        match self {
            Held::Yes => "yes".to_owned(),
            Held::No => "no".to_owned(),
            Held::Differs(reason) => format!("differs: {reason}"),
        }
    }
}

impl From<bool> for Held {
    fn from(holds: bool) -> Held {
        if holds { Held::Yes } else { Held::No }
    }
}

/// A claim of the paper.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The number of the figure.
    pub figure: &'static str,
    /// What is claimed.
    pub claim: String,
    /// The paper's figure or words.
    pub paper: String,
    /// Ours, simulated.
    pub ours: String,
    /// Whether it holds.
    pub held: Held,
}

impl Claim {
    /// Its line of the CSV file.
    pub fn csv(&self) -> String {
        let held = self.held.word();
        let fields = [self.figure, &self.claim, &self.paper, &self.ours, &held];
        fields.map(quoted).join(",")
    }
}

/// A field of a CSV file (RFC 4180).
fn quoted(field: &str) -> String {
    if field.contains([',', '"', '\n']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field.to_owned()
    }
}

/// All claims as a CSV file.
pub fn csv<'a>(claims: impl IntoIterator<Item = &'a Claim>) -> String {
    let mut text = format!("{HEADER}\n");
    for claim in claims {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{}", claim.csv());
    }
    text
}

/// A line of a plot.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Its name.
    pub name: String,
    /// Its points.
    pub points: Vec<(f64, f64)>,
}

impl Series {
    /// A line of points.
    pub fn new(name: &str, points: Vec<(f64, f64)>) -> Series {
        Series {
            name: name.to_owned(),
            points,
        }
    }

    /// The value at `x`; not a number if there is none.
    pub fn at(&self, x: f64) -> f64 {
        let found = self.points.iter().find(|point| point.0 == x);
        found.map_or(f64::NAN, |point| point.1)
    }
}

/// A figure: what is plotted, and what is claimed about it.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// Its number in the paper.
    pub number: &'static str,
    /// What it shows.
    pub title: &'static str,
    /// The horizontal axis.
    pub x: &'static str,
    /// The vertical axis.
    pub y: &'static str,
    /// The lines.
    pub series: Vec<Series>,
    /// The claims.
    pub claims: Vec<Claim>,
}

impl Figure {
    /// Adds a claim.
    pub(super) fn claim(
        &mut self,
        claim: &str,
        paper: &str,
        ours: impl Into<String>,
        held: impl Into<Held>,
    ) {
        self.claims.push(Claim {
            figure: self.number,
            claim: claim.to_owned(),
            paper: paper.to_owned(),
            ours: ours.into(),
            held: held.into(),
        });
    }

    /// The value of a line at `x`.
    pub(super) fn at(&self, name: &str, x: f64) -> f64 {
        let found = self.series.iter().find(|series| series.name == name);
        found.map_or(f64::NAN, |series| series.at(x))
    }

    /// The first `x` at which a line reaches `least`.
    pub(super) fn reaches(&self, name: &str, least: f64) -> Option<f64> {
        let series = self.series.iter().find(|series| series.name == name)?;
        let point = series.points.iter().find(|point| point.1 >= least)?;
        Some(point.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_with_commas_are_quoted() {
        let claim = Claim {
            figure: "8",
            claim: "a, \"b\"".to_owned(),
            paper: "c".to_owned(),
            ours: "d".to_owned(),
            held: Held::or_differs(false, "the host is faster"),
        };
        assert_eq!(
            csv([&claim]),
            "figure,claim,paper,ours,held\n8,\"a, \"\"b\"\"\",c,d,differs: the host is faster\n"
        );
        assert_eq!(Held::from(true).word(), "yes");
        assert_eq!(Held::from(false).word(), "no");
    }
}
