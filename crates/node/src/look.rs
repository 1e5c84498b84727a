//! Looking at tasks: one, by id or dedup key, or many in bounded steps.

use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use model::{KeyHash, Millis, QueueName, Rejection, ShardId, TaskId, limits};
use state_machine::view::{Cursor, Filter, TaskView};
use wire::envelope::Envelope;

use crate::call::{Freshness, TaskDetail, TaskFilter, TaskPage, TaskSummary};
use crate::error::Error;
use crate::groups::told;
use crate::inner::{Inner, Node};
use crate::place;
use crate::stats::Operation;

/// Until one that waits for an end asks again, when there was no leader to ask.
const NO_LEADER_PAUSE: Duration = Duration::from_millis(100);
/// Tasks whose envelopes are read at once when a list looks into them.
const LOOK_INTO_STEP: usize = 100;
/// Shards whose leaders are asked at once when a list goes on to them.
const SHARDS_AT_ONCE: usize = 16;
/// What is said of a task whose envelope no copy has whole.
const DAMAGED: &str = "damaged_record: what is kept of this task is damaged on every copy: discard it";
/// Bytes of envelopes that one step of a list looks into.
const LOOK_INTO_BYTES_MAX: usize = 32 * 1024 * 1024;

impl Node {
    /// A task with all that is kept of it. With `wait`: when it has ended, or after that time.
    pub async fn task(&self, id: TaskId, wait: Millis, freshness: Freshness) -> Result<TaskDetail, Error> {
        let since = Instant::now();
        let inner = &self.inner;
        inner.groups.known(id)?;
        let view = match wait.0 {
            0 => inner.view(id, freshness).await,
            _ => inner.until_ended(id, wait, freshness).await,
        };
        let detail = match view {
            Ok(view) => inner.detail(view).await,
            Err(error) => Err(error),
        };
        if wait.0 == 0 {
            inner.counters.timed(Operation::Task, since, 1, usize::from(detail.is_err()));
        }
        detail
    }

    /// The task that has this dedup key; one with an order or unique key is found with it.
    pub async fn task_by_dedup(
        &self,
        queue: &QueueName,
        dedup_key: &str,
        order_key: Option<&str>,
        unique_key: Option<&str>,
        freshness: Freshness,
    ) -> Result<TaskDetail, Error> {
        let inner = &self.inner;
        let place = || {
            let (spread, shards) = (inner.policies.spread(queue), inner.groups.count());
            place::dedup(queue, spread, shards, dedup_key, order_key, unique_key)
        };
        let mut at = place();
        let mut id = inner.of_dedup(at, freshness).await?;
        if id.is_none() && freshness == Freshness::Linearizable {
            // What is known here of the queue may be old, and its tasks elsewhere.
            inner.groups.wait_for_catalog(freshness).await?;
            inner.take_settings();
            if at != place() {
                at = place();
                id = inner.of_dedup(at, freshness).await?;
            }
        }
        let id = id.ok_or_else(|| {
            Error::NotFound(format!(
                "no task of queue {queue:?} has this dedup key, or its window has passed: \
                 if the task has an order key or a unique key, give order_key or unique_key too"
            ))
        })?;
        // The copy that had the key has its task.
        self.task(id, Millis(0), Freshness::Stale).await
    }

    /// One step of a list. Goes on from `cursor`; at most `limit` tasks.
    pub async fn list(
        &self,
        filter: TaskFilter,
        cursor: Option<String>,
        limit: usize,
        freshness: Freshness,
    ) -> Result<TaskPage, Error> {
        let since = Instant::now();
        let limit = limit.clamp(1, limits::LIST_MAX);
        let page = self.inner.list(&filter, cursor.as_deref(), limit, freshness).await;
        let found = page.as_ref().map_or(0, |page| page.tasks.len());
        self.inner.counters.timed(Operation::List, since, found, usize::from(page.is_err()));
        page
    }
}

impl Inner {
    /// The task that has this dedup key in this shard.
    async fn of_dedup(
        &self,
        (shard, key): (ShardId, KeyHash),
        freshness: Freshness,
    ) -> Result<Option<TaskId>, Error> {
        self.groups.wait_for([shard], freshness).await?;
        Ok(self.groups.look(shard, |state| state.task_of_dedup(key)))
    }

    async fn view(&self, id: TaskId, freshness: Freshness) -> Result<TaskView, Error> {
        self.groups.wait_for([id.shard()], freshness).await?;
        Ok(self.groups.look(id.shard(), |state| state.task(id)).ok_or(Rejection::NotFound { id })?)
    }

