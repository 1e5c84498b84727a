//! The messages and services of `proto/windlass/v1/windlass.proto`, generated: the file says what each means.
//!
//! Next: `server/src/grpc`, which turns these into calls of a node.

pub mod codec;
pub mod items;
pub mod streams;

mod generated {
    #![allow(missing_docs, clippy::all, clippy::unwrap_used, unreachable_pub)]

    tonic::include_proto!("windlass.v1");
}

pub use generated::*;

/// The server's side of the services: the same messages, but for those in `streams`.
pub mod served {
    #![allow(missing_docs, clippy::all, clippy::unwrap_used, unreachable_pub)]

    include!(concat!(env!("OUT_DIR"), "/served/windlass.v1.rs"));
}

/// The description of all of it, for reflection.
pub const DESCRIPTOR: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/windlass.v1.bin"));
