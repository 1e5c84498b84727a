//! What a restart makes of the bytes it finds: which records count, what is cut, what is refused.
//!
//! Segments form a chain: the seal at the end of one names the epoch of the next. The last one ends where
//! its valid records end. What stands behind that end decides:
//!
//! - nothing, or valid records of the same unfinished write: a torn tail. It was never acknowledged; cut.
//! - a valid record that says everything before it had been synced, or any record in a later segment: bytes
//!   that were safe are damaged. Refused, with what to do; never dropped in silence.
//!
//! Reads only. Next: `log.rs` opens what was found, `check.rs` reports it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use model::GroupId;

use crate::disk::{Disk, Open};
use crate::error::{Error, Result};
use crate::group_index::{GroupIndex, Place};
use crate::group_log::LogId;
use crate::log::TornTail;
use crate::record::Kind;
use crate::scan::{Found, Scanner};
use crate::segment::{Role, Segment, live_path, role};
use crate::table::SegmentFacts;

/// What the log's directory holds.
pub(crate) struct Replayed {
    /// The chain, oldest first; the last one is written to. Empty in a new directory.
    pub(crate) chain: Vec<SegmentFacts>,
    pub(crate) groups: BTreeMap<GroupId, GroupIndex>,
    /// Where the last segment's records end.
    pub(crate) end: u64,
    /// Nothing was being written when the process ended.
    pub(crate) clean: bool,
    pub(crate) torn: Option<TornTail>,
    /// Segments made ready and never used.
    pub(crate) unused: Vec<Segment>,
    pub(crate) free: Vec<PathBuf>,
    /// Being made when the process ended.
    pub(crate) unfinished: Vec<PathBuf>,
    pub(crate) next_epoch: u64,
}