    /// Waits for a task's end, for a while.
    async fn until_ended(&self, id: TaskId, wait: Millis, freshness: Freshness) -> Result<TaskView, Error> {
        let until = tokio::time::Instant::now() + Duration::from(wait);
        let end = self.ends.wait(id);
        loop {
            // Made before the look: an end after the look is heard.
            let told = end.notify.notified();
            let view = match self.view(id, freshness).await {
                // Whoever waits has time for the next leader.
                Err(Error::Unavailable) if tokio::time::Instant::now() + NO_LEADER_PAUSE < until => {
                    tokio::time::sleep(NO_LEADER_PAUSE).await;
                    continue;
                }
                view => view?,
            };
            if view.state.is_ended() {
                return Ok(view);
            }
            tokio::select! {
                () = told => {}
                () = tokio::time::sleep_until(until) => return Ok(view),
                () = self.stopping.cancelled() => return Ok(view),
            }
        }
    }

    async fn detail(&self, view: TaskView) -> Result<TaskDetail, Error> {
        let id = view.id;
        let kept = match self.groups.shard(id.shard()).kept(id).await {
            Err(_) if !self.is_there(id) => return Err(Rejection::NotFound { id }.into()),
            kept => kept.map_err(told)?,
        };
        let (envelope, detail) = match kept.envelope {
            Some(envelope) => (open(id, envelope)?, kept.detail),
            // No copy has it whole.
            None if self.is_there(id) => (damaged_record(), Some(DAMAGED.to_owned())),
            // Gone between the two looks.
            None => return Err(Rejection::NotFound { id }.into()),
        };
        Ok(TaskDetail { view, envelope, output: kept.output, detail, history: kept.history })
    }

    fn is_there(&self, id: TaskId) -> bool {
        self.groups.look(id.shard(), |state| state.task(id)).is_some()
    }

    /// One step of a list.
    pub(crate) async fn list(
        &self,
        filter: &TaskFilter,
        cursor: Option<&str>,
        limit: usize,
        freshness: Freshness,
    ) -> Result<TaskPage, Error> {
        let (shards, shard_filter) = self.prepare(filter)?;
        let mut page = TaskPage { tasks: Vec::new(), looked_at: 0, cursor: None };
        let mut at = match cursor {
            Some(cursor) => Place::parse(cursor, self.groups.count())?,
            None => Place { shard: *shards.first().expect("there is a shard"), cursor: None },
        };
        let mut bytes = 0;
        let first = at.shard;
        let shards: Vec<ShardId> = shards.into_iter().filter(|shard| *shard >= first).collect();
        for (n, &shard) in shards.iter().enumerate() {
            if n.is_multiple_of(SHARDS_AT_ONCE) {
                let some = shards[n..].iter().take(SHARDS_AT_ONCE);
                self.groups.wait_for(some.copied(), freshness).await?;
            }
            if shard != at.shard {
                at = Place { shard, cursor: None };
            }
            loop {
                let looks = limits::LIST_LOOKED_AT_MAX - page.looked_at;
                let left = limit - page.tasks.len();
                if looks == 0 || left == 0 || bytes > LOOK_INTO_BYTES_MAX {
                    page.cursor = Some(at.to_string());
                    return Ok(page);
                }
                let want = left.min(LOOK_INTO_STEP);
                let from = at.cursor;
                let step = self.groups.look(shard, |state| state.list(&shard_filter, from, want, looks));
                page.looked_at += step.looked_at;
                bytes += self.look_into(shard, step.tasks, filter, &mut page.tasks).await?;
                match step.cursor {
                    Some(cursor) => at.cursor = Some(cursor),
                    None => break,
                }
            }
        }
        Ok(page)
    }

    /// The shards to look in, and what a shard can look for.
    fn prepare(&self, filter: &TaskFilter) -> Result<(Vec<ShardId>, Filter), Error> {
        let order_key = match (&filter.order_key, &filter.queue) {
            (Some(key), Some(queue)) => Some(KeyHash::new(queue, key)),
            (Some(_), None) => {
                return Err(Error::Invalid("order_key needs a queue: order keys belong to one".to_owned()));
            }
            (None, _) => None,
        };
        let shard_filter = Filter {
            queue: filter.queue.clone(),
            state: filter.state,
            kind_hash: filter.kind.as_ref().map(|kind| kind.hash32()),
            order_key,
            worker: filter.worker.clone(),
            claimed_for: filter.claimed_for,
        };
        Ok((self.groups.all().collect(), shard_filter))
    }

