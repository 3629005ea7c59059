//! Every recorded answer of the original, asked again.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use crate::lab::{Memory, Reply, address, get, health_server, limits, metrics, metrics_server, request};
use kube_proxy_observe::clock::Moment;
use kube_proxy_observe::health::Health;
use kube_proxy_observe::http::{Limits, Pages};
use kube_proxy_observe::log::{Handle, Logger, Options};
use kube_proxy_observe::service_health::{Check, service_health};
use model::{Family, Node, ObjectKey};
use serde_json::Value;

static RECORDED: LazyLock<Value> =
    LazyLock::new(|| serde_json::from_str(include_str!("../data/http.json")).expect("JSON"));

/// The status, the headers and the body of a recorded answer.
fn recorded(name: &str) -> (&'static str, Vec<(&'static str, &'static str)>, &'static str) {
    let answer = RECORDED.get(name).unwrap_or_else(|| panic!("no recording {name}"));
    let headers = answer["headers"].as_object().expect("headers");
    let headers = headers.iter().map(|(k, v)| (k.as_str(), v.as_str().expect("text"))).collect();
    (answer["status"].as_str().expect("text"), headers, answer["body"].as_str().unwrap_or_default())
}

/// Status and headers are the recorded ones; there may be more: Date, Content-Length, Connection.
fn assert_same_head(name: &str, reply: &Reply) {
    let (status, headers, _) = recorded(name);
    assert_eq!(reply.status, status, "{name}");
    for (header, value) in headers {
        assert_eq!(reply.headers.get(header).map(String::as_str), Some(value), "{header} of {name}");
    }
    for header in ["X-Content-Type-Options", "Warning"] {
        let expected = recorded(name).1.iter().any(|(h, _)| *h == header);
        assert_eq!(reply.headers.contains_key(header), expected, "{header} of {name}");
    }
    assert!(reply.headers.contains_key("Date") && reply.headers.contains_key("Content-Length"), "{name}");
}

fn assert_same(name: &str, reply: &Reply) {
    assert_same_head(name, reply);
    assert_eq!(reply.body, recorded(name).2, "{name}");
}

/// Times replaced by `T`.
fn timeless(body: &str) -> String {
    let is_time = |s: &str| s.len() > 10 && s.ends_with('Z') && s[..4].bytes().all(|c| c.is_ascii_digit());
    body.split('"').map(|part| if is_time(part) { "T" } else { part }).collect::<Vec<_>>().join("\"")
}

pub(crate) fn logs() -> Handle {
    Logger::new(Options::default(), Memory::default()).1
}

/// The flags of the recorded run.
fn flags() -> Vec<(String, String)> {
    let lines = recorded("GET :10249/flagz").2.lines().skip(3);
    let flag = |line: &str| {
        let (name, value) = line.split_once(' ').expect("name and value");
        (name.to_owned(), value.to_owned())
    };
    lines.map(flag).collect()
}

pub(crate) fn pages() -> Pages {
    Pages {
        metrics: metrics(),
        proxy_mode: "nftables".into(),
        configz: "{\"kubeproxy.config.k8s.io\":{\"mode\":\"nftables\"}}".into(),
        flagz: Some(flags()),
        statusz: Some("v1.37.2".into()),
        profiling: None,
        pings: kube_proxy_observe::http::Pings::default(),
    }
}

pub(crate) fn healthy() -> Arc<Health> {
    let health = Health::new(Duration::from_secs(60));
    health.set_node(Some(&Node::default()));
    for family in [Family::V4, Family::V6] {
        health.updated(family, Moment::now());
    }
    Arc::new(health)
}

#[tokio::test]
async fn the_health_server_answers_as_recorded() {
    let (health, metrics) = (healthy(), metrics());
    let address = health_server(limits(), &health, &metrics);
    for (method, path) in [("GET", "/healthz"), ("GET", "/livez"), ("HEAD", "/healthz"), ("POST", "/healthz")]
    {
        let name = format!("{method} :10256{path}");
        let reply = request(address, method, path, "").await;
        assert_same_head(&name, &reply);
        assert_eq!(timeless(&reply.body), timeless(recorded(&name).2));
    }
    for path in ["/readyz", "/", "/metrics"] {
        assert_same(&format!("GET :10256{path}"), &get(address, path).await);
    }
    health.set_node(Some(&Node { to_be_deleted_by_autoscaler: true, ..Node::default() }));
    for path in ["/healthz", "/livez"] {
        let name = format!("tainted: GET :10256{path}");
        let reply = get(address, path).await;
        assert_same_head(&name, &reply);
        assert_eq!(timeless(&reply.body), timeless(recorded(&name).2));
    }
    let page = metrics.text();
    for line in [
        "kubeproxy_proxy_healthz_total{code=\"200\"} 3",
        "kubeproxy_proxy_healthz_total{code=\"503\"} 1",
        "kubeproxy_proxy_livez_total{code=\"200\"} 2",
        "kubeproxy_proxy_livez_total{code=\"503\"} 0",
    ] {
        assert!(page.lines().any(|l| l == line), "{line}");
    }
}

