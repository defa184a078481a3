//! Messages for rooms that need no second look: known members, each once and valid.

use std::ops::Range;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

use crate::json::Cursor;

/// What may be in an id of one kind.
struct Form {
    allowed: [bool; 256],
    chars_max: usize,
}

impl Form {
    fn new(allowed: &[u8], chars_max: usize) -> Self {
        Self { allowed: set(allowed), chars_max }
    }

    /// The text, if it is such an id.
    fn checked<'a>(&self, text: &'a [u8]) -> Option<&'a [u8]> {
        let is_short = (1..=self.chars_max).contains(&text.len());
        (is_short && !text.windows(2).any(|pair| pair == b"..")).then_some(text)
    }
}

fn set(allowed: &[u8]) -> [bool; 256] {
    let mut found = [false; 256];
    for byte in allowed {
        found[usize::from(*byte)] = true;
    }
    found
}

/// The members of a message; `None` for those it does not have.
#[derive(Debug, Default, PartialEq)]
pub struct Members<'a> {
    pub message_id: Option<&'a [u8]>,
    pub room: Option<&'a [u8]>,
    pub tenant: Option<&'a [u8]>,
    pub pseudonym: Option<&'a [u8]>,
    pub ciphertext: &'a [u8],
}

/// Reads messages as the tables given to it say.
#[pyclass(module = "signalhub_native", frozen)]
pub struct RoomMessages {
    plain: Form,
    with_colon: Form,
    base64url: [bool; 256],
    ciphertext_bytes_max: usize,
}

/// Message id, ciphertext, pseudonym, room and tenant.
type Read<'py> = (Text<'py>, Bound<'py, PyBytes>, Text<'py>, Text<'py>, Text<'py>);
type Text<'py> = Option<Bound<'py, PyString>>;

#[pymethods]
impl RoomMessages {
    /// The characters of both kinds of ids with the most that one may have, those of ciphertexts,
    /// and the most bytes that one may have when it is decoded.
    #[new]
    pub fn new(
        plain: (&[u8], usize),
        with_colon: (&[u8], usize),
        base64url: &[u8],
        ciphertext_bytes_max: usize,
    ) -> Self {
        Self {
            plain: Form::new(plain.0, plain.1),
            with_colon: Form::new(with_colon.0, with_colon.1),
            base64url: set(base64url),
            ciphertext_bytes_max,
        }
    }

    /// Return the parts of a message of the usual type.
    ///
    /// `None` if Python has to read it, which knows more types, members and spellings.
    fn read<'py>(&self, py: Python<'py>, body: &[u8]) -> PyResult<Option<Read<'py>>> {
        let Some(found) = self.members(body) else { return Ok(None) };
        let text =
            |one: Option<&[u8]>| one.map(|bytes| PyString::from_bytes(py, bytes)).transpose();
        Ok(Some((
            text(found.message_id)?,
            PyBytes::new(py, found.ciphertext),
            text(found.pseudonym)?,
            text(found.room)?,
            text(found.tenant)?,
        )))
    }
}

impl RoomMessages {
    pub fn members<'a>(&self, body: &'a [u8]) -> Option<Members<'a>> {
        let mut found = Members::default();
        let mut seen = 0u8;
        let mut at = 0;
        loop {
            let mut cursor = Cursor::new(body, at);
            if seen == 0 {
                cursor.expect(b'{')?;
            }
            let Some(name) = cursor.member(seen == 0)? else {
                cursor.end()?;
                break;
            };
            cursor.expect(b'"')?;
            let begin = cursor.at();
            let mut text = |allowed: &[bool; 256]| {
                let range: Range<usize> = begin..begin + run(&body[begin..], allowed);
                at = range.end + 1;
                (body.get(range.end) == Some(&b'"')).then(|| &body[range])
            };
            let bit = match &body[name] {
                b"messageId" => {
                    found.message_id = Some(self.plain.checked(text(&self.plain.allowed)?)?);
                    0
                }
                b"roomId" => {
                    found.room = Some(self.with_colon.checked(text(&self.with_colon.allowed)?)?);
                    1
                }
                b"tenantId" => {
                    found.tenant = Some(self.plain.checked(text(&self.plain.allowed)?)?);
                    2
                }
                b"pseudonymId" => {
                    let given = text(&self.with_colon.allowed)?;
                    found.pseudonym = Some(self.with_colon.checked(given)?);
                    3
                }
                b"ciphertext" => {
                    found.ciphertext = self.ciphertext(text(&self.base64url)?)?;
                    4
                }
                _ => return None,
            };
            if seen & 1 << bit != 0 {
                return None;
            }
            seen |= 1 << bit;
        }
        (!found.ciphertext.is_empty()).then_some(found)
    }

    /// The text, if it can be what base64 makes of some bytes, and not of too many.
    fn ciphertext<'a>(&self, text: &'a [u8]) -> Option<&'a [u8]> {
        let is_whole = !text.is_empty() && text.len() % 4 != 1;
        (is_whole && text.len() * 3 / 4 <= self.ciphertext_bytes_max).then_some(text)
    }
}

