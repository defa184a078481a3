//! Copies of stored messages, and what the log says about those that were acknowledged.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyInt, PyList, PyTuple};

use crate::frames::{put_text_head, text_head_bytes};
use crate::json::is_plain;

// Where the members of a message are.
const COPY_ID: usize = 1;
const SENDER: usize = 2;
const KIND: usize = 3;
const DATA: usize = 4;
const TTL: usize = 6;
/// Key, headers, and where a copy of a copy comes from: these are for Python.
const RARE: [usize; 5] = [8, 9, 11, 13, 14];
const MEMBERS: usize = 15;

const ID: &[u8] = b"{\"id\":\"";
const FROM: &[u8] = b"\",\"from\":\"";
const PAYLOAD: &[u8] = b"\",\"payload\":";
const ATTEMPT: &[u8] = b",\"attempt\":1,\"redelivered\":false,\"publishedAt\":";
const END_OF_ID: &[u8] = b".1\"}},\"ttl\":";
const END: &[u8] = b",\"signature\":null}";
const NULL: &[u8] = b"null";

/// A number as decimal digits, without an allocation.
#[derive(Clone, Copy)]
struct Digits {
    text: [u8; 20],
    begin: usize,
}

impl Digits {
    fn of(mut number: u64) -> Self {
        let mut text = [0; 20];
        let mut begin = text.len();
        loop {
            begin -= 1;
            text[begin] = b'0' + (number % 10) as u8;
            number /= 10;
            if number == 0 {
                return Self { text, begin };
            }
        }
    }

    fn bytes(&self) -> &[u8] {
        &self.text[self.begin..]
    }
}

/// What one copy has for itself.
struct Copy<'a> {
    copy_id: &'a [u8],
    sender: &'a [u8],
    kind: &'a [u8],
    data: &'a [u8],
    seq: Digits,
    at_ms: Digits,
    /// `None` if it does not expire.
    ttl: Option<Digits>,
}

impl<'a> Copy<'a> {
    /// Read a message; `None` if Python has to compose its copy.
    fn read(message: &'a Bound<'_, PyTuple>, seq: u64, at_ms: u64) -> Option<Self> {
        let is_absent = |at: usize| message.get_borrowed_item(at).is_ok_and(|one| one.is_none());
        if message.len() != MEMBERS || !RARE.into_iter().all(is_absent) {
            return None;
        }
        let bytes = |at: usize| message.get_borrowed_item(at).ok()?.extract::<&'a [u8]>().ok();
        let name = |at: usize| {
            let text = message.get_borrowed_item(at).ok()?.extract::<&'a str>().ok()?.as_bytes();
            is_plain(text).then_some(text)
        };
        let ttl = message.get_borrowed_item(TTL).ok()?;
        let ttl = match ttl.cast_exact::<PyInt>() {
            Ok(number) => match number.extract::<u64>().ok()? {
                0 => None,
                number => Some(Digits::of(number)),
            },
            Err(_) if ttl.is_none() => None,
            Err(_) => return None,
        };
        Some(Self {
            copy_id: bytes(COPY_ID)?,
            sender: name(SENDER)?,
            kind: name(KIND)?,
            data: bytes(DATA)?,
            seq: Digits::of(seq),
            at_ms: Digits::of(at_ms),
            ttl,
        })
    }

    /// Its parts in their order; `common` are those before type, position and id.
    fn parts<'b>(&'b self, common: &'b [Vec<u8>; 3]) -> [&'b [u8]; 17] {
        let [to, middle, id] = common;
        [
            ID,
            self.copy_id,
            FROM,
            self.sender,
            to,
            self.kind,
            PAYLOAD,
            self.data,
            middle,
            self.seq.bytes(),
            ATTEMPT,
            self.at_ms.bytes(),
            id,
            self.seq.bytes(),
            END_OF_ID,
            self.ttl.as_ref().map_or(NULL, Digits::bytes),
            END,
        ]
    }
}

/// The frames of the first attempt to deliver messages to one consumer, and how many they are.
///
/// `held` are messages with consecutive positions, of which those from `begin` on are meant; the
/// one at `begin` has the position `first`. It ends before the first one that Python has to
/// compose. Given as JSON are the address, the common begin of all metadata and that of what it
/// says about deliveries; `prefix` begins the ids of attempts.
#[pyfunction]
#[expect(clippy::too_many_arguments)]
pub fn first_copies<'py>(
    py: Python<'py>,
    held: &Bound<'py, PyList>,
    begin: usize,
    first: u64,
    address: &[u8],
    metadata: &[u8],
    delivery: &[u8],
    prefix: &[u8],
    stamp_ms: u64,
) -> PyResult<(Bound<'py, PyBytes>, usize)> {
    static AS_TUPLE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let as_tuple = AS_TUPLE.import(py, "msgspec.structs", "astuple")?;
    let mut messages = Vec::with_capacity(held.len().saturating_sub(begin));
    for one in held.iter().skip(begin) {
        let Ok(at_ms) = one.getattr(intern!(py, "at_ms"))?.extract::<u64>() else { break };
        let message = as_tuple.call1((one.getattr(intern!(py, "message"))?,))?;
        messages.push((message.cast_into::<PyTuple>()?, at_ms));
    }
    let copies: Vec<Copy> = messages
        .iter()
        .zip(first..)
        .map_while(|((message, at_ms), seq)| Copy::read(message, seq, *at_ms))
        .collect();
    let stamp = Digits::of(stamp_ms);
    let common = [
        [b"\",\"to\":", address, b",\"type\":\""].concat(),
        [
            b",\"pattern\":\"tell\",\"correlationId\":null,\"timestamp\":",
            stamp.bytes(),
            b",\"metadata\":",
            metadata,
            delivery,
        ]
        .concat(),
        [b",\"id\":\"", prefix].concat(),
    ];
    let size_of = |copy: &Copy| copy.parts(&common).iter().map(|part| part.len()).sum();
    let whole = copies.iter().map(size_of).map(|size: usize| size + text_head_bytes(size)).sum();
    let frames = PyBytes::new_with(py, whole, |out| {
        let mut at = 0;
        for copy in &copies {
            put_text_head(size_of(copy), out, &mut at);
            for part in copy.parts(&common) {
                out[at..at + part.len()].copy_from_slice(part);
                at += part.len();
            }
        }
        Ok(())
    })?;
    Ok((frames, copies.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_those_of_the_number() {
        for number in [0, 7, 10, 1_760_000_000_000, u64::MAX] {
            assert_eq!(Digits::of(number).bytes(), number.to_string().as_bytes());
        }
    }
}
