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
