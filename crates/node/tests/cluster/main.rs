//! Several nodes in one process, on disks and a network in memory: how a cluster is made, how nodes come and
//! go, who votes and who leads.

#![allow(clippy::unwrap_used, reason = "in a test a failure is a panic")]

#[path = "../net/mod.rs"]
#[allow(dead_code, reason = "here nobody is made mute")]
mod net;
mod support;

mod begin;
mod catalog;
mod change;
mod damage;
mod sessions;
