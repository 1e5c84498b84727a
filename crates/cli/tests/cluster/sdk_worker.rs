//! A worker process on the Rust SDK that a test starts, kills, freezes and reads from.
//!
//! The process is this test binary once more, asked for one test only: [`a_worker_process`], which does nothing in an
//! ordinary run. What happens in it is written to a file, one line of JSON each. A handler runs until its gate is
//! opened, which is a file with the gate's and the worker's name; or it blocks its thread for a while.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tempfile::TempDir;
use windlass::{Client, Context, Metrics, RawTask, TaskError, Worker};

use crate::rig::{Rig, until};

/// Says what the process shall be; without it, it is no worker.
const SETUP: &str = "SDK_WORKER_SETUP";
/// The test that is the process.
const PROCESS: &str = "sdk_worker::a_worker_process";
/// Between two looks of a handler at its gate.
const LOOK: Duration = Duration::from_millis(5);
/// How long handlers have that were told to stop.
const CANCEL_GRACE: Duration = Duration::from_millis(300);
/// Lines of a worker's log that are shown when a test fails.
const LOG_LINES_SHOWN: usize = 20;

/// How a worker is set up.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Shape {
    pub(crate) slots: u32,
    pub(crate) grace: Duration,
    /// The task's, else the queue's, unless said.
    pub(crate) hold: Option<Duration>,
}

impl Default for Shape {
    fn default() -> Shape {
        Shape { slots: 8, grace: Duration::from_secs(25), hold: None }
    }
}

/// What the process is told.
#[derive(Debug, Serialize, Deserialize)]
struct Setup {
    servers: String,
    name: String,
    queue: String,
    shape: Shape,
    dir: PathBuf,
}

/// What the handler of a task does.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Work {
    /// Awaits that this gate is opened for its worker.
    Gate(String),
    /// Blocks its thread, and with it all handlers of its worker.
    Block(Duration),
}

/// What happened in a worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Note {
    pub(crate) at: SystemTime,
    pub(crate) what: What,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum What {
    Connected {
        address: String,
    },
    /// A handler began; a task has a kind of its own here.
    Begun {
        kind: String,
        attempt: u32,
        fence: u64,
        token: String,
    },
    /// A handler came to its end.
    Ended {
        kind: String,
        fence: u64,
    },
    /// The SDK said that a claim is lost.
    Lost {
        kind: String,
    },
}

/// Where the workers of one test live, and the queue they work on.
pub(crate) struct Stage {
    dir: TempDir,
    servers: String,
    pub(crate) queue: String,
    started: usize,
}

impl Stage {
    pub(crate) fn new(rig: &Rig, queue: &str) -> Stage {
        let dir = tempfile::tempdir().unwrap();
        Stage { dir, servers: rig.servers(), queue: queue.to_owned(), started: 0 }
    }

    /// Starts a worker under a new name and waits until it is connected.
    pub(crate) fn start(&mut self, shape: Shape) -> Process {
        self.started += 1;
        let name = format!("{}-w{}", self.queue, self.started);
        let dir = self.dir.path().to_owned();
        let (servers, queue) = (self.servers.clone(), self.queue.clone());
        let setup = Setup { servers, name: name.clone(), queue, shape, dir: dir.clone() };
        let log = File::create(dir.join(format!("{name}.log"))).unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args([PROCESS, "--exact", "--nocapture"])
            .env(SETUP, serde_json::to_string(&setup).unwrap())
            // The pipe ends with the test, however that ends, and the worker with the pipe.
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let process = Process { name, child: Some(child), dir };
        until("the worker is connected", || process.connected_to().is_some());
        process
    }

    /// Lets the handlers that wait at this gate go on, in this worker.
    pub(crate) fn open(&self, gate: &str, worker: &Process) {
        File::create(gate_of(self.dir.path(), gate, &worker.name)).unwrap();
    }
}

fn gate_of(dir: &Path, gate: &str, worker: &str) -> PathBuf {
    dir.join(format!("{gate}.{worker}"))
}

/// A worker's process. What runs ends with it.
pub(crate) struct Process {
    pub(crate) name: String,
    child: Option<Child>,
    dir: PathBuf,
}

