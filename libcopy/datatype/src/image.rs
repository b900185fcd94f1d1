// SPDX-License-Identifier: MIT OR Apache-2.0

//! The relocatable image of a layout.

use libcopy_walk::{Builder, Child, HEADER_WORDS, ImageError, PART_WORDS, RECORD_WORDS};

use super::form::{Form, Node, NodeId};
use super::layout::Layout;
use crate::{Error, Result, room};

impl Layout {
    /// The layout as an image for [`libcopy_walk`]: 32-bit words without pointers, which a network
    /// card or a peer can walk. The pieces of its nodes are the [segments](Layout::segments).
    ///
    /// ```
    /// use libcopy_datatype::{Datatype, Layout, Named};
    /// use libcopy_walk::{Image, State};
    ///
    /// let column = Datatype::named(Named::Double).vector(1000, 1, 20)?;
    /// let words = Layout::new(&column, 1)?.image()?;
    /// assert_eq!(words.len(), 16);
    /// let image = Image::trusted(&words);
    /// let mut state = State::<8>::start(image);
    /// state.seek(image, 4000);
    /// let mut first = None;
    /// state.pieces(image, 8, |memory, _, len| first = Some((memory, len)));
    /// assert_eq!(first, Some((80_000, 8)));
    /// # Ok::<(), libcopy_datatype::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// A layout with an offset, an extent or a size of 2 GiB or more; nodes and lists of more than
    /// 2 GiB.
    pub fn image(&self) -> Result<Vec<u32>> {
        image(self.form().by_segments()?)
    }

    /// Bytes of [`Layout::image`], without making it.
    pub fn image_bytes(&self) -> u64 {
        let (_, words) = sizes(self.by_segments());
        words as u64 * 4
    }
}

fn image(form: &Form) -> Result<Vec<u32>> {
    let refused = |error: ImageError| {
        let value = format!("of {} bytes: {error}", form.size());
        Error::argument("the layout", value, "such that an image can hold it")
    };
    let (records, words) = sizes(form);
    if i32::try_from(words).is_err() {
        return Err(refused(ImageError::NoRoom { words }));
    }
    let mut image = room::filled(0, words)?;
    let made = room::list(form.nodes().len())?;
    write(form, records, made, &mut image).map_err(refused)?;
    Ok(image)
}

/// Nodes that get a record, and words of the image.
fn sizes(form: &Form) -> (usize, usize) {
    let (mut records, mut lists) = (0, 0);
    for (id, node) in (0..).zip(form.nodes()) {
        lists += match node {
            Node::Dense { .. } if form.root() != Some(id) => continue,
            Node::Dense { .. } | Node::Stream { .. } => 0,
            Node::Blocks { offsets, .. } => offsets.len(),
            Node::Pieces { offsets, .. } => 2 * offsets.len() + 1,
            Node::Sequence { parts } => PART_WORDS * parts.len(),
        };
        records += 1;
    }
    (records, HEADER_WORDS + RECORD_WORDS * records + lists)
}

/// `made` gets what each node became, and has room for it.
fn write(
    form: &Form,
    records: usize,
    mut made: Vec<Child<i64>>,
    words: &mut [u32],
) -> Result<(), ImageError> {
    let mut builder = Builder::new(words, records)?;
    let Some(root) = form.root() else {
        builder.finish_empty()?;
        return Ok(());
    };
    // Children come before their parents.
    for (id, node) in (0..).zip(form.nodes()) {
        let child = |id: NodeId| made[id as usize];
        made.push(match node {
            Node::Dense { len } if id != root => Child::dense(*len),
            Node::Dense { len } => builder.dense(*len)?,
            Node::Stream {
                count,
                stride,
                child: of,
            } => builder.stream(*count, *stride, child(*of))?,
            Node::Blocks { offsets, child: of } => {
                let offsets = (0..offsets.len()).map(|i| offsets.get(i));
                builder.blocks(offsets, child(*of))?
            }
            Node::Pieces { offsets, starts } => {
                let len = |i: usize| starts.get(i + 1) - starts.get(i);
                builder.pieces((0..offsets.len()).map(|i| (offsets.get(i), len(i))))?
            }
            Node::Sequence { parts } => {
                builder.sequence(parts.iter().map(|part| (part.offset, child(part.child))))?
            }
        });
    }
    builder.finish(made[root as usize], form.offset())?;
    Ok(())
}
