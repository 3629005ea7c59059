//! The API driver: a process of its own that serves the four collections the proxy watches, fast enough not to be what
//! is measured.
//!
//! In: commands, one a line on standard input. Out: an answer a line on standard output.
//!
//! | command | what it does | answer |
//! |---|---|---|
//! | `render` | prepares the initial events of a watch, which takes time with many objects | `ready` |
//! | `endpoint K` | replaces an endpoint of service K | `sent NANOSECONDS WATCHES` |
//! | `annotate K` | changes an annotation of the slice of service K | the same |
//! | `service K` | adds service K, then its slice; the time is that of the slice | the same |
//! | `delete K` | deletes the slice and service K | the same |
//!
//! The time is CLOCK_MONOTONIC just before the event is written to the first of its WATCHES.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};

use super::monotonic;
use super::objects::{Cluster, Kind, NODE, State};

/// Objects that were there before any event have versions below this.
const FIRST_VERSION: u64 = 1_000_000;
/// How long a watch lasts that names no time.
const WATCH_LIMIT: Duration = Duration::from_secs(1800);

/// Runs the driver until its input ends: `SERVICES ENDPOINTS KUBECONFIG`.
pub(super) fn run(arguments: &[&str]) -> Result<()> {
    let [services, endpoints, kubeconfig] = arguments else { bail!("driver SERVICES ENDPOINTS KUBECONFIG") };
    let cluster = Cluster { services: services.parse()?, endpoints: endpoints.parse()? };
    let api = Arc::new(Api::new(cluster));
    api.render();
    let listener = TcpListener::bind("127.0.0.1:0").context("listening")?;
    write_kubeconfig(Path::new(kubeconfig), listener.local_addr()?.port())?;
    let served = Arc::clone(&api);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let api = Arc::clone(&served);
            // a connection that breaks is the client's affair
            thread::spawn(move || drop(serve(&api, stream)));
        }
    });
    say("ready")?;
    for line in io::stdin().lines() {
        let line = line?;
        let answer = match line.split_whitespace().collect::<Vec<_>>()[..] {
            ["render"] => {
                api.render();
                "ready".to_owned()
            }
            [command, number] => api.command(command, number.parse().context(line.clone())?)?,
            _ => bail!("unknown command {line}"),
        };
        say(&answer)?;
    }
    Ok(())
}

fn say(line: &str) -> Result<()> {
    let mut output = io::stdout().lock();
    writeln!(output, "{line}")?;
    Ok(output.flush()?)
}

