//! `Prefer: redirect`: a caller that would rather talk to the leader itself is told where it is.
//!
//! Without it every node forwards what it does not lead. A request that belongs to no single shard is served here
//! in any case.

use std::convert::Infallible;

use axum::body::Body;
use axum::extract::FromRequestParts;
use axum::response::Response;
use http::header::LOCATION;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use model::ShardId;
use wire::http::Code;

use crate::app::App;
use crate::problem::Refusal;

/// What a caller prefers.
static PREFER: HeaderName = HeaderName::from_static("prefer");
/// That it was done.
static PREFERENCE_APPLIED: HeaderName = HeaderName::from_static("preference-applied");

/// Whether the caller wants to be sent on, and with which path.
pub(crate) struct Redirect {
    path: Option<String>,
}

impl FromRequestParts<App> for Redirect {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Redirect, Infallible> {
        let path = || parts.uri.path_and_query().map(|path| path.as_str().to_owned());
        Ok(Redirect { path: prefers_redirect(&parts.headers).then(path).flatten() })
    }
}

impl Redirect {
    /// Where to go instead, if that is what the caller wants and another node leads `shard`.
    pub(crate) fn elsewhere(&self, app: &App, shard: Option<ShardId>) -> Result<Option<Response>, Refusal> {
        let (Some(path), Some(shard)) = (&self.path, shard) else { return Ok(None) };
        let Some(leader) = app.node.leader_of(shard).filter(|leader| *leader != app.node.id()) else {
            return Ok(None);
        };
        let location = app.node.leader_address(shard).map(|address| format!("http://{address}{path}"));
        let Some(location) = location.and_then(|location| HeaderValue::try_from(location).ok()) else {
            let detail = format!(
                "node {leader} leads shard {shard} and where it serves HTTP is not known: give it --advertise, \
                 or ask without Prefer: redirect"
            );
            return Err(Refusal::new(Code::NotLeader, detail));
        };
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::TEMPORARY_REDIRECT;
        response.headers_mut().insert(LOCATION, location);
        response.headers_mut().insert(PREFERENCE_APPLIED.clone(), HeaderValue::from_static("redirect"));
        Ok(Some(response))
    }
}

/// Preferences are a list, over any number of headers, each perhaps with parameters.
fn prefers_redirect(headers: &HeaderMap) -> bool {
    let values = headers.get_all(&PREFER).into_iter().filter_map(|value| value.to_str().ok());
    let mut preferences = values.flat_map(|value| value.split(','));
    preferences
        .any(|one| one.split(';').next().is_some_and(|name| name.trim().eq_ignore_ascii_case("redirect")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_preference_is_found_among_others() {
        for (values, wants) in [
            (&["redirect"][..], true),
            (&["respond-async, Redirect; soon"], true),
            (&["wait=5", "redirect"], true),
            (&["no-redirect"], false),
            (&["respond-async"], false),
            (&[], false),
        ] {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(PREFER.clone(), HeaderValue::from_static(value));
            }
            assert_eq!(prefers_redirect(&headers), wants, "{values:?}");
        }
    }
}
