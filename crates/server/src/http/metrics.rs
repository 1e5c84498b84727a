//! `GET /metrics`: what a Prometheus reads. Numbers only; no payload, no key, no worker's name.

use std::fmt::Write as _;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use http::HeaderValue;
use http::header::CONTENT_TYPE;
use model::StateKind;
use node::LogStats;
use node::call::QueueInfo;
use node::info::{ClockInfo, LinkStats, ReplicationStats};
use node::stats::{LATENCY_BOUNDS_MICROS, ShardStats, Stats};

use super::Reply;
use crate::app::App;
use crate::latency::{BOUNDS_MICROS, Operation};

/// Queues that are shown; a scrape must stay bounded whatever names callers make up.
const QUEUES_MAX: usize = 10_000;

/// Counters, depths, ages and latencies in the text format of Prometheus.
#[utoipa::path(
    get, path = "/metrics", tag = "health",
    responses((status = 200, description = "metrics", body = String, content_type = "text/plain; version=0.0.4"))
)]
pub(crate) async fn metrics(State(app): State<App>) -> Reply {
    let stats = app.node.stats().await?;
    let mut page = Page::default();
    node_wide(&mut page, &stats);
    log(&mut page, &stats.log);
    operations(&mut page, &stats);
    queues(&mut page, &stats.queues[..stats.queues.len().min(QUEUES_MAX)]);
    shards(&mut page, &stats.shards);
    groups(&mut page, &stats.replication);
    links(&mut page, &stats.replication.links);
    clocks(&mut page, &stats.replication.clock);
    requests(&mut page, &app);
    let mut response = Response::new(Body::from(page.text));
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    Ok(response)
}

fn node_wide(page: &mut Page, stats: &Stats) {
    page.family(
        "windlass_claims_freed_total",
        "counter",
        "Claims that ended without ack or fail, by reason.",
    );
    for (reason, count) in &stats.freed {
        page.sample("windlass_claims_freed_total", &[("reason", reason.as_str())], *count as f64);
    }
    for (name, help, count) in [
        (
            "windlass_workers_lost_total",
            "Workers that fell silent or whose connection broke.",
            stats.workers_lost,
        ),
        ("windlass_deadlines_passed_total", "Claims whose deadline passed.", stats.deadlines_passed),
        (
            "windlass_claims_given_back_total",
            "Claims given back because their caller had gone.",
            stats.given_back,
        ),
        (
            "windlass_outbox_delivered_total",
            "Follow-ups delivered from shard to shard.",
            stats.outbox_delivered,
        ),
        (
            "windlass_notices_missed_total",
            "Times that the node fell behind its shards.",
            stats.notices_missed,
        ),
        ("windlass_events_total", "Events since the node started.", stats.events),
    ] {
        page.single(name, "counter", help, count as f64);
    }
    for (name, help, value) in [
        ("windlass_waiting_claims", "Claims that wait for a task.", stats.waiting_claims as f64),
        (
            "windlass_outbox_messages",
            "Follow-ups that wait to be delivered from shard to shard.",
            stats.outbox_messages as f64,
        ),
        ("windlass_sessions", "Live sessions of workers.", stats.sessions as f64),
        ("windlass_memory_bytes", "Memory of the tasks' state, estimated.", stats.memory_bytes as f64),
        ("windlass_memory_bytes_max", "Over it new tasks are refused.", stats.memory_bytes_max as f64),
        (
            "windlass_memory_full",
            "Whether new tasks are refused for want of memory.",
            f64::from(u8::from(stats.memory_full)),
        ),
        (
            "windlass_disk_full",
            "Whether new tasks are refused for want of disk.",
            f64::from(u8::from(stats.disk_full)),
        ),
        ("windlass_uptime_seconds", "Since the node started.", stats.uptime.0 as f64 / 1000.0),
    ] {
        page.single(name, "gauge", help, value);
    }
}

