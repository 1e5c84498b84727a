//! What nodes say to each other: greetings, frames, and the body of each kind.

use bytes::{Buf as _, Bytes, BytesMut};
use prost::Message;
use wire::catalog::CatalogMessage;
use wire::command::CommandMessage;
use wire::entry::{self, CheckpointHead, Entry, Vote};
use wire::envelope::Envelope;
use wire::history::KeptMessage;
use wire::life::{Ask, Founding, Identity, Join, Joined, Probe, ProbeAnswer};
use wire::peer::{self, FrameHeader, FrameRole, HELLO_HEAD_BYTES, Hello, HelloAnswer, PeerKind};
use wire::raft::{
    Append, AppendAnswer, AppendEntry, RecordAnswer, RecordAsk, SnapshotAnswer, SnapshotChunk, SnapshotPart,
    SnapshotStep, Transfer, TransferAnswer, VoteAnswer, VoteAsk,
};
use wire::reply::{AppliedMessage, ClaimHead, Propose, ProposeAnswer, ReadIndex, ReadIndexAnswer};
use wire::{catalog, command, gossip, new_task, status};

use crate::{allocation, says_why};

type Read = fn(Bytes);

/// What a body can be. The first byte of an input chooses one; behind the last one it is a connection's bytes.
const BODIES: &[Read] = &[
    connection,
    message::<Append>,
    message::<AppendAnswer>,
    message::<VoteAsk>,
    message::<VoteAnswer>,
    message::<Transfer>,
    message::<TransferAnswer>,
    message::<SnapshotStep>,
    message::<SnapshotAnswer>,
    propose,
    propose_answer,
    message::<ReadIndex>,
    read_index_answer,
    |bytes| said(gossip::decode(bytes), gossip::encode, gossip::decode),
    |bytes| said(gossip::decode_ask(bytes), |ask| gossip::encode_ask(ask), gossip::decode_ask),
    |bytes| said(Probe::decode(bytes), Probe::encode, Probe::decode),
    |bytes| said(ProbeAnswer::decode(bytes), ProbeAnswer::encode, ProbeAnswer::decode),
    |bytes| said(Founding::decode(bytes), Founding::encode, Founding::decode),
    |bytes| said(Identity::decode(bytes), Identity::encode, Identity::decode),
    |bytes| said(Join::decode(bytes), Join::encode, Join::decode),
    |bytes| said(Joined::decode(bytes), Joined::encode, Joined::decode),
    |bytes| said(Ask::decode(bytes), Ask::encode, Ask::decode),
    |bytes| said(status::decode(bytes), status::encode, status::decode),
    |bytes| said(new_task::decode(bytes), new_task::encode, new_task::decode),
    a_command,
    a_catalog_command,
    an_entry,
    an_envelope,
    kept,
    message::<CheckpointHead>,
    message::<Vote>,
    message::<RecordAsk>,
    message::<RecordAnswer>,
];

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let log_id = entry::LogId { term: 2, index: 7 };
    let vote = Vote { term: 2, member: 3, committed: true };
    let entries = vec![AppendEntry::default(), AppendEntry::default()];
    let step = |part| SnapshotStep { vote: Some(vote), spool: 9, part: Some(part) };
    let chunk = SnapshotChunk { offset: 0, bytes: Bytes::from_static(b"chunk"), crc: 7 };
    let pulse = CommandMessage::from(&model::Command::Pulse { limit: 100 }).encode_to_vec();
    let mut part = BytesMut::new();
    entry::push_command(&CommandMessage::from(&model::Command::Pulse { limit: 100 }), &mut part);
    let commands =
        entry::assemble(model::Elapsed(5), model::WallTime::from_millis(6), [&part[..]].into_iter());
    let membership = entry::Membership {
        voters: vec![entry::Voters { ids: vec![1, 2, 3] }],
        members: vec![entry::Member { id: 1, address: "a:1".to_owned() }],
    };
    let head = CheckpointHead {
        applied: Some(log_id),
        membership_at: Some(log_id),
        membership: Some(membership.clone()),
        ..CheckpointHead::default()
    };
    let seed = |n: u8, body: Vec<u8>| [vec![n], body].concat();
    vec![
        seed(0, connected()),
        seed(1, Append { vote: Some(vote), entries, ..Append::default() }.encode_to_vec()),
        seed(3, VoteAsk { vote: Some(vote), ..VoteAsk::default() }.encode_to_vec()),
        seed(7, step(SnapshotPart::Chunk(chunk)).encode_to_vec()),
        seed(9, Propose::default().encode_to_vec()),
        seed(10, ProposeAnswer::default().encode_to_vec()),
        seed(13, gossip::encode(&gossip::News { wants_all: true, ..gossip::News::default() }).to_vec()),
        seed(14, gossip::encode_ask(&[model::SessionId(7)]).to_vec()),
        seed(24, pulse),
        seed(26, commands.to_vec()),
        seed(26, entry::encode_membership(&membership).to_vec()),
        seed(29, head.encode_to_vec()),
    ]
}

/// A greeting and three frames.
fn connected() -> Vec<u8> {
    let hello = Hello {
        version_min: 1,
        version_max: 1,
        node: 2,
        to: 1,
        address: "b:1".to_owned(),
        ..Hello::default()
    };
    let mut bytes = BytesMut::from(&peer::greeting(&hello).expect("it is short")[..]);
    for (kind, role, body) in [
        (PeerKind::Ping, FrameRole::Request, &b""[..]),
        (PeerKind::Vote, FrameRole::Request, b"body"),
        (PeerKind::Probe, FrameRole::Refusal, b"why not"),
    ] {
        let header = FrameHeader {
            kind: kind as u8,
            role,
            group: model::GroupId(1),
            request: 7,
            body_bytes: body.len(),
        };
        header.put(&mut bytes);
        bytes.extend_from_slice(body);
    }
    bytes.to_vec()
}