    /// Keeps the tasks whose envelope fits the filter too. How many bytes that took.
    async fn look_into(
        &self,
        shard: ShardId,
        views: Vec<TaskView>,
        filter: &TaskFilter,
        found: &mut Vec<TaskSummary>,
    ) -> Result<usize, Error> {
        if views.is_empty() {
            return Ok(0);
        }
        let ids: Vec<TaskId> = views.iter().map(|view| view.id).collect();
        let envelopes = self.groups.shard(shard).envelopes(&ids).await;
        let mut bytes = 0;
        for (view, envelope) in views.into_iter().zip(envelopes) {
            let unread = match envelope {
                Ok(Some(envelope)) => {
                    bytes += envelope.len();
                    let envelope = open(view.id, envelope)?;
                    if fits(filter, &view, &envelope) {
                        found.push(TaskSummary { view, envelope });
                    }
                    continue;
                }
                Ok(None) => damaged_record(),
                // One task must not hide the others.
                Err(replica::Error::Unavailable) => unread_record(),
                Err(error) => return Err(told(error)),
            };
            // One that has gone meanwhile is not listed; one that cannot be read cannot be looked into.
            if filter.text.is_none() && self.is_there(view.id) {
                found.push(TaskSummary { view, envelope: unread });
            }
        }
        Ok(bytes)
    }
}

/// Stands for an envelope that no copy has whole.
fn damaged_record() -> Envelope {
    stand_in("(damaged record)")
}

/// Stands for an envelope that is damaged here while not all other copies can be asked for it.
fn unread_record() -> Envelope {
    stand_in("(cannot be read now)")
}

/// No task has such a kind.
fn stand_in(kind: &str) -> Envelope {
    let payload = bytes::Bytes::from_static(b"null");
    Envelope { kind: kind.to_owned(), payload, ..Envelope::default() }
}

fn open(id: TaskId, envelope: bytes::Bytes) -> Result<Envelope, Error> {
    Envelope::from_bytes(envelope)
        .map_err(|_| Error::Broken(format!("task {id}: its envelope is damaged: run windlass check")))
}

fn fits(filter: &TaskFilter, view: &TaskView, envelope: &Envelope) -> bool {
    filter.kind.as_ref().is_none_or(|kind| kind.as_str() == envelope.kind)
        && filter.text.as_ref().is_none_or(|text| holds(text, view, envelope))
}

/// Whether `text` is in id, kind, keys, headers or payload.
fn holds(text: &str, view: &TaskView, envelope: &Envelope) -> bool {
    let keys = [&envelope.order_key, &envelope.dedup_key, &envelope.unique_key];
    let in_payload = || {
        let (payload, text) = (&envelope.payload[..], text.as_bytes());
        memchr::memmem::find(payload, text).is_some()
    };
    envelope.kind.contains(text)
        || keys.into_iter().flatten().any(|key| key.contains(text))
        || envelope.headers.iter().any(|header| header.name.contains(text) || header.value.contains(text))
        || view.id.to_string().contains(text)
        || in_payload()
}

/// Where a list over all shards goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    shard: ShardId,
    cursor: Option<Cursor>,
}

impl Place {
    const BYTES: usize = 2 + 8 + 16;
    /// Stands for "from the shard's beginning".
    const BEGIN: u64 = u64::MAX - 1;

    fn parse(text: &str, shards: u16) -> Result<Place, Error> {
        let invalid = || Error::Invalid("this cursor is not one that a list answered: begin anew".to_owned());
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| invalid())?;
        let bytes: [u8; Place::BYTES] = bytes.try_into().map_err(|_| invalid())?;
        let shard = u16::from_be_bytes(bytes[..2].try_into().expect("2 bytes"));
        let list = u64::from_be_bytes(bytes[2..10].try_into().expect("8 bytes"));
        let after = u128::from_be_bytes(bytes[10..].try_into().expect("16 bytes"));
        let shard = ShardId::new(shard).filter(|shard| shard.number() <= shards).ok_or_else(invalid)?;
        let after = match after {
            0 => None,
            bits => Some(TaskId::from_bits(bits).ok_or_else(invalid)?),
        };
        Ok(Place { shard, cursor: (list != Place::BEGIN).then_some(Cursor { list, after }) })
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut bytes = [0u8; Place::BYTES];
        let list = self.cursor.map_or(Place::BEGIN, |cursor| cursor.list);
        let after = self.cursor.and_then(|cursor| cursor.after).map_or(0, TaskId::bits);
        bytes[..2].copy_from_slice(&self.shard.number().to_be_bytes());
        bytes[2..10].copy_from_slice(&list.to_be_bytes());
        bytes[10..].copy_from_slice(&after.to_be_bytes());
        f.write_str(&URL_SAFE_NO_PAD.encode(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::WallTime;

    #[test]
    fn a_cursor_comes_back_as_it_went() {
        let shard = ShardId::new(3).unwrap();
        let after = Some(TaskId::new(shard, WallTime::from_millis(7), 7));
        for cursor in [None, Some(Cursor { list: 0, after: None }), Some(Cursor { list: u64::MAX, after })] {
            let place = Place { shard, cursor };
            assert_eq!(Place::parse(&place.to_string(), 4), Ok(place));
            assert!(Place::parse(&place.to_string(), 2).is_err(), "a shard that is not there");
        }
        for text in ["", "A", "!!", &"A".repeat(1000)] {
            assert!(Place::parse(text, 4).is_err(), "{text}");
        }
    }
}
