//! A watch that says nothing, on a clock that is told.
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
use kube_proxy_source::api::{Connection, run};
use support::*;

/// These lines, and then nothing for ever.
fn open_watch(lines: Vec<String>) -> Response<BoxBody<Bytes, Infallible>> {
    let frames = lines.into_iter().map(|line| Ok::<_, Infallible>(Frame::data(Bytes::from(line))));
    Response::new(BoxBody::new(StreamBody::new(stream::iter(frames).chain(stream::pending()))))
}

#[tokio::test(start_paused = true)]
async fn a_watch_without_a_sign_of_life_for_a_minute_is_started_again_from_its_version() {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&asked);
    let service = tower::service_fn(move |request: Request<Body>| {
        let uri = request.uri().to_string();
        let lines = match (uri.contains("/services?"), uri.contains("sendInitialEvents")) {
            (true, true) => vec![line("ADDED", &service("a", "5")), initial_end("5")],
            (true, false) => vec![],
            (false, _) => vec![initial_end("1")],
        };
        log.lock().unwrap().push(uri);
        async move { Ok::<_, Infallible>(open_watch(lines)) }
    });
    let connection = Connection::over(Client::new(service, "default"), "http://192.0.2.1");
    let (sender, events) = channel();
    let watching = watching(sender, Arc::new(Counters::default()));
    // the clock goes on by itself when nothing else can happen
    let minute = tokio::time::timeout(Duration::from_secs(60), run(&connection, &watching));
    assert!(minute.await.is_err(), "it follows for ever");

    let asked = asked.lock().unwrap();
    let services: Vec<_> = asked.iter().filter(|uri| uri.contains("/services?")).collect();
    assert_eq!(services.len(), 2, "{services:?}");
    assert!(
        services[1].contains("resourceVersion=5") && !services[1].contains("sendInitialEvents"),
        "{services:?}"
    );
    let told: Vec<_> = events.try_iter().filter_map(|event| in_words(&event)).collect();
    assert_eq!(told, ["begin", "has a", "end"], "nothing is told twice");
}
