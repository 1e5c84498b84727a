//! Every limit, by name. Each loop over what users send takes one of these.

use crate::time::Millis;

/// Shards that a cluster may have; twelve bits of an id, less 0.
pub const SHARDS_MAX: u16 = 1024;
/// Shards of a new cluster.
pub const SHARDS_DEFAULT: u16 = 4;

/// Queues of a cluster.
pub const QUEUES_MAX: u64 = 10_000;
/// Length of a queue's name.
pub const QUEUE_NAME_BYTES_MAX: usize = 128;
/// Length of a kind.
pub const KIND_BYTES_MAX: usize = 128;
/// Length of a worker's name.
pub const WORKER_NAME_BYTES_MAX: usize = 256;
/// Length of a dedup, order or unique key.
pub const KEY_BYTES_MAX: usize = 512;
/// Length of a request id.
pub const REQUEST_ID_BYTES_MAX: usize = 128;
/// Length of a content type.
pub const CONTENT_TYPE_BYTES_MAX: usize = 128;
/// Headers of one task.
pub const HEADERS_MAX: usize = 64;
/// Names and values of all headers of one task.
pub const HEADERS_BYTES_MAX: usize = 16 * 1024;
/// Length of an error's one line.
pub const ERROR_BYTES_MAX: usize = 4 * 1024;
/// Length of an error's detail, such as a backtrace. Longer ones are cut.
pub const DETAIL_BYTES_MAX: usize = 32 * 1024;
/// Length of a progress note.
pub const NOTE_BYTES_MAX: usize = 1024;
/// Length of a reason that a person gives for a cancel.
pub const REASON_BYTES_MAX: usize = 1024;

/// A whole request.
pub const REQUEST_BYTES_MAX: usize = 32 * 1024 * 1024;
/// A payload, unless the queue's policy says otherwise.
pub const PAYLOAD_BYTES_MAX_DEFAULT: u64 = 1024 * 1024;
/// The largest payload that a policy may allow.
pub const PAYLOAD_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// A task's output.
pub const OUTPUT_BYTES_MAX: usize = 1024 * 1024;
/// Things of which one request is made, such as outcomes and all their follow-ups.
pub const MESSAGE_ITEMS_MAX: usize = 100_000;
/// Headers and labels in one message of gRPC.
pub const MESSAGE_PAIRS_MAX: usize = 1_000_000;
/// Levels of nesting in JSON.
pub const JSON_DEPTH_MAX: usize = 128;
/// Tasks in one enqueue.
pub const ENQUEUE_TASKS_MAX: usize = 10_000;
/// Acks, fails, extends, releases or progress notes in one request.
pub const SETTLE_MAX: usize = 10_000;
/// Follow-ups of one ack.
pub const FOLLOW_UPS_MAX: usize = 1_000;
/// Queues in one claim.
pub const CLAIM_QUEUES_MAX: usize = 64;
/// Largest weight of a queue in a claim.
pub const WEIGHT_MAX: u32 = 1_000;
/// Tasks in one claim.
pub const CLAIM_MAX: u32 = 1_000;
/// How long a claim may wait.
pub const CLAIM_WAIT_MAX: Millis = Millis::secs(60);
/// Shortest hold.
pub const HOLD_MIN: Millis = Millis(100);
/// Longest hold.
pub const HOLD_MAX: Millis = Millis::hours(24);
/// Longest delay, backoff, retention or window: ten years.
pub const DURATION_MAX: Millis = Millis::hours(24 * 3_653);
/// Last priority; 0 is served first.
pub const PRIORITY_MAX: u8 = 9;
/// Priority of a task that names none.
pub const PRIORITY_DEFAULT: u8 = 5;
/// Attempts that a policy may allow.
pub const ATTEMPTS_MAX: u32 = 10_000;
/// Beats are at least this frequent.
pub const BEAT_MAX: Millis = Millis(1_000);
/// Claims that one session may list in a beat.
pub const BEAT_CLAIMS_MAX: usize = 10_000;
/// Slots of one worker.
pub const SLOTS_MAX: u32 = 10_000;
/// Labels of one worker.
pub const LABELS_MAX: usize = 64;
/// The largest number of a node.
pub const NODE_MAX: u64 = 0xffff;
/// Nodes of a cluster.
pub const NODES_MAX: usize = 64;
/// Length of a node's address.
pub const ADDRESS_BYTES_MAX: usize = 256;
/// Members of a group that vote; the other copies learn.
pub const VOTERS_MAX: usize = 3;
/// Sessions of the cluster; a node that knows as many takes no worker in.
pub const SESSIONS_MAX: usize = 100_000;
/// Sessions that a node takes from others' news: more than it would take itself, as nodes that do not hear
/// each other do not count together.
pub const SESSIONS_TOLD_MAX: usize = 2 * SESSIONS_MAX;
/// Bytes of tasks that wait to be pushed to one worker, but for a single larger task. What a claim brings beyond that
/// is given back at once: how large tasks are shows only when they are claimed.
pub const PUSH_WAITING_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Claims that wait on one node.
pub const WAITING_CLAIMS_MAX: usize = 100_000;

/// A lost worker's last beat is this old.
pub const SILENCE: Millis = Millis(2_500);
/// How long an outcome and a request id are remembered.
pub const OUTCOME_KEPT: Millis = Millis::secs(60);
/// Transitions that a task keeps.
pub const HISTORY_MAX: usize = 50;
/// Claims lost in a row that make a task a poison pill.
pub const POISON_AFTER_DEFAULT: u32 = 5;

/// Tasks looked at by one step of a list or of an action by filter.
pub const LIST_LOOKED_AT_MAX: usize = 10_000;
/// Tasks in one page.
pub const LIST_MAX: usize = 1_000;
/// Tasks in one page when the caller does not say.
pub const LIST_DEFAULT: usize = 100;
/// Changes made by one pulse.
pub const PULSE_MAX: u32 = 2_000;
/// Messages of the outbox delivered at once.
pub const OUTBOX_BATCH_MAX: usize = 500;

/// Commands in one log entry.
pub const ENTRY_COMMANDS_MAX: usize = 8_192;
/// Bytes of one log entry, but for a single larger command.
pub const ENTRY_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Jitter of a backoff, each way.
pub const JITTER_PERCENT: u64 = 20;
