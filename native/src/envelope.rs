//! Envelopes that need no second look: plain names, every member once, nothing unknown.

use std::ops::Range;

use crate::json::Cursor;

const NAME_CHARS_MAX: usize = 256;
/// Metadata that is this long, or may hold members of the hub's own, is for Python.
const METADATA_BYTES_MAX: usize = 2048;
const OURS: [&[u8]; 10] = [
    b"\"forwarded\"",
    b"\"via\"",
    b"\"originalMessageId\"",
    b"\"delivery\"",
    b"\"publication\"",
    b"\"broadcast\"",
    b"\"replay\"",
    b"\"deadLetter\"",
    b"\"original\"",
    b"\"redriven\"",
];

/// Where the members of an envelope are in its text; strings without their quotes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Envelope {
    pub id: Range<usize>,
    pub sender: Range<usize>,
    pub to: Range<usize>,
    pub kind: Range<usize>,
    /// Is it an ask?
    pub is_ask: bool,
    pub timestamp: i64,
    pub timestamp_text: Range<usize>,
    /// Zero if there is none.
    pub ttl: i64,
    pub ttl_text: Range<usize>,
    /// Empty if there is none.
    pub payload: Range<usize>,
    /// The inside of the object, without white space around it.
    pub metadata: Range<usize>,
}

/// Read an envelope without `signature` and `correlationId`, in UTF-8; `None` if Python has to.
pub fn scan(text: &[u8]) -> Option<Envelope> {
    let mut found = Envelope::default();
    let mut seen = 0u16;
    let mut cursor = Cursor::new(text, 0);
    cursor.expect(b'{')?;
    while let Some(name) = cursor.member(seen == 0)? {
        let bit = match &text[name] {
            b"id" => {
                found.id = short(cursor.plain()?)?;
                0
            }
            b"from" => {
                found.sender = address(text, cursor.plain()?)?;
                1
            }
            b"to" => {
                found.to = address(text, cursor.plain()?)?;
                2
            }
            b"type" => {
                found.kind = short(cursor.plain()?)?;
                3
            }
            b"pattern" => {
                found.is_ask = match &text[cursor.plain()?] {
                    b"tell" => false,
                    b"ask" => true,
                    _ => return None,
                };
                4
            }
            b"timestamp" => {
                (found.timestamp, found.timestamp_text) = cursor.integer()?;
                5
            }
            b"correlationId" => {
                cursor.word(b"null")?;
                6
            }
            b"ttl" => {
                if cursor.word(b"null").is_none() {
                    (found.ttl, found.ttl_text) = cursor.integer()?;
                }
                7
            }
            b"signature" => {
                cursor.word(b"null")?;
                8
            }
            b"payload" => {
                found.payload = cursor.value()?;
                9
            }
            b"metadata" => {
                found.metadata = plain_metadata(text, cursor.value()?)?;
                10
            }
            _ => return None,
        };
        if seen & 1 << bit != 0 {
            return None;
        }
        seen |= 1 << bit;
    }
    cursor.end()?;
    if found.ttl < 0 || cursor.has_wide() && std::str::from_utf8(text).is_err() {
        return None;
    }
    // Only payload and metadata may be missing.
    (seen & 0x1ff == 0x1ff).then_some(found)
}

/// The inside of the sender's metadata, if it holds nothing that the hub would have to remove.
fn plain_metadata(text: &[u8], range: Range<usize>) -> Option<Range<usize>> {
    let metadata = &text[range.clone()];
    if metadata == b"{}" {
        return Some(range.start + 1..range.start + 1);
    }
    if metadata == b"null" {
        return Some(range.start..range.start);
    }
    if metadata[0] != b'{' || metadata.len() >= METADATA_BYTES_MAX || metadata.contains(&b'\\') {
        return None;
    }
    if OURS.iter().any(|name| memchr::memmem::find(metadata, name).is_some()) {
        return None;
    }
    let inner = &metadata[1..metadata.len() - 1];
    let left = inner.len() - inner.trim_ascii_start().len();
    let size = inner.trim_ascii().len();
    Some(range.start + 1 + left..range.start + 1 + left + size)
}

