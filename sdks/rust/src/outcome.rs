//! What a handler came to, as the server is told.

use std::time::Duration;

use wire::grpc;
use wire::grpc::outcome::Outcome as Said;

use crate::context::Running;
use crate::error::{Error, TaskError, Verdict};
use crate::task::millis;

/// An ack with what shall follow.
pub(crate) fn done(output: bytes::Bytes, running: &Running) -> Said {
    let then: Result<Vec<_>, Error> = running.take_then().into_iter().map(|new| new.into_wire()).collect();
    match then {
        Ok(then) => Said::Ack(grpc::Done { output, then }),
        Err(error) => not_done(&TaskError::retry(error)),
    }
}

pub(crate) fn not_done(error: &TaskError) -> Said {
    let retry_in_ms = match error.verdict() {
        Verdict::Release(delay) => return given_back(delay),
        Verdict::RetryAfter(after) => Some(millis(after)),
        Verdict::Retry | Verdict::Fatal => None,
    };
    Said::Fail(grpc::Failed {
        error: error.error().to_owned(),
        detail: error.detail().to_owned(),
        retry_in_ms,
        fatal: error.is_fatal(),
    })
}

pub(crate) fn given_back(delay: Duration) -> Said {
    Said::Release(grpc::GivenBack { delay_ms: millis(delay) })
}
