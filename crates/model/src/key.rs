//! Keys and digests as hashes: the state machine compares them and never reads what they name.

use std::fmt;

use crate::name::{KindName, QueueName};

/// An order, unique or dedup key, hashed together with its queue: 128 bits of BLAKE3, so that nobody
/// can make two keys meet.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyHash(pub u128);

impl KeyHash {
    /// The hash of `key` in `queue`.
    pub fn new(queue: &QueueName, key: &str) -> KeyHash {
        let mut hasher = blake3::Hasher::new();
        // A name holds no NUL, so queue and key cannot run into each other.
        hasher.update(queue.as_str().as_bytes()).update(&[0]).update(key.as_bytes());
        KeyHash(first_128_bits(&hasher))
    }

    /// This key inside the place of another: the same key in another place is another key.
    pub fn within(self, place: KeyHash) -> KeyHash {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&place.0.to_be_bytes()).update(&self.0.to_be_bytes());
        KeyHash(first_128_bits(&hasher))
    }

    /// The hash that places a task by this key.
    pub fn place(self) -> u64 {
        (self.0 >> 64) as u64
    }
}

impl fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "key:{:016x}", self.place())
    }
}

/// What a task is, in 128 bits. The state's hash has it in the place of the envelope, and two enqueues with one dedup key must
/// agree on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub u128);

impl Digest {
    /// The digest of a kind and a payload with its content type, for a task with a dedup key: nobody can make two meet.
    pub fn new(kind: &KindName, content_type: &str, payload: &[u8]) -> Digest {
        let mut hasher = blake3::Hasher::new();
        hasher
            .update(kind.as_str().as_bytes())
            .update(&[0])
            .update(content_type.as_bytes())
            .update(&[0])
            .update(payload);
        Digest(first_128_bits(&hasher))
    }

    /// The digest of an envelope, for a task that is compared with no other: it is made for every task, and takes a tenth of
    /// the time.
    pub fn of_envelope(envelope: &[u8]) -> Digest {
        Digest(xxhash_rust::xxh3::xxh3_128(envelope))
    }
}

fn first_128_bits(hasher: &blake3::Hasher) -> u128 {
    let mut bytes = [0u8; 16];
    hasher.finalize_xof().fill(&mut bytes);
    u128::from_be_bytes(bytes)
}
