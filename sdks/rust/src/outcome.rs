//! What a handler came to, as the server is told.

use std::time::Duration;

use prost::Message as _;
use wire::grpc;
use wire::grpc::outcome::Outcome as Said;

use crate::context::Running;
use crate::error::{Error, TaskError, Verdict};
use crate::task::millis;

/// Length of an error's one line, and of its detail. Servers cut what is longer.
const ERROR_BYTES_MAX: usize = 4 * 1024;
const DETAIL_BYTES_MAX: usize = 32 * 1024;
/// Follow-ups of one ack. Servers refuse more.
const THEN_MAX: usize = 1_000;

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
        error: cut(error.error(), ERROR_BYTES_MAX).to_owned(),
        detail: cut(error.detail(), DETAIL_BYTES_MAX).to_owned(),
        retry_in_ms,
        fatal: error.is_fatal(),
    })
}

pub(crate) fn given_back(delay: Duration) -> Said {
    Said::Release(grpc::GivenBack { delay_ms: millis(delay) })
}

/// The same, unless no server would read it: then the attempt failed. One that is sent all the same breaks the stream,
/// again and again, and nothing that waits behind it arrives.
pub(crate) fn within(said: Said, token: &str, bytes_max: usize) -> Said {
    if let Said::Ack(done) = &said
        && done.then.len() > THEN_MAX
    {
        return not_done(&TaskError::retry(format!(
            "{} tasks shall follow, a server takes at most {THEN_MAX} with one: enqueue them from a task that follows",
            done.then.len()
        )));
    }
    let outcome = grpc::Outcome { seq: u64::MAX, token: token.to_owned(), outcome: Some(said) };
    let bytes = outcome.encoded_len();
    match outcome.outcome {
        Some(said) if bytes <= bytes_max => said,
        _ => not_done(&TaskError::retry(format!(
            "the output and what shall follow have {bytes} bytes, a server takes at most {bytes_max}: store the output elsewhere and give back where it is"
        ))),
    }
}

/// How many tasks follow an outcome.
pub(crate) fn follow_ups(outcome: &grpc::Outcome) -> usize {
    match &outcome.outcome {
        Some(Said::Ack(done)) => done.then.len(),
        _ => 0,
    }
}

/// The beginning of a text, at most so many bytes of it.
pub(crate) fn cut(text: &str, bytes_max: usize) -> &str {
    &text[..text.floor_char_boundary(bytes_max)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_server_would_read_is_a_failed_attempt() {
        let ack = |bytes: usize| Said::Ack(grpc::Done { output: vec![b'1'; bytes].into(), then: Vec::new() });
        assert!(matches!(within(ack(900), "t", 1_000), Said::Ack(_)));
        let Said::Fail(failed) = within(ack(1_000), "t", 1_000) else { panic!("it is sent") };
        assert!(failed.error.contains("at most 1000") && !failed.fatal, "{failed:?}");
        let then = |count| {
            Said::Ack(grpc::Done { output: bytes::Bytes::new(), then: vec![grpc::Task::default(); count] })
        };
        assert!(matches!(within(then(THEN_MAX), "t", usize::MAX), Said::Ack(_)));
        assert!(matches!(within(then(THEN_MAX + 1), "t", usize::MAX), Said::Fail(_)));
        let many =
            Said::Ack(grpc::Done { output: Default::default(), then: vec![grpc::Task::default(); 600] });
        assert!(matches!(within(many, "t", 1_000), Said::Fail(_)), "what shall follow counts too");
    }

    #[test]
    fn a_long_error_is_cut_between_its_characters() {
        let Said::Fail(failed) = not_done(&TaskError::retry("ä".repeat(ERROR_BYTES_MAX))) else { panic!() };
        assert_eq!(failed.error.len(), ERROR_BYTES_MAX);
        assert_eq!(cut("äö", 3), "ä");
    }
}
