//! `/v1/queues`: what queues hold, and how they treat their tasks.

use std::fmt;

use model::{FreedTo, Millis, OnExhausted, QueuePolicy, Recovery, RetryPolicy, Spread, limits};
use serde::de::{self, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::ToSchema;

use super::enqueue::{check_attempts, check_backoff, check_hold};
use super::parse::{Invalid, object_or_null};
use super::value::Ms;

/// All queues.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct QueuesReply {
    /// By name.
    pub queues: Vec<QueueReply>,
}

/// A queue over all shards.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct QueueReply {
    /// Which.
    pub name: String,
    /// Whether claims pass it by.
    pub paused: bool,
    /// Tasks by state.
    pub depth: DepthReply,
    /// How long the oldest ready task has waited; nothing when none is ready.
    pub oldest_ready_ms: Option<Ms>,
    /// How long the oldest claim has run; nothing when none does.
    pub oldest_claimed_ms: Option<Ms>,
    /// What it has seen since it was made.
    pub totals: TotalsReply,
    /// How fast it moves, over the last ten seconds.
    pub rates: RatesReply,
    /// How it treats its tasks; not in the list of all queues.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub policy: Option<PolicyReply>,
}

/// Tasks by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DepthReply {
    /// May be claimed.
    pub ready: u64,
    /// Held by workers.
    pub claimed: u64,
    /// Wait for a time.
    pub delayed: u64,
    /// Back off after a failed attempt.
    pub retrying: u64,
    /// Wait for their order key.
    pub blocked: u64,
    /// Dead letters.
    pub dead: u64,
}

/// What a queue has seen since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TotalsReply {
    /// Tasks taken in.
    pub enqueued: u64,
    /// Tasks acked.
    pub done: u64,
    /// Attempts failed.
    pub failed: u64,
    /// Tasks that became dead.
    pub dead: u64,
    /// Claims freed without ack or fail.
    pub freed: u64,
}

/// How fast a queue moves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RatesReply {
    /// Tasks taken in.
    pub enqueued_per_s: f64,
    /// Tasks acked.
    pub done_per_s: f64,
    /// Attempts failed.
    pub failed_per_s: f64,
}

/// How a queue treats its tasks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PolicyReply {
    /// How long a claim holds, unless task or claim say otherwise.
    pub hold_ms: Ms,
    /// Retries, unless the task says otherwise.
    pub retry: RetryReply,
    /// How long an ended task stays readable.
    pub retention_ms: Ms,
    /// How many ended tasks stay readable.
    pub retained_max: u64,
    /// How many dead letters are kept.
    pub dead_max: u64,
    /// How long a dead letter is kept.
    pub dead_retention_ms: Ms,
    /// How many dedup keys are remembered.
    pub dedup_keys_max: u64,
    /// How many live tasks the queue takes; nothing for no limit.
    pub tasks_max: Option<u64>,
    /// The largest payload.
    pub payload_bytes_max: u64,
    /// Who frees a claim whose worker is gone.
    pub recovery: RecoveryWord,
    /// Where a freed task goes.
    pub freed_to: FreedToWord,
    /// What becomes of a task whose attempts are used up.
    pub on_exhausted: OnExhaustedWord,
    /// How many shards it lives in.
    pub shards: Shards,
    /// Claims lost in a row that make a task a poison pill.
    pub poison_after: u32,
}

/// When a failed attempt is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RetryReply {
    /// Attempts in all.
    pub attempts: u32,
    /// The first backoff; doubles each time.
    pub base_ms: Ms,
    /// The longest backoff.
    pub cap_ms: Ms,
    /// No retry of a task older than this; nothing for no limit.
    pub age_max_ms: Option<Ms>,
}

