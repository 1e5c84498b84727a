//! The connection to a cluster: any of several addresses, the next one when one is down.
//!
//! [`Client`] is a cheap handle; clones share one connection. What a call means is in `producer.rs` and `admin.rs`;
//! a worker has connections of its own (`stream.rs`).

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use rand::Rng as _;
use tokio::time::{Instant, sleep, timeout};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status};
use wire::grpc::windlass_client::WindlassClient;

use crate::enqueue_stream;
use crate::error::{Error, chain};

/// Where a server is, as the command line reads it too; and where when nobody says.
const SERVER_VARIABLE: &str = "WINDLASS_SERVER";
const SERVER_DEFAULT: &str = "http://127.0.0.1:7420";
/// How long one address may take to take a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// An address that has not answered by then is not waited for any more: the next one is tried beside it.
const NEXT_AFTER: Duration = Duration::from_millis(150);
/// How long a call may take when it does not wait for anything.
pub(crate) const CALL_TIMEOUT: Duration = Duration::from_secs(15);
/// How long a call looks for a server that does it, unless said.
const PATIENCE: Duration = Duration::from_secs(10);
/// The first pause between two tries, doubled each time.
const BACKOFF_MIN: Duration = Duration::from_millis(50);
/// The longest pause between two tries.
const BACKOFF_MAX: Duration = Duration::from_secs(1);
/// The largest answer that is taken: a page of tasks with their payloads.
const ANSWER_BYTES_MAX: usize = 256 * 1024 * 1024;
/// What may be on its way on one stream, and on one connection.
const STREAM_WINDOW_BYTES: u32 = 4 * 1024 * 1024;
const CONNECTION_WINDOW_BYTES: u32 = 16 * 1024 * 1024;
/// When a silent connection is asked whether somebody is there, and how long that may take. A worker's beats tell it
/// sooner, also those of an idle one, which a server wants every 30 s: thousands of them need not ask beside that.
const KEEP_ALIVE: Duration = Duration::from_secs(35);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(5);
/// The same for the connection that calls share: one of them must have time to be made elsewhere. Nothing is asked
/// while no call is under way.
const CALLS_KEEP_ALIVE: Duration = Duration::from_secs(1);
const CALLS_KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(2);

/// The calls of a server, on one connection.
pub(crate) type Grpc = WindlassClient<InterceptedService<Channel, Access>>;

/// A handle to a Windlass cluster: enqueue with it, hand it to a [`Worker`](crate::Worker), look and act with
/// [`admin`](Client::admin).
///
/// ```no_run
/// # async fn example() -> Result<(), windlass::Error> {
/// use windlass::Client;
///
/// let client = Client::connect("http://127.0.0.1:7420").await?;
/// // Several addresses: any of them serves, the next one when one is down.
/// let client = Client::connect(["http://10.0.0.1:7420", "http://10.0.0.2:7420"]).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Client {
    pub(crate) lines: Arc<Lines>,
    pub(crate) enqueues: Arc<enqueue_stream::Entrance>,
}

/// One or more addresses: `"http://a:7420"`, `"http://a:7420,http://b:7420"`, or a list of them.
pub trait Addresses {
    /// Each address.
    fn addresses(self) -> Vec<String>;
}

impl Addresses for &str {
    fn addresses(self) -> Vec<String> {
        self.split(',').map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect()
    }
}

impl Addresses for String {
    fn addresses(self) -> Vec<String> {
        self.as_str().addresses()
    }
}

impl Addresses for &String {
    fn addresses(self) -> Vec<String> {
        self.as_str().addresses()
    }
}

impl<S: AsRef<str>, const N: usize> Addresses for [S; N] {
    fn addresses(self) -> Vec<String> {
        self.iter().flat_map(|part| part.as_ref().addresses()).collect()
    }
}

impl<S: AsRef<str>> Addresses for Vec<S> {
    fn addresses(self) -> Vec<String> {
        self.iter().flat_map(|part| part.as_ref().addresses()).collect()
    }
}

impl<S: AsRef<str>> Addresses for &Vec<S> {
    fn addresses(self) -> Vec<String> {
        self.as_slice().addresses()
    }
}

impl<S: AsRef<str>> Addresses for &[S] {
    fn addresses(self) -> Vec<String> {
        self.iter().flat_map(|part| part.as_ref().addresses()).collect()
    }
}

