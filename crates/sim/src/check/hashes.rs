//! At the same index all replicas have the same state hash.

use hashbrown::HashMap;

use super::report::{Findings, Promise};
use super::take::hash;
use crate::history::Hash;

/// What was said first of each index.
#[derive(Default)]
pub(super) struct Hashes {
    known: HashMap<(u16, u64), (u128, u64, u32)>,
}

impl Hashes {
    pub(super) fn take(&mut self, line: u32, said: &Hash, findings: &mut Findings) {
        let (group, index) = (said.group, said.index);
        let this = hash(&said.hash);
        let &mut (known, node, first) = self.known.entry((group, index)).or_insert((this, said.node, line));
        if known != this {
            findings.add(Promise::SameEverywhere, || {
                format!(
                    "group {group} at index {index}: node {} has the hash {} (line {line}), node {node} has another (line {first})",
                    said.node, said.hash
                )
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::check::Promise;
    use crate::check::story::{Story, broken, held};

    #[test]
    fn replicas_that_agree_are_fine() {
        let mut story = Story::new();
        for node in 1..=3 {
            story.hash(node, 1, 1024, "aa");
            story.hash(node, 2, 1024, "bb");
            story.hash(node, 1, 2048, "cc");
        }
        held(&story);
    }

    #[test]
    fn a_replica_that_differs_is_named() {
        let mut story = Story::new();
        story.hash(1, 1, 1024, "aa");
        story.hash(3, 1, 1024, "ab");
        let text = broken(&story, Promise::SameEverywhere);
        assert!(text.contains("group 1 at index 1024: node 3 has the hash ab (line 3), node 1"), "{text}");
    }
}
