//! A directory of our own below the system's temporary one, removed when it goes.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The directory.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new(verb: &str) -> Result<Scratch> {
        let name = format!("windlass-{verb}-{}-{:08x}", std::process::id(), rand::random::<u32>());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Scratch(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(e) = std::fs::remove_dir_all(&self.0) {
            tracing::warn!("cannot remove {}: {e}", self.0.display());
        }
    }
}
