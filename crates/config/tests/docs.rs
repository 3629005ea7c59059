//! The documentation and the help text come from the table of flags.

mod support;

use std::path::Path;

use kube_proxy_config::{Mode, flags_markdown, help_text};
use serde_json::Value;

#[test]
fn docs_flags_md_is_what_the_table_says() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/flags.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, flags_markdown()).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == flags_markdown(),
        "docs/flags.md is out of date: UPDATE_DOCS=1 cargo test -p kube-proxy-config"
    );
}

#[test]
fn help_has_one_line_for_each_flag_and_old_flags_at_the_end() {
    let text = help_text();
    let flags: Vec<&str> = text.lines().filter(|line| line.get(4..7) == Some(" --")).collect();
    let rows = flags_markdown().lines().filter(|line| line.starts_with("| ") && line.contains("`--")).count();
    assert_eq!(flags.len(), rows);
    let long: Vec<&str> = text.lines().filter(|line| line.len() > 160).collect();
    assert!(long.is_empty(), "too long to read: {long:#?}");
    let old = text.find("Deprecated:").unwrap();
    for (name, is_old) in [("--proxy-mode", false), ("--healthz-port", true), ("--logtostderr", true)] {
        assert_eq!(text.find(&format!("{name} ")).or(text.find(name)).unwrap() > old, is_old, "{name}");
    }
}

#[test]
fn every_field_of_the_configuration_file_is_documented() {
    fn collect(path: &str, value: &Value, fields: &mut Vec<String>) {
        match value.as_object() {
            Some(map) => {
                for (key, value) in map {
                    collect(format!("{path}.{key}").trim_start_matches('.'), value, fields);
                }
            }
            None => fields.push(path.to_owned()),
        }
    }
    let configz = support::quietly(support::line("")).configz(Mode::Auto);
    let configz: Value = serde_json::from_str(&configz).unwrap();
    let mut fields = Vec::new();
    collect("", &configz["kubeproxy.config.k8s.io"], &mut fields);
    let document = flags_markdown();
    for field in fields.iter().filter(|f| *f != "kind" && *f != "apiVersion" && !f.starts_with("winkernel."))
    {
        assert!(document.contains(&format!("`{field}`")), "{field} is missing");
    }
    assert!(fields.len() > 50 && document.contains("`winkernel.*`"));
}
