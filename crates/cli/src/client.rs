//! A small HTTP/1.1 client: JSON in, JSON out, the next server when one is down.
//!
//! A call is sent again only where that cannot do harm: when no connection was made, when the server
//! said that it did nothing, or when the caller says that a repeat is safe (reads, and writes that carry
//! a token, a request id or a dedup key). A server that takes a request and says nothing is left as well, by
//! all safe calls that wait for it. Knows nothing of verbs; those are in the files named after them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Result;
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, USER_AGENT};
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::client::legacy::Client as Pool;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde::Serialize;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};

use crate::exit::{Exit, Failure};
use crate::json::Json;

/// No answer is larger than this; a list comes in pages.
const ANSWER_BYTES_MAX: usize = 256 * 1024 * 1024;
/// No problem is larger than this.
const PROBLEM_BYTES_MAX: usize = 64 * 1024;
/// A server that does not take a connection by then is down.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long all servers are tried again while they say that they cannot serve now.
const RETRY_BUDGET: Duration = Duration::from_secs(3);
/// How long one of several servers may say nothing, beyond what it was asked to wait, before the next is tried.
const SILENCE_MAX: Duration = Duration::from_secs(5);

/// Whether a call may be sent again when nobody knows what became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// It reads, or carries something by which the server knows it again.
    Safe,
    /// It would be done twice.
    Unsafe,
}

/// One request.
pub(crate) struct Call {
    method: Method,
    path: String,
    body: Option<Bytes>,
    repeat: Repeat,
    wait: Duration,
    within: Option<Duration>,
    each: Duration,
    retry: Duration,
}

impl Call {
    pub(crate) fn get(path: impl Into<String>) -> Call {
        Call::new(Method::GET, path, None, Repeat::Safe)
    }

    pub(crate) fn post(path: impl Into<String>, body: &impl Serialize, repeat: Repeat) -> Call {
        let body = serde_json::to_vec(body).expect("requests are plain data, which always becomes JSON");
        Call::new(Method::POST, path, Some(body.into()), repeat)
    }

    pub(crate) fn put(path: impl Into<String>, body: &impl Serialize) -> Call {
        let body = serde_json::to_vec(body).expect("requests are plain data, which always becomes JSON");
        Call::new(Method::PUT, path, Some(body.into()), Repeat::Safe)
    }

    pub(crate) fn delete(path: impl Into<String>) -> Call {
        Call::new(Method::DELETE, path, None, Repeat::Safe)
    }

    fn new(method: Method, path: impl Into<String>, body: Option<Bytes>, repeat: Repeat) -> Call {
        let (wait, each, retry) = (Duration::ZERO, SILENCE_MAX, RETRY_BUDGET);
        Call { method, path: path.into(), body, repeat, wait, within: None, each, retry }
    }

    /// The server was asked to wait this long before it answers.
    pub(crate) fn waiting(mut self, wait: Duration) -> Call {
        self.wait = wait;
        self
    }

    /// An answer later than this is of no use.
    pub(crate) fn within(mut self, within: Duration) -> Call {
        self.within = Some(within);
        self
    }

    /// One of several servers may say nothing for this long before the next is tried.
    pub(crate) fn each(mut self, each: Duration) -> Call {
        self.each = each;
        self
    }

    /// Each server is asked once, even if it says that it may serve in a moment.
    pub(crate) fn once(mut self) -> Call {
        self.retry = Duration::ZERO;
        self
    }
}

/// What one try at one server came to.
enum Try {
    Answer(Response<Incoming>),
    /// The server did nothing and may do it in a moment; so may another.
    NotNow(Failure),
    /// Nobody took the request.
    Down(Failure),
    /// It was taken and nothing was said for too long for one of several servers.
    Silent(Failure),
    /// It may have been done.
    Unknown(Failure),
    /// It was not done, and asking again changes nothing.
    No(Failure),
}

/// Talks to the first of its servers that answers, and stays with it.
pub(crate) struct Client {
    servers: Vec<Uri>,
    current: AtomicUsize,
    /// One for each server: rings when some call found it silent.
    left: Vec<watch::Sender<()>>,
    pool: Pool<HttpConnector, Full<Bytes>>,
    timeout: Duration,
}

