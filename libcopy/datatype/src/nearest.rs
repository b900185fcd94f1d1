// SPDX-License-Identifier: MIT OR Apache-2.0

//! What somebody may have meant who misspelt a name.

/// The known name that is nearest to a word, if one is near: by at most one edit for three
/// characters, and one more. Two characters in each other's place are one edit.
pub fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let distances = known.map(|name| (strsim::osa_distance(word, name), name));
    let (distance, name) = distances.min_by_key(|(distance, _)| *distance)?;
    (distance <= 1 + word.chars().count() / 3).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_near_is_found_and_nothing_else() {
        let known = ["double", "int", "byte"];
        let find = |word| nearest(word, known.into_iter());
        assert_eq!(find("doubel"), Some("double"));
        assert_eq!(find("nit"), Some("int"));
        assert_eq!(find("byte"), Some("byte"));
        assert_eq!(find("xyzzy"), None);
        assert_eq!(nearest("int", std::iter::empty()), None);
    }
}
