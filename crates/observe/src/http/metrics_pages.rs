//! The pages of the metrics server.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::header::HeaderValue;
use hyper::{Method, Request, StatusCode};
use jiff::Timestamp;
use tokio::time::timeout;
use tracing::info;

use super::answer::{Answer, json, no_sniff, not_found, page, text};
use super::negotiation::{self, TwoForms};
use crate::clock::Moment;
use crate::log;
use crate::metrics::Metrics;

const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores";
const NO_PROFILES: &str = "This kube-proxy is not written in Go and keeps no pprof profiles. To see where it spends \
                           its time, run `perf record -g -p PID` on the node.\n";

/// What the metrics server shows.
#[derive(Debug)]
pub struct Pages {
    /// `/metrics`.
    pub metrics: Arc<Metrics>,
    /// `/proxyMode`.
    pub proxy_mode: String,
    /// `/configz`: the configuration in effect, a JSON object.
    pub configz: String,
    /// `/flagz`: all flags in order, and their values; `None` if the gate `ComponentFlagz` is off.
    pub flagz: Option<Vec<(String, String)>>,
    /// `/statusz`: the version of the program; `None` if the gate `ComponentStatusz` is off.
    pub statusz: Option<String>,
    /// `/debug`: the level of the logs, to be changed; `None` without `--profiling`.
    pub profiling: Option<log::Handle>,
    /// How often `/healthz` was asked, for `/metrics/slis`.
    pub pings: Pings,
}

/// A count of health checks.
#[derive(Debug, Default)]
pub struct Pings(AtomicU64);

impl Pages {
    pub(super) async fn answer(&self, request: Request<Incoming>) -> Answer {
        match (request.uri().path(), &self.statusz, &self.flagz, &self.profiling) {
            ("/metrics", ..) => self.measured(self.metrics.text()),
            ("/metrics/slis", ..) => self.measured(self.slis()),
            ("/healthz", ..) => {
                self.pings.0.fetch_add(1, Ordering::Relaxed);
                text(StatusCode::OK, "ok")
            }
            ("/proxyMode", ..) => text(StatusCode::OK, self.proxy_mode.clone()),
            ("/configz", ..) => json(200, self.configz.clone()),
            ("/statusz", Some(version), ..) => {
                negotiation::answer(request.headers(), &Statusz { pages: self, version, now: now() })
            }
            ("/flagz", _, Some(flags), _) => negotiation::answer(request.headers(), &Flagz(flags)),
            ("/debug/flags/v", .., Some(logs)) => set_verbosity(logs, request).await,
            (path, .., Some(_)) if path.starts_with("/debug/pprof") => {
                text(StatusCode::NOT_IMPLEMENTED, NO_PROFILES)
            }
            _ => not_found(),
        }
    }

    fn measured(&self, body: String) -> Answer {
        let mut answer = page(StatusCode::OK, METRICS_TYPE, body);
        if let Ok(started) = HeaderValue::from_str(&format!("{:.0}", self.metrics.started().floor())) {
            answer.headers_mut().insert("Process-Start-Time-Unix", started);
        }
        answer
    }

    fn slis(&self) -> String {
        let pings = self.pings.0.load(Ordering::Relaxed);
        let started = self.metrics.started();
        format!(
            "# HELP kubernetes_healthcheck [STABLE] The result of a health check.\n\
             # TYPE kubernetes_healthcheck gauge\n\
             kubernetes_healthcheck{{name=\"ping\",type=\"healthz\"}} 1\n\
             # HELP kubernetes_healthchecks_total [STABLE] The results of all health checks.\n\
             # TYPE kubernetes_healthchecks_total counter\n\
             kubernetes_healthchecks_total{{name=\"ping\",status=\"success\",type=\"healthz\"}} {pings}\n\
             # HELP process_start_time_seconds [ALPHA] Start of the process, seconds since 1970.\n\
             # TYPE process_start_time_seconds gauge\n\
             process_start_time_seconds {started}\n"
        )
    }

