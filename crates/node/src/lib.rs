//! A whole node without its outer sockets: routing, waiting claims, sessions, outbox.
//!
//! [`Node`] is the handle that the faces call, with checked values ([`call`]) in and out. It knows no
//! HTTP, no JSON and no socket, and changes a shard only by a proposal to its replica. Clock and executor
//! come from outside.
//!
//! Follow one task: `router.rs` (enqueue: place, shard) → `route.rs` (to the leader, by `forward.rs` when that is
//! another node) → the replica → `notices.rs` → `waiting.rs` (offers
//! it to a waiting claim) → `settle.rs` (ack). Beside it: `sessions.rs` when a worker is lost, `outbox.rs` for
//! what one shard owes another, `start.rs` for up and down.

mod act;
mod agree;
mod ahead;
mod any_replica;
pub mod call;
mod cluster;
pub mod config;
mod elections;
mod ends;
pub mod error;
pub mod events;
mod follow;
mod forward;
mod freeing;
mod groups;
mod handler;
mod health;
mod held_clock;
mod ids;
pub mod info;
mod inner;
mod last_heard;
mod life;
mod lines;
mod link;
mod look;
mod member_peers;
mod mutes;
mod notices;
mod outbox;
mod place;
mod policies;
mod queues;
mod quiet;
mod rates;
mod reach;
mod registry;
mod repeat;
mod requests;
mod room;
mod route;
mod router;
mod session;
mod session_news;
mod session_stream;
mod sessions;
mod settle;
mod start;
pub mod stats;
mod status;
mod taken;
mod vouching;
mod waiting;
mod whereabouts;
mod why;
mod workers;

pub use cluster::VERSION;
pub use config::{NodeConfig, StartProgress, Tuning};
pub use error::Error;
pub use events::{EventStream, NodeEvent};
pub use info::{ClusterInfo, Health, NodeInfo, Slots, WhyLine};
pub use inner::Node;
pub use life::JoinHint;
pub use link::{Network, Stream};
pub use replica::{Clock, KeptVote, Members, Moved, SystemClock, Who, Witness};
pub use router::EnqueueResults;
pub use session_stream::{SessionBell, SessionStream};
pub use state_machine::view;
pub use stats::{Operation, Stats};
pub use storage::{
    Disk, Executor, LogOptions, LogStats, MemDisk, Panicked, RealDisk, ThreadExecutor, panicked, refuse,
};
