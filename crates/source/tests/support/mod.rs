//! An API server that follows a script, and a source that tells what it hears.
#![allow(dead_code, clippy::unwrap_used)] // each test program uses a part

use std::collections::{HashMap, VecDeque};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use kube_proxy_source::api::{Access, connect, run};
use kube_proxy_source::{Counters, Watching};
use model::{Event, Kind};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};

/// What must happen happens within this time, on the slowest machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// How a request is answered.
#[derive(Clone, Debug)]
pub(crate) enum Reply {
    /// A status, headers and a whole body.
    Whole(u16, Vec<(&'static str, String)>, String),
    /// A watch: these pieces of lines, then the end that is given.
    Stream(Vec<String>, End),
    /// The connection is closed without an answer.
    HangUp,
}

/// How a watch ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Properly.
    Clean,
    /// In the middle.
    Torn,
    /// It stays open and silent.
    Open,
}

/// The script of each collection, by plural. A collection without one (any more) has an empty watch that stays open.
#[derive(Clone, Default)]
pub(crate) struct Server {
    replies: Arc<Mutex<HashMap<&'static str, VecDeque<Reply>>>>,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Server {
    pub(crate) fn new(script: impl IntoIterator<Item = (&'static str, Vec<Reply>)>) -> Self {
        let server = Self::default();
        for (plural, replies) in script {
            server.replies.lock().unwrap().insert(plural, replies.into());
        }
        server
    }

    /// Every request line so far that is about `plural`.
    pub(crate) fn asked(&self, plural: &str) -> Vec<String> {
        let asked = self.asked.lock().unwrap();
        asked.iter().filter(|line| line.contains(&format!("/{plural}?"))).cloned().collect()
    }

    /// Answers until the test program ends.
    pub(crate) fn serve_on(&self, listener: &TcpListener) {
        for stream in listener.incoming().map_while(Result::ok) {
            let server = self.clone();
            thread::spawn(move || server.converse(stream));
        }
    }

    /// One connection, request after request, until one of the two has enough.
    fn converse(&self, stream: TcpStream) -> Option<()> {
        let mut reader = BufReader::new(stream.try_clone().ok()?);
        let mut writer = stream;
        loop {
            let mut first = String::new();
            reader.read_line(&mut first).ok().filter(|length| *length > 0)?;
            let mut token = String::new();
            loop {
                let mut header = String::new();
                reader.read_line(&mut header).ok().filter(|length| *length > 0)?;
                if header.to_lowercase().starts_with("authorization:") {
                    header.trim().clone_into(&mut token);
                }
                if header.trim().is_empty() {
                    break;
                }
            }
            self.asked.lock().unwrap().push(format!("{} {token}", first.trim()));
            let plural = first.split(['?', ' ']).nth(1)?.rsplit('/').next()?.to_owned();
            self.answer(&plural, &mut writer)?;
        }
    }

    fn answer(&self, plural: &str, writer: &mut TcpStream) -> Option<()> {
        let next = self.replies.lock().unwrap().get_mut(plural).and_then(VecDeque::pop_front);
        match next.unwrap_or_else(|| empty(plural)) {
            Reply::HangUp => None,
            Reply::Whole(status, headers, body) => {
                let headers: Vec<_> =
                    headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
                let headers = headers.concat();
                let head = format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\n{headers}\r\n", body.len());
                writer.write_all(head.as_bytes()).ok()?;
                writer.write_all(body.as_bytes()).ok()
            }
            Reply::Stream(pieces, end) => {
                writer.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").ok()?;
                for piece in pieces {
                    writer.write_all(format!("{:x}\r\n{piece}\r\n", piece.len()).as_bytes()).ok()?;
                    writer.flush().ok()?;
                }
                match end {
                    End::Clean => writer.write_all(b"0\r\n\r\n").ok(),
                    End::Torn => None,
                    End::Open => {
                        // until the client leaves
                        let _ = std::io::Read::read(writer, &mut [0]);
                        None
                    }
                }
            }
        }
    }
}

/// A collection without objects that stays as it is.
fn empty(plural: &str) -> Reply {
    if plural == "services" || plural == "endpointslices" || plural == "nodes" || plural == "servicecidrs" {
        Reply::Stream(vec![initial_end("1")], End::Open)
    } else {
        Reply::Whole(404, vec![], "{}".to_owned())
    }
}

pub(crate) fn line(kind: &str, object: &str) -> String {
    format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n")
}

pub(crate) fn initial_end(version: &str) -> String {
    line(
        "BOOKMARK",
        &format!(
            r#"{{"metadata":{{"resourceVersion":"{version}","annotations":{{"k8s.io/initial-events-end":"true"}}}}}}"#
        ),
    )
}

pub(crate) fn bookmark(version: &str) -> String {
    line("BOOKMARK", &format!(r#"{{"metadata":{{"resourceVersion":"{version}"}}}}"#))
}

pub(crate) fn service(name: &str, version: &str) -> String {
    format!(
        r#"{{"metadata":{{"name":"{name}","namespace":"web","resourceVersion":"{version}"}},"spec":{{"clusterIP":"203.0.113.1","clusterIPs":["203.0.113.1"],"ports":[{{"port":80,"protocol":"TCP"}}]}}}}"#
    )
}

pub(crate) fn status(code: u16, reason: &str) -> String {
    format!(r#"{{"kind":"Status","status":"Failure","code":{code},"reason":"{reason}","message":"as told"}}"#)
}

/// A source that follows a server, in threads of its own that end with the test program.
pub(crate) struct Source {
    pub(crate) events: Receiver<Event>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) folder: tempfile::TempDir,
    port: u16,
}

impl Source {
    pub(crate) fn following(server: &Server) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let serving = server.clone();
        thread::spawn(move || serving.serve_on(&listener));
        Self::at(port)
    }

    /// Follows whoever listens at a port of loopback, now or later.
    pub(crate) fn at(port: u16) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("token"), "first").unwrap();
        let token = folder.path().join("token");
        let kubeconfig = folder.path().join("kubeconfig");
        let text = format!(
            "apiVersion: v1\nkind: Config\nclusters: [{{name: c, cluster: {{server: 'http://127.0.0.1:{port}'}}}}]\n\
             users: [{{name: u, user: {{tokenFile: {}}}}}]\n\
             contexts: [{{name: x, context: {{cluster: c, user: u}}}}]\ncurrent-context: x\n",
            token.display()
        );
        std::fs::write(&kubeconfig, text).unwrap();
        let access = Access { kubeconfig: Some(kubeconfig), master: None, qps: -1.0, burst: 0 };
        let (sender, events) = channel();
        let counters = Arc::new(Counters::default());
        let watching = watching(sender, Arc::clone(&counters));
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let connection = connect(access, Box::new(|_, _, _| ())).await.unwrap();
                run(&connection, &watching).await
            })
        });
        Self { events, counters, folder, port }
    }

    /// Where the server is.
    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}/", self.port)
    }

    /// The next event about services, in few words.
    pub(crate) fn next(&self) -> String {
        loop {
            match self.events.recv_timeout(PATIENCE) {
                Ok(event) => {
                    if let Some(words) = in_words(&event) {
                        return words;
                    }
                }
                Err(RecvTimeoutError::Timeout) => panic!("nothing was told within {PATIENCE:?}"),
                Err(RecvTimeoutError::Disconnected) => panic!("the source has ended"),
            }
        }
    }

    /// The next events about services are these.
    pub(crate) fn tells(&self, expected: &[&str]) {
        let told: Vec<_> = expected.iter().map(|_| self.next()).collect();
        assert_eq!(told, expected);
    }
}

