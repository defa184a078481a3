//! Digests of what is in messages for rooms; what they are is said in `wire/room_ids.py`.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::blake2b::Blake2b;

const HALF_BYTES: usize = 2;
const HALF_BITS: u32 = 8 * HALF_BYTES as u32;

/// Makes digests with one key.
#[pyclass(module = "signalhub_native", frozen)]
pub struct Contents {
    keyed: Blake2b<HALF_BYTES>,
}

/// Half of a digest, which is never 0.
fn half(digest: &Blake2b<HALF_BYTES>) -> u32 {
    u32::from(u16::from_le_bytes(digest.digest()).max(1))
}

#[pymethods]
impl Contents {
    #[new]
    fn new(key: &[u8]) -> PyResult<Self> {
        if key.len() > 64 {
            return Err(PyValueError::new_err("a key has at most 64 bytes"));
        }
        Ok(Self { keyed: Blake2b::new(key).begun() })
    }

    /// The ciphertext is not empty.
    fn digest(&self, pseudonym: &str, ciphertext: &[u8]) -> u32 {
        let mut digest = self.keyed.clone();
        digest.update(ciphertext);
        let upper = half(&digest) << HALF_BITS;
        if pseudonym.is_empty() {
            return upper;
        }
        digest.update(b"\0");
        digest.update(pseudonym.as_bytes());
        upper | half(&digest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pseudonym_changes_only_the_lower_half() {
        let contents = Contents::new(b"key").expect("a short key");
        let (bare, spoken) = (contents.digest("", b"abcd"), contents.digest("a", b"abcd"));
        assert_eq!(bare & 0xffff, 0);
        assert_eq!(bare, spoken & !0xffff);
        assert_ne!(spoken, contents.digest("b", b"abcd"));
        assert!(Contents::new(&[0; 65]).is_err());
    }
}
