//! One ask: its key, the body of its log entry, its copy, and what its sender is told.

use std::ops::Range;

use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

use crate::blake2b::blake2b;
use crate::frames::{put_text_head, text_head_bytes};
use crate::msgpack::{put_array, put_bytes, put_integer, put_null, put_text};
use crate::panics::caught;
use crate::publishes::KEY_BYTES;
use crate::tells::{
    DATA, END, FROM, ID, ID_BYTES, KIND, MARK, METADATA, NULL, STAMP, TO, TTL, Tell,
};

/// What a body holds besides strings and bytes.
const BODY_BYTES: usize = 48;

// An answer, in the order of its bytes.
const ANSWER_TO: &[u8] = b"\",\"from\":\"@(cloudflare/signal-hub)\",\"to\":\"";
const PAYLOAD: &[u8] = b"\",\"type\":\"hub:delivery_ack\",\"payload\":{\"messageId\":\"";
const CORRELATION: &[u8] = b"},\"pattern\":\"tell\",\"correlationId\":\"";
const ANSWER_STAMP: &[u8] = b"\",\"timestamp\":";
const ANSWER_END: &[u8] = b",\"metadata\":{},\"ttl\":null,\"signature\":null}";

/// An ask of one sender to one target.
#[pyclass(frozen, module = "signalhub_native")]
pub struct Ask {
    sender: Py<PyString>,
    to: Py<PyString>,
    text: Vec<u8>,
    parts: Tell,
    ttl: i64,
    /// As it was sent; empty if it is null or missing.
    metadata: Range<usize>,
}

impl Ask {
    /// An ask, given as its text and where its parts are in it.
    pub fn new(
        sender: Py<PyString>,
        to: Py<PyString>,
        text: &[u8],
        parts: Tell,
        ttl: i64,
    ) -> Option<Self> {
        let metadata = whole_metadata(text, &parts.metadata)?;
        Some(Self { sender, to, text: text.to_vec(), parts, ttl, metadata })
    }

    fn part(&self, range: &Range<usize>) -> &[u8] {
        &self.text[range.clone()]
    }

    fn or_null(&self, range: &Range<usize>) -> &[u8] {
        if range.is_empty() { NULL } else { self.part(range) }
    }
}

/// Where metadata is, with its braces; `None` if there is white space between these and the inside.
fn whole_metadata(text: &[u8], inside: &Range<usize>) -> Option<Range<usize>> {
    if inside.is_empty() && text[inside.end..].first() != Some(&b'}') {
        return Some(0..0);
    }
    let is_tight = text[inside.start - 1] == b'{' && text[inside.end] == b'}';
    is_tight.then_some(inside.start - 1..inside.end + 1)
}

#[pymethods]
impl Ask {
    /// What kind of run it is; its type alone does not tell.
    #[classattr]
    const KIND: &'static str = "ask";

    #[getter]
    fn sender(&self, py: Python<'_>) -> Py<PyString> {
        self.sender.clone_ref(py)
    }

    #[getter]
    fn to(&self, py: Python<'_>) -> Py<PyString> {
        self.to.clone_ref(py)
    }

    #[getter]
    fn id<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyString>> {
        PyString::from_bytes(py, self.part(&self.parts.id))
    }

    #[getter]
    fn count(&self) -> usize {
        1
    }

    /// When it expires, by the clock of its sender; `None` if it does not.
    #[getter]
    fn deadline(&self) -> Option<i64> {
        (self.ttl > 0).then_some(self.parts.deadline)
    }

