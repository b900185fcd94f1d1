// SPDX-License-Identifier: MIT OR Apache-2.0

//! One entry for bytes that may be a type expression: it is refused with words, or understood and
//! then holds together. Everything else is a panic, as a fuzzer wants it.

use libcopy_datatype::{Datatype, Layout};

/// Reads the bytes as a type expression, and checks what comes of it.
pub fn feed(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if !is_modest(&text) {
        return;
    }
    match text.parse::<Datatype>() {
        Ok(datatype) => holds_together(&datatype),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// A range or a repetition in a list may ask for half a gigabyte, and is given it; not here.
fn is_modest(text: &str) -> bool {
    let digits = text
        .split(|c: char| !c.is_ascii_digit())
        .map(str::len)
        .max()
        .unwrap_or(0);
    digits <= 4 || !(text.contains("..") || text.contains('*'))
}

/// A type is what its own expression says, and its layout is one whole.
pub fn holds_together(datatype: &Datatype) {
    let text = datatype.expression();
    let again: Datatype = text
        .parse()
        .unwrap_or_else(|e| panic!("its own expression {text} is refused: {e}"));
    assert_eq!(again.expression(), text);
    assert_eq!(again.size(), datatype.size());
    assert_eq!(again.extent(), datatype.extent());
    assert_eq!(again.commit(), datatype.commit());
    let Ok(layout) = Layout::new(datatype, 2) else {
        return;
    };
    assert_eq!(layout.size(), 2 * datatype.size());
    let bounds = layout.bounds();
    let mut cursor = layout.cursor();
    let mut at = 0;
    for _ in 0..100 {
        let Some(segment) = cursor.next_segment(u64::MAX) else {
            assert_eq!(at, layout.size());
            break;
        };
        at += segment.len;
        assert!(segment.offset >= bounds.start);
        assert!(segment.offset + segment.len as i64 <= bounds.end);
    }
    assert!(!layout.form().plan().is_empty());
    moves_its_bytes(&layout);
}

/// Bytes that are packed and put back are where they were, also if pieces overlap.
fn moves_its_bytes(layout: &Layout) {
    const MOST: u64 = 1 << 16;
    let bounds = layout.bounds();
    let Some(span) = bounds.end.checked_sub(bounds.start) else {
        return;
    };
    if layout.size() > MOST || span as u64 > MOST {
        return;
    }
    let buffer: Vec<u8> = (0..span).map(|i| (i * 37 / 5) as u8).collect();
    let Some(origin) = bounds.start.checked_neg() else {
        return;
    };
    let origin = origin as isize;
    let mut packed = vec![0; layout.size() as usize];
    layout.pack(&buffer, origin, &mut packed).unwrap();
    let mut back = buffer.clone();
    layout.unpack(&packed, &mut back, origin).unwrap();
    assert!(back == buffer, "{:?}", layout.form());
    let middle = packed.len() / 2;
    let mut rest = vec![0; packed.len() - middle];
    layout
        .pack_range(&buffer, origin, middle as u64, &mut rest)
        .unwrap();
    assert!(rest == packed[middle..], "{:?}", layout.form());
}
