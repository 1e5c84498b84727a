//! Entries and their commands as bytes: what goes in comes out, what came out once comes out for ever,
//! and what is no entry is an error.

#![allow(clippy::unwrap_used, reason = "in a test a failure is a panic")]

use bytes::{Bytes, BytesMut};
use model::catalog::{CatalogCommand, ClusterFacts, NodeAddresses};
use model::command::{
    Ack, Claim, ClaimById, ClaimQueue, Dedup, Fail, OnTask, OutboxMessage, Unique, UniqueUntil,
};
use model::limits::PRIORITY_MAX;
use model::{
    Command, Digest, Elapsed, Event, Failure, Fence, FollowUp, FreedReason, FreedTo, GroupId, KeyHash,
    Millis, NewTask, NodeId, OnExhausted, QueueName, QueuePolicy, QueueSettings, Recovery, RetryOverride,
    RetryPolicy, SessionId, ShardId, Spread, Start, StateKind, TaskId, WallTime, Wishes, WorkerName,
};
use proptest::prelude::*;
use prost::Message;
use wire::catalog::CatalogMessage;
use wire::command::CommandMessage;
use wire::entry::{self, Entry, Malformed};
use wire::history::{KeptMessage, LineMessage};

fn shard(number: u16) -> ShardId {
    ShardId::new(number).unwrap()
}

fn task_id(n: u64) -> TaskId {
    TaskId::new(shard(3), WallTime::from_millis(1_763_208_000_000 + n), n)
}

fn queue(name: &str) -> QueueName {
    QueueName::new(name).unwrap()
}

fn worker(name: &str) -> WorkerName {
    WorkerName::new(name).unwrap()
}

fn plain_task() -> NewTask {
    NewTask {
        id: task_id(1),
        queue: queue("mail"),
        kind_hash: 0xdead_beef,
        digest: Digest(7),
        priority: 5,
        wishes: None,
        envelope: Bytes::from_static(b"envelope"),
    }
}

fn full_task() -> NewTask {
    let wishes = Wishes {
        start: Start::At(WallTime::from_millis(1_800_000_000_000)),
        order_key: Some(KeyHash(u128::MAX)),
        dedup: Some(Dedup { key: KeyHash(0), window: Millis::mins(15) }),
        unique: Some(Unique { key: KeyHash(1 << 100), until: UniqueUntil::Claimed }),
        hold: Some(Millis::secs(30)),
        retry: RetryOverride {
            attempts: Some(3),
            base: Some(Millis(0)),
            cap: Some(Millis::mins(1)),
            age_max: Some(Millis::hours(1)),
        },
        expires_in: Some(Millis::hours(2)),
        retention: Some(Millis(0)),
    };
    NewTask { wishes: wishes.boxed(), ..plain_task() }
}

fn full_settings() -> QueueSettings {
    QueueSettings {
        policy: QueuePolicy {
            hold: Millis::secs(7),
            retry: RetryPolicy { attempts: 2, base: Millis(5), cap: Millis(50), age_max: Some(Millis(500)) },
            retention: Millis(1),
            retained_max: 2,
            dead_max: 3,
            dead_retention: Millis(4),
            dedup_keys_max: 5,
            tasks_max: Some(6),
            payload_bytes_max: 7,
            recovery: Recovery::Manual,
            freed_to: FreedTo::Back,
            on_exhausted: OnExhausted::Discard,
            spread: Spread::Pinned,
            poison_after: 8,
        },
        paused: true,
        version: 9,
    }
}

