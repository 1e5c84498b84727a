//! What went wrong, as `application/problem+json` (RFC 9457), with a stable code for programs.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::parse::Invalid;
use super::value::{Id, Ms, State};

/// The content type of a [`Problem`].
pub const CONTENT_TYPE: &str = "application/problem+json";

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident $code:literal $status:literal $title:literal,)*) => {
        /// Every code that an error can have.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Code {
            $($(#[$doc])* $name,)*
        }

        impl Code {
            /// All of them.
            pub const ALL: &[Code] = &[$(Code::$name,)*];

            /// The word that programs read.
            pub fn as_str(self) -> &'static str {
                match self { $(Code::$name => $code,)* }
            }

            /// The HTTP status that goes with it.
            pub fn status(self) -> u16 {
                match self { $(Code::$name => $status,)* }
            }

            /// The same for people.
            pub fn title(self) -> &'static str {
                match self { $(Code::$name => $title,)* }
            }

            fn urn(self) -> &'static str {
                match self { $(Code::$name => concat!("urn:windlass:error:", $code),)* }
            }
        }
    };
}

codes! {
    /// The request cannot be read, or a value is out of its range.
    InvalidRequest "invalid_request" 400 "the request is not valid",
    /// A token that was never given out.
    InvalidToken "invalid_token" 400 "the token is not one of ours",
    /// No access token.
    Unauthenticated "unauthenticated" 401 "an access token is needed",
    /// The access token does not allow this.
    Denied "denied" 403 "the access token does not allow this",
    /// No such task, or no such path.
    NotFound "not_found" 404 "not found",
    /// No such queue.
    UnknownQueue "unknown_queue" 404 "there is no such queue",
    /// No such worker, or not this session.
    UnknownWorker "unknown_worker" 404 "there is no such worker",
    /// The path is there, the method is not.
    MethodNotAllowed "method_not_allowed" 405 "this path does not take this method",
    /// The body came too slowly; nothing was done.
    RequestTimeout "request_timeout" 408 "the request came too slowly",
    /// The task was freed and nobody claimed it since.
    NotClaimed "not_claimed" 409 "the task is not claimed",
    /// Another claim came after this one.
    StaleToken "stale_token" 409 "the token no longer holds",
    /// The task or queue is in a state that does not allow this.
    NotReady "not_ready" 409 "the state does not allow this now",
    /// The task is over.
    AlreadyEnded "already_ended" 409 "the task has ended",
    /// Another task has the unique key.
    NotUnique "not_unique" 409 "another task has this unique key",
    /// Somebody changed it in between.
    StaleVersion "stale_version" 409 "somebody else changed it in between",
    /// The payload or the whole request is too large.
    PayloadTooLarge "payload_too_large" 413 "too large",
    /// The dedup key's task has another kind or payload.
    DedupMismatch "dedup_mismatch" 422 "the dedup key belongs to another kind or payload",
    /// This needs a queue that lives in one shard.
    NotOneShard "not_one_shard" 422 "this would need more than one shard",
    /// The queue has all that it takes.
    QueueFull "queue_full" 429 "the queue is full",
    /// Too much at once.
    TooManyRequests "too_many_requests" 429 "too much at once",
    /// Our own fault.
    Internal "internal" 500 "an error of the server itself",
    /// Another node leads.
    NotLeader "not_leader" 503 "another node leads",
    /// No quorum, or shutting down.
    Unavailable "unavailable" 503 "not available now",
    /// Memory is full: no new tasks.
    MemoryFull "memory_full" 503 "memory is full: no new tasks for now",
    /// It is not known whether it was done.
    Timeout "timeout" 504 "it is not known whether this was done",
    /// The disk is full: no new tasks.
    DiskFull "disk_full" 507 "the disk is full: no new tasks for now",
}

impl Code {
    /// The code of a word; one that is not known is an error of our own.
    pub fn from_word(word: &str) -> Code {
        Code::ALL.iter().copied().find(|code| code.as_str() == word).unwrap_or(Code::Internal)
    }
}

/// What went wrong. Nothing was changed, unless the code is `timeout`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({"type": "urn:windlass:error:stale_token", "code": "stale_token",
    "title": "the token no longer holds", "status": 409, "detail": "this token has fence 3, …"}))]
pub struct Problem {
    /// `urn:windlass:error:` and the code.
    #[serde(rename = "type")]
    #[schema(value_type = String)]
    pub kind: Cow<'static, str>,
    /// The stable word for programs.
    #[schema(value_type = String)]
    pub code: Cow<'static, str>,
    /// What the code means.
    #[schema(value_type = String)]
    pub title: Cow<'static, str>,
    /// The HTTP status.
    pub status: u16,
    /// What happened here, and what to do.
    pub detail: String,
    /// The task that is in the way: the holder of a unique or dedup key, or the one that was asked for.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub id: Option<Id>,
    /// The state of that task.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub state: Option<State>,
    /// When to try again, as in the header `Retry-After`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub retry_after_ms: Option<Ms>,
}

impl Problem {
    /// A problem of this code.
    pub fn new(code: Code, detail: impl Into<String>) -> Problem {
        Problem {
            kind: code.urn().into(),
            code: code.as_str().into(),
            title: code.title().into(),
            status: code.status(),
            detail: detail.into(),
            id: None,
            state: None,
            retry_after_ms: None,
        }
    }

    /// A request that cannot be taken as it is.
    pub fn invalid(detail: impl Into<String>) -> Problem {
        Problem::new(Code::InvalidRequest, detail)
    }
}

impl From<Invalid> for Problem {
    fn from(invalid: Invalid) -> Problem {
        Problem::invalid(invalid.0)
    }
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.detail, self.code)
    }
}

impl std::error::Error for Problem {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_found_by_its_word_and_has_an_error_status() {
        for &code in Code::ALL {
            assert_eq!(Code::from_word(code.as_str()), code);
            assert!((400..600).contains(&code.status()), "{code:?}");
            assert!(code.urn().ends_with(code.as_str()));
        }
        assert_eq!(Code::from_word("no such word"), Code::Internal);
    }

    #[test]
    fn a_problem_reads_as_the_contract_says() {
        let json = serde_json::to_string(&Problem::new(Code::StaleToken, "gone")).unwrap();
        let expected = concat!(
            r#"{"type":"urn:windlass:error:stale_token","code":"stale_token","#,
            r#""title":"the token no longer holds","status":409,"detail":"gone"}"#
        );
        assert_eq!(json, expected);
        assert_eq!(serde_json::from_str::<Problem>(&json).unwrap(), Problem::new(Code::StaleToken, "gone"));
    }
}