/// How a client is set up.
#[derive(Clone, Debug)]
pub struct ClientBuilder {
    addresses: Vec<String>,
    access_token: Option<String>,
    patience: Duration,
}

impl ClientBuilder {
    /// The access token that goes with every call.
    pub fn access_token(mut self, token: impl Into<String>) -> ClientBuilder {
        self.access_token = Some(token.into());
        self
    }

    /// How long a call looks for a server that does it, over all addresses: 10 s unless said.
    pub fn patience(mut self, patience: Duration) -> ClientBuilder {
        self.patience = patience;
        self
    }

    /// Connects to the first address that answers.
    pub async fn connect(self) -> Result<Client, Error> {
        let client = self.build()?;
        client.lines.line().await?;
        Ok(client)
    }

    /// A client that connects when it is first used.
    pub fn connect_lazily(self) -> Result<Client, Error> {
        self.build()
    }

    fn build(self) -> Result<Client, Error> {
        if self.addresses.is_empty() {
            return Err(Error::Setup("there is no address: give one such as http://127.0.0.1:7420".into()));
        }
        let mut endpoints = Vec::with_capacity(self.addresses.len());
        for address in self.addresses {
            endpoints.push(endpoint(&address).map(|endpoint| (address, endpoint))?);
        }
        let access = match self.access_token {
            None => Access(None),
            Some(token) => Access(Some(format!("Bearer {token}").parse().map_err(|_| {
                Error::Setup("the access token holds characters that cannot be sent".into())
            })?)),
        };
        let first = rand::rng().random_range(0..endpoints.len());
        let now = tokio::sync::Mutex::new(Now { index: first, line: None, lines: 0 });
        let lines = Arc::new(Lines { endpoints, access, patience: self.patience, now });
        Ok(Client { enqueues: Arc::new(enqueue_stream::Entrance::new(lines.clone())), lines })
    }
}

/// The addresses of a variable, if it names some.
fn named(variable: Option<String>) -> Vec<String> {
    let named = variable.unwrap_or_default().addresses();
    if named.is_empty() { SERVER_DEFAULT.addresses() } else { named }
}

/// Where and how to connect to one address.
fn endpoint(address: &str) -> Result<Endpoint, Error> {
    let full = if address.contains("://") { address.to_owned() } else { format!("http://{address}") };
    if full.starts_with("https://") {
        return Err(Error::Setup(format!("{address}: https is not spoken yet: give an http:// address")));
    }
    let endpoint = Endpoint::from_shared(full)
        .map_err(|error| Error::Setup(format!("{address:?} is no address: {error}")))?;
    Ok(endpoint
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .http2_keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT))
}

impl Client {
    /// Connects to the first address that answers.
    pub async fn connect(addresses: impl Addresses) -> Result<Client, Error> {
        Client::builder(addresses).connect().await
    }

    /// Connects to where the variable `WINDLASS_SERVER` says, one address or several between commas, as the command
    /// line does; to `http://127.0.0.1:7420` without it.
    pub async fn from_env() -> Result<Client, Error> {
        Client::builder(named(std::env::var(SERVER_VARIABLE).ok())).connect().await
    }

    /// A client with more said than addresses.
    pub fn builder(addresses: impl Addresses) -> ClientBuilder {
        ClientBuilder { addresses: addresses.addresses(), access_token: None, patience: PATIENCE }
    }

    /// Asks any server, the next one when one is down, until it is answered or the patience is used up.
    pub(crate) async fn ask<R, F, Fut>(&self, repeat: Repeat, within: Duration, call: F) -> Result<R, Error>
    where
        F: Fn(Grpc) -> Fut,
        Fut: Future<Output = Result<Response<R>, Status>>,
    {
        let mut backoff = Backoff::default();
        // Patience counts from the first failure: a call may wait for long before it fails.
        let mut until = None;
        // Whether an earlier try may have been done.
        let mut may_be_done = false;
        loop {
            let began = Instant::now();
            let error = match self.lines.line().await {
                Err(error) => error,
                Ok(line) => {
                    let error = match timeout(within, call(line.grpc.clone())).await {
                        Ok(Ok(response)) => return Ok(response.into_inner()),
                        Ok(Err(status)) => Error::of_status(&status, &line.address),
                        Err(_) => Error::Unknown { reason: format!("no answer within {within:?}") },
                    };
                    if error.is_elsewhere() || matches!(error, Error::Unknown { .. }) {
                        self.lines.leave(&line).await;
                    }
                    error
                }
            };
            let is_safe = error.is_elsewhere() || (repeat == Repeat::Safe && error.is_unknown());
            let (now, pause) = (Instant::now(), backoff.next());
            if now - began > self.lines.patience {
                until = None;
            }
            if !is_safe || now + pause > *until.get_or_insert(now + self.lines.patience) {
                return Err(error.after_a_try(may_be_done));
            }
            may_be_done |= error.is_unknown();
            sleep(pause).await;
        }
    }
}

