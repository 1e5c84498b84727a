//! A whole node on a disk in memory: what the faces may rely on.

#![allow(clippy::unwrap_used, reason = "tests")]

mod lifecycle;
mod look;
mod queues;
mod restart;
mod room;
mod sessions;
mod status;
mod support;
mod waiting;
