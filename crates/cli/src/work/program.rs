//! Runs the program of one task: payload in, output and errors out, killed with all it started.

use std::pin::pin;
use std::process::Stdio;
use std::time::{Duration, SystemTime};

use futures::FutureExt as _;
use futures::future::FusedFuture as _;
use model::limits;
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};
use windlass::RawTask;

use super::child;
use super::handle::{Crew, Kill, Killer};
use super::handlers::Program;

/// How long a program that is asked to stop may clean up.
const GRACE: Duration = Duration::from_secs(2);
/// How long what a program has left behind, in a session of its own, may keep its pipes open.
const PIPES_GRACE: Duration = Duration::from_secs(1);
/// How much of stderr goes into a task's error.
const STDERR_TAIL_BYTES: usize = 8 * 1024;

/// How a program ended.
#[derive(Debug)]
pub(super) enum Ended {
    /// With exit code 0.
    Good { output: Option<Box<RawValue>> },
    /// With another code or by a signal.
    Bad { error: String, detail: String },
    /// It did not begin: it is not there any more, or this machine has no process or memory left for it.
    NotStarted { error: String },
    /// By us.
    Killed(Kill),
}

/// Runs it.
pub(super) async fn run(crew: &Crew, program: &Program, task: &RawTask, killer: &Killer) -> Ended {
    let (name, payload) = (&program.name, task.payload.clone());
    let word = format!("{:016x}", rand::random::<u64>());
    let mut child = match spawn(crew, &word, program, task) {
        Ok(child) => child,
        Err(e) => return Ended::NotStarted { error: format!("cannot run {name}: {e}") },
    };
    let mut group = Group(child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)));
    let stdin = child.stdin.take();
    let feed = async move {
        // A program that does not read its payload is free not to.
        if let Some(mut stdin) = stdin {
            let _ = stdin.write_all(&payload).await;
        }
    };
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let (mut output, mut errors) = (Vec::new(), Vec::new());
    let ended = {
        let pipes = async {
            tokio::join!(
                feed,
                keep_head(stdout, limits::OUTPUT_BYTES_MAX + 1, &mut output),
                keep_tail(stderr, STDERR_TAIL_BYTES, &mut errors),
            )
        };
        let mut pipes = pin!(pipes.map(drop).fuse());
        let mut wait = pin!(wait(&mut child, &mut group, killer));
        let ended = loop {
            tokio::select! {
                ended = &mut wait => break ended,
                () = &mut pipes, if !pipes.is_terminated() => {}
            }
        };
        if !pipes.is_terminated() {
            let _ = timeout(PIPES_GRACE, pipes).await;
        }
        ended
    };
    let errors = tail(&errors, STDERR_TAIL_BYTES);
    match ended {
        Err(kill) => Ended::Killed(kill),
        Ok(Err(e)) => Ended::Bad { error: format!("cannot wait for {name}: {e}"), detail: errors },
        Ok(Ok(status)) if status.success() => good(&output, errors),
        Ok(Ok(status)) => match child::not_started(&word, status, &errors) {
            Some(error) => Ended::NotStarted { error },
            None => bad(status, errors),
        },
    }
}

fn spawn(crew: &Crew, word: &str, program: &Program, task: &RawTask) -> std::io::Result<Child> {
    let headers = serde_json::to_string(&task.headers)?;
    let content_type = match &*task.content_type {
        "" => "application/json",
        other => other,
    };
    let mut command: Command = child::command(word, &program.argv)?.into();
    command
        .env("WINDLASS_TASK_ID", task.id.as_str())
        .env("WINDLASS_QUEUE", &task.queue)
        .env("WINDLASS_KIND", &task.kind)
        .env("WINDLASS_ATTEMPT", task.attempt.to_string())
        .env("WINDLASS_FENCE", task.fence.to_string())
        .env("WINDLASS_TOKEN", &task.token)
        .env("WINDLASS_DEADLINE", time(task.deadline))
        .env("WINDLASS_ENQUEUED_AT", time(task.enqueued_at))
        .env("WINDLASS_HEADERS", headers)
        .env("WINDLASS_CONTENT_TYPE", content_type)
        .env("WINDLASS_WORKER", &crew.name)
        .env("WINDLASS_SERVER", &crew.servers)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true);
    command.spawn()
}

/// A time as the HTTP face writes it.
fn time(at: Option<SystemTime>) -> String {
    let at = at.and_then(|at| jiff::Timestamp::try_from(at).ok());
    at.map(|at| format!("{at:.3}")).unwrap_or_default()
}

/// The processes of a program. They end with this, so that none works on for a task that was given back.
struct Group(Option<Pid>);

impl Group {
    fn signal(&self, signal: Signal) {
        if let Some(group) = self.0 {
            // An error says that nobody is left in the group, which is what we want.
            let _ = kill_process_group(group, signal);
        }
    }

    fn lives(&self) -> bool {
        self.0.is_some_and(|group| test_kill_process_group(group).is_ok())
    }

    /// Kills all of them. The number may be another's from now on.
    fn end(&mut self) {
        self.signal(Signal::KILL);
        self.0 = None;
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.end();
    }
}

