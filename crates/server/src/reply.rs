//! Replies: JSON written straight from borrowed values, and the log positions that a write stands on.

use std::fmt::Write as _;

use axum::body::Body;
use axum::response::Response;
use http::header::CONTENT_TYPE;
use http::{HeaderName, HeaderValue, StatusCode};
use model::{GroupId, ShardId};
use serde::Serialize;
use wire::http::{Outcome, Results};

use crate::app::App;

/// Carries `shard:index` of every shard that a call wrote to.
pub(crate) static WINDLASS_INDEX: HeaderName = HeaderName::from_static("windlass-index");

/// Room for most replies about one task, so that they are written without growing.
const REPLY_BYTES: usize = 256;
/// Room for one outcome of many.
pub(crate) const OUTCOME_BYTES: usize = 112;

/// A reply of this status.
pub(crate) fn json(status: StatusCode, value: &impl Serialize) -> Response {
    with_body(status, Body::from(to_bytes(value)))
}

/// A reply to a write.
pub(crate) fn written(status: StatusCode, value: &impl Serialize, indexes: &Indexes) -> Response {
    let mut response = json(status, value);
    indexes.put(&mut response);
    response
}

/// A reply to many writes, each with its own outcome.
pub(crate) fn written_many<T: Serialize>(results: Vec<Outcome<T>>, indexes: &Indexes) -> Response {
    let room = results.len() * OUTCOME_BYTES;
    let mut response = with_body(StatusCode::OK, Body::from(to_bytes_in(room, &Results { results })));
    indexes.put(&mut response);
    response
}

/// The JSON of a reply.
pub(crate) fn to_bytes(value: &impl Serialize) -> Vec<u8> {
    to_bytes_in(REPLY_BYTES, value)
}

/// The JSON of a reply that takes about `room` bytes: a large one should not grow by copies.
pub(crate) fn to_bytes_in(room: usize, value: &impl Serialize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(room.max(REPLY_BYTES));
    serde_json::to_writer(&mut bytes, value).expect("replies have string keys and memory takes every write");
    bytes
}

/// A reply in JSON with this body.
pub(crate) fn with_body(status: StatusCode, body: Body) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// The last index of each group that a call wrote to; shard `n` is group `n`, the catalog is 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Indexes(Vec<(GroupId, u64)>);

impl Indexes {
    /// Takes in what one answer stands on.
    pub(crate) fn add(&mut self, indexes: &[(ShardId, u64)]) {
        for &(shard, index) in indexes {
            match self.0.iter_mut().find(|(known, _)| *known == shard.group()) {
                Some((_, last)) => *last = index.max(*last),
                None => self.0.push((shard.group(), index)),
            }
        }
    }

    /// How far the groups that `wrote` picks are written by now. For rare writes over several groups:
    /// everything that the call did is at or before these.
    pub(crate) fn committed(app: &App, wrote: impl Fn(GroupId) -> bool) -> Indexes {
        Indexes(app.node.written().into_iter().filter(|(group, _)| wrote(*group)).collect())
    }

    /// Writes the header, if anything was written at all.
    pub(crate) fn put(&self, response: &mut Response) {
        if let Some(value) = self.header() {
            response.headers_mut().insert(WINDLASS_INDEX.clone(), value);
        }
    }

    /// The header's value, if anything was written at all.
    pub(crate) fn header(&self) -> Option<HeaderValue> {
        if self.0.is_empty() {
            return None;
        }
        let mut text = String::with_capacity(24);
        for (n, (group, index)) in self.0.iter().enumerate() {
            let comma = if n == 0 { "" } else { "," };
            write!(text, "{comma}{group}:{index}").expect("memory takes every write");
        }
        Some(HeaderValue::try_from(text).expect("digits, colons and commas are a header's value"))
    }
}

impl From<Vec<(ShardId, u64)>> for Indexes {
    fn from(indexes: Vec<(ShardId, u64)>) -> Indexes {
        Indexes(indexes.into_iter().map(|(shard, index)| (shard.group(), index)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_has_the_last_index_of_each_shard_once() {
        let shard = |number| ShardId::new(number).unwrap();
        let mut indexes = Indexes::default();
        indexes.add(&[(shard(1), 7), (shard(3), 9)]);
        indexes.add(&[(shard(1), 5), (shard(3), 12)]);
        let response = written(StatusCode::OK, &1, &indexes);
        assert_eq!(response.headers()["windlass-index"], "1:7,3:12");
        assert!(!written(StatusCode::OK, &1, &Indexes::default()).headers().contains_key("windlass-index"));
    }
}
