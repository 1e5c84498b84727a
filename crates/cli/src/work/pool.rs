//! A pool of workers on this machine: `windlass work` processes of this same binary, as many as the load needs.
//!
//! How many is decided in `scale.rs`. This file looks at the queues, starts workers, drains those that are too
//! many, and replaces those that died, with a pause when they die at once. Each reads a pipe that closes with us, so
//! that none is left when we are killed.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::ffi::OsString;
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::Result;
use futures::future::join_all;
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, ChildStdin, Command};
use tokio::time::{sleep, timeout};
use windlass::Admin;

use super::Work;
use super::scale::{History, Limits, Sample, wanted};
use crate::exit::{Exit, Failure};
use crate::serve::Stop;

/// How often the queues are looked at.
const LOOK: Duration = Duration::from_millis(500);
/// A look that takes longer is given up.
const LOOK_TIMEOUT: Duration = Duration::from_secs(3);
/// A worker that lived so long did not fail at its start.
const STEADY: Duration = Duration::from_secs(10);
/// The pause after a worker that died at its start, doubled each time.
const PAUSE_MIN: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// How long workers that were asked twice may take.
const STOP_MAX: Duration = Duration::from_secs(20);

/// Runs a pool until it is asked to stop, or the server wants none of its workers. However it ends, they drain.
pub(super) async fn run(args: &Work, limits: Limits, mut stop: Stop) -> Result<()> {
    let admin = args.connection.sdk().await?.admin();
    let mut pool = Pool::new(args)?;
    let ended = serve(args, limits, &admin, &mut pool, &mut stop).await;
    pool.stop(&mut stop).await;
    ended
}

async fn serve(args: &Work, limits: Limits, admin: &Admin, pool: &mut Pool, stop: &mut Stop) -> Result<()> {
    let queues: Vec<&str> = args.queues.iter().map(|queue| queue.name.as_str()).collect();
    let mut history = History::new(limits);
    let mut is_blind = false;
    tracing::info!(
        pool = pool.name,
        "{} to {} workers with {} slots each",
        limits.min,
        limits.max,
        limits.slots
    );
    loop {
        let names = pool.names();
        let load = tokio::select! {
            () = stop.asked() => return Ok(()),
            load = timeout(LOOK_TIMEOUT, look(admin, &queues, &names)) => load,
        };
        match load {
            Ok(Ok(load)) => {
                history.push(load.sample(pool.aim));
                is_blind = false;
                pool.set(wanted(&history, Instant::now()), &load);
            }
            failed => {
                if !std::mem::replace(&mut is_blind, true) {
                    let why = failed.map_or("no answer in time".to_owned(), |failed| {
                        failed.err().map(|error| error.to_string()).unwrap_or_default()
                    });
                    tracing::warn!("cannot look at the queues: {why}: {} workers stay", pool.aim);
                }
                pool.aim = pool.aim.max(limits.min);
            }
        }
        pool.bury()?;
        pool.thin_out(admin).await;
        pool.fill();
        tokio::select! {
            () = stop.asked() => return Ok(()),
            () = pool.ended() => {}
            () = sleep(LOOK) => {}
        }
    }
}

/// What the queues and our workers have to do.
#[derive(Default)]
struct Load {
    ready: u64,
    oldest_ms: u64,
    /// How many tasks each of our workers runs.
    running: HashMap<String, u64>,
}

impl Load {
    fn sample(&self, workers: usize) -> Sample {
        let oldest = Duration::from_millis(self.oldest_ms);
        Sample { at: Instant::now(), ready: self.ready, oldest, busy: self.busy(), workers }
    }

    fn busy(&self) -> u64 {
        self.running.values().sum()
    }
}

