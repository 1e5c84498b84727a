//! What goes wrong: [`Error`] for whoever calls a server, [`TaskError`] for a handler whose task is not done.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use prost::Message as _;
use tonic::{Code, ConnectError, Status};
use wire::grpc;

use crate::task::{TaskId, TaskState};

/// Carries the whole refusal.
const REFUSAL: &str = "windlass-error-bin";

/// The word for what has more bytes than a server takes.
pub(crate) const TOO_LARGE: &str = "payload_too_large";

/// Why a call did not do what was asked.
///
/// `{:?}` reads like `{}`: a `main` that returns one, and `unwrap`, print a sentence.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The server said no. Nothing was changed, unless the code is `timeout`.
    #[error("{0}")]
    Refused(Box<Refusal>),
    /// No address answers. Nothing was changed.
    #[error("no server answers at {addresses}: {reason}")]
    Unreachable {
        /// Where it was tried.
        addresses: String,
        /// What the last one had to say.
        reason: String,
    },
    /// The connection broke before the answer came: nobody knows whether it was done. A repeat with the same
    /// dedup key is safe.
    #[error("the connection broke before the answer, so the outcome is unknown: {reason}")]
    Unknown {
        /// How it broke.
        reason: String,
    },
    /// The awaited task ended, but it is not done.
    #[error("task {id} is {state}: {error}")]
    NotDone {
        /// Which.
        id: TaskId,
        /// How it ended.
        state: TaskState,
        /// Its last error.
        error: String,
    },
    /// A value does not fit its type.
    #[error("{what} does not fit its type: {reason}")]
    Json {
        /// Which value.
        what: String,
        /// Why not.
        reason: String,
    },
    /// A worker or a client is set up in a way that cannot work.
    #[error("{0}")]
    Setup(String),
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A server's no.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refusal {
    /// The stable word for programs, such as `stale_token`.
    pub code: String,
    /// What happened, and what to do.
    pub message: String,
    /// The task that is in the way, such as the holder of a unique key.
    pub id: Option<TaskId>,
    /// What that task is.
    pub state: Option<TaskState>,
    /// When to try again.
    pub retry_after: Option<Duration>,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.message, self.code)
    }
}

impl Error {
    /// The server's word for it, if it was the server who refused.
    pub fn code(&self) -> Option<&str> {
        match self {
            Error::Refused(refusal) => Some(&refusal.code),
            _ => None,
        }
    }

    /// Whether it may have been done all the same.
    pub fn is_unknown(&self) -> bool {
        matches!(self, Error::Unknown { .. }) || self.code() == Some("timeout")
    }

    /// Whether nothing was done and another node, or a later time, may answer better.
    pub(crate) fn is_elsewhere(&self) -> bool {
        matches!(self, Error::Unreachable { .. }) || self.code().is_some_and(is_elsewhere)
    }

    /// What to say of this last try, when one before it may have been done: a server that was not reached, or could
    /// not take it, says nothing of that one.
    pub(crate) fn after_a_try(self, may_be_done: bool) -> Error {
        match may_be_done && self.is_elsewhere() {
            true => Error::Unknown { reason: self.to_string() },
            false => self,
        }
    }

    /// From an answer that holds a refusal.
    pub(crate) fn refused(error: grpc::Error) -> Error {
        Error::Refused(Box::new(Refusal {
            id: (!error.id.is_empty()).then(|| TaskId::from(error.id)),
            state: error.state.parse().ok(),
            retry_after: error.retry_after_ms.map(Duration::from_millis),
            code: error.code,
            message: error.message,
        }))
    }

    /// What a server would say to so many bytes, of which it takes `bytes_max`.
    pub(crate) fn too_large(what: &str, bytes: usize, bytes_max: usize) -> Error {
        let message = format!("{what} has {bytes} bytes: send at most {bytes_max}");
        Error::refused(grpc::Error { code: TOO_LARGE.to_owned(), message, ..Default::default() })
    }

    /// From the status of a call to `address`.
    pub(crate) fn of_status(status: &Status, address: &str) -> Error {
        if let Some(refusal) = refusal(status) {
            return Error::refused(refusal);
        }
        let reason = told(status);
        if never_sent(status) {
            return Error::Unreachable { addresses: address.to_owned(), reason };
        }
        match status.code() {
            // The words of our servers come with a refusal: these are a connection's, or somebody's between.
            Code::Unavailable | Code::Unknown | Code::Cancelled | Code::DeadlineExceeded | Code::Internal => {
                Error::Unknown { reason }
            }
            code => Error::refused(grpc::Error {
                code: format!("{code:?}").to_lowercase(),
                message: reason,
                ..Default::default()
            }),
        }
    }
}

/// Whether this word says that nothing was done and that somebody else may do it.
pub(crate) fn is_elsewhere(code: &str) -> bool {
    matches!(code, "unavailable" | "not_leader" | "request_timeout")
}

/// Whether one of our servers said this, not a connection or somebody between.
pub(crate) fn is_servers_word(status: &Status) -> bool {
    refusal(status).is_some()
}

/// The refusal that a status carries.
fn refusal(status: &Status) -> Option<grpc::Error> {
    let bytes = status.metadata().get_bin(REFUSAL)?.to_bytes().ok()?;
    grpc::Error::decode(bytes).ok()
}