impl Client {
    /// A client for a list of URLs, separated by commas.
    pub(crate) fn new(servers: &str, timeout: Duration) -> Result<Client> {
        let servers = servers.split(',').map(parse_server).collect::<Result<Vec<_>>>()?;
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
        connector.set_nodelay(true);
        let pool = Pool::builder(TokioExecutor::new()).build(connector);
        let left = servers.iter().map(|_| watch::Sender::new(())).collect();
        Ok(Client { servers, current: AtomicUsize::new(0), left, pool, timeout })
    }

    pub(crate) async fn get(&self, path: impl Into<String>) -> Result<Json> {
        self.call(Call::get(path)).await
    }

    /// Sends a call and reads its answer; a problem becomes a [`Failure`].
    pub(crate) async fn call(&self, call: Call) -> Result<Json> {
        let patience = call.within.unwrap_or(self.timeout) + call.wait;
        let deadline = Instant::now() + patience;
        let answer = self.send(&call, deadline).await?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect();
        let body = match timeout_at(deadline, body).await {
            Ok(Ok(body)) => body.to_bytes(),
            Ok(Err(e)) => {
                return Err(Failure::new(Exit::Failure, format!("the server's answer broke off: {e}")).into());
            }
            Err(_) => return Err(too_long(patience).into()),
        };
        if !status.is_success() {
            return Err(problem(status, &body).into());
        }
        if body.is_empty() {
            return Ok(Json::null());
        }
        Json::parse(&body).map_err(|e| {
            Failure::new(Exit::Failure, format!("the answer is not JSON ({e}): is this Windlass?")).into()
        })
    }

    /// This server says nothing, though it should: calls go to the next one, and so do safe ones that wait.
    fn leave(&self, server: usize) {
        self.pass(server);
        self.left[server].send_replace(());
    }

