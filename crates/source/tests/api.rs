//! The API server's ways of failing, and what becomes of the watch.
#![allow(clippy::unwrap_used)]

mod support;

use std::net::TcpListener;

use model::{Event, Kind};
use support::*;

fn services(replies: Vec<Reply>) -> Server {
    Server::new([("services", replies)])
}

fn watch(lines: &[String], end: End) -> Reply {
    Reply::Stream(lines.to_vec(), end)
}

fn added(name: &str, version: &str) -> String {
    line("ADDED", &service(name, version))
}

fn refused(code: u16, reason: &str) -> Reply {
    Reply::Whole(code, vec![], status(code, reason))
}

/// All services of a server that has one, `a`, at version 5.
fn one_service() -> Reply {
    watch(&[added("a", "5"), initial_end("5")], End::Clean)
}

#[test]
fn all_objects_are_told_between_begin_and_end_and_changes_after_that() {
    let lines = [added("a", "3"), added("b", "4"), initial_end("5"), line("DELETED", &service("a", "6"))];
    let source = Source::following(&services(vec![watch(&lines, End::Open)]));
    source.tells(&["begin", "has a", "has b", "end", "no a"]);
}

#[test]
fn only_services_that_a_proxy_serves_are_asked_for() {
    let server = services(vec![one_service()]);
    Source::following(&server).tells(&["begin", "has a", "end"]);
    let first = &server.asked("services")[0];
    for part in [
        "labelSelector=%21service.kubernetes.io%2Fservice-proxy-name",
        "spec.clusterIP%21%3DNone",
        "sendInitialEvents=true",
    ] {
        assert!(first.contains(part), "{part} is not in {first}");
    }
}

#[test]
fn a_watch_that_ends_goes_on_from_the_last_version_without_telling_everything_again() {
    for end in [End::Clean, End::Torn] {
        let first = watch(&[added("a", "5"), initial_end("5"), bookmark("9")], end);
        let server = services(vec![first, watch(&[added("b", "12")], End::Open)]);
        let source = Source::following(&server);
        source.tells(&["begin", "has a", "end", "has b"]);
        assert!(server.asked("services")[1].contains("resourceVersion=9"), "{:?}", server.asked("services"));
    }
}

#[test]
fn an_expired_version_means_that_everything_is_told_once_more() {
    let again = || watch(&[added("b", "20"), initial_end("20")], End::Open);
    let as_status = vec![one_service(), refused(410, "Expired"), again()];
    let as_event = vec![
        watch(&[added("a", "5"), initial_end("5"), line("ERROR", &status(410, "Expired"))], End::Clean),
        again(),
    ];
    for replies in [as_status, as_event] {
        Source::following(&services(replies)).tells(&["begin", "has a", "end", "begin", "has b", "end"]);
    }
}

#[test]
fn a_server_without_watch_list_is_asked_for_lists_page_by_page() {
    let page = |next: &str, name: &str| {
        let body = format!(
            r#"{{"metadata":{{"resourceVersion":"7","continue":"{next}"}},"items":[{}]}}"#,
            service(name, "3")
        );
        Reply::Whole(200, vec![], body)
    };
    let replies =
        vec![refused(422, "Invalid"), page("more", "a"), page("", "b"), watch(&[added("c", "8")], End::Open)];
    let server = services(replies);
    Source::following(&server).tells(&["begin", "has a", "has b", "end", "has c"]);
    let asked = server.asked("services");
    assert!(asked[1].contains("limit=500") && asked[2].contains("continue=more"), "{asked:?}");
    assert!(asked[3].contains("watch=true") && asked[3].contains("resourceVersion=7"), "{asked:?}");
}

#[test]
fn refusals_and_broken_connections_are_tried_again_until_they_pass() {
    let later = Reply::Whole(429, vec![("Retry-After", "1".to_owned())], status(429, "TooManyRequests"));
    let faults = vec![refused(500, "InternalError"), Reply::HangUp, later, refused(403, "Forbidden")];
    let mut replies = faults.clone();
    replies.push(one_service());
    replies.extend(faults);
    replies.push(watch(&[added("b", "6")], End::Open));
    Source::following(&services(replies)).tells(&["begin", "has a", "end", "has b"]);
}

#[test]
fn lines_may_come_in_pieces_of_any_size() {
    let whole = [added("a", "3"), added("b", "4"), initial_end("5")].concat();
    let pieces = whole.as_bytes().chunks(7).map(|piece| String::from_utf8(piece.to_vec()).unwrap()).collect();
    Source::following(&services(vec![Reply::Stream(pieces, End::Open)]))
        .tells(&["begin", "has a", "has b", "end"]);
}

#[test]
fn a_line_that_is_no_json_starts_the_watch_again() {
    let first = watch(&[added("a", "5"), initial_end("5"), "{garbage\n".to_owned()], End::Open);
    let server = services(vec![first, watch(&[added("b", "6")], End::Open)]);
    Source::following(&server).tells(&["begin", "has a", "end", "has b"]);
}

