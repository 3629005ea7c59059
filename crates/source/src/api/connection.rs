//! The connection to the API server: sends requests, renews credentials, and tells of outages once.

use std::collections::HashMap;
use std::error::Error as StdError;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use http::{Request, Response, header};
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use tokio::time::{Instant, timeout};

use super::access::{Access, Credentials};
use super::pace::RateLimit;
use super::{kube_text, text_of};
use crate::Error;
use crate::wire::Status;

/// How long the API server may take to begin an answer.
pub(super) const ANSWER: Duration = Duration::from_secs(50);

/// How long a response that tells of an error is read, and how much of it.
const ERROR_BODY: Duration = Duration::from_secs(5);
const ERROR_BODY_BYTES: usize = 64 << 10;

/// An outage is told again after this time.
const REMINDER: Duration = Duration::from_secs(300);

/// What an outage is about: files that cannot be read any more.
const CREDENTIAL_FILES: &str = "credential files";

/// The longest wait that the API server may ask for.
const LONGEST_WAIT: u64 = 60;

/// Why a request, or the stream it began, came to nothing.
#[derive(Debug)]
pub(super) enum Failure {
    /// No answer: cannot connect, no trust, reset, silence.
    Unreachable(String),
    /// The answer broke off.
    Cut(String),
    /// Nothing has come for too long in a stream that had begun.
    Silent,
    /// The API server refused.
    Refused(Refusal),
    /// Whoever answers is no API server: what came instead.
    Strange(String),
}

/// How much of an answer that nobody understands is shown.
const SHOWN: usize = 60;

/// The beginning of what came instead of what was expected.
pub(super) fn beginning(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(4 * SHOWN)]);
    let plain: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(SHOWN).collect();
    format!("{:?}", plain.trim())
}

/// An answer that is not the one asked for.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) code: u16,
    reason: String,
    message: String,
    pub(super) wait: Option<Duration>,
}

impl Refusal {
    pub(super) fn of(status: Status) -> Self {
        let wait = status.details.and_then(|details| details.retry_after_seconds);
        Self { code: status.code, reason: status.reason, message: status.message, wait: wait.map(polite) }
    }

    /// The version asked for is too old: everything has to be told anew.
    ///
    /// Or too new: an API server whose storage was restored from a backup has not got there, and may not for long.
    pub(super) fn expired(&self) -> bool {
        self.code == 410
            || self.reason == "Expired"
            || self.reason == "Gone"
            || self.message.contains("Too large resource version")
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.code)?;
        let message = Some(&self.message).filter(|message| **message != self.reason);
        [Some(&self.reason), message]
            .into_iter()
            .flatten()
            .filter(|part| !part.is_empty())
            .try_for_each(|part| write!(f, " {part}"))
    }
}

fn polite(seconds: u64) -> Duration {
    Duration::from_secs(seconds.min(LONGEST_WAIT))
}

/// Called for each answer with its status code, the request's method, and the API server's host and port.
pub type Answered = Box<dyn Fn(u16, &str, &str) + Send + Sync>;

/// A connection to an API server. Shared by all that talk to it.
pub struct Connection {
    /// `None` when the client was made elsewhere, and is not renewed.
    access: Option<Access>,
    credentials: tokio::sync::Mutex<Credentials>,
    address: Mutex<String>,
    doubted: std::sync::atomic::AtomicBool,
    limit: Option<RateLimit>,
    answered: Answered,
    outages: Mutex<HashMap<&'static str, (String, Instant)>>,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("address", &self.address()).finish_non_exhaustive()
    }
}

/// Reads the configuration and the credentials, without connecting: an API server that cannot be reached is waited for
/// later. Must run on a tokio runtime.
///
/// # Errors
/// The kubeconfig, a file it names, or the master URL is missing or wrong.
pub async fn connect(access: Access, answered: Answered) -> Result<Connection, Error> {
    let limit = RateLimit::new(access.qps, access.burst);
    let given = access.clone();
    let credentials = match tokio::task::spawn_blocking(move || Credentials::load(&given)).await {
        Ok(loaded) => loaded?,
        Err(panic) => return Err(Error::InCluster { problem: panic.to_string() }),
    };
    Ok(Connection::new(Some(access), credentials, limit, answered))
}

impl Connection {
    /// A connection over a client that was made elsewhere; `address` names it in messages. No rate limit.
    pub fn over(client: Client, address: &str) -> Self {
        Self::new(None, Credentials::of(client, address), None, Box::new(|_, _, _| ()))
    }

    fn new(
        access: Option<Access>,
        credentials: Credentials,
        limit: Option<RateLimit>,
        answered: Answered,
    ) -> Self {
        Self {
            answered,
            access,
            address: Mutex::new(credentials.address.clone()),
            credentials: tokio::sync::Mutex::new(credentials),
            doubted: std::sync::atomic::AtomicBool::new(false),
            limit,
            outages: Mutex::default(),
        }
    }