fn write_kubeconfig(path: &Path, port: u16) -> Result<()> {
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: bench\nclusters:\n- name: bench\n  cluster: {{server: \
         \"http://127.0.0.1:{port}\"}}\nusers:\n- name: bench\n  user: {{}}\ncontexts:\n- name: bench\n  context: \
         {{cluster: bench, user: bench}}\n"
    );
    fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}

/// One collection.
#[derive(Default)]
struct Collection {
    objects: BTreeMap<usize, State>,
    /// Events that add all objects, in chunks, while they are up to date.
    initial: Option<Vec<u8>>,
    /// All events since the start, in chunks.
    history: Vec<(u64, Vec<u8>)>,
    watches: Vec<(u64, TcpStream)>,
}

struct Api {
    cluster: Cluster,
    version: AtomicU64,
    collections: [Mutex<Collection>; 4],
}

impl Api {
    fn new(cluster: Cluster) -> Self {
        let api = Self {
            cluster,
            version: AtomicU64::new(FIRST_VERSION),
            collections: [(); 4].map(|()| Mutex::default()),
        };
        for kind in Kind::ALL {
            let count = if matches!(kind, Kind::Service | Kind::Slice) { cluster.services } else { 1 };
            let state = |number: usize| State { version: 1 + number as u64, ..State::default() };
            api.lock(kind).objects = (0..count).map(|number| (number, state(number))).collect();
        }
        api
    }

    fn lock(&self, kind: Kind) -> MutexGuard<'_, Collection> {
        self.collections[kind as usize].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next_version(&self) -> u64 {
        self.version.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn render(&self) {
        for kind in Kind::ALL {
            self.initial(kind, &mut self.lock(kind));
        }
    }

    /// Events that add all objects there are.
    fn initial<'a>(&self, kind: Kind, collection: &'a mut Collection) -> &'a [u8] {
        let objects = &collection.objects;
        collection.initial.get_or_insert_with(|| {
            let mut bytes = Vec::new();
            let mut line = String::new();
            for (number, state) in objects {
                self.write_event(&mut line, "ADDED", kind, *number, *state);
                write_chunk(&mut bytes, &line);
            }
            bytes
        })
    }

    fn write_event(&self, line: &mut String, what: &str, kind: Kind, number: usize, state: State) {
        line.clear();
        line.push_str("{\"type\":\"");
        line.push_str(what);
        line.push_str("\",\"object\":");
        self.cluster.write(line, kind, number, state);
        line.push_str("}\n");
    }

    fn bookmark(&self, kind: Kind, end_of_initial: bool) -> Vec<u8> {
        let (api_version, name) = kind.names();
        let version = self.version.load(Ordering::Relaxed);
        let mark =
            if end_of_initial { ",\"annotations\":{\"k8s.io/initial-events-end\":\"true\"}" } else { "" };
        let line = format!(
            "{{\"type\":\"BOOKMARK\",\"object\":{{\"kind\":\"{name}\",\"apiVersion\":\"{api_version}\",\"metadata\":\
             {{\"resourceVersion\":\"{version}\",\"creationTimestamp\":null{mark}}}}}}}\n"
        );
        let mut bytes = Vec::new();
        write_chunk(&mut bytes, &line);
        bytes
    }

    fn command(&self, command: &str, number: usize) -> Result<String> {
        let (at, watches) = match command {
            "endpoint" => self.change(Kind::Slice, number, |state, version| {
                // the version tells replacements from each other
                state.replacement = usize::try_from(version - FIRST_VERSION).unwrap_or_default();
            })?,
            "annotate" => self.change(Kind::Slice, number, |state, _| state.annotation += 1)?,
            "service" => {
                self.add(Kind::Service, number);
                self.add(Kind::Slice, number)
            }
            "delete" => {
                self.delete(Kind::Slice, number)?;
                self.delete(Kind::Service, number)?
            }
            _ => bail!("unknown command {command}"),
        };
        Ok(format!("sent {at} {watches}"))
    }

    fn change(&self, kind: Kind, number: usize, edit: impl FnOnce(&mut State, u64)) -> Result<(u64, usize)> {
        let version = self.next_version();
        let mut collection = self.lock(kind);
        let state =
            collection.objects.get_mut(&number).ok_or_else(|| anyhow!("there is no {kind:?} {number}"))?;
        edit(state, version);
        state.version = version;
        let state = *state;
        Ok(self.send(&mut collection, "MODIFIED", kind, number, state))
    }

    fn add(&self, kind: Kind, number: usize) -> (u64, usize) {
        let state = State { version: self.next_version(), ..State::default() };
        let mut collection = self.lock(kind);
        collection.objects.insert(number, state);
        self.send(&mut collection, "ADDED", kind, number, state)
    }

    fn delete(&self, kind: Kind, number: usize) -> Result<(u64, usize)> {
        let mut collection = self.lock(kind);
        let state =
            collection.objects.remove(&number).ok_or_else(|| anyhow!("there is no {kind:?} {number}"))?;
        let state = State { version: self.next_version(), ..state };
        Ok(self.send(&mut collection, "DELETED", kind, number, state))
    }

    /// Tells all watches. When, and how many there were.
    fn send(
        &self,
        collection: &mut Collection,
        what: &str,
        kind: Kind,
        number: usize,
        state: State,
    ) -> (u64, usize) {
        let mut line = String::new();
        let mut chunk = Vec::new();
        self.write_event(&mut line, what, kind, number, state);
        write_chunk(&mut chunk, &line);
        collection.initial = None;
        let at = monotonic();
        collection.watches.retain_mut(|(_, stream)| stream.write_all(&chunk).is_ok());
        collection.history.push((state.version, chunk));
        (at, collection.watches.len())
    }
}

fn write_chunk(bytes: &mut Vec<u8>, line: &str) {
    bytes.extend(format!("{:x}\r\n", line.len()).as_bytes());
    bytes.extend(line.as_bytes());
    bytes.extend(b"\r\n");
}

struct Request {
    method: String,
    path: String,
    query: BTreeMap<String, String>,
    body: Vec<u8>,
}

