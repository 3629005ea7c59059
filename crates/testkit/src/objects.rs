//! How Kubernetes objects reach the proxy under test: as files in a folder, or through an API server.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use netlink::namespace::Namespace;
use serde_json::Value;

use crate::api_server::ApiServer;
use crate::http;

/// Where the proxy under test gets its objects from.
pub trait Objects {
    /// The flags that make the proxy look there.
    fn flags(&self) -> Vec<String>;
    /// The `clientConnection` of a configuration file that makes the proxy look there, where flags would be ignored.
    fn client_connection(&self) -> Value {
        Value::Null
    }
    /// Adds objects, or replaces those that have the same kind, namespace and name.
    fn apply(&mut self, objects: &[Value]) -> Result<()>;
    /// Deletes an object.
    fn delete(&mut self, object: &Identity) -> Result<()>;
}

/// The ways in which objects can reach the proxy.
#[derive(Clone, Debug)]
pub enum Source {
    /// As files in a folder.
    Manifests,
    /// Through a stand-in for an API server, see [`ApiProgram`].
    Program(PathBuf),
    /// Through a real API server. Only one node at a time may use it.
    Server(Arc<ApiServer>),
}

impl Source {
    /// Prepares it for a proxy in the namespace `node`; what files it needs are made in `folder`.
    pub fn open<'a>(&'a self, node: &'a Namespace, folder: &Path) -> Result<Box<dyn Objects + 'a>> {
        Ok(match self {
            Self::Manifests => Box::new(Manifests::new(folder)?),
            Self::Program(program) => Box::new(ApiProgram::start(node, program, folder)?),
            Self::Server(server) => Box::new(server.connect(node)?),
        })
    }
}

/// What names an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity {
    /// `Service`, `EndpointSlice`, `Node` or `ServiceCIDR`.
    pub kind: String,
    /// Empty for kinds that have none.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
}

impl Identity {
    /// The identity of `object`.
    pub fn of(object: &Value) -> Result<Self> {
        let text = |at: &str| object.pointer(at).and_then(Value::as_str).map(str::to_owned);
        Ok(Self {
            kind: text("/kind").ok_or_else(|| anyhow!("an object without kind: {object}"))?,
            namespace: text("/metadata/namespace").unwrap_or_default(),
            name: text("/metadata/name").ok_or_else(|| anyhow!("an object without name: {object}"))?,
        })
    }

    fn api_version(&self) -> &'static str {
        match self.kind.as_str() {
            "EndpointSlice" => "discovery.k8s.io/v1",
            "ServiceCIDR" => "networking.k8s.io/v1",
            _ => "v1",
        }
    }
}

/// One JSON file per object in a folder of manifests. A file appears and changes as a whole.
#[derive(Debug)]
pub struct Manifests {
    folder: PathBuf,
    drafts: PathBuf,
}

impl Manifests {
    /// Makes the folder `manifests` in `parent`, and one beside it for files that are being written.
    pub fn new(parent: &Path) -> Result<Self> {
        let manifests = Self { folder: parent.join("manifests"), drafts: parent.join("drafts") };
        fs::create_dir_all(&manifests.folder)?;
        fs::create_dir_all(&manifests.drafts)?;
        Ok(manifests)
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn file_name(object: &Identity) -> String {
        format!("{}.{}.{}.json", object.kind, object.namespace, object.name).to_lowercase()
    }
}

impl Objects for Manifests {
    fn flags(&self) -> Vec<String> {
        vec![format!("--manifests={}", self.folder.display())]
    }

    fn apply(&mut self, objects: &[Value]) -> Result<()> {
        for object in objects {
            let name = Self::file_name(&Identity::of(object)?);
            let draft = self.drafts.join(&name);
            fs::write(&draft, serde_json::to_vec_pretty(object)?)?;
            fs::rename(&draft, self.folder.join(&name)).with_context(|| format!("publishing {name}"))?;
        }
        Ok(())
    }

    fn delete(&mut self, object: &Identity) -> Result<()> {
        let file = self.folder.join(Self::file_name(object));
        fs::remove_file(&file).with_context(|| format!("deleting {}", file.display()))
    }
}

/// A stand-in for the API server that runs in the node's namespace: a program that takes `--port-file` and
/// `--kubeconfig`, and objects by `POST /control/apply` and `/control/delete`. Ends when dropped.
#[derive(Debug)]
pub struct ApiProgram<'a> {
    namespace: &'a Namespace,
    process: Child,
    address: SocketAddr,
    kubeconfig: PathBuf,
}

impl<'a> ApiProgram<'a> {
    /// Starts `program` with its files in `folder`, and waits until it says which port it listens on.
    pub fn start(namespace: &'a Namespace, program: &Path, folder: &Path) -> Result<Self> {
        let (port_file, kubeconfig) = (folder.join("port"), folder.join("kubeconfig"));
        let process = namespace
            .command(program)?
            .arg("--port-file")
            .arg(&port_file)
            .arg("--kubeconfig")
            .arg(&kubeconfig)
            .stdin(Stdio::null())
            .spawn()
            .with_context(|| format!("starting {}", program.display()))?;
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut api = Self { namespace, process, address, kubeconfig };
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            let port = fs::read_to_string(&port_file).ok().and_then(|text| text.trim().parse().ok());
            if let Some(port) = port.filter(|_| api.kubeconfig.exists()) {
                api.address.set_port(port);
                return Ok(api);
            }
            ensure!(Instant::now() < end, "{} did not say its port", program.display());
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn control(&self, what: &str, objects: &[Value]) -> Result<()> {
        let list = serde_json::json!({"apiVersion": "v1", "kind": "List", "items": objects});
        let answer =
            http::post(self.namespace, self.address, &format!("/control/{what}"), &list.to_string())?;
        if answer.status != 200 {
            bail!("the API stand-in answers {} to {what}: {}", answer.status, answer.body);
        }
        Ok(())
    }
}

impl Objects for ApiProgram<'_> {
    fn flags(&self) -> Vec<String> {
        vec![
            format!("--kubeconfig={}", self.kubeconfig.display()),
            "--kube-api-content-type=application/json".to_owned(),
        ]
    }

    fn client_connection(&self) -> Value {
        serde_json::json!({"kubeconfig": self.kubeconfig, "contentType": "application/json"})
    }

    fn apply(&mut self, objects: &[Value]) -> Result<()> {
        self.control("apply", objects)
    }

    fn delete(&mut self, object: &Identity) -> Result<()> {
        let Identity { kind, namespace, name } = object;
        self.control(
            "delete",
            &[serde_json::json!({
                "apiVersion": object.api_version(), "kind": kind, "metadata": {"namespace": namespace, "name": name},
            })],
        )
    }
}

impl Drop for ApiProgram<'_> {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
