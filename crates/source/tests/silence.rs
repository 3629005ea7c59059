//! A watch that says nothing, and events that are too many, on a clock that is told.
#![allow(clippy::unwrap_used)]

mod support;

use std::convert::Infallible;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::{StreamExt, stream};
use http::{Request, Response};
use http_body_util::StreamBody;
use http_body_util::combinators::BoxBody;
use hyper::body::{Bytes, Frame};
use kube::client::{Body, Client};
use kube_proxy_source::Counters;
use kube_proxy_source::api::{About, Connection, Notice, Severity, notices, run};
use support::*;

/// These lines, and then nothing for ever.
fn open_watch(lines: Vec<String>) -> Response<BoxBody<Bytes, Infallible>> {
    let frames = lines.into_iter().map(|line| Ok::<_, Infallible>(Frame::data(Bytes::from(line))));
    Response::new(BoxBody::new(StreamBody::new(stream::iter(frames).chain(stream::pending()))))
}

/// Every request for services within so many seconds, and what was told of them. `answer` says which lines the watch
/// of services has that is asked for by a URI; all watches stay open.
async fn followed_for(
    seconds: u64,
    answer: impl Fn(&str) -> Response<BoxBody<Bytes, Infallible>> + Clone + Send + 'static,
) -> (Vec<String>, Vec<String>) {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&asked);
    let service = tower::service_fn(move |request: Request<Body>| {
        let uri = request.uri().to_string();
        let response = if uri.contains("/services?") {
            log.lock().unwrap().push(uri.clone());
            answer(&uri)
        } else {
            open_watch(vec![initial_end("1")])
        };
        async move { Ok::<_, Infallible>(response) }
    });
    let connection = Connection::over(Client::new(service, "default"), "http://192.0.2.1");
    let (sender, events) = channel();
    let watching = watching(sender, Arc::new(Counters::default()));
    // the clock goes on by itself when nothing else can happen
    let while_ = tokio::time::timeout(Duration::from_secs(seconds), run(&connection, &watching));
    assert!(while_.await.is_err(), "it follows for ever");
    let asked = asked.lock().unwrap().clone();
    (asked, events.try_iter().filter_map(|event| in_words(&event)).collect())
}

/// How long a watch is asked to last.
fn seconds_asked(uri: &str) -> u64 {
    let (_, after) = uri.split_once("timeoutSeconds=").unwrap();
    after.split('&').next().unwrap().parse().unwrap()
}

#[tokio::test(start_paused = true)]
async fn b97_a_watch_without_a_sign_of_life_for_a_minute_is_started_again_from_its_version() {
    let (asked, told) = followed_for(60, |uri| {
        let first = uri.contains("sendInitialEvents");
        open_watch(if first { vec![line("ADDED", &service("a", "5")), initial_end("5")] } else { vec![] })
    })
    .await;
    assert_eq!(asked.len(), 2, "{asked:?}");
    assert!(asked[1].contains("resourceVersion=5") && !asked[1].contains("sendInitialEvents"), "{asked:?}");
    assert_eq!(told, ["begin", "has a", "end"], "nothing is told twice");
}

#[tokio::test(start_paused = true)]
async fn a_watch_without_changes_is_asked_to_end_before_it_is_taken_for_dead() {
    let (asked, _) = followed_for(60, |_| open_watch(vec![initial_end("5")])).await;
    assert!((240..480).contains(&seconds_asked(&asked[0])), "{asked:?}");
    assert!((30..45).contains(&seconds_asked(&asked[1])), "{asked:?}");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_never_says_that_all_is_told_is_asked_for_lists() {
    let (asked, told) = followed_for(60, |uri| {
        if uri.contains("watch=true") {
            return open_watch(vec![line("ADDED", &service("a", "5"))]);
        }
        let list = format!(r#"{{"metadata":{{"resourceVersion":"7"}},"items":[{}]}}"#, service("a", "5"));
        Response::new(BoxBody::new(http_body_util::Full::new(Bytes::from(list))))
    })
    .await;
    assert!(asked[0].contains("sendInitialEvents") && asked[1].contains("limit=500"), "{asked:?}");
    assert!(asked[2].contains("watch=true") && asked[2].contains("resourceVersion=7"), "{asked:?}");
    assert_eq!(told[..5], ["begin", "has a", "begin", "has a", "end"]);
}

#[tokio::test(start_paused = true)]
async fn of_many_events_some_are_posted_at_once_and_the_rest_slowly() {
    let posted = Arc::new(Mutex::new(0));
    let count = Arc::clone(&posted);
    let service = tower::service_fn(move |_: Request<Body>| {
        *count.lock().unwrap() += 1;
        async { Ok::<_, Infallible>(open_watch(vec![])) }
    });
    let connection = Connection::over(Client::new(service, "default"), "http://192.0.2.1");
    let (notices, poster) = notices();
    for _ in 0..1000 {
        drop(notices.tell(Notice {
            about: About::Node("n1".to_owned()),
            severity: Severity::Warning,
            reason: "FailedToStartServiceHealthcheck",
            action: "Listen",
            note: String::new(),
        }));
    }
    let posting = poster.run(&connection, "host-1");
    assert!(tokio::time::timeout(Duration::from_secs(95), posting).await.is_err(), "it waits for more");
    assert_eq!(*posted.lock().unwrap(), 10 + 9);
}
