//! `POST /v1/queues/{queue}/tasks`: a task as a caller describes it, and what became of it.
//!
//! The same description stands in the `then` of an ack, there with its queue. Next: `claim`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use model::command::UniqueUntil;
use model::name::check_key;
use model::{KindName, Millis, QueueName, RetryOverride, Start, limits};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::parse::{Invalid, at_most, object_or_null};
use super::text::{Pairs, Text};
use super::time::Time;
use super::value::{Id, Ms, State};

/// How long a dedup key is remembered after its task's end, when the caller does not say.
pub const DEDUP_WINDOW_DEFAULT: Millis = Millis::mins(15);

/// A task to be enqueued.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"kind": "welcome", "payload": {"to": "ada@example.com"}}))]
pub struct TaskRequest<'a> {
    /// Its queue: needed in the `then` of an ack; elsewhere the path says it.
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub queue: Option<Text<'a>>,
    /// Which handler it is for.
    #[serde(borrow)]
    #[schema(value_type = String)]
    pub kind: Text<'a>,
    /// Any JSON, kept byte for byte.
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub payload: Option<&'a RawValue>,
    /// Bytes in place of `payload`.
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub payload_base64: Option<Text<'a>>,
    /// What those bytes are.
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub content_type: Option<Text<'a>>,
    /// What travels beside the payload.
    #[serde(borrow, default, skip_serializing_if = "Pairs::is_empty")]
    #[schema(value_type = std::collections::BTreeMap<String, String>)]
    pub headers: Pairs<'a>,
    /// Tasks of one dedup key are one task.
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub dedup_key: Option<Text<'a>>,
    /// How long after the end a repeat is still one: 900000 unless said; 0 = only while it lives.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dedup_window_ms: Option<Ms>,
    /// Not claimed before so long from now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<Ms>,
    /// Not claimed before this time; one that has passed means now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_at: Option<Time>,
    /// 0 is served first, 9 last; 5 unless said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<u64>,
    /// Tasks of one order key run one after the other.
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub order_key: Option<Text<'a>>,
    /// How long a claim of it holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hold_ms: Option<Ms>,
    /// Its retries; the queue's policy fills in the rest.
    #[serde(default, deserialize_with = "object_or_null", skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetryRequest>,
    /// Not claimed later than so long from now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_in_ms: Option<Ms>,
    /// How long it stays readable after its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retention_ms: Option<Ms>,
    /// Only one task at a time has this key.
    #[serde(borrow, default, deserialize_with = "object_or_null", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<UniqueRequest>)]
    pub unique: Option<UniqueRequest<'a>>,
}

/// What one task says of its retries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RetryRequest {
    /// Attempts in all, at least 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempts: Option<u64>,
    /// The first backoff, at least 1; doubles each time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base_ms: Option<Ms>,
    /// The longest backoff, at least 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cap_ms: Option<Ms>,
    /// No retry of a task older than this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub age_max_ms: Option<Ms>,
}

/// A key that only one task at a time has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UniqueRequest<'a> {
    /// The key.
    #[serde(borrow)]
    #[schema(value_type = String)]
    pub key: Text<'a>,
    /// How long it is taken.
    pub until: UniqueUntilWord,
}

/// How long a unique key is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum UniqueUntilWord {
    /// Until the first claim.
    Claimed,
    /// Until the task has ended.
    Final,
}

/// Many tasks at once.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EnqueueManyRequest<'a> {
    /// At most 10,000.
    #[serde(borrow, deserialize_with = "at_most::<{ limits::ENQUEUE_TASKS_MAX }, _, _>")]
    #[schema(value_type = Vec<TaskRequest>)]
    pub tasks: Vec<TaskRequest<'a>>,
    /// All or none; they must all belong to one shard.
    #[serde(default)]
    pub atomic: bool,
}

/// Whether an enqueue made a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EnqueueStatus {
    /// It did.
    Enqueued,
    /// The dedup key's task was there already.
    Duplicate,
}

