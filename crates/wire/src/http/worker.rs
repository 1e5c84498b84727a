//! `/v1/workers`: registering, beating, and what people see of workers.

use model::{Millis, QueueName, WorkerName, limits};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::parse::{Invalid, at_most};
use super::text::{Pairs, Text};
use super::time::Time;
use super::value::{Id, Ms, Session};

/// Names and values of all labels of one worker.
pub const LABELS_BYTES_MAX: usize = 4 * 1024;
/// Workers in one page when the caller does not say, and at most.
pub const WORKERS_PAGE_MAX: usize = limits::LIST_MAX;

/// What a worker says of itself.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"id": "host-1:4711", "host": "host-1", "pid": 4711, "slots": 8, "queues": ["mail"], "beat_ms": 1000}))]
pub struct RegisterRequest<'a> {
    /// Its name.
    #[serde(borrow)]
    #[schema(value_type = String)]
    pub id: Text<'a>,
    /// Where it runs.
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub host: Option<Text<'a>>,
    /// Its process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// How many tasks it runs at once: 1 to 10000, 1 unless said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slots: Option<u64>,
    /// Which queues it claims from.
    #[serde(borrow, default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<String>)]
    pub queues: Vec<Text<'a>>,
    /// What people want to know of it.
    #[serde(borrow, default, skip_serializing_if = "Pairs::is_empty")]
    #[schema(value_type = std::collections::BTreeMap<String, String>)]
    pub labels: Pairs<'a>,
    /// Which version it is.
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub version: Option<Text<'a>>,
    /// How often it beats: at most 1000, which is also the default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub beat_ms: Option<Ms>,
    /// A session to go on with, after a lost connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<Session>,
}

/// A worker's new session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RegisterReply {
    /// Goes with every claim and beat.
    pub session: Session,
    /// What the worker shall do.
    pub state: WorkerStateWord,
}

/// A sign of life.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BeatRequest {
    /// Whose.
    pub session: Session,
    /// What it holds. A claim that two beats do not list is released.
    #[serde(default, deserialize_with = "at_most::<{ limits::BEAT_CLAIMS_MAX }, _, _>")]
    pub running: Vec<RunningTask>,
}

/// A task in a worker's hands, by its claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RunningTask {
    /// Which.
    pub id: Id,
    /// By which claim.
    pub fence: u64,
}

/// What a beat answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BeatReply {
    /// What the worker shall do.
    pub state: WorkerStateWord,
    /// Which tasks it shall stop.
    pub cancel: Vec<RunningTask>,
}

/// What a worker is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum WorkerStateWord {
    /// Go on.
    Running,
    /// Claim nothing more, finish what runs.
    Draining,
    /// Stop now, releasing what runs.
    Stopping,
    /// It is gone.
    Lost,
}

/// Room for running tasks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SlotsReply {
    /// Free slots of running workers.
    pub open: u64,
    /// All slots of running workers.
    pub total: u64,
}

/// One page of the workers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WorkersReply {
    /// Room over all workers.
    pub slots: SlotsReply,
    /// Those of this page, by name; a lost one stays listed for ten minutes.
    pub workers: Vec<WorkerReply>,
    /// Where to go on, if there are more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// `GET /v1/workers`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct WorkersQuery {
    /// At most so many, 1 to 1000; 1000 unless said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// Where to go on, as the last answer said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// A worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WorkerReply {
    /// Its name.
    pub id: String,
    /// Where it runs.
    pub host: Option<String>,
    /// Its process.
    pub pid: Option<u32>,
    /// How many tasks it runs at once.
    pub slots: u32,
    /// How many it runs now.
    pub running: u64,
    /// What it was asked to do.
    pub state: WorkerStateWord,
    /// When it last beat.
    pub last_beat: Time,
    /// What it holds.
    pub claims: Vec<RunningTask>,
    /// Which queues it claims from.
    pub queues: Vec<String>,
    /// What people want to know of it.
    #[schema(value_type = std::collections::BTreeMap<String, String>)]
    pub labels: std::collections::BTreeMap<String, String>,
    /// Which version it is.
    pub version: Option<String>,
}

/// What became of a worker that somebody drained, stopped, removed or ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WorkerActionReply {
    /// Which.
    pub id: String,
    /// What is asked of it now.
    pub state: WorkerStateWord,
}

