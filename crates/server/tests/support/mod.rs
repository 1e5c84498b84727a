//! A real node in a temporary directory behind a real socket, and a small client.
#![allow(dead_code, missing_docs, clippy::unwrap_used, unreachable_pub)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use node::{Node, NodeConfig, RealDisk, SystemClock, ThreadExecutor};
use serde_json::Value;
use server::{Server, ServerConfig};
use tokio::net::TcpStream;

pub struct Harness {
    pub addr: SocketAddr,
    pub node: Node,
    server: Option<Server>,
    _dir: tempfile::TempDir,
}

#[derive(Debug)]
pub struct Reply {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub bytes: Bytes,
    pub json: Value,
}

impl Reply {
    pub fn code(&self) -> &str {
        self.json["code"].as_str().unwrap_or_default()
    }

    #[track_caller]
    pub fn expect(self, status: u16) -> Reply {
        assert_eq!(self.status, status, "{}", String::from_utf8_lossy(&self.bytes));
        self
    }

    /// A refusal in the form of the contract.
    #[track_caller]
    pub fn expect_problem(&self, status: u16, code: &str) {
        let text = String::from_utf8_lossy(&self.bytes);
        assert_eq!((self.status.as_u16(), self.code()), (status, code), "{text}");
        assert_eq!(self.headers["content-type"], "application/problem+json", "{text}");
        assert_eq!(self.json["status"], status, "{text}");
        assert_eq!(self.json["type"], format!("urn:windlass:error:{code}"), "{text}");
        assert!(
            self.json["title"].is_string() && !self.json["detail"].as_str().unwrap().is_empty(),
            "{text}"
        );
    }

    pub fn index(&self) -> &str {
        self.headers["windlass-index"].to_str().unwrap()
    }
}

pub async fn start() -> Harness {
    start_with(|_| {}, |_| {}).await
}

pub async fn start_with(
    node: impl FnOnce(&mut NodeConfig),
    server: impl FnOnce(&mut ServerConfig),
) -> Harness {
    let dir = tempfile::tempdir().unwrap();
    let disk = RealDisk::new(dir.path()).unwrap();
    let mut config = NodeConfig::new(Arc::new(disk));
    config.disk_reserve_bytes = 1024 * 1024;
    node(&mut config);
    let clock = Arc::new(SystemClock::new());
    let node = Node::start(config, clock, Arc::new(ThreadExecutor)).await.unwrap();
    let mut config = ServerConfig { listen: "127.0.0.1:0".parse().unwrap(), ..ServerConfig::default() };
    server(&mut config);
    let server = Server::start(config, node.clone()).await.unwrap();
    Harness { addr: server.addr(), node, server: Some(server), _dir: dir }
}

impl Harness {
    pub async fn stop_server(&mut self) {
        self.server.take().unwrap().stop().await;
    }

    pub async fn stop(mut self) {
        if let Some(server) = self.server.take() {
            server.stop().await;
        }
        self.node.stop().await.unwrap();
    }

    pub async fn open(&self, request: Request<Full<Bytes>>) -> hyper::Response<Incoming> {
        let stream = TcpStream::connect(self.addr).await.unwrap();
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        sender.send_request(request).await.unwrap()
    }

    pub async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Reply {
        let mut request = Request::builder().method(method).uri(path).header("host", self.addr.to_string());
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(body.into())).unwrap();
        let work = async {
            let (head, body) = self.open(request).await.into_parts();
            let bytes = body.collect().await.unwrap().to_bytes();
            let json = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
            Reply { status: head.status, headers: head.headers, bytes, json }
        };
        tokio::time::timeout(Duration::from_secs(30), work).await.expect("an answer within 30 s")
    }

    pub async fn get(&self, path: &str) -> Reply {
        self.send(Method::GET, path, &[], Bytes::new()).await
    }

    pub async fn post(&self, path: &str, body: impl Into<Bytes>) -> Reply {
        self.send(Method::POST, path, &[], body).await
    }

    pub async fn put(&self, path: &str, body: impl Into<Bytes>) -> Reply {
        self.send(Method::PUT, path, &[], body).await
    }

    pub async fn delete(&self, path: &str) -> Reply {
        self.send(Method::DELETE, path, &[], Bytes::new()).await
    }

    /// Enqueues one task; its id.
    pub async fn enqueue(&self, queue: &str, body: &str) -> String {
        let reply = self.post(&format!("/v1/queues/{queue}/tasks"), body.to_owned()).await.expect(201);
        reply.json["id"].as_str().unwrap().to_owned()
    }

    /// Claims one task of a queue; the claim.
    pub async fn claim(&self, queue: &str) -> Value {
        let body = format!(r#"{{"queues":["{queue}"],"worker":"w","wait_ms":5000}}"#);
        let reply = self.post("/v1/claims", body).await.expect(200);
        assert_eq!(reply.json["claims"].as_array().unwrap().len(), 1, "{}", reply.json);
        reply.json["claims"][0].clone()
    }

    /// What must be the same when nothing changed.
    pub async fn state(&self) -> Value {
        let queues = self.get("/v1/queues").await.expect(200).json;
        let facts = queues["queues"].as_array().unwrap().iter().map(|queue| {
            serde_json::json!([queue["name"], queue["paused"], queue["depth"], queue["totals"]])
        });
        let claims = self.get("/v1/claims").await.expect(200).json["claims"].clone();
        serde_json::json!([facts.collect::<Vec<_>>(), claims])
    }

    /// Waits until a task is in a state.
    pub async fn until_state(&self, id: &str, state: &str) -> Value {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
        loop {
            let task = self.get(&format!("/v1/tasks/{id}")).await.expect(200).json;
            if task["state"] == state {
                return task;
            }
            assert!(tokio::time::Instant::now() < deadline, "{id} is {}, not {state}", task["state"]);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// A client of the gRPC face.
pub type Client = wire::grpc::windlass_client::WindlassClient<tonic::transport::Channel>;

impl Harness {
    pub async fn grpc(&self) -> Client {
        let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{}", self.addr)).unwrap();
        Client::new(endpoint.connect().await.unwrap()).max_decoding_message_size(64 * 1024 * 1024)
    }
}

/// The stable code of a refused call.
pub fn code_of(status: &tonic::Status) -> String {
    let code = status.metadata().get("windlass-code").map(|code| code.to_str().unwrap().to_owned());
    let bytes = status.metadata().get_bin("windlass-error-bin").unwrap().to_bytes().unwrap();
    let error = <wire::grpc::Error as prost::Message>::decode(bytes).unwrap();
    assert_eq!(code.as_deref(), Some(&*error.code), "{status:?}");
    assert_eq!(status.message(), error.message, "{status:?}");
    error.code
}
