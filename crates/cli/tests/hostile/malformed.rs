//! Requests that nobody should send, each in as many forms as chance makes of it.

use rand::Rng as _;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;

use crate::h2::{self, frame};

/// Where it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Port {
    Http,
    Peer,
}

/// Bytes for a connection of their own.
pub(crate) struct Malformed {
    pub(crate) what: &'static str,
    pub(crate) port: Port,
    pub(crate) bytes: Vec<u8>,
    /// Whether something comes back. Otherwise the connection is closed as soon as it is written.
    pub(crate) is_answered: bool,
}

type Make = fn(&mut StdRng) -> (Vec<u8>, bool);

/// What it is, where it goes, and how it is made: the bytes, and whether something comes back.
const KINDS: &[(&str, Port, Make)] = &[
    ("random bytes", Port::Http, |rng| (random(rng, 2_000), false)),
    ("a request line of chance", Port::Http, |rng| {
        ([b"GET /", &random(rng, 300)[..], b" HTTP/1.1\r\n\r\n"].concat(), false)
    }),
    ("a version that is none", Port::Http, |_| (b"GET / HTTP/9.9\r\nhost: x\r\n\r\n".to_vec(), true)),
    ("huge headers", Port::Http, huge_headers),
    ("many headers", Port::Http, |rng| {
        let many: String = (0..rng.random_range(101..2_000)).map(|n| format!("h{n}: v\r\n")).collect();
        (format!("GET /livez HTTP/1.1\r\nhost: x\r\n{many}\r\n").into_bytes(), true)
    }),
    ("a long path", Port::Http, |rng| {
        let path = "x".repeat(rng.random_range(5_000..80_000));
        (format!("GET /{path} HTTP/1.1\r\nhost: x\r\n\r\n").into_bytes(), true)
    }),
    ("a path of escapes", Port::Http, |rng| {
        let path = ["%00", "%ff%fe", "../../etc/passwd", "%2e%2e%2f", "%", "%zz", "v1/tasks/%F0%9F"];
        let path = path.choose(rng).unwrap();
        (format!("GET /v1/tasks/{path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").into_bytes(), true)
    }),
    ("a wrong content-length", Port::Http, wrong_length),
    ("a half request", Port::Http, half_request),
    ("bad chunks", Port::Http, bad_chunks),
    ("broken JSON", Port::Http, |rng| (post("/v1/queues/q/tasks", &broken_json(rng)), true)),
    ("JSON of another request", Port::Http, |rng| {
        let path =
            ["/v1/claims", "/v1/claims/ack", "/v1/workers", "/v1/tasks:requeue", "/v1/claims/progress"];
        (post(path.choose(rng).unwrap(), &broken_json(rng)), true)
    }),
    ("deep JSON", Port::Http, |rng| {
        (post("/v1/queues/q/tasks", "[".repeat(rng.random_range(129..50_000)).as_bytes()), true)
    }),
    ("a wrong token", Port::Http, wrong_token),
    ("an upgrade", Port::Http, |rng| {
        let to = ["h2c", "websocket", "TLS/1.2"].choose(rng).unwrap();
        let head = format!("GET / HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: {to}\r\n\r\n");
        ([head.as_bytes(), &random(rng, 100)].concat(), true)
    }),
    ("TLS on a plain port", Port::Http, |rng| {
        ([&b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..], &random(rng, 500)].concat(), false)
    }),
    ("frames of chance", Port::Http, |rng| {
        let mut bytes = h2::begin();
        for _ in 0..rng.random_range(1..20) {
            let (kind, flags, stream) = (rng.random_range(0..12), rng.random(), rng.random_range(0..8));
            bytes.extend(frame(kind, flags, stream, &random(rng, 200)));
        }
        (bytes, true)
    }),
    ("frames in the wrong place", Port::Http, out_of_place),
    ("rapid reset", Port::Http, rapid_reset),
    ("a flood of settings", Port::Http, settings_flood),
    ("wrong settings", Port::Http, wrong_settings),
    ("a flood of continuations", Port::Http, continuations),
    ("a flood of pings", Port::Http, |rng| {
        let pings = frame(h2::PING, 0, 0, &[7; 8]).repeat(rng.random_range(10..500));
        ([h2::begin(), pings].concat(), true)
    }),
    ("headers that do not decompress", Port::Http, |rng| {
        ([h2::begin(), frame(h2::HEADERS, h2::END_HEADERS, 1, &random(rng, 500))].concat(), true)
    }),
    ("a frame that is too long", Port::Http, |rng| {
        let head = h2::announced(0xff_ffff, rng.random_range(0..10), 0, 1);
        ([h2::begin(), head, random(rng, 1_000)].concat(), true)
    }),
    ("half a preface", Port::Http, |rng| (h2::PREFACE[..rng.random_range(1..24)].to_vec(), false)),
    ("gRPC with a length of its own", Port::Http, grpc_length),
    ("gRPC of chance", Port::Http, |rng| {
        let body = random(rng, 300);
        let message = [&[rng.random_range(0..3)], &(body.len() as u32).to_be_bytes()[..], &body].concat();
        (grpc(rng, &message), true)
    }),
    ("gRPC of many empty tasks", Port::Http, |rng| {
        let body = [10, 0].repeat(rng.random_range(1..5_000));
        let message = [&[0], &(body.len() as u32).to_be_bytes()[..], &body].concat();
        (grpc_to("EnqueueMany", &message), true)
    }),
    ("random bytes for a peer", Port::Peer, |rng| (random(rng, 2_000), true)),
    ("a greeting with a length of its own", Port::Peer, |rng| {
        let length: u32 = rng.random();
        ([&b"windlass"[..], &length.to_be_bytes(), &random(rng, 300)].concat(), true)
    }),
    ("a greeting of chance", Port::Peer, |rng| {
        let body = random(rng, 300);
        ([&b"windlass"[..], &(body.len() as u32).to_be_bytes(), &body].concat(), true)
    }),
    ("a stranger's frames", Port::Peer, strangers_frames),
    ("HTTP for a peer", Port::Peer, |_| (b"GET / HTTP/1.1\r\nhost: x\r\n\r\n".to_vec(), true)),
];

