//! One claimed task: which program runs it, and what its end means. The SDK extends the claim meanwhile and tells
//! the outcome.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::FutureExt as _;
use tokio_util::sync::CancellationToken;
use windlass::{Cancelled, Context, RawTask, TaskError};

use super::handlers::{NoProgram, Program, Programs};
use super::program::{self, Ended};

/// A task whose program could not be started, through no fault of its own, is free again after this.
const NOT_STARTED_WAIT: Duration = Duration::from_secs(1);

/// What all tasks of a worker share.
pub(super) struct Crew {
    /// The worker's name.
    pub(super) name: String,
    /// Where its programs find a server.
    pub(super) servers: String,
    pub(super) programs: Programs,
    /// Cancelled when programs shall end now.
    pub(super) stopping: CancellationToken,
}

/// Why a program is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kill {
    /// The claim is no longer ours, or may be another's any moment.
    Lost,
    /// Somebody asked for the task to be cancelled.
    Cancelled,
    /// We stop, and give it back.
    Stopping,
}

/// Tells when the program of one task is to be killed.
pub(super) struct Killer {
    cx: Context,
    stopping: CancellationToken,
}

impl Killer {
    /// Returns when it is.
    pub(super) async fn asked(&self) -> Kill {
        tokio::select! {
            why = self.cx.cancelled() => kill(why),
            () = self.stopping.cancelled() => Kill::Stopping,
        }
    }

    /// Whether somebody else may run the task by now.
    pub(super) fn is_lost(&self) -> bool {
        self.cx.cancelled().now_or_never().map(kill) == Some(Kill::Lost)
    }
}

fn kill(why: Cancelled) -> Kill {
    match why {
        Cancelled::Lost | Cancelled::Deadline => Kill::Lost,
        Cancelled::Asked => Kill::Cancelled,
        _ => Kill::Stopping,
    }
}

/// Runs one task to its end.
pub(super) async fn run(crew: Arc<Crew>, task: RawTask, cx: Context) -> Result<Bytes, TaskError> {
    let program = find(&crew, &task).await?;
    let killer = Killer { cx, stopping: crew.stopping.clone() };
    let begun = Instant::now();
    match program::run(&crew, &program, &task, &killer).await {
        Ended::Good { output } => {
            tracing::info!("done in {:?}", begun.elapsed());
            Ok(output.map(|output| Bytes::from(String::from(Box::<str>::from(output)))).unwrap_or_default())
        }
        Ended::Bad { error, detail } => Err(TaskError::retry(error).with_detail(detail)),
        Ended::NotStarted { error } => {
            tracing::error!("{error}: the task is given back");
            Err(TaskError::release_after(NOT_STARTED_WAIT, error))
        }
        Ended::Killed(Kill::Cancelled) => Err(TaskError::retry("killed: cancellation was asked for")),
        Ended::Killed(Kill::Stopping) => {
            tracing::info!("given back after {:?}: the worker stops", begun.elapsed());
            Err(TaskError::release("the worker stops"))
        }
        // If it is ours after all, because nobody else could have it, it is free at once.
        Ended::Killed(Kill::Lost) => Err(TaskError::release("the claim is lost: the program was killed")),
    }
}

/// The program for a task; without one it waits for a while and uses up no attempt.
async fn find(crew: &Arc<Crew>, task: &RawTask) -> Result<Program, TaskError> {
    let (crew, kind) = (crew.clone(), task.kind.clone());
    let found = tokio::task::spawn_blocking(move || crew.programs.of(&kind, Instant::now())).await?;
    found.map_err(|NoProgram { reason, again_in, is_old_news }| {
        match is_old_news {
            false => tracing::warn!("{reason}: its tasks wait, and are looked at again from time to time"),
            true => tracing::debug!("{reason}"),
        }
        TaskError::release_after(again_in, reason)
    })
}
