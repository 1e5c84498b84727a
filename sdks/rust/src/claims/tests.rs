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
    Hold { hold: HOLD, is_sure: true, waited: Duration::ZERO, extends, wanted: None }
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

/// Counts the claims that were lost.
#[derive(Default)]
struct Losses(std::sync::atomic::AtomicU32);

impl Metrics for Losses {
    fn lost(&self, _: &str, _: &str) {
        self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }
}

fn extend(claims: &mut Claims, hold: Duration) -> oneshot::Receiver<Result<(), Error>> {
    let (answer, answered) = oneshot::channel();
    claims.wish(ExtendWish { number: 1, hold, answer });
    answered
}

#[test]
fn a_refused_extension_changes_nothing() {
    let (mut claims, start) = (claims(), Instant::now());
    begin(&mut claims, 1, held(true), start);
    let mut answered = extend(&mut claims, Duration::from_secs(48 * 3600));
    let sent = claims.outcomes(10, start);
    claims.answered(no(sent[0].seq, "invalid_request"), start);
    assert_eq!(answered.try_recv().unwrap().unwrap_err().code(), Some("invalid_request"));
    assert_eq!(claims.next_due(), Some(start + HOLD / 3), "it is extended as before");
    claims.due(start + HOLD / 3);
    let sent = claims.outcomes(10, start + HOLD / 3);
    let hold = grpc::Extension { hold_ms: Some(HOLD.as_millis() as u64) };
    assert_eq!(sent[0].outcome, Some(Said::Extend(hold)), "by its old hold");
    claims.answered(no(sent[0].seq, "invalid_request"), start + HOLD / 3);
    assert_eq!(claims.next_due(), Some(start + HOLD / 3 + REFUSED_FOR), "and not in a loop");
}

#[test]
fn a_handlers_own_hold_counts_once_the_server_knows_of_it() {
    let (mut claims, start) = (claims(), Instant::now());
    let own = Duration::from_secs(3);
    begin(&mut claims, 1, Hold { wanted: Some(own), ..held(true) }, start);
    let sent = claims.outcomes(10, start);
    assert_eq!(sent[0].outcome, Some(Said::Extend(grpc::Extension { hold_ms: Some(3_000) })));
    let answer = Answer::Held(grpc::Held::default());
    claims.answered(grpc::OutcomeResult { seq: sent[0].seq, result: Some(answer) }, start);
    assert_eq!(claims.next_due(), Some(start + own / 3));
}

#[test]
fn what_a_server_cannot_do_now_is_asked_again_and_fails_nothing() {
    for code in
        ["unavailable", "timeout", "too_many_requests", "memory_full", "disk_full", "internal", "a_new_word"]
    {
        let (mut claims, mut now) = (claims(), Instant::now());
        begin(&mut claims, 1, held(true), now);
        claims.end(1, Ok(Bytes::new()));
        let first = claims.outcomes(10, now);
        let mut pauses = Vec::new();
        for _ in 0..8 {
            claims.answered(no(first[0].seq, code), now);
            let again = claims.next_due().unwrap_or_else(|| panic!("{code}: it is given up"));
            pauses.push(again - now);
            now = again;
            claims.due(now);
            assert_eq!(claims.outcomes(10, now), first, "{code}: the same again");
        }
        assert!(pauses[0] == AGAIN_AFTER && pauses.is_sorted() && pauses[7] == AGAIN_AFTER_MAX, "{pauses:?}");
    }
}

#[test]
fn a_server_may_say_when_to_ask_again() {
    let (mut claims, now) = (claims(), Instant::now());
    begin(&mut claims, 1, held(true), now);
    claims.end(1, Ok(Bytes::new()));
    let seq = claims.outcomes(10, now)[0].seq;
    let error =
        grpc::Error { code: "memory_full".into(), retry_after_ms: Some(1_500), ..grpc::Error::default() };
    claims.answered(grpc::OutcomeResult { seq, result: Some(Answer::Error(error)) }, now);
    assert_eq!(claims.next_due(), Some(now + Duration::from_millis(1_500)));
}

#[test]
fn an_extension_that_was_overtaken_is_not_asked_for_again() {
    let (mut claims, now) = (claims(), Instant::now());
    begin(&mut claims, 1, held(true), now);
    let _first = extend(&mut claims, Duration::from_secs(5));
    let _second = extend(&mut claims, Duration::from_secs(50));
    let sent = claims.outcomes(10, now);
    claims.answered(no(sent[0].seq, "unavailable"), now);
    assert!(claims.later.is_empty(), "it would shorten the second");
    claims.answered(no(sent[1].seq, "unavailable"), now);
    assert_eq!(claims.later.len(), 1);
}

