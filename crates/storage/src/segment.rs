//! One file of the log: a header, then records, then zeros or bytes of an earlier life.
//!
//! A segment is made once, filled with zeros, and used again and again: each use has a new **epoch**, which
//! is in the file's name, in its header and in each record. Invariant: no byte of a file comes from an epoch
//! greater than the one in its name. That makes it safe to number on from the greatest name after a crash.
//!
//! A name ending in `.seg` has a header that was synced before the file got that name; `.free` waits to be
//! used again; `.new` is being made. Next: `pool.rs`, which makes and recycles them.

use std::io;
use std::path::{Path, PathBuf};

use crate::disk::{Disk, DiskFile, Open};
use crate::error::{Error, Result};

/// Format version of segments and their records.
pub(crate) const VERSION: u32 = 1;
/// Where the first record is.
pub(crate) const DATA_START: u64 = 4096;
/// Smallest segment.
pub(crate) const SEGMENT_BYTES_MIN: u64 = 16 * 1024;
/// Largest segment: offsets are 32 bits.
pub(crate) const SEGMENT_BYTES_MAX: u64 = 2 * 1024 * 1024 * 1024;

/// Largest epoch: places are 32 bits. With segments of the default size that is 256 PiB written.
const EPOCH_MAX: u64 = u32::MAX as u64 - 1;

const MAGIC: [u8; 8] = *b"WLseg\r\n\x1a";
const HEADER_BYTES: usize = 32;
const CRC_SEED: u32 = 0x574c_5347;
const ZERO_PIECE: usize = 1024 * 1024;

/// An open segment.
pub(crate) struct Segment {
    pub(crate) epoch: u64,
    pub(crate) bytes: u64,
    pub(crate) path: PathBuf,
    pub(crate) file: Box<dyn DiskFile>,
}

/// What a file in the log's directory is, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Live { epoch: u64 },
    Free { epoch: u64 },
    New,
}

/// The file of a segment in use.
pub(crate) fn live_path(dir: &Path, epoch: u64) -> PathBuf {
    dir.join(format!("{epoch:016}.seg"))
}

/// The file of a segment that waits to be used again.
pub(crate) fn free_path(dir: &Path, epoch: u64) -> PathBuf {
    dir.join(format!("{epoch:016}.free"))
}

/// What a file is; `None` if it is not ours.
pub(crate) fn role(path: &Path) -> Option<Role> {
    let epoch = path.file_stem()?.to_str()?.parse().ok().filter(|epoch| *epoch <= EPOCH_MAX)?;
    match path.extension()?.to_str()? {
        "seg" => Some(Role::Live { epoch }),
        "free" => Some(Role::Free { epoch }),
        "new" => Some(Role::New),
        _ => None,
    }
}

impl Segment {
    /// Opens a segment in use and verifies its header.
    pub(crate) fn open(disk: &dyn Disk, path: &Path, epoch: u64, how: Open) -> Result<Segment> {
        let file = disk.open_direct(path, how).map_err(|source| Error::io("open", path, source))?;
        let length = file.len().map_err(|source| Error::io("read", path, source))?;
        let damaged = |what: &str| Error::Damaged { path: path.to_owned(), offset: 0, what: what.to_owned() };
        if length < DATA_START {
            return Err(damaged("the file is shorter than a segment's header"));
        }
        let mut header = [0; HEADER_BYTES];
        file.read_at(&mut header, 0).map_err(|source| Error::io("read", path, source))?;
        if header[..8] != MAGIC {
            return Err(damaged("it does not begin like a log segment"));
        }
        if crc32c::crc32c_append(CRC_SEED, &header[..28]) != le_u32(&header[28..]) {
            return Err(damaged("the checksum of the segment's header is wrong"));
        }
        let version = le_u32(&header[8..]);
        if version != VERSION {
            return Err(Error::Version { path: path.to_owned(), found: version, known: VERSION });
        }
        let (found, bytes) = (le_u64(&header[12..]), le_u64(&header[20..]));
        if found != epoch {
            return Err(damaged(&format!("its header says epoch {found}, its name {epoch}")));
        }
        if !(SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&bytes) {
            return Err(damaged(&format!("its header says {bytes} bytes, which no segment has")));
        }
        if length < bytes {
            return Err(damaged(&format!("the file has {length} bytes, its header says {bytes}")));
        }
        Ok(Segment { epoch, bytes, path: path.to_owned(), file })
    }

    /// Makes a segment ready for `epoch`, from the free file `from` or anew. When this returns, the file
    /// has its name for good.
    pub(crate) fn prepare(
        disk: &dyn Disk,
        dir: &Path,
        from: Option<&Path>,
        epoch: u64,
        bytes: u64,
    ) -> Result<Segment> {
        let path = live_path(dir, epoch);
        let source = match from {
            Some(free) => free.to_owned(),
            None => path.with_extension("new"),
        };
        let failed = |source: io::Error| Error::io("prepare", &path, source);
        let file = disk.open_direct(&source, Open::Create).map_err(failed)?;
        let is_short = file.len().map_err(failed)? < bytes;
        if is_short && let Err(error) = fill(&*file, bytes) {
            // A file that could not be filled takes room that somebody needs.
            let _ = disk.remove(&source);
            return Err(failed(error));
        }
        // The page after the header is cleared too: a segment without records must look like one.
        let mut head = vec![0; 2 * DATA_START as usize];
        head[..HEADER_BYTES].copy_from_slice(&header(epoch, bytes));
        file.write_at(&head, 0).map_err(failed)?;
        file.sync_all().map_err(failed)?;
        disk.rename(&source, &path).map_err(failed)?;
        disk.sync_dir(dir).map_err(failed)?;
        Ok(Segment { epoch, bytes, path, file })
    }
}