fn log(page: &mut Page, log: &LogStats) {
    page.family("windlass_log_sync_seconds", "histogram", "Syncs of the log to disk.");
    let bounds: Vec<u64> = (0..log.sync_buckets.len()).map_while(LogStats::bucket_micros).collect();
    let secs = log.sync_micros as f64 / 1e6;
    page.histogram("windlass_log_sync_seconds", "sync", &bounds, &log.sync_buckets, secs);
    for (name, help, count) in [
        ("windlass_log_records_total", "Records written to the log.", log.records),
        ("windlass_log_bytes_total", "Bytes written to the log, padding included.", log.bytes),
        ("windlass_log_stalls_total", "Times that the log waited for room on the disk.", log.stalls),
    ] {
        page.single(name, "counter", help, count as f64);
    }
    for (name, help, value) in [
        ("windlass_log_sync_seconds_max", "The longest sync of the log.", log.sync_micros_max as f64 / 1e6),
        ("windlass_log_queued", "Changes that wait to be written to the log.", log.queued as f64),
        ("windlass_log_segments", "Segments of the log in use.", log.segments as f64),
        ("windlass_log_cached_bytes", "Entries of the log kept in memory.", log.cached_bytes as f64),
    ] {
        page.single(name, "gauge", help, value);
    }
}

fn operations(page: &mut Page, stats: &Stats) {
    page.family("windlass_operation_tasks_total", "counter", "Tasks that went through an operation.");
    for operation in &stats.operations {
        let labels = [("operation", operation.operation.as_str())];
        page.sample("windlass_operation_tasks_total", &labels, operation.items as f64);
    }
    page.family("windlass_operation_refused_total", "counter", "Tasks that an operation refused.");
    for operation in &stats.operations {
        let labels = [("operation", operation.operation.as_str())];
        page.sample("windlass_operation_refused_total", &labels, operation.refused as f64);
    }
    let name = "windlass_operation_seconds";
    page.family(
        name,
        "histogram",
        "Time from a call to its answer from the log, waiting for tasks left out.",
    );
    for operation in &stats.operations {
        let word = operation.operation.as_str();
        page.histogram(name, word, &LATENCY_BOUNDS_MICROS, &operation.buckets, operation.time.as_secs_f64());
    }
}

fn queues(page: &mut Page, queues: &[QueueInfo]) {
    page.family("windlass_tasks", "gauge", "Tasks by queue and state.");
    for queue in queues {
        for state in StateKind::ALL {
            let labels = [("queue", queue.name.as_str()), ("state", state.as_str())];
            page.sample("windlass_tasks", &labels, queue.depth.of(state) as f64);
        }
    }
    type Read = fn(&QueueInfo) -> f64;
    let totals: [(&str, &str, Read); 5] = [
        ("windlass_tasks_enqueued_total", "Tasks taken in.", |queue| queue.totals.enqueued as f64),
        ("windlass_tasks_done_total", "Tasks acked.", |queue| queue.totals.done as f64),
        ("windlass_attempts_failed_total", "Attempts failed.", |queue| queue.totals.failed as f64),
        ("windlass_tasks_dead_total", "Tasks that became dead.", |queue| queue.totals.dead as f64),
        ("windlass_tasks_freed_total", "Claims freed.", |queue| queue.totals.freed as f64),
    ];
    let secs = |millis: Option<model::Millis>| millis.map_or(0.0, |millis| millis.0 as f64 / 1000.0);
    for (name, help, read) in totals {
        page.family(name, "counter", help);
        for queue in queues {
            page.sample(name, &[("queue", queue.name.as_str())], read(queue));
        }
    }
    page.family("windlass_oldest_ready_seconds", "gauge", "How long the oldest ready task has waited.");
    for queue in queues {
        page.sample(
            "windlass_oldest_ready_seconds",
            &[("queue", queue.name.as_str())],
            secs(queue.oldest_ready),
        );
    }
    page.family("windlass_oldest_claimed_seconds", "gauge", "How long the oldest claim has run.");
    for queue in queues {
        page.sample(
            "windlass_oldest_claimed_seconds",
            &[("queue", queue.name.as_str())],
            secs(queue.oldest_claimed),
        );
    }
    page.family("windlass_queue_paused", "gauge", "Whether claims pass the queue by.");
    for queue in queues {
        page.sample(
            "windlass_queue_paused",
            &[("queue", queue.name.as_str())],
            f64::from(u8::from(queue.paused)),
        );
    }
}

