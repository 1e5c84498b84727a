//! `/livez` and `/readyz`, for whoever keeps the process running.

use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use wire::http::cluster::HealthReply;
use wire::http::{Code, Problem};

use super::Reply;
use crate::app::App;
use crate::problem::Refusal;
use crate::reply::json;

/// 200 while the process works.
#[utoipa::path(
    get, path = "/livez", tag = "health",
    responses((status = 200, description = "the process works", body = HealthReply))
)]
pub(crate) async fn livez() -> Response {
    json(StatusCode::OK, &HealthReply { status: "ok".to_owned() })
}

/// 200 when every group has a leader that this node reaches and its own log is applied.
#[utoipa::path(
    get, path = "/readyz", tag = "health",
    responses(
        (status = 200, description = "ready", body = HealthReply),
        (status = 503, description = "not ready, and why", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn readyz(State(app): State<App>) -> Reply {
    if app.stopping().is_cancelled() {
        return Err(Refusal::new(Code::Unavailable, "this server is stopping: use another one"));
    }
    match app.node.ready() {
        Ok(()) => Ok(json(StatusCode::OK, &HealthReply { status: "ok".to_owned() })),
        Err(why) => Err(Refusal::new(Code::Unavailable, why)),
    }
}