/// One of each, with every field set somewhere. The order is the fixture's: add at the end.
fn commands() -> Vec<(&'static str, Command)> {
    let on = OnTask { task: task_id(4), fence: Some(Fence(11)) };
    vec![
        ("enqueue", Command::Enqueue { tasks: vec![plain_task(), full_task()], atomic: true }),
        (
            "claim",
            Command::Claim(Claim {
                queues: vec![
                    ClaimQueue { name: queue("mail"), weight: 3 },
                    ClaimQueue { name: queue("a.b_c-d:e"), weight: 0 },
                ],
                worker: worker("host-1:4711"),
                session: Some(SessionId(42)),
                max: 100,
                hold: Some(Millis(500)),
                request: Some(KeyHash(9)),
            }),
        ),
        (
            "claim_by_id",
            Command::ClaimById(ClaimById {
                task: task_id(2),
                worker: worker("é"),
                session: None,
                hold: None,
                request: None,
            }),
        ),
        (
            "ack",
            Command::Ack(Ack {
                task: task_id(3),
                fence: Fence(u64::MAX),
                output: Bytes::from_static(b"{\"ok\":true}"),
                then: vec![FollowUp { shard: shard(1_024), task: plain_task() }],
            }),
        ),
        (
            "fail",
            Command::Fail(Fail {
                task: task_id(3),
                fence: Fence(1),
                error: "boom".into(),
                detail: "at line 1".into(),
                retry_in: Some(Millis(0)),
                fatal: true,
            }),
        ),
        ("extend", Command::Extend { task: task_id(3), fence: Fence(1), hold: Some(Millis(9)) }),
        ("release", Command::Release { task: task_id(3), fence: Fence(1), delay: Millis(9) }),
        (
            "progress",
            Command::Progress { task: task_id(3), fence: Fence(1), percent: 100, note: "half".into() },
        ),
        ("put_back", Command::PutBack(on)),
        ("discard", Command::Discard(OnTask { fence: None, ..on })),
        ("cancel", Command::Cancel { task: task_id(3), reason: "by hand".into() }),
        ("requeue", Command::Requeue(on)),
        ("purge", Command::Purge { queue: queue("mail") }),
        (
            "end_session",
            Command::EndSession {
                worker: worker("w"),
                session: SessionId(u128::MAX),
                reason: FreedReason::Silent,
            },
        ),
        ("set_queue", Command::SetQueue { queue: queue("mail"), settings: full_settings() }),
        ("drop_queue", Command::DropQueue { queue: queue("mail"), version: 10 }),
        (
            "deliver",
            Command::Deliver {
                source: shard(2),
                messages: vec![OutboxMessage { seq: 12, task: plain_task() }],
            },
        ),
        ("delivered", Command::Delivered { target: shard(2), upto: 12 }),
        ("pulse", Command::Pulse { limit: 2_000 }),
    ]
}

fn addresses(n: u64) -> NodeAddresses {
    NodeAddresses { peer: format!("10.0.0.{n}:7421"), http: format!("10.0.0.{n}:7420") }
}

fn catalog_commands() -> Vec<(&'static str, CatalogCommand)> {
    vec![
        ("init", CatalogCommand::Init(ClusterFacts { cluster_id: 5, shards: 4, token_key: [0xab; 32] })),
        ("set_queue", CatalogCommand::SetQueue { queue: queue("mail"), settings: full_settings() }),
        ("delete_queue", CatalogCommand::DeleteQueue { queue: queue("mail") }),
        (
            "found",
            CatalogCommand::Found {
                facts: ClusterFacts { cluster_id: 1 << 100, shards: 4, token_key: [0xcd; 32] },
                nodes: vec![(NodeId(1), addresses(1)), (NodeId(65_535), addresses(2))],
            },
        ),
        ("add_node", CatalogCommand::AddNode { node: NodeId(4), nonce: u128::MAX, addresses: addresses(4) }),
        ("set_node", CatalogCommand::SetNode { node: NodeId(4), incarnation: 3, addresses: addresses(5) }),
        ("leave", CatalogCommand::Leave { node: NodeId(4) }),
        ("remove_node", CatalogCommand::RemoveNode { node: NodeId(4), incarnation: 3 }),
        (
            "set_voters",
            CatalogCommand::SetVoters { group: GroupId(2), nodes: vec![NodeId(1), NodeId(4)], version: 9 },
        ),
    ]
}

fn events() -> Vec<(&'static str, Event)> {
    let w = || worker("w");
    vec![
        ("enqueued", Event::Enqueued { state: StateKind::Blocked }),
        ("ready", Event::BecameReady),
        ("delayed", Event::BecameDelayed),
        ("claimed", Event::Claimed { worker: w(), attempt: 2, fence: Fence(3) }),
        ("freed", Event::Freed { worker: w(), reason: FreedReason::PutBack, state: StateKind::Ready }),
        (
            "failed",
            Event::Failed {
                worker: w(),
                state: StateKind::Retrying,
                failure: Box::new(Failure { error: "boom".into(), retry_in: Millis(1_000) }),
            },
        ),
        ("acked", Event::Acked { worker: w() }),
        ("cancel_requested", Event::CancelRequested),
        ("ended", Event::Ended { state: StateKind::Expired, reason: "too old".into() }),
        ("requeued", Event::Requeued { state: StateKind::Ready }),
    ]
}

