//! Which segments are live, and which group's entries keep each of them.
//!
//! Segments are given up strictly in order, oldest first: a truncation in a later segment must outlive the
//! entries it removed from an earlier one. So one group that is not purged keeps all later segments; this
//! table says which group that is. Changed by the writer alone. Next: `writer.rs`.

use std::collections::VecDeque;
use std::sync::Arc;

use model::GroupId;

use crate::segment::Segment;

/// A segment and the last entry of each group in it.
pub(crate) struct SegmentFacts {
    segment: Arc<Segment>,
    /// By group number: one more than the last index, 0 for none.
    ends: Vec<u64>,
}

impl SegmentFacts {
    pub(crate) fn new(segment: Arc<Segment>) -> SegmentFacts {
        SegmentFacts { segment, ends: Vec::new() }
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.segment.epoch
    }

    pub(crate) fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }

    /// An entry of `group` is in it.
    pub(crate) fn holds(&mut self, group: GroupId, index: u64) {
        let group = usize::from(group.0);
        if self.ends.len() <= group {
            self.ends.resize(group + 1, 0);
        }
        self.ends[group] = index + 1;
    }

    /// The group's entries from `from` on do not count any more.
    pub(crate) fn truncate_from(&mut self, group: GroupId, from: u64) {
        if let Some(end) = self.ends.get_mut(usize::from(group.0)) {
            *end = (*end).min(from);
        }
    }

    /// Whether it holds entries of `group` from `first` on.
    fn needed_by(&self, group: usize, first: u64) -> bool {
        self.ends.get(group).is_some_and(|end| *end > first)
    }
}

/// All live segments.
pub(crate) struct Table {
    segments: VecDeque<SegmentFacts>,
    /// By group number: the first index that is not purged, as far as that is on the disk.
    firsts: Vec<u64>,
}

impl Table {
    pub(crate) fn new(segments: Vec<SegmentFacts>) -> Table {
        Table { segments: segments.into(), firsts: Vec::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.segments.len()
    }

    /// The segment that is written to.
    pub(crate) fn active(&mut self) -> &mut SegmentFacts {
        self.segments.back_mut().expect("a log has a segment from its opening on")
    }

    pub(crate) fn push(&mut self, segment: Arc<Segment>) {
        self.segments.push_back(SegmentFacts::new(segment));
    }

    /// A live segment by its epoch.
    pub(crate) fn find(&self, epoch: u64) -> Option<Arc<Segment>> {
        let at = self.segments.binary_search_by_key(&epoch, SegmentFacts::epoch).ok()?;
        Some(self.segments[at].segment.clone())
    }

    pub(crate) fn truncate_from(&mut self, group: GroupId, from: u64) {
        for segment in &mut self.segments {
            segment.truncate_from(group, from);
        }
    }

    /// The group's entries before `first` are purged, and that is on the disk.
    pub(crate) fn purged(&mut self, group: GroupId, first: u64) {
        let group = usize::from(group.0);
        if self.firsts.len() <= group {
            self.firsts.resize(group + 1, 0);
        }
        self.firsts[group] = self.firsts[group].max(first);
    }

    /// Gives up the oldest segment, if nobody needs it.
    pub(crate) fn pop_unneeded(&mut self) -> Option<Arc<Segment>> {
        let oldest = self.segments.front()?;
        let needed = (0..oldest.ends.len()).any(|group| oldest.needed_by(group, self.first_of(group)));
        if needed || self.segments.len() == 1 {
            return None;
        }
        self.segments.pop_front().map(|facts| facts.segment)
    }

    /// Bytes of the segments from the group's oldest entry on, but for the one that is written to.
    pub(crate) fn pinned_by(&self, group: GroupId) -> u64 {
        let group = usize::from(group.0);
        let first = self.first_of(group);
        let closed = self.segments.len().saturating_sub(1);
        let oldest = self.segments.iter().take(closed).position(|facts| facts.needed_by(group, first));
        oldest.map_or(0, |at| self.segments.range(at..closed).map(|facts| facts.segment.bytes).sum())
    }

    fn first_of(&self, group: usize) -> u64 {
        self.firsts.get(group).copied().unwrap_or(0)
    }
}