/// What became of an enqueued task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EnqueueReply {
    /// The task: the new one, or the one that has the dedup key.
    pub id: Id,
    /// Whether this enqueue made it.
    pub status: EnqueueStatus,
    /// What it is now.
    pub state: State,
}

/// A payload, checked.
#[derive(Debug)]
pub enum Payload<'a> {
    /// JSON, as it came.
    Json(&'a str),
    /// Bytes of this content type.
    Bytes(Vec<u8>, String),
}

impl<'a> TaskRequest<'a> {
    /// Its kind.
    pub fn kind(&self) -> Result<KindName, Invalid> {
        Ok(KindName::new(&self.kind)?)
    }

    /// The queue it names; for the `then` of an ack.
    pub fn queue(&self) -> Result<QueueName, Invalid> {
        match &self.queue {
            Some(queue) => Ok(QueueName::new(queue)?),
            None => Err(Invalid::new("a task in `then` has no queue: name one")),
        }
    }

    /// Its payload. None at all is `null`.
    pub fn payload(&self) -> Result<Payload<'a>, Invalid> {
        match (self.payload, &self.payload_base64, &self.content_type) {
            (None, None, None) => Ok(Payload::Json("null")),
            (Some(json), None, None) => Ok(Payload::Json(json.get())),
            (Some(_), Some(_), _) => {
                Err(Invalid::new("payload and payload_base64 are both given: send one of them"))
            }
            (_, None, Some(_)) => Err(Invalid::new(
                "content_type is given without payload_base64: a payload in JSON needs none, leave it out",
            )),
            (None, Some(base64), content_type) => {
                let bytes = STANDARD.decode(base64.as_bytes()).map_err(|error| {
                    Invalid(format!("payload_base64 is not standard base64 with padding: {error}"))
                })?;
                let content_type = content_type.as_deref().unwrap_or("application/octet-stream");
                check_content_type(content_type)?;
                Ok(Payload::Bytes(bytes, content_type.to_owned()))
            }
        }
    }

    /// Its headers, within their limits.
    pub fn headers(&self) -> Result<Vec<(String, String)>, Invalid> {
        let Pairs(pairs) = &self.headers;
        if pairs.len() > limits::HEADERS_MAX {
            let (count, max) = (pairs.len(), limits::HEADERS_MAX);
            return Err(Invalid(format!("{count} headers, at most {max} are allowed")));
        }
        let bytes: usize = pairs.iter().map(|(name, value)| name.len() + value.len()).sum();
        if bytes > limits::HEADERS_BYTES_MAX {
            let max = limits::HEADERS_BYTES_MAX;
            return Err(Invalid(format!("the headers have {bytes} bytes, at most {max} are allowed")));
        }
        for (name, value) in pairs {
            let control = |text: &str| text.chars().any(|c| c.is_control());
            if name.is_empty() || control(name) || control(value) {
                let name: &str = name;
                return Err(Invalid(format!(
                    "header {name:?} has no name or holds a control character: take it out"
                )));
            }
        }
        Ok(pairs.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect())
    }

    /// Its dedup key and window; `idempotency_key` is the header's.
    pub fn dedup(&self, idempotency_key: Option<&str>) -> Result<Option<(String, Millis)>, Invalid> {
        let key = match (self.dedup_key.as_deref(), idempotency_key) {
            (Some(field), Some(header)) if field != header => {
                return Err(Invalid::new("dedup_key and Idempotency-Key differ: send one of them"));
            }
            (field, header) => field.or(header),
        };
        let Some(key) = key else {
            return match self.dedup_window_ms {
                None => Ok(None),
                Some(_) => Err(Invalid::new("dedup_window_ms is given without dedup_key: name a key too")),
            };
        };
        check_key("dedup_key", key)?;
        let window = self.dedup_window_ms.map_or(DEDUP_WINDOW_DEFAULT, Millis::from);
        Ok(Some((key.to_owned(), window)))
    }

    /// Its unique key.
    pub fn unique(&self) -> Result<Option<(String, UniqueUntil)>, Invalid> {
        let Some(unique) = &self.unique else { return Ok(None) };
        check_key("unique.key", &unique.key)?;
        let until = match unique.until {
            UniqueUntilWord::Claimed => UniqueUntil::Claimed,
            UniqueUntilWord::Final => UniqueUntil::Final,
        };
        Ok(Some((unique.key.to_string(), until)))
    }

    /// Its order key.
    pub fn order_key(&self) -> Result<Option<String>, Invalid> {
        let Some(key) = &self.order_key else { return Ok(None) };
        check_key("order_key", key)?;
        Ok(Some(key.to_string()))
    }

    /// When it may first be claimed.
    pub fn start(&self) -> Result<Start, Invalid> {
        match (self.delay_ms, self.run_at) {
            (Some(_), Some(_)) => Err(Invalid::new("delay_ms and run_at are both given: send one of them")),
            (Some(Ms(0)), None) | (None, None) => Ok(Start::Now),
            (Some(delay), None) => Ok(Start::After(delay.into())),
            (None, Some(time)) => Ok(Start::At(time.0)),
        }
    }

    /// Its priority.
    pub fn priority(&self) -> Result<u8, Invalid> {
        match self.priority {
            None => Ok(limits::PRIORITY_DEFAULT),
            Some(priority) if priority <= u64::from(limits::PRIORITY_MAX) => Ok(priority as u8),
            Some(priority) => {
                let max = limits::PRIORITY_MAX;
                Err(Invalid(format!("priority is {priority}: give one from 0 (first) to {max} (last)")))
            }
        }
    }

    /// What it says of its retries.
    pub fn retry(&self) -> Result<RetryOverride, Invalid> {
        self.retry.unwrap_or_default().check()
    }
}