/// `PUT /v1/queues/{queue}`: the fields that are given replace those of the policy; the others stay.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
#[schema(example = json!({"hold_ms": 60000, "retry": {"attempts": 5}}))]
pub struct PolicyRequest {
    /// How long a claim holds: 100 to 86400000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hold_ms: Option<Ms>,
    /// Retries, unless the task says otherwise.
    #[serde(deserialize_with = "object_or_null", skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetryPolicyRequest>,
    /// How long an ended task stays readable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retention_ms: Option<Ms>,
    /// How many ended tasks stay readable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retained_max: Option<u64>,
    /// How many dead letters are kept; the oldest go first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dead_max: Option<u64>,
    /// How long a dead letter is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dead_retention_ms: Option<Ms>,
    /// How many dedup keys are remembered; over it a keyed enqueue is refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dedup_keys_max: Option<u64>,
    /// How many live tasks the queue takes; `null` for no limit.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    #[schema(value_type = Option<u64>)]
    pub tasks_max: Option<Option<u64>>,
    /// The largest payload, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload_bytes_max: Option<u64>,
    /// Who frees a claim whose worker is gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recovery: Option<RecoveryWord>,
    /// Where a freed task goes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub freed_to: Option<FreedToWord>,
    /// What becomes of a task whose attempts are used up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_exhausted: Option<OnExhaustedWord>,
    /// How many shards it lives in; changes only while the queue is empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shards: Option<Shards>,
    /// Claims lost in a row that make a task a poison pill.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub poison_after: Option<u64>,
    /// Not available yet.
    #[serde(skip_serializing)]
    #[schema(ignore)]
    pub concurrency: Option<NotYet>,
    /// Not available yet.
    #[serde(skip_serializing)]
    #[schema(ignore)]
    pub rate: Option<NotYet>,
    /// Not available yet.
    #[serde(skip_serializing)]
    #[schema(ignore)]
    pub limit_key: Option<NotYet>,
    /// Not available yet.
    #[serde(skip_serializing)]
    #[schema(ignore)]
    pub fair_by: Option<NotYet>,
}

/// Retries of a queue; what is not given stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RetryPolicyRequest {
    /// Attempts in all, at least 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempts: Option<u64>,
    /// The first backoff, at least 1; doubles each time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base_ms: Option<Ms>,
    /// The longest backoff, at least 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cap_ms: Option<Ms>,
    /// No retry of a task older than this; `null` for no limit.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    #[schema(value_type = Option<Ms>)]
    pub age_max_ms: Option<Option<Ms>>,
}

/// A field of a later version: read, so that it can be refused by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotYet;

impl<'de> Deserialize<'de> for NotYet {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<NotYet, D::Error> {
        de::IgnoredAny::deserialize(deserializer).map(|_| NotYet)
    }
}

/// Tells `null` from a field that is not there.
fn given<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::<T>::deserialize(deserializer).map(Some)
}

macro_rules! words {
    ($(#[$doc:meta])* $word:ident for $model:ident { $($(#[$variant_doc:meta])* $variant:ident,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
        #[serde(rename_all = "snake_case")]
        pub enum $word { $($(#[$variant_doc])* $variant,)* }

        impl From<$model> for $word {
            fn from(value: $model) -> $word {
                match value { $($model::$variant => $word::$variant,)* }
            }
        }

        impl From<$word> for $model {
            fn from(word: $word) -> $model {
                match word { $($word::$variant => $model::$variant,)* }
            }
        }
    };
}

words!(
    /// Who frees a claim whose worker is gone.
    RecoveryWord for Recovery {
        /// Windlass, by deadline and session.
        Auto,
        /// A person.
        Manual,
    }
);
words!(
    /// Where a freed task goes.
    FreedToWord for FreedTo {
        /// Next in line.
        Front,
        /// Behind the others.
        Back,
    }
);
words!(
    /// What becomes of a task whose attempts are used up.
    OnExhaustedWord for OnExhausted {
        /// A dead letter.
        Dead,
        /// It ends as `failed`.
        Discard,
    }
);

/// How many shards a queue lives in: `"all"` or `1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shards(pub Spread);

impl Serialize for Shards {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Spread::All => serializer.serialize_str("all"),
            Spread::Pinned => serializer.serialize_u64(1),
        }
    }
}

impl<'de> Deserialize<'de> for Shards {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Shards, D::Error> {
        deserializer.deserialize_any(ShardsVisitor)
    }
}

struct ShardsVisitor;

impl Visitor<'_> for ShardsVisitor {
    type Value = Shards;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"all\" or 1")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Shards, E> {
        match text {
            "all" => Ok(Shards(Spread::All)),
            _ => Err(E::invalid_value(Unexpected::Str(text), &self)),
        }
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Shards, E> {
        match number {
            1 => Ok(Shards(Spread::Pinned)),
            _ => Err(E::invalid_value(Unexpected::Unsigned(number), &self)),
        }
    }
}

impl utoipa::PartialSchema for Shards {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
        use utoipa::openapi::schema::{ObjectBuilder, OneOfBuilder, Type};
        let all = ObjectBuilder::new().schema_type(Type::String).enum_values(Some(["all"]));
        let one = ObjectBuilder::new().schema_type(Type::Integer).enum_values(Some([1]));
        OneOfBuilder::new().item(all).item(one).into()
    }
}