    /// The next call begins with the server after this one, unless it was moved on already.
    fn pass(&self, server: usize) {
        let next = (server + 1) % self.servers.len();
        let _ = self.current.compare_exchange(server, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Asks one server after the other until one answers.
    async fn send(&self, call: &Call, deadline: Instant) -> Result<Response<Incoming>> {
        let patience = Instant::now() + call.retry;
        let mut pause = Duration::from_millis(50);
        loop {
            // Whether waiting helps: an election takes a moment, a dead server stays dead.
            let (mut failure, mut passing) = (None, false);
            let first = self.current.load(Ordering::Relaxed);
            for at in (0..self.servers.len()).map(|n| (first + n) % self.servers.len()) {
                match self.try_at(at, call, deadline).await {
                    Try::Answer(answer) => return Ok(answer),
                    Try::NotNow(why) => (failure, passing) = (Some(why), true),
                    Try::Down(why) => failure = Some(why),
                    Try::Silent(why) => {
                        self.leave(at);
                        if call.repeat == Repeat::Unsafe || Instant::now() >= deadline {
                            return Err(why.into());
                        }
                        failure = Some(why);
                    }
                    Try::Unknown(why) if call.repeat == Repeat::Safe && Instant::now() < deadline => {
                        failure = Some(why)
                    }
                    Try::Unknown(why) | Try::No(why) => return Err(why.into()),
                }
                self.pass(at);
            }
            let again = Instant::now() + pause;
            if !passing || again > patience || again > deadline {
                return Err(failure.expect("there is at least one server").into());
            }
            sleep(pause).await;
            pause *= 2;
        }
    }

    /// One of several servers gets less time for a call that another can take over.
    fn limit(&self, call: &Call, deadline: Instant) -> Instant {
        match (self.servers.len(), call.repeat) {
            (2.., Repeat::Safe) => deadline.min(Instant::now() + call.each + call.wait),
            _ => deadline,
        }
    }

    async fn try_at(&self, at: usize, call: &Call, deadline: Instant) -> Try {
        let base = self.servers[at].to_string();
        let mut request = Request::builder()
            .method(&call.method)
            .uri(format!("{}{}", base.trim_end_matches('/'), call.path))
            .header(USER_AGENT, concat!("windlass-cli/", env!("CARGO_PKG_VERSION")));
        if call.body.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let request = match request.body(Full::new(call.body.clone().unwrap_or_default())) {
            Ok(request) => request,
            Err(e) => return Try::Unknown(Failure::usage(format!("{base}{} is no address: {e}", call.path))),
        };
        let (sent, mut left) = (Instant::now(), self.left[at].subscribe());
        let answer = timeout_at(self.limit(call, deadline), self.pool.request(request));
        let answer = tokio::select! {
            answer = answer => answer,
            // Another call found this server silent: no use in waiting for it as well.
            Ok(()) = left.changed(), if call.repeat == Repeat::Safe => {
                let message = format!("{base} says nothing: outcome unknown");
                return Try::Unknown(Failure::new(Exit::Timeout, message));
            }
        };
        match answer {
            Ok(Ok(answer)) if answer.status() == StatusCode::SERVICE_UNAVAILABLE => refused(answer).await,
            // It heard from no leader in time; another server may.
            Ok(Ok(answer)) if answer.status() == StatusCode::GATEWAY_TIMEOUT => {
                Try::Unknown(told_problem(answer).await)
            }
            Ok(Ok(answer)) => Try::Answer(answer),
            Ok(Err(e)) if e.is_connect() => {
                let message = format!("cannot reach {base}: {}: is a server running there?", root_cause(&e));
                Try::Down(Failure::new(Exit::Failure, message))
            }
            Ok(Err(e)) => {
                let message = format!("lost the connection to {base}: {}: outcome unknown", root_cause(&e));
                Try::Unknown(Failure::new(Exit::Failure, message))
            }
            Err(_) => Try::Silent(too_long(sent.elapsed())),
        }
    }
}

/// What a 503 means: asking again makes sense, unless it is this request that is too much.
async fn refused(answer: Response<Incoming>) -> Try {
    let failure = told_problem(answer).await;
    if failure.is("memory_full") { Try::No(failure) } else { Try::NotNow(failure) }
}

async fn told_problem(answer: Response<Incoming>) -> Failure {
    let status = answer.status();
    let body = Limited::new(answer.into_body(), PROBLEM_BYTES_MAX).collect().await;
    problem(status, &body.map(|body| body.to_bytes()).unwrap_or_default())
}

fn too_long(after: Duration) -> Failure {
    let after = after.as_secs_f64();
    Failure::new(
        Exit::Timeout,
        format!("no answer within {after:.1} s: outcome unknown; raise --timeout or ask again"),
    )
}

fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}

fn parse_server(text: &str) -> Result<Uri> {
    let text = text.trim();
    let wrong = |why: &str| {
        Failure::usage(format!("server {text:?}: {why}: write it like {}", crate::connection::SERVER_DEFAULT))
    };
    let with_scheme = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
    let uri: Uri = with_scheme.parse().map_err(|_| wrong("not a URL"))?;
    match uri.scheme_str() {
        Some("http") if uri.host().is_some_and(|host| !host.is_empty()) => Ok(uri),
        Some("https") => Err(wrong("this version speaks plain http only").into()),
        _ => Err(wrong("not an http URL").into()),
    }
}

/// Turns problem+json into one clear line and an exit code.
fn problem(status: StatusCode, body: &[u8]) -> Failure {
    let parsed: Value = serde_json::from_slice(body).unwrap_or_default();
    problem_of(status.as_u16(), &parsed)
}

/// The same for an error inside a list of results.
pub(crate) fn problem_of(status: u16, problem: &Value) -> Failure {
    let text = |field: &str| problem.get(field).and_then(Value::as_str).filter(|t| !t.is_empty());
    let code = text("code");
    let said = text("detail").or(text("title"));
    let message = match (said, code) {
        (Some(said), Some(code)) => format!("{said} ({code})"),
        (Some(said), None) => said.to_owned(),
        (None, Some(code)) => code.to_owned(),
        (None, None) => format!("the server answered {status}"),
    };
    Failure { exit: exit_of(status, code), code: code.map(str::to_owned), message }
}

fn exit_of(status: u16, code: Option<&str>) -> Exit {
    match (status, code) {
        (_, Some("not_leader" | "unavailable")) => Exit::NoLeader,
        (_, Some("timeout")) => Exit::Timeout,
        (400 | 405, _) => Exit::Usage,
        (401 | 403, _) => Exit::Denied,
        (404, _) => Exit::NotFound,
        (409 | 422, _) => Exit::Conflict,
        (503, None) => Exit::NoLeader,
        (408 | 504, _) => Exit::Timeout,
        _ => Exit::Failure,
    }
}

/// A path's segment or a query's value, with everything but plain characters escaped.
pub(crate) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for &byte in text.as_bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b':' => {
                out.push(byte as char)
            }
            _ => {
                use std::fmt::Write;
                let _ = write!(out, "%{byte:02X}");
            }
        }
    }
    out
}