/// Waits for the end, by itself or by us. Whatever it leaves running in its group goes with it, so that
/// the pipes close and nothing works on for a task that has ended.
async fn wait(
    child: &mut Child,
    group: &mut Group,
    killer: &Killer,
) -> Result<std::io::Result<std::process::ExitStatus>, Kill> {
    let kill = tokio::select! {
        status = child.wait() => {
            group.end();
            return Ok(status);
        }
        kill = killer.asked() => kill,
    };
    if kill != Kill::Lost {
        // Somebody else may already run a lost task, so only the others get time to clean up.
        group.signal(Signal::TERM);
        let patience = Instant::now() + GRACE;
        while Instant::now() < patience && group.lives() && !killer.is_lost() {
            let _ = timeout(Duration::from_millis(20), child.wait()).await;
            sleep(Duration::from_millis(5)).await;
        }
    }
    group.end();
    let _ = child.wait().await;
    Err(kill)
}

/// The first bytes; the rest is read and dropped, so that the program does not block on a full pipe.
async fn keep_head(pipe: Option<impl AsyncRead + Unpin>, bytes_max: usize, kept: &mut Vec<u8>) {
    read(pipe, |bytes| {
        let room = bytes_max - kept.len();
        kept.extend_from_slice(&bytes[..bytes.len().min(room)]);
    })
    .await;
}

/// The last bytes, and perhaps some before them.
async fn keep_tail(pipe: Option<impl AsyncRead + Unpin>, bytes_max: usize, kept: &mut Vec<u8>) {
    read(pipe, |bytes| {
        kept.extend_from_slice(bytes);
        if kept.len() > 2 * bytes_max {
            kept.drain(..kept.len() - bytes_max);
        }
    })
    .await;
}

/// The last bytes, as text.
fn tail(kept: &[u8], bytes_max: usize) -> String {
    let from = kept.len().saturating_sub(bytes_max);
    String::from_utf8_lossy(&kept[from..]).trim_end().to_owned()
}

async fn read(pipe: Option<impl AsyncRead + Unpin>, mut take: impl FnMut(&[u8])) {
    let Some(mut pipe) = pipe else { return };
    let mut buffer = vec![0; 8 * 1024];
    while let Ok(n) = pipe.read(&mut buffer).await {
        if n == 0 {
            break;
        }
        take(&buffer[..n]);
    }
}

fn good(stdout: &[u8], errors: String) -> Ended {
    let too_large = |how: &str| {
        let error = format!("the output is larger than {} bytes{how}", limits::OUTPUT_BYTES_MAX);
        Ended::Bad { error, detail: errors.clone() }
    };
    if stdout.len() > limits::OUTPUT_BYTES_MAX {
        return too_large("");
    }
    let text = String::from_utf8_lossy(stdout);
    let text = text.trim_end();
    if text.is_empty() {
        return Ended::Good { output: None };
    }
    let output = RawValue::from_string(text.to_owned())
        .or_else(|_| RawValue::from_string(Value::from(text).to_string()))
        .ok();
    // What is no JSON grows when it is quoted.
    if output.as_ref().is_some_and(|output| output.get().len() > limits::OUTPUT_BYTES_MAX) {
        return too_large(" as a JSON string");
    }
    Ended::Good { output }
}

fn bad(status: std::process::ExitStatus, errors: String) -> Ended {
    let how = match status.code() {
        Some(code @ 129..=192) => format!("exit code {code} (signal {})", code - 128),
        Some(code) => format!("exit code {code}"),
        None => status.to_string(),
    };
    let last = errors.lines().rev().find(|line| !line.trim().is_empty()).map(str::trim);
    let error = match last {
        Some(line) => {
            format!("{how}: {}", line.chars().filter(|c| !c.is_control()).take(500).collect::<String>())
        }
        None => how,
    };
    Ended::Bad { error, detail: errors }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_json_if_it_parses_and_a_string_if_not() {
        for (stdout, expected) in [
            ("", None),
            ("\n", None),
            ("{\"sent\": true}\n", Some("{\"sent\": true}")),
            ("42", Some("42")),
            ("hello \"you\"\n", Some("\"hello \\\"you\\\"\"")),
        ] {
            let Ended::Good { output } = good(stdout.as_bytes(), String::new()) else {
                panic!("{stdout:?} is bad")
            };
            assert_eq!(output.as_deref().map(RawValue::get), expected, "{stdout:?}");
        }
        for (byte, bytes, part) in [
            (b'1', limits::OUTPUT_BYTES_MAX + 1, "bytes"),
            (b'x', limits::OUTPUT_BYTES_MAX, "as a JSON string"),
            (b'\x01', limits::OUTPUT_BYTES_MAX / 4, "as a JSON string"),
        ] {
            match good(&vec![byte; bytes], String::new()) {
                Ended::Bad { error, .. } => assert!(error.ends_with(part), "{error}"),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn times_are_written_as_the_http_face_does() {
        let at = SystemTime::UNIX_EPOCH + Duration::from_micros(1_500_400);
        assert_eq!(time(Some(at)), "1970-01-01T00:00:01.500Z");
        assert_eq!(time(None), "");
    }

    #[tokio::test]
    async fn of_much_text_the_tail_and_the_head_are_kept() {
        let text = format!("{}end", "x".repeat(100_000));
        let (mut first, mut last) = (Vec::new(), Vec::new());
        keep_tail(Some(text.as_bytes()), 10, &mut last).await;
        assert_eq!(tail(&last, 10), "xxxxxxxend");
        keep_head(Some(text.as_bytes()), 10, &mut first).await;
        assert_eq!(first, b"xxxxxxxxxx");
    }
}
