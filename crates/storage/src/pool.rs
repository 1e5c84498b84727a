//! Makes segments ready before the writer needs them, and takes back those that nobody needs.
//!
//! With threads all of it happens beside the writer, which only waits when it fills a segment faster than
//! one can be made. A retired segment is renamed, and that name is synced, before a byte of it changes: after
//! a crash it is either a whole old segment or a free one. Next: `writer.rs`.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use crate::disk::Disk;
use crate::error::{Error, Result};
use crate::executor::Executor;
use crate::segment::{Segment, free_path};

pub(crate) struct Pool {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    executor: Arc<dyn Executor>,
    segment_bytes: u64,
    spare_max: usize,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    ready: Option<Segment>,
    retired: VecDeque<Arc<Segment>>,
    free: Vec<PathBuf>,
    next_epoch: u64,
    working: bool,
    /// What went wrong beside the writer, if more room would not have helped: its disk is not to be trusted.
    failed: Option<Error>,
    /// Nothing may be made any more: the process is about to end.
    stopped: bool,
}

/// What a restart found of it.
pub(crate) struct Spares {
    pub(crate) free: Vec<PathBuf>,
    pub(crate) next_epoch: u64,
}

impl Pool {
    pub(crate) fn new(
        disk: Arc<dyn Disk>,
        dir: &Path,
        executor: Arc<dyn Executor>,
        (segment_bytes, spare_max): (u64, usize),
        spares: Spares,
    ) -> Pool {
        let state = State {
            ready: None,
            retired: VecDeque::new(),
            free: spares.free,
            next_epoch: spares.next_epoch,
            working: false,
            failed: None,
            stopped: false,
        };
        let dir = dir.to_owned();
        let changed = Condvar::new();
        Pool { disk, dir, executor, segment_bytes, spare_max, state: Mutex::new(state), changed }
    }

    /// A segment to write to; the next one is made ready beside the caller.
    pub(crate) fn take(self: &Arc<Pool>) -> Result<Segment> {
        let ready = match self.take_ready()? {
            Some(ready) => ready,
            None => {
                let made = self.make();
                self.state.lock().working = false;
                self.changed.notify_all();
                made?
            }
        };
        self.work_ahead();
        Ok(ready)
    }

    /// The segment that is ready. `None`: the caller makes one, and nobody else does meanwhile.
    fn take_ready(&self) -> Result<Option<Segment>> {
        let mut state = self.state.lock();
        while state.ready.is_none() && state.working {
            self.changed.wait(&mut state);
        }
        if let Some(failed) = &state.failed {
            return Err(failed.clone());
        }
        state.working |= state.ready.is_none();
        Ok(state.ready.take())
    }

    /// Takes back a segment that holds nothing anybody needs. Oldest first.
    pub(crate) fn retire(self: &Arc<Pool>, segment: Arc<Segment>) {
        self.state.lock().retired.push_back(segment);
        self.work_ahead();
    }

    /// Retired and free segments.
    pub(crate) fn spare(&self) -> usize {
        let state = self.state.lock();
        state.free.len() + state.retired.len() + usize::from(state.ready.is_some())
    }

    /// Starts nothing more, and waits for what is under way.
    pub(crate) fn stop(&self) {
        let mut state = self.state.lock();
        state.stopped = true;
        while state.working {
            self.changed.wait(&mut state);
        }
    }

    /// Makes the next segment ready and frees the retired ones, beside the caller if there are threads.
    pub(crate) fn work_ahead(self: &Arc<Pool>) {
        if !self.executor.has_threads() {
            // Without threads a segment is made when it is needed; an error shows up then.
            let _ = self.free_retired();
            return;
        }
        let mut state = self.state.lock();
        if state.working || state.stopped || (state.ready.is_some() && state.retired.is_empty()) {
            return;
        }
        state.working = true;
        drop(state);
        let pool = self.clone();
        self.executor.spawn("log-segments", Box::new(move || pool.work()));
    }

    fn work(&self) {
        loop {
            let worked = self.free_retired().and_then(|()| self.make_if_needed());
            let mut state = self.state.lock();
            let idle = state.ready.is_some() && state.retired.is_empty();
            if idle || state.stopped || worked.is_err() {
                if let Err(error) = worked {
                    tracing::warn!(%error, "cannot make a log segment ready ahead of time");
                    // A full disk is met again by the writer when it needs the segment, and it knows what to do.
                    state.failed = Some(error).filter(|error| !error.is_full());
                }
                state.working = false;
                self.changed.notify_all();
                return;
            }
        }
    }

    fn make_if_needed(&self) -> Result<()> {
        if self.state.lock().ready.is_some() {
            return Ok(());
        }
        let made = self.make()?;
        self.state.lock().ready = Some(made);
        self.changed.notify_all();
        Ok(())
    }

    fn make(&self) -> Result<Segment> {
        let (free, epoch) = {
            let mut state = self.state.lock();
            let epoch = state.next_epoch;
            state.next_epoch += 1;
            (state.free.pop(), epoch)
        };
        Segment::prepare(&*self.disk, &self.dir, free.as_deref(), epoch, self.segment_bytes)
    }

    fn free_retired(&self) -> Result<()> {
        loop {
            let mut state = self.state.lock();
            let Some(segment) = state.retired.pop_front() else { return Ok(()) };
            let surplus = state.free.len() >= self.spare_max;
            drop(state);
            let freed = self.free_one(&segment, surplus)?;
            self.state.lock().free.extend(freed);
        }
    }

    fn free_one(&self, segment: &Segment, surplus: bool) -> Result<Option<PathBuf>> {
        let failed = |source| Error::io("recycle", &segment.path, source);
        if surplus || segment.bytes != self.segment_bytes {
            self.disk.remove(&segment.path).map_err(failed)?;
            self.disk.sync_dir(&self.dir).map_err(failed)?;
            return Ok(None);
        }
        let free = free_path(&self.dir, segment.epoch);
        self.disk.rename(&segment.path, &free).map_err(failed)?;
        self.disk.sync_dir(&self.dir).map_err(failed)?;
        Ok(Some(free))
    }
}