fn entry_of(messages: &[impl Message]) -> Bytes {
    let mut part = BytesMut::new();
    messages.iter().for_each(|message| entry::push_command(message, &mut part));
    let part = part.freeze();
    entry::assemble(Elapsed(1_234), WallTime::from_millis(1_763_208_000_123), [&part[..]].into_iter())
}

fn commands_of(bytes: Bytes) -> Result<Vec<Bytes>, Malformed> {
    match Entry::decode(bytes)? {
        Entry::Commands(commands) => Ok(commands.commands),
        Entry::Blank | Entry::Membership(_) => Err(Malformed::Value("kind")),
    }
}

/// Everything that has a fixture: a name, the bytes written today.
fn written_today() -> Vec<(String, Bytes)> {
    let mut all = Vec::new();
    for (name, command) in commands() {
        all.push((format!("shard/{name}"), entry_of(&[CommandMessage::from(&command)])));
    }
    for (name, command) in catalog_commands() {
        all.push((format!("catalog/{name}"), entry_of(&[CatalogMessage::from(&command)])));
    }
    let lines = events().into_iter().zip(7..);
    let history =
        lines.map(|((_, event), n)| LineMessage::new(WallTime::from_millis(n), n, &event)).collect();
    let kept = KeptMessage {
        envelope: Some(Bytes::from_static(b"envelope")),
        output: Some(Bytes::new()),
        detail: Some("at line 1".into()),
        history,
    };
    all.push(("kept".into(), kept.encode_to_vec().into()));
    all.push(("blank".into(), entry::encode_blank()));
    let membership = entry::Membership {
        voters: vec![entry::Voters { ids: vec![1, 2, 3] }],
        members: vec![entry::Member { id: 1, address: "10.0.0.1:7420".into() }],
    };
    all.push(("membership".into(), entry::encode_membership(&membership)));
    let vote = entry::Vote { term: 3, member: 1, committed: true };
    all.push(("vote".into(), vote.encode_to_vec().into()));
    let head = entry::CheckpointHead {
        applied: Some(entry::LogId { term: 3, index: 77 }),
        membership_at: Some(entry::LogId { term: 0, index: 0 }),
        membership: Some(membership),
        hash_high: 1,
        hash_low: u64::MAX,
    };
    all.push(("head".into(), head.encode_to_vec().into()));
    all
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Bytes {
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap()).collect()
}

/// The bytes of format version 1. Never changed: a change of format adds a file.
const FIXTURE: &str = include_str!("fixtures/entry-v1.txt");

fn fixture(name: &str) -> Bytes {
    let line = FIXTURE.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    from_hex(line.unwrap_or_else(|| panic!("no fixture {name}")))
}

#[test]
fn what_was_written_once_decodes_for_ever() {
    for (name, command) in commands() {
        let bytes = commands_of(fixture(&format!("shard/{name}"))).unwrap();
        assert_eq!(wire::command::decode(bytes[0].clone()), Ok(command), "{name}");
    }
    for (name, command) in catalog_commands() {
        let bytes = commands_of(fixture(&format!("catalog/{name}"))).unwrap();
        assert_eq!(wire::catalog::decode(bytes[0].clone()), Ok(command), "{name}");
    }
    let kept = KeptMessage::decode(fixture("kept")).unwrap();
    assert_eq!(kept.envelope.as_deref(), Some(&b"envelope"[..]));
    for ((name, event), line) in events().into_iter().zip(&kept.history) {
        assert_eq!(line.event(), Ok(event), "{name}");
    }
    assert_eq!(Entry::decode(fixture("blank")), Ok(Entry::Blank));
    assert!(matches!(Entry::decode(fixture("membership")), Ok(Entry::Membership(_))));
    assert_eq!(entry::Vote::decode(fixture("vote")).unwrap().term, 3);
    let head = entry::CheckpointHead::decode(fixture("head")).unwrap();
    assert_eq!((head.applied.unwrap().index, head.hash()), (77, 1 << 64 | u128::from(u64::MAX)));
}

#[test]
fn the_bytes_of_version_1_have_not_changed() {
    let today = written_today();
    // A new kind is added to the fixture by hand, from what this says.
    let lines: String = today.iter().map(|(name, bytes)| format!("{name} {}\n", to_hex(bytes))).collect();
    assert_eq!(lines, FIXTURE);
}

