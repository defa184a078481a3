//! HTTP/1.1 requests that need no second look: whole, with a known method, and nothing in the head
//! that changes where a request ends.

use std::ops::Range;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString};

/// Longer heads are for Python, which has a limit of its own.
const HEAD_BYTES_MAX: usize = 8 * 1024;
const HEADERS_MAX: usize = 32;
/// Up to 999 999 bytes; larger bodies do not arrive in one read.
const LENGTH_DIGITS_MAX: usize = 6;
const LINE_END: &[u8] = b" HTTP/1.1\r\n";

/// Headers whose names are made only once.
pub const KNOWN: [&str; 15] = [
    "host",
    "content-type",
    "content-length",
    "x-inbox-id",
    "x-room-id",
    "x-pseudonym-id",
    "authorization",
    "accept",
    "accept-encoding",
    "accept-language",
    "connection",
    "origin",
    "referer",
    "user-agent",
    "if-match",
];
const HOST: usize = 0;
const CONTENT_LENGTH: usize = 2;
const CONNECTION: usize = 10;
const NAME_BYTES_MAX: usize = 32;
/// What they mean depends on more than their value, so they are for Python.
const LEFT_TO_PYTHON: [&[u8]; 5] =
    [b"expect", b"proxy-connection", b"trailer", b"transfer-encoding", b"upgrade"];

const fn table(marks: &[u8]) -> [bool; 256] {
    let mut found = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        found[byte] = (byte as u8).is_ascii_alphanumeric();
        byte += 1;
    }
    let mut at = 0;
    while at < marks.len() {
        found[marks[at] as usize] = true;
        at += 1;
    }
    found
}

const TARGET: [bool; 256] = table(b"-._~/?=&%:,+@!$*");
const NAME: [bool; 256] = table(b"-");

/// A header: its name in lower case or the place of that in `KNOWN`, and where its value is.
pub struct Header {
    known: Option<usize>,
    name: [u8; NAME_BYTES_MAX],
    name_bytes: usize,
    pub value: Range<usize>,
}

impl Header {
    /// Its place in `KNOWN`.
    pub fn place(&self) -> Option<usize> {
        self.known
    }

    fn name(&self) -> &[u8] {
        &self.name[..self.name_bytes]
    }
}

/// A request, and where its parts are.
pub struct Found {
    is_post: bool,
    path: Range<usize>,
    query: Range<usize>,
    pub headers: Vec<Header>,
    pub host: usize,
    pub body: Range<usize>,
}

/// Read the request that begins at `at`; `None` if it is not whole, or Python has to read it.
pub fn read_one(data: &[u8], at: usize) -> Option<Found> {
    let rest = &data[at..];
    let (is_post, target) = if rest.starts_with(b"POST /") {
        (true, at + 5)
    } else if rest.starts_with(b"GET /") {
        (false, at + 4)
    } else {
        return None;
    };
    let target = target..target + run(&data[target..], &TARGET);
    if !data[target.end..].starts_with(LINE_END) {
        return None;
    }
    let mut line = target.end + LINE_END.len();
    let mut headers = Vec::with_capacity(8);
    let (mut host, mut length) = (None, None);
    while !data[line..].starts_with(b"\r\n") {
        let (header, end) = read_header(data, line)?;
        let value = &data[header.value.clone()];
        match header.known {
            Some(HOST) => host = Some(headers.len()),
            Some(CONTENT_LENGTH) => length = Some(number(value)?),
            Some(CONNECTION) if !value.eq_ignore_ascii_case(b"keep-alive") => return None,
            None if LEFT_TO_PYTHON.contains(&header.name()) => return None,
            _ => {}
        }
        if headers.len() == HEADERS_MAX || headers.iter().any(|one| is_same(one, &header)) {
            return None;
        }
        headers.push(header);
        line = end;
    }
    let body = line + 2;
    if body - at > HEAD_BYTES_MAX || is_post != length.is_some() {
        return None;
    }
    let body = body..body + length.unwrap_or(0);
    if body.end > data.len() {
        return None;
    }
    let question = target.clone().find(|one| data[*one] == b'?').unwrap_or(target.end);
    Some(Found {
        is_post,
        path: target.start..question,
        query: (question + 1).min(target.end)..target.end,
        headers,
        host: host?,
        body,
    })
}

