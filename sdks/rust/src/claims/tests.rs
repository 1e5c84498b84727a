//! Claims from push to answer, without a stream.

use bytes::Bytes;
use wire::grpc::outcome_result::Result as Answer;

use super::*;
use crate::context::{Line, States};
use crate::hub::Hub;
use crate::middleware::NoMetrics;
use crate::task::RawTask;

const HOLD: Duration = Duration::from_secs(30);

fn claims() -> Claims {
    Claims::new(Arc::new(NoMetrics))
}

fn begin(claims: &mut Claims, number: u64, hold: Hold, now: Instant) -> Arc<Running> {
    let mut task = RawTask::made_up("q", "k", Bytes::new());
    task.id = format!("task-{number}").into();
    let line = Line::Worker(Arc::new(Hub::default()));
    let running = Arc::new(Running::new(number, &task, Arc::new(States::default()), line));
    claims.begin(running.clone(), format!("token-{number}"), hold, now);
    running
}

fn held(extends: bool) -> Hold {
    Hold { hold: HOLD, is_sure: true, extends, is_news: false }
}

fn no(seq: u64, code: &str) -> grpc::OutcomeResult {
    let error = grpc::Error { code: code.into(), ..grpc::Error::default() };
    grpc::OutcomeResult { seq, result: Some(Answer::Error(error)) }
}

#[test]
fn a_claim_is_extended_at_a_third_of_its_hold_and_again_after_each_answer() {
    let (mut claims, start) = (claims(), Instant::now());
    begin(&mut claims, 1, held(true), start);
    assert_eq!(claims.next_due(), Some(start + HOLD / 3));
    claims.due(start + HOLD / 3);
    let sent = claims.outcomes(10, start + HOLD / 3);
    assert!(matches!(&sent[..], [grpc::Outcome { outcome: Some(Said::Extend(_)), .. }]), "{sent:?}");
    let answer = Answer::Held(grpc::Held::default());
    claims.answered(grpc::OutcomeResult { seq: sent[0].seq, result: Some(answer) }, start + HOLD / 2);
    assert_eq!(claims.next_due(), Some(start + HOLD / 3 + HOLD / 3), "from when it was sent");
}

#[test]
fn one_that_is_not_extended_is_told_at_its_deadline() {
    let (mut claims, start) = (claims(), Instant::now());
    let running = begin(&mut claims, 1, held(false), start);
    claims.due(start + HOLD - Duration::from_millis(1));
    assert_eq!(running.told(), None);
    claims.due(start + HOLD);
    assert_eq!((running.told(), claims.has_outcomes()), (Some(Cancelled::Deadline), false));
}

#[test]
fn an_outcome_is_sent_again_until_it_is_answered_and_listed_until_then() {
    let (mut claims, now) = (claims(), Instant::now());
    begin(&mut claims, 1, held(true), now);
    claims.end(1, Ok(Bytes::new()));
    let first = claims.outcomes(10, now);
    claims.send_again();
    let again = claims.outcomes(10, now);
    assert_eq!(first, again);
    claims.answered(no(first[0].seq, "unavailable"), now);
    assert!(!claims.has_outcomes(), "not at once");
    claims.due(now + AGAIN_AFTER);
    assert_eq!(claims.outcomes(10, now), first);
    assert_eq!((claims.listed().len(), claims.is_settled()), (1, false));
    let settled = Answer::Settled(grpc::Settled::default());
    claims.answered(grpc::OutcomeResult { seq: first[0].seq, result: Some(settled) }, now);
    assert!(claims.is_empty() && claims.is_settled());
}

#[test]
fn what_is_lost_is_told_and_says_nothing_more() {
    for (what, lose) in [
        ("by a beat", (|claims: &mut Claims| claims.lose("task-1", 1)) as fn(&mut Claims)),
        ("with the session", |claims| claims.lose_all()),
    ] {
        let (mut claims, now) = (claims(), Instant::now());
        let running = begin(&mut claims, 1, held(true), now);
        lose(&mut claims);
        assert_eq!((running.told(), claims.listed().len()), (Some(Cancelled::Lost), 0), "{what}");
        assert_eq!(claims.executing(), 1, "{what}: its handler still has its slot");
        claims.end(1, Ok(Bytes::new()));
        assert!(claims.is_empty() && !claims.has_outcomes(), "{what}");
    }
}

#[test]
fn a_late_no_to_a_note_does_not_cost_the_ack() {
    let (mut claims, now) = (claims(), Instant::now());
    let running = begin(&mut claims, 1, held(true), now);
    running.progress.lock().latest = Some(50.into());
    claims.note(1);
    claims.end(1, Ok(Bytes::new()));
    let sent = claims.outcomes(10, now);
    claims.answered(no(sent[0].seq, "not_claimed"), now);
    assert_eq!(claims.listed().len(), 1, "the ack is still to be answered");
}

#[test]
fn when_the_worker_stops_an_error_gives_the_task_back() {
    for (what, told, error, released) in [
        ("an error by itself", None, TaskError::retry("x"), false),
        ("an error on a stop", Some(Cancelled::Stopping), TaskError::retry("x"), true),
        ("fatal is fatal", Some(Cancelled::Stopping), TaskError::fatal("x"), false),
        ("a release", None, TaskError::release("x"), true),
    ] {
        let (mut claims, now) = (claims(), Instant::now());
        let running = begin(&mut claims, 1, held(true), now);
        if let Some(why) = told {
            running.tell(why);
        }
        claims.end(1, Err(error));
        let said = claims.outcomes(1, now).pop().unwrap().outcome;
        assert_eq!(matches!(said, Some(Said::Release(_))), released, "{what}");
    }
}
