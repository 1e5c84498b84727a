//! A result as a table of figures and ratios, and as plots.

use std::fmt::Write as _;

use serde_json::Value;

use super::svg;

/// The lifecycles, with the words for them.
const LIFECYCLES: [(&str, &str); 3] = [
    ("lifecycle-1", "1 per message"),
    ("lifecycle-10", "10 per message"),
    ("lifecycle-100", "100 per message"),
];
const LATENCIES: [(&str, &str); 2] = [("latency-200", "at 200/s"), ("latency-half", "at half of maximum")];

/// Whom the others are compared with: the one of as many nodes.
const OURS: [(u64, &str); 2] = [(3, "Windlass, 3 nodes"), (1, "Windlass, 1 node")];

/// The tables.
pub(super) fn markdown(results: &Value) -> String {
    let mut out = String::new();
    let machine = &results["machine"];
    let _ = writeln!(
        out,
        "# {}\n\n{} cores, {} GiB, {}, {} fdatasyncs of 4 KiB per second; client included; medians.\n\n\
         Lifecycles per second (enqueue, claim, ack), 32 messages in flight on each side, payloads of 200 bytes. In \
         brackets: Windlass with as many nodes, divided by this.\n",
        results["date"].as_str().unwrap_or("?"),
        machine["cores"],
        machine["memory_kib"].as_u64().unwrap_or(0) / 1024 / 1024,
        machine["file_system"].as_str().unwrap_or("?"),
        machine["fdatasync_of_4k_per_s"]
    );
    let titles: Vec<&str> = LIFECYCLES.iter().map(|(_, title)| *title).collect();
    let _ =
        writeln!(out, "| system | on disk when answered | {} |\n|---|---|---|---|---|", titles.join(" | "));
    for system in systems(results) {
        let cells = LIFECYCLES.map(|(case, _)| rate_cell(results, system, case));
        let _ = writeln!(out, "| {} | {} | {} |", name(system), durability(system), cells.join(" | "));
    }
    let titles: Vec<&str> = LATENCIES.iter().map(|(_, title)| *title).collect();
    let _ = writeln!(
        out,
        "\nFrom an enqueue to the waiting worker, open loop: p50 / p99 in milliseconds.\n\n\
         | system | {} |\n|---|---|---|",
        titles.join(" | ")
    );
    for system in systems(results) {
        let cells = LATENCIES.map(|(case, _)| latency_cell(&system["cases"][case]));
        let _ = writeln!(out, "| {} | {} |", name(system), cells.join(" | "));
    }
    let absent: Vec<String> = all(results)
        .filter_map(|system| Some(format!("{}: {}", name(system), system["absent"].as_str()?)))
        .collect();
    if !absent.is_empty() {
        let _ = writeln!(out, "\nNot measured: {}.", absent.join("; "));
    }
    alone(&results["alone"], &mut out);
    out
}

fn all(results: &Value) -> impl Iterator<Item = &Value> {
    results["systems"].as_array().map(Vec::as_slice).unwrap_or_default().iter()
}

/// Those that were measured.
fn systems(results: &Value) -> impl Iterator<Item = &Value> {
    all(results).filter(|system| system["cases"].as_object().is_some_and(|cases| !cases.is_empty()))
}

fn name(system: &Value) -> &str {
    system["name"].as_str().unwrap_or("?")
}

fn durability(system: &Value) -> &str {
    system["durability_at_reply"].as_str().unwrap_or("?")
}

fn rate_cell(results: &Value, system: &Value, case: &str) -> String {
    let Some(theirs) = system["cases"][case]["median"].as_f64() else { return "–".to_owned() };
    let ours = OURS.iter().find(|(nodes, _)| system["nodes"] == *nodes).map(|(_, ours)| *ours);
    let ours =
        systems(results).find(|candidate| Some(name(candidate)) == ours && name(system) != name(candidate));
    match ours.and_then(|ours| ours["cases"][case]["median"].as_f64()) {
        Some(ours) => format!("{} ({:.1}×)", rounded(theirs), ours / theirs),
        None => rounded(theirs),
    }
}

fn latency_cell(case: &Value) -> String {
    match (case["p50_ms"].as_f64(), case["p99_ms"].as_f64()) {
        (Some(p50), Some(p99)) => format!("{p50:.2} / {p99:.2}"),
        _ => "–".to_owned(),
    }
}

fn rounded(per_s: f64) -> String {
    match per_s {
        0.0..1_000.0 => format!("{per_s:.0}"),
        1_000.0..100_000.0 => format!("{:.1}k", per_s / 1000.0),
        _ => format!("{:.0}k", per_s / 1000.0),
    }
}

fn megabytes(bytes: &Value) -> String {
    bytes.as_f64().map_or("–".to_owned(), |bytes| format!("{:.0} MB", bytes / 1e6))
}

