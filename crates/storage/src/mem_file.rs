//! The bytes of one file in memory: as readers see them, and as a crash would leave them.
//!
//! Pages are shared until they differ, so a synced file costs its bytes once. Next: `mem_disk.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::sync::Arc;

pub(crate) const PAGE_BYTES: u64 = 4096;
const SECTOR_BYTES: u64 = 512;
const PAGE: usize = PAGE_BYTES as usize;

type Pages = BTreeMap<u64, Arc<[u8; PAGE]>>;

/// A file's bytes.
#[derive(Default)]
pub(crate) struct Content {
    len: u64,
    pages: Pages,
    synced_len: u64,
    synced_pages: Pages,
    /// Sectors written since the last sync.
    dirty: BTreeSet<u64>,
    /// The bytes of the last write since then.
    last_write: Option<Range<u64>>,
    /// Bytes promised by `allocate`.
    promised_bytes: u64,
}

impl Content {
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// What it takes on the disk.
    pub(crate) fn allocated_bytes(&self) -> u64 {
        (self.pages.len() as u64 * PAGE_BYTES).max(self.promised_bytes)
    }

    /// What it would take with a write there.
    pub(crate) fn bytes_with(&self, offset: u64, length: u64) -> u64 {
        let new = pages_of(offset, length)
            .filter(|page| !self.pages.contains_key(page) && *page * PAGE_BYTES >= self.promised_bytes)
            .count() as u64;
        self.allocated_bytes() + new * PAGE_BYTES
    }

