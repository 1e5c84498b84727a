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
        let spread = inner.policies.spread(queue);
        let shards = inner.groups.count();
        let (shard, key) = place::dedup(queue, spread, shards, dedup_key, order_key, unique_key);
        inner.groups.wait_for([shard], freshness).await?;
        let id = inner.groups.look(shard, |state| state.task_of_dedup(key));
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
        let kept = self.groups.shard(id.shard()).kept(id).await.map_err(told)?;
        // Gone between the two looks.
        let envelope = kept.envelope.ok_or(Rejection::NotFound { id })?;
        Ok(TaskDetail {
            view,
            envelope: open(id, envelope)?,
            output: kept.output,
            detail: kept.detail,
            history: kept.history,
        })
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
        let envelopes = self.groups.shard(shard).envelopes(&ids).await.map_err(told)?;
        let mut bytes = 0;
        for (view, envelope) in views.into_iter().zip(envelopes) {
            // One that has gone meanwhile is not listed.
            let Some(envelope) = envelope else { continue };
            bytes += envelope.len();
            let envelope = open(view.id, envelope)?;
            if fits(filter, &view, &envelope) {
                found.push(TaskSummary { view, envelope });
            }
        }
        Ok(bytes)
    }
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
