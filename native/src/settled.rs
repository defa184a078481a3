//! The body of the entry that says which deliveries were acknowledged.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

const ACKED: u8 = 1;

/// Append a whole number as MessagePack.
fn put_number(number: u64, out: &mut Vec<u8>) {
    match number {
        0..=0x7f => out.push(number as u8),
        0x80..=0xff => out.extend([0xcc, number as u8]),
        0x100..=0xffff => {
            out.push(0xcd);
            out.extend((number as u16).to_be_bytes());
        }
        0x1_0000..=0xffff_ffff => {
            out.push(0xce);
            out.extend((number as u32).to_be_bytes());
        }
        _ => {
            out.push(0xcf);
            out.extend(number.to_be_bytes());
        }
    }
}

/// Append the head of something with a size: up to `few` in one byte, or in two, three or five.
fn put_head(size: usize, few: (usize, u8), heads: [Option<u8>; 3], out: &mut Vec<u8>) {
    let [small, medium, large] = heads;
    if size <= few.0 {
        out.push(few.1 | size as u8);
    } else if let (Some(small), true) = (small, size <= 0xff) {
        out.extend([small, size as u8]);
    } else if let (Some(medium), true) = (medium, size <= 0xffff) {
        out.push(medium);
        out.extend((size as u16).to_be_bytes());
    } else if let Some(large) = large {
        out.push(large);
        out.extend((size as u32).to_be_bytes());
    }
}

fn put_text(text: &str, out: &mut Vec<u8>) {
    put_head(text.len(), (31, 0xa0), [Some(0xd9), Some(0xda), Some(0xdb)], out);
    out.extend(text.as_bytes());
}

fn put_array_head(size: usize, out: &mut Vec<u8>) {
    put_head(size, (15, 0x90), [None, Some(0xdc), Some(0xdd)], out);
}

/// The body of an entry of settlements, each of them an acknowledged first attempt.
///
/// `acked` are objects with the first position, the offsets of this message and the following
/// ones, the time when they were sent, and the name of the consumer.
#[pyfunction]
pub fn acked_body<'py>(
    py: Python<'py>,
    subscription: &str,
    generation: u64,
    acked: &Bound<'py, PyList>,
) -> PyResult<Bound<'py, PyBytes>> {
    let mut parts = Vec::with_capacity(acked.len());
    let mut count = 0;
    for one in acked.iter() {
        let first: u64 = one.getattr(intern!(py, "first"))?.extract()?;
        let offsets: Vec<u64> = one.getattr(intern!(py, "offsets"))?.extract()?;
        let sent_ms: u64 = one.getattr(intern!(py, "sent_ms"))?.extract()?;
        let consumer: String = one.getattr(intern!(py, "consumer"))?.extract()?;
        count += offsets.len();
        parts.push((first, offsets, sent_ms, consumer));
    }
    let mut out = Vec::with_capacity(64 + subscription.len() + count * 48);
    put_array_head(3, &mut out);
    put_text(subscription, &mut out);
    put_number(generation, &mut out);
    put_array_head(count, &mut out);
    for (first, offsets, sent_ms, consumer) in &parts {
        // No failures, sent once, by whom, and no reason.
        let mut rest = vec![ACKED, 1, 0];
        put_number(*sent_ms, &mut rest);
        put_number(*sent_ms, &mut rest);
        put_text(consumer, &mut rest);
        put_text("", &mut rest);
        for (seq, offset) in (*first..).zip(offsets) {
            put_array_head(9, &mut out);
            put_number(seq, &mut out);
            put_number(*offset, &mut out);
            out.extend(&rest);
        }
    }
    Ok(PyBytes::new(py, &out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_take_as_few_bytes_as_they_can() {
        for (number, head, size) in [
            (0, 0, 1),
            (0x7f, 0x7f, 1),
            (0x80, 0xcc, 2),
            (0x100, 0xcd, 3),
            (0x1_0000, 0xce, 5),
            (0x1_0000_0000, 0xcf, 9),
        ] {
            let mut out = Vec::new();
            put_number(number, &mut out);
            assert_eq!((out[0], out.len()), (head, size), "{number}");
        }
    }

    #[test]
    fn texts_and_arrays_say_how_long_they_are() {
        for (size, head, head_bytes) in
            [(31, 0xbf, 1), (32, 0xd9, 2), (256, 0xda, 3), (65_536, 0xdb, 5)]
        {
            let mut out = Vec::new();
            put_text(&"x".repeat(size), &mut out);
            assert_eq!((out[0], out.len()), (head, head_bytes + size));
        }
        for (size, head) in [(15, 0x9f), (16, 0xdc), (65_536, 0xdd)] {
            let mut out = Vec::new();
            put_array_head(size, &mut out);
            assert_eq!(out[0], head);
        }
    }
}