#[tokio::test]
async fn the_metrics_server_answers_as_recorded() {
    let address = metrics_server(pages());
    for path in
        ["/healthz", "/livez", "/readyz", "/", "/proxyMode", "/version", "/debug/pprof/", "/debug/flags/v"]
    {
        assert_same(&format!("GET :10249{path}"), &get(address, path).await);
    }
    for (method, path) in [("POST", "/proxyMode"), ("PUT", "/debug/flags/v")] {
        assert_same(&format!("{method} :10249{path}"), &request(address, method, path, "").await);
    }
    for path in ["/metrics", "/metrics/slis", "/configz", "/statusz", "/flagz"] {
        assert_same_head(&format!("GET :10249{path}"), &get(address, path).await);
    }
    let reply =
        request(address, "GET", "/metrics", "Accept: application/openmetrics-text; version=1.0.0\r\n");
    assert_same_head("GET :10249/metrics Accept openmetrics", &reply.await);
    assert_eq!(get(address, "/configz").await.body, pages().configz);
}

#[tokio::test]
async fn slis_count_the_health_checks() {
    let address = metrics_server(pages());
    get(address, "/healthz").await;
    let reply = get(address, "/metrics/slis").await;
    let samples = |text: &str| {
        let lines = text.lines().filter(|l| !l.starts_with("# HELP") && !l.starts_with("process_start"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(samples(&reply.body), samples(recorded("GET :10249/metrics/slis").2));
    let started: f64 = reply.headers["Process-Start-Time-Unix"].parse().expect("a number");
    assert!(started > 1e9, "{started}");
}

#[tokio::test]
async fn status_and_flags_have_the_recorded_lines() {
    let address = metrics_server(pages());
    let rows = |text: &str| {
        let lines = text.lines().skip(3).filter(|line| !line.starts_with("Go version"));
        // Started and Up are of the run.
        lines
            .map(|line| match line.split_once("  ") {
                Some((name @ ("Started" | "Up"), _)) => name.to_owned(),
                _ => line.to_owned(),
            })
            .collect::<Vec<_>>()
    };
    for path in ["/statusz", "/flagz"] {
        let reply = get(address, path).await;
        assert_eq!(rows(&reply.body), rows(recorded(&format!("GET :10249{path}")).2));
    }
}

#[tokio::test]
async fn status_and_flags_are_json_for_programs_that_name_the_version() {
    let address = metrics_server(pages());
    for (path, kind) in [("/statusz", "Statusz"), ("/flagz", "Flagz")] {
        for version in ["v1beta1", "v1alpha1"] {
            let accept = format!("application/json;v={version};g=config.k8s.io;as={kind}");
            let reply = request(address, "GET", path, &format!("Accept: {accept}\r\n")).await;
            let name = format!("GET :10249{path} Accept {accept}");
            assert_same_head(&name, &reply);
            let mut bodies =
                [&reply.body, recorded(&name).2].map(|b| serde_json::from_str::<Value>(b).expect("JSON"));
            for body in &mut bodies {
                for of_the_run in ["startTime", "uptimeSeconds", "goVersion"] {
                    if let Some(value) = body.get_mut(of_the_run) {
                        *value = Value::Null;
                    }
                }
            }
            assert_eq!(bodies[0], bodies[1], "{name}");
        }
    }
}

#[tokio::test]
async fn status_in_a_form_that_is_not_there_is_refused() {
    let address = metrics_server(pages());
    for accept in ["application/json", "text/html"] {
        let reply = request(address, "GET", "/statusz", &format!("Accept: {accept}\r\n")).await;
        assert_same(&format!("GET :10249/statusz Accept {accept}"), &reply);
    }
    for accept in ["text/html, */*;q=0.1", "text/plain", ""] {
        let reply = request(address, "GET", "/statusz", &format!("Accept: {accept}\r\n")).await;
        assert_eq!(reply.headers["Content-Type"], "text/plain; charset=utf-8", "{accept}");
    }
}

#[tokio::test]
async fn pages_behind_a_gate_that_is_off_do_not_exist() {
    let address = metrics_server(Pages { flagz: None, statusz: None, ..pages() });
    for path in ["/flagz", "/statusz"] {
        assert_eq!(get(address, path).await.code(), 404, "{path}");
    }
}

#[tokio::test]
async fn with_profiling_the_log_level_can_be_set_and_pprof_says_why_it_is_not_there() {
    let logs = logs();
    let address = metrics_server(Pages { profiling: Some(logs.clone()), ..pages() });
    assert_same("profiling: GET :10249/debug/flags/v", &get(address, "/debug/flags/v").await);
    let put = |body: &str| {
        let rest = format!("Content-Length: {}\r\n\r\n{body}", body.len());
        async move { request(address, "PUT", "/debug/flags/v", &rest).await }
    };
    assert_same("profiling: PUT :10249/debug/flags/v", &put("4").await);
    assert_eq!(logs.verbosity(), 4);
    for wrong in ["", "-1", "loud", "99999999999", &"9".repeat(1000)] {
        assert_eq!(put(wrong).await.code(), 400, "{wrong}");
    }
    assert_eq!(logs.verbosity(), 4);
    let reply = get(address, "/debug/pprof/heap").await;
    assert_eq!(reply.code(), 501);
    assert!(reply.body.contains("perf record"), "{}", reply.body);
}

#[tokio::test]
async fn health_checks_of_services_answer_as_recorded() {
    let (handle, servers) = service_health(healthy(), Limits::default(), Box::new(|_, _, _| ()));
    drop(tokio::spawn(servers.run()));
    let (two, none) = (address(), address());
    let check = |name, port, local_endpoints| {
        (ObjectKey::new("http-cli", name), Some(Check { port, local_endpoints }))
    };
    handle.sync(vec![check("local-two", two.port(), 2), check("local-none", none.port(), 0)], vec![two.ip()]);
    assert_same("GET :30100/healthz", &get(two, "/healthz").await);
    assert_same("GET :30101/", &get(none, "/").await);
}