impl RegisterRequest<'_> {
    /// Its name.
    pub fn name(&self) -> Result<WorkerName, Invalid> {
        Ok(WorkerName::new(&self.id)?)
    }

    /// Its slots.
    pub fn slots(&self) -> Result<u32, Invalid> {
        let (slots, max) = (self.slots.unwrap_or(1), limits::SLOTS_MAX);
        match u32::try_from(slots) {
            Ok(slots) if (1..=max).contains(&slots) => Ok(slots),
            _ => Err(Invalid(format!("slots is {slots}: give a number from 1 to {max}"))),
        }
    }

    /// Its queues.
    pub fn queues(&self) -> Result<Vec<QueueName>, Invalid> {
        if self.queues.len() > limits::CLAIM_QUEUES_MAX {
            let (count, max) = (self.queues.len(), limits::CLAIM_QUEUES_MAX);
            return Err(Invalid(format!("{count} queues, at most {max} are allowed for one worker")));
        }
        self.queues.iter().map(|queue| QueueName::new(queue).map_err(Invalid::from)).collect()
    }

    /// How often it beats.
    pub fn beat(&self) -> Result<Millis, Invalid> {
        let max = limits::BEAT_MAX;
        let beat = self.beat_ms.map_or(max, Millis::from);
        if !(Millis(10)..=max).contains(&beat) {
            return Err(Invalid(format!("beat_ms is {}: give a number from 10 to {}", beat.0, max.0)));
        }
        Ok(beat)
    }

    /// Its labels.
    pub fn labels(&self) -> Result<Vec<(String, String)>, Invalid> {
        let Pairs(labels) = &self.labels;
        if labels.len() > limits::LABELS_MAX {
            let (count, max) = (labels.len(), limits::LABELS_MAX);
            return Err(Invalid(format!("{count} labels, at most {max} are allowed")));
        }
        let bytes: usize = labels.iter().map(|(name, value)| name.len() + value.len()).sum();
        if bytes > LABELS_BYTES_MAX {
            let max = LABELS_BYTES_MAX;
            return Err(Invalid(format!(
                "the labels have {bytes} bytes, at most {max} are allowed: shorten them"
            )));
        }
        let checked = labels.iter().map(|(name, value)| {
            check_fact("a label's name", name)?;
            check_fact("a label", value)?;
            Ok((name.to_string(), value.to_string()))
        });
        checked.collect()
    }

    /// Its host.
    pub fn host(&self) -> Result<Option<String>, Invalid> {
        optional_fact("host", self.host.as_deref())
    }

    /// Its version.
    pub fn version(&self) -> Result<Option<String>, Invalid> {
        optional_fact("version", self.version.as_deref())
    }
}

fn optional_fact(what: &str, text: Option<&str>) -> Result<Option<String>, Invalid> {
    let Some(text) = text else { return Ok(None) };
    check_fact(what, text)?;
    Ok(Some(text.to_owned()))
}

fn check_fact(what: &str, text: &str) -> Result<(), Invalid> {
    let max = limits::WORKER_NAME_BYTES_MAX;
    if text.len() > max || text.chars().any(char::is_control) {
        return Err(Invalid(format!(
            "{what} is longer than {max} bytes or holds a control character: shorten it"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::parse;

    #[test]
    fn one_fault_per_row_is_refused() {
        let labels: Vec<String> = (0..20).map(|n| format!(r#""{n}":"{}""#, "x".repeat(250))).collect();
        let many_labels = format!(r#"{{"id":"w","labels":{{{}}}}}"#, labels.join(","));
        for (what, text) in [
            ("no id", r#"{}"#),
            ("an empty id", r#"{"id":""}"#),
            ("slots 0", r#"{"id":"w","slots":0}"#),
            ("slots over the limit", r#"{"id":"w","slots":10001}"#),
            ("a slow beat", r#"{"id":"w","beat_ms":1001}"#),
            ("no beat", r#"{"id":"w","beat_ms":0}"#),
            ("a bad queue", r#"{"id":"w","queues":["a b"]}"#),
            ("a label of the wrong type", r#"{"id":"w","labels":{"a":1}}"#),
            ("a control character in a label", r#"{"id":"w","labels":{"a":"\u0000"}}"#),
            ("labels over the limit of bytes", &many_labels),
            ("an unknown field", r#"{"id":"w","name":"x"}"#),
        ] {
            let refused = parse::one::<RegisterRequest<'_>>(text).and_then(|request| {
                request.name()?;
                request.slots()?;
                request.queues()?;
                request.beat()?;
                request.host()?;
                request.version()?;
                request.labels()
            });
            assert!(refused.is_err(), "{what} was taken");
        }
    }
}
