//! The v1alpha1 form as text: YAML for `--write-config-to`, JSON for `/configz`.

use serde_json::Value;

use crate::v1alpha1::KubeProxyConfiguration;

/// YAML with sorted keys, as the original writes it.
///
/// # Errors
/// The serializer's words; not known to happen with these types.
pub(crate) fn yaml(config: &KubeProxyConfiguration) -> Result<String, String> {
    let mut value = serde_json::to_value(config).map_err(|error| error.to_string())?;
    sort_keys(&mut value);
    let options = serde_saphyr::ser_options! { prefer_block_scalars: false };
    serde_saphyr::to_string_with_options(&value, options).map_err(|error| error.to_string())
}

/// Sorts explicitly, because the order of a JSON object depends on a feature any crate may switch on.
fn sort_keys(value: &mut Value) {
    match value {
        Value::Object(map) => {
            let mut entries: Vec<_> = std::mem::take(map).into_iter().collect();
            entries.sort_by(|(a, _), (b, _)| a.cmp(b));
            for (_, value) in &mut entries {
                sort_keys(value);
            }
            map.extend(entries);
        }
        Value::Array(items) => items.iter_mut().for_each(sort_keys),
        _ => {}
    }
}

/// JSON in the order of the original.
pub(crate) fn configz(config: &KubeProxyConfiguration) -> String {
    let body = serde_json::to_string(config).unwrap_or_else(|error| format!("\"{error}\""));
    format!("{{\"kubeproxy.config.k8s.io\":{body}}}")
}
