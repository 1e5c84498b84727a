//! `POST /v1/cluster/…`: what a person asks of the cluster's nodes. Next: `node/src/life/admin.rs`.
//!
//! Any node takes any of these. Each is an answer to "do it", not "it is done": votes and copies move in steps of
//! their own, which `GET /v1/cluster` shows.

use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use model::{GroupId, NodeId};
use wire::http::members::{AskedReply, LeaveRequest, PromoteRequest, RebalanceRequest, TransferRequest};
use wire::http::{Problem, parse};

use super::Reply;
use crate::app::App;
use crate::body::Whole;
use crate::reply::json;

/// Moves the leadership of a shard to a node.
#[utoipa::path(
    post, path = "/v1/cluster/transfer", tag = "cluster",
    request_body = TransferRequest,
    responses(
        (status = 200, description = "it leads, or is about to", body = AskedReply),
        (status = "default", description = "refused", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn transfer(State(app): State<App>, whole: Whole) -> Reply {
    let request: TransferRequest = parse::one(whole.text()?)?;
    app.node.transfer(GroupId(request.shard), request.node.map(NodeId)).await?;
    Ok(asked())
}

/// Spreads the leaders over the nodes now, instead of little by little.
#[utoipa::path(
    post, path = "/v1/cluster/rebalance", tag = "cluster",
    request_body = RebalanceRequest,
    responses(
        (status = 200, description = "leaders move", body = AskedReply),
        (status = "default", description = "refused", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn rebalance(State(app): State<App>, whole: Whole) -> Reply {
    let RebalanceRequest {} = parse::one(whole.text_or_empty()?)?;
    app.node.rebalance().await?;
    Ok(asked())
}

/// Takes a node out, dead or alive: its votes go to others, then it is forgotten.
#[utoipa::path(
    post, path = "/v1/cluster/leave", tag = "cluster",
    request_body = LeaveRequest,
    responses(
        (status = 200, description = "it goes as soon as others have its votes", body = AskedReply),
        (status = "default", description = "refused", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn leave(State(app): State<App>, whole: Whole) -> Reply {
    let request: LeaveRequest = parse::one(whole.text()?)?;
    app.node.leave(NodeId(request.node)).await?;
    Ok(asked())
}

/// Lets a node vote that so far only has copies, in one shard or in all.
#[utoipa::path(
    post, path = "/v1/cluster/promote", tag = "cluster",
    request_body = PromoteRequest,
    responses(
        (status = 200, description = "it votes as soon as it has caught up", body = AskedReply),
        (status = "default", description = "refused", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn promote(State(app): State<App>, whole: Whole) -> Reply {
    let request: PromoteRequest = parse::one(whole.text()?)?;
    app.node.promote(NodeId(request.node), request.shard.map(GroupId)).await?;
    Ok(asked())
}

fn asked() -> Response {
    json(StatusCode::OK, &AskedReply { status: "asked".to_owned() })
}
