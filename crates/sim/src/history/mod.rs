//! The record of a run: one JSON object per line, in no particular order.
//!
//! `docs/formats/history.md` tells what a recorder writes and what it may rely on. Next: `read.rs`.

mod call;
mod index;
mod read;
mod text;

pub use call::{
    Call, Claim, Counts, Deed, Depth, Enqueue, Got, Hold, OnTasks, Outcome, Settle, Then, Totals, Verb,
};
pub use index::{Indexes, InvalidIndexes};
pub use read::{Error, read};

use serde::{Deserialize, Serialize};

/// The newest form of a history that is understood.
pub const VERSION: u32 = 1;

/// One line.
// Nearly all of them are calls, and they are handed on one at a time: a box would save nothing.
#[allow(clippy::large_enum_variant)]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Line {
    /// What the run was.
    Run(Run),
    /// What a client asked, and what it heard.
    Call(Call),
    /// The rules of a queue during the run.
    Queue(Queue),
    /// A stretch in which nothing stood between a session and the leaders.
    Steady(Steady),
    /// What a replica's state hashes to.
    Hash(Hash),
    /// What a member of a group has promised, whenever that changes or is read from its disk.
    Vote(Vote),
    /// Who leads a group.
    Leader(Leader),
    /// A fault that fired.
    Fault(Fault),
    /// The run is over.
    End(End),
}

impl Line {
    /// The line as it stands in a file, without its end.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("a line has only texts and numbers")
    }
}

/// What the run was. It stands in every history, once or alike.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// Which form of a history this is.
    pub version: u32,
    /// For people: a seed, a commit.
    pub name: String,
    /// How many shards the cluster has.
    #[serde(default = "one")]
    pub shards: u16,
    /// Milliseconds since 1970 at microsecond 0 of the history. Without it no `run_at_ms` is checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wall_start_ms: Option<u64>,
    /// How far two leaders' wall clocks may be apart, or one may jump.
    #[serde(default = "wall_skew_default")]
    pub wall_skew_ms: u64,
    /// How much faster a node's monotonic clock may run than the history's, in millionths.
    #[serde(default = "drift_default")]
    pub drift_ppm: u64,
    /// The calls that were meant to be made; over many runs each must have succeeded once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<Verb>,
    /// The faults that were meant to fire; over many runs each must have done so once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<String>,
}

fn one() -> u16 {
    1
}

/// Each node's wall clock is held within 5 s of the median: two may be twice that apart.
fn wall_skew_default() -> u64 {
    10_000
}

fn drift_default() -> u64 {
    1_000
}

impl Run {
    /// A run of that name, all else as a line says that leaves it out.
    pub fn new(name: &str) -> Run {
        Run {
            version: VERSION,
            name: name.to_owned(),
            shards: one(),
            wall_start_ms: None,
            wall_skew_ms: wall_skew_default(),
            drift_ppm: drift_default(),
            calls: Vec::new(),
            faults: Vec::new(),
        }
    }
}

/// The rules of a queue. If they changed during the run: the loosest that were in force.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Queue {
    /// Its name.
    pub queue: String,
    /// Whether it lives in one shard, so that its keys hold in all of it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pinned: bool,
    /// Attempts of a task that says nothing itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempts: Option<u32>,
    /// Claims lost in a row that end a task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub poison_after: Option<u32>,
    /// How long an ended task stays readable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention_ms: Option<u64>,
    /// How many ended tasks stay readable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retained_max: Option<u64>,
    /// Whether a task that says nothing of it may end because of its age.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub age_max: bool,
}

/// A stretch in which the recorder vouches for a session: every beat reached every leader in time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Steady {
    /// Which session.
    pub session: String,
    /// From when.
    pub from_us: u64,
    /// Until when.
    pub until_us: u64,
}

/// What a replica's state hashes to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hash {
    /// Which node.
    pub node: u64,
    /// Which group; 0 is the catalog.
    pub group: u16,
    /// After which entry.
    pub index: u64,
    /// The hash, as text.
    pub hash: String,
}

/// A member's promise, in the order of the lines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vote {
    /// Which node.
    pub node: u64,
    /// Which of its lives: a node that lost its disk gets a new one.
    #[serde(default)]
    pub incarnation: u64,
    /// Which group.
    pub group: u16,
    /// The newest term it knows of.
    pub term: u64,
    /// To whom its vote of that term went.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub voted_for: Option<u64>,
    /// When.
    pub at_us: u64,
}

/// Who leads a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Leader {
    /// Which member.
    pub node: u64,
    /// Which group.
    pub group: u16,
    /// In which term.
    pub term: u64,
    /// When it was seen.
    pub at_us: u64,
}

/// A fault that fired.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// The word for it, as in [`Run::faults`].
    pub kind: String,
    /// When.
    pub at_us: u64,
    /// From then on two leaders' wall clocks may be so far apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wall_skew_ms: Option<u64>,
}

/// The run is over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct End {
    /// When.
    pub at_us: u64,
    /// Everything was healed, and workers went on until nothing waited: each task must have ended.
    #[serde(default)]
    pub drained: bool,
    /// Every task that was still there was read after the last change, as a `get`.
    #[serde(default)]
    pub listed: bool,
}
