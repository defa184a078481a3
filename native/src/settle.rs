//! Acknowledgements that need no second look.

use std::ops::Range;

use crate::envelope::{Envelope, scan};
use crate::json::Cursor;

/// Python refuses more.
const SEQS_MAX: usize = 10_000;
/// Longer messages are read member by member.
const BYTES_MAX: usize = 4096;

/// What acknowledgements refer to, in this order.
pub const NAMES: [&[u8]; 5] = [b"subscriptionId", b"topic", b"subscription", b"stream", b"epoch"];

/// What one acknowledgement names.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settle {
    pub seqs: Vec<i64>,
    /// The ids of the attempts: none, or one for each position.
    pub ids: Vec<Range<usize>>,
}

/// What it refers to, and whether it has ids.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Subject {
    pub names: [Option<Vec<u8>>; 5],
    pub has_ids: bool,
}

/// The acknowledgements of one socket; most differ in a few values only.
#[derive(Default)]
pub struct Acks {
    /// What the last one refers to, and a number that changes with it.
    pub subject: Subject,
    pub number: u64,
    text: Vec<u8>,
    /// Where the next one may have other values, in the order in which they stand.
    holes: Vec<(Value, Range<usize>)>,
}

#[derive(Clone, Copy, PartialEq)]
enum Value {
    Id,
    Timestamp,
    Seq,
    Attempt,
}

impl Acks {
    /// Read one that is like the last one; `None` if it is not.
    pub fn again(&self, text: &[u8]) -> Option<Settle> {
        if self.holes.is_empty() {
            return None;
        }
        let mut cursor = Cursor::new(text, 0);
        let mut settle = Settle::default();
        let mut done = 0;
        for (value, hole) in &self.holes {
            cursor.literal(&self.text[done..hole.start])?;
            done = hole.end;
            match value {
                Value::Id => {
                    crate::envelope::short(cursor.inside()?)?;
                }
                Value::Timestamp => {
                    cursor.integer()?;
                }
                Value::Seq => settle.seqs.push(seq(&mut cursor)?.0),
                Value::Attempt => settle.ids.push(cursor.inside()?),
            }
        }
        cursor.literal(&self.text[done..])?;
        (cursor.at() == text.len()).then_some(settle)
    }

    /// Read any, and remember what it is like; `None` if Python has to look at it.
    pub fn learn(&mut self, text: &[u8]) -> Option<Settle> {
        // Most other messages do not have to be read again for this.
        memchr::memmem::find(text, b"\"hub:ack\"")?;
        let envelope = scan(text)?;
        if envelope.is_ask || &text[envelope.kind.clone()] != b"hub:ack" {
            return None;
        }
        let (settle, subject, place) = payload(text, envelope.payload.clone())?;
        if subject != self.subject || self.number == 0 {
            self.subject = subject;
            self.number += 1;
        }
        self.holes.clear();
        if let Some(place) = place
            && text.len() <= BYTES_MAX
            && text.is_ascii()
        {
            self.remember(text, &envelope, place, settle.ids.first());
        }
        Some(settle)
    }

    fn remember(
        &mut self,
        text: &[u8],
        envelope: &Envelope,
        seq: Range<usize>,
        attempt: Option<&Range<usize>>,
    ) {
        self.text.clear();
        self.text.extend_from_slice(text);
        self.holes.push((Value::Id, envelope.id.clone()));
        self.holes.push((Value::Timestamp, envelope.timestamp_text.clone()));
        self.holes.push((Value::Seq, seq));
        self.holes.extend(attempt.map(|range| (Value::Attempt, range.clone())));
        self.holes.sort_by_key(|(_, range)| range.start);
    }
}

/// A position, and its text.
fn seq(cursor: &mut Cursor) -> Option<(i64, Range<usize>)> {
    let found = cursor.integer()?;
    (found.0 > 0).then_some(found)
}

/// What a payload says, and where its only position is; `None` if Python has to look at it.
fn payload(text: &[u8], range: Range<usize>) -> Option<(Settle, Subject, Option<Range<usize>>)> {
    let mut cursor = Cursor::new(&text[..range.end], range.start);
    let (mut settle, mut subject) = (Settle::default(), Subject::default());
    let (mut place, mut one_id, mut ids) = (None, None, None);
    let mut is_first = true;
    cursor.expect(b'{')?;
    while let Some(name) = cursor.member(is_first)? {
        is_first = false;
        let name = &text[name];
        if let Some(at) = NAMES.iter().position(|known| *known == name) {
            let value = text[cursor.plain()?].to_vec();
            if subject.names[at].replace(value).is_some() {
                return None;
            }
            continue;
        }
        match name {
            b"seq" if settle.seqs.is_empty() => {
                let (one, range) = seq(&mut cursor)?;
                settle.seqs.push(one);
                place = Some(range);
            }
            b"seqs" if settle.seqs.is_empty() => settle.seqs = seqs(&mut cursor)?,
            b"id" if one_id.is_none() => one_id = Some(cursor.plain()?),
            b"ids" if ids.is_none() => ids = Some(list(&mut cursor, Cursor::plain)?),
            _ => return None,
        }
    }
    settle.ids = match (one_id, ids) {
        (None, None) => Vec::new(),
        (Some(id), None) if place.is_some() => vec![id],
        (None, Some(ids)) if place.is_none() && ids.len() == settle.seqs.len() => ids,
        _ => return None,
    };
    subject.has_ids = !settle.ids.is_empty();
    (!settle.seqs.is_empty()).then_some((settle, subject, place))
}