/// A path with the parts of a query that were given.
pub(crate) fn with_query(path: &str, parts: &[(&str, Option<String>)]) -> String {
    let mut out = path.to_owned();
    let mut mark = '?';
    for (name, value) in parts {
        if let Some(value) = value {
            out.push(mark);
            out.push_str(name);
            out.push('=');
            out.push_str(&escaped(value));
            mark = '&';
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_http_urls_or_plain_addresses() {
        for (text, good) in [
            ("http://127.0.0.1:7420", true),
            ("localhost:7420", true),
            ("https://example.com", false),
            ("", false),
            ("ftp://x", false),
            ("http://", false),
        ] {
            assert_eq!(parse_server(text).is_ok(), good, "{text:?}");
        }
    }

    /// A server that answers every request with these bytes.
    async fn answering(reply: &'static str) -> String {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let _ = stream.read(&mut [0; 4096]).await;
                let _ = stream.write_all(reply.as_bytes()).await;
            }
        });
        address
    }

    #[tokio::test]
    async fn a_server_that_knows_no_outcome_is_followed_by_the_next_where_that_is_safe() {
        let unknown = "HTTP/1.1 504 Gateway Timeout\r\nconnection: close\r\ncontent-length: 18\r\n\r\n\
                       {\"code\":\"timeout\"}";
        let good = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}";
        let (first, second) = (answering(unknown).await, answering(good).await);
        for (servers, repeat, exit) in [
            (format!("{first},{second}"), Repeat::Safe, None),
            (format!("{first},{second}"), Repeat::Unsafe, Some(Exit::Timeout)),
            (first.clone(), Repeat::Safe, Some(Exit::Timeout)),
        ] {
            let client = Client::new(&servers, Duration::from_secs(10)).unwrap();
            let told = client.call(Call::post("/", &Value::Null, repeat)).await;
            let told = told.err().map(|e| e.downcast::<Failure>().unwrap());
            assert_eq!(told.as_ref().map(|failure| failure.exit), exit, "{servers} {repeat:?}");
            assert!(told.is_none_or(|failure| failure.is("timeout")), "{servers} {repeat:?}");
        }
    }

    #[test]
    fn problems_become_exit_codes() {
        for (status, code, exit) in [
            (400, "invalid_request", Exit::Usage),
            (403, "denied", Exit::Denied),
            (404, "unknown_queue", Exit::NotFound),
            (409, "stale_token", Exit::Conflict),
            (422, "dedup_mismatch", Exit::Conflict),
            (429, "queue_full", Exit::Failure),
            (503, "unavailable", Exit::NoLeader),
            (503, "memory_full", Exit::Failure),
            (504, "timeout", Exit::Timeout),
            (507, "disk_full", Exit::Failure),
        ] {
            assert_eq!(exit_of(status, Some(code)), exit, "{code}");
        }
    }

    #[test]
    fn a_query_takes_what_was_given_and_escapes_it() {
        let path = with_query(
            "/v1/tasks",
            &[("queue", Some("a b/ü".into())), ("kind", None), ("limit", Some("5".into()))],
        );
        assert_eq!(path, "/v1/tasks?queue=a%20b%2F%C3%BC&limit=5");
    }
}
