// SPDX-License-Identifier: MIT OR Apache-2.0

//! Plans in words: groups, and the stages of a rank.

use libcopy::plan::{After, Buffer, Member, Piece, Stage, Tree};

/// The groups of a tree: those alike as one line.
pub fn groups(tree: &Tree) -> Vec<String> {
    let mut lines: Vec<(usize, String)> = Vec::new();
    for group in tree.groups().iter().rev() {
        let ranks = group.members.iter();
        let of_ranks = ranks.filter(|it| matches!(it, Member::Rank(_))).count();
        let of_groups = group.members.len() - of_ranks;
        let text = match (of_groups, of_ranks) {
            (0, ranks) => format!("of {ranks} ranks"),
            (groups, 0) => format!("of {groups} groups, {} ranks", group.ranks.len()),
            (groups, ranks) => format!(
                "of {groups} groups and {ranks} ranks, {} ranks in all",
                group.ranks.len()
            ),
        };
        match lines.iter_mut().find(|(_, other)| *other == text) {
            Some((count, _)) => *count += 1,
            None => lines.push((1, text)),
        }
    }
    let text = |(count, text): (usize, String)| match count {
        1 => format!("1 group {text}"),
        count => format!("{count} groups {text}"),
    };
    lines.into_iter().map(text).collect()
}

/// What is waited for: 7:2+64 is what rank 7 has when it has moved 64 bytes of its stage 2.
fn waits<'a>(after: impl IntoIterator<Item = &'a After>) -> String {
    let text = |it: &After| format!("{}:{}+{}", it.rank, it.progress.stage, it.progress.bytes);
    after.into_iter().map(text).collect::<Vec<_>>().join(" ")
}

fn piece(piece: &Piece) -> String {
    let buffer = |buffer: Buffer| match buffer {
        Buffer::Send => "send buffer",
        Buffer::Receive => "receive buffer",
        Buffer::Scratch => "scratch",
    };
    let (bytes, to) = (piece.bytes, piece.to);
    let from = match &piece.from[..] {
        [one] => {
            let span = one.span;
            format!(
                "copies {bytes} bytes of rank {} ({} at {})",
                span.rank,
                buffer(span.buffer),
                span.at
            )
        }
        several => {
            let ranks = several.iter().map(|it| it.span.rank.to_string());
            let ranks = ranks.collect::<Vec<_>>().join(" ");
            format!("combines {bytes} bytes of ranks {ranks}")
        }
    };
    let waits = match waits(piece.from.iter().filter_map(|it| it.after.as_ref())) {
        none if none.is_empty() => none,
        some => format!(", following {some}"),
    };
    format!(
        "{from} to {} of rank {} at {}{waits}",
        buffer(to.buffer),
        to.rank,
        to.at
    )
}

/// Pieces of a stage that are listed.
const SHOWN: usize = 12;

/// The lines of a stage, each with its number.
pub fn stage(number: usize, stage: &Stage) -> Vec<String> {
    let mut lines = Vec::new();
    if !stage.after.is_empty() {
        lines.push(format!("waits for {}", waits(&stage.after)));
    }
    lines.extend(stage.pieces.iter().take(SHOWN).map(piece));
    if stage.pieces.len() > SHOWN {
        lines.push(format!("and {} more pieces", stage.pieces.len() - SHOWN));
    }
    if lines.is_empty() {
        lines.push("nothing".to_owned());
    }
    let numbered = lines.into_iter().map(|line| format!("{number}: {line}"));
    numbered.collect()
}
