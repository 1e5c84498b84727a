//! Values of the model as the texts that callers see.

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use model::{StateKind, TaskId};
use serde::de::{Error, Visitor};
use serde::{Deserializer, Serializer};

struct Parsed<T>(PhantomData<T>);

impl<T: FromStr<Err: fmt::Display>> Visitor<'_> for Parsed<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }
}

/// Reads a value from its text.
pub(super) fn parsed<'de, T: FromStr<Err: fmt::Display>, D: Deserializer<'de>>(
    from: D,
) -> Result<T, D::Error> {
    from.deserialize_str(Parsed(PhantomData))
}

/// A task's id.
pub(super) mod task {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(id: &TaskId, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(id)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<TaskId, D::Error> {
        parsed(from)
    }
}

/// A task's id, if there is one.
pub(super) mod some_task {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(id: &Option<TaskId>, to: S) -> Result<S::Ok, S::Error> {
        match id {
            Some(id) => to.collect_str(id),
            None => to.serialize_none(),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<TaskId>, D::Error> {
        parsed(from).map(Some)
    }
}

/// A state by its word, if there is one.
pub(super) mod some_state {
    use super::*;

    struct Word(StateKind);

    impl FromStr for Word {
        type Err = String;

        fn from_str(word: &str) -> Result<Word, String> {
            StateKind::from_word(word).map(Word).ok_or_else(|| format!("{word:?} is no state of a task"))
        }
    }

    pub(crate) fn serialize<S: Serializer>(state: &Option<StateKind>, to: S) -> Result<S::Ok, S::Error> {
        match state {
            Some(state) => to.collect_str(state),
            None => to.serialize_none(),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<StateKind>, D::Error> {
        parsed(from).map(|Word(state)| Some(state))
    }
}
