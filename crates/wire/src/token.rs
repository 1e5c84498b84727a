//! Tokens: what a worker acks with, made and checked at the edge.
//!
//! A token is the task, the fence and a MAC under the cluster's key, in base64url. Nobody can make one
//! for a claim that was never given to him. It must never reach the state machine, which sees the fence
//! alone, nor a log line. Servers alone need this: it is behind the feature `token`.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use model::{Fence, TaskId};
use subtle::ConstantTimeEq as _;

const ID_BYTES: usize = 16;
const BODY_BYTES: usize = ID_BYTES + 8;
const TOKEN_BYTES: usize = BODY_BYTES + MAC_BYTES;
const MAC_BYTES: usize = 16;
/// Length of a token's text.
const TOKEN_CHARS: usize = TOKEN_BYTES.div_ceil(3) * 4 - (3 - TOKEN_BYTES % 3) % 3;

/// Makes and checks tokens under one cluster's key.
pub struct Mint {
    key: [u8; 32],
}

impl Mint {
    /// A mint with the cluster's key.
    pub fn new(key: [u8; 32]) -> Mint {
        Mint { key }
    }

    /// The token of a claim.
    pub fn token(&self, task: TaskId, fence: Fence) -> String {
        let mut bytes = [0u8; TOKEN_BYTES];
        bytes[..ID_BYTES].copy_from_slice(&task.bits().to_be_bytes());
        bytes[ID_BYTES..BODY_BYTES].copy_from_slice(&fence.0.to_be_bytes());
        let mac = self.mac(&bytes[..BODY_BYTES]);
        bytes[BODY_BYTES..].copy_from_slice(&mac);
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// The claim that a token stands for; nothing if this mint never made it.
    pub fn open(&self, token: &str) -> Option<(TaskId, Fence)> {
        if token.len() != TOKEN_CHARS {
            return None;
        }
        let mut bytes = [0u8; TOKEN_BYTES];
        match URL_SAFE_NO_PAD.decode_slice(token, &mut bytes) {
            Ok(TOKEN_BYTES) => {}
            _ => return None,
        }
        let mac = self.mac(&bytes[..BODY_BYTES]);
        if !bool::from(mac[..].ct_eq(&bytes[BODY_BYTES..])) {
            return None;
        }
        let id = u128::from_be_bytes(bytes[..ID_BYTES].try_into().expect("16 bytes"));
        let fence = u64::from_be_bytes(bytes[ID_BYTES..BODY_BYTES].try_into().expect("8 bytes"));
        Some((TaskId::from_bits(id)?, Fence(fence)))
    }

    fn mac(&self, body: &[u8]) -> [u8; MAC_BYTES] {
        let hash = blake3::keyed_hash(&self.key, body);
        hash.as_bytes()[..MAC_BYTES].try_into().expect("a hash has 32 bytes")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::{ShardId, WallTime};

    fn task(n: u64) -> TaskId {
        TaskId::new(ShardId::new(3).unwrap(), WallTime::from_millis(1_763_208_000_000), n)
    }

    #[test]
    fn a_token_opens_to_its_claim_under_the_same_key_only() {
        let mint = Mint::new([7; 32]);
        let token = mint.token(task(1), Fence(4711));
        assert_eq!(token.len(), TOKEN_CHARS);
        assert_eq!(mint.open(&token), Some((task(1), Fence(4711))));
        assert_eq!(Mint::new([8; 32]).open(&token), None);
    }

    #[test]
    fn a_token_that_was_changed_anywhere_is_refused() {
        let mint = Mint::new([7; 32]);
        let token = mint.token(task(1), Fence(4711));
        for at in 0..token.len() {
            let mut changed = token.clone().into_bytes();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(changed).unwrap();
            if changed != token {
                assert_eq!(mint.open(&changed), None, "character {at}");
            }
        }
    }

    #[test]
    fn what_is_no_token_is_refused() {
        let mint = Mint::new([7; 32]);
        let good = mint.token(task(1), Fence(1));
        let other = mint.token(task(2), Fence(1));
        let spliced = format!("{}{}", &good[..24], &other[24..]);
        let long = "A".repeat(100_000);
        for (what, text) in [
            ("empty", ""),
            ("truncated", &good[..good.len() - 1]),
            ("longer", &format!("{good}A")),
            ("two tokens spliced", &spliced),
            ("not base64", &"!".repeat(TOKEN_CHARS)),
            ("not ascii", &"é".repeat(TOKEN_CHARS / 2)),
            ("zeros", &"A".repeat(TOKEN_CHARS)),
            ("very long", &long),
        ] {
            assert_eq!(mint.open(text), None, "{what}");
        }
    }
}
