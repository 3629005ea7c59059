//! A real kube-apiserver with its etcd, in a network namespace of its own.
//!
//! The programs come from outside of this repository: a folder with a script `up`, which is run as
//! `up --state FOLDER --address IP --port N --service-cidr CIDRS`, starts both in the background, writes `ca.crt`, a
//! `kubeconfig` for the proxy and `token.admin` into FOLDER, and prints `up: ready` when the server answers. All of it
//! lives in one PID namespace that ends with the program that started it, so nothing is left behind.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use anyhow::{Context, Result, anyhow, bail, ensure};
use netlink::namespace::Namespace;
use netlink::route::Handle;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::objects::{Identity, Objects};

/// The network between a node and the API server, apart from those of the lab.
const NETWORK_LENGTH: u8 = 30;
const NODE_ADDRESS: &str = "192.0.2.241";
const ADDRESS: &str = "192.0.2.242";
const PORT: u16 = 6443;
/// What scenarios take cluster IPs from.
const SERVICE_NETWORKS: &str = "203.0.113.0/25,2001:db8:c::/112";
/// The link between them, in both namespaces.
const LINK: &str = "api";

/// A running API server. Ends, with its etcd, when dropped.
#[derive(Debug)]
pub struct ApiServer {
    namespace: Namespace,
    folder: TempDir,
    processes: Child,
}

impl ApiServer {
    /// Starts the server by the script `up` in the folder `peers`, and waits until it is ready.
    pub fn start(peers: &Path) -> Result<Self> {
        let up = peers.join("up");
        ensure!(up.is_file(), "{} has no script `up`, which starts kube-apiserver and etcd", peers.display());
        let namespace = Namespace::new()?;
        namespace.run(|| -> Result<()> { Ok(Handle::open()?.set_up("lo")?) })??;
        let folder = tempfile::tempdir()?;
        let mut command = namespace.command("unshare")?;
        command.args(["--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c"]);
        // the shell stays: it is the first process of the PID namespace
        command.args(["\"$@\" && exec sleep infinity", "sh"]).arg(&up).arg("--state");
        command.arg(folder.path().join("state")).args(["--address", ADDRESS, "--port", &PORT.to_string()]);
        command.args(["--service-cidr", SERVICE_NETWORKS]).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut processes = command.spawn().context("starting unshare (package util-linux)")?;
        let output = processes.stdout.take().ok_or_else(|| anyhow!("no pipe to {}", up.display()))?;
        let server = Self { namespace, folder, processes };
        for line in BufReader::new(output).lines() {
            if line?.starts_with("up: ready") {
                server.write_headers()?;
                return Ok(server);
            }
        }
        bail!("{} did not start kube-apiserver; what it printed is above", up.display())
    }

    fn state(&self, file: &str) -> PathBuf {
        self.folder.path().join("state").join(file)
    }

    fn write_headers(&self) -> Result<()> {
        let token = fs::read_to_string(self.state("token.admin"))?;
        fs::write(self.state("headers"), format!("Authorization: Bearer {}\n", token.trim()))?;
        Ok(())
    }

    /// Links `node` with the server, and takes away the objects that others have left.
    pub fn connect<'a>(&'a self, node: &'a Namespace) -> Result<Client<'a>> {
        let mut client = Client { server: self, node };
        node.run(|| -> Result<()> { Ok(Handle::open()?.add_veth(LINK, LINK, self.namespace.as_fd())?) })??;
        for (namespace, address) in [(node, NODE_ADDRESS), (&self.namespace, ADDRESS)] {
            namespace.run(|| -> Result<()> {
                let mut links = Handle::open()?;
                links.set_up(LINK)?;
                Ok(links.add_address(LINK, format!("{address}/{NETWORK_LENGTH}").parse()?)?)
            })??;
        }
        client.clear()?;
        Ok(client)
    }

    /// One request; the status and the body of the answer.
    fn request(&self, method: &str, path: &str, body: &str) -> Result<(u16, Value)> {
        let mut command = self.namespace.command("curl")?;
        command.args(["--silent", "--show-error", "--max-time", "30", "--write-out", "\n%{http_code}"]);
        command.arg("--cacert").arg(self.state("ca.crt"));
        command.arg("--header").arg(format!("@{}", self.state("headers").display()));
        command.args(["--header", "Content-Type: application/json"]);
        command.args(["--request", method, "--data-binary", "@-"]);
        command.arg(format!("https://127.0.0.1:{PORT}{path}")).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut curl = command.spawn().context("starting curl (package curl)")?;
        if let Some(mut input) = curl.stdin.take() {
            input.write_all(body.as_bytes())?;
        }
        let output = curl.wait_with_output()?;
        ensure!(output.status.success(), "{method} {path}: curl failed: {}", output.status);
        let text = String::from_utf8_lossy(&output.stdout);
        let (body, status) = text.rsplit_once('\n').ok_or_else(|| anyhow!("curl printed {text:?}"))?;
        Ok((status.parse()?, serde_json::from_str(body).unwrap_or_else(|_| body.into())))
    }

