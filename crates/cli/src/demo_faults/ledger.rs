//! What was accepted, and what programs began and ended: the other side of the cluster's own books.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Instant;

use anyhow::{Context, Result};

/// Where producers and programs write down what they saw.
pub(super) struct Ledger {
    accepted: Mutex<Vec<(String, Instant)>>,
    begun: PathBuf,
    ended: PathBuf,
}

/// A program's line: it began or ended this.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) worker: String,
    pub(super) id: String,
    pub(super) fence: u64,
}

impl Ledger {
    /// One whose files lie in `dir`.
    pub(super) fn new(dir: &Path) -> Ledger {
        Ledger { accepted: Mutex::default(), begun: dir.join("begun"), ended: dir.join("ended") }
    }

    /// The shell commands of a program that takes a moment and writes down its begin and its end.
    pub(super) fn program(dir: &Path) -> String {
        let line = "echo $WINDLASS_WORKER $WINDLASS_TASK_ID $WINDLASS_FENCE";
        let (begun, ended) = (dir.join("begun"), dir.join("ended"));
        format!("{line} >> '{}'; sleep 0.5; {line} >> '{}'", begun.display(), ended.display())
    }

    /// An enqueue was answered.
    pub(super) fn accept(&self, id: &str) {
        self.lock().push((id.to_owned(), Instant::now()));
    }

    /// All ids whose enqueue was answered.
    pub(super) fn accepted(&self) -> Vec<String> {
        self.lock().iter().map(|(id, _)| id.clone()).collect()
    }

    /// Whether each of these shards took a write after `since`.
    pub(super) fn has_written(&self, since: Instant, shards: &[u16]) -> bool {
        let accepted = self.lock();
        let written: BTreeSet<u16> = accepted
            .iter()
            .rev()
            .take_while(|(_, at)| *at > since)
            .filter_map(|(id, _)| shard_of(id))
            .collect();
        shards.iter().all(|shard| written.contains(shard))
    }

    /// What programs began, in order.
    pub(super) fn begun(&self) -> Result<Vec<Line>> {
        read(&self.begun)
    }

    /// What a worker's programs began and did not end.
    pub(super) fn running(&self, worker: &str) -> Result<Vec<Line>> {
        let ended = read(&self.ended)?;
        let begun = read(&self.begun)?.into_iter();
        Ok(begun.filter(|line| line.worker == worker && !ended.contains(line)).collect())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<(String, Instant)>> {
        self.accepted.lock().expect("nobody panics while holding this lock")
    }
}

/// The shard in a task's id: the 12 bits after its version.
pub(super) fn shard_of(id: &str) -> Option<u16> {
    id.parse::<model::TaskId>().ok().map(|id| id.shard().number())
}

fn read(path: &Path) -> Result<Vec<Line>> {
    match std::fs::read_to_string(path) {
        // A line that is just being written has no end yet.
        Ok(text) => {
            Ok(text.split_inclusive('\n').filter(|line| line.ends_with('\n')).filter_map(parse).collect())
        }
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(e) => Err(e).with_context(|| format!("cannot read {}", path.display())),
    }
}

fn parse(line: &str) -> Option<Line> {
    let mut words = line.split_whitespace();
    let (worker, id, fence) = (words.next()?, words.next()?, words.next()?.parse().ok()?);
    Some(Line { worker: worker.to_owned(), id: id.to_owned(), fence })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_runs_what_it_began_and_did_not_end() {
        let dir = tempfile::tempdir().unwrap();
        let ledger = Ledger::new(dir.path());
        assert!(ledger.begun().unwrap().is_empty());
        std::fs::write(dir.path().join("begun"), "w1 a 1\nw1 b 2\nw2 c 3\nw1 d").unwrap();
        std::fs::write(dir.path().join("ended"), "w1 a 1\n").unwrap();
        let running = ledger.running("w1").unwrap();
        assert_eq!(running, [Line { worker: "w1".into(), id: "b".into(), fence: 2 }]);
    }
}