/// Whether the call never reached a server.
fn never_sent(status: &Status) -> bool {
    let mut source: Option<&(dyn StdError + 'static)> = status.source();
    while let Some(error) = source {
        if error.is::<ConnectError>() {
            return true;
        }
        source = error.source();
    }
    false
}

/// A status with what lies beneath it, in one line.
fn told(status: &Status) -> String {
    match chain(status.source()) {
        below if below.is_empty() => status.message().to_owned(),
        below => format!("{}: {below}", status.message()),
    }
}

/// An error's causes, in one line.
pub(crate) fn chain(mut source: Option<&(dyn StdError + 'static)>) -> String {
    let mut text = String::new();
    while let Some(error) = source {
        if !text.is_empty() {
            text.push_str(": ");
        }
        text.push_str(&error.to_string());
        source = error.source();
    }
    text
}

/// Why a handler's task is not done, and what shall become of it.
///
/// Any error is one by `?` or `into()`, and means: try again, as the retry policy says. The others are said by
/// name:
///
/// ```
/// use windlass::{secs, TaskError};
///
/// fn charge(card: &str) -> Result<(), TaskError> {
///     let number: u64 = card.parse()?; // retried
///     match number {
///         0 => Err(TaskError::fatal("no such card")),
///         1 => Err(TaskError::retry_after(secs(30), "the bank asks for a pause")),
///         2 => Err(TaskError::release("not while the bank is closed")),
///         _ => Ok(()),
///     }
/// }
/// assert!(charge("0").unwrap_err().is_fatal());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskError {
    verdict: Verdict,
    error: String,
    detail: String,
}

/// What shall become of a task that is not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// Another attempt, after the backoff of its retry policy.
    Retry,
    /// Another attempt, after so long.
    RetryAfter(Duration),
    /// No other attempt.
    Fatal,
    /// It waits again for so long, and no attempt is used up.
    Release(Duration),
}

impl TaskError {
    fn new(verdict: Verdict, error: impl Into<Box<dyn StdError + Send + Sync>>) -> TaskError {
        let error = error.into();
        TaskError { verdict, error: error.to_string(), detail: chain(error.source()) }
    }

    /// Another attempt, after the backoff of the task's retry policy: the same as any other error.
    pub fn retry(error: impl Into<Box<dyn StdError + Send + Sync>>) -> TaskError {
        TaskError::new(Verdict::Retry, error)
    }

    /// Another attempt, after a backoff of the handler's choice.
    pub fn retry_after(after: Duration, error: impl Into<Box<dyn StdError + Send + Sync>>) -> TaskError {
        TaskError::new(Verdict::RetryAfter(after), error)
    }

    /// No other attempt: the task is dead.
    pub fn fatal(error: impl Into<Box<dyn StdError + Send + Sync>>) -> TaskError {
        TaskError::new(Verdict::Fatal, error)
    }

    /// Gives the task back: it waits again at once, and no attempt is used up.
    pub fn release(reason: impl Into<Box<dyn StdError + Send + Sync>>) -> TaskError {
        TaskError::release_after(Duration::ZERO, reason)
    }

    /// Gives the task back: it waits again after a while, and no attempt is used up.
    pub fn release_after(after: Duration, reason: impl Into<Box<dyn StdError + Send + Sync>>) -> TaskError {
        TaskError::new(Verdict::Release(after), reason)
    }

    /// With more than one line for whoever looks into it, such as a backtrace.
    pub fn with_detail(mut self, detail: impl Into<String>) -> TaskError {
        self.detail = detail.into();
        self
    }

    /// What shall become of the task.
    pub fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// Whether there shall be no other attempt.
    pub fn is_fatal(&self) -> bool {
        self.verdict == Verdict::Fatal
    }

    /// What went wrong, in one line.
    pub fn error(&self) -> &str {
        &self.error
    }

    /// The rest of it: causes, a backtrace.
    pub fn detail(&self) -> &str {
        &self.detail
    }
}

impl fmt::Display for TaskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.error)
    }
}

// For this to stand, `TaskError` itself is no `std::error::Error`.
impl<E: Into<Box<dyn StdError + Send + Sync>>> From<E> for TaskError {
    fn from(error: E) -> TaskError {
        TaskError::retry(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_keeps_its_causes_and_asks_for_another_attempt() {
        let inner = std::io::Error::other("disk on fire");
        let outer = Error::Json { what: "payload".into(), reason: inner.to_string() };
        let error = TaskError::from(outer);
        assert_eq!(error.verdict(), Verdict::Retry);
        assert_eq!(error.error(), "payload does not fit its type: disk on fire");
        assert_eq!(TaskError::from("plain words").error(), "plain words");
    }

    #[test]
    fn a_main_that_returns_an_error_prints_a_sentence() {
        let error = Error::Unreachable { addresses: "http://a:1".into(), reason: "refused".into() };
        assert_eq!(format!("{error:?}"), "no server answers at http://a:1: refused");
    }

    #[test]
    fn what_never_left_is_told_apart_from_what_may_have_arrived() {
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        let unsent = Status::from_error(Box::new(ConnectError(Box::new(refused))));
        assert!(matches!(Error::of_status(&unsent, "a"), Error::Unreachable { .. }));
        let broken = Status::unavailable("connection reset");
        assert!(Error::of_status(&broken, "a").is_unknown());
        let bytes = grpc::Error { code: "unavailable".into(), ..Default::default() }.encode_to_vec();
        let mut said = Status::unavailable("no leader");
        said.metadata_mut().insert_bin(REFUSAL, tonic::metadata::MetadataValue::from_bytes(&bytes));
        assert!(Error::of_status(&said, "a").is_elsewhere());
    }
}
