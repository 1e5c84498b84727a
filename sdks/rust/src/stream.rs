//! The Work stream: one thread with a small runtime of its own, apart from the handlers.
//!
//! It connects to any address, says hello, grants credit, takes tasks, sends outcomes and beats, and connects
//! again when the connection breaks, with the same session. A handler that blocks its thread for a minute therefore
//! keeps its claim. What is held is in `claims.rs`; this file decides when to say what.

use std::sync::Arc;
use std::time::Duration;

use rand::Rng as _;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};
use wire::grpc;
use wire::grpc::ServerMessage;
use wire::grpc::server_message::Message as FromServer;
use wire::grpc::worker_message::Message as FromWorker;

use crate::claims::{Claims, Hold};
use crate::client::Backoff;
use crate::context::{Context, Line, Running};
use crate::error::{Error, TaskError, is_elsewhere};
use crate::hello::{End, HURRIED_TRIES, Hurry, Open, of_error, open};
use crate::hub::Hub;
use crate::phase::{OnStream, Phase};
use crate::running::Wish;
use crate::task::RawTask;
use crate::worker::{Report, Setup};

/// A connection that broke is made again within this the first time.
const REDIAL_WITHIN: Duration = Duration::from_millis(20);
/// A stream that lived so long was a good one: the next pause is short again.
const GOOD_AFTER: Duration = Duration::from_secs(5);
/// A worker whose session may live comes back no later than this: its claims are freed soon after a break.
const RESUME_WITHIN: Duration = Duration::from_millis(250);
/// Tasks that a beat can list.
const LISTED_MAX: usize = 10_000;
/// How long leaving may take, after the last handler.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a goodbye may take that leaves something unsaid.
const GOODBYE_TIMEOUT: Duration = Duration::from_secs(1);
/// A node that could do nothing for so long is left for another.
const UNAVAILABLE_MAX: Duration = Duration::from_secs(3);
/// A claim is supposed to hold so long when nothing is known about it.
const HOLD_DEFAULT: Duration = Duration::from_secs(30);

/// A worker's stream over all its connections.
pub(crate) struct Stream {
    setup: Arc<Setup>,
    hub: Arc<Hub>,
    wish: watch::Receiver<Wish>,
    report: watch::Sender<Report>,
    claims: Claims,
    phase: Phase,
    session: String,
    on: OnStream,
    next_number: u64,
    /// It leaves though not all that it said was answered.
    has_given_up: bool,
}

impl Stream {
    pub(crate) fn new(
        setup: Arc<Setup>,
        hub: Arc<Hub>,
        wish: watch::Receiver<Wish>,
        report: watch::Sender<Report>,
    ) -> Stream {
        let claims = Claims::new(setup.metrics.clone());
        let (session, on) = (String::new(), OnStream::default());
        Stream {
            setup,
            hub,
            wish,
            report,
            claims,
            phase: Phase::Running,
            session,
            on,
            next_number: 0,
            has_given_up: false,
        }
    }

    /// Works until the worker has left, or was refused.
    pub(crate) async fn run(mut self) -> Result<(), Error> {
        let mut backoff = Backoff::default();
        let mut index = self.setup.client.lines.any();
        // Since the last stream.
        let mut tries = 0;
        loop {
            let (setup, hurry) = (self.setup.clone(), self.hurry(tries));
            let opened = match self.meanwhile(open(setup, self.session.clone(), index, hurry)).await {
                Some(opened) => opened,
                None => return self.left(),
            };
            tries += 1;
            let began = Instant::now();
            let was_open = opened.is_ok();
            let end = match opened {
                Ok(open) => {
                    (index, tries) = (open.index, 0);
                    self.work(open).await
                }
                Err(end) => end,
            };
            let is_good = was_open && began.elapsed() >= GOOD_AFTER;
            if is_good {
                backoff.reset();
            }
            let pause = match end {
                End::Left => return self.left(),
                End::Refused(error) => {
                    self.claims.lose_all();
                    return Err(error);
                }
                End::SessionOver(reason) => {
                    tracing::info!(reason, "the session is over: beginning a new one");
                    self.lose_session();
                    backoff.next()
                }
                End::NameTaken(reason) => {
                    // Its predecessor may be about to end, so this is not the end.
                    tracing::warn!(reason, "the worker's name is taken: trying again");
                    self.lose_session();
                    backoff.next()
                }
                End::Broken(reason) => {
                    tracing::info!(reason, "the stream to the server broke: connecting again");
                    match (is_good, was_open) {
                        (true, _) => rand::rng().random_range(Duration::ZERO..REDIAL_WITHIN),
                        (false, _) if was_open || hurry == Hurry::Resume => backoff.next().min(RESUME_WITHIN),
                        (false, _) => backoff.next(),
                    }
                }
            };
            self.on = OnStream::default();
            self.report.send_modify(|report| report.connected_to = None);
            index = self.setup.client.lines.after(index);
            if self.meanwhile(sleep(pause)).await.is_none() {
                return self.left();
            }
        }
    }

