//! The routes, one file per noun or verb. Each turns bytes into typed calls of the node and its answers
//! into JSON; none decides anything about a task.
//!
//! The shapes are in `wire/src/http`; the list of routes with them is served as `/openapi.json`.

pub(crate) mod claim;
pub(crate) mod claims_body;
pub(crate) mod cluster;
pub(crate) mod enqueue;
pub(crate) mod events;
mod health;
mod members;
mod metrics;
mod openapi;
pub(crate) mod origin;
mod pages;
pub(crate) mod queues;
mod redirect;
pub(crate) mod settle;
pub(crate) mod task_reply;
pub(crate) mod tasks;
pub(crate) mod workers;

use axum::Router;
use axum::response::Response;
use node::call::Freshness;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use wire::http::fresh::StaleWord;

use crate::app::App;
use crate::problem::{self, Refusal};

/// How fresh an answer must be.
fn freshness(stale: Option<StaleWord>) -> Freshness {
    match stale {
        Some(StaleWord::Ok) => Freshness::Stale,
        None => Freshness::Linearizable,
    }
}

/// What a handler answers.
type Reply = Result<Response, Refusal>;

/// All routes, ready to serve.
pub(crate) fn router(app: App) -> Router {
    let (router, api) = documented().split_for_parts();
    let pages = pages::Pages::new(&api);
    router
        .merge(pages::routes(pages))
        .fallback(problem::unknown_path)
        .method_not_allowed_fallback(problem::unknown_method)
        .with_state(app)
}

/// The routes that `/openapi.json` lists.
fn documented() -> OpenApiRouter<App> {
    OpenApiRouter::with_openapi(openapi::description())
        .routes(routes!(enqueue::enqueue))
        .routes(routes!(claim::claim, tasks::claims))
        .routes(routes!(settle::ack))
        .routes(routes!(settle::fail))
        .routes(routes!(settle::extend))
        .routes(routes!(settle::release))
        .routes(routes!(settle::progress))
        .routes(routes!(workers::register, workers::list))
        .routes(routes!(workers::show, workers::end))
        .routes(routes!(workers::beat))
        .routes(routes!(workers::session))
        .routes(routes!(workers::drain))
        .routes(routes!(workers::stop))
        .routes(routes!(workers::remove))
        .routes(routes!(tasks::list))
        .routes(routes!(tasks::show, tasks::cancel))
        .routes(routes!(tasks::show_by_dedup))
        .routes(routes!(tasks::why))
        .routes(routes!(tasks::requeue))
        .routes(routes!(tasks::discard))
        .routes(routes!(tasks::put_back))
        .routes(routes!(tasks::requeue_all))
        .routes(routes!(tasks::discard_all))
        .routes(routes!(tasks::cancel_all))
        .routes(routes!(tasks::put_back_all))
        .routes(routes!(queues::list))
        .routes(routes!(queues::show, queues::set, queues::delete))
        .routes(routes!(queues::pause))
        .routes(routes!(queues::resume))
        .routes(routes!(queues::purge))
        .routes(routes!(cluster::cluster))
        .routes(routes!(cluster::node))
        .routes(routes!(members::transfer))
        .routes(routes!(members::rebalance))
        .routes(routes!(members::leave))
        .routes(routes!(members::promote))
        .routes(routes!(events::events))
        .routes(routes!(health::livez))
        .routes(routes!(health::readyz))
        .routes(routes!(metrics::metrics))
        .routes(routes!(openapi::openapi))
}
