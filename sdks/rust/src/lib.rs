//! The Rust SDK of Windlass: typed tasks, producers, workers.
//!
//! ```no_run
//! use serde::{Deserialize, Serialize};
//! use windlass::{mins, Client, Context, Task, TaskError, Worker};
//!
//! #[derive(Serialize, Deserialize)]
//! struct Welcome { to: String }
//!
//! #[derive(Serialize, Deserialize)]
//! struct Receipt { message_id: String }
//!
//! impl Task for Welcome {
//!     const KIND: &'static str = "welcome";
//!     const QUEUE: &'static str = "mail";
//!     type Output = Receipt;
//! }
//!
//! async fn welcome(task: Welcome, cx: Context) -> Result<Receipt, TaskError> {
//!     println!("to {}, attempt {}", task.to, cx.attempt());
//!     Ok(Receipt { message_id: cx.id().to_string() })
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<(), windlass::Error> {
//!     let client = Client::connect("http://127.0.0.1:7420").await?;
//!     let to = "ada@example.com".to_owned();
//!     let handle = client.enqueue(Welcome { to }).delay(mins(5)).dedup_key("welcome:42").await?;
//!     println!("enqueued {}", handle.id());
//!     Worker::new(client).slots(32).handle(welcome).run_until_signal().await?;
//!     Ok(())
//! }
//! ```
//!
//! A task is done *at least* once: a worker can die between a handler's effect and its ack. What a worker that has
//! lost its task says does not count, and [`Context::fence`] is the number by which other systems can refuse it too.
//!
//! In the code, follow one task: `producer.rs` → `enqueue_stream.rs` → the server → `stream.rs` → `claims.rs` →
//! `worker.rs` → `handler.rs`. This crate speaks gRPC (`wire`) and knows nothing of what is inside a server. Tests
//! are easier with `windlass-testing`: a server in the process, and a clock that a test can move.

mod admin;
mod claims;
mod client;
mod context;
mod enqueue_stream;
mod error;
mod handler;
mod hello;
mod hub;
mod inline;
mod middleware;
mod outcome;
mod phase;
mod producer;
mod running;
mod status;
mod stream;
mod task;
mod worker;

pub use admin::{Admin, Events};
pub use client::{Addresses, Client, ClientBuilder};
pub use context::{Cancelled, Context, FromContext, Need, State};
pub use error::{Error, Refusal, TaskError, Verdict};
pub use handler::{Handler, IntoHandler};
pub use hub::Outcome;
pub use inline::{Inline, InlineRun};
pub use middleware::{EndedAs, Metrics, Middleware, Next};
pub use producer::{Enqueue, EnqueueRaw, Enqueued, Handle, NewTask, Retry, Until};
pub use running::RunningWorker;
pub use task::{Progress, RawTask, Task, TaskId, TaskState, hours, mins, secs};
pub use worker::{QueueChoice, Worker};

/// What most programs with tasks need, in one line: `use windlass::prelude::*`.
pub mod prelude {
    pub use crate::{
        Client, Context, FromContext, IntoHandler, NewTask, State, Task, TaskError, TaskState, Worker, hours,
        mins, secs,
    };
}

/// The messages of gRPC, as [`Admin`] answers with them.
pub use wire::grpc as proto;

/// The code of the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
