//! Single values as they stand in JSON: ids, sessions, states, durations, and outcomes in a list.

use std::fmt;

use model::{Millis, SessionId, StateKind, TaskId, limits};
use serde::de::{self, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::ToSchema;

use super::parse::Invalid;
use super::problem::Problem;

/// A task's id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, ToSchema)]
#[schema(value_type = String, example = "01994c2e-8f00-7001-8000-000000000000")]
pub struct Id(pub TaskId);

impl Serialize for Id {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        const HEX: &[u8; 16] = b"0123456789abcdef";
        let mut out = [b'-'; 36];
        let mut at = 0;
        for byte in self.0.bits().to_be_bytes() {
            if matches!(at, 8 | 13 | 18 | 23) {
                at += 1;
            }
            out[at] = HEX[usize::from(byte >> 4)];
            out[at + 1] = HEX[usize::from(byte & 15)];
            at += 2;
        }
        serializer.serialize_str(std::str::from_utf8(&out).expect("hex digits are ASCII"))
    }
}

/// A worker's session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, ToSchema)]
#[schema(value_type = String, example = "5f0c1d9e8a7b46c3925d1e0f4a3b2c1d")]
pub struct Session(pub SessionId);

impl Serialize for Session {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

/// A task's state by its word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, ToSchema)]
#[schema(value_type = String, example = "ready", pattern = "^(delayed|retrying|blocked|ready|claimed|done|dead|failed|cancelled|expired)$")]
pub struct State(pub StateKind);

impl Serialize for State {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0.as_str())
    }
}

/// Reads a value from a string by `parse`.
struct FromText<T> {
    expected: &'static str,
    parse: fn(&str) -> Option<T>,
}

impl<T> Visitor<'_> for FromText<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        (self.parse)(text).ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
    }
}

impl<'de> Deserialize<'de> for Id {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Id, D::Error> {
        let parse = |text: &str| text.parse().ok().map(Id);
        deserializer.deserialize_str(FromText { expected: "the id of a task, as enqueue answered it", parse })
    }
}

impl<'de> Deserialize<'de> for Session {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Session, D::Error> {
        let parse = |text: &str| text.parse().ok().map(Session);
        let expected = "a session, the 32 hex digits that POST /v1/workers answered";
        deserializer.deserialize_str(FromText { expected, parse })
    }
}

impl<'de> Deserialize<'de> for State {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<State, D::Error> {
        let parse = |text: &str| StateKind::from_word(text).map(State);
        let expected = "delayed, retrying, blocked, ready, claimed, done, dead, failed, cancelled or expired";
        deserializer.deserialize_str(FromText { expected, parse })
    }
}

/// A length of time: a whole number of milliseconds, at most ten years.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, ToSchema)]
#[schema(value_type = u64, example = 30000, maximum = 315619200000u64)]
pub struct Ms(pub u64);

impl Ms {
    /// The field `what`, within the range of a length of time.
    pub fn check(what: &str, millis: u64) -> Result<Ms, Invalid> {
        let max = limits::DURATION_MAX.0;
        if millis > max {
            return Err(Invalid(format!(
                "{what} is {millis}: give a number of milliseconds from 0 to {max}"
            )));
        }
        Ok(Ms(millis))
    }
}

impl From<Millis> for Ms {
    fn from(millis: Millis) -> Ms {
        Ms(millis.0)
    }
}

impl From<Ms> for Millis {
    fn from(ms: Ms) -> Millis {
        Millis(ms.0)
    }
}

impl Serialize for Ms {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0)
    }
}

impl<'de> Deserialize<'de> for Ms {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Ms, D::Error> {
        deserializer.deserialize_u64(MsVisitor)
    }
}

struct MsVisitor;

impl Visitor<'_> for MsVisitor {
    type Value = Ms;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a whole number of milliseconds from 0 to {}", limits::DURATION_MAX.0)
    }

    fn visit_u64<E: de::Error>(self, millis: u64) -> Result<Ms, E> {
        if millis > limits::DURATION_MAX.0 {
            return Err(E::invalid_value(Unexpected::Unsigned(millis), &self));
        }
        Ok(Ms(millis))
    }
}

/// One outcome in a list: what came out, or what went wrong with this one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum Outcome<T> {
    /// It was refused; nothing of it changed.
    Refused {
        /// Why.
        error: Problem,
    },
    /// It was done.
    Done(T),
}

/// Outcomes in the order of what was asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Results<T> {
    /// One for each that was asked.
    pub results: Vec<Outcome<T>>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::{ShardId, WallTime};

    #[test]
    fn an_id_is_written_as_it_is_displayed() {
        let id = TaskId::new(
            ShardId::new(3).unwrap(),
            WallTime::from_millis(1_794_744_030_001),
            0x0123_4567_89ab_cdef,
        );
        let json = serde_json::to_string(&Id(id)).unwrap();
        assert_eq!(json, format!("\"{id}\""));
        assert_eq!(serde_json::from_str::<Id>(&json).unwrap(), Id(id));
    }

    #[test]
    fn absurd_durations_are_refused_with_the_range() {
        for bad in ["-1", "1.5", "\"5\"", "315619200001", "1e400", "null", "99999999999999999999999"] {
            assert!(serde_json::from_str::<Ms>(bad).is_err(), "{bad}");
        }
        let error = serde_json::from_str::<Ms>("-1").unwrap_err().to_string();
        assert!(error.contains("whole number of milliseconds from 0 to 315619200000"), "{error}");
        assert_eq!(serde_json::from_str::<Ms>("315619200000").unwrap(), Ms(limits::DURATION_MAX.0));
    }

    #[test]
    fn states_are_known_by_their_words_alone() {
        assert_eq!(serde_json::from_str::<State>("\"dead\"").unwrap().0, StateKind::Dead);
        assert!(serde_json::from_str::<State>("\"Dead\"").is_err());
        assert!(serde_json::from_str::<State>("7").is_err());
    }
}