/// How many bytes of the table it begins with.
fn run(data: &[u8], table: &[bool; 256]) -> usize {
    data.iter().position(|byte| !table[*byte as usize]).unwrap_or(data.len())
}

fn is_same(one: &Header, other: &Header) -> bool {
    one.known == other.known && (one.known.is_some() || one.name() == other.name())
}

/// Read a header of one line; return it and where the next line begins.
fn read_header(data: &[u8], line: usize) -> Option<(Header, usize)> {
    let size = run(&data[line..], &NAME);
    if size == 0 || size > NAME_BYTES_MAX || data.get(line + size) != Some(&b':') {
        return None;
    }
    let mut name = [0; NAME_BYTES_MAX];
    name[..size].copy_from_slice(&data[line..line + size]);
    name[..size].make_ascii_lowercase();
    let known = KNOWN.iter().position(|one| one.as_bytes() == &name[..size]);
    let begin = line + size + 1;
    let begin = begin + data[begin..].iter().position(|byte| *byte != b' ')?;
    let end = begin + data[begin..].iter().position(|byte| !matches!(byte, 0x20..=0x7e))?;
    if begin == end || data[end - 1] == b' ' || !data[end..].starts_with(b"\r\n") {
        return None;
    }
    Some((Header { known, name, name_bytes: size, value: begin..end }, end + 2))
}

fn number(digits: &[u8]) -> Option<usize> {
    let is_plain = digits.len() <= LENGTH_DIGITS_MAX && (digits[0] != b'0' || digits.len() == 1);
    if !is_plain || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    Some(digits.iter().fold(0, |sum, digit| sum * 10 + usize::from(digit - b'0')))
}

/// Makes requests for Python of what a connection has read.
#[pyclass(module = "signalhub_native", frozen)]
pub struct Requests {
    request: Py<PyAny>,
    names: Vec<Py<PyString>>,
    get: Py<PyString>,
    post: Py<PyString>,
    nothing: Py<PyString>,
    no_body: Py<PyBytes>,
    version: Py<PyString>,
}

#[pymethods]
impl Requests {
    /// `request` is called with method, path, query, headers, body, version, whether the connection
    /// is kept, the host, and both network addresses.
    #[new]
    fn new(py: Python<'_>, request: Py<PyAny>) -> Self {
        let text = |one: &str| PyString::intern(py, one).unbind();
        Self {
            request,
            names: KNOWN.iter().map(|one| text(one)).collect(),
            get: text("GET"),
            post: text("POST"),
            nothing: text(""),
            no_body: PyBytes::new(py, b"").unbind(),
            version: text("1.1"),
        }
    }

    /// Return the plain requests at the beginning of what was read, and where the rest begins.
    fn read<'py>(
        &self,
        py: Python<'py>,
        data: &[u8],
        peer: &Bound<'py, PyString>,
        local: &Bound<'py, PyString>,
    ) -> PyResult<(Bound<'py, PyList>, usize)> {
        let requests = PyList::empty(py);
        let mut at = 0;
        while at < data.len() {
            let Some(found) = read_one(data, at) else { break };
            requests.append(self.made(py, data, &found, peer, local)?)?;
            at = found.body.end;
        }
        Ok((requests, at))
    }
}