fn shards(page: &mut Page, shards: &[ShardStats]) {
    type Read = fn(&ShardStats) -> f64;
    let gauges: [(&str, &str, Read); 6] = [
        ("windlass_shard_tasks", "Tasks that a shard keeps, ended ones included.", |shard| {
            shard.tasks as f64
        }),
        ("windlass_shard_memory_bytes", "Memory of a shard's state, estimated.", |shard| {
            shard.memory_bytes as f64
        }),
        ("windlass_shard_commit_index", "The last committed index.", |shard| shard.commit as f64),
        ("windlass_shard_applied_index", "The last applied index.", |shard| shard.applied as f64),
        ("windlass_shard_checkpoint_index", "The index of the last checkpoint.", |shard| {
            shard.last_checkpoint as f64
        }),
        ("windlass_shard_leads", "Whether this node leads the shard.", |shard| {
            f64::from(u8::from(shard.leads))
        }),
    ];
    for (name, help, read) in gauges {
        page.family(name, "gauge", help);
        for shard in shards {
            page.sample(name, &[("shard", &shard.shard.to_string())], read(shard));
        }
    }
    let name = "windlass_checkpoint_stall_seconds_max";
    page.family(name, "gauge", "The longest time that a checkpoint kept a shard from applying.");
    for shard in shards {
        page.sample(name, &[("shard", &shard.shard.to_string())], shard.checkpoint_stall_max.as_secs_f64());
    }
}

fn groups(page: &mut Page, stats: &ReplicationStats) {
    let name = "windlass_group_role";
    page.family(name, "gauge", "1 for what this node is to a group; group 0 is the catalog.");
    for group in &stats.groups {
        page.sample(name, &[("group", &group.group.to_string()), ("role", group.role)], 1.0);
    }
    page.family("windlass_group_term", "gauge", "The term that this node knows.");
    for group in &stats.groups {
        page.sample("windlass_group_term", &[("group", &group.group.to_string())], group.term as f64);
    }
    page.family("windlass_group_commit_index", "gauge", "The last committed index that this node knows.");
    for group in &stats.groups {
        page.sample(
            "windlass_group_commit_index",
            &[("group", &group.group.to_string())],
            group.commit as f64,
        );
    }
    let name = "windlass_replica_lag_entries";
    page.family(name, "gauge", "Entries that a replica has yet to apply, as it last said.");
    for group in &stats.groups {
        for (node, lag) in &group.lags {
            let labels = [("group", &*group.group.to_string()), ("node", &*node.to_string())];
            page.sample(name, &labels, *lag as f64);
        }
    }
    page.single(
        "windlass_leader_changes_total",
        "counter",
        "Times that this node saw a group's leader change.",
        stats.leader_changes as f64,
    );
    page.single(
        "windlass_replicas_diverged",
        "gauge",
        "Replicas whose state differs from the majority's.",
        stats.diverged as f64,
    );
}

fn links(page: &mut Page, links: &[LinkStats]) {
    type Read = fn(&LinkStats) -> f64;
    let families: [(&str, &str, &str, Read); 6] = [
        ("windlass_link_up", "gauge", "Whether another node can be talked to.", |link| {
            f64::from(u8::from(link.is_up))
        }),
        ("windlass_link_reconnects_total", "counter", "Connections made after the first.", |link| {
            link.reconnects as f64
        }),
        ("windlass_link_received_bytes_total", "counter", "Bytes that came from another node.", |link| {
            link.bytes_in as f64
        }),
        ("windlass_link_sent_bytes_total", "counter", "Bytes that went to another node.", |link| {
            link.bytes_out as f64
        }),
        ("windlass_link_queued_bytes", "gauge", "Bytes that wait to go to another node.", |link| {
            link.queued_bytes as f64
        }),
        ("windlass_link_round_trip_seconds", "gauge", "How long a message takes there and back.", |link| {
            link.round_trip.map_or(f64::NAN, |time| time.as_secs_f64())
        }),
    ];
    for (name, kind, help, read) in families {
        page.family(name, kind, help);
        // A link that is down has no round trip, rather than one of zero.
        for (link, value) in links.iter().map(|link| (link, read(link))).filter(|(_, value)| !value.is_nan())
        {
            page.sample(name, &[("node", &link.node.to_string())], value);
        }
    }
}