#[test]
fn stamps_and_commands_come_back_in_order() {
    let all = commands();
    let messages: Vec<_> = all.iter().map(|(_, command)| CommandMessage::from(command)).collect();
    let Ok(Entry::Commands(entry)) = Entry::decode(entry_of(&messages)) else { panic!("no commands") };
    assert_eq!(entry.elapsed(), Elapsed(1_234));
    assert_eq!(entry.wall(), WallTime::from_millis(1_763_208_000_123));
    let back: Vec<_> =
        entry.commands.into_iter().map(|bytes| wire::command::decode(bytes).unwrap()).collect();
    assert_eq!(back, all.into_iter().map(|(_, command)| command).collect::<Vec<_>>());
}

#[test]
fn an_envelope_shares_its_memory_with_the_entry() {
    let command = Command::Enqueue { tasks: vec![plain_task()], atomic: false };
    let entry = entry_of(&[CommandMessage::from(&command)]);
    let range = entry.as_ptr() as usize..entry.as_ptr() as usize + entry.len();
    let bytes = commands_of(entry.clone()).unwrap();
    let Ok(Command::Enqueue { tasks, .. }) = wire::command::decode(bytes[0].clone()) else {
        panic!("not an enqueue")
    };
    assert!(range.contains(&(tasks[0].envelope.as_ptr() as usize)));
}

#[test]
fn what_is_no_entry_is_an_error() {
    for (what, bytes) in [
        ("empty", &[][..]),
        ("a kind of the future", &[9, 1, 2]),
        ("blank with a body", &[entry::KIND_BLANK, 1]),
        ("commands cut short", &[entry::KIND_COMMANDS, 0x1a, 0x7f, 1]),
        ("membership of noise", &[entry::KIND_MEMBERSHIP, 0xff, 0xff, 0xff]),
    ] {
        assert!(Entry::decode(Bytes::copy_from_slice(bytes)).is_err(), "{what}");
    }
    assert_eq!(wire::command::decode(Bytes::new()), Err(Malformed::Unknown("command to a shard")));
    assert_eq!(wire::catalog::decode(Bytes::new()), Err(Malformed::Unknown("command to the catalog")));
    // A task id without a shard in it, a queue without a name.
    assert!(wire::command::decode(Bytes::from_static(&[0x32, 0])).is_err());
    assert!(wire::command::decode(Bytes::from_static(&[0x6a, 0])).is_err());
}

fn any_name() -> impl Strategy<Value = QueueName> {
    "[a-zA-Z0-9._:-]{1,40}".prop_map(|name| queue(&name))
}

fn any_worker() -> impl Strategy<Value = WorkerName> {
    "[a-zé0-9 ]{1,40}".prop_map(|name| worker(&name))
}

fn any_task_id() -> impl Strategy<Value = TaskId> {
    (1u16..=1_024, any::<u64>(), any::<u64>())
        .prop_map(|(number, wall, random)| TaskId::new(shard(number), WallTime::from_millis(wall), random))
}

fn any_bytes() -> impl Strategy<Value = Bytes> {
    proptest::collection::vec(any::<u8>(), 0..300).prop_map(Bytes::from)
}

fn any_millis() -> impl Strategy<Value = Millis> {
    any::<u64>().prop_map(Millis)
}

fn any_key() -> impl Strategy<Value = KeyHash> {
    any::<u128>().prop_map(KeyHash)
}

fn any_task() -> impl Strategy<Value = NewTask> {
    let start = prop_oneof![
        Just(Start::Now),
        any_millis().prop_map(Start::After),
        any::<u64>().prop_map(|at| Start::At(WallTime::from_millis(at))),
    ];
    let until = prop_oneof![Just(UniqueUntil::Claimed), Just(UniqueUntil::Final)];
    let retry = (
        any::<Option<u32>>(),
        proptest::option::of(any_millis()),
        proptest::option::of(any_millis()),
        proptest::option::of(any_millis()),
    );
    let keys = (
        proptest::option::of(any_key()),
        proptest::option::of((any_key(), any_millis())),
        proptest::option::of((any_key(), until)),
    );
    let times = (
        proptest::option::of(any_millis()),
        proptest::option::of(any_millis()),
        proptest::option::of(any_millis()),
    );
    let facts = (any_task_id(), any_name(), any::<u32>(), any::<u128>(), 0..=PRIORITY_MAX, any_bytes());
    let wishes = (start, keys, retry, times).prop_map(|(start, keys, retry, times)| Wishes {
        start,
        order_key: keys.0,
        dedup: keys.1.map(|(key, window)| Dedup { key, window }),
        unique: keys.2.map(|(key, until)| Unique { key, until }),
        retry: RetryOverride { attempts: retry.0, base: retry.1, cap: retry.2, age_max: retry.3 },
        hold: times.0,
        expires_in: times.1,
        retention: times.2,
    });
    // Most ask for nothing.
    let wishes = prop_oneof![Just(Wishes::default()), wishes];
    (facts, wishes).prop_map(|(facts, wishes)| NewTask {
        id: facts.0,
        queue: facts.1,
        kind_hash: facts.2,
        digest: Digest(facts.3),
        priority: facts.4,
        envelope: facts.5,
        wishes: wishes.boxed(),
    })
}