    /// The worker has left. Whether in order: what no server took it cannot know.
    fn left(&self) -> Result<(), Error> {
        match self.claims.is_settled() {
            true => Ok(()),
            false => {
                let reason = "the worker left, and no server answered its last outcomes in time: what it held is \
                              freed with its session";
                Err(Error::Unknown { reason: reason.into() })
            }
        }
    }

    /// Whether there is a session to be resumed before its claims are freed.
    fn hurry(&self, tries: u32) -> Hurry {
        if self.session.is_empty() || tries >= HURRIED_TRIES { Hurry::No } else { Hurry::Resume }
    }

    /// What we held is ours no more; the next hello gets a new session.
    fn lose_session(&mut self) {
        self.session.clear();
        self.claims.lose_all();
    }

    /// Waits for `what` while the handlers go on and time passes. Nothing when there is no more reason to wait.
    async fn meanwhile<R>(&mut self, what: impl Future<Output = R>) -> Option<R> {
        tokio::pin!(what);
        loop {
            self.take_inbox();
            let now = Instant::now();
            self.pass_time(now);
            if let Phase::Leaving { give_up_at } = self.phase
                && (now >= give_up_at || self.claims.is_settled())
            {
                return None;
            }
            let next = self.next_time();
            tokio::select! {
                result = &mut what => return Some(result),
                () = self.hub.news() => {}
                () = at(next) => {}
                () = changed(&mut self.wish) => {}
            }
        }
    }

    /// Works on one stream until it ends.
    async fn work(&mut self, open: Open) -> End {
        // The line lives as long as its stream.
        let Open { grpc: _line, to_server, mut from_server, address, welcome, .. } = open;
        self.welcomed(&welcome, &address);
        let mut timer = std::pin::pin!(sleep(Duration::ZERO));
        loop {
            self.take_inbox();
            let now = Instant::now();
            self.pass_time(now);
            if self.on.silent_at(self.claims.is_empty()).is_some_and(|at| now >= at) {
                return End::Broken(format!("{address} does not answer beats"));
            }
            if let Phase::Leaving { give_up_at } = self.phase
                && now >= give_up_at
                && self.gives_up(now)
            {
                return End::Left;
            }
            let has_words = self.has_words(now);
            // One that rings too soon costs a look; setting it anew each time costs more.
            if let Some(next) = self.next_time()
                && (next < timer.deadline() || timer.is_elapsed())
            {
                timer.as_mut().reset(next);
            }
            tokio::select! {
                permit = to_server.reserve(), if has_words => {
                    let Ok(permit) = permit else { return End::Broken("the connection is gone".into()) };
                    permit.send(self.next_words(now));
                    while self.has_words(now) && let Ok(permit) = to_server.try_reserve() {
                        permit.send(self.next_words(now));
                    }
                }
                message = from_server.message() => match message {
                    Ok(Some(ServerMessage { message: Some(message) })) => {
                        if let Some(end) = self.heard(message) {
                            return end;
                        }
                    }
                    Ok(Some(_)) => {}
                    Ok(None) if self.on.said_goodbye && self.is_all_said() => return End::Left,
                    Ok(None) => return End::Broken(format!("{address} ended the stream")),
                    // Whoever was taken in is not wrong by itself: the next hello tells.
                    Err(status) => return lasting(of_error(&Error::of_status(&status, &address))),
                },
                () = self.hub.news() => {}
                () = &mut timer, if !timer.is_elapsed() => {}
                () = changed(&mut self.wish) => {}
            }
        }
    }

    /// Leaving takes too long. Whether to go without a word: not before a goodbye, since a worker that leaves in order
    /// costs its tasks no attempt, whatever became of its last outcomes.
    fn gives_up(&mut self, now: Instant) -> bool {
        if std::mem::replace(&mut self.has_given_up, true) {
            return true;
        }
        self.phase = Phase::Leaving { give_up_at: now + GOODBYE_TIMEOUT };
        false
    }