/// What a payload of `hub:send` says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Send {
    pub kind: Range<usize>,
    /// Empty if the envelope names the target.
    pub to: Range<usize>,
    /// Empty if there is none.
    pub data: Range<usize>,
}

/// Read the payload of a `hub:send` without fences; `None` if Python has to.
pub fn scan_send(text: &[u8], payload: Range<usize>) -> Option<Send> {
    let mut found = Send::default();
    let mut seen = 0u8;
    let inside = &text[..payload.end];
    let mut cursor = Cursor::new(inside, payload.start);
    cursor.expect(b'{')?;
    while let Some(name) = cursor.member(seen == 0)? {
        let bit = match &text[name] {
            b"type" => {
                found.kind = of_users(text, cursor.plain()?)?;
                if text[found.kind.clone()].starts_with(b"actors:") {
                    return None;
                }
                0
            }
            b"to" => {
                found.to = short(cursor.plain()?)?;
                1
            }
            b"data" => {
                found.data = cursor.value()?;
                2
            }
            _ => return None,
        };
        if seen & 1 << bit != 0 {
            return None;
        }
        seen |= 1 << bit;
    }
    (seen & 1 != 0).then_some(found)
}

/// A type that is neither empty nor the hub's own.
pub fn of_users(text: &[u8], range: Range<usize>) -> Option<Range<usize>> {
    let kind = &text[range.clone()];
    if kind.is_empty() || kind.starts_with(b"hub:") { None } else { short(range) }
}

/// A name or id that is not too long.
pub fn short(range: Range<usize>) -> Option<Range<usize>> {
    (range.len() <= NAME_CHARS_MAX).then_some(range)
}

fn address(text: &[u8], range: Range<usize>) -> Option<Range<usize>> {
    text[range.clone()].starts_with(b"@(").then_some(())?;
    short(range)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TELL: &str = r#"{"id":"m1","from":"@(a/b)","to":"@(h)","type":"hub:send",
        "payload":{"type":"greet","to":"@(c/d)","data":{"n":[1,"\u00e9"]}},"pattern":"tell",
        "correlationId":null,"timestamp":17,"metadata":{ "a": 1 },"ttl":null,"signature":null}"#;

    #[test]
    fn finds_the_members() {
        let found = scan(TELL.as_bytes()).unwrap();
        assert_eq!(&TELL[found.id], "m1");
        assert_eq!(&TELL[found.metadata], r#""a": 1"#);
        let send = scan_send(TELL.as_bytes(), found.payload).unwrap();
        assert_eq!(&TELL[send.to], "@(c/d)");
        assert_eq!(&TELL[send.data], r#"{"n":[1,"\u00e9"]}"#);
    }

    #[test]
    fn leaves_everything_unusual_to_python() {
        for (from, to) in [
            (r#""id":"m1""#, r#""id":"m1","id":"m2""#),
            (r#""id":"m1""#, r#""id":"m\u0031""#),
            (r#""id":"m1","#, ""),
            (r#""ttl":null"#, r#""ttl":-5"#),
            (r#""ttl":null"#, r#""ttl":5.0"#),
            (r#""pattern":"tell""#, r#""pattern":"shout""#),
            (r#"{ "a": 1 }"#, r#"{"via":1}"#),
            (r#"{ "a": 1 }"#, r#"{"v\u0069a":1}"#),
            (r#"{ "a": 1 }"#, "[]"),
            (r#""@(a/b)""#, r#""a/b""#),
            (r#""timestamp":17"#, r#""timestamp":1.5"#),
        ] {
            let changed = TELL.replace(from, to);
            assert_ne!(changed, TELL);
            assert_eq!(scan(changed.as_bytes()), None, "{changed}");
        }
        for payload in [
            r#"{"type":"hub:x"}"#,
            r#"{"type":"actors:batch"}"#,
            r#"{"to":"@(a)"}"#,
            r#"{"type":"x","fences":{}}"#,
            r#"{"type":""}"#,
            "null",
        ] {
            assert_eq!(scan_send(payload.as_bytes(), 0..payload.len()), None, "{payload}");
        }
    }
}
