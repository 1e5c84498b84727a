//! The SDK against a whole server in this process.
#![allow(clippy::unwrap_used)]

mod connections;
mod inline;
mod lifecycle;
mod outcomes;
mod producing;
mod running;
mod sessions;
mod stopping;
mod support;
