//! Requests to upgrade to a WebSocket that need no second look, and the answer to them.
//!
//! Taken is the form in which browsers and libraries ask: one whole request with everything that the
//! handshake needs, and nothing that changes where a request ends. Whether it is granted is decided
//! in Python.

use std::ops::Range;

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyString};

use crate::sha1::sha1;

/// Longer heads are for Python, which has a limit of its own.
const HEAD_BYTES_MAX: usize = 4096;
const HEADERS_MAX: usize = 32;
const NAME_BYTES_MAX: usize = 32;
const START: &[u8] = b"GET ";
const LINE_END: &[u8] = b" HTTP/1.1\r\n";
const GUID: &[u8; 36] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
const KEY_BYTES: usize = 24;
const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const ANSWER: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\
    Connection: Upgrade\r\nSec-WebSocket-Accept: ";

/// Each occurs once, and what the handshake needs comes first.
const KNOWN: [&str; 15] = [
    "host",
    "upgrade",
    "connection",
    "sec-websocket-version",
    "sec-websocket-key",
    "sec-websocket-extensions",
    "sec-websocket-protocol",
    "origin",
    "user-agent",
    "authorization",
    "accept-encoding",
    "accept-language",
    "cache-control",
    "pragma",
    "cookie",
];
const NEEDED: usize = 5;
const NAME: [bool; 256] = alphanumeric_or(b"-");
const TARGET: [bool; 256] = alphanumeric_or(b"-._~/?=&%:,+@!$*");
const DIGIT: [bool; 256] = alphanumeric_or(b"+/");
const KEY: usize = 4;
/// What they mean depends on more than their value, so they are for Python.
const LEFT_TO_PYTHON: [&[u8]; 5] =
    [b"content-length", b"expect", b"proxy-connection", b"trailer", b"transfer-encoding"];

const fn alphanumeric_or(others: &[u8]) -> [bool; 256] {
    let mut found = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        found[byte] = (byte as u8).is_ascii_alphanumeric();
        byte += 1;
    }
    let mut at = 0;
    while at < others.len() {
        found[others[at] as usize] = true;
        at += 1;
    }
    found
}

/// A request, and where its parts are.
struct Asked {
    target: Range<usize>,
    headers: Vec<Header>,
    key: Range<usize>,
}

/// The place of a name in `KNOWN`, or the name in lower case.
#[derive(PartialEq)]
enum Name {
    Known(usize),
    Other(String),
}

/// A header, and where its value is.
struct Header {
    name: Name,
    value: Range<usize>,
}

/// Read a request that is all of `data`; `None` if Python has to read it.
fn read(data: &[u8]) -> Option<Asked> {
    if data.len() > HEAD_BYTES_MAX || !data.starts_with(START) || data.get(4) != Some(&b'/') {
        return None;
    }
    let target = START.len()..START.len() + run(&data[START.len()..], |byte| TARGET[byte as usize]);
    if !data[target.end..].starts_with(LINE_END) {
        return None;
    }
    let mut line = target.end + LINE_END.len();
    let mut headers: Vec<Header> = Vec::with_capacity(12);
    while !data[line..].starts_with(b"\r\n") {
        let (header, end) = read_header(data, line)?;
        let value = &data[header.value.clone()];
        let is_plain = match &header.name {
            Name::Known(1) => value.eq_ignore_ascii_case(b"websocket"),
            Name::Known(2) => is_upgrading(value),
            Name::Known(3) => value == b"13",
            Name::Known(KEY) => is_key(value),
            Name::Known(_) => true,
            Name::Other(name) => !LEFT_TO_PYTHON.contains(&name.as_bytes()),
        };
        if !is_plain
            || headers.len() == HEADERS_MAX
            || headers.iter().any(|one| one.name == header.name)
        {
            return None;
        }
        headers.push(header);
        line = end;
    }
    if line + 2 != data.len() {
        return None;
    }
    let needed = |header: &&Header| matches!(header.name, Name::Known(place) if place < NEEDED);
    if headers.iter().filter(needed).count() != NEEDED {
        return None;
    }
    let key = headers.iter().find(|one| one.name == Name::Known(KEY))?.value.clone();
    Some(Asked { target, headers, key })
}

/// Read `Name: value` and its line end; at most one space before the value, and none after it.
fn read_header(data: &[u8], at: usize) -> Option<(Header, usize)> {
    let colon = at + run(&data[at..], |byte| NAME[byte as usize]);
    let size = colon - at;
    if size == 0 || size > NAME_BYTES_MAX || data.get(colon) != Some(&b':') {
        return None;
    }
    let begin = colon + 1 + usize::from(data.get(colon + 1) == Some(&b' '));
    let end = begin + run(&data[begin..], |byte| (b' '..=b'~').contains(&byte));
    let value = &data[begin..end];
    let is_trimmed = value.first()? != &b' ' && value.last()? != &b' ';
    if !is_trimmed || !data[end..].starts_with(b"\r\n") {
        return None;
    }
    let given = &data[at..colon];
    let is_given = |one: &&str| given.eq_ignore_ascii_case(one.as_bytes());
    let name = match KNOWN.iter().position(is_given) {
        Some(place) => Name::Known(place),
        None => Name::Other(String::from_utf8(given.to_ascii_lowercase()).ok()?),
    };
    Some((Header { name, value: begin..end }, end + 2))
}

