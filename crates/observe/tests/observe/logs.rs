//! Log lines, as a person and as a program read them.

use std::error::Error;
use std::fmt;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use kube_proxy_observe::log::{self, Format, Handle, Logger, Options};
use kube_proxy_observe::metrics::{Build, Metrics};
use serde_json::Value;
use tracing::{debug, error, info, trace, warn};

use crate::lab::{Memory, PATIENCE};

/// The target of this program's own events begins so; a test's own would not.
const OWN: &str = "kube_proxy_test";

/// The lines that `events` prints, without their line breaks.
fn lines(options: Options, events: impl FnOnce(&Handle)) -> Vec<String> {
    let memory = Memory::default();
    let (logger, handle) = Logger::new(options, memory.clone());
    tracing::subscriber::with_default(logger, || events(&handle));
    memory.lines()
}

/// The part of a text line behind the header.
fn content(line: &str) -> &str {
    line.split_once("] ").expect("a header").1
}

fn messages(options: Options, events: impl FnOnce(&Handle)) -> Vec<String> {
    lines(options, events).iter().map(|line| content(line).trim_matches('"').to_owned()).collect()
}

fn verbose(verbosity: u32) -> Options {
    Options { verbosity, ..Options::default() }
}

fn vmodule(rules: &[(&str, u32)]) -> Options {
    Options { vmodule: rules.iter().map(|(p, l)| ((*p).to_owned(), *l)).collect(), ..Options::default() }
}

fn json(options: Options, events: impl FnOnce(&Handle)) -> Vec<Value> {
    let lines = lines(Options { format: Format::Json, ..options }, events);
    lines.iter().map(|line| serde_json::from_str(line).expect("one JSON object a line")).collect()
}

#[derive(Debug)]
struct Refused;

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no such \"table\"")
    }
}

impl Error for Refused {}

#[test]
fn a_text_line_begins_as_klog_begins_it() {
    let lines = lines(Options::default(), |_| {
        info!(target: OWN, "one");
        warn!("two");
        error!("three");
    });
    for (line, severity) in lines.iter().zip(['I', 'W', 'E']) {
        let (header, _) = line.split_once("] ").expect("a header");
        // I1201 00:43:05.123456   PID logs.rs:12
        let shape: String = header.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
        let digits = std::process::id().to_string().replace(|_| true, "0");
        let expected = format!("{severity}0000 00:00:00.000000 {digits:>7} logs.rs:00");
        assert!(shape.starts_with(&expected), "{line}");
        assert!(header.contains(&format!(" {} ", std::process::id())), "{line}");
    }
    assert_eq!(lines.len(), 3);
}

#[test]
fn fields_are_printed_as_klog_prints_them() {
    let lines = lines(Options::default(), |_| {
        info!(target: OWN, service = %"web/shop", port = 80, ready = true, ratio = 0.5, "Synced \"all\"");
        error!(family = %"IPv4", err = &Refused as &dyn Error, "Sync failed");
        error!(error = %Refused, count = 2_u64, "Again");
        info!(target: OWN, text = "one\ntwo\tthree\nI0101 forged", "Lines");
        info!(target: OWN, list = ?["a", "b"], odd = "esc \u{1b}[2J");
    });
    let contents: Vec<_> = lines.iter().map(|line| content(line)).collect();
    assert_eq!(
        contents,
        [
            r#""Synced \"all\"" service="web/shop" port=80 ready=true ratio=0.5"#,
            r#""Sync failed" err="no such \"table\"" family="IPv4""#,
            r#""Again" err="no such \"table\"" count=2"#,
            "\"Lines\" text=<\n\tone\n\ttwo\tthree\n\tI0101 forged\n >",
            r#""" list="[\"a\", \"b\"]" odd="esc \x1b[2J""#,
        ]
    );
}

