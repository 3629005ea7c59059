//! Follows one collection: all objects, then changes, then changes again, whatever happens to the connection.
//!
//! State is one version. Without it everything is fetched (a *fill*); with it a watch goes on from there. A watch that
//! ends, breaks or falls silent leaves the version, so what comes next are only the changes since.

use std::convert::Infallible;
use std::time::Duration;

use http::Response;
use http_body_util::BodyExt;
use kube::client::Body;
use model::Event;
use serde::de::IgnoredAny;
use tokio::time::{Instant, sleep, timeout};

use super::connection::{Connection, Failure, Refusal, beginning};
use super::frames::{Items, Lines, TooLong};
use super::pace::{Backoff, spread};
use super::resource::Resource;
use crate::decode::{Decoder, Line};
use crate::wire::Envelope;
use crate::{Counters, Watching};

/// A stream that says nothing for so long is taken for dead. The API server's own signs of life, bookmarks, come once
/// a minute at most, which is too rare to rely on.
const SILENCE: Duration = Duration::from_secs(50);

/// Seconds that a watch is asked to last. One without changes is kept shorter than [`SILENCE`], so that the API server
/// ends it properly, with a bookmark before, and the next one uses the same connection.
const BUSY_WATCH: std::ops::Range<u64> = 240..480;
const QUIET_WATCH: std::ops::Range<u64> = 30..45;

/// A watch that lasts so long has worked, even without a change.
const WORKED: Duration = Duration::from_secs(1);

/// An optional collection that is not there is looked for again after this time.
const ABSENT: Duration = Duration::from_secs(600);

/// What outages are about that concern all collections alike. Those of one are about its plural.
const CONNECTION: &str = "connection";
const AUTHENTICATION: &str = "authentication";

/// Follows `resource` for ever.
pub(super) async fn follow(connection: &Connection, resource: &Resource, watching: &Watching) -> Infallible {
    let decoder = Decoder::new(resource.kind, &watching.node_name, watching.counters.clone());
    let mut follower = Follower {
        connection,
        resource,
        watching,
        decoder,
        version: String::new(),
        filled: false,
        watch_list: true,
        quiet: false,
        progress: false,
        backoff: Backoff::default(),
    };
    loop {
        follower.progress = false;
        let started = Instant::now();
        let result = follower.step().await;
        let watched = !follower.version.is_empty()
            && matches!(result, Ok(()) | Err(Failure::Cut(_) | Failure::Silent))
            && started.elapsed() >= WORKED;
        let worked = follower.progress || watched;
        if worked {
            follower.backoff.reset();
            connection.well(resource.path);
        }
        match result {
            Ok(()) if worked => {}
            Ok(()) => sleep(follower.backoff.next()).await,
            Err(failure) => follower.recover(failure).await,
        }
    }
}

struct Follower<'a> {
    connection: &'a Connection,
    resource: &'a Resource,
    watching: &'a Watching,
    decoder: Decoder,
    /// Of the last event; empty when all objects have to be told anew.
    version: String,
    /// All objects have been told once.
    filled: bool,
    /// The API server is not known to refuse watches that begin with all objects.
    watch_list: bool,
    /// The last watch has brought no change.
    quiet: bool,
    /// All objects, or a change, have been told in this step.
    progress: bool,
    backoff: Backoff,
}

