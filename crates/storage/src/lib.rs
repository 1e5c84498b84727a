//! The log and the checkpoints of a node, on a [`Disk`].
//!
//! One [`Log`] per node serves all groups: entries, votes, truncations and purges are records of the same
//! ordered files, and one synced write completes all that gathered while the last one ran. One
//! [`CheckpointStore`] per group holds what outlives the log. Formats: `docs/formats`.
//!
//! What this crate must never do: acknowledge what is not on the disk, drop damaged bytes in silence, go on
//! after a failed sync, know what an entry means, or touch a file other than through [`Disk`].
//!
//! Next: `log.rs` for what a caller may rely on, `writer.rs` for the hot path, `recovery.rs` for a restart,
//! `checkpoint.rs` for what is kept beside the log.

pub mod batch;
pub mod check;
pub mod checkpoint;
mod direct;
pub mod disk;
pub mod error;
pub mod executor;
mod group_index;
pub mod group_log;
mod guard;
pub mod lock;
pub mod log;
pub mod mem_disk;
mod mem_file;
mod pool;
mod queue;
mod record;
mod recovery;
mod redb_file;
pub mod reserve;
mod scan;
mod segment;
mod spool;
pub mod stats;
mod table;
mod writer;

pub use batch::Batch;
pub use checkpoint::{Amend, CheckpointStore, Next, Rows, Snapshot};
pub use disk::{Disk, DiskFile, Open, RealDisk};
pub use error::{Error, Result};
pub use executor::{Executor, InlineExecutor, ThreadExecutor, Work};
pub use group_log::{Done, GroupLog, GroupState, LogEntry, LogId};
pub use guard::{LAST_WORDS, Panicked, panicked, refuse};
pub use lock::DirLock;
pub use log::{FATAL_EXIT_CODE, Log, LogOptions, OnFatal, Recovered, RecoveredGroup, TornTail};
pub use mem_disk::MemDisk;
pub use reserve::{Reserve, RoomState};
pub use spool::{OnSpooled, Spooled, Takes, read_spooled};
pub use stats::LogStats;

/// The log's directory, below the data directory.
pub const LOG_DIR: &str = "log";
/// The directory of the checkpoints, below the data directory.
pub const CHECKPOINT_DIR: &str = "shards";
/// The directory of checkpoints on their way to or from other members.
pub const TRANSFER_DIR: &str = "transfer";
/// The file whose lock keeps a second process out.
pub const LOCK_FILE: &str = "LOCK";
/// The file that holds the disk's reserve.
pub const RESERVE_FILE: &str = "reserve";

/// Where the checkpoint of a group is: `shards/<group>.redb`.
pub fn checkpoint_path(group: model::GroupId) -> std::path::PathBuf {
    std::path::Path::new(CHECKPOINT_DIR).join(format!("{group}.redb"))
}