impl ToSchema for Shards {}

/// What a purge answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PurgeReply {
    /// How many waiting tasks are being cancelled.
    pub purged: u64,
}

/// What the deletion of a queue answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeleteQueueReply {
    /// Which.
    pub name: String,
    /// Always true.
    pub deleted: bool,
}

impl From<&QueuePolicy> for PolicyReply {
    fn from(policy: &QueuePolicy) -> PolicyReply {
        PolicyReply {
            hold_ms: policy.hold.into(),
            retry: RetryReply {
                attempts: policy.retry.attempts,
                base_ms: policy.retry.base.into(),
                cap_ms: policy.retry.cap.into(),
                age_max_ms: policy.retry.age_max.map(Ms::from),
            },
            retention_ms: policy.retention.into(),
            retained_max: policy.retained_max,
            dead_max: policy.dead_max,
            dead_retention_ms: policy.dead_retention.into(),
            dedup_keys_max: policy.dedup_keys_max,
            tasks_max: policy.tasks_max,
            payload_bytes_max: policy.payload_bytes_max,
            recovery: policy.recovery.into(),
            freed_to: policy.freed_to.into(),
            on_exhausted: policy.on_exhausted.into(),
            shards: Shards(policy.spread),
            poison_after: policy.poison_after,
        }
    }
}

impl PolicyRequest {
    /// The policy that `current` becomes.
    pub fn over(&self, current: &QueuePolicy) -> Result<QueuePolicy, Invalid> {
        self.check_available()?;
        let or = |given: Option<Ms>, current: Millis| given.map_or(current, Millis::from);
        Ok(QueuePolicy {
            hold: check_hold(self.hold_ms)?.unwrap_or(current.hold),
            retry: self.retry.unwrap_or_default().over(current.retry)?,
            retention: or(self.retention_ms, current.retention),
            retained_max: self.retained_max.unwrap_or(current.retained_max),
            dead_max: self.dead_max.unwrap_or(current.dead_max),
            dead_retention: or(self.dead_retention_ms, current.dead_retention),
            dedup_keys_max: self.dedup_keys_max.unwrap_or(current.dedup_keys_max),
            tasks_max: check_tasks_max(self.tasks_max.unwrap_or(current.tasks_max))?,
            payload_bytes_max: self.payload_bytes_max()?.unwrap_or(current.payload_bytes_max),
            recovery: self.recovery.map_or(current.recovery, Recovery::from),
            freed_to: self.freed_to.map_or(current.freed_to, FreedTo::from),
            on_exhausted: self.on_exhausted.map_or(current.on_exhausted, OnExhausted::from),
            spread: self.shards.map_or(current.spread, |shards| shards.0),
            poison_after: self.poison_after()?.unwrap_or(current.poison_after),
        })
    }

    fn check_available(&self) -> Result<(), Invalid> {
        let later = [
            ("concurrency", self.concurrency),
            ("rate", self.rate),
            ("limit_key", self.limit_key),
            ("fair_by", self.fair_by),
        ];
        match later.iter().find(|(_, field)| field.is_some()) {
            Some((name, _)) => {
                Err(Invalid(format!("{name} is not available yet in this version: leave it out")))
            }
            None => Ok(()),
        }
    }

    fn payload_bytes_max(&self) -> Result<Option<u64>, Invalid> {
        let max = limits::PAYLOAD_BYTES_MAX;
        match self.payload_bytes_max {
            Some(bytes) if bytes == 0 || bytes > max => {
                Err(Invalid(format!("payload_bytes_max is {bytes}: give a number from 1 to {max}")))
            }
            other => Ok(other),
        }
    }

