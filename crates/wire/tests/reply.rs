//! What leaders answer to other nodes, as bytes: what goes in comes out, what an older node wrote is still
//! understood, and what is no answer is an error.

#![allow(clippy::unwrap_used, reason = "in a test a failure is a panic")]

use bytes::Bytes;
use model::catalog::{CatalogReply, ClusterFacts};
use model::{
    Claimed, Elapsed, Enqueued, Fence, MemberId, Millis, NodeId, QueueName, Rejection, Reply, Settled,
    ShardId, StateKind, TaskId, WallTime,
};
use proptest::prelude::*;
use prost::Message;
use wire::reply::{
    AppliedMessage, ClaimHead, PieceMessage, Propose, ProposeAnswer, ReadIndex, ReadIndexAnswer, Refusal,
};

fn task(n: u64) -> TaskId {
    TaskId::new(ShardId::new(3).unwrap(), WallTime::from_millis(1_763_208_000_000 + n), n)
}

fn queue() -> QueueName {
    QueueName::new("mail").unwrap()
}

/// One of each. The order is the fixture's: add at the end.
fn rejections() -> Vec<(&'static str, Rejection)> {
    let (id, queue, state) = (task(1), queue(), StateKind::Retrying);
    let full = |what, limit| Rejection::QueueFull { queue: queue.clone(), count: 7, what, limit };
    let not_empty = |hint| Rejection::NotEmpty { queue: queue.clone(), count: 3, hint };
    vec![
        ("not_found", Rejection::NotFound { id }),
        ("unknown_queue", Rejection::UnknownQueue { queue: queue.clone() }),
        ("not_claimed", Rejection::NotClaimed { id, state }),
        ("stale_token", Rejection::StaleToken { id, given: Fence(1), current: Fence(u64::MAX) }),
        ("not_ready", Rejection::NotReady { id, state }),
        ("already_ended", Rejection::AlreadyEnded { id, state }),
        ("not_ended", Rejection::NotEnded { id, state }),
        ("not_unique", Rejection::NotUnique { holder: id }),
        ("dedup_mismatch", Rejection::DedupMismatch { holder: id }),
        ("full_of_tasks", full("tasks", "tasks_max")),
        ("full_of_keys", full("dedup keys", "dedup_keys_max")),
        (
            "not_atomic",
            Rejection::NotAtomic { n: 9_999, because: Box::new(Rejection::NotUnique { holder: id }) },
        ),
        ("too_many_queues", Rejection::TooManyQueues { queue: queue.clone(), count: 10_000 }),
        ("stale_version", Rejection::StaleVersion { given: 1, current: 2 }),
        ("not_empty_to_delete", not_empty("purge it, discard its dead tasks, then delete it")),
        (
            "not_empty_to_spread",
            not_empty("shards changes only while a queue has no tasks, ended ones included"),
        ),
        ("no_cluster", Rejection::NoCluster),
        ("unknown_node", Rejection::UnknownNode { node: NodeId(3) }),
        ("node_needed", Rejection::NodeNeeded { node: NodeId(65_535) }),
        ("too_many_nodes", Rejection::TooManyNodes { node: NodeId(8), count: 7 }),
        ("moved", Rejection::Moved { queue: queue.clone() }),
    ]
}

fn claimed() -> Claimed {
    Claimed {
        id: task(2),
        queue: queue(),
        priority: 9,
        attempt: 2,
        fence: Fence(4_711),
        deadline: Elapsed(30_000),
        deadline_wall: WallTime::from_millis(1_763_208_030_000),
        // As nodes before this field wrote it.
        hold: Millis(0),
        enqueued_at: WallTime::from_millis(1_763_208_000_000),
        ready_since: WallTime::from_millis(1_763_208_000_001),
        envelope: Bytes::from_static(b"envelope"),
    }
}

/// One of each.
fn replies() -> Vec<(&'static str, Reply)> {
    let enqueued = Enqueued { id: task(3), duplicate: true, state: StateKind::Blocked };
    let settled = Settled { id: task(4), state: StateKind::Done, attempt: 1, due: None };
    vec![
        ("enqueued", Reply::Enqueued(vec![Ok(enqueued), Err(Rejection::NotUnique { holder: task(5) })])),
        ("claimed", Reply::Claimed(vec![claimed()])),
        ("nothing_claimed", Reply::Claimed(Vec::new())),
        ("settled", Reply::Settled(settled)),
        ("due", Reply::Settled(Settled { due: Some(WallTime::from_millis(7)), ..settled })),
        ("held", Reply::Held { deadline: WallTime::from_millis(8), cancel_requested: true }),
        ("count", Reply::Count(0)),
        ("upto", Reply::Upto(u64::MAX)),
        ("done", Reply::Done),
    ]
}

