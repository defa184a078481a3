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
    /// One of the six of RFC 6455.
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
/// A bit for each opcode that there is.
const OPCODES: u16 = 0b0000_0111_0000_0111;
const CONTROL: u8 = 8;
const CONTROL_BYTES_MAX: u8 = 125;
const PROTOCOL_ERROR: u16 = 1002;
const TOO_BIG: u16 = 1009;

impl Frame {
    /// Is it a text message of one frame?
    pub fn is_text(&self) -> bool {
        self.opcode == TEXT && self.is_final && !self.rsv
    }

    /// Is it part of a message, and not a control frame?
    pub fn is_data(&self) -> bool {
        self.opcode < CONTROL
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
    let broken = |reason| Found::Violation(PROTOCOL_ERROR, reason);
    let (opcode, short) = (first & 0x0f, second & !MASKED);
    if OPCODES >> opcode & 1 == 0 {
        return broken("the opcode is unknown");
    }
    if opcode >= CONTROL && first & FIN == 0 {
        return broken("control frames must not be fragmented");
    }
    if second & MASKED == 0 {
        return broken("frames of a client must be masked");
    }
    if opcode >= CONTROL && short > CONTROL_BYTES_MAX {
        return broken("control frames carry at most 125 bytes");
    }
    let (size, head, least) = match short {
        126 => match rest.get(2..4) {
            Some(digits) => (u64::from(u16::from_be_bytes([digits[0], digits[1]])), 4, 126),
            None => return Found::Part(4),
        },
        127 => match rest.get(2..10) {
            Some(digits) => {
                (u64::from_be_bytes(digits.try_into().expect("eight bytes")), 10, 65_536)
            }
            None => return Found::Part(10),
        },
        short => (u64::from(short), 2, 0),
    };
    if size < least || size >> 63 != 0 {
        return broken("the length is not written in the shortest way");
    }
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
        opcode,
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
        let huge = [0x81, 0xff, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff];
        assert!(matches!(next(&huge, 0, usize::MAX >> 2), Found::Violation(1009, _)));
    }

    #[test]
    fn refuses_heads_that_the_protocol_forbids() {
        let mut long = vec![FIN | TEXT, MASKED | 127];
        long.extend(65_535u64.to_be_bytes());
        for head in [
            vec![FIN | 3, MASKED],
            vec![FIN | 0xb, MASKED],
            vec![9, MASKED],
            vec![FIN | 9, MASKED | 126],
            vec![FIN | TEXT, MASKED | 126, 0, 125],
            vec![0xff; 10],
            long,
        ] {
            assert!(matches!(next(&head, 0, 1 << 20), Found::Violation(1002, _)), "{head:?}");
        }
        for opcode in [0, 1, 2, 8, 9, 10] {
            assert!(matches!(next(&masked(FIN | opcode, b""), 0, 9), Found::Frame(_)));
        }
    }
}
