//! What kept a trial from being made. That a promise broke is no error: it stands in the outcome.

use std::io;
use std::time::Duration;

/// Why a trial could not be made, or not to its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("{what}: {source}")]
    Io { what: String, source: io::Error },
    #[error("{words}: {why}")]
    Program { words: String, why: String },
    /// Only after everything was healed: then it is the cluster's fault.
    #[error("waited {} s until {what}", within.as_secs())]
    Never { what: String, within: Duration },
    #[error("stopped by a signal")]
    Stopped,
    #[error("{0}")]
    Usage(String),
}

impl Error {
    /// For `map_err`: what was tried when the system said no.
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Error {
        let what = what.into();
        move |source| Error::Io { what, source }
    }
}