impl Follower<'_> {
    /// One request and what follows from it.
    async fn step(&mut self) -> Result<(), Failure> {
        let seconds = spread(if self.quiet { QUIET_WATCH } else { BUSY_WATCH });
        if !self.version.is_empty() {
            let response = self.get(&self.resource.watch(&self.version, seconds)).await?;
            Counters::count(&self.watching.counters.watches);
            return self.stream(response, false).await;
        }
        if self.watch_list {
            match self.get(&self.resource.watch_list(seconds)).await {
                Ok(response) => {
                    Counters::count(&self.watching.counters.watches);
                    return self.stream(response, true).await;
                }
                // 400 and 422: sendInitialEvents is unknown or switched off. 405, 501: something in between
                Err(Failure::Refused(Refusal { code: 400 | 405 | 422 | 501, .. })) => {
                    tracing::debug!(
                        resource = self.resource.plural,
                        "The API server has no WatchList; lists are used"
                    );
                    self.watch_list = false;
                }
                Err(failure) => return Err(failure),
            }
        }
        self.list().await
    }

    async fn get(&self, uri: &str) -> Result<Response<Body>, Failure> {
        let response = self.connection.get(uri).await?;
        for about in [CONNECTION, AUTHENTICATION, self.resource.plural] {
            self.connection.well(about);
        }
        Ok(response)
    }

    /// Reads a watch to its end. With `initial` it begins with all objects.
    async fn stream(&mut self, response: Response<Body>, initial: bool) -> Result<(), Failure> {
        let mut body = response.into_body();
        let mut lines = Lines::default();
        let mut initial = initial;
        let (mut changes, mut understood) = (false, false);
        // versions of initial objects come in any order and are no place to go on from
        let mut version = self.version.clone();
        if initial {
            self.begin();
        }
        loop {
            let frame = match timeout(SILENCE, body.frame()).await {
                Ok(Some(Ok(frame))) => frame,
                Ok(Some(Err(error))) => return Err(Failure::Cut(super::kube_text(&error))),
                Ok(None) if !understood && !lines.rest().is_empty() => {
                    return Err(not_understood(lines.rest()));
                }
                Ok(None) if initial && !understood => {
                    return Err(Failure::Strange("nothing".to_owned()));
                }
                Ok(None) if initial => {
                    return Err(Failure::Cut("it ended before all objects were sent".to_owned()));
                }
                Ok(None) => {
                    self.quiet = !changes;
                    return Ok(());
                }
                Err(_) if initial => {
                    // a server that does not know WatchList and does not say so
                    self.watch_list = false;
                    return Err(Failure::Cut("not all objects were sent".to_owned()));
                }
                Err(_) => {
                    self.quiet = !changes;
                    return Err(Failure::Silent);
                }
            };
            let Ok(data) = frame.into_data() else { continue };
            lines.push(&data, |line| {
                match self.decoder.line(line, &mut version) {
                    Line::Object(event) => {
                        if let Some(event) = event {
                            (self.watching.tell)(event);
                        }
                        changes |= !initial;
                        self.progress |= !initial;
                    }
                    Line::Bookmark(true) if initial => {
                        initial = false;
                        self.progress = true;
                        Self::end(self.resource, self.watching, &mut self.filled);
                    }
                    Line::Bookmark(_) => {}
                    Line::Error(status) => return Err(Failure::Refused(Refusal::of(status))),
                    // after others it is a line that broke off
                    Line::Torn if understood => {
                        return Err(Failure::Cut("it sent a line that is no JSON of a watch".to_owned()));
                    }
                    Line::Torn => return Err(Failure::Strange(beginning(line))),
                }
                understood = true;
                if !initial {
                    self.version.clone_from(&version);
                }
                Ok(())
            })?;
        }
    }

    /// Fetches all objects page by page.
    async fn list(&mut self) -> Result<(), Failure> {
        let mut next: Option<String> = None;
        let mut begun = false;
        let version = loop {
            let response = self.get(&self.resource.list(!self.filled, next.as_deref())).await?;
            if !std::mem::replace(&mut begun, true) {
                self.begin();
            }
            let page = self.page(response).await?;
            match page.metadata.next.filter(|next| !next.is_empty()) {
                Some(more) => next = Some(more),
                None => break page.metadata.resource_version,
            }
        };
        if version.is_empty() {
            return Err(Failure::Strange("a list without resourceVersion".to_owned()));
        }
        Self::end(self.resource, self.watching, &mut self.filled);
        self.version = version;
        self.progress = true;
        Ok(())
    }

    async fn page(&mut self, response: Response<Body>) -> Result<Envelope, Failure> {
        let mut body = response.into_body();
        let mut items = Items::default();
        loop {
            let frame = match timeout(SILENCE, body.frame()).await {
                Ok(Some(Ok(frame))) => frame,
                Ok(Some(Err(error))) => return Err(Failure::Cut(super::kube_text(&error))),
                Ok(None) => break,
                Err(_) => return Err(Failure::Cut("a list stopped half way".to_owned())),
            };
            let Ok(data) = frame.into_data() else { continue };
            items.push(&data, |item| {
                if let Some(event) = self.decoder.item(item) {
                    (self.watching.tell)(event);
                }
            })?;
        }
        serde_json::from_slice(items.envelope()).map_err(|_| not_understood(items.envelope()))
    }

    fn begin(&self) {
        Counters::count(&self.watching.counters.fills);
        (self.watching.tell)(Event::Begin(self.resource.kind));
    }

    fn end(resource: &Resource, watching: &Watching, filled: &mut bool) {
        (watching.tell)(Event::End(resource.kind));
        *filled = true;
    }

    /// Waits as long as a failure asks for, and forgets the version if it has expired.
    async fn recover(&mut self, failure: Failure) {
        let plural = self.resource.plural;
        let mut wait = self.backoff.next();
        match failure {
            Failure::Silent => {
                tracing::debug!(resource = plural, "A silent watch is started again");
                wait = Duration::ZERO;
            }
            Failure::Cut(problem) => {
                tracing::debug!(resource = plural, "The watch of {plural} broke off and goes on: {problem}");
            }
            Failure::Strange(what) => {
                let (address, path) = (self.connection.address(), self.resource.path);
                let text = format!(
                    "{}{path} answers with {what} and not with {plural} as an API server does; is there a proxy or a login page in between? It is tried again and again, and what is known stays in force",
                    address.trim_end_matches('/')
                );
                self.connection.outage(path, &text);
            }
            Failure::Unreachable(problem) => {
                // what comes back may be another release
                self.watch_list = true;
                let address = self.connection.address();
                let text = format!(
                    "The API server {address} cannot be reached: {problem}; it is tried again and again, and what is known stays in force"
                );
                self.connection.outage(CONNECTION, &text);
            }
            // a version that the API server cannot make sense of is as good as expired
            Failure::Refused(refusal)
                if refusal.expired() || (matches!(refusal.code, 400 | 422) && !self.version.is_empty()) =>
            {
                tracing::debug!(resource = plural, "The version has expired; all {plural} are fetched again");
                self.version.clear();
            }
            Failure::Refused(refusal) if self.resource.optional && matches!(refusal.code, 403 | 404) => {
                self.absent(&refusal);
                wait = ABSENT;
            }
            Failure::Refused(refusal) if refusal.code == 401 => {
                let address = self.connection.address();
                let text = format!(
                    "The API server {address} does not accept our credentials: {refusal}; check the client certificate or token, they are read again"
                );
                self.connection.outage(AUTHENTICATION, &text);
            }
            Failure::Refused(refusal) => {
                self.connection.outage(
                    plural,
                    &format!(
                        "The API server refuses to tell of {plural}: {refusal}; {}",
                        advice(&refusal, plural)
                    ),
                );
                wait = wait.max(refusal.wait.unwrap_or_default());
            }
        }
        sleep(wait).await;
    }

    /// The collection is not there, or not for us: as good as empty.
    fn absent(&mut self, refusal: &Refusal) {
        let plural = self.resource.plural;
        self.connection.outage(
            plural,
            &format!("The API server has no {plural} for us, so there are taken to be none: {refusal}"),
        );
        self.version.clear();
        if !self.filled {
            self.begin();
            Self::end(self.resource, self.watching, &mut self.filled);
        }
    }
}

impl From<TooLong> for Failure {
    fn from(_: TooLong) -> Self {
        Self::Cut("it sent an object of more than 32 MiB".to_owned())
    }
}

/// What ends in the middle of JSON has broken off; anything else is no answer of an API server.
fn not_understood(answer: &[u8]) -> Failure {
    let half = serde_json::from_slice::<IgnoredAny>(answer).is_err_and(|error| error.is_eof());
    if half && !answer.trim_ascii().is_empty() {
        Failure::Cut("it ended in the middle of an object".to_owned())
    } else {
        Failure::Strange(beginning(answer))
    }
}

/// What the operator can do about a refusal.
fn advice(refusal: &Refusal, plural: &str) -> String {
    match refusal.code {
        403 => format!("grant list and watch on {plural}, as the ClusterRole system:node-proxier does"),
        _ => "it is tried again".to_owned(),
    }
}
