//! Log entries as they are written; the layout is that of `log/record.py`.

use pyo3::exceptions::{PyOverflowError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString};

use crate::publishes::Bodies;

const SALT_BYTES: usize = 16;
/// Of what precedes the salt.
const HEAD_BYTES: usize = 28;
const LENGTH_BYTES: usize = 4;

/// Consecutive entries of a stream, and where each begins in the bytes of all.
struct Group {
    stream: Py<PyString>,
    stream_epoch: u32,
    first_seq: u64,
    max_ms: u64,
    positions: Vec<u32>,
}

/// Encoded entries of one batch.
#[pyclass(frozen, module = "signalhub_native")]
pub struct Records {
    bytes: Vec<u8>,
    count: usize,
    groups: Vec<Group>,
}

/// What the entries of a run have in common.
struct Head<'a> {
    kind: u8,
    stream: &'a str,
    stream_epoch: u32,
    at_ms: u64,
}

impl Records {
    fn put(&mut self, head: &Head<'_>, seq: u64, salt: &[u8], body: &[u8]) -> PyResult<u32> {
        let position = u32::try_from(self.bytes.len())?;
        let stream = head.stream.as_bytes();
        let length = HEAD_BYTES - LENGTH_BYTES + SALT_BYTES + stream.len() + body.len();
        let out = &mut self.bytes;
        out.extend_from_slice(&u32::try_from(length)?.to_le_bytes());
        out.extend_from_slice(&[head.kind, 0]);
        out.extend_from_slice(&u16::try_from(stream.len())?.to_le_bytes());
        out.extend_from_slice(&head.stream_epoch.to_le_bytes());
        out.extend_from_slice(&seq.to_le_bytes());
        out.extend_from_slice(&head.at_ms.to_le_bytes());
        out.extend_from_slice(salt);
        out.extend_from_slice(stream);
        out.extend_from_slice(body);
        self.count += 1;
        Ok(position)
    }

    /// Note where an entry with a position in its stream begins.
    fn note(
        &mut self,
        py: Python<'_>,
        stream: &Bound<'_, PyString>,
        head: &Head<'_>,
        seq: u64,
        position: u32,
    ) -> PyResult<()> {
        if let Some(last) = self.groups.last_mut()
            && last.stream_epoch == head.stream_epoch
            && last.first_seq + last.positions.len() as u64 == seq
            && last.stream.to_str(py)? == head.stream
        {
            last.max_ms = last.max_ms.max(head.at_ms);
            last.positions.push(position);
            return Ok(());
        }
        self.groups.push(Group {
            stream: stream.clone().unbind(),
            stream_epoch: head.stream_epoch,
            first_seq: seq,
            max_ms: head.at_ms,
            positions: vec![position],
        });
        Ok(())
    }
}

/// A group as Python gets it.
type Shown<'py> = (Py<PyString>, u32, u64, u64, Bound<'py, PyBytes>);

#[pymethods]
impl Records {
    /// Encode entries and runs of entries; `salts` are concatenated.
    #[new]
    fn new(py: Python<'_>, entries: &Bound<'_, PyList>, salts: &[u8]) -> PyResult<Self> {
        let mut records = Self { bytes: Vec::new(), count: 0, groups: Vec::new() };
        let mut salts = salts.chunks_exact(SALT_BYTES);
        let mut salt = || salts.next().ok_or_else(|| PyValueError::new_err("too few salts"));
        for entry in entries {
            let stream = entry.getattr(intern!(py, "stream"))?.cast_into::<PyString>()?;
            let head = Head {
                kind: entry.getattr(intern!(py, "kind"))?.extract()?,
                stream: stream.to_str()?,
                stream_epoch: entry.getattr(intern!(py, "stream_epoch"))?.extract()?,
                at_ms: entry.getattr(intern!(py, "at_ms"))?.extract()?,
            };
            let first: u64 = entry.getattr(intern!(py, "seq"))?.extract()?;
            let body = entry.getattr(intern!(py, "body"))?;
            if let Ok(body) = body.cast::<PyBytes>() {
                let position = records.put(&head, first, salt()?, body.as_bytes())?;
                if first > 0 {
                    records.note(py, &stream, &head, first, position)?;
                }
                continue;
            }
            for (seq, body) in (first..).zip(body.cast::<Bodies>()?.get().each()) {
                let position = records.put(&head, seq, salt()?, body)?;
                records.note(py, &stream, &head, seq, position)?;
            }
        }
        Ok(records)
    }

    /// The bytes of all of them.
    #[getter]
    fn data<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.bytes)
    }

    #[getter]
    fn count(&self) -> usize {
        self.count
    }

    /// Consecutive entries of a stream: its name and epoch, the first position, the latest time,
    /// and the positions in a file in which the first entry begins at `begin`, as an array.
    fn groups<'py>(&self, py: Python<'py>, begin: u32) -> PyResult<Vec<Shown<'py>>> {
        let whole = u32::try_from(self.bytes.len())?;
        if begin.checked_add(whole).is_none() {
            return Err(PyOverflowError::new_err("the file is too large"));
        }
        let shown = |group: &Group| {
            let positions = PyBytes::new_with(py, 4 * group.positions.len(), |out| {
                for (place, position) in out.chunks_exact_mut(4).zip(&group.positions) {
                    place.copy_from_slice(&(begin + position).to_ne_bytes());
                }
                Ok(())
            })?;
            let stream = group.stream.clone_ref(py);
            Ok((stream, group.stream_epoch, group.first_seq, group.max_ms, positions))
        };
        self.groups.iter().map(shown).collect()
    }
}
