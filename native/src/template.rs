//! What the messages of a client have in common: most differ in a few values only.

use std::ops::Range;

use crate::envelope::{Envelope, Send, short};
use crate::json::Cursor;

/// Longer messages are read member by member.
const BYTES_MAX: usize = 4096;

/// A tell that was understood, and where the values are that the next one may have for itself.
pub struct Template {
    text: Vec<u8>,
    envelope: Envelope,
    send: Send,
    /// Id, data and timestamp, in the order in which they stand.
    holes: [Hole; 3],
}

struct Hole {
    value: Value,
    range: Range<usize>,
}

#[derive(Clone, Copy)]
enum Value {
    Id,
    Data,
    Timestamp,
}

impl Template {
    /// Learn from a message; `None` if it has no data.
    pub fn new(text: &[u8], envelope: &Envelope, send: &Send) -> Option<Self> {
        if send.data.is_empty() || text.len() > BYTES_MAX {
            return None;
        }
        let mut holes = [
            Hole { value: Value::Id, range: envelope.id.clone() },
            Hole { value: Value::Data, range: send.data.clone() },
            Hole { value: Value::Timestamp, range: envelope.timestamp_text.clone() },
        ];
        holes.sort_by_key(|hole| hole.range.start);
        Some(Self { text: text.to_vec(), envelope: envelope.clone(), send: send.clone(), holes })
    }

    /// Read a message that is the same but for these values; `None` if it is not.
    pub fn read(&self, text: &[u8]) -> Option<(Envelope, Send)> {
        let mut cursor = Cursor::new(text, 0);
        let (mut envelope, mut send) = (self.envelope.clone(), self.send.clone());
        let mut found = [0..0, 0..0, 0..0];
        let mut done = 0;
        for (hole, found) in self.holes.iter().zip(&mut found) {
            // Between the values both are the same.
            cursor.literal(&self.text[done..hole.range.start])?;
            done = hole.range.end;
            match hole.value {
                Value::Id => {
                    envelope.id = short(cursor.inside()?)?;
                    *found = envelope.id.clone();
                }
                Value::Data => {
                    send.data = cursor.value()?;
                    *found = send.data.clone();
                }
                Value::Timestamp => {
                    (envelope.timestamp, *found) = cursor.integer()?;
                    envelope.timestamp_text = found.clone();
                }
            }
        }
        cursor.literal(&self.text[done..])?;
        if cursor.at() != text.len() || cursor.has_wide() && std::str::from_utf8(text).is_err() {
            return None;
        }
        // White space before a value may differ, too, so what counts is where the value before ends.
        let place = |range: &mut Range<usize>| {
            let mut values = self.holes.iter().zip(&found);
            if let Some((hole, new)) = values.rfind(|(hole, _)| hole.range.end <= range.start) {
                let moved = |at: usize| at - hole.range.end + new.end;
                *range = moved(range.start)..moved(range.end);
            }
        };
        for range in [
            &mut envelope.sender,
            &mut envelope.to,
            &mut envelope.kind,
            &mut envelope.ttl_text,
            &mut envelope.metadata,
            &mut send.kind,
            &mut send.to,
        ] {
            place(range);
        }
        Some((envelope, send))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::envelope::{scan, scan_send};

    fn tell(id: &str, data: &str, timestamp: &str) -> String {
        format!(
            r#"{{"ttl":60,"payload":{{"to":"@(c/d)","data":{data},"type":"greet"}},"id":"{id}",
            "from":"@(a/b)","timestamp":{timestamp},"to":"@(h)","type":"hub:send","pattern":"tell",
            "correlationId":null,"signature":null,"metadata":{{"a":1}}}}"#
        )
    }

    fn both(text: &str) -> Option<(Envelope, Send)> {
        let envelope = scan(text.as_bytes())?;
        let send = scan_send(text.as_bytes(), envelope.payload.clone())?;
        Some((envelope, send))
    }

    #[test]
    fn finds_the_same_as_a_whole_scan() {
        let first = tell("m1", "[1]", "17");
        let (envelope, send) = both(&first).unwrap();
        let template = Template::new(first.as_bytes(), &envelope, &send).unwrap();
        for (id, data, timestamp) in [
            ("m1", "[1]", "17"),
            ("", r#"{"x":"é\n"}"#, "-1"),
            ("m100", "null", "1234567"),
            ("m1", "  [1]", "\n 17"),
        ] {
            let text = tell(id, data, timestamp);
            let (mut envelope, send) = both(&text).unwrap();
            // Not needed any more, and not kept up.
            let (found, found_send) = template.read(text.as_bytes()).unwrap();
            envelope.payload = found.payload.clone();
            assert_eq!((found, found_send), (envelope, send), "{text}");
        }
    }

    #[test]
    fn refuses_everything_else() {
        let first = tell("m1", "[1]", "17");
        let (envelope, send) = both(&first).unwrap();
        let template = Template::new(first.as_bytes(), &envelope, &send).unwrap();
        for text in [
            tell("m1", "[1]", "17").replace("greet", "leave"),
            tell("m1", "[1", "17"),
            tell("m1", "[1],\"data\":2", "17"),
            tell("m\\n", "[1]", "17"),
            tell("m1", "[1]", "1.5"),
            tell("m1", "[1]", "17") + " ",
            tell("m1", "[1]", "17")[..100].into(),
        ] {
            assert!(template.read(text.as_bytes()).is_none(), "{text}");
        }
    }
}
