//! Links: how this node and the others talk.
//!
//! One connection for each pair of nodes carries requests and answers both ways. This module knows frames,
//! connections and whether somebody is there; what a message means is its [`Handler`]'s. It must never wait
//! for a handler, nor keep more bytes than its bounds say.
//!
//! Start at `links.rs` (the handle), then `accept.rs` and `dial.rs` (how a connection comes to be, after the
//! greeting of `hello.rs`), `table.rs` (which ones there are, and what is told of them), `connection.rs` (what
//! one is) and `queue.rs` (what waits to be written on it).

mod accept;
mod complaints;
mod connection;
mod counters;
mod dial;
mod frame;
mod handler;
mod hello;
mod links;
mod network;
mod places;
mod queue;
mod table;
#[cfg(test)]
mod tests;

pub(crate) use handler::{Handler, ReplyTo, Unheeded};
pub(crate) use links::{Identity, LinkError, LinkEvent, LinkState, Links};
pub use network::{Network, Stream};
