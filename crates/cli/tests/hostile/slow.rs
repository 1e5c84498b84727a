//! Connections that take their time: they are opened, begin to say something, and then say next to nothing.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::attack::connect;
use crate::h2::{self, frame};

/// Between two bytes.
const PAUSE: Duration = Duration::from_millis(500);

/// What a slow connection begins with, and what it goes on with, a byte at a time.
fn words(n: usize) -> (Vec<u8>, Vec<u8>) {
    let body = "POST /v1/queues/q/tasks HTTP/1.1\r\nhost: x\r\ncontent-length: 30000000\r\n\r\n{\"kind\":\"";
    let chunked =
        "POST /v1/queues/q/tasks HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n1000000\r\n";
    let call = h2::call("POST", "/windlass.v1.Windlass/EnqueueStream", "application/grpc");
    let unary = h2::call("POST", "/windlass.v1.Windlass/EnqueueMany", "application/grpc");
    let open = frame(h2::HEADERS, h2::END_HEADERS, 1, &call);
    let announced = frame(h2::DATA, 0, 3, &[0, 1, 0xff, 0xff, 0xff]);
    match n % 13 {
        // Nothing at all.
        0 => (Vec::new(), Vec::new()),
        1 => (b"GET /livez HTTP/1.1\r\nhost: x\r\nslow: ".to_vec(), b"a".repeat(1_000)),
        2 => (b"G".to_vec(), b"ET /livez HTTP/1.1\r\n".to_vec()),
        3 => (body.as_bytes().to_vec(), b"a".repeat(1_000)),
        4 => (chunked.as_bytes().to_vec(), b"a".repeat(1_000)),
        5 => (h2::PREFACE[..10].to_vec(), h2::PREFACE[10..20].to_vec()),
        6 => (h2::begin(), Vec::new()),
        7 => ([h2::begin(), open].concat(), frame(h2::PING, 0, 0, &[0; 8]).repeat(50)),
        8 => {
            let unary = frame(h2::HEADERS, h2::END_HEADERS, 3, &unary);
            ([h2::begin(), unary, announced].concat(), frame(h2::DATA, 0, 3, b"x").repeat(50))
        }
        // A head that goes on and on, and a frame that does not end.
        9 => {
            ([&b"GET /livez HTTP/1.1\r\nhost: x\r\nlarge: "[..], &b"a".repeat(300_000)].concat(), Vec::new())
        }
        10 => {
            ([h2::begin(), h2::announced(16_384, h2::DATA, 0, 1), b"a".repeat(16_000)].concat(), Vec::new())
        }
        // Asks for what is large, and lets nothing of it come.
        11 => {
            let (ask, flags) = (h2::call("GET", "/openapi.json", "x"), h2::END_HEADERS | h2::END_STREAM);
            let ask = |n: u32| frame(h2::HEADERS, flags, 2 * n + 1, &ask);
            let asks = (0..20).flat_map(ask).collect();
            ([h2::begin_without_window(), asks].concat(), frame(h2::PING, 0, 0, &[0; 8]).repeat(50))
        }
        // Asks for what is large, and reads none of it.
        _ => (b"GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n".repeat(20), Vec::new()),
    }
}

/// Opens so many, and keeps them open until this is dropped.
pub(crate) struct Slow {
    _open: JoinSet<()>,
}

impl Slow {
    pub(crate) async fn open(addr: SocketAddr, count: usize) -> Slow {
        let mut open = JoinSet::new();
        for n in 0..count {
            let mut stream = connect(addr, n).await.expect("there is a place for it");
            let (first, rest) = words(n);
            // The server may have had enough of it already.
            let _ = stream.write_all(&first).await;
            open.spawn(go_on(stream, rest));
        }
        Slow { _open: open }
    }
}

async fn go_on(mut stream: TcpStream, rest: Vec<u8>) {
    for byte in rest {
        tokio::time::sleep(PAUSE).await;
        if stream.write_all(&[byte]).await.is_err() {
            return;
        }
    }
    std::future::pending::<()>().await;
}