fn catalog_replies() -> Vec<(&'static str, CatalogReply)> {
    let facts = ClusterFacts { cluster_id: u128::MAX - 1, shards: 4, token_key: [7; 32] };
    vec![
        ("cluster", CatalogReply::Cluster(facts)),
        ("version", CatalogReply::Version(12)),
        ("member", CatalogReply::Member(MemberId::new(NodeId(3), 2))),
    ]
}

fn refusals() -> Vec<(&'static str, Refusal)> {
    vec![
        ("not_leader", Refusal::NotLeader { leader: Some(2) }),
        ("no_leader", Refusal::NotLeader { leader: None }),
        ("unavailable", Refusal::Unavailable),
        ("full", Refusal::Full),
        ("too_large", Refusal::TooLarge { bytes: 50, bytes_max: 40 }),
        ("memory_full", Refusal::MemoryFull { bytes: 9, bytes_max: 8 }),
        ("disk_full", Refusal::DiskFull),
        ("unknown", Refusal::Unknown),
    ]
}

/// Everything that has a fixture: a name, the bytes written today.
fn written_today() -> Vec<(String, Bytes)> {
    let mut all: Vec<(String, Vec<u8>)> = Vec::new();
    for (name, rejection) in rejections() {
        all.push((format!("rejected/{name}"), AppliedMessage::of_shard(7, &Err(rejection)).encode_to_vec()));
    }
    for (name, reply) in replies() {
        all.push((format!("shard/{name}"), AppliedMessage::of_shard(7, &Ok(reply)).encode_to_vec()));
    }
    for (name, reply) in catalog_replies() {
        all.push((format!("catalog/{name}"), AppliedMessage::of_catalog(7, &Ok(reply)).encode_to_vec()));
    }
    for (name, refusal) in refusals() {
        let answer = ProposeAnswer::new(Vec::new(), Some(&refusal), 9);
        all.push((format!("refused/{name}"), answer.encode_to_vec()));
    }
    all.push(("propose".to_owned(), propose().encode_to_vec()));
    all.push(("read_index".to_owned(), ReadIndex { patience_ms: 2_000, is_hint: true }.encode_to_vec()));
    all.push(("read_index_answer".to_owned(), ReadIndexAnswer::new(Ok(77)).encode_to_vec()));
    all.into_iter().map(|(name, bytes)| (name, bytes.into())).collect()
}

fn propose() -> Propose {
    let bytes = Bytes::from_static(b"commands");
    Propose {
        pieces: vec![PieceMessage { bytes, commands: 3, is_new_work: true }],
        patience_ms: 10_000,
        claim: Some(ClaimHead::new([&queue()].into_iter(), 5)),
    }
}

/// The bytes of protocol version 1. A change adds lines, or a file.
const FIXTURE: &str = include_str!("fixtures/reply-v1.txt");

