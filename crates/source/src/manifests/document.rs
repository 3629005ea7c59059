//! From the text of a file to the objects in it.

use std::path::Path;

use model::Kind;
use serde::Deserialize;
use serde_json::{Map, Value};
use serde_saphyr::{Spanned, UserMessageFormatter};

/// An object of a kind that is used, not decoded yet.
#[derive(Debug)]
pub(super) struct Document {
    pub(super) kind: Kind,
    pub(super) line: u64,
    pub(super) object: Value,
}

/// The text is no YAML.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Broken {
    pub(super) line: Option<u64>,
    pub(super) problem: String,
}

/// A document, with the places of a List's items.
#[derive(Deserialize)]
struct Outer {
    items: Option<Vec<Spanned<Value>>>,
    #[serde(flatten)]
    fields: Map<String, Value>,
}

/// Parses a file of YAML documents, or JSON, which is YAML but for tabs.
pub(super) fn parse(path: &Path, text: &str) -> Result<Vec<Document>, Broken> {
    let spaced;
    let text = if path.extension().is_some_and(|extension| extension == "json") {
        spaced = text.replace('\t', " ");
        &spaced
    } else {
        text
    };
    // the files are the operator's own: the limits are only to end what would not end
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_events: 200_000_000,
            max_nodes: 100_000_000,
            max_documents: 1_000_000,
            max_total_scalar_bytes: 1 << 30,
        },
    };
    let outers: Vec<Spanned<Outer>> =
        serde_saphyr::from_multiple_with_options(text, options).map_err(|error| broken(&error))?;
    let mut documents = Vec::new();
    for outer in outers {
        let line = outer.referenced.line();
        let Outer { items, fields } = outer.value;
        match (kind_name(&fields), items) {
            // List, ServiceList, EndpointSliceList …, whose items need not say what they are
            (Some(list), Some(items)) if list.ends_with("List") => {
                let of = list.trim_end_matches("List").to_owned();
                for item in items {
                    let kind = item.value.get("kind").and_then(Value::as_str).unwrap_or(&of);
                    documents.extend(kind_of(kind).map(|kind| (kind, item.referenced.line(), item.value)));
                }
            }
            (Some(kind), _) => {
                documents.extend(kind_of(kind).map(|kind| (kind, line, Value::Object(fields))));
            }
            (None, _) => {
                return Err(Broken { line: Some(line), problem: "a document has no kind".to_owned() });
            }
        }
    }
    Ok(documents
        .into_iter()
        .map(|(kind, line, object)| Document { kind, line, object: filled(kind, object) })
        .collect())
}

fn broken(error: &serde_saphyr::Error) -> Broken {
    let error = error.without_snippet();
    let (plain, mut problem) = (error.to_string(), error.render_with_formatter(&UserMessageFormatter));
    if plain.starts_with("budget breached") {
        problem.push_str("; write out what its aliases stand for, or split the file");
    } else if plain.starts_with("recursion limit") {
        problem.push_str("; no Kubernetes object is nested so deeply");
    }
    Broken { line: error.location().map(|location| location.line()), problem }
}

fn kind_name(fields: &Map<String, Value>) -> Option<&str> {
    fields.get("kind")?.as_str()
}

/// The kind of that name, of those that are used.
fn kind_of(name: &str) -> Option<Kind> {
    let kinds = [Kind::Service, Kind::Slice, Kind::Node, Kind::ServiceCidr];
    kinds.into_iter().find(|kind| crate::decode::kind_name(*kind) == name)
}

/// Fills in the namespace. The other defaults of an API server are those of decoding.
fn filled(kind: Kind, mut object: Value) -> Value {
    if matches!(kind, Kind::Service | Kind::Slice)
        && let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut)
        && metadata.get("namespace").and_then(Value::as_str).is_none_or(str::is_empty)
    {
        metadata.insert("namespace".to_owned(), "default".into());
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(name: &str, text: &str) -> Result<Vec<(Kind, u64, String)>, Broken> {
        let documents = parse(Path::new(name), text)?;
        let name =
            |document: &Document| document.object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        Ok(documents.iter().map(|document| (document.kind, document.line, name(document))).collect())
    }

    #[test]
    fn documents_and_items_of_lists_are_found_with_their_lines() {
        let text = "\
# a comment
kind: Service
metadata: {name: one}
---
---
kind: Deployment
items: {}
---
apiVersion: v1
kind: List
items:
- kind: EndpointSlice
  metadata: {name: two}
- kind: Secret
- kind: Node
  metadata: {name: three}
";
        let text = text.replace("items: {}\n", "spec: {ports: none}\n");
        assert_eq!(
            parsed("a.yaml", &text).unwrap(),
            [
                (Kind::Service, 2, "one".into()),
                (Kind::Slice, 12, "two".into()),
                (Kind::Node, 15, "three".into())
            ]
        );
    }

    #[test]
    fn json_with_tabs_is_read() {
        let text =
            "{\n\t\"kind\": \"ServiceList\",\n\t\"items\": [\n\t\t{\"metadata\": {\"name\": \"one\"}}]}\n";
        assert_eq!(parsed("a.json", text).unwrap(), [(Kind::Service, 4, "one".into())]);
    }

    #[test]
    fn a_syntax_error_names_its_line() {
        let broken = parsed("a.yaml", "kind: Service\nmetadata:\n  name: [one\n").unwrap_err();
        assert!(broken.line.is_some_and(|line| line >= 3), "{broken:?}");
        let broken = parsed("a.yaml", "kind: Node\n---\nmetadata: {name: one}\n").unwrap_err();
        assert_eq!(broken, Broken { line: Some(3), problem: "a document has no kind".to_owned() });
    }

    #[test]
    fn a_file_beyond_the_limits_is_told_what_to_do() {
        let deep = format!("kind: Service\nspec: {}{}\n", "[".repeat(5000), "]".repeat(5000));
        let aliases = format!("kind: Service\nspec:\n- &a 1\n{}", "- *a\n".repeat(60_000));
        for (text, advice) in [(deep, "nested so deeply"), (aliases, "split the file")] {
            let problem = parsed("a.yaml", &text).unwrap_err().problem;
            assert!(problem.ends_with(advice), "{problem}");
        }
        let twice = parsed("a.yaml", "kind: Node\nkind: Node\n").unwrap_err();
        assert_eq!(twice.problem, "duplicate mapping key `kind` is not allowed here at line 2, column 1");
    }

    #[test]
    fn an_empty_file_has_no_objects() {
        for text in ["", "\n", "---\n", "# nothing\n"] {
            assert_eq!(parsed("a.yaml", text), Ok(vec![]), "{text:?}");
        }
    }
}
