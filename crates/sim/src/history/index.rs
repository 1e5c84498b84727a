//! Where in the logs an answer stands, as the header `Windlass-Index` says it: `1:7,3:12`.

use std::fmt;
use std::str::FromStr;

use model::GroupId;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The index of the answer in each group that answered: shard `n` is group `n`, the catalog is 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Indexes(pub Vec<(GroupId, u64)>);

impl Indexes {
    /// An answer of one group.
    pub fn one(group: GroupId, index: u64) -> Indexes {
        Indexes(vec![(group, index)])
    }

    /// The index in `group`.
    pub fn of(&self, group: GroupId) -> Option<u64> {
        self.0.iter().find(|(which, _)| *which == group).map(|&(_, index)| index)
    }

    /// Whether no group answered.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for Indexes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, (group, index)) in self.0.iter().enumerate() {
            let comma = if n == 0 { "" } else { "," };
            write!(f, "{comma}{group}:{index}")?;
        }
        Ok(())
    }
}

/// A text that names no indexes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no index: expected group:index, several with commas between, like 1:7,3:12")]
pub struct InvalidIndexes(String);

impl FromStr for Indexes {
    type Err = InvalidIndexes;

    fn from_str(text: &str) -> Result<Indexes, InvalidIndexes> {
        let one = |part: &str| {
            let (group, index) = part.split_once(':')?;
            Some((GroupId(group.parse().ok()?), index.parse().ok()?))
        };
        let all: Option<Vec<_>> = text.split(',').map(one).collect();
        all.map(Indexes).ok_or_else(|| InvalidIndexes(text.to_owned()))
    }
}

impl Serialize for Indexes {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Indexes {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Indexes, D::Error> {
        super::text::parsed(from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_is_read_as_the_header_says_it() {
        let both: Indexes = "1:7,3:12".parse().unwrap();
        assert_eq!(both.of(GroupId(3)), Some(12));
        assert_eq!(both.of(GroupId(2)), None);
        assert_eq!(both.to_string(), "1:7,3:12");
        for wrong in ["", "7", "1:", "1:7,", "1:-1", "a:1"] {
            assert!(wrong.parse::<Indexes>().is_err(), "{wrong:?}");
        }
    }
}
