//! Choosing the form of `/statusz` and `/flagz` by the header `Accept` (KEP-4827, KEP-4828).
//!
//! Text for people is the default. Programs ask for JSON or YAML by the whole media type with the group, the
//! version and the kind: those are promises, text is not.

use hyper::StatusCode;
use hyper::header::{ACCEPT, HeaderMap, HeaderValue, WARNING};

use super::answer::{Answer, page};

const GROUP: &str = "config.k8s.io";

/// A page that has both forms.
pub(super) trait TwoForms {
    /// `Statusz` or `Flagz`.
    const KIND: &'static str;
    /// The first line of the text form, and the last part of the path.
    const NAME: &'static str;
    /// The text form, below the heading.
    fn text(&self) -> String;
    /// The fields beside kind, version and metadata, as they stand in the object: `"a":1,"b":2`.
    fn fields(&self) -> String;
}

/// Answers in the first form that the client accepts and there is.
pub(super) fn answer<P: TwoForms>(headers: &HeaderMap, contents: &P) -> Answer {
    let accept = headers.get(ACCEPT).map(|value| value.to_str().unwrap_or("none"));
    let Some(accept) = accept.filter(|accept| !accept.trim().is_empty()) else {
        return text(contents);
    };
    accept.split(',').find_map(|range| form(range, contents)).unwrap_or_else(not_acceptable)
}

fn form<P: TwoForms>(range: &str, contents: &P) -> Option<Answer> {
    let mut parts = range.split(';').map(str::trim);
    let media_type = parts.next()?;
    let parameters: Vec<_> = parts.filter_map(|part| part.split_once('=')).collect();
    let parameter = |name| parameters.iter().find(|(key, _)| *key == name).map(|(_, value)| *value);
    match media_type {
        "text/plain" | "text/*" | "*/*" => Some(text(contents)),
        "application/json" | "application/yaml" => {
            let version = parameter("v").filter(|v| ["v1beta1", "v1alpha1"].contains(v))?;
            let ours = parameter("g") == Some(GROUP) && parameter("as") == Some(P::KIND);
            ours.then(|| object(media_type, version, contents))
        }
        _ => None,
    }
}

fn text<P: TwoForms>(contents: &P) -> Answer {
    let body = format!(
        "\nkube-proxy {}\nWarning: This page is for people who look for a fault. Its form may change at any time; \
         programs should ask for JSON.\n{}",
        P::NAME,
        contents.text()
    );
    page(StatusCode::OK, "text/plain; charset=utf-8", body)
}

/// JSON, which is YAML too.
fn object<P: TwoForms>(media_type: &str, version: &str, contents: &P) -> Answer {
    let kind = P::KIND;
    let body = format!(
        "{{\"kind\":\"{kind}\",\"apiVersion\":\"{GROUP}/{version}\",\"metadata\":{{\"name\":\"kube-proxy\"}},{}}}",
        contents.fields()
    );
    let mut answer = page(StatusCode::OK, "application/json", body);
    let headers = answer.headers_mut();
    let full_type = format!("{media_type};g={GROUP};v={version};as={kind}");
    if let Ok(value) = HeaderValue::from_str(&full_type) {
        headers.insert(hyper::header::CONTENT_TYPE, value);
    }
    let name = P::NAME;
    let old =
        format!("299 - \"This version of the {name} endpoint is deprecated. Please use a newer version.\"");
    if version == "v1alpha1"
        && let Ok(value) = HeaderValue::from_str(&old)
    {
        headers.insert(WARNING, value);
    }
    answer
}

fn not_acceptable() -> Answer {
    let body = concat!(
        "{\n  \"kind\": \"Status\",\n  \"apiVersion\": \"v1\",\n  \"metadata\": {},\n  \"status\": \"Failure\",\n",
        "  \"message\": \"only the following media types are accepted: application/json, application/yaml, ",
        "text/plain\",\n  \"reason\": \"NotAcceptable\",\n  \"code\": 406\n}"
    );
    page(StatusCode::NOT_ACCEPTABLE, "application/json", body)
}