impl Requests {
    fn made<'py>(
        &self,
        py: Python<'py>,
        data: &[u8],
        found: &Found,
        peer: &Bound<'py, PyString>,
        local: &Bound<'py, PyString>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let text = |range: &Range<usize>| PyString::from_bytes(py, &data[range.clone()]);
        let headers = PyDict::new(py);
        let mut host = None;
        for (place, header) in found.headers.iter().enumerate() {
            let value = text(&header.value)?;
            match header.known {
                Some(known) => headers.set_item(self.names[known].bind(py), &value)?,
                None => headers.set_item(PyString::from_bytes(py, header.name())?, &value)?,
            }
            if place == found.host {
                host = Some(value);
            }
        }
        let query = if found.query.is_empty() {
            self.nothing.bind(py).clone()
        } else {
            text(&found.query)?
        };
        let body = if found.body.is_empty() {
            self.no_body.bind(py).clone()
        } else {
            PyBytes::new(py, &data[found.body.clone()])
        };
        self.request.bind(py).call1((
            if found.is_post { &self.post } else { &self.get },
            text(&found.path)?,
            query,
            headers,
            body,
            &self.version,
            true,
            host,
            peer,
            local,
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POST: &str =
        "POST /api?a=b HTTP/1.1\r\nHost: a\r\nX-Odd:  b c\r\nContent-Length: 2\r\n\r\n{}";

    fn read(text: &str) -> Option<Found> {
        read_one(text.as_bytes(), 0)
    }

    #[test]
    fn reads_a_request_and_leaves_what_follows() {
        let text = format!("{POST}GET / HTTP/1.1\r\n");
        let found = read(&text).expect("a plain request");

        assert!(found.is_post);
        assert_eq!((&text[found.path], &text[found.query]), ("/api", "a=b"));
        assert_eq!(found.headers[1].name(), b"x-odd");
        assert_eq!(&text[found.headers[1].value.clone()], "b c");
        assert_eq!(&text[found.body], "{}");
        assert!(read_one(text.as_bytes(), POST.len()).is_none());
    }

    #[test]
    fn every_part_of_a_request_is_for_python() {
        for end in 0..POST.len() {
            assert!(read(&POST[..end]).is_none(), "{}", &POST[..end]);
        }
    }

    #[test]
    fn whatever_is_unusual_is_for_python() {
        let plain = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
        assert!(read(plain).is_some());
        for (from, to) in [
            ("GET", "get"),
            ("GET", "PUT"),
            ("GET ", "GET  "),
            ("GET /", "GET http://a/"),
            ("/ ", "/\u{e9} "),
            ("1.1", "1.0"),
            ("\r\n", "\n"),
            ("Host: a", "Host: "),
            ("Host: a", "Host: a "),
            ("Host: a", "Host : a"),
            ("Host: a", "Host: a\r\nhost: a"),
            ("Host: a", "Host: a\r\n b"),
            ("Host: a", "Host: a\r\nX: \u{e9}"),
            ("Host: a", "Host: a\r\nX: a\tb"),
            ("Host: a", "X: a"),
            ("Host: a", "Host: a\r\nContent-Length: 0"),
            ("Host: a", "Host: a\r\nConnection: close"),
            ("Host: a", "Host: a\r\nExpect: 100-continue"),
            ("Host: a", "Host: a\r\nTransfer-Encoding: chunked"),
            ("Host: a", "Host: a\r\nUpgrade: websocket"),
        ] {
            assert!(read(&plain.replacen(from, to, 1)).is_none(), "{to}");
        }
        let long = format!("{}: b", "a".repeat(NAME_BYTES_MAX + 1));
        for more in [long, format!("A: {}", "b".repeat(HEAD_BYTES_MAX))] {
            assert!(read(&plain.replace("Host: a", &format!("Host: a\r\n{more}"))).is_none());
        }
        let many: String = (0..HEADERS_MAX).map(|one| format!("\r\nX-{one}: a")).collect();
        assert!(read(&plain.replace("Host: a", &format!("Host: a{many}"))).is_none());
    }

    #[test]
    fn lengths_are_plain_numbers() {
        for length in ["", "+2", "02", "2 ", "0x2", "2,2", "1000000"] {
            assert!(read(&POST.replace("h: 2", &format!("h: {length}"))).is_none(), "{length}");
        }
        assert!(read("POST / HTTP/1.1\r\nHost: a\r\n\r\n").is_none());
        assert!(read("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n").is_some());
    }
}
