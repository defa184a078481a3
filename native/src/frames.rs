//! WebSocket frames of a client: where one ends, and what is in it.

use std::ops::Range;

/// What the bytes at some position are.
#[derive(Debug, PartialEq)]
pub enum Found {
    /// The frame is not complete; how many bytes it needs, as far as known.
    Part(usize),
    /// A whole frame; its payload is still masked.
    Frame(Frame),
    /// The peer broke the protocol: the close code and the reason.
    Violation(u16, &'static str),
}

/// One frame of a client.
#[derive(Debug, PartialEq)]
pub struct Frame {
    /// Is it the last one of its message?
    pub is_final: bool,
    /// Is one of the three reserved bits set?
    pub rsv: bool,
    /// Four bits, not checked.
    pub opcode: u8,
    /// Where the payload is.
    pub payload: Range<usize>,
    key: [u8; KEY_BYTES],
}

const TEXT: u8 = 1;
const FIN: u8 = 0x80;
const RSV: u8 = 0x70;
const MASKED: u8 = 0x80;
const KEY_BYTES: usize = 4;
const PROTOCOL_ERROR: u16 = 1002;
const TOO_BIG: u16 = 1009;

impl Frame {
    /// Is it a text message of one frame?
    pub fn is_text(&self) -> bool {
        self.opcode == TEXT && self.is_final && !self.rsv
    }

    /// Is it part of a message, and not a control frame?
    pub fn is_data(&self) -> bool {
        self.opcode < 8
    }

    /// Unmask the payload; to be called once.
    pub fn unmask(&self, bytes: &mut [u8]) {
        unmask(&mut bytes[self.payload.clone()], self.key);
    }
}

/// Look at the frame at `at`.
pub fn next(bytes: &[u8], at: usize, payload_max: usize) -> Found {
    let rest = &bytes[at..];
    let [first, second, ..] = *rest else {
        return Found::Part(2);
    };
    if second & MASKED == 0 {
        return Found::Violation(PROTOCOL_ERROR, "frames of a client must be masked");
    }
    let (size, head) = match second & !MASKED {
        126 => match rest.get(2..4) {
            Some(digits) => (u64::from(u16::from_be_bytes([digits[0], digits[1]])), 4),
            None => return Found::Part(4),
        },
        127 => match rest.get(2..10) {
            Some(digits) => (u64::from_be_bytes(digits.try_into().expect("eight bytes")), 10),
            None => return Found::Part(10),
        },
        short => (u64::from(short), 2),
    };
    if size > payload_max as u64 {
        return Found::Violation(TOO_BIG, "the frame is too large");
    }
    // It fits, because the limit does.
    let size = size as usize;
    let whole = head + KEY_BYTES + size;
    if rest.len() < whole {
        return Found::Part(whole);
    }
    let begin = at + head + KEY_BYTES;
    let key = rest[head..head + KEY_BYTES].try_into().expect("four bytes");
    Found::Frame(Frame {
        is_final: first & FIN != 0,
        rsv: first & RSV != 0,
        opcode: first & 0x0f,
        payload: begin..begin + size,
        key,
    })
}

fn unmask(payload: &mut [u8], key: [u8; KEY_BYTES]) {
    let [a, b, c, d] = key;
    let wide = u64::from_ne_bytes([a, b, c, d, a, b, c, d]);
    let mut chunks = payload.chunks_exact_mut(8);
    for chunk in &mut chunks {
        let word = u64::from_ne_bytes((&*chunk).try_into().expect("eight bytes")) ^ wide;
        chunk.copy_from_slice(&word.to_ne_bytes());
    }
    for (byte, mask) in chunks.into_remainder().iter_mut().zip(key.iter().cycle()) {
        *byte ^= mask;
    }
}

/// Append the head of an unmasked final text frame.
pub fn put_text_head(size: usize, out: &mut [u8], at: &mut usize) {
    let head = &mut out[*at..];
    head[0] = FIN | TEXT;
    *at += match size {
        0..126 => {
            head[1] = size as u8;
            2
        }
        126..65_536 => {
            head[1] = 126;
            head[2..4].copy_from_slice(&(size as u16).to_be_bytes());
            4
        }
        _ => {
            head[1] = 127;
            head[2..10].copy_from_slice(&(size as u64).to_be_bytes());
            10
        }
    };
}

/// The bytes of that head.
pub fn text_head_bytes(size: usize) -> usize {
    match size {
        0..126 => 2,
        126..65_536 => 4,
        _ => 10,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn masked(first: u8, payload: &[u8]) -> Vec<u8> {
        let key = [1, 2, 3, 4];
        let mut frame = vec![first, MASKED | payload.len() as u8];
        frame.extend(key);
        frame.extend(payload.iter().zip(key.iter().cycle()).map(|(byte, mask)| byte ^ mask));
        frame
    }

    #[test]
    fn unmasks_whole_frames_one_after_the_other() {
        let mut bytes = masked(FIN | TEXT, b"hello, hub!");
        bytes.extend(masked(0x01, b""));
        let Found::Frame(first) = next(&bytes, 0, 100) else { panic!() };
        assert!(first.is_text());
        first.unmask(&mut bytes);
        assert_eq!(&bytes[first.payload.clone()], b"hello, hub!");
        let Found::Frame(second) = next(&bytes, first.payload.end, 100) else { panic!() };
        assert!(!second.is_final && second.payload.is_empty());
    }

    #[test]
    fn waits_for_the_rest() {
        let whole = masked(FIN | TEXT, b"hello");
        for size in 0..whole.len() {
            let found = next(&whole[..size], 0, 100);
            assert!(matches!(found, Found::Part(needed) if needed > size), "{size}");
        }
    }

    #[test]
    fn refuses_what_is_not_masked_or_too_large() {
        let found = next(&[FIN | TEXT, 0, 0], 0, 100);
        assert!(matches!(found, Found::Violation(1002, _)));
        let found = next(&[FIN | TEXT, MASKED | 126, 1, 0], 0, 255);
        assert!(matches!(found, Found::Violation(1009, _)));
        let huge = [0xff; 10];
        assert!(matches!(next(&huge, 0, usize::MAX >> 2), Found::Violation(1009, _)));
    }
}
