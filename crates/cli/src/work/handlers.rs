//! Which program does a task: one command for all kinds, or the file in a directory that has the kind's name.
//!
//! The directory is looked at for each task, so that a file dropped into it counts at once. A kind without a file
//! is given back for a while: the task is not lost, uses up no attempt, and is not claimed again and again.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{Access, access};

/// An extension of these is no part of a kind: it says what runs the file.
const EXTENSIONS: &[&str] =
    &["sh", "bash", "zsh", "ksh", "fish", "py", "rb", "pl", "php", "js", "mjs", "cjs", "ts", "lua"];
/// What editors, packagers and people leave beside a file.
const LEFT_BEHIND: &[&str] = &[
    "~",
    "#",
    ".bak",
    ".old",
    ".orig",
    ".rej",
    ".swp",
    ".swo",
    ".tmp",
    ".part",
    ".dpkg-old",
    ".dpkg-new",
    ".dpkg-dist",
    ".rpmsave",
    ".rpmnew",
];
/// A task without a handler waits so long, and the longer its kind has been without one, up to the other.
const WAIT_MIN: Duration = Duration::from_secs(1);
const WAIT_MAX: Duration = Duration::from_secs(60);
/// Kinds without a handler that are remembered.
const MISSING_MAX: usize = 1_000;

/// What runs for a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Program {
    /// The file and its arguments.
    pub(super) argv: Vec<OsString>,
    /// Its name, for people.
    pub(super) name: String,
}

/// Who does which tasks.
pub(super) enum Programs {
    /// This, whatever the kind.
    All(Program),
    /// The file of the kind's name.
    ByKind(Handlers),
}

/// A directory of handlers.
pub(super) struct Handlers {
    dir: PathBuf,
    missing: Mutex<BTreeMap<String, Missing>>,
}

/// Since when a kind has had no handler, and when a task of it last came.
#[derive(Clone, Copy)]
struct Missing {
    since: Instant,
    seen: Instant,
}

/// Why no program can be run for a task, and when to look again.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NoProgram {
    pub(super) reason: String,
    pub(super) again_in: Duration,
    /// Whether it was said before.
    pub(super) is_old_news: bool,
}

impl Program {
    /// A command line, run by sh.
    pub(super) fn shell(command: &str) -> Program {
        let argv = ["sh", "-c", command].map(OsString::from).to_vec();
        Program { argv, name: command.to_owned() }
    }

    fn file(path: &Path) -> Program {
        Program { argv: vec![path.as_os_str().to_owned()], name: path.display().to_string() }
    }
}

impl Programs {
    /// The program for tasks of this kind.
    pub(super) fn of(&self, kind: &str, now: Instant) -> Result<Program, NoProgram> {
        match self {
            Programs::All(program) => Ok(program.clone()),
            Programs::ByKind(handlers) => handlers.of(kind, now),
        }
    }
}

impl Handlers {
    /// The handlers in a directory, which must be one; and the kinds that it has now.
    pub(super) fn open(dir: &Path) -> Result<(Handlers, Vec<String>), String> {
        let kinds = read(dir, None).map_err(|error| format!("cannot read {}: {error}", dir.display()))?;
        if let Some((kind, files)) = kinds.iter().find(|(_, files)| files.len() > 1) {
            return Err(too_many(dir, kind, files));
        }
        let handlers = Handlers { dir: dir.to_owned(), missing: Mutex::default() };
        Ok((handlers, kinds.into_keys().collect()))
    }

    fn of(&self, kind: &str, now: Instant) -> Result<Program, NoProgram> {
        let reason = match read(&self.dir, Some(kind)).map(|mut kinds| kinds.remove(kind).unwrap_or_default())
        {
            Ok(files) => match &files[..] {
                [] => format!("{} has no handler for kind {kind:?}", self.dir.display()),
                [file] => {
                    self.missing().remove(kind);
                    return Ok(Program::file(&self.dir.join(file)));
                }
                files => too_many(&self.dir, kind, files),
            },
            Err(error) => format!("cannot read {}: {error}", self.dir.display()),
        };
        let (again_in, is_old_news) = self.wait(kind, now);
        Err(NoProgram { reason, again_in, is_old_news })
    }

    /// How long a task of a kind without a handler waits, and whether one waited before.
    fn wait(&self, kind: &str, now: Instant) -> (Duration, bool) {
        let mut missing = self.missing();
        if missing.len() >= MISSING_MAX && !missing.contains_key(kind) {
            missing.clear();
        }
        let known = missing.get(kind).copied().filter(|known| now - known.seen < 2 * WAIT_MAX);
        let since = known.map_or(now, |known| known.since);
        missing.insert(kind.to_owned(), Missing { since, seen: now });
        ((now - since).clamp(WAIT_MIN, WAIT_MAX), known.is_some())
    }