#[test]
fn json_lines_have_the_fields_of_component_base() {
    let lines = json(verbose(2), |_| {
        info!(target: OWN, service = %"web/shop", port = 80, "Synced");
        debug!(target: OWN, nan = f64::NAN, "Detail");
        warn!("Odd");
        error!(err = %Refused, text = "two\nlines", "Failed");
    });
    let without_place = lines.iter().map(|line| {
        let mut line = line.as_object().expect("an object").clone();
        let ts = line.remove("ts").and_then(|ts| ts.as_f64()).expect("a number");
        assert!(ts > 1.7e12, "milliseconds since 1970: {ts}");
        let caller = line.remove("caller").expect("a caller");
        assert!(caller.as_str().expect("text").starts_with("observe/logs.rs:"), "{caller}");
        Value::from(line)
    });
    assert_eq!(
        without_place.collect::<Vec<_>>(),
        [
            serde_json::json!({"msg": "Synced", "v": 0, "service": "web/shop", "port": 80}),
            serde_json::json!({"msg": "Detail", "v": 2, "nan": "NaN"}),
            serde_json::json!({"msg": "Odd", "v": 0, "severity": "warning"}),
            serde_json::json!({"msg": "Failed", "err": "no such \"table\"", "text": "two\nlines"}),
        ]
    );
}

/// One event of each kind, as this program's crates make them.
fn one_of_each() {
    error!(target: OWN, "error");
    info!(target: OWN, "info");
    info!(target: OWN, v = 1, "info v=1");
    debug!(target: OWN, "debug");
    debug!(target: OWN, v = 4, "debug v=4");
    info!(target: "foreign", "foreign info");
    trace!(target: OWN, "trace");
    debug!(target: "foreign", "foreign debug");
    trace!(target: "foreign", "foreign trace");
}

#[test]
fn the_verbosity_decides_what_is_printed() {
    let all = [
        (0, "error"),
        (0, "info"),
        (1, "info v=1"),
        (2, "debug"),
        (4, "debug v=4"),
        (4, "foreign info"),
        (5, "trace"),
        (6, "foreign debug"),
        (10, "foreign trace"),
    ];
    for verbosity in 0..=11 {
        let expected: Vec<_> = all.iter().filter(|(v, _)| *v <= verbosity).map(|(_, m)| *m).collect();
        assert_eq!(messages(verbose(verbosity), |_| one_of_each()), expected, "-v={verbosity}");
    }
}

#[test]
fn the_verbosity_of_a_file_is_raised_by_its_first_pattern() {
    let count = |options| messages(options, |_| one_of_each()).len();
    assert_eq!(count(vmodule(&[("logs", 5)])), 7);
    assert_eq!(count(vmodule(&[("l?g*", 4)])), 6);
    assert_eq!(count(vmodule(&[("other", 9), ("logs", 2), ("*", 9)])), 4);
    assert_eq!(count(vmodule(&[("other", 9)])), 2);
    assert_eq!(count(Options { verbosity: 5, ..vmodule(&[("logs", 1)]) }), 7, "never lowered");
}

#[test]
fn the_verbosity_changes_while_running() {
    let printed = messages(verbose(0), |handle| {
        for verbosity in [0, 5, 0] {
            handle.set_verbosity(verbosity);
            assert_eq!(handle.verbosity(), verbosity);
            trace!(target: OWN, "at {verbosity}");
        }
    });
    assert_eq!(printed, ["at 5"]);
}

#[test]
#[ignore = "sets up the whole process; the test below runs it in processes of its own"]
fn says_something_to_standard_error() {
    let handle = log::init(Options { verbosity: 2, ..Options::default() });
    assert!(handle.is_ok(), "first set-up in this process");
    assert!(log::init(Options::default()).is_err(), "second");
    for i in 0..100 {
        info!(target: OWN, i, "Something");
    }
    log::flush();
}