    /// The server took us in.
    fn welcomed(&mut self, welcome: &grpc::Welcome, address: &str) {
        let had_session = !self.session.is_empty();
        tracing::info!(address, session = welcome.session, resumed = welcome.resumed, "connected");
        self.setup.metrics.connected(address);
        if had_session && !welcome.resumed {
            self.claims.lose_all();
        }
        self.session.clone_from(&welcome.session);
        self.claims.set_message_bytes_max(welcome.message_bytes_max);
        self.claims.send_again();
        let or = |millis: u64, default: Duration| match millis {
            0 => default,
            millis => Duration::from_millis(millis),
        };
        self.on = OnStream {
            outcomes_max: (welcome.outcomes_max.max(1)) as usize,
            beat: or(welcome.beat_ms, self.setup.beat).min(self.setup.beat),
            idle_beat: or(welcome.idle_beat_ms, self.setup.beat),
            // What we hold is told at once, so that both sides agree.
            beat_at: Some(Instant::now()),
            is_drain_known: welcome.state != "running",
            ..OnStream::default()
        };
        self.report.send_modify(|report| {
            report.connected_to = Some(address.to_owned());
            report.session.clone_from(&welcome.session);
        });
        self.asked(&welcome.state);
    }

    /// What handlers said.
    fn take_inbox(&mut self) {
        let inbox = self.hub.take();
        for wish in inbox.extends {
            self.claims.wish(wish);
        }
        for number in inbox.progress {
            self.claims.note(number);
        }
        for ended in inbox.ended {
            self.claims.end(ended.number, ended.outcome);
        }
    }

    /// Does what is due, and goes on to the next phase.
    fn pass_time(&mut self, now: Instant) {
        self.claims.due(now);
        let wish = *self.wish.borrow_and_update();
        match wish {
            Wish::Run => {}
            Wish::Drain if self.phase == Phase::Running => {
                self.phase = Phase::Draining { cancel_at: Some(now + self.setup.grace) };
            }
            Wish::Drain => {
                // A person asked before; from now on there is a limit.
                if self.phase == (Phase::Draining { cancel_at: None }) {
                    self.phase = Phase::Draining { cancel_at: Some(now + self.setup.grace) };
                }
            }
            Wish::Stop => self.stop(now),
        }
        if let Phase::Draining { cancel_at: Some(at) } = self.phase
            && now >= at
        {
            tracing::warn!(
                running = self.claims.executing(),
                "the grace is used up: telling handlers to stop"
            );
            self.claims.cancel_all();
            self.phase = Phase::Cancelling { release_at: now + self.setup.cancel_grace };
        }
        if let Phase::Cancelling { release_at } = self.phase
            && now >= release_at
        {
            self.stop(now);
        }
        if matches!(self.phase, Phase::Draining { .. } | Phase::Cancelling { .. })
            && self.claims.executing() == 0
        {
            self.phase = Phase::Leaving { give_up_at: now + LEAVE_TIMEOUT };
        }
        let phase = self.phase.as_str();
        self.report.send_if_modified(|report| std::mem::replace(&mut report.state, phase) != phase);
    }

    /// Gives back all that runs, at once.
    fn stop(&mut self, now: Instant) {
        if !matches!(self.phase, Phase::Leaving { .. }) {
            if self.claims.executing() > 0 {
                tracing::warn!(running = self.claims.executing(), "giving back what still runs");
            }
            self.claims.release_all();
            self.phase = Phase::Leaving { give_up_at: now + LEAVE_TIMEOUT };
        }
    }

    /// What a server asks of the worker.
    fn asked(&mut self, state: &str) {
        match state {
            "draining" if self.phase == Phase::Running => {
                tracing::info!("asked to drain");
                self.on.is_drain_known = true;
                self.phase = Phase::Draining { cancel_at: None };
            }
            "stopping" if matches!(self.phase, Phase::Running | Phase::Draining { .. }) => {
                tracing::info!("asked to stop");
                self.on.is_drain_known = true;
                self.claims.cancel_all();
                self.phase = Phase::Cancelling { release_at: Instant::now() + self.setup.cancel_grace };
            }
            _ => {}
        }
    }

