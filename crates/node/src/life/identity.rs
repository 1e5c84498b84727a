//! The file in which a node keeps who it is: `docs/formats/identity.md`.
//!
//! Written whole beside the old one, synced, then renamed: after a crash it is the old one or the new one.

use std::io;
use std::path::Path;

use bytes::Bytes;
use storage::{Disk, Open};
use wire::life::Identity;

use crate::error::Error;

/// The file, below the data directory.
pub(crate) const IDENTITY_FILE: &str = "identity";
/// What is being written; never read.
const NEW_FILE: &str = "identity.new";

const MAGIC: [u8; 8] = *b"WLnode\r\n";
const VERSION: u32 = 1;
const CHECKSUM_BYTES: usize = 16;
const HEADER_BYTES: usize = 8 + 4 + CHECKSUM_BYTES;
/// Nothing we write is longer; more is not our file.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// Who this node is; nothing when its disk does not say.
pub(crate) fn read(disk: &dyn Disk) -> Result<Option<Identity>, Error> {
    let path = Path::new(IDENTITY_FILE);
    let failed = |error: io::Error| cannot("read", disk, &error.to_string());
    if !disk.exists(path).map_err(failed)? {
        return Ok(None);
    }
    let file = disk.open(path, Open::Read).map_err(failed)?;
    let len = file.len().map_err(failed)?;
    if len > FILE_BYTES_MAX {
        return Err(cannot("read", disk, "it is too long to be one"));
    }
    let mut bytes = vec![0; len as usize];
    file.read_at(&mut bytes, 0).map_err(failed)?;
    parse(&bytes).map(Some).map_err(|what| cannot("read", disk, what))
}

fn parse(bytes: &[u8]) -> Result<Identity, &'static str> {
    let damaged = "it is damaged: restore it from a backup, or wipe the whole data directory to join anew";
    let (header, body) = bytes.split_at_checked(HEADER_BYTES).ok_or(damaged)?;
    if header[..8] != MAGIC {
        return Err(damaged);
    }
    if header[8..12] != VERSION.to_le_bytes() {
        return Err("its version is newer than this program: upgrade");
    }
    if header[12..] != checksum(body) {
        return Err(damaged);
    }
    Identity::decode(Bytes::copy_from_slice(body)).map_err(|_| damaged)
}

/// Has survived a crash when this returns.
pub(crate) fn write(disk: &dyn Disk, identity: &Identity) -> Result<(), Error> {
    let body = identity.encode();
    let mut bytes = Vec::with_capacity(HEADER_BYTES + body.len());
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&checksum(&body));
    bytes.extend_from_slice(&body);
    let written = || -> io::Result<()> {
        let file = disk.open(Path::new(NEW_FILE), Open::Create)?;
        file.set_len(0)?;
        file.write_at(&bytes, 0)?;
        file.sync_all()?;
        disk.rename(Path::new(NEW_FILE), Path::new(IDENTITY_FILE))?;
        disk.sync_dir(Path::new(""))
    };
    written().map_err(|error| cannot("write", disk, &error.to_string()))
}

fn checksum(body: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let mut sum = [0; CHECKSUM_BYTES];
    sum.copy_from_slice(&blake3::hash(body).as_bytes()[..CHECKSUM_BYTES]);
    sum
}

fn cannot(verb: &str, disk: &dyn Disk, what: &str) -> Error {
    let path = disk.locate(Path::new(IDENTITY_FILE));
    Error::Broken(format!("cannot {verb} {}, which says who this node is: {what}", path.display()))
}

#[cfg(test)]
mod tests {
    use model::catalog::ClusterFacts;
    use model::{MemberId, NodeId};
    use storage::MemDisk;
    use wire::life::Standing;

    use super::*;

    fn identity(incarnation: u64) -> Identity {
        let facts = ClusterFacts { cluster_id: 7, shards: 4, token_key: [3; 32] };
        let member = MemberId::new(NodeId(2), incarnation);
        let standing = Standing::Member { member, facts, founders: Vec::new() };
        Identity { node: NodeId(2), standing, has_log: incarnation > 0 }
    }

    #[test]
    fn after_a_crash_at_any_point_it_is_the_old_one_or_the_new_one() {
        for changes in 0..6 {
            for seed in 0..20 {
                let disk = MemDisk::new();
                write(&disk, &identity(0)).unwrap();
                disk.cut_power_after(changes);
                let written = write(&disk, &identity(1));
                disk.crash(seed);
                let read = read(&disk).unwrap().unwrap();
                match written {
                    Ok(()) => assert_eq!(read, identity(1)),
                    Err(_) => assert!(read == identity(0) || read == identity(1), "{changes} {seed}"),
                }
            }
        }
    }

    #[test]
    fn a_damaged_one_is_refused() {
        let disk = MemDisk::new();
        assert_eq!(read(&disk), Ok(None));
        write(&disk, &identity(0)).unwrap();
        let len = disk.read(Path::new(IDENTITY_FILE)).unwrap().len() as u64;
        for offset in 0..len {
            disk.flip(Path::new(IDENTITY_FILE), offset, 3);
            assert!(read(&disk).is_err(), "{offset}");
            disk.flip(Path::new(IDENTITY_FILE), offset, 3);
        }
        assert_eq!(read(&disk), Ok(Some(identity(0))));
    }
}
