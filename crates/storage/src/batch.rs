//! What one checkpoint writes: puts and deletes, gathered in one piece of memory.
//!
//! Knows no database. Next: `checkpoint.rs`, which applies it in one transaction.

use std::collections::BTreeMap;

/// Puts and deletes of numbered tables. The order of calls does not matter, but for the same key: there the
/// last one counts.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    data: Vec<u8>,
    tables: BTreeMap<u8, Vec<Change>>,
}

#[derive(Clone, Copy, Debug)]
struct Change {
    is_put: bool,
    start: usize,
    key_bytes: usize,
    value_bytes: usize,
}

/// A change of one key: its new value, or none.
pub(crate) type KeyChange<'a> = (&'a [u8], Option<&'a [u8]>);

impl Batch {
    /// Nothing yet.
    pub fn new() -> Batch {
        Batch::default()
    }

    /// Nothing yet, with room for so many bytes of keys and values.
    pub fn with_room(bytes: usize) -> Batch {
        Batch { data: Vec::with_capacity(bytes), tables: BTreeMap::new() }
    }

    /// Sets a key.
    pub fn put(&mut self, table: u8, key: &[u8], value: &[u8]) {
        self.change(table, key, Some(value));
    }

    /// Removes a key, if it is there.
    pub fn delete(&mut self, table: u8, key: &[u8]) {
        self.change(table, key, None);
    }

    /// How many changes.
    pub fn len(&self) -> usize {
        self.tables.values().map(Vec::len).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of keys and values.
    pub fn bytes(&self) -> usize {
        self.data.len()
    }

    /// Forgets all, and keeps the memory for the next.
    pub fn clear(&mut self) {
        self.data.clear();
        self.tables.values_mut().for_each(Vec::clear);
    }

    fn change(&mut self, table: u8, key: &[u8], value: Option<&[u8]>) {
        let start = self.data.len();
        self.data.extend_from_slice(key);
        self.data.extend_from_slice(value.unwrap_or_default());
        let value_bytes = value.map_or(0, <[u8]>::len);
        let is_put = value.is_some();
        self.tables.entry(table).or_default().push(Change {
            is_put,
            start,
            key_bytes: key.len(),
            value_bytes,
        });
    }

    /// The changes by table, each key once, in order.
    pub(crate) fn tables(&self) -> impl Iterator<Item = (u8, Vec<KeyChange<'_>>)> {
        let some = self.tables.iter().filter(|(_, changes)| !changes.is_empty());
        some.map(|(table, changes)| (*table, self.sorted(changes)))
    }

    fn sorted(&self, changes: &[Change]) -> Vec<KeyChange<'_>> {
        // Most keys are no longer than what stands beside them: looking each up for every comparison would wait for memory.
        let mut sorted: Vec<(u128, &Change)> =
            changes.iter().map(|change| (beginning(self.key(change)), change)).collect();
        // Stable: of two changes of a key, the later one stays later. Those that are in order already cost one look.
        sorted.sort_by(|(a, one), (b, other)| a.cmp(b).then_with(|| self.key(one).cmp(self.key(other))));
        let mut last_words: Vec<KeyChange<'_>> = Vec::with_capacity(sorted.len());
        for (_, change) in sorted {
            last_words.pop_if(|(key, _)| *key == self.key(change));
            last_words.push((self.key(change), self.value(change)));
        }
        last_words
    }

    fn key(&self, change: &Change) -> &[u8] {
        &self.data[change.start..change.start + change.key_bytes]
    }

    fn value(&self, change: &Change) -> Option<&[u8]> {
        let start = change.start + change.key_bytes;
        change.is_put.then(|| &self.data[start..start + change.value_bytes])
    }
}

/// The first 16 bytes of a key: keys of which these are in order are in order.
fn beginning(key: &[u8]) -> u128 {
    let mut bytes = [0; 16];
    let len = key.len().min(bytes.len());
    bytes[..len].copy_from_slice(&key[..len]);
    u128::from_be_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_come_out_by_table_and_key_with_the_last_word_on_each() {
        let mut batch = Batch::new();
        batch.put(2, b"b", b"1");
        batch.put(1, b"z", b"");
        batch.delete(2, b"a");
        batch.put(2, b"b", b"2");
        batch.put(2, b"c", b"3");
        batch.delete(2, b"c");
        let tables: Vec<_> = batch.tables().collect();
        assert_eq!(tables[0], (1, vec![(&b"z"[..], Some(&b""[..]))]));
        assert_eq!(tables[1].1, [(&b"a"[..], None), (b"b", Some(&b"2"[..])), (b"c", None)]);
        assert_eq!((batch.len(), batch.bytes()), (6, 9));
        batch.clear();
        assert!(batch.is_empty() && batch.tables().next().is_none());
    }

    #[test]
    fn keys_of_any_length_come_out_in_order() {
        let long = |last: u8| [&[7; 20][..], &[last]].concat();
        let keys = [long(2), vec![7; 16], vec![], vec![7, 0], long(1), vec![7], vec![0], vec![7; 15]];
        let mut batch = Batch::new();
        keys.iter().for_each(|key| batch.put(1, key, b""));
        batch.delete(1, &long(1));
        let mut expected: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        expected.sort();
        let (_, changes) = batch.tables().next().unwrap();
        assert_eq!(changes.iter().map(|(key, _)| *key).collect::<Vec<_>>(), expected);
        assert_eq!(changes.iter().filter(|(_, value)| value.is_none()).count(), 1, "the last word counts");
    }
}
