//! What members of a group say to each other, as bytes: what an older member wrote is still understood, and
//! what a newer one adds is skipped.

#![allow(clippy::unwrap_used, reason = "in a test a failure is a panic")]

use bytes::Bytes;
use prost::Message;
use wire::entry::{LogId, Member, Membership, Vote, Voters};
use wire::raft::{
    Append, AppendAnswer, AppendEntry, Appended, Matched, RecordAnswer, RecordAsk, SnapshotAnswer,
    SnapshotBegin, SnapshotChunk, SnapshotFinish, SnapshotPart, SnapshotStep, Transfer, TransferAnswer,
    VoteAnswer, VoteAsk, encode,
};

fn vote() -> Vote {
    Vote { term: 7, member: 65_538, committed: true }
}

fn id(index: u64) -> LogId {
    LogId { term: 6, index }
}

fn step(part: SnapshotPart) -> SnapshotStep {
    SnapshotStep { vote: Some(vote()), spool: u64::MAX - 1, part: Some(part) }
}

/// What a message is called, its bytes, and whether they decode to it again.
type Row = (&'static str, Bytes, fn(Bytes) -> Bytes);

fn again<T: Message + Default>(bytes: Bytes) -> Bytes {
    encode(&T::decode(bytes).unwrap())
}

/// One of each. The order is the fixture's: add at the end.
fn messages() -> Vec<Row> {
    let membership = Membership {
        voters: vec![Voters { ids: vec![1, 65_538] }],
        members: vec![Member { id: 1, address: "10.0.0.1:7421".to_owned() }],
    };
    let entry = AppendEntry { term: 7, index: 41, payload: Bytes::from_static(&[1, 8, 5]) };
    let answer = |outcome| encode(&AppendAnswer { outcome: Some(outcome) });
    let chunk = SnapshotChunk { offset: 262_144, crc: 0xdead_beef, bytes: Bytes::from_static(b"rows") };
    let finish = SnapshotFinish {
        bytes: 262_148,
        applied: Some(id(40)),
        membership_at: Some(id(3)),
        membership: Some(membership),
        lacking: Bytes::new(),
    };
    let lacking =
        SnapshotFinish { bytes: 5, lacking: Bytes::from_static(&[7; 16]), ..SnapshotFinish::default() };
    let begin = SnapshotBegin { bytes: 262_148, applied: Some(id(40)) };
    vec![
        (
            "append",
            encode(&Append {
                vote: Some(vote()),
                prev: Some(id(40)),
                committed: Some(id(39)),
                entries: vec![entry],
                elapsed: 0,
            }),
            again::<Append>,
        ),
        (
            "append/idle",
            encode(&Append { vote: Some(vote()), elapsed: 86_400_000, ..Append::default() }),
            again::<Append>,
        ),
        ("append/first", encode(&Append { vote: Some(vote()), ..Append::default() }), again::<Append>),
        (
            "appended/matched",
            answer(Appended::Matched(Matched { last: Some(id(41)) })),
            again::<AppendAnswer>,
        ),
        ("appended/nothing", answer(Appended::Matched(Matched { last: None })), again::<AppendAnswer>),
        ("appended/conflict", answer(Appended::Conflict(id(40))), again::<AppendAnswer>),
        ("appended/higher_vote", answer(Appended::HigherVote(vote())), again::<AppendAnswer>),
        (
            "vote",
            encode(&VoteAsk { vote: Some(vote()), last: Some(id(41)), leadership_transfer: true }),
            again::<VoteAsk>,
        ),
        (
            "voted",
            encode(&VoteAnswer { vote: Some(vote()), last: Some(id(41)), granted: true }),
            again::<VoteAnswer>,
        ),
        (
            "transfer",
            encode(&Transfer { from: Some(vote()), to: 65_539, last: Some(id(41)) }),
            again::<Transfer>,
        ),
        ("transferred", encode(&TransferAnswer::default()), again::<TransferAnswer>),
        (
            "transferred/not",
            encode(&TransferAnswer {
                vote_changed: Some(vote()),
                not_flushed: Some(Matched { last: Some(id(2)) }),
            }),
            again::<TransferAnswer>,
        ),
        ("snapshot/begin", encode(&step(SnapshotPart::Begin(begin))), again::<SnapshotStep>),
        ("snapshot/chunk", encode(&step(SnapshotPart::Chunk(chunk))), again::<SnapshotStep>),
        ("snapshot/finish", encode(&step(SnapshotPart::Finish(finish))), again::<SnapshotStep>),
        ("snapshot/lacking", encode(&step(SnapshotPart::Finish(lacking))), again::<SnapshotStep>),
        (
            "snapshot/answer",
            encode(&SnapshotAnswer { vote: Some(vote()), offset: 262_144, installed: true }),
            again::<SnapshotAnswer>,
        ),
        ("record", encode(&RecordAsk { task_high: 1, task_low: 2, index: 40 }), again::<RecordAsk>),
        (
            "record/answer",
            encode(&RecordAnswer { record: Some(Bytes::from_static(b"row")), partial: false }),
            again::<RecordAnswer>,
        ),
        (
            "record/partial",
            encode(&RecordAnswer { record: Some(Bytes::from_static(b"row")), partial: true }),
            again::<RecordAnswer>,
        ),
        ("record/nothing", encode(&RecordAnswer::default()), again::<RecordAnswer>),
    ]
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn messages_are_the_bytes_that_they_always_were() {
    let lines: Vec<String> =
        messages().iter().map(|(name, bytes, _)| format!("{name} {}\n", hex(bytes))).collect();
    assert_eq!(include_str!("fixtures/raft-v1.txt"), lines.concat());
}

#[test]
fn messages_come_out_as_they_went_in_and_what_is_new_is_skipped() {
    for (name, bytes, again) in messages() {
        assert_eq!(again(bytes.clone()), bytes, "{name}");
        // Field 99, a varint.
        let newer: Bytes = [&bytes[..], &[0x98, 0x06, 0x01]].concat().into();
        assert_eq!(again(newer), bytes, "{name}");
    }
}

#[test]
fn an_entry_shares_memory_with_the_message_it_came_in() {
    let (_, bytes, _) = messages().remove(0);
    let append = Append::decode(bytes.clone()).unwrap();
    let payload = &append.entries[0].payload;
    assert!(bytes.as_ptr_range().contains(&payload.as_ptr()));
}