/// Asks a server. What it does not know yet has nothing to do.
async fn look(admin: &Admin, queues: &[&str], workers: &[String]) -> Result<Load, windlass::Error> {
    let mut load = Load::default();
    // All at once: under load each of them takes its time, and that is when the pool must see.
    for queue in join_all(queues.iter().map(|queue| admin.queue(queue))).await {
        match queue {
            // Nobody gets a task of a paused queue, however many there are.
            Ok(queue) if queue.paused => {}
            Ok(queue) => {
                load.ready += queue.depth.map_or(0, |depth| depth.ready);
                load.oldest_ms = load.oldest_ms.max(queue.oldest_ready_ms.unwrap_or(0));
            }
            Err(error) if error.code() == Some("unknown_queue") => {}
            Err(error) => return Err(error),
        }
    }
    let seen = join_all(workers.iter().map(|worker| admin.worker(worker))).await;
    for (worker, seen) in workers.iter().zip(seen) {
        match seen {
            Ok(seen) => drop(load.running.insert(worker.clone(), seen.running)),
            Err(error) if error.code() == Some("unknown_worker") => {}
            Err(error) => return Err(error),
        }
    }
    Ok(load)
}

/// The workers, and how many there should be.
struct Pool {
    name: String,
    flags: Vec<OsString>,
    aim: usize,
    members: Vec<Member>,
    /// How many were started.
    started: u64,
    /// How often some died at their start, one time after the other.
    failures: u32,
    /// Whether one has ever worked: then the server wants them, and one that is refused is an accident.
    has_worked: bool,
    /// How many tasks each ran when it was last looked.
    running: HashMap<String, u64>,
    /// No worker is started before.
    pause_until: Instant,
}

/// One worker.
struct Member {
    name: String,
    child: Child,
    since: Instant,
    /// Whether it was asked to drain.
    is_leaving: bool,
    /// Whether it was asked by a signal: a second one would not let it finish.
    is_signalled: bool,
    /// Closed when we go: then it stops.
    _life: Option<ChildStdin>,
}

impl Pool {
    fn new(args: &Work) -> Result<Pool> {
        Ok(Pool {
            name: args.worker_name(),
            flags: args.flags_of_one()?,
            aim: 0,
            members: Vec::new(),
            started: 0,
            failures: 0,
            has_worked: false,
            running: HashMap::new(),
            pause_until: Instant::now(),
        })
    }

    /// The names of those that work.
    fn names(&self) -> Vec<String> {
        self.working().map(|member| member.name.clone()).collect()
    }