/// How many bytes from the beginning are of a kind.
fn run(bytes: &[u8], is_of: impl Fn(u8) -> bool) -> usize {
    bytes.iter().position(|&byte| !is_of(byte)).unwrap_or(bytes.len())
}

/// Does it ask for an upgrade, and otherwise at most to keep the connection?
fn is_upgrading(value: &[u8]) -> bool {
    let mut upgrades = 0;
    for token in value.split(|&byte| byte == b',') {
        let token = token.trim_ascii();
        if token.eq_ignore_ascii_case(b"upgrade") {
            upgrades += 1;
        } else if !token.eq_ignore_ascii_case(b"keep-alive") {
            return false;
        }
    }
    upgrades == 1
}

/// Is it sixteen bytes in base64, in the only form that encoders write?
fn is_key(value: &[u8]) -> bool {
    value.len() == KEY_BYTES
        && value[..22].iter().all(|&byte| DIGIT[byte as usize])
        && b"AQgw".contains(&value[21])
        && &value[22..] == b"=="
}

/// The beginning of the answer, up to the end of the line with the accepted key.
fn answer(key: &[u8]) -> Vec<u8> {
    let mut proof = [0; KEY_BYTES + GUID.len()];
    proof[..KEY_BYTES].copy_from_slice(key);
    proof[KEY_BYTES..].copy_from_slice(GUID);
    let digest = sha1(&proof);
    let mut out = Vec::with_capacity(ANSWER.len() + 30);
    out.extend_from_slice(ANSWER);
    for chunk in digest.chunks(3) {
        let byte = |at: usize| u32::from(*chunk.get(at).unwrap_or(&0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for place in 0..4 {
            let digit = BASE64[(bits >> (18 - 6 * place)) as usize & 63];
            out.push(if place > chunk.len() { b'=' } else { digit });
        }
    }
    out.extend_from_slice(b"\r\n");
    out
}

/// Path, query, headers and the beginning of the answer; `None` if Python has to read the request.
type Upgrade<'py> =
    (Bound<'py, PyString>, Bound<'py, PyString>, Bound<'py, PyDict>, Bound<'py, PyBytes>);

static NAMES: PyOnceLock<[Py<PyString>; KNOWN.len()]> = PyOnceLock::new();

/// Read the upgrade request that is all of `data`.
#[pyfunction]
pub fn upgrade<'py>(py: Python<'py>, data: &[u8]) -> PyResult<Option<Upgrade<'py>>> {
    let Some(asked) = read(data) else {
        return Ok(None);
    };
    let text = |range: Range<usize>| std::str::from_utf8(&data[range]).expect("it is ASCII");
    let target = text(asked.target);
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let names = NAMES.get_or_init(py, || KNOWN.map(|name| PyString::intern(py, name).unbind()));
    let headers = PyDict::new(py);
    for header in asked.headers {
        let name = match &header.name {
            Name::Known(place) => names[*place].bind(py).clone(),
            Name::Other(name) => PyString::new(py, name),
        };
        headers.set_item(name, text(header.value))?;
    }
    Ok(Some((
        PyString::new(py, path),
        PyString::new(py, query),
        headers,
        PyBytes::new(py, &answer(&data[asked.key])),
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: &str = "GET /ws?x=1 HTTP/1.1\r\nHost: localhost:8787\r\nUpgrade: websocket\r\n\
        Connection: keep-alive, Upgrade\r\nSec-WebSocket-Version: 13\r\n\
        Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nX-Own: a b\r\n\r\n";

    #[test]
    fn reads_what_clients_send() {
        let data = PLAIN.as_bytes();
        let asked = read(data).expect("it is plain");
        assert_eq!(&data[asked.target], b"/ws?x=1");
        assert_eq!(asked.headers.len(), 6);
        assert!(asked.headers[5].name == Name::Other("x-own".into()));
        // The example of RFC 6455.
        assert!(answer(&data[asked.key]).ends_with(b": s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"));
    }

    #[test]
    fn leaves_everything_else_to_python() {
        for (from, to) in [
            ("GET /", "POST /"),
            ("GET /ws?x=1", "GET http://a/"),
            ("HTTP/1.1", "HTTP/1.0"),
            ("?x=1", "#x"),
            ("Host: localhost:8787\r\n", ""),
            ("Host: localhost:8787\r\n", "Host: a\r\nHost: a\r\n"),
            ("Upgrade: websocket", "Upgrade: websocket, h2c"),
            ("keep-alive, Upgrade", "close, Upgrade"),
            ("keep-alive, Upgrade", "keep-alive"),
            ("Version: 13", "Version: 12"),
            ("dGhl", "dGh"),
            ("dGhl", "dG!l"),
            ("ZQ==", "ZR=="),
            ("X-Own: a b", "X-Own: a\u{e9}"),
            ("X-Own: a b", "X-Own: a b "),
            ("X-Own: a b", "X-Own:\ta"),
            ("X-Own: a b", "X-Own: a\r\n b"),
            ("X-Own: a b", "Content-Length: 0"),
            ("X-Own: a b", "Expect: 100-continue"),
            ("X-Own: a b", "X Own: a"),
            ("a b\r\n\r\n", "a b\r\n\r\nmore"),
        ] {
            let changed = PLAIN.replacen(from, to, 1);
            assert!(changed != PLAIN, "{from}");
            assert!(read(changed.as_bytes()).is_none(), "{to}");
        }
        for size in 0..PLAIN.len() {
            assert!(read(&PLAIN.as_bytes()[..size]).is_none(), "{size}");
        }
    }
}
