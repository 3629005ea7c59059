//! What the user asked for, before it is checked and completed.

use std::path::PathBuf;

use crate::duration::GoDuration;
use crate::v1alpha1::KubeProxyConfiguration;

/// The command line as values. `settings` are those of the configuration file when there is one.
#[derive(Clone, Debug, PartialEq)]
#[allow(clippy::struct_excessive_bools)] // each is a flag of its own
pub(crate) struct Low {
    pub help: bool,
    /// The word after `--version=`: `true`, `false`, `raw` or a version.
    pub version: String,
    pub config: Option<PathBuf>,
    pub write_config_to: Option<PathBuf>,
    pub cleanup: bool,
    /// Whether `--cleanup` removes virtual servers too.
    pub cleanup_ipvs: bool,
    pub init_only: bool,
    /// Address of the API server; empty: as the kubeconfig says.
    pub master: String,
    pub manifests: Option<PathBuf>,
    pub nftables_own_table: bool,
    pub healthz_port: Option<i32>,
    pub metrics_port: Option<i32>,
    pub settings: KubeProxyConfiguration,
}

impl Default for Low {
    /// What holds without any flag.
    fn default() -> Self {
        let mut settings = KubeProxyConfiguration::default();
        // The flags' default has been 1s since 1.32, that of the file's field still is 0s.
        settings.ipvs.min_sync_period = GoDuration::from_secs(1);
        Self {
            help: false,
            version: "false".into(),
            config: None,
            write_config_to: None,
            cleanup: false,
            cleanup_ipvs: true,
            init_only: false,
            master: String::new(),
            manifests: None,
            nftables_own_table: true,
            healthz_port: None,
            metrics_port: None,
            settings,
        }
    }
}
