//! Tells of one read with the same sender and target.

use std::ops::Range;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

use crate::envelope::{Envelope, Send};
use crate::frames::{put_text_head, text_head_bytes};
use crate::panics::caught;

/// The bytes of an id that the hub gives to a copy.
pub const ID_BYTES: usize = 36;

/// Where the parts of one tell are, in the text of all of them.
#[derive(Clone)]
pub struct Tell {
    pub text: Range<usize>,
    pub id: Range<usize>,
    pub kind: Range<usize>,
    /// Empty if there is none.
    pub data: Range<usize>,
    /// The inside of the object.
    pub metadata: Range<usize>,
    /// When it expires, by the clock of its sender; zero if it does not.
    pub deadline: i64,
    /// Empty if it does not expire.
    pub ttl: Range<usize>,
}

impl Tell {
    /// The sender, the target and the parts of a message whose text is at `text`.
    pub fn of(
        envelope: &Envelope,
        send: &Send,
        text: &Range<usize>,
    ) -> (Range<usize>, Range<usize>, Self) {
        let at = |range: &Range<usize>| range.start + text.start..range.end + text.start;
        let to = if send.to.is_empty() { &envelope.to } else { &send.to };
        let tell = Self {
            text: text.clone(),
            id: at(&envelope.id),
            kind: at(&send.kind),
            data: at(&send.data),
            metadata: at(&envelope.metadata),
            deadline: envelope.timestamp + envelope.ttl,
            ttl: if envelope.ttl > 0 { at(&envelope.ttl_text) } else { 0..0 },
        };
        (at(&envelope.sender), at(to), tell)
    }

    fn deadline(&self) -> Option<i64> {
        (!self.ttl.is_empty()).then_some(self.deadline)
    }

    /// The same parts, in a text that begins at `to` instead of `from`.
    pub fn moved(mut self, from: usize, to: usize) -> Self {
        for range in [
            &mut self.text,
            &mut self.id,
            &mut self.kind,
            &mut self.data,
            &mut self.metadata,
            &mut self.ttl,
        ] {
            *range = range.start.wrapping_sub(from).wrapping_add(to)
                ..range.end.wrapping_sub(from).wrapping_add(to);
        }
        self
    }
}

/// Tells of one sender to one target, in the order in which they came.
#[pyclass(frozen, module = "signalhub_native")]
pub struct Tells {
    sender: Py<PyString>,
    to: Py<PyString>,
    text: Vec<u8>,
    tells: Vec<Tell>,
}

impl Tells {
    pub fn new(sender: Py<PyString>, to: Py<PyString>, size: usize) -> Self {
        Self { sender, to, text: Vec::with_capacity(size), tells: Vec::new() }
    }

    pub fn is_from(&self, py: Python<'_>, sender: &[u8]) -> PyResult<bool> {
        Ok(self.sender.to_str(py)?.as_bytes() == sender)
    }

    pub fn is_to(&self, py: Python<'_>, to: &[u8]) -> PyResult<bool> {
        Ok(self.to.to_str(py)?.as_bytes() == to)
    }

    /// Add one that is in `bytes`.
    pub fn push(&mut self, bytes: &[u8], tell: Tell) {
        let from = tell.text.start;
        let to = self.text.len();
        self.text.extend_from_slice(&bytes[tell.text.clone()]);
        self.tells.push(tell.moved(from, to));
    }

    fn part(&self, range: &Range<usize>) -> &[u8] {
        &self.text[range.clone()]
    }
}

// A copy of a tell, in the order of its bytes.
pub const ID: &[u8] = b"{\"id\":\"";
pub const FROM: &[u8] = b"\",\"from\":";
pub const TO: &[u8] = b",\"to\":";
pub const KIND: &[u8] = b",\"type\":\"";
pub const DATA: &[u8] = b"\",\"payload\":";
pub const STAMP: &[u8] = b",\"pattern\":\"tell\",\"correlationId\":null,\"timestamp\":";
pub const METADATA: &[u8] = b",\"metadata\":{";
pub const MARK: &[u8] =
    b"\"forwarded\":true,\"via\":\"@(cloudflare/signal-hub)\",\"originalMessageId\":\"";