pub(crate) fn run(bytes: &[u8]) {
    let Some((choice, body)) = bytes.split_first() else { return };
    let body = Bytes::copy_from_slice(body);
    // A node of ours may send many small records: two bytes can become a record of some hundreds. Frames have a limit, and
    // one that is not known to be of the cluster gets 64 KiB.
    let bytes_max = 64 * 1024 + 2048 * body.len();
    allocation::within(bytes_max, || BODIES[usize::from(*choice) % BODIES.len()](body));
}

/// A connection's bytes: a greeting, then frames.
fn connection(mut bytes: Bytes) {
    if bytes.len() < HELLO_HEAD_BYTES {
        return;
    }
    let head = bytes.split_to(HELLO_HEAD_BYTES);
    let head = head[..].try_into().expect("it has this length");
    if let Some(length) = peer::greeting_bytes(head) {
        assert!(length <= peer::HELLO_BYTES_MAX);
        if length > bytes.len() {
            return;
        }
        let greeting = bytes.split_to(length);
        if let Ok(hello) = Hello::decode(greeting.clone()) {
            assert!(hello.from().is_none_or(|node| node.0 == hello.node));
            let _ = peer::cluster_from_bytes(&hello.cluster);
            if let Some(again) = peer::greeting(&hello) {
                assert_eq!(Hello::decode(&again[HELLO_HEAD_BYTES..]), Ok(hello));
            }
        }
        message::<HelloAnswer>(greeting);
    }
    loop {
        match FrameHeader::peek(&bytes) {
            Ok(Some(header)) => {
                assert!(header.body_bytes <= peer::BODY_BYTES_MAX);
                let mut again = BytesMut::new();
                header.put(&mut again);
                assert_eq!(FrameHeader::peek(&again), Ok(Some(header)));
                let frame = FrameHeader::BYTES + header.body_bytes;
                if frame > bytes.len() {
                    return;
                }
                bytes.advance(frame);
            }
            Ok(None) => return,
            Err(bad) => return says_why(&bad.to_string()),
        }
    }
}

fn message<M: Message + Default + PartialEq + std::fmt::Debug>(bytes: Bytes) {
    match M::decode(bytes) {
        Ok(message) => assert_eq!(M::decode(&message.encode_to_vec()[..]), Ok(message)),
        Err(error) => says_why(&error.to_string()),
    }
}

/// Envelopes are read by hand, as far as they are usual.
fn an_envelope(bytes: Bytes) {
    assert_eq!(Envelope::from_bytes(bytes.clone()), Envelope::decode(bytes.clone()));
    message::<Envelope>(bytes);
}

/// What was read is written, and read the same again.
fn said<T: PartialEq + std::fmt::Debug>(
    read: Result<T, entry::Malformed>,
    encode: impl Fn(&T) -> Bytes,
    decode: impl Fn(Bytes) -> Result<T, entry::Malformed>,
) {
    match read {
        Ok(value) => assert_eq!(decode(encode(&value)), Ok(value)),
        Err(error) => says_why(&error.to_string()),
    }
}

fn propose(bytes: Bytes) {
    let Ok(propose) = Propose::decode(bytes.clone()) else { return message::<Propose>(bytes) };
    let _ = propose.patience();
    message::<Propose>(bytes.clone());
    if let Ok(head) = ClaimHead::decode(bytes) {
        let _ = head.names();
    }
}

fn propose_answer(bytes: Bytes) {
    message::<ProposeAnswer>(bytes.clone());
    if let Ok(answer) = ProposeAnswer::decode(bytes.clone()) {
        let _ = answer.refusal();
        for applied in answer.done {
            let _ = (applied.clone().shard().is_ok(), applied.catalog().is_ok());
        }
    }
    if let Ok(applied) = AppliedMessage::decode(bytes) {
        let _ = (applied.clone().shard().is_ok(), applied.catalog().is_ok());
    }
}

fn read_index_answer(bytes: Bytes) {
    message::<ReadIndexAnswer>(bytes.clone());
    if let Ok(answer) = ReadIndexAnswer::decode(bytes) {
        let _ = answer.outcome();
    }
}

fn a_command(bytes: Bytes) {
    let encode = |command: &model::Command| CommandMessage::from(command).encode_to_vec().into();
    said(command::decode(bytes), encode, command::decode);
}

fn a_catalog_command(bytes: Bytes) {
    let encode =
        |command: &model::catalog::CatalogCommand| CatalogMessage::from(command).encode_to_vec().into();
    said(catalog::decode(bytes), encode, catalog::decode);
}

fn an_entry(bytes: Bytes) {
    let counted = entry::count_commands(&bytes);
    if let Ok(commands) = entry::commands(bytes.clone()) {
        assert_eq!(counted, Some(commands.len() as u32));
    }
    match Entry::decode(bytes) {
        Ok(Entry::Commands(commands)) => {
            for command in commands.commands {
                let _ = (command::decode(command.clone()).is_ok(), catalog::decode(command).is_ok());
            }
        }
        Ok(Entry::Membership(membership)) => {
            let again = entry::encode_membership(&membership);
            assert_eq!(Entry::decode(again), Ok(Entry::Membership(membership)));
        }
        Ok(Entry::Blank) => {}
        Err(error) => says_why(&error.to_string()),
    }
}

fn kept(bytes: Bytes) {
    message::<KeptMessage>(bytes.clone());
    let Ok(kept) = KeptMessage::decode(bytes) else { return };
    for line in &kept.history {
        if let Ok(event) = line.event() {
            let again = wire::history::LineMessage::new(line.at(), line.index(), &event);
            assert_eq!(again.event(), Ok(event));
        }
    }
}
