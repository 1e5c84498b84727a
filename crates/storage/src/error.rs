//! What can go wrong on the disk, with what to do about it.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use model::GroupId;

/// The result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The world failed: a disk, a file, its bytes.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The operating system refused.
    #[error("cannot {what} {}: {source}", path.display())]
    Io {
        /// The verb.
        what: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// Its reason.
        source: Arc<io::Error>,
    },
    /// No room for this write. Nothing of it was kept.
    #[error("no room on the disk for {}: free some space, it goes on by itself", path.display())]
    Full {
        /// What did not fit.
        path: PathBuf,
    },
    /// Bytes that were once safely on the disk are not what they were.
    #[error(
        "{} is damaged at byte {offset}: {what}; do not run on this directory: restore it from a backup, \
         or move it away and let this node join again and fetch its data from its peers",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where in it.
        offset: u64,
        /// What is wrong there.
        what: String,
    },
    /// A file that an earlier file says must exist is not there.
    #[error(
        "{} is missing, but {}: do not run on this directory: put the file back or restore it from a backup, \
         or move the directory away and let this node join again and fetch its data from its peers",
        path.display(), why
    )]
    Missing {
        /// The file.
        path: PathBuf,
        /// Who says so.
        why: String,
    },
    /// Written by a version that this one does not know.
    #[error("{} has format version {found}, this binary knows {known}: run a newer windlass", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// The newest that we read.
        known: u32,
    },
    /// A group's entries leave a hole.
    #[error("group {group}: entry {index} does not follow {expected}")]
    NotContiguous {
        /// The group.
        group: GroupId,
        /// What came.
        index: u64,
        /// What should have come.
        expected: u64,
    },
    /// An entry is larger than a segment can hold.
    #[error("an entry of {bytes} bytes does not fit into a log segment: at most {bytes_max}")]
    EntryTooLarge {
        /// Its payload.
        bytes: u64,
        /// The limit.
        bytes_max: u64,
    },
    /// A write or a sync failed: what is on the disk is unknown, so the process must end.
    #[error("{what}; what reached the disk is unknown: restart this process, it reads the disk anew")]
    Fatal {
        /// What failed.
        what: Arc<str>,
    },
    /// The log was closed.
    #[error("the log is closed")]
    Closed,
    /// Another process runs on the data directory.
    #[error(
        "{} is in use by {}: stop it, or choose another data directory",
        path.display(), Owner(*pid)
    )]
    Locked {
        /// The lock's file.
        path: PathBuf,
        /// Who holds it, if the file says.
        pid: Option<u32>,
    },
    /// The checkpoint's database refused.
    #[error("cannot {what} checkpoint {}: {reason}", path.display())]
    Checkpoint {
        /// The verb.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Its reason.
        reason: String,
    },
}

struct Owner(Option<u32>);

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(pid) => write!(f, "another windlass (process {pid})"),
            None => write!(f, "another windlass"),
        }
    }
}

impl Error {
    /// Wraps an error of the operating system; a full disk becomes [`Error::Full`].
    pub fn io(what: &'static str, path: impl Into<PathBuf>, source: io::Error) -> Error {
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Error::Full { path: path.into() },
            _ => Error::Io { what, path: path.into(), source: Arc::new(source) },
        }
    }

    /// Whether the process must end: it can no longer know what is on its disk.
    pub fn is_fatal(&self) -> bool {
        matches!(self, Error::Fatal { .. })
    }

    /// Whether room on the disk would help.
    pub fn is_full(&self) -> bool {
        matches!(self, Error::Full { .. })
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        let kind = match &error {
            Error::Io { source, .. } => source.kind(),
            Error::Full { .. } => io::ErrorKind::StorageFull,
            Error::Damaged { .. } | Error::Missing { .. } | Error::Version { .. } => {
                io::ErrorKind::InvalidData
            }
            Error::NotContiguous { .. } | Error::EntryTooLarge { .. } => io::ErrorKind::InvalidInput,
            Error::Locked { .. } => io::ErrorKind::ResourceBusy,
            Error::Fatal { .. } | Error::Closed | Error::Checkpoint { .. } => io::ErrorKind::Other,
        };
        io::Error::new(kind, error)
    }
}
