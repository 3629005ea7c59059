//! The few forms that answers have.

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use hyper::{Response, StatusCode};

/// An answer, complete in memory.
pub(crate) type Answer = Response<Full<Bytes>>;

/// An answer of a media type, without further headers.
pub(super) fn page(status: StatusCode, media_type: &'static str, body: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Full::new(body.into()));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    answer
}

/// JSON that browsers must not take for anything else.
pub(crate) fn json(status: u16, body: String) -> Answer {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    no_sniff(page(status, "application/json", body))
}

/// Text that browsers must not take for anything else.
pub(super) fn text(status: StatusCode, body: impl Into<Bytes>) -> Answer {
    no_sniff(page(status, "text/plain; charset=utf-8", body))
}

/// There is no such page.
pub(super) fn not_found() -> Answer {
    text(StatusCode::NOT_FOUND, "404 page not found\n")
}

pub(super) fn no_sniff(mut answer: Answer) -> Answer {
    answer.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    answer
}
