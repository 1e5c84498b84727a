//! Every "no" as `application/problem+json`, whoever said it: the state, the node, a parser or the router.

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::header::{ALLOW, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, StatusCode};
use model::{InvalidName, Rejection};
use wire::http::problem::CONTENT_TYPE as PROBLEM_JSON;
use wire::http::{Code, Id, Invalid, Ms, Problem, State};

/// A request that was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal(Box<Problem>);

impl Refusal {
    /// With this code and text.
    pub(crate) fn new(code: Code, detail: impl Into<String>) -> Refusal {
        Refusal(Box::new(Problem::new(code, detail)))
    }

    /// A request that cannot be taken as it is.
    pub(crate) fn invalid(detail: impl Into<String>) -> Refusal {
        Refusal::new(Code::InvalidRequest, detail)
    }

    /// What is said.
    pub(crate) fn into_problem(self) -> Problem {
        *self.0
    }
}

impl From<Problem> for Refusal {
    fn from(problem: Problem) -> Refusal {
        Refusal(Box::new(problem))
    }
}

impl From<Invalid> for Refusal {
    fn from(invalid: Invalid) -> Refusal {
        Problem::from(invalid).into()
    }
}

impl From<InvalidName> for Refusal {
    fn from(invalid: InvalidName) -> Refusal {
        Refusal::invalid(invalid.to_string())
    }
}

impl From<node::Error> for Refusal {
    fn from(error: node::Error) -> Refusal {
        problem_of(&error).into()
    }
}

/// What a node's error says to a caller.
pub(crate) fn problem_of(error: &node::Error) -> Problem {
    let mut problem = Problem::new(Code::from_word(error.code()), error.to_string());
    problem.retry_after_ms = error.retry_after().map(Ms::from);
    let (id, state) = match error {
        node::Error::Rejected(rejection) => about(rejection),
        node::Error::NothingToPutBack { id, state } => (Some(*id), Some(*state)),
        _ => (None, None),
    };
    problem.id = id.map(Id);
    problem.state = state.map(State);
    problem
}

/// The task that a rejection is about, and its state.
fn about(rejection: &Rejection) -> (Option<model::TaskId>, Option<model::StateKind>) {
    match rejection {
        Rejection::NotFound { id } | Rejection::StaleToken { id, .. } => (Some(*id), None),
        Rejection::NotClaimed { id, state }
        | Rejection::NotReady { id, state }
        | Rejection::AlreadyEnded { id, state }
        | Rejection::NotEnded { id, state } => (Some(*id), Some(*state)),
        Rejection::NotUnique { holder } | Rejection::DedupMismatch { holder } => (Some(*holder), None),
        Rejection::NotAtomic { because, .. } => about(because),
        _ => (None, None),
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let body = serde_json::to_vec(&*self.0).expect("a problem is strings and numbers");
        let mut response = Response::new(Body::from(body));
        *response.status_mut() =
            StatusCode::from_u16(self.0.status).expect("every code has a status between 400 and 599");
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
        if let Some(after) = retry_after_secs(&self.0) {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(after));
        }
        response
    }
}

/// Seconds for `Retry-After`: what the node said, else one where the status asks for it.
fn retry_after_secs(problem: &Problem) -> Option<u64> {
    match (problem.retry_after_ms, problem.status) {
        (Some(Ms(millis)), _) => Some(millis.div_ceil(1000).max(1)),
        (None, 429 | 503) => Some(1),
        (None, _) => None,
    }
}

/// No such path.
pub(crate) async fn unknown_path(request: axum::extract::Request) -> Refusal {
    let path = shown(request.uri().path());
    Refusal::new(Code::NotFound, format!("there is nothing at {path}: see /docs for what there is"))
}

/// The path is there, the method is not.
pub(crate) async fn unknown_method(request: axum::extract::Request) -> Response {
    let (method, path) = (request.method(), shown(request.uri().path()));
    let detail = format!("{path} does not take {method}: see /docs for what it takes");
    let mut response = Refusal::new(Code::MethodNotAllowed, detail).into_response();
    // The router puts the methods that there are in place of this.
    response.headers_mut().remove(ALLOW);
    response
}

/// As much of a path as fits into a message.
fn shown(path: &str) -> &str {
    &path[..path.floor_char_boundary(200)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::{Fence, ShardId, TaskId, WallTime};

    #[test]
    fn a_rejection_names_its_task_and_state() {
        let id = TaskId::new(ShardId::new(1).unwrap(), WallTime::from_millis(1), 1);
        let error = node::Error::Rejected(Rejection::NotReady { id, state: model::StateKind::Blocked });
        let problem = problem_of(&error);
        assert_eq!((problem.status, &*problem.code), (409, "not_ready"));
        assert_eq!(problem.id, Some(Id(id)));
        assert_eq!(problem.state, Some(State(model::StateKind::Blocked)));
        let stale = Rejection::StaleToken { id, given: Fence(1), current: Fence(2) };
        assert_eq!(problem_of(&node::Error::Rejected(stale)).status, 409);
        let because = Box::new(Rejection::NotUnique { holder: id });
        let atomic = problem_of(&node::Error::Rejected(Rejection::NotAtomic { n: 3, because }));
        assert_eq!((atomic.status, &*atomic.code, atomic.id), (409, "not_unique", Some(Id(id))));
        assert!(atomic.detail.contains("task 3"), "{}", atomic.detail);
        let state = model::StateKind::Ready;
        let put_back = problem_of(&node::Error::NothingToPutBack { id, state });
        assert_eq!((&*put_back.code, put_back.state), ("not_claimed", Some(State(state))));
    }

    #[test]
    fn what_is_worth_a_retry_says_when() {
        let response = Refusal::from(node::Error::Unavailable).into_response();
        assert_eq!(response.status(), 503);
        assert_eq!(response.headers()[RETRY_AFTER], "1");
        assert_eq!(response.headers()[CONTENT_TYPE], PROBLEM_JSON);
        assert!(!Refusal::invalid("no").into_response().headers().contains_key(RETRY_AFTER));
    }
}