impl Process {
    /// All that happened in it so far.
    pub(crate) fn notes(&self) -> Vec<Note> {
        let text = std::fs::read_to_string(notes_of(&self.dir, &self.name)).unwrap_or_default();
        // A line without an end is being written.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// The server to which it connected last.
    pub(crate) fn connected_to(&self) -> Option<String> {
        let connected = |note: Note| match note.what {
            What::Connected { address } => Some(address),
            _ => None,
        };
        self.notes().into_iter().rev().find_map(connected)
    }

    /// When the handler of a task began here for the first time, with the attempt and the fence.
    pub(crate) fn begun(&self, kind: &str) -> Option<(SystemTime, u32, u64)> {
        self.begins(kind).into_iter().next()
    }

    /// Each time that the handler of a task began here.
    pub(crate) fn begins(&self, kind: &str) -> Vec<(SystemTime, u32, u64)> {
        let begun = |note: Note| match note.what {
            What::Begun { kind: of, attempt, fence, .. } if of == kind => Some((note.at, attempt, fence)),
            _ => None,
        };
        self.notes().into_iter().filter_map(begun).collect()
    }

    /// Whether it was told that its claim of this task is lost.
    pub(crate) fn has_lost(&self, kind: &str) -> bool {
        self.notes().iter().any(|note| note.what == What::Lost { kind: kind.to_owned() })
    }

    /// With what the handler of a task that began here would ack it.
    pub(crate) fn token(&self, kind: &str) -> Option<String> {
        self.notes().into_iter().find_map(|note| match note.what {
            What::Begun { kind: of, token, .. } if of == kind => Some(token),
            _ => None,
        })
    }

    /// Whether the handler of this task came to its end here.
    pub(crate) fn has_ended(&self, kind: &str) -> bool {
        let is_it = |what: &What| matches!(what, What::Ended { kind: of, .. } if of == kind);
        self.notes().iter().any(|note| is_it(&note.what))
    }

    /// SIGKILL; when that was.
    pub(crate) fn kill(&mut self) -> SystemTime {
        let mut child = self.child.take().expect("only a worker that runs can be killed");
        let at = SystemTime::now();
        child.kill().unwrap();
        child.wait().unwrap();
        at
    }

    /// SIGSTOP; when that was.
    pub(crate) fn freeze(&self) -> SystemTime {
        let at = SystemTime::now();
        self.signal(Signal::STOP);
        at
    }

    /// SIGCONT.
    pub(crate) fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    /// SIGTERM.
    pub(crate) fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Waits until it has ended by itself; its exit code.
    #[track_caller]
    pub(crate) fn wait(&mut self) -> Option<i32> {
        let mut child = self.child.take().expect("only a worker that runs can be waited for");
        let mut ended = None;
        until("the worker has ended", || {
            ended = child.try_wait().unwrap();
            ended.is_some()
        });
        ended.and_then(|status| status.code())
    }

    fn signal(&self, signal: Signal) {
        let child = self.child.as_ref().expect("only a worker that runs gets signals");
        kill_process(Pid::from_child(child), signal).unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.dir.join(format!("{}.log", self.name)));
            let log = log.unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            eprintln!("--- worker {} at its end:", self.name);
            lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..].iter().for_each(|line| eprintln!("{line}"));
        }
    }
}

fn notes_of(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("{name}.jsonl"))
}

/// Writes down what happens in the process.
#[derive(Clone)]
struct Notebook(Arc<Mutex<File>>);

impl Notebook {
    fn write(&self, what: What) {
        let note = Note { at: SystemTime::now(), what };
        let line = format!("{}\n", serde_json::to_string(&note).unwrap());
        self.0.lock().unwrap().write_all(line.as_bytes()).unwrap();
    }
}

impl Metrics for Notebook {
    fn lost(&self, _: &str, kind: &str) {
        self.write(What::Lost { kind: kind.to_owned() });
    }

    fn connected(&self, address: &str) {
        self.write(What::Connected { address: address.to_owned() });
    }
}

/// The process itself, when a test above has asked for it.
#[test]
fn a_worker_process() {
    let Ok(setup) = std::env::var(SETUP) else { return };
    let setup: Setup = serde_json::from_str(&setup).unwrap();
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(3);
    });
    tracing_subscriber::fmt()
        .with_env_filter("info,windlass=debug")
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    // One thread for all handlers: what one of them blocks, is blocked.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let ended = runtime.block_on(work(setup));
    if let Err(error) = &ended {
        eprintln!("the worker ended: {error}");
    }
    std::process::exit(i32::from(ended.is_err()));
}

async fn work(setup: Setup) -> Result<(), windlass::Error> {
    let Setup { servers, name, queue, shape, dir } = setup;
    let notebook = Notebook(Arc::new(Mutex::new(File::create(notes_of(&dir, &name)).unwrap())));
    let notes = notebook.clone();
    let client = Client::connect(servers).await?;
    let by = name.clone();
    let mut worker = Worker::new(client)
        .name(name)
        .slots(shape.slots)
        .queues([queue])
        .grace(shape.grace)
        .cancel_grace(CANCEL_GRACE)
        .metrics(notebook)
        .handle_any(move |task, cx| handle(task, cx, notes.clone(), dir.clone(), by.clone()));
    if let Some(hold) = shape.hold {
        worker = worker.hold(hold);
    }
    worker.run_until_signal().await
}

async fn handle(
    task: RawTask,
    cx: Context,
    notes: Notebook,
    dir: PathBuf,
    by: String,
) -> Result<Vec<u8>, TaskError> {
    let (kind, fence) = (task.kind.clone(), cx.fence());
    notes.write(What::Begun { kind: kind.clone(), attempt: cx.attempt(), fence, token: task.token.clone() });
    match task.parse()? {
        Work::Gate(gate) => {
            let gate = gate_of(&dir, &gate, &by);
            while !gate.exists() {
                tokio::time::sleep(LOOK).await;
            }
        }
        Work::Block(time) => std::thread::sleep(time),
    }
    notes.write(What::Ended { kind, fence });
    Ok(json!({"by": by, "fence": fence}).to_string().into_bytes())
}
