//! What `--version` answers.

/// The Kubernetes release whose flags, fields and behaviour this program follows.
pub const KUBERNETES: &str = "v1.37.2";
/// The minor version before [`KUBERNETES`], whose hidden metrics may be asked for.
pub(crate) const PREVIOUS_MINOR: &str = "1.36";

/// `--version=vX.Y.Z-suffix` may only add a suffix to the real version.
///
/// # Errors
/// Names the version it must begin with.
pub(crate) fn check_override(version: &str) -> Result<(), String> {
    match version.strip_prefix(KUBERNETES) {
        Some(rest) if rest.is_empty() || rest.starts_with(['-', '+']) => Ok(()),
        _ => Err(format!("version {version:?} must begin with {KUBERNETES}")),
    }
}

/// One line for `--version`; its second word is the version scripts look for.
pub(crate) fn short() -> String {
    format!("Kubernetes {KUBERNETES} (kube-proxy in Rust {})\n", env!("CARGO_PKG_VERSION"))
}

/// The long form for `--version=raw`, in the shape of the original.
pub(crate) fn raw() -> String {
    let mut numbers = KUBERNETES.trim_start_matches('v').split('.');
    let (major, minor) = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
    let own = env!("CARGO_PKG_VERSION");
    let arch = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    format!(
        "version.Info{{Major:\"{major}\", Minor:\"{minor}\", GitVersion:\"{KUBERNETES}\", \
         Implementation:\"kube-proxy in Rust {own}\", Compiler:\"rustc\", Platform:\"linux/{arch}\"}}\n"
    )
}