    pub(crate) fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        if offset + buffer.len() as u64 > self.len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut done = 0;
        while done < buffer.len() {
            let at = offset + done as u64;
            let (page, start) = (at / PAGE_BYTES, (at % PAGE_BYTES) as usize);
            let length = (PAGE - start).min(buffer.len() - done);
            let target = &mut buffer[done..done + length];
            match self.pages.get(&page) {
                Some(page) => target.copy_from_slice(&page[start..start + length]),
                None => target.fill(0),
            }
            done += length;
        }
        Ok(())
    }

    pub(crate) fn write(&mut self, data: &[u8], offset: u64) {
        let mut done = 0;
        while done < data.len() {
            let at = offset + done as u64;
            let (page, start) = (at / PAGE_BYTES, (at % PAGE_BYTES) as usize);
            let length = (PAGE - start).min(data.len() - done);
            let target = Arc::make_mut(self.pages.entry(page).or_insert_with(|| Arc::new([0; PAGE])));
            target[start..start + length].copy_from_slice(&data[done..done + length]);
            done += length;
        }
        let end = offset + data.len() as u64;
        self.dirty.extend(offset / SECTOR_BYTES..end.div_ceil(SECTOR_BYTES));
        self.last_write = (!data.is_empty()).then_some(offset..end);
        self.len = self.len.max(end);
    }

    pub(crate) fn set_len(&mut self, len: u64) {
        if len < self.len {
            cut(&mut self.pages, len);
            self.dirty.extend(len / SECTOR_BYTES..self.len.div_ceil(SECTOR_BYTES));
            self.promised_bytes = self.promised_bytes.min(len.next_multiple_of(PAGE_BYTES));
        }
        self.len = len;
    }

    pub(crate) fn allocate(&mut self, len: u64) {
        self.promised_bytes = self.promised_bytes.max(len.next_multiple_of(PAGE_BYTES));
        self.len = self.len.max(len);
    }

    /// Everything survives from now on.
    pub(crate) fn sync(&mut self) {
        for sector in std::mem::take(&mut self.dirty) {
            let page = sector * SECTOR_BYTES / PAGE_BYTES;
            match self.pages.get(&page) {
                Some(bytes) => self.synced_pages.insert(page, bytes.clone()),
                None => self.synced_pages.remove(&page),
            };
        }
        self.last_write = None;
        self.synced_len = self.len;
    }

    /// These bytes, which were just written, survive from now on; all else that was written may not.
    pub(crate) fn sync_bytes(&mut self, bytes: Range<u64>) {
        copy(&self.pages, &mut self.synced_pages, bytes.clone());
        let whole = bytes.start.div_ceil(SECTOR_BYTES)..bytes.end / SECTOR_BYTES;
        self.dirty.retain(|sector| !whole.contains(sector));
        self.last_write = None;
        self.synced_len = self.synced_len.max(bytes.end);
    }

    /// A sync failed: readers still see what they wrote, but no later sync will keep it.
    pub(crate) fn lose(&mut self) {
        self.dirty.clear();
        self.last_write = None;
    }

    /// What a power cut leaves.
    pub(crate) fn crash(&mut self, rng: &mut Rng) {
        let dirty: Vec<u64> = std::mem::take(&mut self.dirty).into_iter().collect();
        let mode = rng.below(5);
        let cut = rng.below(dirty.len() as u64 + 1) as usize;
        let mut pages = self.synced_pages.clone();
        for (at, sector) in dirty.into_iter().enumerate() {
            let is_kept = match mode {
                0 => false,
                1 | 2 => true,
                3 => at < cut,
                _ => rng.below(2) == 0,
            };
            if is_kept {
                let start = sector * SECTOR_BYTES;
                copy(&self.pages, &mut pages, start..start + SECTOR_BYTES);
            }
        }
        if let (2, Some(last)) = (mode, self.last_write.take()) {
            let torn_at = last.start + rng.below(last.end - last.start);
            copy(&self.synced_pages, &mut pages, torn_at..last.end);
        }
        // The length is kept whenever something was: a shorter file would say nothing new about order.
        self.len = if mode == 0 { self.synced_len } else { self.len.max(self.synced_len) };
        self.synced_len = self.len;
        self.pages = pages.clone();
        self.synced_pages = pages;
    }

    /// Loses the end, synced or not, behind everybody's back.
    pub(crate) fn truncate_raw(&mut self, len: u64) {
        if len >= self.len {
            return;
        }
        cut(&mut self.pages, len);
        cut(&mut self.synced_pages, len);
        self.dirty.retain(|sector| sector * SECTOR_BYTES < len);
        self.promised_bytes = self.promised_bytes.min(len.next_multiple_of(PAGE_BYTES));
        self.len = len;
        self.synced_len = self.synced_len.min(len);
    }

    /// Changes a byte, synced or not, behind everybody's back.
    pub(crate) fn change_raw(&mut self, offset: u64, change: impl Fn(u8) -> u8) {
        if offset >= self.len {
            return;
        }
        let (page, at) = (offset / PAGE_BYTES, (offset % PAGE_BYTES) as usize);
        for pages in [&mut self.pages, &mut self.synced_pages] {
            let bytes = Arc::make_mut(pages.entry(page).or_insert_with(|| Arc::new([0; PAGE])));
            bytes[at] = change(bytes[at]);
        }
    }
}

fn cut(pages: &mut Pages, len: u64) {
    pages.retain(|page, _| page * PAGE_BYTES < len);
    if let Some(last) = pages.get_mut(&(len / PAGE_BYTES)) {
        Arc::make_mut(last)[(len % PAGE_BYTES) as usize..].fill(0);
    }
}

fn pages_of(offset: u64, length: u64) -> std::ops::Range<u64> {
    offset / PAGE_BYTES..(offset + length).div_ceil(PAGE_BYTES)
}

/// Copies some bytes of one file's pages into another's.
fn copy(from: &Pages, into: &mut Pages, bytes: Range<u64>) {
    for page in pages_of(bytes.start, bytes.end - bytes.start) {
        let start = bytes.start.saturating_sub(page * PAGE_BYTES) as usize;
        let end = (bytes.end - page * PAGE_BYTES).min(PAGE_BYTES) as usize;
        let target = Arc::make_mut(into.entry(page).or_insert_with(|| Arc::new([0; PAGE])));
        match from.get(&page) {
            Some(source) => target[start..end].copy_from_slice(&source[start..end]),
            None => target[start..end].fill(0),
        }
    }
}

/// A small random generator (splitmix64): the seed is the whole input of a crash.
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}