    /// The message as it was received.
    fn messages<'py>(&self, py: Python<'py>) -> Vec<Bound<'py, PyBytes>> {
        vec![PyBytes::new(py, &self.text)]
    }

    /// Its key for de-duplication, as `fingerprint` makes it.
    fn key<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        caught(|| {
            let sender = self.sender.to_str(py)?;
            let head = format!("{} ", sender.len());
            let parts = [head.as_bytes(), sender.as_bytes(), self.part(&self.parts.id)];
            Ok(PyBytes::new(py, &blake2b::<KEY_BYTES>(&parts)))
        })
    }

    /// The body of its entry; it expires at `expires_at`, if at all.
    fn body<'py>(
        &self,
        py: Python<'py>,
        copy_id: &[u8],
        expires_at: Option<i64>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        caught(|| {
            let sender = self.sender.to_str(py)?.as_bytes();
            let mut out = Vec::with_capacity(self.text.len() + BODY_BYTES);
            put_array(&mut out, 15);
            put_text(&mut out, self.part(&self.parts.id));
            put_bytes(&mut out, copy_id);
            put_text(&mut out, sender);
            put_text(&mut out, self.part(&self.parts.kind));
            put_bytes(&mut out, self.or_null(&self.parts.data));
            put_bytes(&mut out, self.or_null(&self.metadata));
            for number in [(self.ttl > 0).then_some(self.ttl), expires_at] {
                match number {
                    Some(number) => put_integer(&mut out, number),
                    None => put_null(&mut out),
                }
            }
            // Key, headers, delivery time, and what only messages sent again have.
            for _ in 0..7 {
                put_null(&mut out);
            }
            Ok(PyBytes::new(py, &out))
        })
    }

    /// The copies of asks; `ids` are concatenated, the addresses of their targets are JSON.
    #[staticmethod]
    fn copies<'py>(
        py: Python<'py>,
        asks: Vec<Bound<'py, Self>>,
        ids: &[u8],
        to: Vec<Bound<'py, PyBytes>>,
        now_ms: i64,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        caught(|| {
            let stamp = now_ms.to_string();
            let mut ids = ids.chunks_exact(ID_BYTES);
            let one = |(ask, to): (&Bound<'py, Self>, &Bound<'py, PyBytes>)| {
                let id = ids.next().ok_or_else(|| PyIndexError::new_err("too few ids"))?;
                ask.get().copy(py, id, to.as_bytes(), stamp.as_bytes())
            };
            asks.iter().zip(&to).map(one).collect()
        })
    }

    /// The frames of the answers to asks, with their headers; `ids` are concatenated.
    ///
    /// `rests` are what their payloads say after the id of the ask.
    #[staticmethod]
    fn answers<'py>(
        py: Python<'py>,
        asks: Vec<Bound<'py, Self>>,
        ids: &[u8],
        rests: Vec<Bound<'py, PyBytes>>,
        now_ms: i64,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        caught(|| {
            let stamp = now_ms.to_string();
            let mut ids = ids.chunks_exact(ID_BYTES);
            let one = |(ask, rest): (&Bound<'py, Self>, &Bound<'py, PyBytes>)| {
                let id = ids.next().ok_or_else(|| PyIndexError::new_err("too few ids"))?;
                ask.get().answer(py, id, rest.as_bytes(), stamp.as_bytes())
            };
            asks.iter().zip(&rests).map(one).collect()
        })
    }
}

impl Ask {
    fn copy<'py>(
        &self,
        py: Python<'py>,
        id: &[u8],
        to: &[u8],
        stamp: &[u8],
    ) -> PyResult<Bound<'py, PyBytes>> {
        let inside = self.part(&self.parts.metadata);
        joined(
            py,
            false,
            &[
                ID,
                id,
                FROM,
                b"\"",
                self.sender.to_str(py)?.as_bytes(),
                b"\"",
                TO,
                to,
                KIND,
                self.part(&self.parts.kind),
                DATA,
                self.or_null(&self.parts.data),
                STAMP,
                stamp,
                METADATA,
                inside,
                if inside.is_empty() { b"" } else { b"," },
                MARK,
                self.part(&self.parts.id),
                TTL,
                self.or_null(&self.parts.ttl),
                END,
            ],
        )
    }

    fn answer<'py>(
        &self,
        py: Python<'py>,
        id: &[u8],
        rest: &[u8],
        stamp: &[u8],
    ) -> PyResult<Bound<'py, PyBytes>> {
        let original = self.part(&self.parts.id);
        joined(
            py,
            true,
            &[
                ID,
                id,
                ANSWER_TO,
                self.sender.to_str(py)?.as_bytes(),
                PAYLOAD,
                original,
                b"\"",
                rest,
                CORRELATION,
                original,
                ANSWER_STAMP,
                stamp,
                ANSWER_END,
            ],
        )
    }
}

/// A message of these pieces, as a whole frame or without its header.
fn joined<'py>(
    py: Python<'py>,
    is_framed: bool,
    pieces: &[&[u8]],
) -> PyResult<Bound<'py, PyBytes>> {
    let size = pieces.iter().map(|piece| piece.len()).sum();
    let head = if is_framed { text_head_bytes(size) } else { 0 };
    PyBytes::new_with(py, head + size, |out| {
        let mut at = 0;
        if is_framed {
            put_text_head(size, out, &mut at);
        }
        for piece in pieces {
            out[at..at + piece.len()].copy_from_slice(piece);
            at += piece.len();
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(text: &str, inside: Range<usize>) -> Option<&str> {
        whole_metadata(text.as_bytes(), &inside).map(|range| &text[range])
    }

    #[test]
    fn metadata_is_found_with_its_braces() {
        assert_eq!(metadata(r#"{"metadata":{}}"#, 13..13), Some("{}"));
        assert_eq!(metadata(r#"{"metadata":{"a":1}}"#, 13..18), Some(r#"{"a":1}"#));
        assert_eq!(metadata(r#"{"metadata":null}"#, 12..12), Some(""));
        assert_eq!(metadata(r#"{"id":"m"}"#, 0..0), Some(""));
        assert_eq!(metadata(r#"{"metadata":{ "a":1}}"#, 14..19), None);
        assert_eq!(metadata(r#"{"metadata":{"a":1 }}"#, 13..18), None);
        assert_eq!(metadata(r#"{"metadata":{ }}"#, 14..14), None);
    }
}
