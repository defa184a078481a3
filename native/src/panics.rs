//! A panic is an error of one message or one socket, which Python handles as any other.

use std::panic::{AssertUnwindSafe, catch_unwind};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

/// Do this, and turn a panic into a `RuntimeError`.
///
/// Otherwise it would become an exception that is no `Exception`, and end more than it has to.
pub fn caught<T>(work: impl FnOnce() -> PyResult<T>) -> PyResult<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        Err(PyRuntimeError::new_err("the native part has panicked; stderr says where"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error() {
        assert!(caught(|| Ok(1)).is_ok());
        assert!(caught(|| -> PyResult<()> { panic!("of a test") }).is_err());
    }
}
