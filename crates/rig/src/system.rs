//! The machine under the rig: other programs, signals that end us, and waiting that a signal ends.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::error::Error;

/// Between two looks at something that is awaited.
const LOOK: Duration = Duration::from_millis(20);

static STOPPED: AtomicBool = AtomicBool::new(false);

/// Turns SIGINT and SIGTERM into a wish that every wait sees, so that all that was made is removed.
pub(crate) fn catch_signals() -> Result<(), Error> {
    use tokio::signal::unix::{SignalKind, signal};
    let failed = Error::io("catch signals");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    std::thread::spawn(move || {
        runtime.block_on(async {
            let (Ok(mut int), Ok(mut term)) =
                (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
            else {
                return;
            };
            tokio::select! { _ = int.recv() => {}, _ = term.recv() => {} }
            STOPPED.store(true, Ordering::SeqCst);
        });
    });
    Ok(())
}

/// Whether we were asked to stop.
pub(crate) fn is_stopped() -> bool {
    STOPPED.load(Ordering::SeqCst)
}

/// Lets time pass.
pub(crate) fn pause(span: Duration) -> Result<(), Error> {
    let until = Instant::now() + span;
    loop {
        if is_stopped() {
            return Err(Error::Stopped);
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        std::thread::sleep(left.min(LOOK));
    }
}

/// Waits until something is so.
pub(crate) fn until(
    what: &str,
    within: Duration,
    mut is_so: impl FnMut() -> Result<bool, Error>,
) -> Result<(), Error> {
    let began = Instant::now();
    while !is_so()? {
        if began.elapsed() > within {
            return Err(Error::Never { what: what.to_owned(), within });
        }
        pause(LOOK)?;
    }
    Ok(())
}

/// Runs a program to its end: what it said. Words are parted by spaces.
pub(crate) fn run(words: &str) -> Result<String, Error> {
    execute(words, &[], "")
}

/// The same, with something to read.
pub(crate) fn run_with(words: &str, input: &str) -> Result<String, Error> {
    execute(words, &[], input)
}

/// The same, with paths at its end, whatever is in them.
pub(crate) fn run_on(words: &str, paths: &[&Path]) -> Result<String, Error> {
    execute(words, paths, "")
}

fn execute(words: &str, paths: &[&Path], input: &str) -> Result<String, Error> {
    let failed = |why: String| Error::Program { words: words.to_owned(), why };
    let mut parts = words.split_whitespace();
    let mut command = Command::new(parts.next().unwrap_or_default());
    command.args(parts).args(paths).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| failed(error.to_string()))?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(input.as_bytes()).map_err(|error| failed(error.to_string()))?;
    }
    let output = child.wait_with_output().map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        return Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Whether a program is on the path.
pub(crate) fn has(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

/// Where libfaketime is.
pub(crate) fn faketime() -> Option<PathBuf> {
    let places = ["/usr/lib", "/usr/lib64", "/usr/local/lib"].map(PathBuf::from);
    let multiarch = std::fs::read_dir("/usr/lib").into_iter().flatten().flatten().map(|entry| entry.path());
    let mut places = places.into_iter().chain(multiarch);
    places.find_map(|dir| Some(dir.join("faketime/libfaketime.so.1")).filter(|path| path.exists()))
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Tells people something. Whoever closed the other end does not want to know.
pub(crate) fn say(line: &str) {
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}