fn clocks(page: &mut Page, clock: &ClockInfo) {
    let name = "windlass_clock_offset_seconds";
    page.family(
        name,
        "gauge",
        "How far a node's clock is ahead of the median of all; of this node's own, while only two are known.",
    );
    for (node, off) in &clock.offsets_ms {
        page.sample(name, &[("node", &node.to_string())], *off as f64 / 1000.0);
    }
    let held = f64::from(u8::from(clock.is_held));
    page.single(
        "windlass_clock_held",
        "gauge",
        "Whether the median is used in place of this node's clock.",
        held,
    );
    let jumps = clock.jumps as f64;
    page.single(
        "windlass_clock_jumps_total",
        "counter",
        "Jumps of this node's clock by more than a second.",
        jumps,
    );
}

fn requests(page: &mut Page, app: &App) {
    page.family("windlass_http_requests_total", "counter", "Requests by operation and class of status.");
    for operation in Operation::ALL {
        for (class, count) in app.latencies.of(operation).statuses().filter(|(_, count)| *count > 0) {
            let labels = [("operation", operation.as_str()), ("status", class)];
            page.sample("windlass_http_requests_total", &labels, count as f64);
        }
    }
    let name = "windlass_http_request_seconds";
    page.family(name, "histogram", "Time from a request's head to its reply, waiting for tasks included.");
    for operation in Operation::ALL {
        let latency = app.latencies.of(operation);
        page.histogram(
            name,
            operation.as_str(),
            &BOUNDS_MICROS,
            &latency.buckets(),
            latency.time().as_secs_f64(),
        );
    }
}

/// The page as it grows.
#[derive(Default)]
struct Page {
    text: String,
}

impl Page {
    /// Begins a metric.
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        self.line(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
    }

    /// A metric with one sample.
    fn single(&mut self, name: &str, kind: &str, help: &str, value: f64) {
        self.family(name, kind, help);
        self.sample(name, &[], value);
    }

    /// One sample.
    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        self.text.push_str(name);
        for (n, (label, text)) in labels.iter().enumerate() {
            let mark = if n == 0 { '{' } else { ',' };
            // Queue names have no quotes or backslashes, and nothing else comes from outside.
            self.line(format_args!("{mark}{label}=\"{text}\""));
        }
        self.text.push_str(if labels.is_empty() { " " } else { "} " });
        self.line(format_args!("{value}\n"));
    }

    /// The buckets of one operation, each holding the ones below it.
    fn histogram(&mut self, name: &str, operation: &str, bounds_micros: &[u64], buckets: &[u64], secs: f64) {
        let mut sum = 0;
        for (n, count) in buckets.iter().enumerate() {
            sum += count;
            match bounds_micros.get(n) {
                Some(micros) => {
                    let bound = *micros as f64 / 1e6;
                    self.line(format_args!(
                        "{name}_bucket{{operation=\"{operation}\",le=\"{bound}\"}} {sum}\n"
                    ));
                }
                None => {
                    self.line(format_args!("{name}_bucket{{operation=\"{operation}\",le=\"+Inf\"}} {sum}\n"))
                }
            }
        }
        self.line(format_args!("{name}_sum{{operation=\"{operation}\"}} {secs}\n"));
        self.line(format_args!("{name}_count{{operation=\"{operation}\"}} {sum}\n"));
    }

    fn line(&mut self, text: std::fmt::Arguments<'_>) {
        self.text.write_fmt(text).expect("memory takes every write");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_in_the_text_format() {
        let mut page = Page::default();
        page.single("a_total", "counter", "Help.", 3.0);
        page.sample("b", &[("queue", "mail"), ("state", "ready")], 0.5);
        page.histogram("h", "ack", &[100, 1_000_000], &[1, 2, 3], 1.25);
        let expected = "# HELP a_total Help.\n# TYPE a_total counter\na_total 3\n\
            b{queue=\"mail\",state=\"ready\"} 0.5\n\
            h_bucket{operation=\"ack\",le=\"0.0001\"} 1\n\
            h_bucket{operation=\"ack\",le=\"1\"} 3\n\
            h_bucket{operation=\"ack\",le=\"+Inf\"} 6\n\
            h_sum{operation=\"ack\"} 1.25\nh_count{operation=\"ack\"} 6\n";
        assert_eq!(page.text, expected);
    }
}
