//! Publishes of one read with the same sender and topic, and the bodies of their log entries.

use std::ops::Range;
use std::slice::ChunksExact;

use pyo3::exceptions::{PyIndexError, PyOverflowError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

use crate::blake2b::blake2b;
use crate::envelope::Envelope;
use crate::frames::{put_text_head, text_head_bytes};
use crate::msgpack::{put_array, put_bytes, put_integer, put_null, put_text};
use crate::panics::caught;
use crate::publish::Publish;

/// The bytes of an id that the hub gives to a copy or an answer.
const ID_BYTES: usize = 36;
/// The bytes of a key for de-duplication.
pub const KEY_BYTES: usize = 10;
/// What a body holds besides strings and bytes.
const BODY_BYTES: usize = 48;

/// Where the parts of one publish are, in the text of all of them.
struct Part {
    text: Range<usize>,
    id: Range<usize>,
    kind: Range<usize>,
    /// Empty if there is none.
    data: Range<usize>,
    key: Option<Range<usize>>,
    /// Zero if it does not expire.
    ttl: i64,
    deadline: i64,
}

/// Publishes of one sender to one topic, in the order in which they came.
#[pyclass(frozen, module = "signalhub_native")]
pub struct Publishes {
    sender: Py<PyString>,
    topic: Py<PyString>,
    text: Vec<u8>,
    parts: Vec<Part>,
}

impl Publishes {
    pub fn new(sender: Py<PyString>, topic: Py<PyString>) -> Self {
        Self { sender, topic, text: Vec::new(), parts: Vec::new() }
    }

    /// Does this message belong to the run?
    pub fn is_of(&self, py: Python<'_>, sender: &[u8], topic: &[u8]) -> PyResult<bool> {
        let is_same = self.topic.to_str(py)?.as_bytes() == topic;
        Ok(is_same && self.sender.to_str(py)?.as_bytes() == sender)
    }

    /// Add a message, given as its text and where its parts are in it.
    pub fn push(&mut self, text: &[u8], envelope: &Envelope, publish: &Publish) {
        let from = self.text.len();
        let at = |range: &Range<usize>| range.start + from..range.end + from;
        self.parts.push(Part {
            text: from..from + text.len(),
            id: at(&envelope.id),
            kind: at(&publish.kind),
            data: at(&publish.data),
            key: publish.key.as_ref().map(at),
            ttl: envelope.ttl,
            deadline: envelope.timestamp + envelope.ttl,
        });
        self.text.extend_from_slice(text);
    }

    fn part(&self, range: &Range<usize>) -> &[u8] {
        &self.text[range.clone()]
    }
}

// An answer, in the order of its bytes.
const ID: &[u8] = b"{\"id\":\"";
const TO: &[u8] = b"\",\"from\":\"@(cloudflare/signal-hub)\",\"to\":\"";
const PAYLOAD: &[u8] = b"\",\"type\":\"hub:published\",\"payload\":";
const CORRELATION: &[u8] = b",\"pattern\":\"tell\",\"correlationId\":\"";
const STAMP: &[u8] = b"\",\"timestamp\":";
const END: &[u8] = b",\"metadata\":{},\"ttl\":null,\"signature\":null}";

#[pymethods]
impl Publishes {
    /// The type of its messages.
    #[classattr]
    const KIND: &'static str = "hub:publish";

    #[getter]
    fn sender(&self, py: Python<'_>) -> Py<PyString> {
        self.sender.clone_ref(py)
    }

    #[getter]
    fn topic(&self, py: Python<'_>) -> Py<PyString> {
        self.topic.clone_ref(py)
    }

    #[getter]
    fn count(&self) -> usize {
        self.parts.len()
    }

    /// When the first of them expires, by the clock of their sender; `None` if none does.
    #[getter]
    fn deadline(&self) -> Option<i64> {
        self.parts.iter().filter(|part| part.ttl > 0).map(|part| part.deadline).min()
    }

    /// The bytes of its messages.
    #[getter]
    fn size(&self) -> usize {
        self.text.len()
    }

    /// The messages as they were received.
    fn messages<'py>(&self, py: Python<'py>) -> Vec<Bound<'py, PyBytes>> {
        self.parts.iter().map(|part| PyBytes::new(py, self.part(&part.text))).collect()
    }

    /// The keys of the messages of runs for de-duplication, as `fingerprint` makes them.
    #[staticmethod]
    fn keys<'py>(
        py: Python<'py>,
        runs: Vec<Bound<'py, Self>>,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        caught(|| {
            let mut keys = Vec::with_capacity(runs.len());
            for run in &runs {
                run.get().put_keys(py, &mut keys)?;
            }
            Ok(keys)
        })
    }

    /// The bodies of the entries of runs; `ids` are concatenated, `ahead_ms` says for each run what
    /// is added to deadlines.
    #[staticmethod]
    fn bodies(
        py: Python<'_>,
        runs: Vec<Bound<'_, Self>>,
        ids: &[u8],
        ahead_ms: Vec<i64>,
    ) -> PyResult<Bodies> {
        caught(|| {
            let mut ids = ids.chunks_exact(ID_BYTES);
            let size = runs.iter().map(|run| run.get().body_bytes(py)).sum::<PyResult<usize>>()?;
            let count = runs.iter().map(|run| run.get().parts.len()).sum();
            let mut bodies =
                Bodies { bytes: Vec::with_capacity(size), ends: Vec::with_capacity(count) };
            for (run, ahead_ms) in runs.iter().zip(ahead_ms) {
                run.get().put_bodies(py, &mut ids, ahead_ms, &mut bodies)?;
            }
            Ok(bodies)
        })
    }

    /// The frames of the answers of each run; `ids` are concatenated.
    ///
    /// A payload is `head`, the position, which begins with the first of the run, and `tail`.
    #[staticmethod]
    fn answers<'py>(
        runs: Vec<Bound<'py, Self>>,
        first_seqs: Vec<u64>,
        ids: &[u8],
        head: &[u8],
        tail: &[u8],
        now_ms: i64,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        caught(|| answered(&runs, &first_seqs, ids, head, tail, now_ms))
    }
}

