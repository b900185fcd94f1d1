// SPDX-License-Identifier: MIT OR Apache-2.0

//! The file that `LIBCOPY_STATS` names: a line of JSON for each rank.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

/// The lines of all ranks. A line that was cut off, as a rank was killed, is skipped.
#[derive(Debug)]
pub struct Statistics(Vec<Value>);

impl Statistics {
    /// Reads the file; one that is not there has no lines.
    pub fn read(path: &Path) -> Statistics {
        Statistics::of(&crate::read(path).unwrap_or_default())
    }

    pub fn of(text: &str) -> Statistics {
        let lines = text
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok());
        Statistics(lines.collect())
    }

    /// The MPI library's name.
    pub fn library(&self) -> Option<&str> {
        self.0.first()?["library"].as_str()
    }

    /// Intercepted calls of all ranks by function, without `MPI_`, those of which there are any.
    pub fn functions(&self) -> BTreeMap<&str, u64> {
        let mut functions = BTreeMap::new();
        let ranks = self
            .0
            .iter()
            .filter_map(|line| line["functions"].as_object());
        for (name, outcomes) in ranks.flatten() {
            let calls = outcomes["intercepted"].as_u64().unwrap_or(0);
            if calls > 0 {
                let name = name.strip_prefix("MPI_").unwrap_or(name);
                *functions.entry(name).or_insert(0) += calls;
            }
        }
        functions
    }

    /// A number about messages, of all ranks together.
    pub fn messages(&self, name: &str) -> u64 {
        let numbers = self
            .0
            .iter()
            .filter_map(|line| line["messages"][name].as_u64());
        numbers.sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_add_up() {
        let text = include_str!("samples/statistics.json");
        let statistics = Statistics::of(text);
        assert_eq!(statistics.library(), Some("MPICH"));
        let functions = statistics.functions();
        assert_eq!(functions["Bcast"], 2 * 2, "{functions:?}");
        assert!(!functions.contains_key("Gather"), "{functions:?}");
        assert!(statistics.messages("sent") > 0);
        assert_eq!(statistics.messages("nothing of that name"), 0);
    }

    #[test]
    fn a_line_that_is_cut_off_counts_nothing() {
        let text = include_str!("samples/statistics.json");
        let cut = Statistics::of(&text[..text.len() / 3]);
        assert_eq!((cut.library(), cut.functions().len()), (None, 0));
        assert_eq!(Statistics::read("/nowhere".as_ref()).messages("sent"), 0);
    }
}