#[test]
fn a_malformed_object_is_counted_and_does_not_stop_the_others() {
    let bad = line("ADDED", r#"{"metadata":{"name":"bad","namespace":"web"},"spec":{"clusterIP":5}}"#);
    let source =
        Source::following(&services(vec![watch(&[bad, added("a", "5"), initial_end("5")], End::Open)]));
    source.tells(&["begin", "has a", "end"]);
    assert_eq!(source.counters.malformed(), 1);
}

#[test]
fn an_unfinished_fill_begins_again() {
    let half = watch(&[added("a", "3")], End::Torn);
    let server =
        services(vec![half, watch(&[added("a", "3"), added("b", "4"), initial_end("5")], End::Open)]);
    Source::following(&server).tells(&["begin", "has a", "begin", "has a", "has b", "end"]);
}

#[test]
fn an_api_server_without_service_cidrs_has_none() {
    let server = Server::new([("servicecidrs", vec![refused(404, "NotFound")])]);
    let source = Source::following(&server);
    let cidrs =
        |event: &Event| matches!(event, Event::Begin(Kind::ServiceCidr) | Event::End(Kind::ServiceCidr));
    let told: Vec<Event> = std::iter::repeat_with(|| source.events.recv_timeout(PATIENCE).unwrap())
        .filter(cidrs)
        .take(2)
        .collect();
    assert_eq!(told, [Event::Begin(Kind::ServiceCidr), Event::End(Kind::ServiceCidr)]);
}

#[test]
fn credentials_that_are_refused_are_read_again() {
    let mut replies = vec![one_service()];
    replies.extend(vec![refused(401, "Unauthorized"); 5]);
    replies.push(watch(&[added("b", "6")], End::Open));
    let server = services(replies);
    let source = Source::following(&server);
    source.tells(&["begin", "has a", "end"]);
    std::fs::write(source.folder.path().join("token"), "second").unwrap();
    source.tells(&["has b"]);
    let asked = server.asked("services");
    assert!(asked.first().unwrap().contains("Bearer first"), "{asked:?}");
    assert!(asked.last().unwrap().contains("Bearer second"), "{asked:?}");
}

#[test]
fn a_server_that_is_not_there_yet_is_waited_for() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let source = Source::at(port);
    // a first try has failed when a second connection would be made; the listener comes in between or before
    let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
    let server = services(vec![one_service()]);
    std::thread::spawn(move || server.serve_on(&listener));
    source.tells(&["begin", "has a", "end"]);
}

#[test]
fn who_answers_and_is_no_api_server_is_warned_of_with_what_came_instead_once() {
    let page = "<!DOCTYPE html>\n<title>Log in</title>".to_owned();
    let html = vec![("Content-Type", "text/html; charset=utf-8".to_owned())];
    for (reply, what) in [
        (Reply::Whole(200, html, page.clone()), "type \"text/html; charset=utf-8\""),
        (Reply::Whole(200, vec![], page), "<!DOCTYPE html>"),
        (Reply::Whole(200, vec![], "welcome".to_owned()), "\"welcome\""),
        (Reply::Whole(200, vec![], r#"{"welcome":true}"#.to_owned() + "\n"), "{\\\"welcome\\\":true}"),
        (Reply::Whole(200, vec![], String::new()), "nothing"),
    ] {
        let log = Log::start();
        let server = services(vec![reply.clone(), reply.clone(), reply, one_service()]);
        let source = Source::following(&server);
        while source.next() != "end" {}
        let url = source.url() + "api/v1/services";
        let told = log.warnings(&[&url, what, "login page"]);
        assert_eq!(told.len(), 1, "{what}: {:?}", log.warnings(&[&url]));
    }
}

#[test]
fn an_answer_that_breaks_off_properly_or_not_is_not_taken_for_somebody_elses() {
    let half = |whole: &str| whole[..whole.len() / 2].to_owned();
    let list = format!(r#"{{"metadata":{{"resourceVersion":"7"}},"items":[{}]}}"#, service("a", "5"));
    for end in [End::Clean, End::Torn] {
        let log = Log::start();
        let broken = |whole: &str| Reply::Stream(vec![half(whole)], end);
        let watch_list = [broken(&added("a", "5")), one_service()];
        let resumed = [broken(&added("b", "6")), watch(&[added("b", "6")], End::Clean)];
        let expired = [refused(410, "Expired"), refused(400, "BadRequest"), broken(&list)];
        let whole = [Reply::Whole(200, vec![], list.clone())];
        let replies = watch_list.into_iter().chain(resumed).chain(expired).chain(whole).collect();
        let source = Source::following(&services(replies));
        source.tells(&["begin", "begin", "has a", "end", "has b", "begin", "begin", "has a", "end"]);
        let told = log.warnings(&[&source.url()]);
        assert!(told.is_empty(), "{end:?}: {told:?}");
    }
}

#[test]
fn what_a_list_has_in_place_of_objects_is_warned_of() {
    let log = Log::start();
    let list = |body: &str| Reply::Whole(200, vec![], body.to_owned());
    let good = list(r#"{"metadata":{"resourceVersion":"7"},"items":[]}"#);
    let replies = vec![refused(400, "BadRequest"), list("[]"), list(r#"{"items":[]}"#), list("<html>"), good];
    let source = Source::following(&services(replies));
    while source.next() != "end" {}
    for what in ["a list without resourceVersion", "\"<html>\""] {
        assert_eq!(
            log.warnings(&[&source.url(), what]).len(),
            1,
            "{what}: {:?}",
            log.warnings(&[&source.url()])
        );
    }
}

#[test]
fn an_api_server_without_watch_list_is_asked_for_it_again_after_it_was_away() {
    let list = Reply::Whole(200, vec![], r#"{"metadata":{"resourceVersion":"7"},"items":[]}"#.to_owned());
    let server = services(vec![
        refused(400, "BadRequest"),
        list,
        Reply::HangUp,
        refused(410, "Expired"),
        one_service(),
    ]);
    Source::following(&server).tells(&["begin", "end", "begin", "has a", "end"]);
    let asked = server.asked("services");
    assert!(asked[4].contains("sendInitialEvents"), "{asked:?}");
}
