//! One task as the shard holds it: small, because there are millions.

use model::command::UniqueUntil;
use model::{
    Digest, Elapsed, Fence, KeyHash, Millis, RetryOverride, SessionId, StateKind, TaskId, WallTime,
    WorkerName,
};

pub(super) use crate::effects::{NO_SLOT as NONE, Slot};
/// A queue's number, given once and never again.
pub(super) type QueueNo = u32;

/// A task's execution. Fields that few tasks need live in [`Extra`].
pub(super) struct Execution {
    pub id: TaskId,
    /// 64 bits of the envelope's digest.
    pub digest: u64,
    pub enqueued_at: WallTime,
    /// Waiting or claimed: since when it can, or could, be claimed. Ended: when, in elapsed time.
    pub since: u64,
    /// Delayed: due in wall time. Retrying: due in elapsed time. Claimed: the deadline in elapsed
    /// time. Ended: when, in wall time.
    pub when: u64,
    /// Its place in the list of its state.
    pub rank: i64,
    /// The last fence; 0 before the first claim.
    pub fence: Fence,
    pub extra: Option<Box<Extra>>,
    pub queue: QueueNo,
    pub kind_hash: u32,
    pub prev: Slot,
    pub next: Slot,
    /// Attempts used up.
    pub attempts: u16,
    /// Deadlines and closed sessions in a row.
    pub lost_in_row: u16,
    pub priority: u8,
    pub state: StateKind,
    /// What the last fence came to.
    pub last: Last,
    pub flags: Flags,
}

/// What the last fence came to: the same call again gets the same answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Last {
    /// Nothing yet, or it was freed.
    Open = 0,
    /// An ack ended the task.
    Acked = 1,
    /// A fail ended the task.
    FailedForGood = 2,
    /// A fail sent it into a backoff, due at `since`.
    FailedForNow = 3,
}

impl Last {
    pub(super) fn from_number(number: u8) -> Option<Last> {
        [Last::Open, Last::Acked, Last::FailedForGood, Last::FailedForNow].get(usize::from(number)).copied()
    }
}

/// Yes-or-no facts. The low ones are state; the others belong to this copy alone.
#[derive(Clone, Copy, Default)]
pub(super) struct Flags(u8);

impl Flags {
    /// The holder was asked to stop.
    pub(super) const CANCEL: u8 = 1;
    /// Its dedup key no longer refers to it.
    pub(super) const DEDUP_FREED: u8 = 2;
    /// Its unique key no longer refers to it.
    pub(super) const UNIQUE_FREED: u8 = 4;
    /// What a record holds.
    pub(super) const STATE: u8 = 7;
    /// Its claim ends at its deadline (see `deadlines.rs`).
    pub(super) const DEADLINE: u8 = 8;
    /// Changed since the last cut, in even and odd epochs.
    pub(super) const CHANGED: [u8; 2] = [16, 32];
    /// Not in the running hash.
    pub(super) const UNHASHED: u8 = 64;
    /// A checkpoint has it, so its end must be written too.
    pub(super) const STORED: u8 = 128;

    pub(super) fn from_state(bits: u8) -> Flags {
        Flags(bits & Flags::STATE)
    }
    pub(super) fn has(self, flag: u8) -> bool {
        self.0 & flag != 0
    }
    pub(super) fn set(&mut self, flag: u8) {
        self.0 |= flag;
    }
    pub(super) fn clear(&mut self, flag: u8) {
        self.0 &= !flag;
    }
    pub(super) fn state(self) -> u8 {
        self.0 & Flags::STATE
    }
}

/// What few tasks need.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Extra {
    pub order: Option<OrderPlace>,
    pub dedup: Option<DedupKey>,
    pub unique: Option<UniqueKey>,
    pub hold: Option<Millis>,
    pub retry: RetryOverride,
    pub expires_at: Option<WallTime>,
    pub retention: Option<Millis>,
    /// Blocked tasks: not ready before this, even when their turn comes.
    pub not_before: Option<WallTime>,
}

/// A task's place in the line of its order key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OrderPlace {
    pub key: KeyHash,
    /// Its place; grows with each enqueue and requeue.
    pub seq: u64,
    pub prev: Slot,
    pub next: Slot,
}

/// A task's dedup key, inside its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DedupKey {
    pub key: KeyHash,
    pub window: Millis,
    pub digest: Digest,
}

/// A task's unique key, inside its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UniqueKey {
    pub key: KeyHash,
    pub until: UniqueUntil,
}

/// Who holds a claimed task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ClaimRecord {
    pub worker: WorkerName,
    pub session: Option<SessionId>,
    pub hold: Millis,
    pub since: WallTime,
    pub progress: Option<Box<(u8, String)>>,
}

impl Execution {
    pub(super) fn deadline(&self) -> Elapsed {
        debug_assert_eq!(self.state, StateKind::Claimed);
        Elapsed(self.when)
    }

    pub(super) fn ended_at(&self) -> WallTime {
        debug_assert!(self.state.is_ended());
        WallTime::from_millis(self.when)
    }

    /// When an ended task may go, if it said so itself. Dead letters go by the queue's word.
    pub(super) fn own_retention_end(&self) -> Option<WallTime> {
        let retention = self.extra.as_ref()?.retention?;
        (self.state.is_ended() && self.state != StateKind::Dead).then(|| self.ended_at().after(retention))
    }

    pub(super) fn order_key(&self) -> Option<KeyHash> {
        Some(self.extra.as_ref()?.order?.key)
    }

    pub(super) fn expires_at(&self) -> Option<WallTime> {
        self.extra.as_ref()?.expires_at
    }

    /// Its dedup key, while it refers to this task.
    pub(super) fn dedup(&self) -> Option<DedupKey> {
        if self.flags.has(Flags::DEDUP_FREED) { None } else { self.extra.as_ref()?.dedup }
    }

    /// Its unique key, while it refers to this task.
    pub(super) fn unique(&self) -> Option<UniqueKey> {
        if self.flags.has(Flags::UNIQUE_FREED) { None } else { self.extra.as_ref()?.unique }
    }
}
