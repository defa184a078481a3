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

fn put(place: &mut &mut [u8], part: &[u8]) {
    let (now, later) = std::mem::take(place).split_at_mut(part.len());
    now.copy_from_slice(part);
    *place = later;
}

#[cfg(test)]
mod tests {
    use super::*;

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
