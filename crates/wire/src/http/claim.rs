//! `POST /v1/claims`: asking for ready tasks, and what a worker gets. Next: `settle`.

use std::fmt;

use model::command::ClaimQueue;
use model::{Millis, QueueName, WorkerName, limits};
use serde::de::{self, MapAccess, Visitor};
use serde::ser::SerializeStruct;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::parse::Invalid;
use super::task::ProgressReply;
use super::text::{Pairs, Text};
use super::time::Time;
use super::value::{Id, Ms, Session};

/// Asks for ready tasks of some queues, or for one task by its id.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"queues": ["mail", "reports"], "worker": "host-1:4711", "max": 10, "wait_ms": 20000}))]
pub struct ClaimRequest<'a> {
    /// 1 to 64 queues, tried in this order, or by weight when they carry weights.
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<QueueChoice>>)]
    pub queues: Option<Vec<QueueChoice<'a>>>,
    /// Claims this one task, in place of `queues`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<Id>,
    /// Who asks.
    #[serde(borrow)]
    #[schema(value_type = String)]
    pub worker: Text<'a>,
    /// In which session; its end frees the claims.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<Session>,
    /// At most so many: 1 to 1000, 1 unless said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<u64>,
    /// How long the claims hold: 100 to 86400000; else the task's, else the queue's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hold_ms: Option<Ms>,
    /// How long to wait for the first one: 0 to 60000, 0 unless said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait_ms: Option<Ms>,
    /// The same again within 60 s gets the same claims.
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub request_id: Option<Text<'a>>,
}

/// A queue to claim from: its name, or `{"name", "weight"}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueChoice<'a> {
    /// Which.
    pub name: Text<'a>,
    /// How often, compared with the others.
    pub weight: Option<u64>,
}

/// A task in a worker's hands.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Claim<'a> {
    /// Which.
    pub id: Id,
    /// Its queue.
    #[serde(borrow)]
    #[schema(value_type = String)]
    pub queue: Text<'a>,
    /// Which handler it is for.
    #[serde(borrow)]
    #[schema(value_type = String)]
    pub kind: Text<'a>,
    /// Its payload, byte for byte.
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub payload: Option<&'a RawValue>,
    /// Its payload, when it was enqueued as bytes.
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub payload_base64: Option<Text<'a>>,
    /// What those bytes are.
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub content_type: Option<Text<'a>>,
    /// What travels beside the payload.
    #[serde(borrow, default)]
    #[schema(value_type = std::collections::BTreeMap<String, String>)]
    pub headers: Pairs<'a>,
    /// Its priority.
    pub priority: u8,
    /// Which attempt this is, from 1.
    pub attempt: u32,
    /// What the worker acks with; opaque.
    #[serde(borrow)]
    #[schema(value_type = String)]
    pub token: Text<'a>,
    /// Grows with each claim of this task, for handing to other systems.
    pub fence: u64,
    /// When the claim ends.
    pub deadline: Time,
    /// When it was enqueued.
    pub enqueued_at: Time,
    /// Its order key.
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub order_key: Option<Text<'a>>,
    /// Its dedup key.
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub dedup_key: Option<Text<'a>>,
}

/// The tasks that a claim got; none when there was none to give.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct ClaimReply<'a> {
    /// By the order of the queues, then priority, then age.
    #[serde(borrow)]
    #[schema(value_type = Vec<Claim>)]
    pub claims: Vec<Claim<'a>>,
}

/// A claim in progress, as `GET /v1/claims` shows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct HeldClaim {
    /// Which task.
    pub id: Id,
    /// Its queue.
    pub queue: String,
    /// Its kind.
    pub kind: String,
    /// Who holds it.
    pub worker: String,
    /// In which session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<Session>,
    /// Which attempt this is.
    pub attempt: u32,
    /// The claim's fence.
    pub fence: u64,
    /// Since when.
    pub since: Time,
    /// Until when.
    pub deadline: Time,
    /// Whether the holder was asked to stop.
    pub cancel_requested: bool,
    /// How far it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<ProgressReply>,
}