    /// The pages worth a look, sorted.
    fn paths(&self) -> Vec<&'static str> {
        let flagz = self.flagz.is_some().then_some("/flagz");
        ["/configz"].into_iter().chain(flagz).chain(["/healthz", "/metrics", "/proxyMode"]).collect()
    }
}

fn now() -> Timestamp {
    Timestamp::try_from(Moment::now().wall).unwrap_or_default()
}

/// `PUT /debug/flags/v`, the body is the new level.
async fn set_verbosity(logs: &log::Handle, request: Request<Incoming>) -> Answer {
    let plain = |status, body: String| no_sniff(page(status, "text/plain", body));
    if request.method() != Method::PUT {
        return plain(StatusCode::NOT_ACCEPTABLE, "unsupported http method\n".to_owned());
    }
    let body = timeout(Duration::from_secs(5), Limited::new(request.into_body(), 64).collect()).await;
    let Ok(Ok(body)) = body else {
        let message = "the body did not arrive or is too long; send a number, such as 4\n";
        return plain(StatusCode::BAD_REQUEST, message.to_owned());
    };
    let body = String::from_utf8_lossy(&body.to_bytes()).trim().to_owned();
    let Ok(level) = body.parse::<u32>() else {
        let message = format!("cannot set the verbosity to {body:?}: it is not a number of 0 or more\n");
        return plain(StatusCode::BAD_REQUEST, message);
    };
    logs.set_verbosity(level);
    info!(verbosity = level, "Log level was changed over HTTP");
    plain(StatusCode::OK, format!("successfully set klog.logging.verbosity to {level}\n"))
}

struct Statusz<'a> {
    pages: &'a Pages,
    version: &'a str,
    now: Timestamp,
}

impl Statusz<'_> {
    fn started(&self) -> Timestamp {
        Duration::try_from_secs_f64(self.pages.metrics.started())
            .ok()
            .and_then(|since| Timestamp::try_from(std::time::UNIX_EPOCH + since).ok())
            .unwrap_or(self.now)
    }

    fn uptime(&self) -> i64 {
        self.now.duration_since(self.started()).as_secs().max(0)
    }

    /// `1.37` of `v1.37.2`.
    fn minor(&self) -> &str {
        let bare = self.bare_version();
        bare.match_indices('.').nth(1).map_or(bare, |(at, _)| &bare[..at])
    }

    fn bare_version(&self) -> &str {
        self.version.trim_start_matches('v')
    }
}

impl TwoForms for Statusz<'_> {
    const KIND: &'static str = "Statusz";
    const NAME: &'static str = "statusz";

    fn text(&self) -> String {
        let up = self.uptime();
        format!(
            "\nStarted  {}\nUp  {} hr {:02} min {:02} sec\nBinary version  {}\nEmulation version  {}\nPaths  {}\n",
            self.started().strftime("%a %b %e %H:%M:%S UTC %Y"),
            up / 3600,
            up / 60 % 60,
            up % 60,
            self.bare_version(),
            self.minor(),
            self.pages.paths().join(" "),
        )
    }

    fn fields(&self) -> String {
        format!(
            "\"startTime\":\"{:.0}\",\"uptimeSeconds\":{},\"goVersion\":\"\",\"binaryVersion\":{},\
             \"emulationVersion\":{},\"paths\":{}",
            self.started(),
            self.uptime(),
            quoted(self.bare_version()),
            quoted(self.minor()),
            serde_json::Value::from(self.pages.paths()),
        )
    }
}

struct Flagz<'a>(&'a [(String, String)]);

impl TwoForms for Flagz<'_> {
    const KIND: &'static str = "Flagz";
    const NAME: &'static str = "flagz";

    fn text(&self) -> String {
        self.0.iter().fold(String::new(), |mut text, (name, value)| {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{name} {value}");
            text
        })
    }

    fn fields(&self) -> String {
        let flags: Vec<_> =
            self.0.iter().map(|(name, value)| format!("{}:{}", quoted(name), quoted(value))).collect();
        format!("\"flags\":{{{}}}", flags.join(","))
    }
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
