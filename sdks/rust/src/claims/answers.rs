//! What a server's answer to an outcome means for its claim.

use std::time::Duration;

use tokio::time::Instant;
use wire::grpc;
use wire::grpc::outcome::Outcome as Said;
use wire::grpc::outcome_result::Result as Answer;

use super::{AGAIN_AFTER, AGAIN_AFTER_MAX, Claims, EXTEND_AT, Letter, REFUSED_FOR};
use crate::context::Cancelled;
use crate::error::{Error, TaskError};
use crate::outcome::{given_back, not_done};

/// What a server's no means for an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum No {
    /// The claim is another's, or nobody's.
    Lost,
    /// It would be refused again.
    Never,
    /// It may be taken later. Words that are not known here are such: a task that is done is not run again because
    /// a server is busy, or newer.
    Later,
}

impl No {
    fn of(code: &str) -> No {
        match code {
            "stale_token" | "not_claimed" | "already_ended" | "not_found" | "invalid_token" => No::Lost,
            "invalid_request" | "payload_too_large" => No::Never,
            _ => No::Later,
        }
    }
}

impl Claims {
    /// A server answered.
    pub(crate) fn answered(&mut self, result: grpc::OutcomeResult, now: Instant) {
        let Some((at, letter)) = self.sent.remove(&result.seq) else { return };
        match result.result {
            Some(Answer::Error(error)) => match No::of(&error.code) {
                No::Later => self.put_off(letter, error.retry_after_ms, now),
                No::Never => self.refused(&letter, error, now),
                No::Lost => self.not_ours(&letter),
            },
            Some(Answer::Held(held)) => self.goes_on(letter.number, result.seq, at, held.cancel_requested),
            Some(Answer::Settled(_)) => self.forget(letter.number),
            // The yes of a later version: what it is to depends on what was asked.
            None if self.is_ending(&letter) => self.forget(letter.number),
            None => self.goes_on(letter.number, result.seq, at, false),
        }
    }

    fn is_ending(&self, letter: &Letter) -> bool {
        self.held.get(&letter.number).is_some_and(|held| held.ending == Some(letter.outcome.seq))
    }

    /// The server could not do it now: it is asked again, unless something else was said since.
    fn put_off(&mut self, mut letter: Letter, retry_after_ms: Option<u64>, now: Instant) {
        let seq = letter.outcome.seq;
        let Some(held) = self.held.get(&letter.number) else { return };
        let is_extension = matches!(letter.outcome.outcome, Some(Said::Extend(_)));
        let is_current = match held.ending {
            Some(ending) => ending == seq,
            None => !is_extension || held.extending.is_some_and(|(extending, _)| extending == seq),
        };
        if !is_current {
            return;
        }
        let doubled = AGAIN_AFTER * 2u32.saturating_pow(letter.put_off.min(10));
        let wanted = retry_after_ms.map_or(Duration::ZERO, Duration::from_millis);
        letter.put_off += 1;
        self.later.insert((now + doubled.max(wanted).min(AGAIN_AFTER_MAX), seq), letter);
    }

    /// The server says that the claim is not ours.
    fn not_ours(&mut self, letter: &Letter) {
        let number = letter.number;
        let Some(held) = self.held.get(&number) else { return };
        let ends = held.ending == Some(letter.outcome.seq);
        // What was said before the outcome may be answered after it: the outcome's own answer counts.
        if held.ending.is_some() && !ends {
            return;
        }
        // Said twice, because the answer to the first was lost: nothing else was to be heard.
        let was_done =
            matches!(letter.outcome.outcome, Some(Said::Release(_) | Said::Fail(_))) && letter.sent > 1;
        if ends && was_done {
            return self.forget(number);
        }
        self.lose_number(number);
    }

    /// An extension or a note was taken.
    fn goes_on(&mut self, number: u64, seq: u64, at: Instant, cancel_requested: bool) {
        let Some(held) = self.held.get_mut(&number) else { return };
        if cancel_requested {
            held.running.tell(Cancelled::Asked);
        }
        if held.noting == Some(seq) {
            held.noting = None;
            return self.note(number);
        }
        if let Some((_, hold)) = held.extending.filter(|(extending, _)| *extending == seq) {
            held.extending = None;
            held.hold = hold;
            held.until = at + hold;
            held.extend_at = at + hold.mul_f64(EXTEND_AT);
            if let Some(answer) = held.answer.take() {
                let _ = answer.send(Ok(()));
            }
            self.set_timer(number);
        }
    }

    /// The server said no, and would say so again.
    fn refused(&mut self, letter: &Letter, error: grpc::Error, now: Instant) {
        let (number, seq, outcome) = (letter.number, letter.outcome.seq, &letter.outcome);
        let Some(held) = self.held.get_mut(&number) else { return };
        // What was said before the outcome may be answered after it: the outcome's own answer counts.
        if held.ending.is_some_and(|ending| ending != seq) {
            return;
        }
        if held.ending == Some(seq) {
            tracing::error!(id = %held.running.id, code = error.code, message = error.message, "outcome refused");
            // An ack that cannot be taken, such as an output that is too large, is a failed attempt.
            let is_ack = matches!(outcome.outcome, Some(Said::Ack(_)));
            if matches!(outcome.outcome, Some(Said::Release(_))) {
                return self.forget(number);
            }
            let said = if is_ack {
                not_done(&TaskError::retry(format!(
                    "the ack was refused: {} ({})",
                    error.message, error.code
                )))
            } else {
                given_back(Duration::ZERO)
            };
            let seq = self.say(number, said);
            self.held.entry(number).and_modify(|held| held.ending = Some(seq));
        } else if held.noting == Some(seq) {
            tracing::warn!(id = %held.running.id, message = error.message, "progress refused");
            held.noting = None;
        } else if held.extending.is_some_and(|(extending, _)| extending == seq) {
            // The hold is as before, and so is the time to extend it, unless that has come.
            held.extending = None;
            if held.extend_at <= now {
                held.extend_at = now + REFUSED_FOR;
            }
            if let Some(answer) = held.answer.take() {
                let _ = answer.send(Err(Error::refused(error)));
            }
            self.set_timer(number);
        }
    }
}