#[test]
fn an_ack_that_would_be_refused_again_is_a_failed_attempt() {
    for code in ["invalid_request", "payload_too_large"] {
        let (mut claims, now) = (claims(), Instant::now());
        begin(&mut claims, 1, held(true), now);
        claims.end(1, Ok(Bytes::new()));
        let seq = claims.outcomes(10, now)[0].seq;
        claims.answered(no(seq, code), now);
        let said = claims.outcomes(10, now).pop().unwrap().outcome;
        let Some(Said::Fail(failed)) = said else { panic!("{code}: {said:?}") };
        assert!(failed.error.contains(code), "{}", failed.error);
    }
}

#[test]
fn an_output_that_no_server_takes_is_never_sent() {
    let (mut claims, now) = (claims(), Instant::now());
    claims.set_message_bytes_max(1_000);
    begin(&mut claims, 1, held(true), now);
    claims.end(1, Ok(vec![b'1'; 1_000].into()));
    let sent = claims.outcomes(10, now);
    let Some(Said::Fail(failed)) = &sent[0].outcome else { panic!("{sent:?}") };
    assert!(failed.error.contains("a server takes at most"), "{}", failed.error);
}

#[test]
fn a_message_of_many_outcomes_keeps_to_its_bytes() {
    let (mut claims, now) = (claims(), Instant::now());
    for number in 1..=3 {
        begin(&mut claims, number, held(true), now);
        claims.end(number, Ok(vec![b'1'; OUTCOMES_BYTES_MAX * 2 / 3].into()));
    }
    assert_eq!([claims.outcomes(10, now).len(), claims.outcomes(10, now).len()], [1, 1]);
}

#[test]
fn a_release_said_twice_is_no_loss() {
    for (what, again, code, losses) in [
        ("said once", false, "not_claimed", 1),
        ("its answer was lost with the stream", true, "not_claimed", 0),
        ("and another has it by now", true, "stale_token", 0),
    ] {
        let metrics = Arc::new(Losses::default());
        let (mut claims, now) = (Claims::new(metrics.clone()), Instant::now());
        begin(&mut claims, 1, held(true), now);
        claims.end(1, Err(TaskError::release("x")));
        let mut sent = claims.outcomes(10, now);
        if again {
            claims.send_again();
            sent = claims.outcomes(10, now);
        }
        claims.answered(no(sent[0].seq, code), now);
        assert!(claims.is_empty(), "{what}");
        assert_eq!(metrics.0.load(std::sync::atomic::Ordering::Relaxed), losses, "{what}");
    }
}

#[test]
fn who_was_told_to_stop_gives_back_whatever_it_was_told_later() {
    for later in [Cancelled::Asked, Cancelled::Deadline] {
        let (mut claims, now) = (claims(), Instant::now());
        let running = begin(&mut claims, 1, held(true), now);
        running.tell(Cancelled::Stopping);
        running.tell(later);
        claims.end(1, Err(TaskError::retry("x")));
        let said = claims.outcomes(1, now).pop().unwrap().outcome;
        assert!(matches!(said, Some(Said::Release(_))), "{later:?}: {said:?}");
    }
}

#[test]
fn what_passed_before_the_task_came_counts_towards_its_hold() {
    let (mut claims, start) = (claims(), Instant::now());
    let waited = Hold { waited: HOLD / 5, ..held(true) };
    let running = begin(&mut claims, 1, waited, start);
    assert_eq!(claims.next_due(), Some(start + HOLD / 3 - HOLD / 5));
    begin(&mut claims, 2, Hold { waited: HOLD / 2, ..held(true) }, start);
    assert_eq!(claims.next_due(), Some(start), "it is extended at once");
    claims.due(start + HOLD - HOLD / 5);
    assert_eq!(running.told(), Some(Cancelled::Deadline));
    let sent = claims.outcomes(10, start);
    let whole = Some(Said::Extend(grpc::Extension { hold_ms: Some(30_000) }));
    assert!(sent.iter().all(|said| said.outcome == whole), "for all of it, from then on: {sent:?}");
}

#[test]
fn an_answer_of_a_later_version_costs_no_slot() {
    let (mut claims, now) = (claims(), Instant::now());
    let running = begin(&mut claims, 1, held(true), now);
    running.progress.lock().latest = Some(50.into());
    claims.note(1);
    claims.due(now + HOLD / 3);
    let empty = |seq| grpc::OutcomeResult { seq, result: None };
    for sent in claims.outcomes(10, now) {
        claims.answered(empty(sent.seq), now);
    }
    assert_eq!((claims.listed().len(), claims.executing()), (1, 1), "it still runs");
    claims.end(1, Ok(Bytes::new()));
    let ack = claims.outcomes(10, now).remove(0);
    claims.answered(empty(ack.seq), now);
    assert!(claims.is_empty() && claims.executing() == 0);
}