#[test]
fn with_stderr_closed_or_broken_nothing_panics() {
    let me = std::env::current_exe().expect("this test's program");
    for redirect in ["2>&-", "2>/dev/full"] {
        let script = format!(
            "exec \"$0\" --ignored --exact logs::says_something_to_standard_error --nocapture {redirect}"
        );
        let output = Command::new("sh").args(["-c", &script]).arg(&me).stdin(Stdio::null()).output();
        let output = output.expect("sh runs");
        assert!(output.status.success(), "{redirect}: {}", String::from_utf8_lossy(&output.stdout));
    }
    let output = Command::new(&me)
        .args(["--ignored", "--exact", "logs::says_something_to_standard_error", "--nocapture"])
        .output()
        .expect("this test's program runs");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(stderr.matches("] \"Something\" i=").count(), 100, "{stderr}");
}

/// The metric of lost lines.
const LOST: &str = "kubeproxy_log_lines_lost_total ";

#[test]
#[ignore = "sets up the whole process; the test below runs it in a process of its own"]
fn says_more_than_a_pipe_and_the_queue_hold() {
    log::init(Options::default()).expect("first set-up in this process");
    let filler = "x".repeat(1000);
    for i in 0..20_000 {
        info!(target: OWN, i, filler, "Something");
    }
    println!("said");
    std::io::stdin().read_line(&mut String::new()).expect("stdin is open");
    let metrics = Metrics::new(&[], &Build::default(), &[]).text();
    println!("{}", metrics.lines().find(|line| line.starts_with(LOST)).expect("it is shown"));
    log::last_line("the end");
}

/// The above in a process of its own, its standard streams being pipes.
fn talkative() -> Child {
    Command::new(std::env::current_exe().expect("this test's program"))
        .args(["--ignored", "--exact", "logs::says_more_than_a_pipe_and_the_queue_hold", "--nocapture"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("this test's program runs")
}

#[test]
fn a_process_ends_though_nobody_reads_its_last_lines() {
    let mut child = talkative();
    writeln!(child.stdin.take().expect("piped"), "go").expect("it reads");
    let end = Instant::now() + PATIENCE;
    let ended = loop {
        match child.try_wait().expect("it is ours") {
            None if Instant::now() < end => std::thread::sleep(Duration::from_millis(10)),
            ended => break ended,
        }
    };
    if ended.is_none() {
        child.kill().expect("it runs");
    }
    assert!(ended.is_some_and(|status| status.success()), "{ended:?}");
}

#[test]
fn nobody_waits_for_a_pipe_that_is_not_read_and_what_is_lost_is_counted() {
    let mut child = talkative();
    let (mut input, output) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
    let (done, said) = std::sync::mpsc::channel();
    let (counter, counted) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut lines = BufReader::new(output).lines().map_while(Result::ok);
        // the other side may have given up
        let _ = done.send(lines.any(|line| line.contains("said")));
        let count = |line: String| line.strip_prefix(LOST)?.trim().parse::<usize>().ok();
        let _ = counter.send(lines.find_map(count));
        lines.for_each(drop);
    });
    let not_held_up = said.recv_timeout(PATIENCE);
    if not_held_up.is_err() {
        child.kill().expect("it runs");
    }
    assert_eq!(not_held_up, Ok(true), "it waits for its reader");
    let mut printed = BufReader::new(child.stderr.take().expect("piped")).lines().map_while(Result::ok);
    let mut written = 0;
    let lost: usize = loop {
        let line = printed.next().expect("the number of lost lines is told");
        match line.split_once("Log lines were lost: they were not read as fast as written\" lines=") {
            Some((_, lost)) => break lost.parse().expect("a number"),
            None => written += usize::from(line.contains("] \"Something\" i=")),
        }
    };
    assert_eq!((written + lost, lost > 0), (20_000, true), "{written} written, {lost} lost");
    writeln!(input, "go").expect("it reads");
    assert_eq!(counted.recv_timeout(PATIENCE), Ok(Some(lost)), "the metric");
    assert!(printed.any(|line| line == "the end"), "the last line comes, too");
    assert!(child.wait().expect("it ends").success());
}
