//! Tokens of claims, and the other words that callers bring back: ids, sessions, times, names.

use model::{Fence, KindName, QueueName, TaskId, WorkerName};
use wire::http::{Id, Session, Time};
use wire::token::Mint;

use crate::allocation;
use crate::pieces::Pieces;

const KEY: [u8; 32] = [7; 32];
const ID: &str = "01994c2e-8f00-7001-8000-000000000000";

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let id: Id = serde_json::from_str(&format!("\"{ID}\"")).expect("a good id");
    let mut seeds: Vec<Vec<u8>> =
        [ID, "00000000000000000000000000000001", "2026-11-15T12:00:30.000Z", "mail", "host-1:4711"]
            .map(|text| text.as_bytes().to_vec())
            .to_vec();
    seeds.extend([0, 4711, u64::MAX].map(|fence| Mint::new(KEY).token(id.0, Fence(fence)).into_bytes()));
    seeds
}

pub(crate) fn run(bytes: &[u8]) {
    made_and_opened(bytes);
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    // As JSON a control character is six.
    let bytes_max = 16 * 1024 + 64 * text.len();
    let mint = Mint::new(KEY);
    if let Some((task, fence)) = allocation::within(1024, || mint.open(text)) {
        assert_eq!(mint.token(task, fence), text, "one claim has one token");
        assert_eq!(Mint::new([8; 32]).open(text), None, "it is a token of another cluster, too");
    }
    allocation::within(bytes_max, || {
        let json = serde_json::to_string(text).expect("text is JSON");
        if let Ok(id) = serde_json::from_str::<Id>(&json) {
            let written = serde_json::to_string(&id).expect("an id is JSON");
            assert_eq!(serde_json::from_str::<Id>(&written).ok(), Some(id));
        }
        if let Ok(session) = serde_json::from_str::<Session>(&json) {
            let written = serde_json::to_string(&session).expect("a session is JSON");
            assert_eq!(serde_json::from_str::<Session>(&written).ok(), Some(session));
        }
        if let Some(time) = Time::parse(text) {
            let written = serde_json::to_string(&time).expect("a time is JSON");
            assert_eq!(serde_json::from_str::<Time>(&written).ok(), Some(time), "{text:?}");
        }
        if let Ok(queue) = QueueName::new(text) {
            assert_eq!(queue.as_str(), text);
        }
        let _ = (KindName::new(text).is_ok(), WorkerName::new(text).is_ok());
    });
}

/// A token that was made from these bytes opens to them, and to nothing when any character of it is another.
fn made_and_opened(bytes: &[u8]) {
    let mut pieces = Pieces(bytes);
    let (high, low, fence) = (pieces.number(), pieces.number(), Fence(pieces.number()));
    let Some(task) = TaskId::from_bits(u128::from(high) << 64 | u128::from(low)) else { return };
    let mint = Mint::new(KEY);
    let mut token = mint.token(task, fence).into_bytes();
    assert_eq!(mint.open(std::str::from_utf8(&token).expect("base64")), Some((task, fence)));
    let at = usize::from(pieces.byte()) % token.len();
    let other = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_=+/ ~"
        [usize::from(pieces.byte()) % 69];
    if token[at] != other {
        token[at] = other;
        assert_eq!(mint.open(std::str::from_utf8(&token).expect("ascii")), None, "character {at} as {other}");
    }
}
