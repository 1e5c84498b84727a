//! What a run shows: a bar while it goes on, a few lines and a table at its end, all of it as JSON.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Value, json};

use super::Target;
use super::load::{Load, Plan, Quantiles, Summary};
use crate::json::Json;
use crate::output::{Column, Format, Output, Show, print};

/// How often the bar moves.
const STEP: Duration = Duration::from_millis(250);
/// What is a whole bar.
const BAR: u64 = 1_000;

const COLUMNS: &[Column] = &[
    ("ms", "/of", Show::Plain),
    ("p50", "/p50", Show::Number),
    ("p90", "/p90", Show::Number),
    ("p99", "/p99", Show::Number),
    ("p99.9", "/p99_9", Show::Number),
    ("max", "/max", Show::Number),
    ("mean", "/mean", Show::Number),
    ("count", "/count", Show::Number),
];

/// Shows how it goes, on a terminal only. Never ends.
pub(super) async fn progress(load: Arc<Load>) {
    let bar = ProgressBar::with_draw_target(Some(BAR), ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("{wide_bar} {msg}").expect("the template is fixed and valid");
    bar.set_style(style);
    let (mut enqueued, mut acked, mut at) = (0, 0, Instant::now());
    loop {
        tokio::time::sleep(STEP).await;
        let seconds = at.elapsed().as_secs_f64();
        at = Instant::now();
        let (enqueued_now, acked_now) = (load.enqueued_now(), load.acked_now());
        let per_s = |before: u64, now: u64| (now - before) as f64 / seconds;
        bar.set_position((load.part() * BAR as f64) as u64);
        bar.set_message(format!(
            "{:.0} enqueued/s, {:.0} acked/s, {} under way",
            per_s(enqueued, enqueued_now),
            per_s(acked, acked_now),
            enqueued_now.saturating_sub(acked_now)
        ));
        (enqueued, acked) = (enqueued_now, acked_now);
    }
}

/// Shows what came of it.
pub(super) fn show(
    output: Output,
    face: &str,
    target: &Target,
    plan: &Plan,
    summary: &Summary,
    cpu: Duration,
) -> Result<()> {
    match output.format() {
        Format::Json | Format::Jsonl => return print(&whole(face, target, plan, summary, cpu).to_string()),
        Format::Csv => {}
        Format::Table => words(face, target, plan, summary, cpu)?,
    }
    let latencies = &summary.latency_ms;
    let rows = [("enqueue", &latencies.enqueue), ("delivery", &latencies.delivery), ("ack", &latencies.ack)];
    let rows = rows.into_iter().filter_map(|(of, quantiles)| quantiles.map(|quantiles| row(of, quantiles)));
    output.list("latencies", &rows.collect::<Result<Vec<_>>>()?, COLUMNS)
}

fn whole(face: &str, target: &Target, plan: &Plan, summary: &Summary, cpu: Duration) -> Value {
    let mut plan = json!(plan);
    plan["face"] = face.into();
    plan["queue"] = target.queue.as_str().into();
    plan["servers"] = json!(target.urls);
    plan["connections"] = json!(target.connections);
    let mut result = json!(summary);
    result["client_cpu_seconds"] = json!(cpu.as_secs_f64());
    json!({"plan": plan, "result": result})
}

fn words(face: &str, target: &Target, plan: &Plan, summary: &Summary, cpu: Duration) -> Result<()> {
    let rate = match plan.rate {
        Some(rate) => format!("{rate} tasks/s whatever the answers"),
        None => format!("{} messages outstanding on each side", plan.outstanding),
    };
    print(&format!(
        "{face}, {} producers, {} workers, {} servers, {rate}, {} per message, payloads of {} bytes",
        plan.producers,
        plan.workers,
        target.urls.len(),
        plan.batch,
        plan.payload_bytes
    ))?;
    print(&format!(
        "{:.2} s: {} enqueued ({:.0}/s), {} acked ({:.0}/s); this client used {:.2} s of processor time",
        summary.seconds,
        summary.enqueued,
        summary.enqueued_per_s,
        summary.acked,
        summary.acked_per_s,
        cpu.as_secs_f64()
    ))?;
    for (code, count) in &summary.refused {
        print(&format!("refused: {count} {code}"))?;
    }
    if summary.late > 0 {
        let (late, most) = (summary.late, summary.late_max_ms);
        print(&format!("{late} tasks were sent late, by up to {most:.1} ms: is this machine busy?"))?;
    }
    Ok(())
}

fn row(of: &str, quantiles: Quantiles) -> Result<Json> {
    let mut row = json!({"of": of, "count": quantiles.count});
    for (name, value) in [
        ("p50", quantiles.p50),
        ("p90", quantiles.p90),
        ("p99", quantiles.p99),
        ("p99_9", quantiles.p99_9),
        ("max", quantiles.max),
        ("mean", quantiles.mean),
    ] {
        row[name] = json!(format!("{value:.3}"));
    }
    Ok(Json::parse(row.to_string().as_bytes())?)
}