/// Whether a call may be made again when nobody knows whether it was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// A second time changes nothing.
    Safe,
    /// It might be done twice.
    Never,
}

/// The addresses of a cluster, and the connection that is in use.
pub(crate) struct Lines {
    endpoints: Vec<(String, Endpoint)>,
    access: Access,
    pub(crate) patience: Duration,
    now: tokio::sync::Mutex<Now>,
}

struct Now {
    /// Which address is tried first.
    index: usize,
    line: Option<Line>,
    /// How many connections there were.
    lines: u64,
}

/// One connection.
#[derive(Clone)]
pub(crate) struct Line {
    pub(crate) grpc: Grpc,
    pub(crate) address: String,
    /// Where it stands among the addresses.
    index: usize,
    /// Tells it from others to the same address.
    number: u64,
}

impl Lines {
    /// The connection in use, or a new one to the first address that answers.
    pub(crate) async fn line(&self) -> Result<Line, Error> {
        let mut now = self.now.lock().await;
        if let Some(line) = &now.line {
            return Ok(line.clone());
        }
        let watched = |endpoint: &Endpoint| {
            let endpoint = endpoint.clone().http2_keep_alive_interval(CALLS_KEEP_ALIVE);
            endpoint.keep_alive_timeout(CALLS_KEEP_ALIVE_TIMEOUT)
        };
        let mut line = self.dial(now.index, CONNECT_TIMEOUT, watched).await?;
        line.number = now.lines + 1;
        *now = Now { index: line.index, line: Some(line.clone()), lines: line.number };
        Ok(line)
    }

    /// Not this connection any more: the next address is tried first. Others may have left it already.
    pub(crate) async fn leave(&self, left: &Line) {
        let mut now = self.now.lock().await;
        if now.line.as_ref().is_some_and(|line| line.number == left.number) {
            *now = Now { index: self.after(left.index), line: None, lines: now.lines };
        }
    }

    /// A connection of its own to the first address that answers within so long, beginning with the `index`-th.
    pub(crate) async fn dial_from(&self, index: usize, within: Duration) -> Result<Line, Error> {
        self.dial(index, within, Endpoint::clone).await
    }

    async fn dial(
        &self,
        index: usize,
        within: Duration,
        set_up: impl Fn(&Endpoint) -> Endpoint,
    ) -> Result<Line, Error> {
        let mut reason = String::new();
        let order = (0..self.endpoints.len()).map(|step| (index + step) % self.endpoints.len());
        let mut dials = FuturesUnordered::new();
        for index in order {
            dials.push(self.dial_one(index, within, &set_up));
            // One that does not answer is not waited for: the next is tried beside it.
            match timeout(NEXT_AFTER, dials.next()).await {
                Ok(Some(Ok(line))) => return Ok(line),
                Ok(Some(Err(no))) => reason = no,
                Ok(None) | Err(_) => {}
            }
        }
        while let Some(dialled) = dials.next().await {
            match dialled {
                Ok(line) => return Ok(line),
                Err(no) => reason = no,
            }
        }
        let addresses: Vec<&str> = self.endpoints.iter().map(|(address, _)| &**address).collect();
        Err(Error::Unreachable { addresses: addresses.join(", "), reason })
    }

    async fn dial_one(
        &self,
        index: usize,
        within: Duration,
        set_up: impl Fn(&Endpoint) -> Endpoint,
    ) -> Result<Line, String> {
        let (address, endpoint) = &self.endpoints[index];
        match timeout(within, set_up(endpoint).connect()).await {
            Ok(Ok(channel)) => {
                let grpc = WindlassClient::with_interceptor(channel, self.access.clone())
                    .max_decoding_message_size(ANSWER_BYTES_MAX);
                Ok(Line { grpc, address: address.clone(), index, number: 0 })
            }
            Ok(Err(error)) => Err(chain(Some(&error))),
            Err(_) => Err(format!("no connection within {within:?}")),
        }
    }