    fn missing(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Missing>> {
        self.missing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn too_many(dir: &Path, kind: &str, files: &[String]) -> String {
    let (dir, files) = (dir.display(), files.join(" and "));
    format!("{dir} has {files}, all for kind {kind:?}: leave one of them")
}

/// The executable files of a directory by kind, all or those of one kind.
fn read(dir: &Path, only: Option<&str>) -> io::Result<BTreeMap<String, Vec<String>>> {
    let mut kinds: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        // A kind is text, so a name that is none is nobody's handler.
        let Ok(name) = entry.file_name().into_string() else { continue };
        let Some(kind) = kind_of(&name) else { continue };
        if only.is_none_or(|only| only == kind) && is_program(&entry.path()) {
            kinds.entry(kind.to_owned()).or_default().push(name);
        }
    }
    kinds.values_mut().for_each(|files| files.sort());
    Ok(kinds)
}

/// The kind that a file of this name is for; nothing for hidden files and what was left behind.
fn kind_of(name: &str) -> Option<&str> {
    if name.starts_with(['.', '#']) || LEFT_BEHIND.iter().any(|ending| name.ends_with(ending)) {
        return None;
    }
    match name.rsplit_once('.') {
        Some((kind, extension)) if EXTENSIONS.contains(&extension) => Some(kind),
        _ => Some(name),
    }
}

/// Whether it is a file, or a link to one, that we may run. An empty one is still being written: a shell would run it,
/// and say that all is well.
pub(super) fn is_program(path: &Path) -> bool {
    let has_content = std::fs::metadata(path).is_ok_and(|file| file.is_file() && file.len() > 0);
    has_content && access(path, Access::EXEC_OK).is_ok()
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn put(dir: &Path, name: &str, mode: u32) {
        let path = dir.join(name);
        std::fs::write(&path, "#!/bin/sh\n").unwrap();
        std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_file_is_for_the_kind_of_its_name() {
        for (name, kind) in [
            ("welcome", Some("welcome")),
            ("welcome.sh", Some("welcome")),
            ("user.created", Some("user.created")),
            ("user.created.py", Some("user.created")),
            ("a.sh.sh", Some("a.sh")),
            (".welcome", None),
            (".sh", None),
            ("welcome~", None),
            ("welcome.sh.bak", None),
            ("welcome.sh.swp", None),
            ("#welcome#", None),
        ] {
            assert_eq!(kind_of(name), kind, "{name}");
        }
    }

    #[test]
    fn a_handler_counts_from_the_moment_it_is_there_until_it_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        put(dir.path(), "hello", 0o755);
        put(dir.path(), "notes.md", 0o644);
        std::fs::create_dir(dir.path().join("folder")).unwrap();
        let (handlers, kinds) = Handlers::open(dir.path()).unwrap();
        assert_eq!(kinds, ["hello"]);
        let now = Instant::now();
        for kind in ["welcome", "notes.md", "notes", "folder", "../hello", ""] {
            assert!(handlers.of(kind, now).is_err(), "{kind}");
        }
        put(dir.path(), "welcome.sh", 0o755);
        let program = handlers.of("welcome", now).unwrap();
        assert_eq!(program.argv, [dir.path().join("welcome.sh").into_os_string()]);
        put(dir.path(), "welcome", 0o755);
        let both = handlers.of("welcome", now).unwrap_err();
        assert!(both.reason.contains("welcome and welcome.sh"), "{both:?}");
        assert!(Handlers::open(dir.path()).err().unwrap().contains("welcome and welcome.sh"));
        std::fs::remove_file(dir.path().join("welcome.sh")).unwrap();
        assert!(handlers.of("welcome", now).is_ok());
        std::fs::remove_dir_all(dir.path()).unwrap();
        assert!(handlers.of("welcome", now).unwrap_err().reason.contains("cannot read"));
    }

    #[test]
    fn the_longer_a_kind_has_no_handler_the_longer_its_tasks_wait() {
        let dir = tempfile::tempdir().unwrap();
        let (handlers, _) = Handlers::open(dir.path()).unwrap();
        let start = Instant::now();
        for (after, waits, is_old_news) in
            [(0, 1, false), (0, 1, true), (1, 1, true), (8, 8, true), (70, 60, true), (300, 1, false)]
        {
            let missing = handlers.of("welcome", start + Duration::from_secs(after)).unwrap_err();
            let expected = (Duration::from_secs(waits), is_old_news);
            assert_eq!((missing.again_in, missing.is_old_news), expected, "after {after} s");
        }
        put(dir.path(), "welcome", 0o755);
        assert!(handlers.of("welcome", start).is_ok());
        std::fs::remove_file(dir.path().join("welcome")).unwrap();
        assert!(!handlers.of("welcome", start).unwrap_err().is_old_news, "it was there meanwhile");
    }
}
