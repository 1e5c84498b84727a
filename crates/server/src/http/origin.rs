//! Keeps web pages of other sites out: a browser sends `Origin`, and it must be ours.
//!
//! Bodies are taken whatever their content type, so a page elsewhere could otherwise post to a server on
//! the reader's own machine.

use http::header::{HOST, ORIGIN};
use http::{Request, Uri};
use wire::http::Code;

use crate::problem::Refusal;

/// Refuses a request that a page of another site sent.
pub(crate) fn check<B>(request: &Request<B>) -> Result<(), Refusal> {
    let Some(origin) = request.headers().get(ORIGIN) else { return Ok(()) };
    let host = match request.headers().get(HOST) {
        Some(host) => host.to_str().ok(),
        // HTTP/2 says it in the request's target.
        None => request.uri().authority().map(|authority| authority.as_str()),
    };
    let origin = origin.to_str().ok().and_then(|origin| origin.parse::<Uri>().ok());
    match (origin.as_ref().and_then(Uri::authority), host) {
        (Some(origin), Some(host)) if origin.as_str().eq_ignore_ascii_case(host) => Ok(()),
        _ => Err(Refusal::new(
            Code::Denied,
            "a page of another site sent this request: call the server from a program, or from its own pages",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_programs_and_our_own_pages_get_through() {
        for (origin, host, good) in [
            (None, "127.0.0.1:7420", true),
            (Some("http://127.0.0.1:7420"), "127.0.0.1:7420", true),
            (Some("http://LOCALHOST:7420"), "localhost:7420", true),
            (Some("http://evil.example"), "127.0.0.1:7420", false),
            (Some("http://127.0.0.1:8080"), "127.0.0.1:7420", false),
            (Some("null"), "127.0.0.1:7420", false),
        ] {
            let mut request = Request::builder().header(HOST, host);
            if let Some(origin) = origin {
                request = request.header(ORIGIN, origin);
            }
            let request = request.body(()).unwrap();
            assert_eq!(check(&request).is_ok(), good, "{origin:?} {host}");
        }
    }
}
