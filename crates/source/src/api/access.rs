//! Which API server, and with which credentials: read from files, and read again when a file has changed.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::{Body, ClientBuilder, ConfigExt};
use kube::config::{Cluster, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use tower::util::BoxCloneSyncService;
use tower::{BoxError, Layer, ServiceExt};

use super::proxy::proxy;
use super::{kube_text, text_of};
use crate::Error;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A peer that is gone is noticed by the kernel within 20 s + 3 x 5 s when nothing is under way, and 30 s when something is.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(20);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_RETRIES: u32 = 3;
const UNACKNOWLEDGED: Duration = Duration::from_secs(30);

/// Unused connections are closed before the API server or a load balancer forgets them.
const POOL_IDLE: Duration = Duration::from_secs(20);

/// Where the API server is described.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// `--kubeconfig`; without it and `master`, the service account of the pod.
    pub kubeconfig: Option<PathBuf>,
    /// `--master`: the server's URL, in place of that of the kubeconfig.
    pub master: Option<String>,
    /// `--kube-api-qps`; negative: no limit.
    pub qps: f32,
    /// `--kube-api-burst`.
    pub burst: u32,
}

/// A client, and the files it was made of.
pub(super) struct Credentials {
    pub(super) client: Client,
    pub(super) address: String,
    files: Vec<(PathBuf, Option<Stamp>)>,
}

/// What changes when a file is written or replaced: inode, size, time of change.
type Stamp = (u64, u64, i64, i64);

impl Credentials {
    /// Reads the files and makes a client of them. May run an exec plugin: blocks.
    pub(super) fn load(access: &Access) -> Result<Self, Error> {
        let (mut config, blame) = load_config(access)?;
        let files = files(access, &config).into_iter().map(|path| (path.clone(), stamp(&path))).collect();
        trim_token(&mut config).map_err(|problem| blame.error(problem))?;
        let address = config.cluster_url.to_string();
        let client = client(config).map_err(|error| blame.error(kube_text(&error)))?;
        Ok(Self { client, address, files })
    }

    /// A client that was made elsewhere.
    pub(super) fn of(client: Client, address: &str) -> Self {
        Self { client, address: address.to_owned(), files: Vec::new() }
    }

    /// A file is not what it was when it was read.
    pub(super) fn outdated(&self) -> bool {
        self.files.iter().any(|(path, read)| stamp(path) != *read)
    }
}

fn stamp(path: &Path) -> Option<Stamp> {
    let metadata = std::fs::metadata(path).ok()?;
    Some((metadata.ino(), metadata.size(), metadata.mtime(), metadata.mtime_nsec()))
}

/// What an error in the configuration is blamed on.
enum Blame {
    Kubeconfig(PathBuf),
    Master(String),
    InCluster,
}

impl Blame {
    fn error(&self, problem: String) -> Error {
        match self {
            Self::Kubeconfig(path) => Error::Kubeconfig { path: path.clone(), problem },
            Self::Master(value) => Error::Master { value: value.clone(), problem },
            Self::InCluster => Error::InCluster { problem },
        }
    }
}

fn load_config(access: &Access) -> Result<(Config, Blame), Error> {
    let (mut config, proxy_url, blame) = described(access)?;
    // kube has its own idea of retries; there is one place that retries, the watch
    config.default_retry = false;
    config.proxy_url = proxy(proxy_url.as_deref(), &config.cluster_url, |name| std::env::var(name).ok())
        .map_err(|problem| blame.error(problem))?;
    Ok((config, blame))
}

/// The server, the credentials, and the proxy that the kubeconfig names.
fn described(access: &Access) -> Result<(Config, Option<String>, Blame), Error> {
    let master = access.master.as_deref().map(str::trim).filter(|master| !master.is_empty());
    let Some(path) = access.kubeconfig.as_deref().filter(|path| !path.as_os_str().is_empty()) else {
        return match master {
            Some(master) => {
                Ok((Config::new(master_url(master, "http")?), None, Blame::Master(master.to_owned())))
            }
            None => Config::incluster()
                .map(|config| (config, None, Blame::InCluster))
                .map_err(|error| Error::InCluster { problem: text_of(&error) }),
        };
    };
    let given = master.map(|master| master_url(master, "https")).transpose()?;
    let blame = Blame::Kubeconfig(path.to_owned());
    let mut kubeconfig =
        Kubeconfig::read_from(path).map_err(|error| blame.error(kubeconfig_problem(&error)))?;
    // a missing server is no fault when another one is given, and proxies are seen to here
    let mut proxy_url = None;
    if let Some(cluster) = selected_cluster(&mut kubeconfig) {
        proxy_url = cluster.proxy_url.take();
        cluster.server = master.map(str::to_owned).or(cluster.server.take());
    }
    let mut config = Config::try_from(kubeconfig).map_err(|error| blame.error(kubeconfig_problem(&error)))?;
    if let Some(given) = given {
        config.cluster_url = given;
    }
    match config.cluster_url.scheme_str() {
        Some("http" | "https") if config.cluster_url.host().is_some() => Ok((config, proxy_url, blame)),
        _ => {
            Err(blame
                .error(format!("clusters[].cluster.server: {} is no http or https URL", config.cluster_url)))
        }
    }
}