    /// One request that has to succeed; the body of the answer.
    fn want(&self, method: &str, path: &str, body: &str) -> Result<Value> {
        let (status, answer) = self.request(method, path, body)?;
        if (200..300).contains(&status) {
            return Ok(answer);
        }
        let message = answer["message"].as_str().map_or_else(|| answer.to_string(), str::to_owned);
        bail!("the API server answers {status} to {method} {path}: {message}")
    }

    /// Replaces an object, or creates it.
    fn put(&self, collection: &str, name: &str, object: &Value) -> Result<()> {
        let (path, body) = (format!("{collection}/{name}"), object.to_string());
        let (status, _) = self.request("GET", &path, "")?;
        if status == 404 {
            self.want("POST", collection, &body)?
        } else {
            self.want("PUT", &path, &body)?
        };
        Ok(())
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        // the end of unshare ends its child, which is the first process of the PID namespace, and so all others
        if let Some(pid) = i32::try_from(self.processes.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::KILL);
        }
        let _ = self.processes.wait();
    }
}

/// The API server as one node and one administrator see it.
#[derive(Debug)]
pub struct Client<'a> {
    server: &'a ApiServer,
    node: &'a Namespace,
}

/// The collections that scenarios have objects in.
const COLLECTIONS: [(&str, &str, &str); 4] = [
    ("EndpointSlice", "/apis/discovery.k8s.io/v1", "endpointslices"),
    ("Service", "/api/v1", "services"),
    ("Node", "/api/v1", "nodes"),
    ("ServiceCIDR", "/apis/networking.k8s.io/v1", "servicecidrs"),
];

/// The collection an object is in.
fn collection(object: &Identity) -> Result<String> {
    let Identity { kind, namespace, .. } = object;
    let known = COLLECTIONS.iter().find(|(known, ..)| known == kind);
    let (_, group, plural) = known.with_context(|| format!("objects of kind {kind} are not known here"))?;
    Ok(match namespace.as_str() {
        "" => format!("{group}/{plural}"),
        _ => format!("{group}/namespaces/{namespace}/{plural}"),
    })
}

impl Client<'_> {
    /// Deletes all objects but those the server makes for itself.
    fn clear(&mut self) -> Result<()> {
        for (kind, group, plural) in COLLECTIONS {
            let list = self.server.want("GET", &format!("{group}/{plural}"), "")?;
            for item in list["items"].as_array().into_iter().flatten() {
                let text = |at: &str| item.pointer(at).and_then(Value::as_str).unwrap_or_default().to_owned();
                let (namespace, name) = (text("/metadata/namespace"), text("/metadata/name"));
                if name != "kubernetes" {
                    self.delete(&Identity { kind: kind.into(), namespace, name })?;
                }
            }
        }
        Ok(())
    }
}

impl Objects for Client<'_> {
    fn flags(&self) -> Vec<String> {
        vec![format!("--kubeconfig={}", self.server.state("kubeconfig").display())]
    }

    fn client_connection(&self) -> Value {
        json!({"kubeconfig": self.server.state("kubeconfig")})
    }

    fn apply(&mut self, objects: &[Value]) -> Result<()> {
        for object in objects {
            let identity = Identity::of(object)?;
            let namespace = &identity.namespace;
            if !namespace.is_empty() {
                let object =
                    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
                self.server.put("/api/v1/namespaces", namespace, &object)?;
            }
            let collection = collection(&identity)?;
            self.server.put(&collection, &identity.name, object)?;
            if object.get("status").is_some() {
                let path = format!("{collection}/{}/status", identity.name);
                self.server.want("PUT", &path, &object.to_string())?;
            }
        }
        Ok(())
    }

    fn delete(&mut self, object: &Identity) -> Result<()> {
        let path = format!("{}/{}", collection(object)?, object.name);
        self.server.want("DELETE", &path, "").map(drop)
    }
}

impl Drop for Client<'_> {
    fn drop(&mut self) {
        // its namespace would take it away too, but later than the next node needs the name
        let _ = self.node.run(|| Handle::open().map(|mut links| links.delete_link(LINK)));
    }
}
