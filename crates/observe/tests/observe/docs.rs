//! The tables of docs/ are made from what is registered.

use std::fmt::Write;
use std::path::Path;

use kube_proxy_observe::http::Pages;

use crate::lab::{get, health_server, limits, metrics, metrics_server};
use crate::metrics::{Described, busy, described};
use crate::pages::{healthy, logs, pages};

fn row(name: &str, metric: &Described) -> String {
    let labels: Vec<_> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
    let meaning = metric.help.split_once("] ").map_or(&*metric.help, |(_, meaning)| meaning);
    format!("| `{name}` | {} | {} | {meaning} |\n", metric.kind, labels.join(", "))
}

#[test]
fn docs_metrics_md_lists_what_is_registered() {
    let recorded: Vec<_> =
        include_str!("../data/metrics.txt").lines().filter_map(|line| line.split(' ').next()).collect();
    let mut tables = [String::new(), String::new()];
    for (name, metric) in described(&busy().text()) {
        // What is of the nftables mode shows in the original only after a failure.
        let of_the_original = recorded.contains(&&*name) || name.contains("_nftables_");
        tables[usize::from(!of_the_original)].push_str(&row(&name, &metric));
    }
    let head = "| Name | Type | Labels | Meaning |\n|---|---|---|---|\n";
    let mut text = String::from(
        "# Metrics\n\nMade from the registry of `crates/observe/src/metrics/`; after a change run\n\
         `UPDATE_DOCS=1 cargo test -p kube-proxy-observe`.\n\n\
         `GET /metrics` on the metrics port (10249) answers in the Prometheus text format 0.0.4. Durations have\n\
         buckets from 1 ms, each twice the one before, to 16.384 s;\n\
         `kubeproxy_network_programming_duration_seconds` from 0 to 300 s. The `go_*` metrics of the original\n\
         are not there: nothing in this program is Go.\n\n## As in the original\n\n",
    );
    // Writing to a string cannot fail.
    let _ = write!(text, "{head}{}\n## Additions\n\n{head}{}", tables[0], tables[1]);

    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &text).expect("docs/metrics.md can be written");
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == text,
        "docs/metrics.md is not up to date, run UPDATE_DOCS=1 cargo test -p kube-proxy-observe"
    );
}

#[tokio::test]
async fn docs_health_md_lists_pages_that_answer_so() {
    let health = health_server(limits(), &healthy(), &metrics());
    let metrics = metrics_server(Pages { profiling: Some(logs()), ..pages() });
    let mut rows = 0;
    for line in include_str!("../../../../docs/health.md").lines() {
        // | 10256 | `/healthz` | 200 | application/json | … |
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        let server = match cells.get(1) {
            Some(&"10256") => health,
            Some(&"10249") => metrics,
            _ => continue,
        };
        let reply = get(server, cells[2].trim_matches('`')).await;
        assert_eq!(reply.code().to_string(), cells[3], "{line}");
        assert_eq!(reply.headers["Content-Type"].split(';').next(), Some(cells[4]), "{line}");
        rows += 1;
    }
    assert_eq!(rows, 12);
}