    /// A message of the server.
    fn heard(&mut self, message: FromServer) -> Option<End> {
        let now = Instant::now();
        // Whatever it is, somebody is there.
        self.on.unanswered_since = None;
        match message {
            // Those that crossed our goodbye are given back by it.
            FromServer::Tasks(_) if self.on.said_goodbye => {}
            FromServer::Tasks(tasks) => {
                self.on.tasks_came(tasks.claims.len(), now);
                for claim in tasks.claims {
                    self.begin(claim, now);
                }
            }
            FromServer::Results(results) => {
                for result in results.results {
                    self.claims.answered(result, now);
                }
            }
            FromServer::Beat(answer) => {
                for task in &answer.cancel {
                    self.claims.cancel(&task.id, task.fence);
                }
                for task in &answer.lost {
                    self.claims.lose(&task.id, task.fence);
                }
                self.on.beat_answered(answer.idle_beat_ms, self.claims.is_empty(), now);
                self.asked(&answer.state);
            }
            FromServer::Drain(_) => self.asked("draining"),
            FromServer::Stop(_) => self.asked("stopping"),
            FromServer::Cancel(cancel) => self.claims.cancel(&cancel.id, cancel.fence),
            FromServer::Error(error) => return self.heard_error(error, now),
            FromServer::Welcome(_) => {}
        }
        None
    }

    /// Something did not work at the server. It goes on by itself, unless it does not for long.
    fn heard_error(&mut self, error: grpc::Error, now: Instant) -> Option<End> {
        let since = self.on.troubled(now);
        let is_node = is_elsewhere(&error.code) && now >= since + UNAVAILABLE_MAX;
        let error = Error::refused(error);
        if error.code() == Some("unknown_worker") || is_node {
            return Some(lasting(of_error(&error)));
        }
        if since == now {
            tracing::warn!(%error, "the server has trouble");
        }
        None
    }

    /// A task was pushed: its handler begins.
    fn begin(&mut self, claim: grpc::Claim, now: Instant) {
        self.on.received += 1;
        self.on.credit = self.on.credit.saturating_sub(1);
        let handler = self.setup.handler(&claim.kind);
        let own = handler.as_ref().and_then(|handler| handler.hold);
        // Older servers do not say; then it is as we asked, or what queues hold by default.
        let said = (claim.hold_ms > 0).then(|| Duration::from_millis(claim.hold_ms)).or(self.setup.hold);
        let hold = Hold {
            hold: said.unwrap_or(HOLD_DEFAULT),
            is_sure: said.is_some(),
            waited: Duration::from_millis(claim.waited_ms),
            extends: handler.as_ref().is_none_or(|handler| handler.extends),
            wanted: own.filter(|own| said != Some(*own)),
        };
        let token = claim.token.clone();
        let task = RawTask::of(claim);
        self.next_number += 1;
        let line = Line::Worker(self.hub.clone());
        let running = Running::new(self.next_number, &task, self.setup.states.clone(), line);
        let running = Arc::new(running.of_worker(self.setup.name.clone()));
        self.hub.begin(running.clone());
        self.claims.begin(running.clone(), token, hold, now);
        if self.phase != Phase::Running {
            // It was on its way when we stopped.
            return self.hub.end(self.next_number, Err(TaskError::release("the worker stops")));
        }
        let work = crate::worker::work(self.setup.clone(), self.hub.clone(), handler, task, Context(running));
        let spawned = self.setup.runtime.spawn(work);
        self.claims.set_abort(self.next_number, spawned.abort_handle());
    }

    /// Room for more tasks that the server does not know of.
    fn more(&self) -> u32 {
        // Outcomes that wait for their answers are held back first: a server that is behind gets no more to do.
        let is_behind = self.claims.unanswered() > self.on.outcomes_max / 2;
        if self.phase != Phase::Running || is_behind {
            return 0;
        }
        let slots = (self.setup.slots as usize).saturating_sub(self.claims.executing());
        // A beat lists all that is held, also what is done and not answered yet.
        let free = slots.min(LISTED_MAX.saturating_sub(self.claims.len()));
        (free as u32).saturating_sub(self.on.credit)
    }

    /// Credit that is open cannot be taken back: the server is told to push nothing more, whatever the credit.
    fn must_say_draining(&self) -> bool {
        self.phase != Phase::Running && !self.on.is_drain_known
    }

    fn may_send_outcomes(&self) -> bool {
        self.claims.has_outcomes() && self.claims.unanswered() < self.on.outcomes_max
    }

