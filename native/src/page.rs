//! Answers with a list of JSON values that are kept as text.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

/// Return an HTTP answer whose body goes on with `values`, separated by commas, and with `end`.
///
/// `head` ends before the length of the body, which is counted here, and `rest` with the body's
/// beginning, which has `begun` bytes.
#[pyfunction]
pub fn listed<'py>(
    py: Python<'py>,
    head: &[u8],
    rest: &[u8],
    begun: usize,
    values: &Bound<'py, PyList>,
    end: &[u8],
) -> PyResult<Bound<'py, PyBytes>> {
    let mut size = begun + values.len().saturating_sub(1) + end.len();
    for item in values.iter() {
        size += item.cast::<PyBytes>()?.as_bytes().len();
    }
    let length = size.to_string();
    PyBytes::new_with(py, head.len() + length.len() + rest.len() + size - begun, |mut place| {
        for part in [head, length.as_bytes(), rest] {
            put(&mut place, part);
        }
        for (at, item) in values.iter().enumerate() {
            if at > 0 {
                put(&mut place, b",");
            }
            put(&mut place, item.cast::<PyBytes>()?.as_bytes());
        }
        put(&mut place, end);
        Ok(())
    })
}

/// Return the JSON of a message in a page.
#[pyfunction]
pub fn page_item<'py>(
    py: Python<'py>,
    seq: u64,
    message_id: &str,
    ciphertext: &[u8],
    created: Option<&[u8]>,
) -> PyResult<Bound<'py, PyBytes>> {
    let number = seq.to_string();
    let (name, time) = match created {
        Some(time) => (b"\",\"createdAt\":\"".as_slice(), time),
        None => (b"".as_slice(), b"".as_slice()),
    };
    let parts: [&[u8]; 9] = [
        b"{\"seq\":",
        number.as_bytes(),
        b",\"messageId\":\"",
        message_id.as_bytes(),
        b"\",\"ciphertext\":\"",
        ciphertext,
        name,
        time,
        b"\"}",
    ];
    joined(py, &parts)
}

/// Return an HTTP answer that says which position a message has got.
///
/// `head` ends before the length of the body, and `rest` with the head.
#[pyfunction]
pub fn posted<'py>(
    py: Python<'py>,
    head: &[u8],
    rest: &[u8],
    message_id: &str,
    seq: u64,
) -> PyResult<Bound<'py, PyBytes>> {
    const NAMES: [&[u8]; 3] = [b"{\"messageId\":\"", b"\",\"seq\":", b"}"];
    let number = seq.to_string();
    let names = NAMES.iter().map(|name| name.len()).sum::<usize>();
    let length = (names + message_id.len() + number.len()).to_string();
    let parts: [&[u8]; 8] = [
        head,
        length.as_bytes(),
        rest,
        NAMES[0],
        message_id.as_bytes(),
        NAMES[1],
        number.as_bytes(),
        NAMES[2],
    ];
    joined(py, &parts)
}

fn joined<'py>(py: Python<'py>, parts: &[&[u8]]) -> PyResult<Bound<'py, PyBytes>> {
    let size = parts.iter().map(|part| part.len()).sum();
    PyBytes::new_with(py, size, |mut place| {
        parts.iter().for_each(|part| put(&mut place, part));
        Ok(())
    })
}

fn put(place: &mut &mut [u8], part: &[u8]) {
    let (now, later) = std::mem::take(place).split_at_mut(part.len());
    now.copy_from_slice(part);
    *place = later;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_a_time_if_there_is_one() {
        Python::initialize();
        Python::attach(|py| {
            let text = |time| page_item(py, 7, "m", b"QUJD", time).expect("bytes");
            let bare = br#"{"seq":7,"messageId":"m","ciphertext":"QUJD"}"#;
            assert_eq!(text(None).as_bytes(), bare);
            let timed = br#"{"seq":7,"messageId":"m","ciphertext":"QUJD","createdAt":"now"}"#;
            assert_eq!(text(Some(b"now")).as_bytes(), timed);
        });
    }

    #[test]
    fn answers_say_how_long_they_are() {
        Python::initialize();
        Python::attach(|py| {
            let answer = posted(py, b"Length: ", b"\r\n\r\n", "m", 12).expect("bytes");
            assert_eq!(answer.as_bytes(), b"Length: 26\r\n\r\n{\"messageId\":\"m\",\"seq\":12}");
        });
    }

    #[test]
    fn counts_the_body_and_separates_its_items() {
        Python::initialize();
        Python::attach(|py| {
            for (items, answer) in [
                (vec![], "Length: 4\r\n\r\n{[]}"),
                (vec![b"1".as_slice()], "Length: 5\r\n\r\n{[1]}"),
                (vec![b"1".as_slice(), b"", b"23"], "Length: 9\r\n\r\n{[1,,23]}"),
            ] {
                let items = items.into_iter().map(|item| PyBytes::new(py, item));
                let items = PyList::new(py, items).expect("a list");
                let found = listed(py, b"Length: ", b"\r\n\r\n{[", 2, &items, b"]}");
                assert_eq!(found.expect("an answer").as_bytes(), answer.as_bytes());
            }
            let odd = PyList::new(py, [1]).expect("a list");
            assert!(listed(py, b"", b"", 0, &odd, b"").is_err());
        });
    }
}