fn fixture(name: &str) -> Bytes {
    let line = FIXTURE.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    let hex = line.unwrap_or_else(|| panic!("no fixture {name}"));
    (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect()
}

#[test]
fn the_bytes_of_version_1_have_not_changed() {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    // A new kind is added to the fixture by hand, from what this says.
    let lines: String =
        written_today().iter().map(|(name, bytes)| format!("{name} {}\n", hex(bytes))).collect();
    assert_eq!(lines, FIXTURE);
}

#[test]
fn what_an_older_node_answered_is_understood() {
    let applied = |name: &str| AppliedMessage::decode(fixture(name)).unwrap();
    for (name, rejection) in rejections() {
        assert_eq!(applied(&format!("rejected/{name}")).shard(), Ok(Err(rejection)), "{name}");
    }
    for (name, reply) in replies() {
        let message = applied(&format!("shard/{name}"));
        assert_eq!(message.index, 7, "{name}");
        assert_eq!(message.shard(), Ok(Ok(reply)), "{name}");
    }
    for (name, reply) in catalog_replies() {
        assert_eq!(applied(&format!("catalog/{name}")).catalog(), Ok(Ok(reply)), "{name}");
    }
    for (name, refusal) in refusals() {
        let answer = ProposeAnswer::decode(fixture(&format!("refused/{name}"))).unwrap();
        assert_eq!((answer.refusal(), answer.applied), (Some(refusal), 9), "{name}");
    }
    assert_eq!(Propose::decode(fixture("propose")), Ok(propose()));
    assert_eq!(propose().claim.unwrap().names(), Ok(vec![queue()]));
    assert_eq!(ReadIndexAnswer::decode(fixture("read_index_answer")).unwrap().outcome(), Ok(77));
    let refused = ReadIndexAnswer::new(Err(Refusal::Unavailable));
    assert_eq!(refused.outcome(), Err(Refusal::Unavailable));
}

/// What a newer node may add to any of these.
#[derive(Clone, PartialEq, Message)]
struct Newer {
    #[prost(string, tag = "1000")]
    note: String,
}

#[test]
fn what_a_newer_node_adds_is_passed_over() {
    let newer = Newer { note: "new in version 2".to_owned() }.encode_to_vec();
    for (name, reply) in replies() {
        let mut bytes = AppliedMessage::of_shard(7, &Ok(reply.clone())).encode_to_vec();
        bytes.extend_from_slice(&newer);
        assert_eq!(AppliedMessage::decode(&bytes[..]).unwrap().shard(), Ok(Ok(reply)), "{name}");
    }
    let mut bytes = propose().encode_to_vec();
    bytes.extend_from_slice(&newer);
    assert_eq!(Propose::decode(&bytes[..]), Ok(propose()));
}

/// A refusal with a code of the future.
#[derive(Clone, PartialEq, Message)]
struct Coded {
    #[prost(uint32, tag = "1")]
    code: u32,
}

#[derive(Clone, PartialEq, Message)]
struct Refused {
    #[prost(message, optional, tag = "2")]
    refusal: Option<Coded>,
}

#[test]
fn a_refusal_that_is_not_known_says_nothing_of_what_happened() {
    let bytes = Refused { refusal: Some(Coded { code: 77 }) }.encode_to_vec();
    assert_eq!(ProposeAnswer::decode(&bytes[..]).unwrap().refusal(), Some(Refusal::Unknown));
}

#[test]
fn words_that_are_not_in_the_list_become_general_ones() {
    let odd = Rejection::QueueFull { queue: queue(), count: 1, what: "wishes", limit: "wishes_max" };
    let back = AppliedMessage::of_shard(1, &Err(odd)).shard().unwrap().unwrap_err();
    assert_eq!(back.code(), "queue_full");
    assert_eq!(back.to_string(), "queue \"mail\" is full (1 of them): retry later or raise its limit");
}

#[test]
fn the_commands_of_a_piece_are_counted_only_when_they_are_whole() {
    let mut part = bytes::BytesMut::new();
    for n in 0..3u32 {
        wire::entry::push_command(&Coded { code: n * 100 }, &mut part);
    }
    let part = part.freeze();
    for (what, bytes, commands) in [
        ("three", part.clone(), Some(3)),
        ("none", Bytes::new(), Some(0)),
        ("cut", part.slice(..part.len() - 1), None),
        ("something else", Bytes::from_static(b"\x08\x01"), None),
        (
            "a length beyond the end",
            Bytes::from_static(b"\x1a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
            None,
        ),
    ] {
        assert_eq!(wire::entry::count_commands(&bytes), commands, "{what}");
    }
}

#[test]
fn a_reply_of_the_other_machine_is_malformed() {
    assert!(AppliedMessage::of_catalog(1, &Ok(CatalogReply::Version(1))).shard().is_err());
    assert!(AppliedMessage::of_shard(1, &Ok(Reply::Done)).catalog().is_err());
    assert!(AppliedMessage::default().shard().is_err());
}

#[test]
fn an_envelope_shares_its_memory_with_the_answer() {
    let applied = AppliedMessage::of_shard(7, &Ok(Reply::Claimed(vec![claimed()])));
    let bytes: Bytes = ProposeAnswer::new(vec![applied], None, 7).encode_to_vec().into();
    let range = bytes.as_ptr() as usize..bytes.as_ptr() as usize + bytes.len();
    let answer = ProposeAnswer::decode(bytes.clone()).unwrap();
    let Ok(Ok(Reply::Claimed(claims))) = answer.done[0].clone().shard() else { panic!("no claims") };
    assert!(range.contains(&(claims[0].envelope.as_ptr() as usize)));
}

fn any_task() -> impl Strategy<Value = TaskId> {
    (1u16..=1_024, 0u64..1 << 48, any::<u64>()).prop_map(|(shard, millis, random)| {
        TaskId::new(ShardId::new(shard).unwrap(), WallTime::from_millis(millis), random)
    })
}

fn any_state() -> impl Strategy<Value = StateKind> {
    prop::sample::select(&StateKind::ALL[..])
}

fn any_queue() -> impl Strategy<Value = QueueName> {
    "[a-z][a-z0-9_.-]{0,20}".prop_map(|name| QueueName::new(&name).unwrap())
}

fn any_rejection() -> impl Strategy<Value = Rejection> {
    let plain = prop_oneof![
        prop::sample::select(rejections()).prop_map(|(_, rejection)| rejection),
        (any_task(), any_state()).prop_map(|(id, state)| Rejection::NotClaimed { id, state }),
        (any_task(), any::<u64>(), any::<u64>()).prop_map(|(id, given, current)| {
            Rejection::StaleToken { id, given: Fence(given), current: Fence(current) }
        }),
        (any_queue(), any::<u64>()).prop_map(|(queue, count)| Rejection::TooManyQueues { queue, count }),
    ];
    plain.prop_recursive(3, 3, 1, |inner| {
        (any::<u32>(), inner)
            .prop_map(|(n, because)| Rejection::NotAtomic { n: n as usize, because: Box::new(because) })
    })
}

prop_compose! {
    fn any_claimed()(
        id in any_task(), queue in any_queue(), priority in 0u8..=9, attempt in any::<u32>(),
        fence in any::<u64>(), deadline in any::<u64>(), wall in any::<u64>(),
        envelope in prop::collection::vec(any::<u8>(), 0..200),
    ) -> Claimed {
        let at = WallTime::from_millis(wall);
        Claimed {
            id, queue, priority, attempt, fence: Fence(fence), deadline: Elapsed(deadline),
            deadline_wall: at, hold: Millis(wall), enqueued_at: at, ready_since: at, envelope: envelope.into(),
        }
    }
}

fn any_outcome() -> impl Strategy<Value = Result<Reply, Rejection>> {
    let enqueued = (any_task(), any::<bool>(), any_state()).prop_map(|(id, duplicate, state)| Enqueued {
        id,
        duplicate,
        state,
    });
    let enqueued = prop_oneof![enqueued.prop_map(Ok), any_rejection().prop_map(Err)];
    prop_oneof![
        any_rejection().prop_map(Err),
        prop::collection::vec(enqueued, 0..5).prop_map(|list| Ok(Reply::Enqueued(list))),
        prop::collection::vec(any_claimed(), 0..5).prop_map(|list| Ok(Reply::Claimed(list))),
        prop::sample::select(replies()).prop_map(|(_, reply)| Ok(reply)),
        any::<u64>().prop_map(|count| Ok(Reply::Count(count))),
    ]
}

proptest! {
    #[test]
    fn an_answer_comes_back_as_it_went(outcomes in prop::collection::vec(any_outcome(), 0..5)) {
        let done = outcomes.iter().map(|outcome| AppliedMessage::of_shard(5, outcome)).collect();
        let bytes = ProposeAnswer::new(done, None, 5).encode_to_vec();
        let back = ProposeAnswer::decode(&bytes[..]).unwrap();
        prop_assert_eq!(back.refusal(), None);
        let back: Vec<_> = back.done.into_iter().map(|applied| applied.shard().unwrap()).collect();
        prop_assert_eq!(back, outcomes);
    }

    #[test]
    fn a_damaged_answer_is_an_error_or_another_answer_but_never_a_panic(
        outcome in any_outcome(), at in any::<prop::sample::Index>(), flip in 1u8..,
    ) {
        let done = vec![AppliedMessage::of_shard(5, &outcome)];
        let mut bytes = ProposeAnswer::new(done, Some(&Refusal::Full), 5).encode_to_vec();
        let at = at.index(bytes.len());
        bytes[at] ^= flip;
        if let Ok(answer) = ProposeAnswer::decode(&bytes[..]) {
            let _ = answer.refusal();
            for applied in answer.done {
                drop(applied.clone().shard());
                drop(applied.catalog());
            }
        }
    }
}