pub(crate) fn watching(sender: Sender<Event>, counters: Arc<Counters>) -> Watching {
    let tell = move |event| {
        // a test that has ended hears no more
        let _ = sender.send(event);
    };
    Watching { node_name: "n1".to_owned(), tell: Box::new(tell), counters }
}

pub(crate) fn in_words(event: &Event) -> Option<String> {
    match event {
        Event::Begin(Kind::Service) => Some("begin".to_owned()),
        Event::End(Kind::Service) => Some("end".to_owned()),
        Event::Service(service) => Some(format!("has {}", service.key.name())),
        Event::ServiceDeleted(key) => Some(format!("no {}", key.name())),
        _ => None,
    }
}

/// Keeps what is logged from now on. One for all tests of a program: each looks for what only it can have caused.
#[derive(Clone, Copy)]
pub(crate) struct Log(&'static Mutex<Vec<String>>);

impl Log {
    pub(crate) fn start() -> Self {
        static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());
        // only the first one sets it
        let _ = tracing::subscriber::set_global_default(tracing_subscriber::registry().with(Self(&LINES)));
        Self(&LINES)
    }

    /// The warnings so far with all these parts.
    pub(crate) fn warnings(self, parts: &[&str]) -> Vec<String> {
        let lines = self.0.lock().unwrap();
        lines.iter().filter(|line| parts.iter().all(|part| line.contains(part))).cloned().collect()
    }
}

impl<S: tracing::Subscriber> Layer<S> for Log {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        struct Message(String);
        impl tracing::field::Visit for Message {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                if field.name() == "message" {
                    self.0 = format!("{value:?}");
                }
            }
        }
        if *event.metadata().level() <= tracing::Level::WARN {
            let mut message = Message(String::new());
            event.record(&mut message);
            self.0.lock().unwrap().push(message.0);
        }
    }
}