fn any_command() -> impl Strategy<Value = Command> {
    let fence = || any::<u64>().prop_map(Fence);
    let session = || proptest::option::of(any::<u128>().prop_map(SessionId));
    let follow_up = (1u16..=1_024, any_task()).prop_map(|(n, task)| FollowUp { shard: shard(n), task });
    let message = (any::<u64>(), any_task()).prop_map(|(seq, task)| OutboxMessage { seq, task });
    let claim_queue = (any_name(), any::<u32>()).prop_map(|(name, weight)| ClaimQueue { name, weight });
    prop_oneof![
        (proptest::collection::vec(any_task(), 0..5), any::<bool>())
            .prop_map(|(tasks, atomic)| Command::Enqueue { tasks, atomic }),
        (
            proptest::collection::vec(claim_queue, 0..5),
            any_worker(),
            session(),
            any::<u32>(),
            proptest::option::of(any_millis()),
            proptest::option::of(any_key())
        )
            .prop_map(|(queues, worker, session, max, hold, request)| {
                Command::Claim(Claim { queues, worker, session, max, hold, request })
            }),
        (any_task_id(), fence(), any_bytes(), proptest::collection::vec(follow_up, 0..3))
            .prop_map(|(task, fence, output, then)| Command::Ack(Ack { task, fence, output, then })),
        (any_task_id(), fence(), ".{0,40}", ".{0,40}", proptest::option::of(any_millis()), any::<bool>())
            .prop_map(|(task, fence, error, detail, retry_in, fatal)| {
                Command::Fail(Fail { task, fence, error, detail, retry_in, fatal })
            }),
        (any_task_id(), fence(), any::<u8>(), ".{0,40}")
            .prop_map(|(task, fence, percent, note)| Command::Progress { task, fence, percent, note }),
        (1u16..=1_024, proptest::collection::vec(message, 0..3))
            .prop_map(|(n, messages)| Command::Deliver { source: shard(n), messages }),
        proptest::sample::select(commands().into_iter().map(|(_, command)| command).collect::<Vec<_>>()),
    ]
}

proptest! {
    #[test]
    fn every_command_comes_back_as_it_went(commands in proptest::collection::vec(any_command(), 0..6)) {
        let messages: Vec<_> = commands.iter().map(CommandMessage::from).collect();
        let bytes = commands_of(entry_of(&messages)).unwrap();
        let (mut derived, mut pushed) = (BytesMut::new(), BytesMut::new());
        messages.iter().for_each(|message| entry::push_command(message, &mut derived));
        commands.iter().for_each(|command| wire::command::push(command, &mut pushed));
        prop_assert_eq!(derived, pushed);
        let back: Result<Vec<_>, _> = bytes.into_iter().map(wire::command::decode).collect();
        prop_assert_eq!(back, Ok(commands));
    }

    #[test]
    fn a_task_comes_back_as_it_went(task in any_task()) {
        prop_assert_eq!(wire::new_task::decode(wire::new_task::encode(&task)), Ok(task));
    }

    #[test]
    fn noise_is_an_error_or_a_command_but_never_a_panic(bytes in any_bytes()) {
        let _ = wire::command::decode(bytes.clone());
        let _ = wire::catalog::decode(bytes.clone());
        if let Ok(commands) = commands_of(bytes.clone()) {
            commands.into_iter().for_each(|command| drop(wire::command::decode(command)));
        }
        if let Ok(kept) = KeptMessage::decode(bytes) {
            kept.history.iter().for_each(|line| drop(line.event()));
        }
    }

    #[test]
    fn a_damaged_entry_is_an_error_or_another_entry_but_never_a_panic(
        command in any_command(), at in any::<proptest::sample::Index>(), flip in 1u8..,
    ) {
        let mut bytes = entry_of(&[CommandMessage::from(&command)]).to_vec();
        let at = at.index(bytes.len());
        bytes[at] ^= flip;
        if let Ok(commands) = commands_of(bytes.into()) {
            commands.into_iter().for_each(|command| drop(wire::command::decode(command)));
        }
    }
}
