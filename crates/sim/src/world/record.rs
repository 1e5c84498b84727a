//! Records a run: the lines of its history, and what went wrong beyond them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use model::{GroupId, MemberId};
use node::{KeptVote, Who, Witness};
use parking_lot::Mutex;

use crate::history::{Call, Deed, Fault, Hash, Indexes, Leader, Line, Outcome, Vote};

/// Where the lines of a run go. Clones are the same.
#[derive(Clone, Default)]
pub(crate) struct Recorder(Arc<Mutex<Recorded>>);

#[derive(Default)]
struct Recorded {
    lines: Vec<Line>,
    trouble: Vec<String>,
    /// The end of the step that runs.
    step_end_us: u64,
    promised: BTreeMap<(MemberId, GroupId), (u64, Option<u64>)>,
    leaders: BTreeSet<(GroupId, u64, u64)>,
    hashes: BTreeSet<(MemberId, GroupId, u64, u128)>,
}

/// What was asked of one task and what came of it.
pub(crate) struct Heard {
    pub(crate) outcome: Outcome,
    pub(crate) index: Indexes,
    pub(crate) deed: Deed,
}

impl Recorder {
    /// Now, by the clock of the history.
    pub(crate) fn now_us(&self) -> u64 {
        match turmoil::sim_elapsed() {
            Some(elapsed) => elapsed.as_micros() as u64,
            None => self.0.lock().step_end_us,
        }
    }

    /// A step begins that ends at `us`.
    pub(crate) fn step(&self, us: u64) {
        self.0.lock().step_end_us = us;
    }

    /// Adds a line.
    pub(crate) fn add(&self, line: Line) {
        self.0.lock().lines.push(line);
    }

    /// A fault fired.
    pub(crate) fn fault(&self, kind: &str) {
        self.add(Line::Fault(Fault { kind: kind.to_owned(), at_us: self.now_us(), wall_skew_ms: None }));
    }

    /// A clock goes wrong: two of them may be so far apart from now on.
    pub(crate) fn wrong_clock(&self, kind: &str, skew_ms: u64) {
        let wall_skew_ms = Some(skew_ms);
        self.add(Line::Fault(Fault { kind: kind.to_owned(), at_us: self.now_us(), wall_skew_ms }));
    }

    /// Something went wrong that no history tells.
    pub(crate) fn trouble(&self, what: String) {
        self.0.lock().trouble.push(what);
    }

    /// A request with these deeds is about to leave.
    pub(crate) fn begin(&self, client: &str, deeds: Vec<Deed>) -> Recording {
        Recording { recorder: self.clone(), client: client.to_owned(), start_us: self.now_us(), deeds }
    }

    /// All that was recorded.
    pub(crate) fn finish(&self) -> (Vec<Line>, Vec<String>) {
        let mut recorded = self.0.lock();
        (std::mem::take(&mut recorded.lines), std::mem::take(&mut recorded.trouble))
    }
}

/// A request that is under way. Dropped without an answer, nobody knows what came of it.
pub(crate) struct Recording {
    recorder: Recorder,
    client: String,
    start_us: u64,
    deeds: Vec<Deed>,
}

impl Recording {
    /// It was never sent.
    pub(crate) fn forget(mut self) {
        self.deeds.clear();
    }

    /// What was asked.
    pub(crate) fn deeds(&self) -> &[Deed] {
        &self.deeds
    }

    /// The answer is there.
    pub(crate) fn end(mut self, heard: Vec<Heard>) {
        self.deeds.clear();
        let end_us = self.recorder.now_us();
        for Heard { outcome, index, deed } in heard {
            self.line(end_us, outcome, index, deed);
        }
    }

    fn line(&self, end_us: u64, outcome: Outcome, index: Indexes, deed: Deed) {
        let call =
            Call { client: self.client.clone(), start_us: self.start_us, end_us, outcome, index, deed };
        self.recorder.add(Line::Call(call));
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        // The client may be on its way down with its machine, where there is no time any more.
        let end_us = self.recorder.0.lock().step_end_us.max(self.start_us);
        for deed in std::mem::take(&mut self.deeds) {
            self.line(end_us, Outcome::Unknown, Indexes::default(), deed);
        }
    }
}

/// Writes down what members promise and what their states hash to.
pub(crate) struct Notary(pub(crate) Recorder);

impl std::fmt::Debug for Notary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Notary")
    }
}

impl Witness for Notary {
    fn voted(&self, who: Who, vote: KeptVote) {
        let at_us = self.0.now_us();
        let mut recorded = self.0.0.lock();
        let given = vote.member.node().0;
        let known = recorded.promised.get(&(who.member, who.group)).copied();
        // Whoever leads the term need not be whom this member voted for in it.
        let voted_for = match (vote.leads, known) {
            (false, _) => Some(given),
            (true, Some((term, voted_for))) if term == vote.term => voted_for,
            (true, _) => None,
        };
        recorded.promised.insert((who.member, who.group), (vote.term, voted_for));
        recorded.lines.push(Line::Vote(Vote {
            node: who.member.node().0,
            incarnation: who.member.incarnation(),
            group: who.group.0,
            term: vote.term,
            voted_for,
            at_us,
        }));
        if vote.leads && recorded.leaders.insert((who.group, vote.term, given)) {
            let leader = Leader { node: given, group: who.group.0, term: vote.term, at_us };
            recorded.lines.push(Line::Leader(leader));
        }
    }

    fn hashed(&self, who: Who, index: u64, hash: u128) {
        let mut recorded = self.0.0.lock();
        if recorded.hashes.insert((who.member, who.group, index, hash)) {
            recorded.lines.push(Line::Hash(Hash {
                node: who.member.node().0,
                group: who.group.0,
                index,
                hash: format!("{hash:032x}"),
            }));
        }
    }
}
