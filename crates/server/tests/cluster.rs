//! What a node tells of the cluster, of itself and of replication.
#![allow(missing_docs, clippy::unwrap_used)]

mod support;

use serde_json::{Value, json};
use support::{Harness, start};

/// The names of an object's fields.
fn fields(value: &Value) -> Vec<&str> {
    let mut names: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
    names.sort_unstable();
    names
}

async fn metrics(harness: &Harness) -> String {
    String::from_utf8(harness.get("/metrics").await.expect(200).bytes.to_vec()).unwrap()
}

#[tokio::test]
async fn the_cluster_has_the_fields_of_the_contract() {
    let harness = start().await;
    harness.enqueue("mail", r#"{"kind":"k"}"#).await;
    let cluster = harness.get("/v1/cluster").await.expect(200).json;
    let contract = ["cluster_id", "nodes", "reasons", "shards", "slots", "status", "version"];
    assert_eq!(fields(&cluster), contract);
    assert_eq!((&cluster["status"], &cluster["reasons"]), (&json!("healthy"), &json!([])));
    let node = &cluster["nodes"][0];
    assert_eq!(fields(node), ["address", "id", "leads", "peer_address", "state", "version"]);
    assert_eq!((&node["state"], &node["leads"]), (&json!("up"), &json!(5)));
    let shard = &cluster["shards"][0];
    assert_eq!(fields(shard), ["commit", "id", "leader", "replicas", "term"]);
    assert_eq!((&shard["id"], &shard["leader"]), (&json!(1), &json!(1)));
    assert!(shard["term"].as_u64().unwrap() > 0 && shard["commit"].as_u64().unwrap() > 0, "{shard}");
    let replicas = shard["replicas"].as_array().unwrap();
    assert_eq!(replicas.len(), 1);
    assert_eq!(fields(&replicas[0]), ["applied", "lag", "node", "role"]);
    assert_eq!((&replicas[0]["role"], &replicas[0]["lag"]), (&json!("voter"), &json!(0)));
    harness.stop().await;
}

#[tokio::test]
async fn the_node_tells_its_part_in_every_group() {
    let harness = start().await;
    let node = harness.get("/v1/node").await.expect(200).json;
    assert_eq!((&node["peers"], &node["ready"]), (&json!([]), &json!(true)));
    assert_eq!(node["clock"], json!({"offset_ms": null, "held": false, "jumps": 0}));
    let groups = node["groups"].as_array().unwrap();
    assert_eq!(groups.len(), 5);
    for group in groups {
        assert_eq!((&group["role"], &group["leader"]), (&json!("leader"), &json!(1)), "{group}");
        assert_eq!(group["voted_for"], 1, "{group}");
        assert!(group["term"].as_u64().unwrap() > 0 && group["last_election"].is_string(), "{group}");
        assert_eq!(group["peers"], json!([]));
    }
    harness.stop().await;
}

#[tokio::test]
async fn metrics_tell_of_replication_links_and_clocks() {
    let harness = start().await;
    harness.enqueue("mail", r#"{"kind":"k"}"#).await;
    let text = metrics(&harness).await;
    for line in [
        "windlass_group_role{group=\"0\",role=\"leader\"} 1",
        "windlass_group_role{group=\"4\",role=\"leader\"} 1",
        "windlass_replica_lag_entries{group=\"1\",node=\"1\"} 0",
        "windlass_replicas_diverged 0",
        "windlass_clock_jumps_total 0",
        "windlass_clock_held 0",
        "windlass_clock_offset_seconds{node=\"1\"} 0",
        "# TYPE windlass_link_round_trip_seconds gauge",
        "# TYPE windlass_link_reconnects_total counter",
    ] {
        assert!(text.lines().any(|l| l == line), "{line} is missing in\n{text}");
    }
    for name in ["windlass_group_term{group=\"0\"} ", "windlass_leader_changes_total "] {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("no {name}"));
        assert!(line[name.len()..].parse::<f64>().unwrap() >= 1.0, "{line}");
    }
    harness.stop().await;
}