    /// The API server's URL.
    pub fn address(&self) -> String {
        self.address.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Asks for JSON.
    pub(super) async fn get(&self, uri: &str) -> Result<Response<Body>, Failure> {
        let request = Request::get(uri).header(header::ACCEPT, "application/json").body(Body::empty());
        self.send(request).await
    }

    /// Posts JSON.
    pub(super) async fn post(&self, uri: &str, json: Vec<u8>) -> Result<Response<Body>, Failure> {
        let request = Request::post(uri)
            .header(header::ACCEPT, "application/json")
            .header(header::CONTENT_TYPE, "application/json")
            .body(Body::from(json));
        self.send(request).await
    }

    async fn send(&self, request: http::Result<Request<Body>>) -> Result<Response<Body>, Failure> {
        let request = request.map_err(|error| Failure::Unreachable(text_of(&error)))?;
        if let Some(limit) = &self.limit {
            limit.turn().await;
        }
        let client = self.client().await;
        let method = request.method().clone();
        let response = match timeout(ANSWER, client.send(request)).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => {
                if blames_credentials(&error) {
                    self.doubt();
                }
                return Err(Failure::Unreachable(kube_text(&error)));
            }
            Err(_) => return Err(Failure::Unreachable(format!("no answer within {} s", ANSWER.as_secs()))),
        };
        let address = self.address();
        let host = address.split_once("://").map_or(&*address, |(_, rest)| rest).trim_end_matches('/');
        (self.answered)(response.status().as_u16(), method.as_str(), host);
        if response.status().is_success() {
            return match media_type(&response).filter(|media_type| !media_type.contains("json")) {
                Some(other) => Err(Failure::Strange(format!("something of type {other:?}"))),
                None => Ok(response),
            };
        }
        if response.status() == http::StatusCode::UNAUTHORIZED {
            self.doubt();
        }
        Err(Failure::Refused(refusal(response).await))
    }

    /// The client, made anew when a file it was made of has changed or its credentials are in doubt.
    async fn client(&self) -> Client {
        let mut credentials = self.credentials.lock().await;
        let doubted = self.doubted.swap(false, std::sync::atomic::Ordering::Relaxed);
        if let Some(access) = self.access.clone()
            && (doubted || credentials.outdated())
        {
            let loaded = tokio::task::spawn_blocking(move || Credentials::load(&access)).await;
            match loaded {
                Ok(Ok(new)) => {
                    tracing::debug!(address = new.address, "Credentials for the API server were read again");
                    self.address.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&new.address);
                    *credentials = new;
                    self.well(CREDENTIAL_FILES);
                }
                // a file may be half written: what was read before goes on
                Ok(Err(error)) => self.outage(CREDENTIAL_FILES, &error.to_string()),
                Err(error) => self.outage(CREDENTIAL_FILES, &error.to_string()),
            }
        }
        credentials.client.clone()
    }

    fn doubt(&self) {
        self.doubted.store(true, std::sync::atomic::Ordering::Relaxed);
    }

    /// Warns that something does not work: once, and again when it is still so after some minutes or when the reason
    /// is another. Whatever uses `about` has one such text at a time.
    pub(super) fn outage(&self, about: &'static str, problem: &str) {
        let mut outages = self.outages.lock().unwrap_or_else(PoisonError::into_inner);
        let told = outages.get(about);
        if told.is_some_and(|(text, at)| text == problem && at.elapsed() < REMINDER) {
            tracing::debug!(about, "{problem}");
            return;
        }
        outages.insert(about, (problem.to_owned(), Instant::now()));
        tracing::warn!(about, "{problem}");
    }

    /// Tells that what was told as an outage is over.
    pub(super) fn well(&self, about: &'static str) {
        let over = self.outages.lock().unwrap_or_else(PoisonError::into_inner).remove(about);
        if over.is_some() {
            tracing::info!(about, address = self.address(), "The API server answers again: {about}");
        }
    }
}

fn media_type(response: &Response<Body>) -> Option<&str> {
    response.headers().get(header::CONTENT_TYPE)?.to_str().ok()
}

/// The TLS handshake failed, so that a certificate may be outdated.
fn blames_credentials(error: &(dyn StdError + 'static)) -> bool {
    let text = text_of(error);
    ["certificate", "alert", "Certificate"].iter().any(|word| text.contains(word))
}

/// Reads what the API server says about its refusal.
async fn refusal(response: Response<Body>) -> Refusal {
    let code = response.status().as_u16();
    let wait =
        response.headers().get(header::RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
    let mut text = Vec::new();
    let mut body = response.into_body();
    let read = async {
        while let Some(Ok(frame)) = body.frame().await {
            if let Ok(data) = frame.into_data() {
                let room = ERROR_BODY_BYTES - text.len();
                text.extend_from_slice(&data[..data.len().min(room)]);
            }
            if text.len() == ERROR_BODY_BYTES {
                break;
            }
        }
    };
    // what has come until then will do
    let _ = timeout(ERROR_BODY, read).await;
    let status = serde_json::from_slice(&text).unwrap_or_else(|_| Status {
        message: String::from_utf8_lossy(&text).chars().filter(|c| !c.is_control()).take(200).collect(),
        ..Status::default()
    });
    let wait = wait.map(polite);
    let refusal = Refusal::of(status);
    Refusal { code, wait: wait.or(refusal.wait), ..refusal }
}