/// Answers requests until the client leaves.
fn serve(api: &Api, mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream.try_clone()?);
    while let Some(request) = read_request(&mut reader)? {
        let kind = Kind::ALL.into_iter().find(|kind| request.path == kind.path());
        let truth = |name: &str| request.query.get(name).is_some_and(|value| value == "true" || value == "1");
        match (request.method.as_str(), kind) {
            ("GET", Some(kind)) if truth("watch") => watch(api, kind, &request, &mut stream, &mut reader)?,
            ("GET", Some(kind)) => answer(&mut stream, "200 OK", &list(api, kind))?,
            ("GET", None) if request.path == format!("/api/v1/nodes/{NODE}") => {
                let mut node = String::new();
                api.cluster.write(&mut node, Kind::Node, 0, State { version: 1, ..State::default() });
                answer(&mut stream, "200 OK", node.as_bytes())?;
            }
            ("POST", None) if request.path.ends_with("/events") => {
                answer(&mut stream, "201 Created", &request.body)?;
            }
            _ => answer(
                &mut stream,
                "404 Not Found",
                br#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","reason":"NotFound","code":404}"#,
            )?,
        }
    }
    Ok(())
}

fn read_request(reader: &mut BufReader<TcpStream>) -> io::Result<Option<Request>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split_whitespace();
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let mut request = Request {
        method: method.to_owned(),
        path: path.to_owned(),
        query: pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
        body: Vec::new(),
    };
    let mut length = 0;
    loop {
        line.clear();
        if reader.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        match line.trim_end().split_once(':') {
            Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                length = value.trim().parse().unwrap_or(0);
            }
            Some(_) => {}
            None => break,
        }
    }
    request.body.resize(length, 0);
    reader.read_exact(&mut request.body)?;
    Ok(Some(request))
}

fn answer(stream: &mut TcpStream, status: &str, body: &[u8]) -> io::Result<()> {
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(&[head.as_bytes(), body].concat())
}

fn list(api: &Api, kind: Kind) -> Vec<u8> {
    let collection = api.lock(kind);
    let (api_version, name) = kind.names();
    let version = api.version.load(Ordering::Relaxed);
    let mut text = format!(
        "{{\"kind\":\"{name}List\",\"apiVersion\":\"{api_version}\",\"metadata\":{{\"resourceVersion\":\"{version}\"}},\
         \"items\":["
    );
    for (at, (number, state)) in collection.objects.iter().enumerate() {
        text.push_str(if at == 0 { "" } else { "," });
        api.cluster.write(&mut text, kind, *number, *state);
    }
    text.push_str("]}\n");
    text.into_bytes()
}

/// One watch, until its time is over or the client leaves.
fn watch(
    api: &Api,
    kind: Kind,
    request: &Request,
    stream: &mut TcpStream,
    reader: &mut BufReader<TcpStream>,
) -> io::Result<()> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let seconds = request.query.get("timeoutSeconds").and_then(|text| text.parse().ok());
    let end = Instant::now() + seconds.map_or(WATCH_LIMIT, Duration::from_secs);
    let from = request.query.get("resourceVersion").and_then(|text| text.parse().ok()).unwrap_or(0);
    let with_end = request.query.get("sendInitialEvents").is_some_and(|value| value == "true");
    stream.write_all(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n",
    )?;
    {
        let mut collection = api.lock(kind);
        if from == 0 {
            stream.write_all(api.initial(kind, &mut collection))?;
            if with_end {
                stream.write_all(&api.bookmark(kind, true))?;
            }
        }
        for (_, chunk) in collection.history.iter().filter(|(version, _)| from > 0 && *version > from) {
            stream.write_all(chunk)?;
        }
        collection.watches.push((number, stream.try_clone()?));
    }
    let client = loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break Ok(true);
        }
        stream.set_read_timeout(Some(left))?;
        match reader.fill_buf() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            other => break other.map(|bytes| !bytes.is_empty()),
        }
    };
    stream.set_read_timeout(None)?;
    api.lock(kind).watches.retain(|(other, _)| *other != number);
    if client? {
        stream.write_all(&api.bookmark(kind, false))?;
        stream.write_all(b"0\r\n\r\n")?;
    }
    Ok(())
}
