//! What one checkpoint writes: puts and deletes, gathered in one piece of memory.
//!
//! Knows no database. Next: `checkpoint.rs`, which applies it in one transaction.

/// Puts and deletes of numbered tables. The order of calls does not matter, but for the same key: there the
/// last one counts.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    data: Vec<u8>,
    changes: Vec<Change>,
}

#[derive(Clone, Copy, Debug)]
struct Change {
    table: u8,
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

    /// Nothing yet, with room for so many changes and so many bytes of keys and values.
    pub fn with_room(changes: usize, bytes: usize) -> Batch {
        Batch { data: Vec::with_capacity(bytes), changes: Vec::with_capacity(changes) }
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
        self.changes.len()
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
        self.changes.clear();
    }

    fn change(&mut self, table: u8, key: &[u8], value: Option<&[u8]>) {
        let start = self.data.len();
        self.data.extend_from_slice(key);
        self.data.extend_from_slice(value.unwrap_or_default());
        let value_bytes = value.map_or(0, <[u8]>::len);
        let is_put = value.is_some();
        self.changes.push(Change { table, is_put, start, key_bytes: key.len(), value_bytes });
    }

    /// The changes by table, each key once, in order.
    pub(crate) fn tables(&self) -> Vec<(u8, Vec<KeyChange<'_>>)> {
        let mut sorted: Vec<&Change> = self.changes.iter().collect();
        // Stable: of two changes of a key, the later one stays later.
        sorted.sort_by(|a, b| (a.table, self.key(a)).cmp(&(b.table, self.key(b))));
        let mut tables: Vec<(u8, Vec<KeyChange<'_>>)> = Vec::new();
        for change in sorted {
            if tables.last().is_none_or(|(table, _)| *table != change.table) {
                tables.push((change.table, Vec::new()));
            }
            let Some((_, changes)) = tables.last_mut() else { continue };
            if changes.last().is_some_and(|(key, _)| *key == self.key(change)) {
                changes.pop();
            }
            changes.push((self.key(change), self.value(change)));
        }
        tables
    }

    fn key(&self, change: &Change) -> &[u8] {
        &self.data[change.start..change.start + change.key_bytes]
    }

    fn value(&self, change: &Change) -> Option<&[u8]> {
        let start = change.start + change.key_bytes;
        change.is_put.then(|| &self.data[start..start + change.value_bytes])
    }
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
        let tables = batch.tables();
        assert_eq!(tables[0], (1, vec![(&b"z"[..], Some(&b""[..]))]));
        assert_eq!(tables[1].1, [(&b"a"[..], None), (b"b", Some(&b"2"[..])), (b"c", None)]);
        assert_eq!((batch.len(), batch.bytes()), (6, 9));
        batch.clear();
        assert!(batch.is_empty() && batch.tables().is_empty());
    }
}
