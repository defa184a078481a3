//! MessagePack as the bodies of log entries use it: the shortest form of every value.

/// Append an array's head; at most fifteen members.
pub fn put_array(out: &mut Vec<u8>, size: u8) {
    assert!(size < 16, "a short array");
    out.push(0x90 | size);
}

/// Append null.
pub fn put_null(out: &mut Vec<u8>) {
    out.push(0xc0);
}

/// Append a string, given in UTF-8.
pub fn put_text(out: &mut Vec<u8>, text: &[u8]) {
    match text.len() {
        size @ 0..32 => out.push(0xa0 | size as u8),
        size @ 32..0x100 => out.extend([0xd9, size as u8]),
        size @ 0x100..0x1_0000 => put(out, 0xda, (size as u16).to_be_bytes()),
        size => put(out, 0xdb, (size as u32).to_be_bytes()),
    }
    out.extend_from_slice(text);
}

/// Append bytes.
pub fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    match bytes.len() {
        size @ 0..0x100 => out.extend([0xc4, size as u8]),
        size @ 0x100..0x1_0000 => put(out, 0xc5, (size as u16).to_be_bytes()),
        size => put(out, 0xc6, (size as u32).to_be_bytes()),
    }
    out.extend_from_slice(bytes);
}

/// Append a whole number.
pub fn put_integer(out: &mut Vec<u8>, value: i64) {
    match value {
        0..0x80 => out.push(value as u8),
        0x80..0x100 => out.extend([0xcc, value as u8]),
        0x100..0x1_0000 => put(out, 0xcd, (value as u16).to_be_bytes()),
        0x1_0000..0x1_0000_0000 => put(out, 0xce, (value as u32).to_be_bytes()),
        0x1_0000_0000.. => put(out, 0xcf, (value as u64).to_be_bytes()),
        -0x20..0 => out.push(value as i8 as u8),
        -0x80..-0x20 => out.extend([0xd0, value as i8 as u8]),
        -0x8000..-0x80 => put(out, 0xd1, (value as i16).to_be_bytes()),
        -0x8000_0000..-0x8000 => put(out, 0xd2, (value as i32).to_be_bytes()),
        _ => put(out, 0xd3, value.to_be_bytes()),
    }
}

fn put<const N: usize>(out: &mut Vec<u8>, code: u8, digits: [u8; N]) {
    out.push(code);
    out.extend_from_slice(&digits);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn integer(value: i64) -> Vec<u8> {
        let mut out = Vec::new();
        put_integer(&mut out, value);
        out
    }

    #[test]
    fn integers_take_as_few_bytes_as_possible() {
        for (value, size) in [
            (0, 1),
            (127, 1),
            (128, 2),
            (255, 2),
            (256, 3),
            (65_535, 3),
            (65_536, 5),
            (u32::MAX as i64, 5),
            (u32::MAX as i64 + 1, 9),
            (-1, 1),
            (-32, 1),
            (-33, 2),
            (-128, 2),
            (-129, 3),
            (-32_768, 3),
            (-32_769, 5),
            (i32::MIN as i64, 5),
            (i32::MIN as i64 - 1, 9),
        ] {
            assert_eq!(integer(value).len(), size, "{value}");
        }
        assert_eq!(integer(-33), [0xd0, 0xdf]);
        assert_eq!(integer(300), [0xcd, 1, 44]);
    }

    #[test]
    fn strings_and_bytes_begin_with_their_length() {
        for (size, text_head, bytes_head) in [
            (0, vec![0xa0], vec![0xc4, 0]),
            (31, vec![0xbf], vec![0xc4, 31]),
            (32, vec![0xd9, 32], vec![0xc4, 32]),
            (256, vec![0xda, 1, 0], vec![0xc5, 1, 0]),
            (65_536, vec![0xdb, 0, 1, 0, 0], vec![0xc6, 0, 1, 0, 0]),
        ] {
            let given = vec![b'x'; size];
            let (mut text, mut bytes) = (Vec::new(), Vec::new());
            put_text(&mut text, &given);
            put_bytes(&mut bytes, &given);
            assert_eq!(text[..text.len() - size], text_head);
            assert_eq!(bytes[..bytes.len() - size], bytes_head);
        }
    }
}