    fn poison_after(&self) -> Result<Option<u32>, Invalid> {
        let Some(count) = self.poison_after else { return Ok(None) };
        let max = limits::ATTEMPTS_MAX;
        match u32::try_from(count) {
            Ok(count) if (1..=max).contains(&count) => Ok(Some(count)),
            _ => Err(Invalid(format!("poison_after is {count}: give a number from 1 to {max}"))),
        }
    }
}

impl RetryPolicyRequest {
    fn over(self, current: RetryPolicy) -> Result<RetryPolicy, Invalid> {
        Ok(RetryPolicy {
            attempts: self.attempts.map(check_attempts).transpose()?.unwrap_or(current.attempts),
            base: check_backoff("retry.base_ms", self.base_ms)?.unwrap_or(current.base),
            cap: check_backoff("retry.cap_ms", self.cap_ms)?.unwrap_or(current.cap),
            age_max: self.age_max_ms.map_or(current.age_max, |age| age.map(Millis::from)),
        })
    }
}

fn check_tasks_max(tasks_max: Option<u64>) -> Result<Option<u64>, Invalid> {
    match tasks_max {
        Some(0) => {
            Err(Invalid::new("tasks_max is 0: give at least 1, null for no limit, or pause the queue"))
        }
        other => Ok(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::parse;

    fn over(text: &str) -> Result<QueuePolicy, Invalid> {
        parse::one::<PolicyRequest>(text)?.over(&QueuePolicy::default())
    }

    #[test]
    fn given_fields_replace_and_others_stay() {
        let policy =
            over(r#"{"hold_ms":60000,"retry":{"attempts":5},"shards":1,"recovery":"manual"}"#).unwrap();
        assert_eq!(policy.hold, Millis::secs(60));
        assert_eq!(policy.retry, RetryPolicy { attempts: 5, ..RetryPolicy::default() });
        assert_eq!(policy.spread, Spread::Pinned);
        assert_eq!(policy.recovery, Recovery::Manual);
        assert_eq!(policy.dead_max, QueuePolicy::default().dead_max);
    }

    #[test]
    fn null_takes_a_limit_away() {
        let limited = QueuePolicy { tasks_max: Some(5), ..QueuePolicy::default() };
        let none: PolicyRequest = parse::one(r#"{"tasks_max":null}"#).unwrap();
        assert_eq!(none.over(&limited).unwrap().tasks_max, None);
        let silent: PolicyRequest = parse::one("{}").unwrap();
        assert_eq!(silent.over(&limited).unwrap().tasks_max, Some(5));
    }

    #[test]
    fn fields_of_a_later_version_are_refused_by_name() {
        for (name, text) in [
            ("concurrency", r#"{"concurrency":5}"#),
            ("rate", r#"{"rate":{"per_s":1,"burst":2}}"#),
            ("limit_key", r#"{"limit_key":{"concurrency":1}}"#),
            ("fair_by", r#"{"fair_by":"tenant"}"#),
        ] {
            let error = over(text).unwrap_err();
            assert!(error.0.contains(name) && error.0.contains("not available yet"), "{error}");
        }
    }

    #[test]
    fn one_fault_per_row_is_refused() {
        for (what, text) in [
            ("an unknown field", r#"{"holdms":1}"#),
            ("a short hold", r#"{"hold_ms":1}"#),
            ("a negative retention", r#"{"retention_ms":-1}"#),
            ("attempts 0", r#"{"retry":{"attempts":0}}"#),
            ("a list for retry", r#"{"retry":[1,1,1,1]}"#),
            ("2 shards", r#"{"shards":2}"#),
            ("some shards", r#"{"shards":"some"}"#),
            ("no tasks", r#"{"tasks_max":0}"#),
            ("no payload", r#"{"payload_bytes_max":0}"#),
            ("a payload of 1 GB", r#"{"payload_bytes_max":1073741824}"#),
            ("poison after 0", r#"{"poison_after":0}"#),
            ("recovery by magic", r#"{"recovery":"magic"}"#),
        ] {
            assert!(over(text).is_err(), "{what} was taken");
        }
    }

    #[test]
    fn a_policy_reads_back_as_it_was_written() {
        let reply = PolicyReply::from(&QueuePolicy::default());
        let json = serde_json::to_string(&reply).unwrap();
        assert!(json.contains(r#""shards":"all""#), "{json}");
        assert_eq!(over(&json).unwrap(), QueuePolicy::default());
    }
}
