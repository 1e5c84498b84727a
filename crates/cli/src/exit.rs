//! How a command ends: one line for people, one number for programs.
//!
//! The numbers are part of the interface and never change their meaning. Never prints; `main` does.

use std::fmt;
use std::process::ExitCode;

/// The exit codes. 0 is for what went well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// It went wrong for a reason that has no code of its own.
    Failure = 1,
    /// The command line, a setting or the request itself is wrong.
    Usage = 2,
    /// There is no such thing, or nothing to claim.
    NotFound = 3,
    /// Not allowed.
    Denied = 4,
    /// The state of things does not allow it now.
    Conflict = 5,
    /// No leader answers.
    NoLeader = 6,
    /// It took too long; the outcome may be unknown.
    Timeout = 7,
    /// The awaited task ended, but not as `done`.
    TaskFailed = 8,
}

/// A command that did not succeed: what to say, and the exit code.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    /// The server's code, such as `stale_token`, when it was the server that said no.
    pub(crate) code: Option<String>,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Failure {
        Failure { exit, code: None, message: message.into() }
    }

    pub(crate) fn usage(message: impl Into<String>) -> Failure {
        Failure::new(Exit::Usage, message)
    }

    /// Whether the server said no with this code.
    pub(crate) fn is(&self, code: &str) -> bool {
        self.code.as_deref() == Some(code)
    }
}

impl From<windlass::Error> for Failure {
    fn from(error: windlass::Error) -> Failure {
        let exit = match &error {
            windlass::Error::Refused(refusal) => exit_of(&refusal.code),
            windlass::Error::Setup(_) => Exit::Usage,
            windlass::Error::Unknown { .. } => Exit::Timeout,
            _ => Exit::Failure,
        };
        let message = match &error {
            windlass::Error::Unreachable { addresses, reason } => {
                format!("cannot reach {addresses}: {reason}: is a server running there?")
            }
            other => other.to_string(),
        };
        Failure { exit, code: error.code().map(str::to_owned), message }
    }
}

/// The exit code of a server's word.
fn exit_of(code: &str) -> Exit {
    match code {
        "not_leader" | "unavailable" | "request_timeout" => Exit::NoLeader,
        "timeout" => Exit::Timeout,
        "invalid_request" | "invalid_token" | "unimplemented" => Exit::Usage,
        "unauthenticated" | "denied" => Exit::Denied,
        "not_found" | "unknown_queue" | "unknown_worker" => Exit::NotFound,
        "not_claimed" | "stale_token" | "not_ready" | "already_ended" | "not_unique" | "stale_version"
        | "dedup_mismatch" | "not_one_shard" => Exit::Conflict,
        _ => Exit::Failure,
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.message.fmt(f)
    }
}

impl std::error::Error for Failure {}

/// The exit code of an error, whatever it was wrapped in. A closed pipe is no failure: the reader has
/// seen enough, as in `windlass task list | head`.
pub(crate) fn code_of(error: &anyhow::Error) -> Option<ExitCode> {
    for cause in error.chain() {
        if let Some(failure) = cause.downcast_ref::<Failure>() {
            return Some(ExitCode::from(failure.exit as u8));
        }
        if let Some(io) = cause.downcast_ref::<std::io::Error>()
            && io.kind() == std::io::ErrorKind::BrokenPipe
        {
            return None;
        }
    }
    Some(ExitCode::from(Exit::Failure as u8))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_sdk_says_becomes_an_exit_code_and_a_line() {
        let unreachable =
            windlass::Error::Unreachable { addresses: "http://a:1".into(), reason: "refused".into() };
        let failure = Failure::from(unreachable);
        assert_eq!(failure.exit, Exit::Failure);
        assert_eq!(failure.message, "cannot reach http://a:1: refused: is a server running there?");
        assert_eq!(Failure::from(windlass::Error::Setup("no address".into())).exit, Exit::Usage);
        for (code, exit) in [
            ("invalid_request", Exit::Usage),
            ("denied", Exit::Denied),
            ("unknown_queue", Exit::NotFound),
            ("stale_token", Exit::Conflict),
            ("unavailable", Exit::NoLeader),
            ("timeout", Exit::Timeout),
            ("queue_full", Exit::Failure),
        ] {
            assert_eq!(exit_of(code), exit, "{code}");
        }
    }
}