impl Publishes {
    fn put_keys<'py>(&self, py: Python<'py>, keys: &mut Vec<Bound<'py, PyBytes>>) -> PyResult<()> {
        let sender = self.sender.to_str(py)?;
        let head = format!("{} {sender}", sender.len());
        for part in &self.parts {
            let key = blake2b::<KEY_BYTES>(&[head.as_bytes(), self.part(&part.id)]);
            keys.push(PyBytes::new(py, &key));
        }
        Ok(())
    }

    /// At most so many bytes are its bodies, unless a text needs a longer head than most.
    fn body_bytes(&self, py: Python<'_>) -> PyResult<usize> {
        let sender = self.sender.to_str(py)?.len();
        let size_of = |part: &Part| {
            let key = part.key.as_ref().map_or(0, Range::len);
            let own = part.id.len() + part.kind.len() + part.data.len() + key;
            own + sender + ID_BYTES + BODY_BYTES
        };
        Ok(self.parts.iter().map(size_of).sum())
    }

    fn put_bodies(
        &self,
        py: Python<'_>,
        ids: &mut ChunksExact<'_, u8>,
        ahead_ms: i64,
        bodies: &mut Bodies,
    ) -> PyResult<()> {
        let sender = self.sender.to_str(py)?.as_bytes();
        for part in &self.parts {
            let id = ids.next().ok_or_else(|| PyIndexError::new_err("too few ids"))?;
            let out = &mut bodies.bytes;
            put_array(out, 15);
            put_text(out, self.part(&part.id));
            put_bytes(out, id);
            put_text(out, sender);
            put_text(out, self.part(&part.kind));
            put_bytes(out, if part.data.is_empty() { b"null" } else { self.part(&part.data) });
            put_bytes(out, b"");
            if part.ttl > 0 {
                let deadline = part.deadline.checked_add(ahead_ms);
                put_integer(out, part.ttl);
                put_integer(out, deadline.ok_or_else(|| PyOverflowError::new_err("a deadline"))?);
            } else {
                put_null(out);
                put_null(out);
            }
            match &part.key {
                Some(key) => put_text(out, self.part(key)),
                None => put_null(out),
            }
            // Headers, delivery time, and what only messages sent again have.
            for _ in 0..6 {
                put_null(out);
            }
            bodies.ends.push(bodies.bytes.len());
        }
        Ok(())
    }
}

fn answered<'py>(
    runs: &[Bound<'py, Publishes>],
    first_seqs: &[u64],
    ids: &[u8],
    head: &[u8],
    tail: &[u8],
    now_ms: i64,
) -> PyResult<Vec<Bound<'py, PyBytes>>> {
    let stamp = now_ms.to_string();
    let mut ids = ids.chunks_exact(ID_BYTES);
    let mut answers = Vec::with_capacity(runs.len());
    let mut out = Vec::new();
    for (run, first_seq) in runs.iter().zip(first_seqs) {
        out.clear();
        let to = run.get().sender.to_str(run.py())?.as_bytes();
        let fixed = [ID, TO, to, PAYLOAD, head, tail, CORRELATION, STAMP, stamp.as_bytes(), END];
        let fixed = fixed.iter().map(|one| one.len()).sum::<usize>() + ID_BYTES;
        for (seq, part) in (*first_seq..).zip(&run.get().parts) {
            let id = ids.next().ok_or_else(|| PyIndexError::new_err("too few ids"))?;
            let (seq, original) = (seq.to_string(), run.get().part(&part.id));
            push_text_head(fixed + seq.len() + original.len(), &mut out);
            for bytes in [
                ID,
                id,
                TO,
                to,
                PAYLOAD,
                head,
                seq.as_bytes(),
                tail,
                CORRELATION,
                original,
                STAMP,
                stamp.as_bytes(),
                END,
            ] {
                out.extend_from_slice(bytes);
            }
        }
        answers.push(PyBytes::new(run.py(), &out));
    }
    Ok(answers)
}

fn push_text_head(size: usize, out: &mut Vec<u8>) {
    let mut at = out.len();
    out.resize(at + text_head_bytes(size), 0);
    put_text_head(size, out, &mut at);
}

/// The bodies of log entries, one after the other.
#[pyclass(frozen, module = "signalhub_native")]
pub struct Bodies {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Bodies {
    /// The bytes of each.
    pub fn each(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(&0).chain(&self.ends);
        starts.zip(&self.ends).map(|(start, end)| &self.bytes[*start..*end])
    }
}

#[pymethods]
impl Bodies {
    /// The bytes of all of them.
    fn __len__(&self) -> usize {
        self.bytes.len()
    }

    #[getter]
    fn count(&self) -> usize {
        self.ends.len()
    }

    /// The bytes of each.
    fn sizes(&self) -> Vec<usize> {
        self.each().map(<[u8]>::len).collect()
    }

    /// One of them.
    fn body<'py>(&self, py: Python<'py>, at: usize) -> PyResult<Bound<'py, PyBytes>> {
        let body = self.each().nth(at).ok_or_else(|| PyIndexError::new_err("no such body"))?;
        Ok(PyBytes::new(py, body))
    }
}