/// Called with every record of the chain, in order.
pub(crate) type OnRecord<'a> = &'a mut dyn FnMut(&Path, &Found<'_>);

/// Reads all of it.
pub(crate) fn replay(disk: &dyn Disk, dir: &Path, how: Open, on_record: OnRecord<'_>) -> Result<Replayed> {
    let mut replayed = Replayed {
        chain: Vec::new(),
        groups: BTreeMap::new(),
        end: 0,
        clean: true,
        torn: None,
        unused: Vec::new(),
        free: Vec::new(),
        unfinished: Vec::new(),
        next_epoch: 1,
    };
    let mut segments = BTreeMap::new();
    for path in disk.list(dir).map_err(|source| Error::io("list", dir, source))? {
        let Some(role) = role(&path) else { continue };
        if let Role::Live { epoch } | Role::Free { epoch } = role {
            replayed.next_epoch = replayed.next_epoch.max(epoch + 1);
        }
        match role {
            Role::Live { epoch } => {
                segments.insert(epoch, Segment::open(disk, &path, epoch, how)?);
            }
            Role::Free { .. } => replayed.free.push(path),
            Role::New => replayed.unfinished.push(path),
        }
    }
    follow(dir, segments, &mut replayed, on_record)?;
    for (group, index) in &replayed.groups {
        if let Some(hole) = index.hole() {
            let first = live_path(dir, replayed.chain.first().map_or(0, |facts| facts.epoch()));
            let what = format!("group {group}: entries {} to {} are missing", hole.start, hole.end - 1);
            return Err(Error::Damaged { path: first, offset: 0, what });
        }
    }
    Ok(replayed)
}

fn follow(
    dir: &Path,
    mut segments: BTreeMap<u64, Segment>,
    replayed: &mut Replayed,
    on_record: OnRecord<'_>,
) -> Result<()> {
    let Some(mut epoch) = first_used(&segments)? else {
        replayed.unused.extend(segments.into_values());
        return Ok(());
    };
    loop {
        let segment = Arc::new(segments.remove(&epoch).expect("the caller looked"));
        let mut facts = SegmentFacts::new(segment.clone());
        let next = read_segment(&segment, &mut facts, replayed, on_record)?;
        replayed.chain.push(facts);
        let Some(next) = next else { break };
        if !segments.contains_key(&next) {
            let why = format!("the end of {} says that it comes next", segment.path.display());
            return Err(Error::Missing { path: live_path(dir, next), why });
        }
        epoch = next;
    }
    for segment in segments.into_values() {
        if has_records(&segment)? {
            let path = replayed.chain.last().map_or_else(PathBuf::new, |facts| facts.segment().path.clone());
            let what = format!("its records end here, but {} has later ones", segment.path.display());
            return Err(Error::Damaged { path, offset: replayed.end, what });
        }
        replayed.unused.push(segment);
    }
    Ok(())
}

/// The oldest segment with a valid record anywhere in it.
fn first_used(segments: &BTreeMap<u64, Segment>) -> Result<Option<u64>> {
    for (epoch, segment) in segments {
        if has_records(segment)? {
            return Ok(Some(*epoch));
        }
    }
    Ok(None)
}

fn has_records(segment: &Segment) -> Result<bool> {
    let failed = |source| Error::io("read", &segment.path, source);
    let mut scanner = Scanner::new(segment);
    if scanner.next().map_err(failed)?.is_some() {
        return Ok(true);
    }
    let behind = scanner.behind().map_err(failed)?;
    Ok(behind.proof.is_some() || behind.unfinished.is_some())
}

/// Reads one segment. The epoch of the next, if this one is sealed.
fn read_segment(
    segment: &Arc<Segment>,
    facts: &mut SegmentFacts,
    replayed: &mut Replayed,
    on_record: OnRecord<'_>,
) -> Result<Option<u64>> {
    let failed = |source| Error::io("read", &segment.path, source);
    let mut scanner = Scanner::new(segment);
    replayed.clean = false;
    while let Some(found) = scanner.next().map_err(failed)? {
        on_record(&segment.path, &found);
        replayed.clean = found.header.kind == Kind::Close;
        if found.header.kind == Kind::Seal {
            let next = found.header.id.index;
            if next <= segment.epoch {
                let what = format!("it says that segment {next} comes next, which came before it");
                return Err(Error::Damaged { path: segment.path.clone(), offset: found.offset, what });
            }
            replayed.end = scanner.offset();
            return Ok(Some(next));
        }
        apply(segment, facts, replayed, &found)?;
    }
    replayed.end = scanner.offset();
    let behind = scanner.behind().map_err(failed)?;
    if let Some(proof) = behind.proof {
        let what = format!("a record at byte {proof} proves that valid ones stood here");
        return Err(Error::Damaged { path: segment.path.clone(), offset: replayed.end, what });
    }
    if behind.started || behind.unfinished.is_some() {
        replayed.clean = false;
        replayed.torn = Some(TornTail { path: segment.path.clone(), offset: replayed.end });
    }
    Ok(None)
}

fn apply(
    segment: &Arc<Segment>,
    facts: &mut SegmentFacts,
    replayed: &mut Replayed,
    found: &Found<'_>,
) -> Result<()> {
    let header = &found.header;
    let (group, id) = (header.group, header.id);
    if matches!(header.kind, Kind::Seal | Kind::Mark | Kind::Close) {
        return Ok(());
    }
    if id.index == u64::MAX {
        let what = format!("group {group}: an index that no entry can have");
        return Err(Error::Damaged { path: segment.path.clone(), offset: found.offset, what });
    }
    let index = replayed.groups.entry(group).or_insert_with(|| GroupIndex::new(group));
    match header.kind {
        Kind::Entry => {
            let place = place(segment, found.offset);
            index.replay(id, header.payload_bytes as usize, place).map_err(|error| Error::Damaged {
                path: segment.path.clone(),
                offset: found.offset,
                what: error.to_string(),
            })?;
            facts.holds(group, id.index);
        }
        Kind::Vote => index.set_vote(bytes::Bytes::copy_from_slice(found.payload)),
        Kind::Truncate => {
            index.truncate_from(id.index);
            for earlier in replayed.chain.iter_mut().chain([facts]) {
                earlier.truncate_from(group, id.index);
            }
        }
        Kind::Purge => {
            index.purge(LogId { ..id });
        }
        Kind::Seal | Kind::Mark | Kind::Close => {}
    }
    Ok(())
}

/// Where a record is.
pub(crate) fn place(segment: &Segment, offset: u64) -> Place {
    Place {
        epoch: u32::try_from(segment.epoch).expect("2^32 segments are 256 PiB written"),
        offset: u32::try_from(offset).expect("segments are smaller than 4 GiB"),
    }
}
