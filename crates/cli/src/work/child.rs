//! The small process between a worker and the program of a task.
//!
//! A worker that is killed with -9 cannot kill its programs, and they would work on for tasks that
//! others hold by then. So each program runs below a copy of ourselves that leads its process group and
//! watches the pipe to the worker: when nobody is left to read it, the whole group is killed.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode, ExitStatus};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Signal, getpgrp, kill_process_group};

/// The first argument that makes us such a process; no verb is called this.
const MARK: &str = "__child";

/// The command that runs a program and its arguments below such a process.
pub(super) fn command(program: &[OsString]) -> io::Result<Command> {
    let mut command = ourselves()?;
    command.arg(MARK).args(program);
    Ok(command)
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

fn run(program: &[OsString]) -> ExitCode {
    std::thread::spawn(kill_group_when_worker_is_gone);
    let Some((name, args)) = program.split_first() else { return ExitCode::from(127) };
    let status = match Command::new(name).args(args).status() {
        // A script that does not say what runs it is the shell's, as everywhere.
        Err(error) if error.raw_os_error() == Some(Errno::NOEXEC.raw_os_error()) => {
            Command::new("sh").arg(name).args(args).status()
        }
        status => status,
    };
    match status {
        Ok(status) => ExitCode::from(code(status)),
        Err(error) => {
            let _ = crate::output::note(&format!("cannot run {}: {error}", name.to_string_lossy()));
            ExitCode::from(127)
        }
    }
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
