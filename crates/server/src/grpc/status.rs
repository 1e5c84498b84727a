//! Every "no" as a status of gRPC: the code of the HTTP face in `windlass-code`, the whole of it in
//! `windlass-error-bin`.

use http::HeaderMap;
use http::header::HeaderValue;
use prost::Message as _;
use tonic::metadata::{BinaryMetadataValue, MetadataMap};
use tonic::{Code as GrpcCode, Status};
use wire::grpc;
use wire::http::{Code, Ms, Problem};

use crate::problem::Refusal;

/// Carries the stable word for programs.
pub(crate) const WINDLASS_CODE: &str = "windlass-code";
/// Carries the encoded `Error`.
pub(crate) const WINDLASS_ERROR: &str = "windlass-error-bin";

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Status {
        status(refusal.into_problem())
    }
}

/// A problem as a status.
pub(crate) fn status(problem: Problem) -> Status {
    let code = Code::from_word(&problem.code);
    let mut headers = HeaderMap::new();
    headers.insert(WINDLASS_CODE, HeaderValue::from_static(code.as_str()));
    let mut metadata = MetadataMap::from_headers(headers);
    let error = error(problem);
    let message = error.message.clone();
    metadata.insert_bin(WINDLASS_ERROR, BinaryMetadataValue::from_bytes(&error.encode_to_vec()));
    Status::with_metadata(grpc_code(code), message, metadata)
}

/// Gives a message over its limit its code: it was refused before any of our code saw it.
pub(super) fn name_too_large(headers: &mut HeaderMap) {
    const OUT_OF_RANGE: &str = "11";
    let is_refused = headers.get(Status::GRPC_STATUS).is_some_and(|status| status == OUT_OF_RANGE);
    if is_refused && !headers.contains_key(WINDLASS_CODE) {
        headers.insert(WINDLASS_CODE, HeaderValue::from_static(Code::PayloadTooLarge.as_str()));
    }
}

/// A problem as a part of an answer.
pub(crate) fn error(problem: Problem) -> grpc::Error {
    grpc::Error {
        code: problem.code.into_owned(),
        message: problem.detail,
        id: problem.id.map(|id| id.0.to_string()).unwrap_or_default(),
        state: problem.state.map(|state| state.0.as_str().to_owned()).unwrap_or_default(),
        retry_after_ms: problem.retry_after_ms.map(|Ms(millis)| millis),
    }
}

/// Which of gRPC's few codes says it best. Programs that must know more read the word.
fn grpc_code(code: Code) -> GrpcCode {
    match code {
        Code::InvalidRequest | Code::InvalidToken | Code::PayloadTooLarge => GrpcCode::InvalidArgument,
        Code::Unauthenticated => GrpcCode::Unauthenticated,
        Code::Denied => GrpcCode::PermissionDenied,
        Code::NotFound | Code::UnknownQueue | Code::UnknownWorker => GrpcCode::NotFound,
        Code::MethodNotAllowed => GrpcCode::Unimplemented,
        Code::NotClaimed
        | Code::StaleToken
        | Code::NotReady
        | Code::AlreadyEnded
        | Code::DedupMismatch
        | Code::NotOneShard => GrpcCode::FailedPrecondition,
        Code::NotUnique => GrpcCode::AlreadyExists,
        Code::StaleVersion => GrpcCode::Aborted,
        Code::QueueFull | Code::TooManyRequests | Code::MemoryFull | Code::DiskFull => {
            GrpcCode::ResourceExhausted
        }
        Code::Internal => GrpcCode::Internal,
        Code::NotLeader | Code::Unavailable => GrpcCode::Unavailable,
        // Nothing was done: worth another try, unlike `timeout`, of which nobody knows.
        Code::RequestTimeout => GrpcCode::Unavailable,
        Code::Timeout => GrpcCode::DeadlineExceeded,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_carries_the_whole_problem() {
        let problem = crate::problem::problem_of(&node::Error::Unavailable);
        let status = status(problem.clone());
        assert_eq!(status.code(), GrpcCode::Unavailable);
        assert_eq!(status.message(), problem.detail);
        assert_eq!(status.metadata().get(WINDLASS_CODE).unwrap(), "unavailable");
        let bytes = status.metadata().get_bin(WINDLASS_ERROR).unwrap().to_bytes().unwrap();
        let error = grpc::Error::decode(bytes).unwrap();
        assert_eq!((&*error.code, error.retry_after_ms), ("unavailable", Some(1_000)));
    }

    #[test]
    fn what_may_have_been_done_is_told_apart_from_what_was_not() {
        for code in Code::ALL {
            assert_eq!(grpc_code(*code) == GrpcCode::DeadlineExceeded, *code == Code::Timeout, "{code:?}");
            assert_ne!(grpc_code(*code), GrpcCode::Ok, "{code:?}");
        }
    }
}