/// How many bytes of the table it begins with.
fn run(text: &[u8], allowed: &[bool; 256]) -> usize {
    let mut size = 0;
    for chunk in text.chunks_exact(8) {
        if !chunk.iter().fold(true, |all, byte| all & allowed[usize::from(*byte)]) {
            break;
        }
        size += 8;
    }
    let rest = &text[size..];
    size + rest.iter().position(|byte| !allowed[usize::from(*byte)]).unwrap_or(rest.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages() -> RoomMessages {
        RoomMessages::new((b"ab._", 5), (b"ab._:", 9), b"abcdefghij-_", 30)
    }

    fn text(bytes: Option<&[u8]>) -> &str {
        std::str::from_utf8(bytes.expect("a member")).expect("text")
    }

    #[test]
    fn reads_what_is_valid() {
        let body = br#" {"roomId" : "a:b","messageId":"b.a", "tenantId":"ab",
            "pseudonymId":"a_b:a","ciphertext":"abcdefghij"} "#;
        let readers = messages();
        let found = readers.members(body).expect("a plain message");

        assert_eq!(text(found.room), "a:b");
        assert_eq!(text(found.message_id), "b.a");
        assert_eq!(text(found.tenant), "ab");
        assert_eq!(text(found.pseudonym), "a_b:a");
        assert_eq!(found.ciphertext, b"abcdefghij");
        let least = readers.members(br#"{"ciphertext":"ab"}"#).expect("a plain message");
        assert_eq!(least, Members { ciphertext: b"ab", ..Members::default() });
    }

    #[test]
    fn leaves_everything_else_to_python() {
        for body in [
            "",
            "{}",
            "[]",
            r#"{"ciphertext":""}"#,
            r#"{"ciphertext":"ab""#,
            r#"{"ciphertext":"ab"},"#,
            r#"{"ciphertext":"ab",}"#,
            r#"{,"ciphertext":"ab"}"#,
            r#"{"ciphertext":"ab""roomId":"a"}"#,
            r#"{"ciphertext":"ab=="}"#,
            r#"{"ciphertext":"a+"}"#,
            r#"{"ciphertext":"abcde"}"#,
            r#"{"ciphertext":"a\u0062"}"#,
            r#"{"ciphertext":null}"#,
            r#"{"ciphertext":"ab","ciphertext":"ab"}"#,
            r#"{"ciphertext":"ab","roomId":"a..b"}"#,
            r#"{"ciphertext":"ab","roomId":""}"#,
            r#"{"ciphertext":"ab","roomId":"aaaaaaaaaa"}"#,
            r#"{"ciphertext":"ab","messageId":"a:b"}"#,
            r#"{"ciphertext":"ab","messageId":"aaaaaa"}"#,
            r#"{"ciphertext":"ab","messageId":1}"#,
            r#"{"ciphertext":"ab","type":"mls_app"}"#,
            r#"{"ciphertext":"ab","other":1}"#,
            r#"{"roomId":"a"}"#,
        ] {
            assert_eq!(messages().members(body.as_bytes()), None, "{body}");
        }
        let long = format!(r#"{{"ciphertext":"{}"}}"#, "a".repeat(42));
        assert_eq!(messages().members(long.as_bytes()), None);
    }

    #[test]
    fn runs_end_at_the_first_other_byte() {
        let allowed = set(b"a");
        for size in 0..40 {
            let text = "a".repeat(size);
            assert_eq!(run(text.as_bytes(), &allowed), size);
            assert_eq!(run(format!("{text}\"{text}").as_bytes(), &allowed), size);
        }
    }
}
