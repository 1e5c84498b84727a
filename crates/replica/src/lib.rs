//! One member of one group: propose, replicate, apply, pulse, checkpoint.
//!
//! The consensus engine is openraft; its types end in this crate. A [`Replica`] drives one
//! [`state_machine::Machine`], a shard or the catalog: commands come in through `propose`, become an
//! entry of the log, and are applied in the log's order on every member.
//!
//! What this crate must never do: change the machine other than by an entry of the log, read a clock while
//! applying, acknowledge what is not on the disks of a quorum, hold the machine's lock across an await.
//!
//! Follow a command: `propose` → `log_store` → `apply` → the answer. Beside it: `pulse` when time has
//! passed, `checkpoint` for what must outlive the log, `start` after a restart. To the other members it goes
//! through `network` and `pipeline`, over whatever [`Peers`] is; from them it comes through `receive`. A member
//! that lags too far gets a checkpoint (`transfer`); who is in the group is in `members`. When nothing happens the
//! group goes quiet (`quiet`).

mod apply;
mod checkpoint;
pub mod clock;
pub mod codec;
mod elections;
mod ending;
pub mod error;
mod hash_points;
mod holds;
mod keep;
mod log_store;
#[cfg(test)]
mod lone;
mod look;
mod machine_store;
mod members;
mod mend;
mod network;
mod news;
pub mod notice;
mod offload;
pub mod peers;
mod pipeline;
mod propose;
mod pulse;
mod quiet;
pub mod receive;
mod records;
pub mod replica;
mod shared;
mod start;
pub mod status;
mod tables;
mod transfer;
mod type_config;
mod witness;

pub use checkpoint::CHECKPOINT_INTERVAL_DEFAULT;
pub use clock::{Clock, Moved, SystemClock};
pub use codec::{Codec, Withheld};
pub use error::{Error, Result};
pub use hash_points::{HASH_EVERY, HashPoint};
pub use look::Kept;
pub use members::Members;
pub use notice::{Heard, Notice, Notices};
pub use peers::{NoPeers, Pace, PeerAnswer, Peers, Unreached};
pub use propose::{Applied, Piece};
pub use quiet::{WORD_EVERY, WORD_MAX, Word};
pub use receive::AppendSink;
pub use replica::{MakeMachine, Replica, ReplicaConfig};
pub use status::{Role, Status};
pub use witness::{KeptVote, Who, Witness};