pub const TTL: &[u8] = b"\"},\"ttl\":";
pub const END: &[u8] = b",\"signature\":null}";
pub const NULL: &[u8] = b"null";

#[pymethods]
impl Tells {
    /// The type of its messages.
    #[classattr]
    const KIND: &'static str = "hub:send";

    #[getter]
    fn sender(&self, py: Python<'_>) -> Py<PyString> {
        self.sender.clone_ref(py)
    }

    #[getter]
    fn to(&self, py: Python<'_>) -> Py<PyString> {
        self.to.clone_ref(py)
    }

    #[getter]
    fn count(&self) -> usize {
        self.tells.len()
    }

    /// When the first of them expires, by the clock of their sender; `None` if none does.
    #[getter]
    fn deadline(&self) -> Option<i64> {
        self.tells.iter().filter_map(Tell::deadline).min()
    }

    /// When each of them expires.
    fn deadlines(&self) -> Vec<Option<i64>> {
        self.tells.iter().map(Tell::deadline).collect()
    }

    /// The messages as they were received.
    fn messages<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let copy = |tell: &Tell| PyBytes::new(py, self.part(&tell.text));
        caught(|| Ok(self.tells.iter().map(copy).collect()))
    }

    /// The frames of their copies; `ids` are concatenated, both addresses are JSON.
    fn copies<'py>(
        &self,
        py: Python<'py>,
        ids: &[u8],
        sender: &[u8],
        to: &[u8],
        now_ms: i64,
    ) -> PyResult<Bound<'py, PyBytes>> {
        caught(|| self.composed(py, ids, sender, to, now_ms))
    }
}

impl Tells {
    fn composed<'py>(
        &self,
        py: Python<'py>,
        ids: &[u8],
        sender: &[u8],
        to: &[u8],
        now_ms: i64,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let stamp = now_ms.to_string();
        let fixed = ID.len()
            + ID_BYTES
            + FROM.len()
            + sender.len()
            + TO.len()
            + to.len()
            + KIND.len()
            + DATA.len()
            + STAMP.len()
            + stamp.len()
            + METADATA.len()
            + MARK.len()
            + TTL.len()
            + END.len();
        let size_of = |tell: &Tell| {
            let data = if tell.data.is_empty() { NULL.len() } else { tell.data.len() };
            let metadata = tell.metadata.len() + usize::from(!tell.metadata.is_empty());
            let ttl = if tell.ttl.is_empty() { NULL.len() } else { tell.ttl.len() };
            fixed + tell.kind.len() + data + metadata + tell.id.len() + ttl
        };
        let whole = self.tells.iter().map(size_of).map(|size| size + text_head_bytes(size)).sum();
        PyBytes::new_with(py, whole, |out| {
            let mut at = 0;
            for (tell, id) in self.tells.iter().zip(ids.chunks(ID_BYTES)) {
                put_text_head(size_of(tell), out, &mut at);
                let mut put = |bytes: &[u8]| {
                    out[at..at + bytes.len()].copy_from_slice(bytes);
                    at += bytes.len();
                };
                for bytes in [ID, id, FROM, sender, TO, to, KIND, self.part(&tell.kind), DATA] {
                    put(bytes);
                }
                put(if tell.data.is_empty() { NULL } else { self.part(&tell.data) });
                for bytes in [STAMP, stamp.as_bytes(), METADATA] {
                    put(bytes);
                }
                if !tell.metadata.is_empty() {
                    put(self.part(&tell.metadata));
                    put(b",");
                }
                for bytes in [MARK, self.part(&tell.id), TTL] {
                    put(bytes);
                }
                put(if tell.ttl.is_empty() { NULL } else { self.part(&tell.ttl) });
                put(END);
            }
            Ok(())
        })
    }
}