    /// Only when all is answered, if there is time: what cannot be taken now is asked again before.
    fn may_say_goodbye(&self) -> bool {
        matches!(self.phase, Phase::Leaving { .. }) && !self.on.said_goodbye && self.is_all_said()
    }

    fn is_all_said(&self) -> bool {
        self.claims.is_settled() || self.has_given_up
    }

    /// Whether there is something to say now.
    fn has_words(&self, now: Instant) -> bool {
        !self.on.said_goodbye
            && (self.is_beat_due(now)
                || self.must_say_draining()
                || self.may_send_outcomes()
                || self.more() > 0
                || self.may_say_goodbye())
    }

    fn is_beat_due(&self, now: Instant) -> bool {
        self.on.beat_at.is_some_and(|at| at <= now)
    }

    /// The next thing to say, of which there is one.
    fn next_words(&mut self, now: Instant) -> grpc::WorkerMessage {
        let message = if self.is_beat_due(now) {
            self.on.beat_at = Some(now + self.on.beat_every(self.claims.is_empty(), now));
            self.on.unanswered_since.get_or_insert(now);
            FromWorker::Beat(grpc::HeldTasks { held: self.claims.listed(), received: Some(self.on.received) })
        } else if self.must_say_draining() {
            self.on.is_drain_known = true;
            FromWorker::Draining(grpc::Draining {})
        } else if self.may_send_outcomes() {
            let room = self.on.outcomes_max - self.claims.unanswered();
            let outcomes = self.claims.outcomes(room, now);
            // The room that they leave goes with them.
            let credit = self.more();
            self.on.credit += credit;
            FromWorker::Outcomes(grpc::Outcomes { outcomes, credit })
        } else if let more @ 1.. = self.more() {
            self.on.credit += more;
            FromWorker::Credit(grpc::Credit { more })
        } else {
            self.on.said_goodbye = true;
            FromWorker::Goodbye(grpc::Goodbye {})
        };
        grpc::WorkerMessage { message: Some(message) }
    }

    /// When to look again though nothing happens.
    fn next_time(&self) -> Option<Instant> {
        let silent_at = self.on.silent_at(self.claims.is_empty());
        let beat_at = self.on.beat_at.filter(|_| !self.on.said_goodbye);
        let times = [self.phase.ends_at(), silent_at, beat_at, self.claims.next_due()];
        times.into_iter().flatten().min()
    }
}

/// What an end in the middle means: one that was taken in may come again.
fn lasting(end: End) -> End {
    match end {
        End::Refused(error) => End::Broken(error.to_string()),
        end => end,
    }
}

/// Returns then; never without a time.
async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// Returns when there is a new wish; never when nobody can wish any more.
async fn changed(wish: &mut watch::Receiver<Wish>) {
    if wish.changed().await.is_err() {
        std::future::pending().await
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::{Client, Worker};

    fn stream() -> Stream {
        let client = Client::builder("http://127.0.0.1:1").connect_lazily().unwrap();
        let worker = Worker::new(client).queues(["q"]);
        let worker = worker.handle_any(async |_: RawTask, _: Context| Ok::<Bytes, TaskError>(Bytes::new()));
        let setup = Arc::new(worker.set_up("w", "host".into()).unwrap());
        let (_, wish) = watch::channel(Wish::Run);
        Stream::new(setup, Arc::default(), wish, watch::Sender::new(Report::default()))
    }

    #[tokio::test]
    async fn a_worker_that_gives_up_says_goodbye_first_so_that_its_tasks_pay_nothing() {
        let (mut stream, now) = (stream(), Instant::now());
        stream.on.outcomes_max = 1;
        stream.begin(grpc::Claim { id: "t".into(), ..grpc::Claim::default() }, now);
        stream.claims.end(1, Ok(Bytes::new()));
        stream.next_words(now);
        stream.phase = Phase::Leaving { give_up_at: now };
        stream.on.is_drain_known = true;
        assert!(!stream.has_words(now), "its outcome is not answered yet");
        assert!(!stream.gives_up(now) && stream.has_words(now));
        assert_eq!(stream.phase, Phase::Leaving { give_up_at: now + GOODBYE_TIMEOUT });
        let words = stream.next_words(now).message;
        assert!(matches!(words, Some(FromWorker::Goodbye(_))), "{words:?}");
        assert!(stream.gives_up(now + GOODBYE_TIMEOUT), "that is enough");
        assert!(stream.left().unwrap_err().is_unknown());
    }
}
