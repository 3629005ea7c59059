//! One HTTP request at a time, from inside a namespace.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use netlink::namespace::Namespace;

const TIMEOUT: Duration = Duration::from_secs(10);

/// The status code and the body of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Such as 200.
    pub status: u16,
    /// The header, as text.
    pub header: String,
    /// The body, as text.
    pub body: String,
}

/// `GET path` from the server at `to`.
pub fn get(namespace: &Namespace, to: SocketAddr, path: &str) -> Result<Answer> {
    request(namespace, to, "GET", path, "")
}

/// `POST path` with `body`.
pub fn post(namespace: &Namespace, to: SocketAddr, path: &str, body: &str) -> Result<Answer> {
    request(namespace, to, "POST", path, body)
}

fn request(namespace: &Namespace, to: SocketAddr, method: &str, path: &str, body: &str) -> Result<Answer> {
    let exchange = || -> Result<Answer> {
        let mut stream = TcpStream::connect_timeout(&to, TIMEOUT)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        // HTTP/1.0: the answer ends where the connection does, nothing is chunked
        let length = body.len();
        let request =
            format!("{method} {path} HTTP/1.0\r\nHost: {to}\r\nContent-Length: {length}\r\n\r\n{body}");
        stream.write_all(request.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        parse(&answer).ok_or_else(|| anyhow!("not HTTP: {answer:?}"))
    };
    namespace.run(exchange)?.with_context(|| format!("{method} http://{to}{path}"))
}

fn parse(answer: &str) -> Option<Answer> {
    let (header, body) = answer.split_once("\r\n\r\n")?;
    let status = header.strip_prefix("HTTP/1.")?.split_whitespace().nth(1)?.parse().ok()?;
    Some(Answer { status, header: header.to_owned(), body: body.to_owned() })
}