/// The cluster of the current context.
fn selected_cluster(kubeconfig: &mut Kubeconfig) -> Option<&mut Cluster> {
    let current = kubeconfig.current_context.as_deref()?;
    let context = kubeconfig.contexts.iter().find(|named| named.name == current)?.context.as_ref()?;
    kubeconfig.clusters.iter_mut().find(|named| named.name == context.cluster)?.cluster.as_mut()
}

/// A URL without a scheme has one assumed, as in client-go.
fn master_url(value: &str, scheme: &str) -> Result<http::Uri, Error> {
    let error = |problem: String| Error::Master { value: value.to_owned(), problem };
    let full = if value.contains("://") { value.to_owned() } else { format!("{scheme}://{value}") };
    let uri: http::Uri = full.parse().map_err(|parse: http::uri::InvalidUri| error(parse.to_string()))?;
    match uri.scheme_str() {
        Some("http" | "https") if uri.host().is_some_and(|host| !host.is_empty()) => Ok(uri),
        Some("http" | "https") => Err(error("it has no host".to_owned())),
        other => Err(error(format!("its scheme is {:?}", other.unwrap_or_default()))),
    }
}

/// Names the field, which kube's own messages do not.
pub(super) fn kubeconfig_problem(error: &KubeconfigError) -> String {
    let field = match error {
        KubeconfigError::ReadConfig(source, _) => return format!("cannot be read: {source}"),
        KubeconfigError::Parse(source) => return format!("is no kubeconfig: {}", source.without_snippet()),
        KubeconfigError::CurrentContextNotSet => return "current-context: is not set".to_owned(),
        KubeconfigError::LoadContext(name) => {
            return format!("current-context: {name:?} is not among contexts[].name");
        }
        KubeconfigError::LoadClusterOfContext(name) => {
            return format!("contexts[].context.cluster: {name:?} is not among clusters[].name");
        }
        KubeconfigError::MissingClusterUrl => return "clusters[].cluster.server: is missing".to_owned(),
        KubeconfigError::ParseClusterUrl(_) => "clusters[].cluster.server",
        KubeconfigError::ParseProxyUrl(_) => "variable HTTPS_PROXY",
        KubeconfigError::LoadCertificateAuthority(_) | KubeconfigError::ParseCertificates(_) => {
            "clusters[].cluster.certificate-authority"
        }
        KubeconfigError::LoadClientCertificate(_) => "users[].user.client-certificate",
        KubeconfigError::LoadClientKey(_) => "users[].user.client-key",
        _ => return text_of(error),
    };
    format!("{field}: {}", text_of(error))
}

/// The files that credentials come from.
fn files(access: &Access, config: &Config) -> Vec<PathBuf> {
    let auth = &config.auth_info;
    let mut files: Vec<PathBuf> = access.kubeconfig.iter().cloned().collect();
    files.extend(config.root_cert_file.clone());
    for path in [&auth.token_file, &auth.client_certificate, &auth.client_key].into_iter().flatten() {
        files.push(path.into());
    }
    if let Some(path) = access.kubeconfig.as_deref()
        && let Ok(mut kubeconfig) = Kubeconfig::read_from(path)
    {
        let authority =
            selected_cluster(&mut kubeconfig).and_then(|cluster| cluster.certificate_authority.take());
        files.extend(authority.map(PathBuf::from));
    }
    files
}

/// Reads the token file here: kube would send the line's end along, which is no valid header.
fn trim_token(config: &mut Config) -> Result<(), String> {
    let auth = &mut config.auth_info;
    if let (None, Some(path)) = (&auth.token, auth.token_file.take()) {
        let token = std::fs::read_to_string(&path)
            .map_err(|error| format!("users[].user.tokenFile: {path}: {error}"))?;
        auth.token = Some(token.trim().to_owned().into());
    }
    Ok(())
}

/// A client with kernel timers on its connections. One that goes through a proxy is kube's own, without them.
fn client(config: Config) -> Result<Client, kube::Error> {
    let namespace = config.default_namespace.clone();
    if config.proxy_url.is_some() {
        return Ok(ClientBuilder::try_from(config)?.build());
    }
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
    tcp.set_keepalive(Some(KEEPALIVE_IDLE));
    tcp.set_keepalive_interval(Some(KEEPALIVE_INTERVAL));
    tcp.set_keepalive_retries(Some(KEEPALIVE_RETRIES));
    tcp.set_tcp_user_timeout(Some(UNACKNOWLEDGED));
    let https = config.rustls_https_connector_with_connector(tcp)?;
    let http: HttpClient<_, Body> = HttpClient::builder(TokioExecutor::new())
        .pool_idle_timeout(POOL_IDLE)
        .pool_timer(TokioTimer::new())
        .build(https);
    let service = config.extra_headers_layer()?.layer(http.map_err(BoxError::from));
    let service = match config.auth_layer()? {
        Some(auth) => BoxCloneSyncService::new(auth.layer(service).map_err(BoxError::from)),
        None => BoxCloneSyncService::new(service.map_err(BoxError::from)),
    };
    Ok(ClientBuilder::new(config.base_uri_layer().layer(service), namespace).build())
}
