//! `POST /v1/claims/ack · fail · extend · release · progress`: what a worker says of a claim that it holds.
//!
//! Each takes one, or many under its plural. An ack may claim the next in the same call.

use model::limits;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::claim::{Claim, ClaimRequest};
use super::enqueue::TaskRequest;
use super::parse::{Invalid, at_most, at_most_in_all, object_or_null};
use super::problem::Problem;
use super::text::Text;
use super::time::Time;
use super::value::{Id, Ms, Outcome, Results, State};

/// Says that a task is done.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"token": "…", "output": {"sent": true}, "then": [{"queue": "audit", "kind": "log", "payload": {}}]}))]
pub struct AckRequest<'a> {
    /// By which claim.
    #[serde(borrow)]
    #[schema(value_type = String)]
    pub token: Text<'a>,
    /// What came out: any JSON, kept byte for byte.
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub output: Option<&'a RawValue>,
    /// What is enqueued with it, in the same step.
    #[serde(
        borrow,
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "at_most::<{ limits::FOLLOW_UPS_MAX }, _, _>"
    )]
    #[schema(value_type = Vec<TaskRequest>)]
    pub then: Vec<TaskRequest<'a>>,
    /// Claims the next in the same call. Not inside `acks`: there it stands beside the list.
    #[serde(borrow, default, deserialize_with = "object_or_null", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<ClaimRequest>)]
    pub claim: Option<ClaimRequest<'a>>,
}

/// Many acks at once.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AckManyRequest<'a> {
    /// At most 10,000, with at most 100,000 follow-ups together.
    #[serde(borrow, deserialize_with = "acks")]
    #[schema(value_type = Vec<AckRequest>)]
    pub acks: Vec<AckRequest<'a>>,
    /// Claims the next in the same call.
    #[serde(borrow, default, deserialize_with = "object_or_null", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<ClaimRequest>)]
    pub claim: Option<ClaimRequest<'a>>,
}

fn acks<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<AckRequest<'de>>, D::Error> {
    at_most_in_all::<{ limits::SETTLE_MAX }, AckRequest<'de>, D>(deserializer, |ack| ack.then.len())
}

/// Says that an attempt failed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"token": "…", "error": "SMTP 451", "retry_in_ms": 5000}))]
pub struct FailRequest<'a> {
    /// By which claim.
    #[serde(borrow)]
    #[schema(value_type = String)]
    pub token: Text<'a>,
    /// One line.
    #[serde(borrow)]
    #[schema(value_type = String)]
    pub error: Text<'a>,
    /// The rest, such as a backtrace.
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub detail: Option<Text<'a>>,
    /// A backoff of the worker's choice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_in_ms: Option<Ms>,
    /// No retry.
    #[serde(default)]
    pub fatal: bool,
}

/// Many fails at once.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FailManyRequest<'a> {
    /// At most 10,000.
    #[serde(borrow, deserialize_with = "at_most::<{ limits::SETTLE_MAX }, _, _>")]
    #[schema(value_type = Vec<FailRequest>)]
    pub fails: Vec<FailRequest<'a>>,
}

/// Moves a claim's deadline.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExtendRequest<'a> {
    /// By which claim.
    #[serde(borrow)]
    #[schema(value_type = String)]
    pub token: Text<'a>,
    /// From now; else as at the claim.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hold_ms: Option<Ms>,
}

/// Many extends at once.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExtendManyRequest<'a> {
    /// At most 10,000.
    #[serde(borrow, deserialize_with = "at_most::<{ limits::SETTLE_MAX }, _, _>")]
    #[schema(value_type = Vec<ExtendRequest>)]
    pub extends: Vec<ExtendRequest<'a>>,
}

/// Gives a task back without using up an attempt.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReleaseRequest<'a> {
    /// By which claim.
    #[serde(borrow)]
    #[schema(value_type = String)]
    pub token: Text<'a>,
    /// Not claimed again before; 0 unless said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<Ms>,
}

/// Many releases at once.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReleaseManyRequest<'a> {
    /// At most 10,000.
    #[serde(borrow, deserialize_with = "at_most::<{ limits::SETTLE_MAX }, _, _>")]
    #[schema(value_type = Vec<ReleaseRequest>)]
    pub releases: Vec<ReleaseRequest<'a>>,
}

/// Says how far a task is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ProgressRequest<'a> {
    /// By which claim.
    #[serde(borrow)]
    #[schema(value_type = String)]
    pub token: Text<'a>,
    /// 0 to 100.
    pub percent: u64,
    /// For people who watch.
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub note: Option<Text<'a>>,
}

/// Many progress notes at once.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ProgressManyRequest<'a> {
    /// At most 10,000.
    #[serde(borrow, deserialize_with = "at_most::<{ limits::SETTLE_MAX }, _, _>")]
    #[schema(value_type = Vec<ProgressRequest>)]
    pub progress: Vec<ProgressRequest<'a>>,
}

/// What became of a task. `attempt` and `due` come with a fail, `due` also with a delayed release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SettleReply {
    /// Which.
    pub id: Id,
    /// What it is now.
    pub state: State,
    /// Attempts used up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// When it can be claimed again, if it waits for a time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub due: Option<Time>,
}

/// What an extend or a progress note answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HeldReply {
    /// Which task.
    pub id: Id,
    /// When the claim ends.
    pub deadline: Time,
    /// Whether the worker should stop.
    pub cancel_requested: bool,
}

