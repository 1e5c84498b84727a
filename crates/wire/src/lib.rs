//! Requests, replies and messages, and how they become bytes.
//!
//! Pure: no clock, no randomness, no IO, no async.

mod append;
pub mod catalog;
pub mod command;
pub mod entry;
pub mod envelope;
pub mod gossip;
#[cfg(feature = "grpc")]
pub mod grpc;
pub mod history;
pub mod http;
pub mod life;
pub mod new_task;
pub mod peer;
mod quick;
pub mod quiet;
pub mod raft;
mod rejection;
pub mod reply;
pub mod seal;
pub mod settings;
pub mod status;
#[cfg(feature = "token")]
pub mod token;

pub use append::{append, bytes_of};
