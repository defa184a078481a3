//! What the messages of a client have in common: most differ in a few values only.

use std::ops::Range;

use crate::envelope::short;
use crate::json::Cursor;
use crate::message::Message;

/// Longer messages are read member by member.
const BYTES_MAX: usize = 4096;
/// Id, data, timestamp and key.
const HOLES_MAX: usize = 4;

/// A message that was understood, and where the values are that the next one may have for itself.
pub struct Template {
    text: Vec<u8>,
    message: Message,
    /// In the order in which they stand.
    holes: Vec<Hole>,
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
    Key,
}

impl Template {
    /// Learn from a message; `None` if it has no data.
    pub fn new(text: &[u8], message: &Message) -> Option<Self> {
        let mut message = message.clone();
        let data = message.content.data().clone();
        if data.is_empty() || text.len() > BYTES_MAX {
            return None;
        }
        let mut holes = Vec::with_capacity(HOLES_MAX);
        let envelope = &message.envelope;
        holes.push(Hole { value: Value::Id, range: envelope.id.clone() });
        holes.push(Hole { value: Value::Data, range: data });
        holes.push(Hole { value: Value::Timestamp, range: envelope.timestamp_text.clone() });
        if let Some(key) = message.content.key_mut() {
            holes.push(Hole { value: Value::Key, range: key.clone() });
        }
        holes.sort_by_key(|hole| hole.range.start);
        Some(Self { text: text.to_vec(), message, holes })
    }

    /// Read a message that is the same but for these values; `None` if it is not.
    pub fn read(&self, text: &[u8]) -> Option<Message> {
        let mut cursor = Cursor::new(text, 0);
        let mut found = [const { 0..0 }; HOLES_MAX];
        let mut timestamp = 0;
        let mut done = 0;
        for (hole, found) in self.holes.iter().zip(&mut found) {
            // Between the values both are the same.
            cursor.literal(&self.text[done..hole.range.start])?;
            done = hole.range.end;
            *found = match hole.value {
                Value::Id | Value::Key => short(cursor.inside()?)?,
                Value::Data => cursor.value()?,
                Value::Timestamp => {
                    let (value, digits) = cursor.integer()?;
                    timestamp = value;
                    digits
                }
            };
        }
        cursor.literal(&self.text[done..])?;
        if cursor.at() != text.len() || cursor.has_wide() && std::str::from_utf8(text).is_err() {
            return None;
        }
        let place = |range: &mut Range<usize>| {
            let (mut longer, mut shorter) = (0, 0);
            for (hole, new) in self.holes.iter().zip(&found) {
                if hole.range.end <= range.start {
                    longer += new.len();
                    shorter += hole.range.len();
                }
            }
            *range = range.start + longer - shorter..range.end + longer - shorter;
        };
        let Message { mut envelope, mut content } = self.message.clone();
        for range in [
            &mut envelope.sender,
            &mut envelope.to,
            &mut envelope.kind,
            &mut envelope.ttl_text,
            &mut envelope.metadata,
        ] {
            place(range);
        }
        content.names_mut().into_iter().for_each(place);
        envelope.timestamp = timestamp;
        for (hole, new) in self.holes.iter().zip(&found) {
            let value = match hole.value {
                Value::Id => &mut envelope.id,
                Value::Data => content.data_mut(),
                Value::Timestamp => &mut envelope.timestamp_text,
                Value::Key => content.key_mut().expect("a message with a key"),
            };
            *value = new.clone();
        }
        Some(Message { envelope, content })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::scan_message;

    fn tell(id: &str, data: &str, timestamp: &str) -> String {
        format!(
            r#"{{"ttl":60,"payload":{{"to":"@(c/d)","data":{data},"type":"greet"}},"id":"{id}",
            "from":"@(a/b)","timestamp":{timestamp},"to":"@(h)","type":"hub:send","pattern":"tell",
            "correlationId":null,"signature":null,"metadata":{{"a":1}}}}"#
        )
    }

    fn publish(id: &str, key: &str, timestamp: &str) -> String {
        format!(
            r#"{{"id":"{id}","from":"@(a/b)","to":"@(h)","type":"hub:publish","pattern":"ask",
            "payload":{{"topic":"t/1","type":"greet","key":"{key}","durable":true,"data":[1]}},
            "correlationId":null,"timestamp":{timestamp},"signature":null,"ttl":60}}"#
        )
    }

    fn learned(text: &str) -> Template {
        Template::new(text.as_bytes(), &scan_message(text.as_bytes()).unwrap()).unwrap()
    }

    fn finds_the_same(template: &Template, text: &str) {
        let mut scanned = scan_message(text.as_bytes()).unwrap();
        let found = template.read(text.as_bytes()).unwrap();
        // Not needed any more, and not kept up.
        scanned.envelope.payload = found.envelope.payload.clone();
        assert_eq!(found, scanned, "{text}");
    }

    #[test]
    fn finds_the_same_as_a_whole_scan() {
        let first = tell("m1", "[1]", "17");
        let template = learned(&first);
        for (id, data, timestamp) in
            [("m1", "[1]", "17"), ("", r#"{"x":"é\n"}"#, "-1"), ("m100", "null", "1234567")]
        {
            finds_the_same(&template, &tell(id, data, timestamp));
        }
        let template = learned(&publish("m1", "k", "17"));
        for (id, key, timestamp) in [("m1", "k", "17"), ("m22", "", "-1"), ("", "other", "1234")] {
            finds_the_same(&template, &publish(id, key, timestamp));
        }
    }

    #[test]
    fn refuses_everything_else() {
        let template = learned(&tell("m1", "[1]", "17"));
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
        let template = learned(&publish("m1", "k", "17"));
        for text in [
            publish("m1", "\u{e9}", "17"),
            publish("m1", &"k".repeat(300), "17"),
            publish("m1", "k", "17").replace("t/1", "t/2"),
            publish("m1", "k\",\"durable\":false,\"x\":\"", "17"),
        ] {
            assert!(template.read(text.as_bytes()).is_none(), "{text}");
        }
    }
}