/// Claims in progress, one step of a list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct HeldClaims {
    /// What was found.
    pub claims: Vec<HeldClaim>,
    /// How many tasks were looked at.
    pub looked_at: u64,
    /// Where to go on; nothing when this was the last step.
    pub cursor: Option<String>,
}

impl ClaimRequest<'_> {
    /// Its worker.
    pub fn worker(&self) -> Result<WorkerName, Invalid> {
        Ok(WorkerName::new(&self.worker)?)
    }

    /// Its queues, with weight 0 for all when none is given.
    pub fn queues(&self) -> Result<Vec<ClaimQueue>, Invalid> {
        let queues = self.queues.as_deref().unwrap_or_default();
        if queues.is_empty() {
            return Err(Invalid::new(
                "no queue is named: give 1 to 64 names in queues, or the id of one task",
            ));
        }
        if queues.len() > limits::CLAIM_QUEUES_MAX {
            let (count, max) = (queues.len(), limits::CLAIM_QUEUES_MAX);
            return Err(Invalid(format!("{count} queues, at most {max} are allowed in one claim")));
        }
        let weighted = queues.iter().any(|queue| queue.weight.is_some());
        let checked: Result<Vec<ClaimQueue>, Invalid> =
            queues.iter().map(|queue| queue.check(weighted)).collect();
        let checked = checked?;
        for (n, queue) in checked.iter().enumerate() {
            if checked[..n].iter().any(|other| other.name == queue.name) {
                return Err(Invalid(format!("queue {:?} is named twice: name it once", queue.name.as_str())));
            }
        }
        Ok(checked)
    }

    /// How many.
    pub fn max(&self) -> Result<u32, Invalid> {
        let max = self.max.unwrap_or(1);
        if !(1..=u64::from(limits::CLAIM_MAX)).contains(&max) {
            return Err(Invalid(format!("max is {max}: give a number from 1 to {}", limits::CLAIM_MAX)));
        }
        Ok(max as u32)
    }

    /// How long to wait.
    pub fn wait(&self) -> Result<Millis, Invalid> {
        let wait = Millis::from(self.wait_ms.unwrap_or_default());
        if wait > limits::CLAIM_WAIT_MAX {
            let max = limits::CLAIM_WAIT_MAX.0;
            return Err(Invalid(format!("wait_ms is {}: give at most {max} and ask again", wait.0)));
        }
        Ok(wait)
    }

    /// The request id.
    pub fn request_id(&self) -> Result<Option<String>, Invalid> {
        let Some(id) = &self.request_id else { return Ok(None) };
        let max = limits::REQUEST_ID_BYTES_MAX;
        if id.is_empty() || id.len() > max || id.chars().any(char::is_control) {
            return Err(Invalid(format!(
                "request_id is empty, longer than {max} bytes or holds a control character: use a UUID"
            )));
        }
        Ok(Some(id.to_string()))
    }
}

impl QueueChoice<'_> {
    fn check(&self, weighted: bool) -> Result<ClaimQueue, Invalid> {
        let name = QueueName::new(&self.name)?;
        let weight = match (weighted, self.weight) {
            (false, _) => 0,
            // A name without a weight beside others with one counts as 1.
            (true, None) => 1,
            (true, Some(weight)) => u32::try_from(weight)
                .ok()
                .filter(|weight| (1..=limits::WEIGHT_MAX).contains(weight))
                .ok_or_else(|| {
                    let max = limits::WEIGHT_MAX;
                    Invalid(format!(
                        "the weight of queue {name:?} is {weight}: give a number from 1 to {max}"
                    ))
                })?,
        };
        Ok(ClaimQueue { name, weight })
    }
}

impl<'a> From<&'a str> for QueueChoice<'a> {
    fn from(name: &'a str) -> QueueChoice<'a> {
        QueueChoice { name: name.into(), weight: None }
    }
}

impl Serialize for QueueChoice<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Some(weight) = self.weight else { return self.name.serialize(serializer) };
        let mut object = serializer.serialize_struct("QueueChoice", 2)?;
        object.serialize_field("name", &self.name)?;
        object.serialize_field("weight", &weight)?;
        object.end()
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for QueueChoice<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(QueueChoiceVisitor)
    }
}

