//! The messages of the gRPC face, decoded as the server decodes them.

use bytes::Bytes;
use prost::{Message, Name};
use wire::grpc::streams::Item;
use wire::grpc::{self, items, worker_message};

use crate::{allocation, says_why};

type Read = fn(Bytes);

const MESSAGES: &[Read] = &[
    read::<grpc::WorkerMessage>,
    read_item,
    read::<grpc::EnqueueRequest>,
    read::<grpc::EnqueueManyRequest>,
    read::<grpc::ClaimRequest>,
    read::<grpc::AckRequest>,
    read::<grpc::FailRequest>,
    read::<grpc::SettleRequest>,
    read::<grpc::RegisterRequest>,
    read::<grpc::BeatRequest>,
    read::<grpc::SetQueueRequest>,
    read::<grpc::ActOnTasksRequest>,
    read::<grpc::ListTasksRequest>,
];

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let task = || grpc::Task {
        queue: "mail".to_owned(),
        kind: "welcome".to_owned(),
        payload: Bytes::from_static(b"{\"to\":\"ada@example.com\"}"),
        headers: [("a".to_owned(), "b".to_owned())].into(),
        ..grpc::Task::default()
    };
    let done = grpc::Outcome {
        outcome: Some(grpc::outcome::Outcome::Ack(grpc::Done {
            then: vec![task()],
            ..grpc::Done::default()
        })),
        ..grpc::Outcome::default()
    };
    let seed = |n: u8, message: &dyn Fn() -> Vec<u8>| [vec![n], message()].concat();
    let outcomes = grpc::Outcomes { outcomes: vec![done.clone(), grpc::Outcome::default()], credit: 1 };
    let working = grpc::WorkerMessage { message: Some(worker_message::Message::Outcomes(outcomes)) };
    let hello = grpc::WorkerMessage {
        message: Some(worker_message::Message::Hello(grpc::Hello {
            queues: vec![grpc::QueueChoice::default()],
            labels: [("zone".to_owned(), "a".to_owned())].into(),
            ..grpc::Hello::default()
        })),
    };
    let item = grpc::EnqueueItem { seq: 7, task: Some(task()), more: vec![task(), task()] };
    let settle = grpc::SettleRequest { outcomes: vec![done], ..grpc::SettleRequest::default() };
    let beat =
        grpc::BeatRequest { running: vec![grpc::HeldTask::default(); 3], ..grpc::BeatRequest::default() };
    vec![
        seed(0, &|| working.encode_to_vec()),
        seed(0, &|| hello.encode_to_vec()),
        seed(1, &|| item.encode_to_vec()),
        seed(2, &|| grpc::EnqueueRequest { task: Some(task()) }.encode_to_vec()),
        seed(3, &|| grpc::EnqueueManyRequest { tasks: vec![task()], ..Default::default() }.encode_to_vec()),
        seed(4, &|| {
            grpc::ClaimRequest { worker: "w".to_owned(), max: Some(3), ..Default::default() }.encode_to_vec()
        }),
        seed(5, &|| grpc::AckRequest { then: vec![task()], ..Default::default() }.encode_to_vec()),
        seed(7, &|| settle.encode_to_vec()),
        seed(9, &|| beat.encode_to_vec()),
    ]
}

pub(crate) fn run(bytes: &[u8]) {
    let Some((choice, message)) = bytes.split_first() else { return };
    MESSAGES[usize::from(*choice) % MESSAGES.len()](Bytes::copy_from_slice(message));
}

fn read<M: Message + Name + Default + PartialEq + std::fmt::Debug>(bytes: Bytes) {
    // An empty task takes two bytes; what is long is counted before it is read.
    let bytes_max = 64 * 1024 + 1024 * bytes.len();
    let read = allocation::within(bytes_max, || {
        items::check::<M>(&bytes).map_err(|error| error.to_string())?;
        M::decode(bytes.clone()).map_err(|error| error.to_string())
    });
    match read {
        Ok(message) => assert_eq!(M::decode(&message.encode_to_vec()[..]), Ok(message)),
        Err(why) => says_why(&why),
    }
}

/// Items are read by hand, as far as they are usual.
fn read_item(bytes: Bytes) {
    read::<grpc::EnqueueItem>(bytes.clone());
    let bytes_max = 64 * 1024 + 1024 * bytes.len();
    let read = allocation::within(bytes_max, || {
        items::check::<grpc::EnqueueItem>(&bytes).ok()?;
        Some(Item::from_bytes(bytes.clone()))
    });
    if let Some(item) = read {
        assert_eq!(item.map(grpc::EnqueueItem::from), grpc::EnqueueItem::decode(bytes));
    }
}
