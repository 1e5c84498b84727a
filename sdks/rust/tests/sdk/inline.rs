//! Handlers without a server.

use windlass::{Cancelled, Context, NewTask, State, TaskError, Verdict, hours, secs};
use windlass_testing::Inline;

use crate::support::{Audit, Double};

async fn handler(task: Double, cx: Context, State(factor): State<u64>) -> Result<u64, TaskError> {
    cx.progress((10, "begun"));
    cx.extend(secs(60)).await?;
    if cx.is_cancelled() {
        return Err(TaskError::release("told to stop"));
    }
    match task.0 {
        0 => panic!("zero"),
        n => {
            cx.then(NewTask::of(&Audit { of: n.to_string() }).delay(hours(1)));
            Ok(n * factor + cx.fence())
        }
    }
}

#[tokio::test]
async fn an_inline_run_shows_all_that_a_handler_did() {
    let run = Inline::new().state(3u64).fence(100).run_task(handler, Double(4)).await;
    assert_eq!(run.output::<u64>().unwrap(), 112);
    assert_eq!((run.progress[0].percent, &*run.progress[0].note), (10, "begun"));
    assert_eq!(run.extends, [secs(60)]);
    assert_eq!((&*run.then[0].queue, run.then[0].delay_ms), ("audits", Some(3_600_000)));
    let run = Inline::new().state(3u64).run_task(handler, Double(0)).await;
    assert_eq!(run.error().unwrap().error(), "panicked: zero");
    let run = Inline::new().state(3u64).cancelled(Cancelled::Stopping).run_task(handler, Double(1)).await;
    assert!(matches!(run.error().unwrap().verdict(), Verdict::Release(_)));
    let run = Inline::run(handler, Double(1)).await;
    assert!(run.error().unwrap().error().contains("shares no u64"));
}