/// Writes zeros over all of it: a sync of a record then changes no metadata, which makes it twice as fast.
fn fill(file: &dyn DiskFile, bytes: u64) -> io::Result<()> {
    file.allocate(bytes)?;
    let zeros = vec![0; ZERO_PIECE.min(bytes as usize)];
    let mut offset = 0;
    while offset < bytes {
        let piece = (bytes - offset).min(zeros.len() as u64);
        file.write_at(&zeros[..piece as usize], offset)?;
        offset += piece;
        // In pieces, so that the log's own syncs do not wait for all of it.
        file.sync_data()?;
    }
    Ok(())
}

fn header(epoch: u64, bytes: u64) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(&MAGIC);
    header[8..12].copy_from_slice(&VERSION.to_le_bytes());
    header[12..20].copy_from_slice(&epoch.to_le_bytes());
    header[20..28].copy_from_slice(&bytes.to_le_bytes());
    let crc = crc32c::crc32c_append(CRC_SEED, &header[..28]);
    header[28..].copy_from_slice(&crc.to_le_bytes());
    header
}

fn le_u32(bytes: &[u8]) -> u32 {
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

fn le_u64(bytes: &[u8]) -> u64 {
    u64::from(le_u32(bytes)) | u64::from(le_u32(&bytes[4..])) << 32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem_disk::MemDisk;

    const BYTES: u64 = SEGMENT_BYTES_MIN;

    #[test]
    fn a_prepared_segment_opens_and_a_recycled_one_has_a_new_epoch() {
        let disk = MemDisk::new();
        let dir = Path::new("log");
        disk.create_dir_all(dir).unwrap();
        let first = Segment::prepare(&disk, dir, None, 1, BYTES).unwrap();
        first.file.write_at(&[7; 100], DATA_START).unwrap();
        let free = free_path(dir, 1);
        disk.rename(&first.path, &free).unwrap();
        Segment::prepare(&disk, dir, Some(&free), 5, BYTES).unwrap();

        let path = live_path(dir, 5);
        assert_eq!(disk.list(dir).unwrap(), std::slice::from_ref(&path));
        let again = Segment::open(&disk, &path, 5, Open::Read).unwrap();
        let mut head = [1; 100];
        again.file.read_at(&mut head, DATA_START).unwrap();
        assert_eq!(head, [0; 100], "records of the earlier life begin no more");
    }

    #[test]
    fn a_damaged_header_is_refused_with_what_to_do() {
        let disk = MemDisk::new();
        let dir = Path::new("log");
        disk.create_dir_all(dir).unwrap();
        let path = Segment::prepare(&disk, dir, None, 1, BYTES).unwrap().path;
        for (offset, what) in [(0, "begin like"), (9, "checksum"), (13, "checksum"), (29, "checksum")] {
            disk.flip(&path, offset, 3);
            let Err(error) = Segment::open(&disk, &path, 1, Open::Read) else { panic!("{what} opened") };
            assert!(error.to_string().contains(what), "{error}");
            assert!(error.to_string().contains("restore it from a backup"), "{error}");
            disk.flip(&path, offset, 3);
        }
        assert!(Segment::open(&disk, &path, 2, Open::Read).is_err(), "another epoch than its name");
    }

    #[test]
    fn a_length_that_no_segment_has_is_refused() {
        let disk = MemDisk::new();
        let dir = Path::new("log");
        disk.create_dir_all(dir).unwrap();
        let segment = Segment::prepare(&disk, dir, None, 1, BYTES).unwrap();
        for bytes in [0, DATA_START, SEGMENT_BYTES_MIN - 1, SEGMENT_BYTES_MAX + 1, u64::MAX] {
            let mut header = [0; HEADER_BYTES];
            segment.file.read_at(&mut header, 0).unwrap();
            header[20..28].copy_from_slice(&bytes.to_le_bytes());
            let crc = crc32c::crc32c_append(CRC_SEED, &header[..28]);
            header[28..].copy_from_slice(&crc.to_le_bytes());
            segment.file.write_at(&header, 0).unwrap();
            let Err(error) = Segment::open(&disk, &segment.path, 1, Open::Read) else {
                panic!("{bytes} opened")
            };
            assert!(error.to_string().contains("which no segment has"), "{error}");
        }
    }

    #[test]
    fn names_say_what_a_file_is() {
        let dir = Path::new("log");
        assert_eq!(role(&live_path(dir, 12)), Some(Role::Live { epoch: 12 }));
        assert_eq!(role(&free_path(dir, 12)), Some(Role::Free { epoch: 12 }));
        assert_eq!(role(Path::new("log/0000000000000001.new")), Some(Role::New));
        let beyond = format!("log/{}.seg", u64::MAX);
        for foreign in ["log/notes.txt", "log/x.seg", "log/1.seg.bak", "log/.seg", &beyond] {
            assert_eq!(role(Path::new(foreign)), None, "{foreign}");
        }
    }
}