/// Positions in ascending order.
fn seqs(cursor: &mut Cursor) -> Option<Vec<i64>> {
    let found = list(cursor, |cursor| seq(cursor).map(|found| found.0))?;
    found.is_sorted_by(|one, next| one < next).then_some(found)
}

/// A list that is not empty.
fn list<'a, T>(
    cursor: &mut Cursor<'a>,
    read: impl Fn(&mut Cursor<'a>) -> Option<T>,
) -> Option<Vec<T>> {
    cursor.expect(b'[')?;
    let mut found = Vec::new();
    loop {
        if found.len() == SEQS_MAX {
            return None;
        }
        found.push(read(cursor)?);
        if cursor.peek()? == b']' {
            cursor.expect(b']')?;
            return Some(found);
        }
        cursor.expect(b',')?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ack(id: &str, payload: &str) -> String {
        format!(
            r#"{{"id":"{id}","from":"@(a)","to":"@(h)","type":"hub:ack","payload":{payload},
            "pattern":"tell","correlationId":null,"timestamp":17,"metadata":{{}},"ttl":null,
            "signature":null}}"#
        )
    }

    fn read(payload: &str) -> Option<(Vec<i64>, Vec<String>)> {
        let text = ack("m", payload);
        let found = Acks::default().learn(text.as_bytes())?;
        let ids = found.ids.into_iter().map(|range| text[range].to_owned()).collect();
        Some((found.seqs, ids))
    }

    #[test]
    fn finds_positions_and_ids() {
        for (payload, seqs, ids) in [
            (r#"{"subscriptionId":"s","seq":7}"#, vec![7], vec![]),
            (r#"{"topic":"t","subscription":"s", "seq":  7, "id":"x"}"#, vec![7], vec!["x"]),
            (r#"{"seqs":[1, 2,9],"stream":"@(a)"}"#, vec![1, 2, 9], vec![]),
            (r#"{"seqs":[1,2],"ids":["x","y"],"epoch":"1.1"}"#, vec![1, 2], vec!["x", "y"]),
        ] {
            let ids = ids.into_iter().map(str::to_owned).collect();
            assert_eq!(read(payload), Some((seqs, ids)), "{payload}");
        }
    }

    #[test]
    fn leaves_everything_unusual_to_python() {
        for payload in [
            "null",
            "{}",
            r#"{"topic":"t"}"#,
            r#"{"seq":0}"#,
            r#"{"seq":-1}"#,
            r#"{"seq":1.5}"#,
            r#"{"seq":"1"}"#,
            r#"{"seq":null}"#,
            r#"{"seq":1,"seq":2}"#,
            r#"{"seq":1,"seqs":[2]}"#,
            r#"{"seqs":[2],"seq":1}"#,
            r#"{"seqs":[]}"#,
            r#"{"seqs":[1,1]}"#,
            r#"{"seqs":[2,1]}"#,
            r#"{"seqs":[1,]}"#,
            r#"{"seqs":[1],"id":"x"}"#,
            r#"{"seqs":[1],"ids":["x","y"]}"#,
            r#"{"seqs":[1],"ids":[null]}"#,
            r#"{"seq":1,"ids":["x"]}"#,
            r#"{"seq":1,"id":"x","ids":["x"]}"#,
            r#"{"seq":1,"attempt":1}"#,
            r#"{"seq":1,"upTo":1}"#,
            r#"{"seq":1,"topic":"t","topic":"t"}"#,
            r#"{"seq":1,"topic":"\u0074"}"#,
            r#"{"seq":1,"topic":null}"#,
        ] {
            assert_eq!(read(payload), None, "{payload}");
        }
        let text = ack("m", r#"{"seq":1}"#);
        for (from, to) in
            [("hub:ack", "hub:nack"), (r#""tell""#, r#""ask""#), (r#"":null,"#, r#"":"x","#)]
        {
            assert_eq!(Acks::default().learn(text.replace(from, to).as_bytes()), None, "{to}");
        }
    }

    #[test]
    fn one_that_is_like_the_last_one_is_read_the_same() {
        let mut acks = Acks::default();
        let payload = r#"{"topic":"t","subscription":"s","seq":  7,"id":"x.7"}"#;
        acks.learn(ack("m7", payload).as_bytes()).unwrap();
        let other = ack("m123", &payload.replace("7", "123456"));

        let again = acks.again(other.as_bytes()).unwrap();

        assert_eq!(Some(again), Acks::default().learn(other.as_bytes()));
        for (from, to) in [
            (r#""t""#, r#""u""#),
            ("123456,", "0,"),
            ("123456,", "1.5,"),
            ("m123", "m\\n"),
            ("x.123456", "x\\n"),
            ("}}", "} }"),
            ("17", "1e1"),
            ("null}", "null} "),
        ] {
            let changed = other.replace(from, to);
            if changed != other {
                assert_eq!(acks.again(changed.as_bytes()), None, "{changed}");
            }
        }
    }

    #[test]
    fn the_number_changes_with_what_is_referred_to() {
        let mut acks = Acks::default();
        let mut numbers = Vec::new();
        for payload in [
            r#"{"topic":"t","seq":1}"#,
            r#"{"topic":"t","seqs":[1]}"#,
            r#"{"topic":"u","seq":1}"#,
            r#"{"stream":"u","seq":1}"#,
            r#"{"stream":"u","seq":1,"id":"x"}"#,
        ] {
            acks.learn(ack("m", payload).as_bytes()).unwrap();
            numbers.push(acks.number);
        }
        assert_eq!(numbers, [1, 1, 2, 3, 4]);
    }
}
