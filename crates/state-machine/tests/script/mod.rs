//! Runs one script: reads its commands, applies them, writes the trace.

mod command;
mod show;
mod trace;
mod words;

use std::collections::BTreeMap;

use model::{Fence, QueueName, ShardId, StateKind, TaskId, WallTime};

use crate::pair::{Pair, WALL};
use words::Words;

pub(crate) struct Script {
    pair: Pair,
    ids: BTreeMap<String, TaskId>,
    names: BTreeMap<TaskId, String>,
    /// What each task was before the last event.
    states: BTreeMap<TaskId, StateKind>,
    trace: Vec<String>,
}

impl Script {
    pub(crate) fn new() -> Script {
        Script {
            pair: Pair::new(1),
            ids: BTreeMap::new(),
            names: BTreeMap::new(),
            states: BTreeMap::new(),
            trace: Vec::new(),
        }
    }

    /// Runs a whole script. The same text with the trace that was left.
    pub(crate) fn run(mut self, text: &str) -> String {
        let mut out = String::new();
        let mut in_trace = false;
        for line in text.lines() {
            match line.trim() {
                "---" => {
                    in_trace = true;
                    out.push_str("---\n");
                    self.trace.drain(..).for_each(|line| out.push_str(&format!("{line}\n")));
                    continue;
                }
                "" => in_trace = false,
                _ if in_trace => continue,
                comment if comment.starts_with('#') => {}
                command => self.line(command),
            }
            out.push_str(line);
            out.push('\n');
        }
        assert!(self.trace.is_empty(), "the last commands have no trace: end them with ---");
        out
    }

    fn line(&mut self, line: &str) {
        let mut words = Words::new(line);
        if words.take("at") {
            let time = words.duration("a time");
            self.pair.set_times(time.0, time.0);
        }
        if !words.is_empty() {
            self.word(words, line);
        }
    }

    fn word(&mut self, mut words: Words<'_>, line: &str) {
        let verb = words.next("a verb");
        match verb {
            "clock" => self.clock(&mut words),
            "checkpoint" => {
                let index = self.pair.checkpoint();
                self.say(format!("checkpoint at index {index}"));
            }
            "crash" => {
                let replayed = self.pair.crash();
                self.say(format!("restarted from the checkpoint, {replayed} commands replayed"));
            }
            "show" | "why" | "find" | "outbox" | "session" => self.show(verb, &mut words),
            verb => self.command(verb, &mut words),
        }
        assert!(words.is_empty(), "{line:?}: what is {:?}?", words.rest());
    }

    /// Moves one of the two times alone.
    fn clock(&mut self, words: &mut Words<'_>) {
        let (elapsed, wall) = self.pair.times();
        let elapsed = words.option("elapsed").map_or(elapsed, |text| words::duration(text).0);
        let wall = words.option("wall").map_or(wall, |text| words::duration(text).0);
        self.pair.set_times(elapsed, wall);
    }

    fn say(&mut self, line: String) {
        self.trace.push(line);
    }

    // ---- names ----

    /// The id behind a name, made at its first use.
    fn id(&mut self, name: &str) -> TaskId {
        if let Some(id) = self.ids.get(name) {
            return *id;
        }
        let id = TaskId::new(shard(1), WallTime::from_millis(1), self.ids.len() as u64 + 1);
        self.name(name, id);
        id
    }

    fn name(&mut self, name: &str, id: TaskId) {
        self.ids.insert(name.to_owned(), id);
        self.names.insert(id, name.to_owned());
    }

    fn name_of(&self, id: TaskId) -> String {
        self.names.get(&id).cloned().unwrap_or_else(|| id.to_string())
    }

    /// The last fence of a task, unless the words say which.
    fn fence(&self, words: &mut Words<'_>, id: TaskId) -> Fence {
        match words.option("fence") {
            Some(text) => Fence(words::number(text)),
            None => self.pair.shard.task(id).map_or(Fence(0), |task| task.fence),
        }
    }
}

fn shard(number: u16) -> ShardId {
    ShardId::new(number).expect("a good shard")
}

fn queue(name: &str) -> QueueName {
    QueueName::new(name).expect("a good queue name")
}

/// A length of time in seconds.
fn secs(millis: u64) -> String {
    match (millis / 1000, millis % 1000) {
        (secs, 0) => format!("{secs}s"),
        (secs, rest) => format!("{secs}.{rest:03}s"),
    }
}

/// A wall time, counted from where it began.
fn wall(time: WallTime) -> String {
    secs(time.millis().saturating_sub(WALL))
}