impl RetryRequest {
    /// The same in checked values.
    pub fn check(self) -> Result<RetryOverride, Invalid> {
        Ok(RetryOverride {
            attempts: self.attempts.map(check_attempts).transpose()?,
            base: check_backoff("retry.base_ms", self.base_ms)?,
            cap: check_backoff("retry.cap_ms", self.cap_ms)?,
            age_max: self.age_max_ms.map(Millis::from),
        })
    }
}

/// Checks a number of attempts.
pub fn check_attempts(attempts: u64) -> Result<u32, Invalid> {
    let max = limits::ATTEMPTS_MAX;
    match u32::try_from(attempts) {
        Ok(attempts) if (1..=max).contains(&attempts) => Ok(attempts),
        _ => Err(Invalid(format!("retry.attempts is {attempts}: give a number from 1 to {max}"))),
    }
}

/// Checks a backoff, which is never nothing.
pub fn check_backoff(what: &str, backoff: Option<Ms>) -> Result<Option<Millis>, Invalid> {
    match backoff {
        Some(Ms(0)) => Err(Invalid(format!("{what} is 0: give at least 1"))),
        other => Ok(other.map(Millis::from)),
    }
}

/// Checks how long a claim holds.
pub fn check_hold(hold: Option<Ms>) -> Result<Option<Millis>, Invalid> {
    let Some(Ms(hold)) = hold else { return Ok(None) };
    let (min, max) = (limits::HOLD_MIN.0, limits::HOLD_MAX.0);
    if !(min..=max).contains(&hold) {
        return Err(Invalid(format!("hold_ms is {hold}: give a number from {min} to {max}")));
    }
    Ok(Some(Millis(hold)))
}

