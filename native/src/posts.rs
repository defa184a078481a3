//! Requests that post a message to a room, and that need no second look: nothing in head or body that
//! Python would have to compare or to decode.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

use crate::http::{KNOWN, read_one};
use crate::rooms::{Members, RoomMessages};

/// Headers that say nothing about the message.
const IGNORED: [&str; 8] = [
    "host",
    "content-length",
    "accept",
    "accept-encoding",
    "accept-language",
    "connection",
    "referer",
    "user-agent",
];
const METHOD: &[u8] = b"POST ";
const JSON: &[u8] = b"application/json";

/// A request: for which host, with which token and inbox, and the message.
#[derive(Debug, PartialEq)]
struct Post<'a> {
    host: &'a [u8],
    authorization: Option<&'a [u8]>,
    inbox: Option<&'a [u8]>,
    room: &'a [u8],
    message_id: &'a [u8],
    pseudonym: Option<&'a [u8]>,
    ciphertext: &'a [u8],
}

/// Read a request that is all of `data`.
fn read<'a>(data: &'a [u8], path: &[u8], messages: &RoomMessages) -> Option<Post<'a>> {
    // Most of what is no post is something else from its first line on.
    if !data.strip_prefix(METHOD)?.strip_prefix(path)?.starts_with(b" ") {
        return None;
    }
    let found = read_one(data, 0)?;
    if found.body.end != data.len() {
        return None;
    }
    let (mut is_json, mut authorization, mut inbox) = (false, None, None);
    for header in &found.headers {
        let value = &data[header.value.clone()];
        match KNOWN[header.place()?] {
            "content-type" => is_json = value == JSON,
            "authorization" => authorization = Some(value),
            "x-inbox-id" => inbox = Some(value),
            name if IGNORED.contains(&name) => {}
            _ => return None,
        }
    }
    let Members { message_id, room, tenant, pseudonym, ciphertext } =
        messages.members(&data[found.body])?;
    if !is_json || tenant.is_some() {
        return None;
    }
    let host = &data[found.headers[found.host].value.clone()];
    let (room, message_id) = (room?, message_id?);
    Some(Post { host, authorization, inbox, room, message_id, pseudonym, ciphertext })
}

/// Reads posts to one path.
#[pyclass(module = "signalhub_native", frozen)]
pub struct RoomPosts {
    path: Vec<u8>,
    messages: Py<RoomMessages>,
}

/// Host, header with the token, header with the inbox, room, message id, pseudonym and ciphertext.
type Read<'py> = (
    Bound<'py, PyString>,
    Option<Bound<'py, PyString>>,
    Option<Bound<'py, PyString>>,
    Bound<'py, PyString>,
    Bound<'py, PyString>,
    Option<Bound<'py, PyString>>,
    Bound<'py, PyBytes>,
);

#[pymethods]
impl RoomPosts {
    #[new]
    fn new(path: Vec<u8>, messages: Py<RoomMessages>) -> Self {
        Self { path, messages }
    }

    /// Return the parts of a post that is all of `data`; `None` if Python has to read it.
    fn read<'py>(&self, py: Python<'py>, data: &[u8]) -> PyResult<Option<Read<'py>>> {
        let Some(post) = read(data, &self.path, self.messages.get()) else { return Ok(None) };
        let text = |bytes: &[u8]| PyString::from_bytes(py, bytes);
        Ok(Some((
            text(post.host)?,
            post.authorization.map(text).transpose()?,
            post.inbox.map(text).transpose()?,
            text(post.room)?,
            text(post.message_id)?,
            post.pseudonym.map(text).transpose()?,
            PyBytes::new(py, post.ciphertext),
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &str = r#"{"roomId":"r","messageId":"m","ciphertext":"abcd"}"#;

    fn request(head: &str, body: &str) -> String {
        let size = body.len();
        format!("POST /m HTTP/1.1\r\nHost: a\r\n{head}\r\nContent-Length: {size}\r\n\r\n{body}")
    }

    fn messages() -> RoomMessages {
        RoomMessages::new((b"rmx", 9), (b"rmx:", 9), b"abcdefgh", 30)
    }

    #[test]
    fn reads_what_clients_send() {
        let head = "Content-Type: application/json\r\nUser-Agent: x\r\nAuthorization: Bearer t\r\n\
            X-Inbox-ID: i";
        let text = request(head, BODY);
        let post = read(text.as_bytes(), b"/m", &messages()).expect("it is plain");
        assert_eq!(
            post,
            Post {
                host: b"a",
                authorization: Some(b"Bearer t"),
                inbox: Some(b"i"),
                room: b"r",
                message_id: b"m",
                pseudonym: None,
                ciphertext: b"abcd",
            }
        );
    }

    #[test]
    fn leaves_everything_else_to_python() {
        let plain = request("Content-Type: application/json", BODY);
        let is_read = |text: &str| read(text.as_bytes(), b"/m", &messages()).is_some();
        assert!(is_read(&plain));
        assert!(!is_read(&format!("{plain} ")));
        assert!(!is_read(&format!("{plain}{plain}")));
        for (from, to) in [
            ("POST /m", "POST /n"),
            ("POST /m", "POST /m?a=b"),
            ("json", "json;charset=utf-8"),
            ("Content-Type: application/json", "Accept: */*"),
            ("Host: a", "Host: a\r\nX-Room-ID: r"),
            ("Host: a", "Host: a\r\nX-Pseudonym-ID: r"),
            ("Host: a", "Host: a\r\nOrigin: http://localhost"),
            ("Host: a", "Host: a\r\nX-Forwarded-For: 127.0.0.2"),
        ] {
            assert!(!is_read(&plain.replacen(from, to, 1)), "{to}");
        }
        for body in [
            r#"{"messageId":"m","ciphertext":"abcd"}"#,
            r#"{"roomId":"r","ciphertext":"abcd"}"#,
            r#"{"roomId":"r","tenantId":"x","messageId":"m","ciphertext":"abcd"}"#,
            r#"{"roomId":"r","messageId":"m","ciphertext":"abcd","type":"mls_app"}"#,
        ] {
            assert!(!is_read(&request("Content-Type: application/json", body)), "{body}");
        }
        for size in 0..plain.len() {
            assert!(!is_read(&plain[..size]), "{size}");
        }
    }
}
