//! The messages of the streams as this client needs them: fields that nobody looks at are passed over, and texts stay
//! where they arrived. `wire/proto` says what each means; the tests below hold the two together.

use bytes::Bytes;
use prost::Message;
use wire::grpc;
use wire::grpc::worker_message::Message as Said;

pub(super) const WORK: &str = "/windlass.v1.Windlass/Work";
pub(super) const ENQUEUE_STREAM: &str = "/windlass.v1.Windlass/EnqueueStream";

/// The kind of every task here.
pub(super) const KIND: &str = "bench";

/// `EnqueueItem`, with tasks that were written before.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Item {
    #[prost(uint64, tag = "1")]
    pub(super) seq: u64,
    #[prost(bytes = "bytes", tag = "2")]
    pub(super) task: Bytes,
    #[prost(bytes = "bytes", repeated, tag = "3")]
    pub(super) more: Vec<Bytes>,
}

/// `EnqueueResults`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Enqueued {
    #[prost(message, repeated, tag = "1")]
    pub(super) results: Vec<EnqueueResult>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct EnqueueResult {
    #[prost(uint64, tag = "1")]
    pub(super) seq: u64,
    #[prost(message, optional, tag = "3")]
    pub(super) error: Option<grpc::Error>,
}

/// `WorkerMessage` with outcomes.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Say {
    #[prost(message, optional, tag = "3")]
    pub(super) outcomes: Option<Outcomes>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Outcomes {
    #[prost(message, repeated, tag = "1")]
    pub(super) acks: Vec<Ack>,
    #[prost(uint32, tag = "2")]
    pub(super) credit: u32,
}

/// `Outcome` with an ack.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Ack {
    #[prost(uint64, tag = "1")]
    pub(super) seq: u64,
    #[prost(bytes = "bytes", tag = "2")]
    pub(super) token: Bytes,
    #[prost(message, optional, tag = "3")]
    pub(super) done: Option<Done>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct Done {}

/// `ServerMessage`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Heard {
    #[prost(message, optional, tag = "1")]
    pub(super) welcome: Option<grpc::Welcome>,
    #[prost(message, optional, tag = "2")]
    pub(super) tasks: Option<Tasks>,
    #[prost(message, optional, tag = "3")]
    pub(super) results: Option<Settled>,
    #[prost(message, optional, tag = "4")]
    pub(super) beat: Option<grpc::BeatAnswer>,
    #[prost(message, optional, tag = "8")]
    pub(super) error: Option<grpc::Error>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Tasks {
    #[prost(message, repeated, tag = "1")]
    pub(super) claims: Vec<Claim>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Claim {
    #[prost(bytes = "bytes", tag = "4")]
    pub(super) payload: Bytes,
    #[prost(bytes = "bytes", tag = "9")]
    pub(super) token: Bytes,
}

/// `OutcomeResults`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Settled {
    #[prost(message, repeated, tag = "1")]
    pub(super) results: Vec<OutcomeResult>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct OutcomeResult {
    #[prost(uint64, tag = "1")]
    pub(super) seq: u64,
    #[prost(message, optional, tag = "4")]
    pub(super) error: Option<grpc::Error>,
}

/// A task, written once and sent often.
pub(super) fn task(queue: &str, payload: Bytes) -> Bytes {
    let (queue, kind) = (queue.to_owned(), KIND.to_owned());
    grpc::Task { queue, kind, payload, ..grpc::Task::default() }.encode_to_vec().into()
}

/// The first words of a worker.
pub(super) fn hello(queue: &str, worker: String, slots: u32) -> grpc::WorkerMessage {
    let queues = vec![grpc::QueueChoice { name: queue.to_owned(), weight: None }];
    let hello = grpc::Hello { worker, slots: Some(slots), queues, ..grpc::Hello::default() };
    grpc::WorkerMessage { message: Some(Said::Hello(hello)) }
}

/// Room for more tasks.
pub(super) fn credit(more: u32) -> grpc::WorkerMessage {
    grpc::WorkerMessage { message: Some(Said::Credit(grpc::Credit { more })) }
}

/// A sign of life that says nothing of what is held.
pub(super) fn still_here() -> grpc::WorkerMessage {
    credit(0)
}

/// The worker leaves in order.
pub(super) fn goodbye() -> grpc::WorkerMessage {
    grpc::WorkerMessage { message: Some(Said::Goodbye(grpc::Goodbye {})) }
}

/// A beat of a worker that holds nothing.
pub(super) fn idle_beat() -> grpc::WorkerMessage {
    grpc::WorkerMessage { message: Some(Said::Beat(grpc::HeldTasks::default())) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use wire::grpc::outcome::Outcome as Became;
    use wire::grpc::server_message::Message as ServerSays;

    use super::*;

    #[test]
    fn what_is_sent_is_what_the_server_reads() {
        let task = task("bench", Bytes::from_static(b"1"));
        let item = Item { seq: 7, task: task.clone(), more: vec![task] };
        let item = grpc::EnqueueItem::decode(&*item.encode_to_vec()).unwrap();
        assert_eq!((item.seq, item.task.unwrap().queue, item.more.len()), (7, "bench".to_owned(), 1));
        assert_eq!(&item.more[0].payload[..], b"1");

        let ack = Ack { seq: 9, token: Bytes::from_static(b"t"), done: Some(Done {}) };
        let say = Say { outcomes: Some(Outcomes { acks: vec![ack], credit: 2 }) };
        let said = grpc::WorkerMessage::decode(&*say.encode_to_vec()).unwrap().message;
        let Some(Said::Outcomes(outcomes)) = said else { unreachable!("an ack is an outcome: {said:?}") };
        let outcome = &outcomes.outcomes[0];
        assert_eq!((outcome.seq, &*outcome.token, outcomes.credit), (9, "t", 2));
        assert!(matches!(outcome.outcome, Some(Became::Ack(_))));
    }

    #[test]
    fn what_the_server_says_is_understood() {
        let error = || grpc::Error { code: "x".to_owned(), ..grpc::Error::default() };
        let outcome = Some(grpc::enqueue_result::Outcome::Error(error()));
        let results = grpc::EnqueueResults { results: vec![grpc::EnqueueResult { seq: 3, outcome }] };
        let results = Enqueued::decode(&*results.encode_to_vec()).unwrap().results;
        assert_eq!((results[0].seq, results[0].error.clone()), (3, Some(error())));

        let heard = |message| {
            let message = grpc::ServerMessage { message: Some(message) };
            Heard::decode(&*message.encode_to_vec()).unwrap()
        };
        let (payload, token) = (Bytes::from_static(b"1"), "t".to_owned());
        let claims = vec![grpc::Claim { payload, token, ..grpc::Claim::default() }];
        let tasks = heard(ServerSays::Tasks(grpc::Tasks { claims })).tasks.unwrap();
        assert_eq!((&tasks.claims[0].payload[..], &tasks.claims[0].token[..]), (&b"1"[..], &b"t"[..]));
        let result = Some(grpc::outcome_result::Result::Error(error()));
        let results = vec![grpc::OutcomeResult { seq: 4, result }];
        let results = heard(ServerSays::Results(grpc::OutcomeResults { results })).results.unwrap().results;
        assert_eq!((results[0].seq, results[0].error.clone()), (4, Some(error())));
        assert_eq!(heard(ServerSays::Error(error())).error, Some(error()));
        assert!(heard(ServerSays::Welcome(grpc::Welcome::default())).welcome.is_some());
    }
}
