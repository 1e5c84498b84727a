//! Hands the history to the checker, which is another program: what judges a run knows nothing of how it was made.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::error::Error;

/// What the checker said.
pub(crate) struct Verdict {
    /// Each promise that broke, in its own line.
    pub(crate) lines: Vec<String>,
    pub(crate) took: Duration,
}

/// Judges a history.
pub(crate) fn judge(checker: &Path, history: &Path) -> Result<Verdict, Error> {
    let began = Instant::now();
    let words = format!("{} check {}", checker.display(), history.display());
    let output =
        Command::new(checker).arg("check").arg(history).output().map_err(Error::io(words.clone()))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let broken = text.lines().filter(|line| line.starts_with("  ") && !line.starts_with("  coverage:"));
    let lines: Vec<String> = broken.map(|line| line.trim().to_owned()).collect();
    match output.status.code() {
        Some(0 | 1) if output.status.success() == lines.is_empty() => {
            Ok(Verdict { lines, took: began.elapsed() })
        }
        _ => Err(Error::Program { words, why: format!("{text}{}", String::from_utf8_lossy(&output.stderr)) }),
    }
}
