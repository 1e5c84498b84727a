//! Runs the program of one task: payload in, output and errors out, killed with all it started.

use std::process::Stdio;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use model::limits;
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::Worker;
use super::child;
use super::handle::Claim;
use super::running::Kill;

/// How long a program that is asked to stop may clean up.
const GRACE: Duration = Duration::from_secs(2);
/// How much of stderr goes into a task's error.
const STDERR_TAIL_BYTES: usize = 8 * 1024;

/// How a program ended.
#[derive(Debug)]
pub(super) enum Ended {
    /// With exit code 0.
    Good { output: Option<Box<RawValue>> },
    /// With another code, by a signal, or not even started.
    Bad { error: String, detail: String },
    /// By us.
    Killed(Kill),
}

/// Runs it.
pub(super) async fn run(worker: &Worker, claim: &Claim, killed: &mut watch::Receiver<Option<Kill>>) -> Ended {
    let payload = match payload(claim) {
        Ok(payload) => payload,
        Err(e) => {
            return Ended::Bad { error: format!("the payload cannot be read: {e}"), detail: String::new() };
        }
    };
    let mut program = match spawn(worker, claim) {
        Ok(program) => program,
        Err(e) => {
            return Ended::Bad { error: format!("cannot run {}: {e}", worker.exec), detail: String::new() };
        }
    };
    let stdin = program.stdin.take();
    let feed = async move {
        // A program that does not read its payload is free not to.
        if let Some(mut stdin) = stdin {
            let _ = stdin.write_all(&payload).await;
        }
    };
    let stdout = keep_head(program.stdout.take(), limits::OUTPUT_BYTES_MAX + 1);
    let stderr = keep_tail(program.stderr.take(), STDERR_TAIL_BYTES);
    let group = program.id().and_then(|id| Pid::from_raw(id as i32));
    let wait = wait(&mut program, group, killed);
    let ((), output, errors, ended) = tokio::join!(feed, stdout, stderr, wait);
    match ended {
        Err(kill) => Ended::Killed(kill),
        Ok(Err(e)) => Ended::Bad { error: format!("cannot wait for {}: {e}", worker.exec), detail: errors },
        Ok(Ok(status)) if status.success() => good(&output, errors),
        Ok(Ok(status)) => bad(status, errors),
    }
}

fn payload(claim: &Claim) -> Result<Vec<u8>, base64::DecodeError> {
    match (&claim.payload_base64, &claim.payload) {
        (Some(encoded), _) => STANDARD.decode(encoded),
        (None, Some(json)) => Ok(json.get().as_bytes().to_vec()),
        (None, None) => Ok(Vec::new()),
    }
}

fn spawn(worker: &Worker, claim: &Claim) -> std::io::Result<Child> {
    let headers = Value::Object(claim.headers.clone()).to_string();
    let mut command: Command = child::command(&worker.exec)?.into();
    command
        .env("WINDLASS_TASK_ID", &claim.id)
        .env("WINDLASS_QUEUE", &claim.queue)
        .env("WINDLASS_KIND", &claim.kind)
        .env("WINDLASS_ATTEMPT", claim.attempt.to_string())
        .env("WINDLASS_FENCE", claim.fence.to_string())
        .env("WINDLASS_TOKEN", &claim.token)
        .env("WINDLASS_DEADLINE", &claim.deadline)
        .env("WINDLASS_ENQUEUED_AT", &claim.enqueued_at)
        .env("WINDLASS_HEADERS", headers)
        .env("WINDLASS_CONTENT_TYPE", claim.content_type.as_deref().unwrap_or("application/json"))
        .env("WINDLASS_WORKER", &worker.name)
        .env("WINDLASS_SERVER", &worker.servers)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true);
    command.spawn()
}

/// Waits for the end, by itself or by us. Whatever it leaves running in its group goes with it, so that
/// the pipes close and nothing works on for a task that has ended.
async fn wait(
    program: &mut Child,
    group: Option<Pid>,
    killed: &mut watch::Receiver<Option<Kill>>,
) -> Result<std::io::Result<std::process::ExitStatus>, Kill> {
    let kill = tokio::select! {
        status = program.wait() => {
            signal(group, Signal::KILL);
            return Ok(status);
        }
        kill = killed.wait_for(Option::is_some) => kill.ok().and_then(|kill| *kill).unwrap_or(Kill::Lost),
    };
    if kill != Kill::Lost {
        // Somebody else may already run a lost task, so only the others get time to clean up.
        signal(group, Signal::TERM);
        let patience = Instant::now() + GRACE;
        while Instant::now() < patience && lives(group) && *killed.borrow() != Some(Kill::Lost) {
            let _ = tokio::time::timeout(Duration::from_millis(20), program.wait()).await;
            sleep(Duration::from_millis(5)).await;
        }
    }
    signal(group, Signal::KILL);
    let _ = program.wait().await;
    Err(kill)
}

fn signal(group: Option<Pid>, signal: Signal) {
    if let Some(group) = group {
        // An error says that nobody is left in the group, which is what we want.
        let _ = kill_process_group(group, signal);
    }
}

fn lives(group: Option<Pid>) -> bool {
    group.is_some_and(|group| test_kill_process_group(group).is_ok())
}

/// The first bytes; the rest is read and dropped, so that the program does not block on a full pipe.
async fn keep_head(pipe: Option<impl AsyncRead + Unpin>, bytes_max: usize) -> Vec<u8> {
    let mut kept = Vec::new();
    read(pipe, |bytes| {
        let room = bytes_max - kept.len();
        kept.extend_from_slice(&bytes[..bytes.len().min(room)]);
    })
    .await;
    kept
}

/// The last bytes, as text.
async fn keep_tail(pipe: Option<impl AsyncRead + Unpin>, bytes_max: usize) -> String {
    let mut kept: Vec<u8> = Vec::new();
    read(pipe, |bytes| {
        kept.extend_from_slice(bytes);
        if kept.len() > 2 * bytes_max {
            kept.drain(..kept.len() - bytes_max);
        }
    })
    .await;
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
    if stdout.len() > limits::OUTPUT_BYTES_MAX {
        let error = format!("the output is larger than {} bytes", limits::OUTPUT_BYTES_MAX);
        return Ended::Bad { error, detail: errors };
    }
    let text = String::from_utf8_lossy(stdout);
    let text = text.trim_end();
    if text.is_empty() {
        return Ended::Good { output: None };
    }
    let output = RawValue::from_string(text.to_owned())
        .or_else(|_| RawValue::from_string(Value::from(text).to_string()))
        .ok();
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
        assert!(matches!(good(&vec![b'1'; limits::OUTPUT_BYTES_MAX + 1], String::new()), Ended::Bad { .. }));
    }

    #[tokio::test]
    async fn of_much_text_the_tail_and_the_head_are_kept() {
        let text = format!("{}end", "x".repeat(100_000));
        let tail = keep_tail(Some(text.as_bytes()), 10).await;
        assert_eq!(tail, "xxxxxxxend");
        assert_eq!(keep_head(Some(text.as_bytes()), 10).await, b"xxxxxxxxxx");
    }
}
