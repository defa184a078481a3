//! Acknowledgements of one read that refer to the same subscription.

use std::ops::Range;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

use crate::settle::{Settle, Subject};

/// Acknowledgements of one subscription by one consumer, in the order in which they came.
#[pyclass(frozen, module = "signalhub_native")]
pub struct Settles {
    names: [Option<Py<PyString>>; 5],
    has_ids: bool,
    number: u64,
    text: Vec<u8>,
    messages: Vec<Range<usize>>,
    seqs: Vec<i64>,
    ids: Vec<Range<usize>>,
}

impl Settles {
    pub fn new(py: Python<'_>, subject: &Subject, number: u64) -> PyResult<Self> {
        let mut names = [const { None }; 5];
        for (name, given) in names.iter_mut().zip(&subject.names) {
            if let Some(given) = given {
                *name = Some(PyString::from_bytes(py, given)?.unbind());
            }
        }
        Ok(Self {
            names,
            has_ids: subject.has_ids,
            number,
            text: Vec::new(),
            messages: Vec::new(),
            seqs: Vec::new(),
            ids: Vec::new(),
        })
    }

    /// Does one with this number belong to the run?
    pub fn is_of(&self, number: u64) -> bool {
        self.number == number
    }

    /// Add one, given as its text and what it names.
    pub fn push(&mut self, text: &[u8], settle: Settle) {
        let from = self.text.len();
        self.text.extend_from_slice(text);
        self.messages.push(from..self.text.len());
        self.seqs.extend(settle.seqs);
        self.ids.extend(settle.ids.into_iter().map(|id| id.start + from..id.end + from));
    }

    fn name(&self, py: Python<'_>, at: usize) -> Option<Py<PyString>> {
        self.names[at].as_ref().map(|name| name.clone_ref(py))
    }
}

#[pymethods]
impl Settles {
    /// The type of its messages.
    #[classattr]
    const KIND: &'static str = "hub:ack";

    #[getter]
    fn subscription_id(&self, py: Python<'_>) -> Option<Py<PyString>> {
        self.name(py, 0)
    }

    #[getter]
    fn topic(&self, py: Python<'_>) -> Option<Py<PyString>> {
        self.name(py, 1)
    }

    #[getter]
    fn subscription(&self, py: Python<'_>) -> Option<Py<PyString>> {
        self.name(py, 2)
    }

    #[getter]
    fn stream(&self, py: Python<'_>) -> Option<Py<PyString>> {
        self.name(py, 3)
    }

    #[getter]
    fn epoch(&self, py: Python<'_>) -> Option<Py<PyString>> {
        self.name(py, 4)
    }

    #[getter]
    fn count(&self) -> usize {
        self.messages.len()
    }

    /// The messages as they were received.
    fn messages<'py>(&self, py: Python<'py>) -> Vec<Bound<'py, PyBytes>> {
        self.messages.iter().map(|range| PyBytes::new(py, &self.text[range.clone()])).collect()
    }

    /// The positions, as the first and the last one of each row without gaps.
    fn rows(&self) -> Vec<(i64, i64)> {
        let mut rows: Vec<(i64, i64)> = Vec::new();
        for seq in &self.seqs {
            match rows.last_mut() {
                Some((_, last)) if *last + 1 == *seq => *last = *seq,
                _ => rows.push((*seq, *seq)),
            }
        }
        rows
    }

    /// The positions, each with the id of the attempt, if they have ids.
    fn pairs<'py>(&self, py: Python<'py>) -> Vec<(i64, Option<Bound<'py, PyString>>)> {
        let text_of = |range: &Range<usize>| {
            // It is ASCII.
            PyString::new(py, &String::from_utf8_lossy(&self.text[range.clone()]))
        };
        let id_of = |at: usize| self.ids.get(at).map(text_of);
        self.seqs.iter().enumerate().map(|(at, seq)| (*seq, id_of(at))).collect()
    }

    /// Does it name only first attempts, whose ids begin with `prefix`, or none in particular?
    fn is_first(&self, prefix: &[u8]) -> bool {
        let is_first = |(id, seq): (&Range<usize>, &i64)| {
            let rest = self.text[id.clone()].strip_prefix(prefix);
            rest.and_then(|rest| rest.strip_suffix(b".1")) == Some(seq.to_string().as_bytes())
        };
        !self.has_ids || self.ids.iter().zip(&self.seqs).all(is_first)
    }
}
