//! The format of the files in `tests/scenarios`.

use serde::Deserialize;
use serde_json::Value;

/// One behaviour.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// The behaviour, as a sentence.
    pub name: String,
    /// The proxy modes in which it holds; none given: all.
    #[serde(default)]
    pub modes: Vec<String>,
    /// Where Kubernetes' own kube-proxy behaves otherwise, and why we do not follow.
    pub differs: Option<String>,
    /// Why a real API server cannot have these objects. The scenario is not run with one then.
    pub not_with_api_server: Option<String>,
    /// Flags added to the usual ones, or replacing them.
    #[serde(default)]
    pub flags: Vec<String>,
    /// Fields of a configuration file; given, the proxy is started with one that has them and the usual ones.
    pub config: Option<serde_json::Map<String, Value>>,
    /// The pods that take part; the outside client `ext` and the node `n1` always do. One that is named here although it is
    /// no pod has servers like a pod.
    pub lab: Vec<String>,
    /// The ports on which every pod has a server; none given: 8080.
    #[serde(default = "usual_ports")]
    pub ports: Vec<u16>,
    /// Objects that are there when the proxy starts, as Kubernetes has them. `clusterIP`, `clusterIPs` and `ipFamilies`
    /// of a Service fill each other in; node `n1` is there unless given.
    #[serde(default)]
    pub objects: Vec<Value>,
    /// `EndpointSlices` that are there when the proxy starts, in short form.
    #[serde(default)]
    pub slices: Vec<Slice>,
    /// What happens.
    pub steps: Vec<Step>,
}

fn usual_ports() -> Vec<u16> {
    vec![8080]
}

/// The endpoints of a service, in short form: one `EndpointSlice` for each of its families. A pod is an endpoint with its
/// address and node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case", default)]
pub struct Slice {
    /// The name of the Service.
    pub service: String,
    /// The port of an unnamed service port.
    pub port: Option<u16>,
    /// The protocol of `port`; TCP unless given.
    pub protocol: Option<String>,
    /// Named ports, as in an `EndpointSlice`.
    pub ports: Vec<Value>,
    /// Pods that are ready.
    pub ready: Vec<String>,
    /// Pods that terminate and still serve.
    pub terminating_serving: Vec<String>,
    /// Pods that terminate and serve no more.
    pub terminating: Vec<String>,
    /// Pods that are not ready.
    pub not_ready: Vec<String>,
}

/// Changes, then what must be so. All fields may be left out; things happen in the order of the fields.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Step {
    /// What this step is about, for the reader.
    pub say: String,
    /// Connections made all through the step; none may fail.
    pub load: Vec<Load>,
    /// Connections that stay open until the end of the scenario.
    pub open: Vec<Open>,
    /// Objects to delete, as `Kind/name`.
    pub delete: Vec<String>,
    /// Objects to add or replace.
    pub apply: Vec<Value>,
    /// Endpoints to add or replace.
    pub slices: Vec<Slice>,
    /// Shell commands for node `n1`; each must exit with 0.
    pub run: Vec<String>,
    /// Stop the proxy.
    pub stop: Option<Stop>,
    /// Start the proxy again.
    pub start: bool,
    /// Stop and start the proxy.
    pub restart: Option<Stop>,
    /// What must happen to packets.
    pub flows: Vec<Flow>,
    /// Names of open connections that must still carry data.
    pub alive: Vec<String>,
    /// Names of open connections that must be reset when the client next writes.
    pub reset: Vec<String>,
    /// What the proxy must have logged until now.
    pub logged: Vec<Logged>,
    /// What HTTP servers must answer.
    pub http: Vec<Http>,
}

/// How a process is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stop {
    /// SIGTERM.
    Term,
    /// SIGKILL.
    Kill,
}

/// TCP connections at a steady rate.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Load {
    /// The client.
    pub from: String,
    /// See [`Flow::to`].
    pub to: OneOrMany,
    /// Connections a second.
    #[serde(default = "usual_rate")]
    pub per_second: u32,
}

fn usual_rate() -> u32 {
    100
}

/// A TCP connection to keep.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Open {
    /// How later steps call it.
    pub name: String,
    /// The client.
    pub from: String,
    /// See [`Flow::to`].
    pub to: OneOrMany,
}

/// What must happen to packets from each client to each target.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Flow {
    /// The client or clients.
    pub from: OneOrMany,
    /// `ADDRESS:PORT`, or `MEMBER:PORT` for the member's address of each family.
    pub to: OneOrMany,
    /// TCP unless given.
    #[serde(default)]
    pub protocol: Protocol,
    /// What must happen.
    pub expect: Expect,
    /// Which source the server must see.
    pub source: Option<Source>,
    /// Send from this address of the client.
    pub from_address: Option<std::net::IpAddr>,
    /// Send from this port each time, so that connection tracking takes all tries for one flow.
    pub from_port: Option<u16>,
    /// How often to try; none given: until every server has answered that should, at least ten times.
    pub times: Option<u32>,
}

/// A text or a list of texts.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum OneOrMany {
    /// One.
    One(String),
    /// Several.
    Many(Vec<String>),
}

impl OneOrMany {
    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        let all = match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Many(many) => many,
        };
        all.iter().map(String::as_str)
    }
}

/// A transport protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    /// TCP.
    #[default]
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

/// What must happen to a flow.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Expect {
    /// Each of these servers answers, and no other.
    AnsweredBy(Vec<String>),
    /// One of these servers answers every time, no matter which.
    AlwaysOneOf(Vec<String>),
    /// Refused at once: in TCP by an answer to the first packet.
    Refused,
    /// No answer at all.
    Timeout,
    /// No way there.
    Unreachable,
    /// Neither answered nor refused: no answer, or no way there.
    Lost,
}

/// Which source address a server must see.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(from = "String")]
pub enum Source {
    /// The client's own.
    Kept,
    /// That of node `n1`, on the side of the server.
    Masqueraded,
    /// This one.
    Address(String),
}

impl From<String> for Source {
    fn from(text: String) -> Self {
        match text.as_str() {
            "kept" => Self::Kept,
            "masqueraded" => Self::Masqueraded,
            _ => Self::Address(text),
        }
    }
}

/// What the log must contain.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Logged {
    /// Each of these must be in a line for the line to count.
    pub with: OneOrMany,
    /// How many lines.
    pub times: usize,
}

/// A request, and what must be answered.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Http {
    /// The client.
    pub from: String,
    /// See [`Flow::to`].
    pub to: OneOrMany,
    /// What is asked for.
    #[serde(default = "root")]
    pub path: String,
    /// The status code; none given: nobody listens there.
    pub status: Option<u16>,
    /// Texts that must be in the answer, its header included.
    #[serde(default)]
    pub with: Vec<String>,
}

fn root() -> String {
    "/".to_owned()
}
