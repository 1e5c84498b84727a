//! A whole node on a disk in memory: what the faces may rely on.

#![allow(clippy::unwrap_used, reason = "tests")]

mod damage;
mod lifecycle;
mod look;
#[path = "../net/mod.rs"]
#[allow(dead_code, reason = "here nothing is cut")]
mod net;
mod queues;
mod restart;
mod room;
mod sessions;
mod status;
mod support;
mod waiting;
