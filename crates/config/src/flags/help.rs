//! The help text and `docs/flags.md`, both made from the table.

use std::fmt::Write as _;

use super::{Flag, GROUPS, Kind, Status};
use crate::gates;

/// Fields of the configuration file that no flag sets: name, type, default, meaning.
const FILE_ONLY: &[(&str, &str, &str, &str)] = &[
    ("clientConnection.acceptContentTypes", "text", "", "Content types accepted from the API server."),
    (
        "nftables.masqueradeBit",
        "int",
        "14",
        "Bit of the packet mark for masquerading in mode nftables, 0 to 31.",
    ),
    ("winkernel.*", "", "", "Windows only: read and written back, otherwise without effect."),
    ("windowsRunAsService", "bool", "false", "Windows only: without effect."),
    ("metadata, resourceContainer", "", "", "Without effect; a warning names them."),
];

impl Kind {
    /// The word for a value in the help text; none where the flag alone is enough.
    fn placeholder(self) -> &'static str {
        match self {
            Self::Bool | Self::OptionalWord => "",
            Self::Int => " N",
            Self::Float => " NUMBER",
            Self::Duration => " DURATION",
            Self::Text => " TEXT",
            Self::Path => " PATH",
            Self::Ip => " IP",
            Self::IpPort => " IP[:PORT]",
            Self::List => " A,B,...",
            Self::Gates => " NAME=BOOL,...",
            Self::Patterns => " PATTERN=N,...",
        }
    }

    fn documented(self) -> &'static str {
        match self {
            Self::Bool => "bool",
            Self::OptionalWord => "true, false, raw",
            Self::Int => "int",
            Self::Float => "number",
            Self::Duration => "duration",
            Self::Text => "text",
            Self::Path => "path",
            Self::Ip => "IP",
            Self::IpPort => "IP[:port]",
            Self::List => "list",
            Self::Gates => "name=bool,...",
            Self::Patterns => "pattern=N,...",
        }
    }
}

impl Flag {
    /// What the flag means, or for a removed one what to do instead.
    pub(super) fn meaning(&self) -> String {
        match self.status {
            Status::Removed(instead) => sentence(instead),
            Status::Deprecated(instead) => format!("{} {}", self.help, sentence(instead)),
            Status::Current | Status::Added => self.help.to_owned(),
        }
    }

    /// The default where it says something: not for switches that are off and for empty texts.
    fn shown_default(&self) -> String {
        match self.default {
            "" | "false" | "0" | "0s" => String::new(),
            default => format!(" (default {default})"),
        }
    }
}

fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(char::to_uppercase);
    first.into_iter().flatten().chain(letters).chain(['.']).collect()
}

/// The text of `--help`: one line for each flag.
pub fn help_text() -> String {
    let mut text = String::from(
        "Carries connections to Kubernetes services on this node: turns Services and EndpointSlices into rules\n\
         of the kernel.\n\n\
         Usage:\n\
         \x20 kube-proxy [flags]\n\
         \x20 kube-proxy demo      show it at work in network namespaces of its own; needs no cluster\n\n\
         Durations are written 250ms, 30s or 1h0m0s; in names _ may stand for -.\n\
         Flags with * act next to --config too; all others give way to the file.\n",
    );
    for group in GROUPS {
        let _ = writeln!(text, "\n{}:", group.title); // writing to a String cannot fail
        for flag in group.flags {
            let short = flag.short.map_or("   ".to_owned(), |short| format!("-{short},"));
            let star = if flag.beside_config { '*' } else { ' ' };
            let usage = format!("{star}{short} --{}{}", flag.name, flag.kind.placeholder());
            let _ = writeln!(text, "{usage:<54} {}{}", flag.meaning(), flag.shown_default());
        }
    }
    text
}

/// The text of `demo --help`.
pub(crate) fn demo_help() -> String {
    "Shows the proxy at work, without a cluster: starts a node, backends and a client in network namespaces of\n\
     its own, sends connections through them, and leaves nothing behind.\n\n\
     Usage:\n\
     \x20 kube-proxy demo [flags]\n\n\
     Flags:\n\
     \x20 -h, --help             Print this text and exit.\n\
     \x20     --manifests PATH   Show the services of this file or folder instead of the built-in ones.\n"
        .to_owned()
}