/// What an ack with a `claim` answers: an ack, then a claim, each with its own outcome.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct AckAndClaimReply<'a> {
    /// The acked task, unless the ack was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<Id>,
    /// What it is now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<State>,
    /// Why the ack was refused, if it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<Problem>,
    /// What the claim got.
    #[serde(borrow)]
    #[schema(value_type = Vec<Claim>)]
    pub claims: Vec<Claim<'a>>,
    /// Why the claim was refused, if it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claim_error: Option<Problem>,
}

/// What many acks with a `claim` answer.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct AckManyAndClaimReply<'a> {
    /// One for each ack, in order.
    pub results: Vec<Outcome<SettleReply>>,
    /// What the claim got.
    #[serde(borrow)]
    #[schema(value_type = Vec<Claim>)]
    pub claims: Vec<Claim<'a>>,
    /// Why the claim was refused, if it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claim_error: Option<Problem>,
}

/// Every form of an ack's answer.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum AckReply<'a> {
    /// To one.
    One(SettleReply),
    /// To one with `claim`.
    #[schema(value_type = AckAndClaimReply)]
    OneAndClaim(AckAndClaimReply<'a>),
    /// To many.
    Many(Results<SettleReply>),
    /// To many with `claim`.
    #[schema(value_type = AckManyAndClaimReply)]
    ManyAndClaim(AckManyAndClaimReply<'a>),
}

impl AckRequest<'_> {
    /// Its output; empty for none.
    pub fn output(&self) -> Result<&str, Invalid> {
        let output = self.output.map_or("", RawValue::get);
        check_output(output.as_bytes())?;
        Ok(output)
    }
}

impl FailRequest<'_> {
    /// The error's first line, cut to its limit: a report is never refused for being long.
    pub fn error(&self) -> &str {
        cut(&self.error, limits::ERROR_BYTES_MAX)
    }

    /// The detail, cut to its limit.
    pub fn detail(&self) -> &str {
        cut(self.detail.as_deref().unwrap_or_default(), limits::DETAIL_BYTES_MAX)
    }
}

impl ProgressRequest<'_> {
    /// 0 to 100.
    pub fn percent(&self) -> Result<u8, Invalid> {
        if self.percent > 100 {
            return Err(Invalid(format!("percent is {}: give a number from 0 to 100", self.percent)));
        }
        Ok(self.percent as u8)
    }

    /// The note, cut to its limit.
    pub fn note(&self) -> &str {
        cut(self.note.as_deref().unwrap_or_default(), limits::NOTE_BYTES_MAX)
    }
}

/// Refuses an output that is too long.
pub fn check_output(output: &[u8]) -> Result<(), Invalid> {
    if output.len() > limits::OUTPUT_BYTES_MAX {
        let (bytes, max) = (output.len(), limits::OUTPUT_BYTES_MAX);
        return Err(Invalid(format!(
            "the output has {bytes} bytes, at most {max} are allowed: store it elsewhere"
        )));
    }
    Ok(())
}

/// Refuses a list that is empty; one over its limit was refused when it was read.
pub fn check_not_empty<T>(what: &str, list: &[T]) -> Result<(), Invalid> {
    if list.is_empty() {
        return Err(Invalid(format!("{what} is empty: give at least one")));
    }
    Ok(())
}

/// As much of `text` as fits into `bytes_max`, whole characters only.
fn cut(text: &str, bytes_max: usize) -> &str {
    &text[..text.floor_char_boundary(bytes_max)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::parse::{OneOrMany, one_or_many};

    #[test]
    fn an_ack_takes_output_follow_ups_and_a_claim() {
        let text = r#"{"token":"t","output":{"a" :1},"then":[{"queue":"audit","kind":"log","payload":{}}],"claim":{"queues":["mail"],"worker":"w"}}"#;
        let read = one_or_many::<AckRequest<'_>, AckManyRequest<'_>>(text, "acks").unwrap();
        let OneOrMany::One(ack) = read else { panic!("read as many") };
        assert_eq!(ack.output(), Ok(r#"{"a" :1}"#));
        assert_eq!(ack.then[0].queue().unwrap().as_str(), "audit");
        assert!(ack.claim.is_some());
        assert_eq!(serde_json::to_string(&ack).unwrap(), text);
    }

    #[test]
    fn many_acks_may_claim_beside_the_list() {
        let text = r#"{"acks":[{"token":"t"}],"claim":{"queues":["mail"],"worker":"w"}}"#;
        let read = one_or_many::<AckRequest<'_>, AckManyRequest<'_>>(text, "acks").unwrap();
        assert!(matches!(read, OneOrMany::Many(AckManyRequest { claim: Some(_), .. })));
    }

    #[test]
    fn follow_ups_of_all_acks_together_are_bounded() {
        let then = vec![r#"{"kind":"k"}"#; limits::FOLLOW_UPS_MAX].join(",");
        let acks = |count: usize| {
            let ack = format!(r#"{{"token":"t","then":[{then}]}}"#);
            format!(r#"{{"acks":[{}]}}"#, vec![ack; count].join(","))
        };
        let most = limits::MESSAGE_ITEMS_MAX / limits::FOLLOW_UPS_MAX;
        let read = |text: &str| one_or_many::<AckRequest<'_>, AckManyRequest<'_>>(text, "acks").map(drop);
        assert_eq!(read(&acks(most)), Ok(()));
        let error = read(&acks(most + 1)).unwrap_err();
        assert!(error.0.contains("more than 100000 items together"), "{error}");
    }

    #[test]
    fn long_texts_are_cut_at_a_character() {
        assert_eq!(cut("aé", 2), "a");
        assert_eq!(cut("aé", 3), "aé");
    }

    #[test]
    fn a_percentage_over_100_is_refused() {
        let request = ProgressRequest { percent: 101, ..Default::default() };
        assert!(request.percent().is_err());
    }
}
