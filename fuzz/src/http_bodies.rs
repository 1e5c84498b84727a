//! The JSON body of every request of the HTTP face, read as the server reads it.

use bytes::Bytes;
use model::QueuePolicy;
use serde_json::to_string;
use wire::http::claim::ClaimRequest;
use wire::http::enqueue::{EnqueueManyRequest, Payload, TaskRequest, check_hold};
use wire::http::members::{LeaveRequest, PromoteRequest, RebalanceRequest, TransferRequest};
use wire::http::queue::PolicyRequest;
use wire::http::settle::{
    AckManyRequest, AckRequest, ExtendManyRequest, ExtendRequest, FailManyRequest, FailRequest,
    ProgressManyRequest, ProgressRequest, ReleaseManyRequest, ReleaseRequest,
};
use wire::http::task::ActionRequest;
use wire::http::worker::{BeatRequest, RegisterRequest};
use wire::http::{Invalid, OneOrMany, parse};

use crate::{allocation, says_why};

type Read = fn(&Bytes, &str) -> Result<(), Invalid>;

/// Each request with bodies like those that are sent. The first byte of an input chooses one.
const BODIES: &[(Read, &[&str])] = &[
    (
        enqueue,
        &[
            r#"{"kind":"welcome","payload":{"to":"ada@example.com"}}"#,
            r#"{"queue":"mail","kind":"k","payload_base64":"AAEC","content_type":"image/png","headers":{"a":"b"},"priority":0}"#,
            r#"{"kind":"k","dedup_key":"d","dedup_window_ms":0,"delay_ms":5000,"order_key":"o","hold_ms":30000,"expires_in_ms":1,"retention_ms":1}"#,
            r#"{"kind":"k","run_at":"2026-11-15T12:00:30.000Z","retry":{"attempts":3,"base_ms":1,"cap_ms":2,"age_max_ms":9},"unique":{"key":"u","until":"claimed"}}"#,
            r#"{"tasks":[{"kind":"a","payload":[1,2.5e3,"\u00e9\n",null]},{"kind":"b"}],"atomic":true}"#,
        ],
    ),
    (
        claim,
        &[
            r#"{"queues":["mail","reports"],"worker":"host-1:4711","max":10,"hold_ms":30000,"wait_ms":20000,"request_id":"r-1"}"#,
            r#"{"queues":[{"name":"mail","weight":3}],"worker":"w","session":"5f0c1d9e8a7b46c3925d1e0f4a3b2c1d"}"#,
            r#"{"id":"01994c2e-8f00-7001-8000-000000000000","worker":"w"}"#,
        ],
    ),
    (
        ack,
        &[
            r#"{"token":"t","output":{"sent":true},"then":[{"queue":"audit","kind":"log","payload":{}}]}"#,
            r#"{"acks":[{"token":"a"},{"token":"b","output":null}],"claim":{"queues":["mail"],"worker":"w"}}"#,
        ],
    ),
    (
        fail,
        &[
            r#"{"token":"t","error":"SMTP 451","detail":"…backtrace…","retry_in_ms":5000,"fatal":false}"#,
            r#"{"fails":[{"token":"t","error":"e"}]}"#,
        ],
    ),
    (extend, &[r#"{"token":"t","hold_ms":30000}"#, r#"{"extends":[{"token":"t"}]}"#]),
    (release, &[r#"{"token":"t","delay_ms":0}"#, r#"{"releases":[{"token":"t"}]}"#]),
    (
        progress,
        &[
            r#"{"token":"t","percent":40,"note":"page 4 of 10"}"#,
            r#"{"progress":[{"token":"t","percent":1}]}"#,
        ],
    ),
    (
        register,
        &[
            r#"{"id":"host-1:4711","host":"host-1","pid":4711,"slots":8,"queues":["mail"],"labels":{"zone":"a"},"version":"1","beat_ms":1000}"#,
        ],
    ),
    (
        beat,
        &[
            r#"{"session":"5f0c1d9e8a7b46c3925d1e0f4a3b2c1d","running":[{"id":"01994c2e-8f00-7001-8000-000000000000","fence":1}]}"#,
        ],
    ),
    (
        policy,
        &[
            r#"{"hold_ms":60000,"retry":{"attempts":5},"retention_ms":1,"retained_max":10,"dead_max":5,"shards":1}"#,
            r#"{"recovery":"manual","freed_to":"back","on_exhausted":"discard","shards":"all","tasks_max":null}"#,
        ],
    ),
    (action, &[r#"{"queue":"mail","state":"dead","kind":"k","dry_run":true}"#]),
    (transfer, &[r#"{"shard":1,"node":2}"#]),
    (leave, &[r#"{"node":4}"#]),
    (promote, &[r#"{"node":4}"#]),
    (rebalance, &["{}", ""]),
];

/// Reads a request, and what is written from it; both must be the same.
macro_rules! read_twice {
    ($kind:ty, $text:expr) => {{
        let value: $kind = parse::one($text)?;
        let written = to_string(&value).expect("a request is JSON");
        let again: $kind = parse::one(&written).expect("what was written is read");
        assert_eq!(to_string(&again).expect("a request is JSON"), written);
        value
    }};
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let of = |(n, (_, bodies)): (usize, &(Read, &[&str]))| {
        bodies.iter().map(|body| [&[n as u8], body.as_bytes()].concat()).collect::<Vec<_>>()
    };
    BODIES.iter().enumerate().flat_map(of).collect()
}

pub(crate) fn run(bytes: &[u8]) {
    let Some((choice, body)) = bytes.split_first() else { return };
    let (read, _) = BODIES[usize::from(*choice) % BODIES.len()];
    let body = Bytes::copy_from_slice(body);
    // The smallest task of a list has ten bytes; each is read twice and written twice here.
    let bytes_max = 256 * 1024 + 512 * body.len();
    let told = allocation::within(bytes_max, || parse::text(&body).and_then(|text| read(&body, text)));
    if let Err(Invalid(why)) = told {
        says_why(&why);
    }
}

fn enqueue(body: &Bytes, text: &str) -> Result<(), Invalid> {
    match parse::one_or_many::<TaskRequest<'_>, EnqueueManyRequest<'_>>(text, "tasks")? {
        OneOrMany::One(_) => task(body, &read_twice!(TaskRequest<'_>, text)),
        OneOrMany::Many(_) => {
            read_twice!(EnqueueManyRequest<'_>, text).tasks.iter().try_for_each(|one| task(body, one))
        }
    }
}

fn task(body: &Bytes, task: &TaskRequest<'_>) -> Result<(), Invalid> {
    if let Payload::Json(json) = task.payload()?
        && task.payload.is_some()
    {
        // As the server does: it panics when the payload is not a part of the body.
        assert_eq!(body.slice_ref(json.as_bytes()), json.as_bytes());
    }
    task.kind()?;
    task.headers()?;
    task.priority()?;
    task.start()?;
    task.order_key()?;
    task.dedup(None)?;
    task.dedup(Some("key"))?;
    task.unique()?;
    task.retry()?;
    check_hold(task.hold_ms)?;
    task.queue().map(drop)
}

fn claim(_: &Bytes, text: &str) -> Result<(), Invalid> {
    ask(&read_twice!(ClaimRequest<'_>, text))
}

fn ask(claim: &ClaimRequest<'_>) -> Result<(), Invalid> {
    claim.worker()?;
    claim.queues()?;
    claim.max()?;
    claim.wait()?;
    check_hold(claim.hold_ms)?;
    claim.request_id().map(drop)
}

fn ack(body: &Bytes, text: &str) -> Result<(), Invalid> {
    let one = |ack: &AckRequest<'_>| {
        ack.output()?;
        ack.then.iter().try_for_each(|then| task(body, then))?;
        ack.claim.as_ref().map_or(Ok(()), ask)
    };
    match parse::one_or_many::<AckRequest<'_>, AckManyRequest<'_>>(text, "acks")? {
        OneOrMany::One(_) => one(&read_twice!(AckRequest<'_>, text)),
        OneOrMany::Many(_) => read_twice!(AckManyRequest<'_>, text).acks.iter().try_for_each(one),
    }
}

fn fail(_: &Bytes, text: &str) -> Result<(), Invalid> {
    let one = |fail: &FailRequest<'_>| {
        assert!(fail.error().len() <= text.len() && fail.detail().len() <= text.len())
    };
    match parse::one_or_many::<FailRequest<'_>, FailManyRequest<'_>>(text, "fails")? {
        OneOrMany::One(_) => one(&read_twice!(FailRequest<'_>, text)),
        OneOrMany::Many(_) => read_twice!(FailManyRequest<'_>, text).fails.iter().for_each(one),
    }
    Ok(())
}

fn extend(_: &Bytes, text: &str) -> Result<(), Invalid> {
    let one = |extend: &ExtendRequest<'_>| check_hold(extend.hold_ms).map(drop);
    match parse::one_or_many::<ExtendRequest<'_>, ExtendManyRequest<'_>>(text, "extends")? {
        OneOrMany::One(_) => one(&read_twice!(ExtendRequest<'_>, text)),
        OneOrMany::Many(_) => read_twice!(ExtendManyRequest<'_>, text).extends.iter().try_for_each(one),
    }
}

fn release(_: &Bytes, text: &str) -> Result<(), Invalid> {
    match parse::one_or_many::<ReleaseRequest<'_>, ReleaseManyRequest<'_>>(text, "releases")? {
        OneOrMany::One(_) => drop(read_twice!(ReleaseRequest<'_>, text)),
        OneOrMany::Many(_) => drop(read_twice!(ReleaseManyRequest<'_>, text)),
    }
    Ok(())
}

fn progress(_: &Bytes, text: &str) -> Result<(), Invalid> {
    let one = |progress: &ProgressRequest<'_>| {
        assert!(progress.note().len() <= text.len());
        progress.percent().map(drop)
    };
    match parse::one_or_many::<ProgressRequest<'_>, ProgressManyRequest<'_>>(text, "progress")? {
        OneOrMany::One(_) => one(&read_twice!(ProgressRequest<'_>, text)),
        OneOrMany::Many(_) => read_twice!(ProgressManyRequest<'_>, text).progress.iter().try_for_each(one),
    }
}

fn register(_: &Bytes, text: &str) -> Result<(), Invalid> {
    let register = read_twice!(RegisterRequest<'_>, text);
    register.name()?;
    register.slots()?;
    register.queues()?;
    register.beat()?;
    register.labels()?;
    register.host()?;
    register.version().map(drop)
}

fn beat(_: &Bytes, text: &str) -> Result<(), Invalid> {
    read_twice!(BeatRequest, text);
    Ok(())
}

fn policy(_: &Bytes, text: &str) -> Result<(), Invalid> {
    let current = QueuePolicy::default();
    let before = current.clone();
    let over = read_twice!(PolicyRequest, text).over(&current);
    assert_eq!(current, before);
    over.map(drop)
}

fn action(_: &Bytes, text: &str) -> Result<(), Invalid> {
    read_twice!(ActionRequest, text);
    Ok(())
}

fn transfer(_: &Bytes, text: &str) -> Result<(), Invalid> {
    read_twice!(TransferRequest, text);
    Ok(())
}

fn leave(_: &Bytes, text: &str) -> Result<(), Invalid> {
    read_twice!(LeaveRequest, text);
    Ok(())
}

fn promote(_: &Bytes, text: &str) -> Result<(), Invalid> {
    read_twice!(PromoteRequest, text);
    Ok(())
}

fn rebalance(_: &Bytes, text: &str) -> Result<(), Invalid> {
    let text = if text.is_empty() { "{}" } else { text };
    read_twice!(RebalanceRequest, text);
    Ok(())
}