    fn working(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| !member.is_leaving)
    }

    /// Takes this many for right.
    fn set(&mut self, aim: usize, seen: &Load) {
        self.running.clone_from(&seen.running);
        if aim != self.aim {
            let (from, ready, busy) = (self.aim, seen.ready, seen.busy());
            let oldest = Duration::from_millis(seen.oldest_ms);
            tracing::info!(
                "{from} → {aim} workers: {ready} tasks wait, the oldest for {oldest:?}, {busy} run"
            );
            self.aim = aim;
        }
    }

    /// Drains those that are too many: first who runs least, of them the youngest. They take the time they need.
    async fn thin_out(&mut self, admin: &Admin) {
        let too_many = self.working().count().saturating_sub(self.aim);
        let running = |member: &Member| self.running.get(&member.name).copied().unwrap_or(0);
        let mut working: Vec<(u64, Reverse<Instant>, &mut Member)> = self
            .members
            .iter_mut()
            .filter(|member| !member.is_leaving)
            .map(|member| (running(member), Reverse(member.since), member))
            .collect();
        working.sort_by_key(|(running, since, _)| (*running, *since));
        for (_, _, member) in working.into_iter().take(too_many) {
            member.is_leaving = true;
            let asked = timeout(LOOK_TIMEOUT, admin.drain_worker(&member.name)).await;
            if !matches!(asked, Ok(Ok(()))) {
                member.terminate();
            }
        }
    }

    /// Starts those that are missing, unless they keep dying.
    fn fill(&mut self) {
        while self.working().count() < self.aim && Instant::now() >= self.pause_until {
            self.started += 1;
            let name = format!("{}-{}", self.name, self.started);
            if let Err(error) = self.start(&name) {
                self.failed();
                let pause = self.pause_until.saturating_duration_since(Instant::now());
                tracing::error!(worker = name, "cannot be started: {error}: another one in {pause:?}");
            }
        }
    }

    fn start(&mut self, name: &str) -> std::io::Result<()> {
        let mut command = Command::from(super::child::ourselves()?);
        command.arg("work").args(&self.flags).args(["--name", name, "--until-stdin-ends"]);
        // A Ctrl-C at the terminal is for us; we tell the workers.
        command.process_group(0).stdin(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn()?;
        let life = child.stdin.take();
        tracing::info!(worker = name, pid = child.id(), "started");
        let (name, since) = (name.to_owned(), Instant::now());
        self.members.push(Member { name, child, since, is_leaving: false, is_signalled: false, _life: life });
        Ok(())
    }

    /// Some did not come to work: the next ones wait for a while.
    fn failed(&mut self) {
        self.pause_until = Instant::now() + pause(self.failures);
        self.failures += 1;
    }

    /// Takes away those that have ended. Fails when the server wants none like them.
    fn bury(&mut self) -> Result<()> {
        let mut ended = Vec::new();
        self.members.retain_mut(|member| match member.child.try_wait() {
            Ok(None) => true,
            Ok(Some(status)) => {
                ended.push((member.name.clone(), status, member.since.elapsed(), member.is_leaving));
                false
            }
            Err(error) => {
                tracing::error!(worker = member.name, "cannot be waited for: {error}");
                false
            }
        });
        if self.members.iter().any(|member| member.since.elapsed() >= STEADY) {
            self.failures = 0;
            self.has_worked = true;
        }
        // Those that die together are one failure.
        if ended.iter().any(|(_, _, lived, is_leaving)| !is_leaving && *lived < STEADY) {
            self.failed();
        }
        for (name, status, lived, is_leaving) in ended {
            match is_leaving {
                true => tracing::info!(worker = name, "has left ({status})"),
                false => self.mourn(&name, status, lived)?,
            }
        }
        Ok(())
    }

    /// A worker ended that was not asked to.
    fn mourn(&mut self, name: &str, status: ExitStatus, lived: Duration) -> Result<()> {
        let refused =
            [Exit::Usage, Exit::Denied].into_iter().find(|exit| status.code() == Some(*exit as i32));
        if let Some(exit) = refused.filter(|_| !self.has_worked) {
            let message = format!("worker {name} was refused ({status}): see its own message");
            return Err(Failure::new(exit, message).into());
        }
        let pause = self.pause_until.saturating_duration_since(Instant::now());
        tracing::warn!(
            worker = name,
            "ended ({status}) after {lived:?}: another one in {pause:?} if it is needed"
        );
        Ok(())
    }

    /// Returns when one has ended; never when there is none.
    async fn ended(&mut self) {
        let waits: Vec<_> = self
            .members
            .iter_mut()
            .map(|member| Box::pin(async move { drop(member.child.wait().await) }))
            .collect();
        match waits.is_empty() {
            true => std::future::pending().await,
            false => drop(futures::future::select_all(waits).await),
        }
    }

    /// Drains all; asked again, stops all. Returns when none is left.
    async fn stop(mut self, stop: &mut Stop) {
        tracing::info!(pool = self.name, "draining {} workers", self.members.len());
        self.members.iter_mut().filter(|member| !member.is_signalled).for_each(Member::terminate);
        self.aim = 0;
        tokio::select! {
            () = self.all_ended() => return,
            () = stop.asked() => {}
        }
        tracing::info!(pool = self.name, "stopping {} workers", self.members.len());
        self.members.iter_mut().for_each(Member::terminate);
        if timeout(STOP_MAX, self.all_ended()).await.is_err() {
            tracing::error!("{} workers do not stop: they are killed", self.members.len());
        }
    }

    async fn all_ended(&mut self) {
        while !self.members.is_empty() {
            self.ended().await;
            self.members.retain_mut(|member| !matches!(member.child.try_wait(), Ok(Some(_)) | Err(_)));
        }
    }
}

impl Member {
    /// Asks it to drain in the time that it has for that; asked again, it stops.
    fn terminate(&mut self) {
        (self.is_leaving, self.is_signalled) = (true, true);
        if let Some(pid) = self.child.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?)) {
            // It may have ended by itself.
            let _ = kill_process(pid, Signal::TERM);
        }
    }
}

/// The pause after so many failures and one more.
fn pause(failures: u32) -> Duration {
    PAUSE_MAX.min(PAUSE_MIN * 2u32.saturating_pow(failures.min(10)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_limit() {
        let pauses = [0, 1, 2, 5, 6, 1_000].map(|failures| pause(failures).as_millis());
        assert_eq!(pauses, [500, 1_000, 2_000, 16_000, 30_000, 30_000]);
    }
}