struct QueueChoiceVisitor;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Weighted<'a> {
    #[serde(borrow)]
    name: Text<'a>,
    weight: Option<u64>,
}

impl<'de> Visitor<'de> for QueueChoiceVisitor {
    type Value = QueueChoice<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a queue's name, or {\"name\", \"weight\"}")
    }

    fn visit_borrowed_str<E: de::Error>(self, name: &'de str) -> Result<Self::Value, E> {
        Ok(name.into())
    }

    fn visit_str<E: de::Error>(self, name: &str) -> Result<Self::Value, E> {
        Ok(QueueChoice { name: name.to_owned().into(), weight: None })
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        let Weighted { name, weight } = Weighted::deserialize(de::value::MapAccessDeserializer::new(map))?;
        Ok(QueueChoice { name, weight })
    }
}

impl utoipa::PartialSchema for QueueChoice<'_> {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
        use utoipa::openapi::schema::{ObjectBuilder, OneOfBuilder, Type};
        let name = || ObjectBuilder::new().schema_type(Type::String);
        let weighted = ObjectBuilder::new()
            .property("name", name())
            .required("name")
            .property("weight", ObjectBuilder::new().schema_type(Type::Integer));
        OneOfBuilder::new().item(name()).item(weighted).into()
    }
}

impl ToSchema for QueueChoice<'_> {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::parse;

    #[test]
    fn queues_come_as_names_or_with_weights() {
        let text = r#"{"queues":["a",{"name":"b","weight":3}],"worker":"w"}"#;
        let request: ClaimRequest<'_> = parse::one(text).unwrap();
        let weights: Vec<u32> = request.queues().unwrap().iter().map(|queue| queue.weight).collect();
        assert_eq!(weights, [1, 3]);
        assert_eq!(serde_json::to_string(&request).unwrap(), text);
        let plain: ClaimRequest<'_> = parse::one(r#"{"queues":["a","b"],"worker":"w"}"#).unwrap();
        assert!(plain.queues().unwrap().iter().all(|queue| queue.weight == 0));
    }

    #[test]
    fn one_fault_per_row_is_refused() {
        let many: Vec<String> = (0..65).map(|n| format!("\"q{n}\"")).collect();
        let many = format!(r#"{{"queues":[{}],"worker":"w"}}"#, many.join(","));
        for (what, text) in [
            ("no queues", r#"{"worker":"w"}"#),
            ("an empty list", r#"{"queues":[],"worker":"w"}"#),
            ("65 queues", &many),
            ("a queue twice", r#"{"queues":["a","a"],"worker":"w"}"#),
            ("weight 0", r#"{"queues":[{"name":"a","weight":0}],"worker":"w"}"#),
            ("weight 1001", r#"{"queues":[{"name":"a","weight":1001}],"worker":"w"}"#),
            ("an unknown field of a queue", r#"{"queues":[{"name":"a","wait":1}],"worker":"w"}"#),
            ("a number for a queue", r#"{"queues":[7],"worker":"w"}"#),
            ("no worker", r#"{"queues":["a"]}"#),
            ("max 0", r#"{"queues":["a"],"worker":"w","max":0}"#),
            ("max 1001", r#"{"queues":["a"],"worker":"w","max":1001}"#),
            ("wait 60001", r#"{"queues":["a"],"worker":"w","wait_ms":60001}"#),
            ("a negative wait", r#"{"queues":["a"],"worker":"w","wait_ms":-1}"#),
            ("an empty request id", r#"{"queues":["a"],"worker":"w","request_id":""}"#),
            ("a session that is none", r#"{"queues":["a"],"worker":"w","session":"x"}"#),
        ] {
            let refused = parse::one::<ClaimRequest<'_>>(text).and_then(|request| {
                request.queues()?;
                request.worker()?;
                request.max()?;
                request.wait()?;
                request.request_id()
            });
            assert!(refused.is_err(), "{what} was taken");
        }
    }
}
