//! `GET /openapi.json`: the contract, generated from the routes and the types they speak.

use std::sync::OnceLock;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::StatusCode;
use utoipa::openapi::tag::TagBuilder;
use utoipa::openapi::{InfoBuilder, LicenseBuilder, OpenApi, OpenApiBuilder};

use crate::reply::with_body;

/// What stands above the routes.
pub(super) fn description() -> OpenApi {
    let about = "A replicated task queue. Times are RFC 3339 with milliseconds in UTC; durations are whole \
        numbers of milliseconds (`*_ms`). Unknown fields are an error. Every reply to a write carries \
        `Windlass-Index: shard:index`. Errors are `application/problem+json` with a stable `code`.";
    let tags = [
        ("tasks", "Putting tasks in, looking at them, acting on them."),
        ("claims", "What workers do."),
        ("workers", "Sessions, and what people do to workers."),
        ("queues", "What queues hold and how they treat their tasks."),
        ("cluster", "How the servers are, and what happens."),
        ("health", "For whoever keeps the process running."),
    ];
    let tag = |(name, text): (&str, &str)| TagBuilder::new().name(name).description(Some(text)).build();
    OpenApiBuilder::new()
        .info(
            InfoBuilder::new()
                .title("Windlass")
                .version(env!("CARGO_PKG_VERSION"))
                .description(Some(about))
                .license(Some(LicenseBuilder::new().name("MIT OR Apache-2.0").build()))
                .build(),
        )
        .tags(Some(tags.map(tag)))
        .build()
}

/// This description.
#[utoipa::path(
    get, path = "/openapi.json", tag = "health",
    responses((status = 200, description = "OpenAPI 3.1", body = Object))
)]
pub(crate) async fn openapi() -> Response {
    static JSON: OnceLock<Bytes> = OnceLock::new();
    let json = JSON.get_or_init(|| {
        let api = super::documented().into_openapi();
        Bytes::from(serde_json::to_vec(&api).expect("a description is strings and maps"))
    });
    with_body(StatusCode::OK, Body::from(json.clone()))
}