    /// The index of the next address.
    pub(crate) fn after(&self, index: usize) -> usize {
        (index + 1) % self.endpoints.len()
    }

    /// An index to begin with: workers of one program spread over the nodes.
    pub(crate) fn any(&self) -> usize {
        rand::rng().random_range(0..self.endpoints.len())
    }
}

impl Line {
    /// Where it stands among the addresses.
    pub(crate) fn index(&self) -> usize {
        self.index
    }
}

/// Adds the access token to a call.
#[derive(Clone)]
pub(crate) struct Access(Option<MetadataValue<Ascii>>);

impl Interceptor for Access {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(value) = &self.0 {
            request.metadata_mut().insert("authorization", value.clone());
        }
        Ok(request)
    }
}

/// Pauses between tries: longer each time, each with a jitter, so that many do not come back at once.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    tries: u32,
}

impl Backoff {
    /// The pause before the next try.
    pub(crate) fn next(&mut self) -> Duration {
        let longest = BACKOFF_MAX.min(BACKOFF_MIN * 2u32.saturating_pow(self.tries.min(10)));
        self.tries += 1;
        longest.mul_f64(rand::rng().random_range(0.5..1.0))
    }

    /// It went well: the next pause is short again.
    pub(crate) fn reset(&mut self) {
        self.tries = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_in_many_forms() {
        let two = vec!["a:1".to_owned(), "b:2".to_owned()];
        assert_eq!("a:1, b:2,".addresses(), two);
        assert_eq!(["a:1", "b:2"].addresses(), two);
        assert_eq!(two.clone().addresses(), two);
        assert_eq!(two[..].addresses(), two);
    }

    #[test]
    fn the_variable_names_servers_as_for_the_command_line() {
        for (variable, expected) in [
            (None, vec![SERVER_DEFAULT]),
            (Some(""), vec![SERVER_DEFAULT]),
            (Some("http://a:1,http://b:2"), vec!["http://a:1", "http://b:2"]),
        ] {
            assert_eq!(named(variable.map(str::to_owned)), expected, "{variable:?}");
        }
    }

    #[test]
    fn pauses_grow_to_a_limit_and_no_two_are_the_same() {
        let mut backoff = Backoff::default();
        let pauses: Vec<Duration> = (0..40).map(|_| backoff.next()).collect();
        assert!(pauses[0] <= BACKOFF_MIN && pauses[0] >= BACKOFF_MIN / 2);
        assert!(pauses[20..].iter().all(|pause| *pause <= BACKOFF_MAX && *pause >= BACKOFF_MAX / 2));
        assert!(pauses[20..].windows(2).any(|pair| pair[0] != pair[1]));
    }

    /// An address at which nobody answers: its listener takes no more connections.
    async fn black_hole() -> (String, tokio::net::TcpListener, Vec<tokio::net::TcpStream>) {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = socket.listen(1).unwrap();
        let address = listener.local_addr().unwrap();
        let mut taken = Vec::new();
        while let Ok(connected) =
            timeout(Duration::from_millis(300), tokio::net::TcpStream::connect(address)).await
        {
            taken.push(connected.unwrap());
            assert!(taken.len() < 100, "the listener takes any number");
        }
        (address.to_string(), listener, taken)
    }

    #[tokio::test]
    async fn an_address_that_does_not_answer_is_not_waited_for() {
        let (hole, _listener, _taken) = black_hole().await;
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let endpoints = [hole, address.clone()].map(|address| {
            // Without the time that a connection may take otherwise.
            let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
            (address, endpoint)
        });
        let mut lines = Client::builder("a:1").connect_lazily().unwrap().lines;
        Arc::get_mut(&mut lines).into_iter().for_each(|lines| lines.endpoints = endpoints.to_vec());
        let line = timeout(Duration::from_secs(30), lines.dial_from(0, Duration::from_secs(120))).await;
        assert_eq!(line.expect("the second is tried beside the first").unwrap().address, address);
    }

    #[tokio::test]
    async fn what_is_no_address_is_said_at_once() {
        for (addresses, word) in [("", "no address"), ("https://a:1", "https"), ("http://", "address")] {
            let error = Client::connect(addresses).await.err().unwrap().to_string();
            assert!(error.contains(word), "{addresses}: {error}");
        }
        let error = Client::connect("http://127.0.0.1:1").await.err().unwrap();
        assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    }
}
