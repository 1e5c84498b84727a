//! Requests, replies and messages, and how they become bytes.
//!
//! Pure: no clock, no randomness, no IO, no async.

pub mod catalog;
pub mod command;
pub mod entry;
pub mod envelope;
pub mod history;
pub mod http;
pub mod new_task;
pub mod peer;
pub mod settings;
