//! Three whole nodes in one process: what one is asked, another leads, and any of them may end.

#![allow(clippy::unwrap_used, reason = "in a test a failure is a panic")]

mod anywhere;
mod failover;
#[path = "../net/mod.rs"]
#[allow(dead_code, reason = "here no address is forgotten")]
mod net;
mod support;
