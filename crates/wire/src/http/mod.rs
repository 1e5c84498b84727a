//! The requests and replies of the HTTP face, one file per verb, for servers and clients alike.
//!
//! Field names here are the contract. Requests refuse unknown fields; replies may gain some, so whoever
//! reads a reply passes over what it does not know. A payload stays the bytes that came: nothing here may
//! parse one into a tree. Next: `server/src/http`, which turns these into calls of a node.

pub mod claim;
pub mod cluster;
pub mod enqueue;
pub mod event;
pub mod fresh;
pub mod members;
pub mod parse;
pub mod problem;
pub mod queue;
pub mod settle;
pub mod task;
pub mod text;
pub mod time;
pub mod value;
pub mod worker;

pub use parse::{Invalid, OneOrMany};
pub use problem::{Code, Problem};
pub use text::{Pairs, Text};
pub use time::Time;
pub use value::{Id, Ms, Outcome, Results, Session, State};