/// Checks what bytes are said to be.
pub fn check_content_type(text: &str) -> Result<(), Invalid> {
    let max = limits::CONTENT_TYPE_BYTES_MAX;
    if text.is_empty() || text.len() > max || !text.bytes().all(|b| b == b' ' || b.is_ascii_graphic()) {
        return Err(Invalid(format!(
            "content_type is empty, longer than {max} bytes or not printable ASCII: give one like image/png"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::parse;

    fn read(text: &str) -> Result<TaskRequest<'_>, Invalid> {
        parse::one(text)
    }

    #[test]
    fn a_payload_is_kept_byte_for_byte() {
        let task = read(r#"{"kind":"k","payload":{"b" : 1.50, "a":"\u00e9"}}"#).unwrap();
        assert!(matches!(task.payload(), Ok(Payload::Json(r#"{"b" : 1.50, "a":"\u00e9"}"#))));
        let json = serde_json::to_string(&task).unwrap();
        assert_eq!(json, r#"{"kind":"k","payload":{"b" : 1.50, "a":"\u00e9"}}"#);
    }

    #[test]
    fn one_fault_per_row_is_refused() {
        let long = "k".repeat(limits::KIND_BYTES_MAX + 1);
        for (what, text) in [
            ("no kind", r#"{"payload":1}"#.to_owned()),
            ("an unknown field", r#"{"kind":"k","nope":1}"#.to_owned()),
            ("a kind of the wrong type", r#"{"kind":7}"#.to_owned()),
            ("a field twice", r#"{"kind":"k","kind":"k"}"#.to_owned()),
            ("a list for retry", r#"{"kind":"k","retry":[1,1,1,1]}"#.to_owned()),
            ("a negative delay", r#"{"kind":"k","delay_ms":-1}"#.to_owned()),
            ("an absurd delay", r#"{"kind":"k","delay_ms":99999999999999}"#.to_owned()),
            ("run_at beyond 9999", r#"{"kind":"k","run_at":"+010000-01-01T00:00:00Z"}"#.to_owned()),
            ("delay and run_at", r#"{"kind":"k","delay_ms":1,"run_at":"2026-11-15T12:00:00Z"}"#.to_owned()),
            ("priority 10", r#"{"kind":"k","priority":10}"#.to_owned()),
            ("a kind too long", format!(r#"{{"kind":"{long}"}}"#)),
            ("an empty kind", r#"{"kind":""}"#.to_owned()),
            ("a control character in a kind", r#"{"kind":"a\u0007"}"#.to_owned()),
            ("attempts 0", r#"{"kind":"k","retry":{"attempts":0}}"#.to_owned()),
            ("base 0", r#"{"kind":"k","retry":{"base_ms":0}}"#.to_owned()),
            ("an unknown field of retry", r#"{"kind":"k","retry":{"tries":1}}"#.to_owned()),
            ("a hold too short", r#"{"kind":"k","hold_ms":99}"#.to_owned()),
            ("two payloads", r#"{"kind":"k","payload":1,"payload_base64":"AA=="}"#.to_owned()),
            ("base64 that is none", r#"{"kind":"k","payload_base64":"%"}"#.to_owned()),
            ("a content type for JSON", r#"{"kind":"k","payload":1,"content_type":"a/b"}"#.to_owned()),
            ("a window without a key", r#"{"kind":"k","dedup_window_ms":1}"#.to_owned()),
            ("an empty dedup key", r#"{"kind":"k","dedup_key":""}"#.to_owned()),
            ("unique until never", r#"{"kind":"k","unique":{"key":"u","until":"never"}}"#.to_owned()),
            ("a control character in a header", r#"{"kind":"k","headers":{"a":"\n"}}"#.to_owned()),
        ] {
            let refused = read(&text).and_then(|task| {
                task.kind()?;
                task.payload()?;
                task.headers()?;
                task.dedup(None)?;
                task.unique()?;
                task.order_key()?;
                task.start()?;
                task.priority()?;
                task.retry()?;
                check_hold(task.hold_ms)
            });
            assert!(refused.is_err(), "{what} was taken");
        }
    }

    #[test]
    fn the_header_and_the_field_must_agree_on_the_dedup_key() {
        let task = read(r#"{"kind":"k","dedup_key":"a"}"#).unwrap();
        assert_eq!(task.dedup(Some("a")), Ok(Some(("a".into(), DEDUP_WINDOW_DEFAULT))));
        assert!(task.dedup(Some("b")).is_err());
        let bare = read(r#"{"kind":"k"}"#).unwrap();
        assert_eq!(bare.dedup(Some("b")), Ok(Some(("b".into(), DEDUP_WINDOW_DEFAULT))));
        assert_eq!(bare.dedup(None), Ok(None));
    }
}