/// The content of `docs/flags.md`.
pub fn flags_markdown() -> String {
    let mut text = String::from(
        "# Flags and configuration fields\n\n\
         Made from the table in `crates/config/src/flags/`; after a change run\n\
         `UPDATE_DOCS=1 cargo test -p kube-proxy-config`.\n\n\
         The configuration file (`--config`) is `KubeProxyConfiguration` of `kubeproxy.config.k8s.io/v1alpha1`, in\n\
         YAML or JSON. With it, only the flags marked * still act. An unknown, repeated or removed field is\n\
         ignored with a warning that names it; a wrong type or value is an error, and all errors are reported\n\
         at once. Durations are written `250ms`, `30s` or `1h0m0s`. In a file a `syncPeriod`, `configSyncPeriod`\n\
         or `minSyncPeriod` (not that of ipvs) of `0s` means the default. In names of flags `_` may stand for `-`.\n",
    );
    for group in GROUPS {
        let _ = write!(
            text,
            "\n## {}\n\n| Flag | Type | Default | Configuration field | Meaning | Status |\n|---|---|---|---|---|---|\n",
            group.title
        );
        for flag in group.flags {
            let _ = writeln!(text, "{}", markdown_row(flag));
        }
    }
    text.push_str("\n## Fields that have no flag of their own\n\n| Field | Type | Default | Meaning |\n|---|---|---|---|\n");
    for (field, kind, default, meaning) in FILE_ONLY {
        let _ = writeln!(text, "| `{field}` | {kind} | {} | {meaning} |", code(default));
    }
    text.push_str("\n## Feature gates\n\n| Gate | Stage | Default |\n|---|---|---|\n");
    for (name, stage, default) in gates::documented() {
        let _ = writeln!(text, "| `{name}` | {stage} | {default} |");
    }
    let retired = gates::retired().join("`, `");
    let _ = write!(
        text,
        "\n`AllAlpha` and `AllBeta` switch all gates of a stage. Gates of other Kubernetes components are accepted\n\
         without effect. Retired gates are accepted with a warning: `{retired}`.\n{DIFFERENCES}"
    );
    text
}

fn markdown_row(flag: &Flag) -> String {
    let star = if flag.beside_config { " *" } else { "" };
    let short = flag.short.map_or(String::new(), |short| format!("`-{short}`, "));
    let status = match flag.status {
        Status::Current => "current",
        Status::Added => "addition",
        Status::Deprecated(_) => "deprecated",
        Status::Removed(_) => "removed",
    };
    let fields: Vec<_> = flag.fields.split(", ").map(code).collect();
    format!(
        "| {short}`--{}`{star} | {} | {} | {} | {} | {status} |",
        flag.name,
        flag.kind.documented(),
        code(flag.default),
        fields.join(", "),
        flag.meaning().replace('|', "\\|"),
    )
}

fn code(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("`{text}`") }
}

/// Where this program answers otherwise than the original, and why.
const DIFFERENCES: &str = "
## Differences from the original

- An empty mode means nftables where the kernel can (5.13 or newer), else iptables; so the sections of both are
  checked when the mode is empty. `userspace` is a mode again.
- Flags removed long ago are accepted with a warning. Of these `--cleanup-ipvs`, `--conntrack-max`,
  `--udp-timeout`, `--proxy-port-range`, and in the file `conntrack.max`, `udpIdleTimeout` and `portRange`, act.
- `--healthz-port` and `--metrics-port` act unless the address names a port; 0 disables the server.
- Retired feature gates are warnings, not errors. `AllAlpha=true` switches the gates listed above only.
- `nftables.syncPeriod` and `nftables.minSyncPeriod` have defaults whatever the mode is, so a written
  configuration says what would hold.
- A wrong hostname is found with all other mistakes, also by `--write-config-to`.
- Paths in errors are those of the configuration file, and name the flag too where there is one.
";