/// What concerns Windlass alone.
fn alone(alone: &Value, out: &mut String) {
    let rows = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let rate = |value: &Value| value.as_f64().map_or("–".to_owned(), rounded);
    if alone.is_null() {
        return;
    }
    let _ = writeln!(
        out,
        "\n## Windlass alone\n\n| waiting | memory | disk | enqueues/s there | claims and acks/s there | restart after \
         kill -9 |\n|---|---|---|---|---|---|"
    );
    for (who, rows) in [("", rows(&alone["depth"]["windlass"])), (" (Redis)", rows(&alone["depth"]["redis"]))]
    {
        for row in rows {
            let restart =
                row["restart_after_kill_ms"].as_f64().map_or("–".to_owned(), |ms| format!("{ms:.0} ms"));
            let _ = writeln!(
                out,
                "| {}{who} | {} | {} | {} | {} | {restart} |",
                row["waiting"],
                megabytes(&row["rss_bytes"]),
                megabytes(&row["disk_bytes"]),
                rate(&row["enqueue_per_s"]),
                rate(&row["claim_and_ack_per_s"])
            );
        }
    }
    let _ = writeln!(out, "\n| shards | 1 per message | 100 per message |\n|---|---|---|");
    for row in rows(&alone["shards"]) {
        let (one, many) = (rate(&row["per_s_at_1"]), rate(&row["per_s_at_100"]));
        let _ = writeln!(out, "| {} | {one} | {many} |", row["shards"]);
    }
    let _ = writeln!(out);
    for row in rows(&alone["stall"]) {
        let stall = row["checkpoint_stall_max_ms"].as_f64().unwrap_or(f64::NAN);
        let nodes = &row["nodes"];
        let _ = writeln!(
            out,
            "- longest stall of a shard by a checkpoint at full load, {nodes} nodes: {stall:.1} ms"
        );
    }
    let nodes = rows(&alone["idle"]["nodes"]);
    let shares: Vec<String> = nodes
        .iter()
        .map(|node| format!("{:.1} %", node["percent_of_a_core"].as_f64().unwrap_or(f64::NAN)))
        .collect();
    let _ = writeln!(
        out,
        "- {} idle shards, share of a core of each node: {}",
        alone["idle"]["shards"],
        shares.join(", ")
    );
    let crowd = &alone["idle_workers"];
    let _ = writeln!(
        out,
        "- {} idle workers: {} in all, {:.1} % of a core, {} log entries in {} s",
        crowd["workers"],
        megabytes(&crowd["rss_bytes"]),
        crowd["percent_of_a_core"].as_f64().unwrap_or(f64::NAN),
        crowd["log_entries"],
        crowd["seconds"]
    );
}

/// The plots, by name.
pub(super) fn plots(results: &Value) -> Vec<(String, String)> {
    let mut plots = Vec::new();
    for (case, title) in LIFECYCLES {
        let bars = bars(results, case, "median");
        if !bars.is_empty() {
            plots.push((case.to_owned(), svg::bars(&format!("Lifecycles per second, {title}"), &bars)));
        }
    }
    for (case, title) in LATENCIES {
        for quantile in ["p50", "p99"] {
            let bars = bars(results, case, &format!("{quantile}_ms"));
            if !bars.is_empty() {
                let title = format!("Enqueue to waiting worker {title}, {quantile} in ms");
                plots.push((format!("{case}-{quantile}"), svg::bars(&title, &bars)));
            }
        }
    }
    let depths = results["alone"]["depth"]["windlass"].as_array().cloned().unwrap_or_default();
    let line = |field: &str| {
        let points = depths.iter().filter_map(|row| Some((row["waiting"].as_f64()?, row[field].as_f64()?)));
        points.collect::<Vec<_>>()
    };
    if depths.len() > 1 {
        let lines = [("enqueues", line("enqueue_per_s")), ("claims and acks", line("claim_and_ack_per_s"))];
        plots.push(("depth".to_owned(), svg::lines("Tasks per second by waiting tasks", &lines)));
    }
    plots
}

fn bars(results: &Value, case: &str, field: &str) -> Vec<(String, f64)> {
    let bars = systems(results)
        .filter_map(|system| Some((name(system).to_owned(), system["cases"][case][field].as_f64()?)));
    bars.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn results() -> Value {
        let system = |name: &str, nodes: u64, per_s: f64| {
            json!({
                "name": name, "nodes": nodes, "durability_at_reply": "fsync",
                "cases": {
                    "lifecycle-1": {"median": per_s},
                    "latency-200": {"median": 1.0, "p50_ms": 1.0, "p99_ms": 2.5},
                },
            })
        };
        let mut lacking = system("Faktory", 1, 0.0);
        lacking["cases"] = json!({});
        lacking["absent"] = "not installed".into();
        json!({
            "date": "2026-11-16",
            "systems": [
                system("Windlass, 1 node", 1, 40_000.0), system("Redis <1>", 1, 20_000.0), lacking,
            ],
        })
    }

    #[test]
    fn a_table_has_figures_ratios_and_who_is_absent() {
        let table = markdown(&results());
        for part in [
            "| Windlass, 1 node | fsync | 40.0k | – | – |",
            "| Redis <1> | fsync | 20.0k (2.0×) | – | – |",
            "| Redis <1> | 1.00 / 2.50 | – |",
            "Not measured: Faktory: not installed.",
        ] {
            assert!(table.contains(part), "no {part:?} in {table}");
        }
    }

    #[test]
    fn there_is_a_plot_for_each_case_that_was_measured() {
        let plots = plots(&results());
        let names: Vec<&str> = plots.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["lifecycle-1", "latency-200-p50", "latency-200-p99"]);
        assert!(plots[0].1.contains("Redis &lt;1&gt;"), "{}", plots[0].1);
    }
}
