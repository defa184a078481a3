//! The body of the entry that says which deliveries were acknowledged.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::msgpack::{put_array, put_integer, put_text};

const ACKED: i64 = 1;

/// Append the head of an array of any size.
fn put_long_array(out: &mut Vec<u8>, size: usize) {
    match size {
        0..16 => put_array(out, size as u8),
        16..0x1_0000 => {
            out.push(0xdc);
            out.extend((size as u16).to_be_bytes());
        }
        _ => {
            out.push(0xdd);
            out.extend((size as u32).to_be_bytes());
        }
    }
}

/// The body of an entry of settlements, each of them an acknowledged first attempt.
///
/// `acked` are objects with the first position, the offsets of this message and the following
/// ones, the time when they were sent, and the name of the consumer.
#[pyfunction]
pub fn acked_body<'py>(
    py: Python<'py>,
    subscription: &str,
    generation: i64,
    acked: &Bound<'py, PyList>,
) -> PyResult<Bound<'py, PyBytes>> {
    let mut parts = Vec::with_capacity(acked.len());
    let mut count = 0;
    for one in acked.iter() {
        let first: i64 = one.getattr(intern!(py, "first"))?.extract()?;
        let offsets: Vec<i64> = one.getattr(intern!(py, "offsets"))?.extract()?;
        let sent_ms: i64 = one.getattr(intern!(py, "sent_ms"))?.extract()?;
        let consumer: String = one.getattr(intern!(py, "consumer"))?.extract()?;
        count += offsets.len();
        parts.push((first, offsets, sent_ms, consumer));
    }
    let mut out = Vec::with_capacity(64 + subscription.len() + count * 48);
    put_array(&mut out, 3);
    put_text(&mut out, subscription.as_bytes());
    put_integer(&mut out, generation);
    put_long_array(&mut out, count);
    for (first, offsets, sent_ms, consumer) in &parts {
        // Sent once, no failures, when, by whom, and no reason.
        let mut rest = Vec::with_capacity(32 + consumer.len());
        for number in [ACKED, 1, 0, *sent_ms, *sent_ms] {
            put_integer(&mut rest, number);
        }
        put_text(&mut rest, consumer.as_bytes());
        put_text(&mut rest, b"");
        for (seq, offset) in (*first..).zip(offsets) {
            put_array(&mut out, 9);
            put_integer(&mut out, seq);
            put_integer(&mut out, *offset);
            out.extend(&rest);
        }
    }
    Ok(PyBytes::new(py, &out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_begin_with_their_size() {
        for (size, head) in
            [(15, vec![0x9f]), (16, vec![0xdc, 0, 16]), (65_536, vec![0xdd, 0, 1, 0, 0])]
        {
            let mut out = Vec::new();
            put_long_array(&mut out, size);
            assert_eq!(out, head);
        }
    }
}
