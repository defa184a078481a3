//! The same frames for many sockets, with another address in each.

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, send};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;

use crate::panics::caught;

/// Stands for an error of a socket.
const BROKEN: isize = -1;

/// Bytes that differ in one part only, which is there several times.
struct Joined {
    bytes: Vec<u8>,
    /// Where the part begins.
    places: Vec<usize>,
    part: usize,
}

impl Joined {
    fn new(pieces: &[impl AsRef<[u8]>], part: usize) -> Self {
        let between = pieces.len().saturating_sub(1);
        let size = pieces.iter().map(|piece| piece.as_ref().len()).sum::<usize>() + between * part;
        let mut bytes = Vec::with_capacity(size);
        let mut places = Vec::with_capacity(between);
        for (at, piece) in pieces.iter().enumerate() {
            if at > 0 {
                places.push(bytes.len());
                bytes.resize(bytes.len() + part, 0);
            }
            bytes.extend_from_slice(piece.as_ref());
        }
        Self { bytes, places, part }
    }

    /// The bytes with this part in all of its places.
    fn with(&mut self, part: &[u8]) -> &[u8] {
        for &at in &self.places {
            self.bytes[at..at + self.part].copy_from_slice(part);
        }
        &self.bytes
    }
}

/// Send what there is room for; `BROKEN` if that fails.
fn sent(fd: i32, bytes: &[u8]) -> isize {
    loop {
        return match send(fd, bytes, MsgFlags::MSG_DONTWAIT) {
            Ok(sent) => sent as isize,
            Err(Errno::EINTR) => continue,
            Err(Errno::EAGAIN) => 0,
            Err(_) => BROKEN,
        };
    }
}

/// Send each socket the pieces with its address between them, and others may run meanwhile.
///
/// All addresses have the same length. Returns where in the list sockets are that did not take
/// everything, each with the number of bytes it took, or -1 if it is broken.
#[pyfunction]
pub fn send_joined(
    py: Python<'_>,
    pieces: Vec<PyBackedBytes>,
    fds: Vec<i32>,
    addresses: Vec<PyBackedBytes>,
) -> PyResult<Vec<(usize, isize)>> {
    caught(|| {
        let part = addresses.first().map_or(0, |address| address.len());
        if fds.len() != addresses.len() || addresses.iter().any(|one| one.len() != part) {
            return Err(PyValueError::new_err("an address of the same length for each socket"));
        }
        let mut short = Vec::new();
        py.detach(|| {
            let mut joined = Joined::new(&pieces, part);
            for (at, (&fd, address)) in fds.iter().zip(&addresses).enumerate() {
                let bytes = joined.with(address);
                let took = sent(fd, bytes);
                if took != bytes.len() as isize {
                    short.push((at, took));
                }
            }
        });
        Ok(short)
    })
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn puts_the_part_in_every_place() {
        let mut three = Joined::new(&["<", ", ", ">"], 2);
        assert_eq!(three.with(b"aa"), b"<aa, aa>");
        assert_eq!(three.with(b"bb"), b"<bb, bb>");
        assert_eq!(Joined::new(&["<"], 2).with(b"aa"), b"<");
        assert_eq!(Joined::new(&[""; 0], 2).with(b"aa"), b"");
    }

    #[test]
    fn sends_as_much_as_there_is_room_for() {
        let (one, mut other) = UnixStream::pair().unwrap();
        assert_eq!(sent(one.as_raw_fd(), b"hello"), 5);
        let mut heard = [0; 5];
        other.read_exact(&mut heard).unwrap();
        assert_eq!(&heard, b"hello");
        // The socket blocks, but nothing waits for it.
        while sent(one.as_raw_fd(), &[0; 1 << 16]) > 0 {}
        assert_eq!(sent(one.as_raw_fd(), b"hello"), 0);
        drop(other);
        assert_eq!(sent(one.as_raw_fd(), b"hello"), BROKEN);
    }
}
