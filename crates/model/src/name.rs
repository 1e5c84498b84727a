//! Names that callers choose: not empty, bounded, free of control characters.

use std::fmt;
use std::sync::Arc;

use crate::limits;

/// A name that breaks a rule, and which.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidName {
    /// It has no characters.
    #[error("{what} is empty: give it at least one character")]
    Empty {
        /// Which name.
        what: &'static str,
    },
    /// It is longer than the limit.
    #[error("{what} has {bytes} bytes, at most {bytes_max} are allowed")]
    TooLong {
        /// Which name.
        what: &'static str,
        /// Its length.
        bytes: usize,
        /// The limit.
        bytes_max: usize,
    },
    /// It holds a control character, or one that this kind of name does not allow.
    #[error("{what} holds the character {character:?} at byte {at}, which is not allowed")]
    Character {
        /// Which name.
        what: &'static str,
        /// The first bad one.
        character: char,
        /// Where it stands.
        at: usize,
    },
}

fn check(
    what: &'static str,
    text: &str,
    bytes_max: usize,
    allowed: fn(char) -> bool,
) -> Result<(), InvalidName> {
    if text.is_empty() {
        return Err(InvalidName::Empty { what });
    }
    if text.len() > bytes_max {
        return Err(InvalidName::TooLong { what, bytes: text.len(), bytes_max });
    }
    match text.char_indices().find(|&(_, c)| !allowed(c)) {
        Some((at, character)) => Err(InvalidName::Character { what, character, at }),
        None => Ok(()),
    }
}

/// Checks a key (dedup, order or unique) that a caller gave.
pub fn check_key(what: &'static str, text: &str) -> Result<(), InvalidName> {
    check(what, text, limits::KEY_BYTES_MAX, |c| !c.is_control())
}

macro_rules! name {
    ($(#[$doc:meta])* $type:ident, $what:literal, $max:expr, $allowed:expr) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $type(Arc<str>);

        impl $type {
            /// The name, if it keeps the rules.
            pub fn new(text: &str) -> Result<$type, InvalidName> {
                check($what, text, $max, $allowed)?;
                Ok($type(text.into()))
            }

            /// Its text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }
    };
}

name!(
    /// A queue's name: letters, digits and `. _ - :`, so that it stands in a path and a metric as it is.
    QueueName, "queue name", limits::QUEUE_NAME_BYTES_MAX,
    |c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | ':')
);
name!(
    /// Which handler a task is for.
    KindName, "kind", limits::KIND_BYTES_MAX, |c| !c.is_control()
);
name!(
    /// What a worker calls itself, like `host-1:4711`.
    WorkerName, "worker name", limits::WORKER_NAME_BYTES_MAX, |c| !c.is_control()
);

impl KindName {
    /// 32 bits of the name, kept with every task so that a filter by kind rarely reads an envelope.
    pub fn hash32(&self) -> u32 {
        xxhash_rust::xxh3::xxh3_64(self.as_str().as_bytes()) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_keep_their_rules() {
        let long = "q".repeat(limits::QUEUE_NAME_BYTES_MAX + 1);
        for (what, text, good) in [
            ("plain", "mail", true),
            ("all marks", "a.b_c-d:e", true),
            ("empty", "", false),
            ("slash", "a/b", false),
            ("space", "a b", false),
            ("control", "a\nb", false),
            ("umlaut", "ärger", false),
            ("too long", &long, false),
            ("as long as allowed", &long[1..], true),
        ] {
            assert_eq!(QueueName::new(text).is_ok(), good, "{what}");
        }
        assert!(KindName::new("send é").is_ok());
        assert!(KindName::new("send\u{7}").is_err());
    }
}
