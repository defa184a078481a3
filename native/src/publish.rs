//! Publishes that need no second look.

use std::ops::Range;

use crate::envelope::{of_users, short};
use crate::json::Cursor;

/// What a payload of `hub:publish` says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Publish {
    pub topic: Range<usize>,
    pub kind: Range<usize>,
    /// Empty if there is none.
    pub data: Range<usize>,
    pub key: Option<Range<usize>>,
}

/// Read the payload of a `hub:publish` without headers and delay; `None` if Python has to.
pub fn scan_publish(text: &[u8], payload: Range<usize>) -> Option<Publish> {
    let mut found = Publish::default();
    let mut seen = 0u8;
    let inside = &text[..payload.end];
    let mut cursor = Cursor::new(inside, payload.start);
    cursor.expect(b'{')?;
    while let Some(name) = cursor.member(seen == 0)? {
        let bit = match &text[name] {
            b"topic" => {
                found.topic = short(cursor.plain()?)?;
                0
            }
            b"type" => {
                found.kind = of_users(text, cursor.plain()?)?;
                1
            }
            b"data" => {
                found.data = cursor.value()?;
                2
            }
            b"key" => {
                if cursor.word(b"null").is_none() {
                    found.key = Some(short(cursor.plain()?)?);
                }
                3
            }
            b"durable" => {
                // Whether the topic is durable is known.
                cursor.word(b"true").or_else(|| cursor.word(b"false"))?;
                4
            }
            _ => return None,
        };
        if seen & 1 << bit != 0 {
            return None;
        }
        seen |= 1 << bit;
    }
    (seen & 3 == 3).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn publish(payload: &str) -> Option<Publish> {
        scan_publish(payload.as_bytes(), 0..payload.len())
    }

    #[test]
    fn finds_what_is_published() {
        let payload = r#"{"key":"k","data":[1],"topic":"a/b","durable":true,"type":"greet"}"#;
        let found = publish(payload).unwrap();
        assert_eq!(&payload[found.topic], "a/b");
        assert_eq!(&payload[found.kind], "greet");
        assert_eq!(&payload[found.data], "[1]");
        assert_eq!(&payload[found.key.unwrap()], "k");
        assert_eq!(publish(r#"{"topic":"a","type":"b","key":null}"#).unwrap().key, None);
    }

    #[test]
    fn leaves_unusual_publishes_to_python() {
        for payload in [
            r#"{"topic":"a"}"#,
            r#"{"type":"b"}"#,
            r#"{"topic":"a","type":"hub:b"}"#,
            r#"{"topic":"a","type":""}"#,
            r#"{"topic":"a","type":"b","deliverAt":5}"#,
            r#"{"topic":"a","type":"b","headers":{}}"#,
            r#"{"topic":"a","type":"b","durable":1}"#,
            r#"{"topic":"a","type":"b","key":5}"#,
            r#"{"topic":"a","type":"b","topic":"a"}"#,
            r#"{"topic":"\u0061","type":"b"}"#,
        ] {
            assert_eq!(publish(payload), None, "{payload}");
        }
    }
}
