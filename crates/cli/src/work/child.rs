//! The small process between a worker and the program of a task.
//!
//! A worker that is killed with -9 cannot kill its programs, and they would work on for tasks that
//! others hold by then. So each program runs below a copy of ourselves that leads its process group and
//! watches the pipe to the worker: when nobody is left to read it, the whole group is killed.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitCode, ExitStatus};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Signal, getpgrp, kill_process_group};

use super::handlers::is_program;

/// The first argument that makes us such a process; no verb is called this.
const MARK: &str = "__child";
/// What a shell says of a program that it cannot run.
const CANNOT_RUN: u8 = 127;

/// The command that runs a program and its arguments below such a process. `word` begins the line that says that it
/// was not there to be run.
pub(super) fn command(word: &str, program: &[OsString]) -> io::Result<Command> {
    let mut command = ourselves()?;
    command.arg(MARK).arg(word).args(program);
    Ok(command)
}

/// Why the program was not there to be run, if such a process said so: nobody else knows the `word`.
pub(super) fn not_started(word: &str, status: ExitStatus, errors: &str) -> Option<String> {
    let said = errors.lines().find_map(|line| line.strip_prefix(word))?;
    (status.code() == Some(CANNOT_RUN.into())).then(|| said.trim().to_owned())
}

/// Another process of this very binary. On Linux also when its file has been replaced since we started, as a deploy does.
pub(super) fn ourselves() -> io::Result<Command> {
    use std::os::unix::process::CommandExt as _;
    const RUNNING: &str = "/proc/self/exe";
    if !std::path::Path::new(RUNNING).exists() {
        return Ok(Command::new(std::env::current_exe()?));
    }
    let mut command = Command::new(RUNNING);
    command.arg0("windlass");
    Ok(command)
}

/// If this process was started by [`command`], does its work and returns its exit code.
pub(crate) fn run_if_asked() -> Option<ExitCode> {
    let mut args = std::env::args_os().skip(1);
    if args.next()? != MARK {
        return None;
    }
    Some(run(&args.collect::<Vec<_>>()))
}

fn run(args: &[OsString]) -> ExitCode {
    std::thread::spawn(kill_group_when_worker_is_gone);
    let [word, name, args @ ..] = args else { return ExitCode::from(CANNOT_RUN) };
    let status = match Command::new(name).args(args).status() {
        // A script that does not say what runs it is the shell's, as everywhere.
        Err(error) if is(&error, Errno::NOEXEC) && is_text(Path::new(name)) => {
            Command::new("sh").arg(name).args(args).status()
        }
        status => status,
    };
    match status {
        Ok(status) => ExitCode::from(code(status)),
        Err(error) => {
            let text = format!("cannot run {}: {error}", name.to_string_lossy());
            let _ = crate::output::note(&match is_away(name, &error) {
                true => format!("{} {text}", word.to_string_lossy()),
                false => text,
            });
            ExitCode::from(CANNOT_RUN)
        }
    }
}

/// Whether the program is not there, or not yet, or this machine cannot run anything: whatever it is, it is not the
/// task's fault. A program that is there and cannot be run is its own.
fn is_away(name: &OsStr, error: &io::Error) -> bool {
    let path = Path::new(name);
    let is_found_by_name = path.components().count() == 1;
    [Errno::TXTBSY, Errno::AGAIN, Errno::NOMEM, Errno::MFILE, Errno::NFILE].iter().any(|no| is(error, *no))
        || is_found_by_name
        || !is_program(path)
}

fn is(error: &io::Error, no: Errno) -> bool {
    error.raw_os_error() == Some(no.raw_os_error())
}

/// Whether a shell may take it for a script: the program of another machine is none.
fn is_text(path: &Path) -> bool {
    let mut head = Vec::new();
    let read = File::open(path).and_then(|file| file.take(512).read_to_end(&mut head));
    read.is_ok() && !head.contains(&0)
}

fn code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

/// A pipe whose reader is gone says so as an error, without anything being written to it.
fn kill_group_when_worker_is_gone() {
    let stdout = io::stdout();
    let mut fds = [PollFd::new(&stdout, PollFlags::empty())];
    loop {
        match poll(&mut fds, None) {
            Ok(_) if fds[0].revents().intersects(PollFlags::ERR | PollFlags::HUP) => break,
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return,
        }
    }
    let _ = kill_process_group(getpgrp(), Signal::KILL);
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_program_that_is_not_there_is_told_from_one_that_is_bad() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, content: &[u8], mode| {
            let path = dir.path().join(name);
            std::fs::write(&path, content).unwrap();
            std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            path.into_os_string()
        };
        let gone = dir.path().join("gone").into_os_string();
        let error = io::Error::from_raw_os_error;
        for (what, name, no, expected) in [
            ("it went away", gone, Errno::NOENT, true),
            ("it is empty", put("empty", b"", 0o755), Errno::NOENT, true),
            ("it is being written", put("busy", b"#!/bin/sh", 0o755), Errno::TXTBSY, true),
            ("no process is left", put("fine", b"#!/bin/sh", 0o755), Errno::AGAIN, true),
            ("its interpreter is not there", put("odd", b"#!/nowhere", 0o755), Errno::NOENT, false),
            ("it is of another machine", put("binary", b"\x7fELF\0", 0o755), Errno::NOEXEC, false),
            ("the shell is not there", "sh".into(), Errno::NOENT, true),
        ] {
            assert_eq!(is_away(&name, &error(no.raw_os_error())), expected, "{what}");
        }
        assert!(is_text(Path::new(&put("script", b"echo 1", 0o755))));
        assert!(!is_text(Path::new(&put("binary", b"\x7fELF\0", 0o755))));
    }

    #[test]
    fn only_the_word_and_the_code_together_say_that_nothing_was_run() {
        let status = |code: i32| ExitStatus::from_raw(code << 8);
        let said = "abc cannot run x: No such file\n";
        assert_eq!(not_started("abc", status(127), said).as_deref(), Some("cannot run x: No such file"));
        assert_eq!(not_started("abc", status(1), said), None);
        assert_eq!(not_started("abd", status(127), said), None);
        assert_eq!(not_started("abc", status(127), "sh: nothing: not found"), None);
    }
}