/// How many kinds there are.
pub(crate) fn kinds() -> usize {
    KINDS.len()
}

/// The nth one, of the kind whose turn it is.
pub(crate) fn make(n: usize, rng: &mut StdRng) -> Malformed {
    let (what, port, make) = KINDS[n % KINDS.len()];
    let (bytes, is_answered) = make(rng);
    Malformed { what, port, bytes, is_answered }
}

fn random(rng: &mut StdRng, bytes_max: usize) -> Vec<u8> {
    let mut bytes = vec![0; rng.random_range(1..=bytes_max)];
    rng.fill(&mut bytes[..]);
    bytes
}

fn post(path: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

fn huge_headers(rng: &mut StdRng) -> (Vec<u8>, bool) {
    let value = "v".repeat(rng.random_range(40_000..600_000));
    (format!("GET /livez HTTP/1.1\r\nhost: x\r\nlarge: {value}\r\n\r\n").into_bytes(), true)
}

fn wrong_length(rng: &mut StdRng) -> (Vec<u8>, bool) {
    let length = [
        "-1",
        "abc",
        "99999999999999999999",
        "0x10",
        "1, 2",
        "18446744073709551615",
        "33554433",
        "10\r\ncontent-length: 11",
        "5\r\ntransfer-encoding: chunked",
        "",
    ];
    let length = length.choose(rng).unwrap();
    let head = format!("POST /v1/queues/q/tasks HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n");
    // Some are right and wait for bytes that never come.
    ([head.as_bytes(), &random(rng, 100)].concat(), false)
}

fn half_request(rng: &mut StdRng) -> (Vec<u8>, bool) {
    let whole = post("/v1/queues/q/tasks", br#"{"kind":"k","payload":{"to":"ada@example.com"}}"#);
    (whole[..rng.random_range(1..whole.len())].to_vec(), false)
}

fn bad_chunks(rng: &mut StdRng) -> (Vec<u8>, bool) {
    let chunks = [
        "zz\r\nhello\r\n0\r\n\r\n",
        "ffffffffffffffff\r\nhello",
        "-5\r\nhello\r\n0\r\n\r\n",
        "5\r\nhelloXX0\r\n\r\n",
        "5;a=\"\r\nhello\r\n",
        "0\r\ntrailer\r\n\r\n",
        "5\nhello\n0\n\n",
        "fffffff\r\n",
        "1\r\n{\r\n",
    ];
    let chunks = chunks.choose(rng).unwrap();
    let head = "POST /v1/queues/q/tasks HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n";
    ([head.as_bytes(), chunks.as_bytes(), &random(rng, 50)].concat(), false)
}

fn broken_json(rng: &mut StdRng) -> Vec<u8> {
    let whole = [
        &br#"{"kind":"k","payload":{"a":[1,2,{"b":null}]},"headers":{"x":"y"},"delay_ms":5}"#[..],
        br#"{"tasks":[{"kind":"a"},{"kind":"b","priority":3}],"atomic":true}"#,
        br#"{"queues":["mail",{"name":"q","weight":3}],"worker":"w","max":10,"wait_ms":0}"#,
        br#"{"acks":[{"token":"t","then":[{"queue":"q","kind":"k"}]}]}"#,
    ];
    let mut body = whole.choose(rng).unwrap().to_vec();
    for _ in 0..rng.random_range(1..5) {
        let at = rng.random_range(0..body.len());
        body[at] = rng.random();
    }
    // Whatever it still is, it is not JSON.
    body.push(0);
    body
}

fn wrong_token(rng: &mut StdRng) -> (Vec<u8>, bool) {
    let letters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let length = if rng.random() { 54 } else { rng.random_range(0..5_000) };
    let token: String = (0..length).map(|_| char::from(*letters.choose(rng).unwrap())).collect();
    let path = ["ack", "fail", "extend", "release", "progress"].choose(rng).unwrap();
    (post(&format!("/v1/claims/{path}"), format!(r#"{{"token":"{token}"}}"#).as_bytes()), true)
}

fn out_of_place(rng: &mut StdRng) -> (Vec<u8>, bool) {
    let call = h2::call("GET", "/livez", "application/json");
    let all = h2::END_HEADERS | h2::END_STREAM;
    let wrong = [
        frame(h2::HEADERS, all, 0, &call),
        frame(h2::HEADERS, all, 2, &call),
        frame(h2::DATA, h2::END_STREAM, 1, b"before its headers"),
        frame(h2::CONTINUATION, h2::END_HEADERS, 1, &call),
        [frame(h2::HEADERS, 0, 1, &call), frame(h2::PING, 0, 0, &[0; 8])].concat(),
        [frame(h2::HEADERS, all, 5, &call), frame(h2::HEADERS, all, 3, &call)].concat(),
        frame(h2::WINDOW_UPDATE, 0, 0, &[0; 4]),
        frame(h2::WINDOW_UPDATE, 0, 0, &0x7fff_ffffu32.to_be_bytes()).repeat(3),
        frame(h2::RST_STREAM, 0, 9, &[0; 4]),
        frame(h2::RST_STREAM, 0, 1, &[0; 3]),
        frame(h2::PUSH_PROMISE, h2::END_HEADERS, 1, &call),
        frame(h2::PRIORITY, 0, 1, &[0; 5]).repeat(200),
        [frame(h2::GOAWAY, 0, 0, &[0; 8]), frame(h2::HEADERS, all, 1, &call)].concat(),
        frame(h2::PING, 0, 1, &[0; 8]),
        [frame(h2::HEADERS, all, 1, &call), frame(h2::DATA, 0, 1, b"after its end")].concat(),
    ];
    ([h2::begin(), wrong.choose(rng).unwrap().clone()].concat(), true)
}

fn rapid_reset(rng: &mut StdRng) -> (Vec<u8>, bool) {
    let call = h2::call("POST", "/v1/claims", "application/json");
    let mut bytes = h2::begin();
    for n in 0..rng.random_range(10..300) {
        let stream = 2 * n + 1;
        bytes.extend(frame(h2::HEADERS, h2::END_HEADERS, stream, &call));
        bytes.extend(frame(h2::RST_STREAM, 0, stream, &8u32.to_be_bytes()));
    }
    (bytes, true)
}

fn settings_flood(rng: &mut StdRng) -> (Vec<u8>, bool) {
    let one = frame(h2::SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 100]);
    let giant = frame(h2::SETTINGS, 0, 0, &[0xee, 1, 0, 0, 0, 1].repeat(2_700));
    let flood = if rng.random() { one.repeat(rng.random_range(10..1_000)) } else { giant.repeat(5) };
    ([h2::begin(), flood].concat(), true)
}

fn wrong_settings(rng: &mut StdRng) -> (Vec<u8>, bool) {
    let wrong: [&[u8]; 6] = [
        &[0, 4, 0xff, 0xff, 0xff, 0xff],
        &[0, 5, 0, 0, 0, 1],
        &[0, 2, 0, 0, 0, 9],
        &[0, 1, 0xff, 0xff, 0xff, 0xff],
        &[0, 6, 0, 0, 0, 0],
        &[0, 4, 0, 0, 0],
    ];
    let settings = frame(h2::SETTINGS, 0, 0, wrong.choose(rng).unwrap());
    let call =
        frame(h2::HEADERS, h2::END_HEADERS | h2::END_STREAM, 1, &h2::call("GET", "/livez", "text/plain"));
    ([h2::PREFACE, &settings, &call].concat(), true)
}

fn continuations(rng: &mut StdRng) -> (Vec<u8>, bool) {
    let large = "v".repeat(16_000);
    let piece = h2::headers(&[("x-large", &large)]);
    let mut bytes = h2::begin();
    bytes.extend(frame(h2::HEADERS, 0, 1, &h2::call("GET", "/livez", "text/plain")));
    for _ in 0..rng.random_range(1..60) {
        // Empty ones cost a sender nothing.
        let piece = if rng.random() { &piece[..] } else { &[] };
        bytes.extend(frame(h2::CONTINUATION, 0, 1, piece));
    }
    (bytes, true)
}

fn grpc_length(rng: &mut StdRng) -> (Vec<u8>, bool) {
    let length = *[u32::MAX, 1 << 31, 32 << 20, (32 << 20) + 1, 1 << 24].choose(rng).unwrap();
    let message = [&[0], &length.to_be_bytes()[..], &random(rng, 100)].concat();
    (grpc(rng, &message), false)
}

fn grpc(rng: &mut StdRng, message: &[u8]) -> Vec<u8> {
    let method =
        ["Enqueue", "EnqueueMany", "EnqueueStream", "Work", "Claim", "Ack", "Settle", "Beat", "None"];
    grpc_to(method.choose(rng).unwrap(), message)
}

fn grpc_to(method: &str, message: &[u8]) -> Vec<u8> {
    let call = h2::call("POST", &format!("/windlass.v1.Windlass/{method}"), "application/grpc");
    let mut bytes = [h2::begin(), frame(h2::HEADERS, h2::END_HEADERS, 1, &call)].concat();
    for piece in message.chunks(16 * 1024) {
        bytes.extend(frame(h2::DATA, 0, 1, piece));
    }
    bytes.extend(frame(h2::DATA, h2::END_STREAM, 1, &[]));
    bytes
}

/// A greeting of a node of no cluster, then frames of every kind and length.
fn strangers_frames(rng: &mut StdRng) -> (Vec<u8>, bool) {
    let node = rng.random_range(2..200u8);
    // Versions 1 to 1, node, to node 1.
    let hello = [8, 1, 16, 1, 32, node & 0x7f, 50, 3, b'b', b':', b'1', 56, 1];
    let mut bytes = [&b"windlass"[..], &(hello.len() as u32).to_be_bytes(), &hello].concat();
    for _ in 0..rng.random_range(1..20) {
        let body = random(rng, 400);
        let length = if rng.random_ratio(1, 5) { rng.random() } else { body.len() as u32 + 12 };
        bytes.extend(length.to_be_bytes());
        bytes.extend([rng.random_range(0..40), rng.random_range(0..5), 0, rng.random_range(0..6)]);
        bytes.extend(rng.random::<u64>().to_be_bytes());
        bytes.extend(body);
    }
    (bytes, true)
}
