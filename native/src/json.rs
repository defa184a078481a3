//! A validating walk over JSON text that allocates nothing.
//!
//! It accepts less than the Python decoder: what it is not sure about is handed to Python.

use std::ops::Range;

/// Deeper values are left to Python, which has a limit of its own.
const DEPTH_MAX: usize = 64;

/// What may be in a name: printable ASCII characters that are written as they are.
const PLAIN: [bool; 256] = {
    let mut plain = [false; 256];
    let mut byte = 0x20;
    while byte < 0x7f {
        plain[byte] = byte != b'"' as usize && byte != b'\\' as usize;
        byte += 1;
    }
    plain
};

/// A position in JSON text. Every method returns `None` for text that Python has to look at.
pub struct Cursor<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    /// Begin at `at`.
    pub fn new(text: &'a [u8], at: usize) -> Self {
        Self { text, at }
    }

    /// Skip white space; return the next byte.
    pub fn peek(&mut self) -> Option<u8> {
        loop {
            match self.text.get(self.at)? {
                b' ' | b'\n' | b'\r' | b'\t' => self.at += 1,
                byte => return Some(*byte),
            }
        }
    }

    /// Skip white space and this byte.
    pub fn expect(&mut self, byte: u8) -> Option<()> {
        (self.peek()? == byte).then(|| self.at += 1)
    }

    /// Nothing but white space is left.
    pub fn end(&mut self) -> Option<()> {
        self.peek().is_none().then_some(())
    }

    /// A string of printable ASCII characters without escapes; return what is between the quotes.
    pub fn plain(&mut self) -> Option<Range<usize>> {
        self.expect(b'"')?;
        let begin = self.at;
        let size = self.text[begin..].iter().position(|byte| !PLAIN[*byte as usize])?;
        self.at += size + 1;
        (self.text[begin + size] == b'"').then_some(begin..begin + size)
    }

    /// Any value; return its text. The whole text must be valid UTF-8, which is not checked here.
    pub fn value(&mut self) -> Option<Range<usize>> {
        self.peek()?;
        let begin = self.at;
        self.skip(0)?;
        Some(begin..self.at)
    }

    /// A whole number of at most fifteen digits.
    pub fn integer(&mut self) -> Option<i64> {
        self.peek()?;
        let begin = self.at;
        self.number()?;
        let text = &self.text[begin..self.at];
        if text.len() > 15 {
            return None;
        }
        std::str::from_utf8(text).ok()?.parse().ok()
    }

    /// The next member of an object, up to its value; `None` inside if the object ends.
    pub fn member(&mut self, is_first: bool) -> Option<Option<Range<usize>>> {
        if self.peek()? == b'}' {
            self.at += 1;
            return Some(None);
        }
        if !is_first {
            self.expect(b',')?;
        }
        let name = self.plain()?;
        self.expect(b':')?;
        Some(Some(name))
    }

    /// This word, such as `null`.
    pub fn word(&mut self, word: &[u8]) -> Option<()> {
        self.peek()?;
        self.text[self.at..].starts_with(word).then(|| self.at += word.len())
    }

    fn skip(&mut self, depth: usize) -> Option<()> {
        match self.peek()? {
            b'{' => self.skip_object(depth),
            b'[' => self.skip_array(depth),
            b'"' => self.skip_string(),
            b't' => self.word(b"true"),
            b'f' => self.word(b"false"),
            b'n' => self.word(b"null"),
            _ => self.number(),
        }
    }

    fn skip_object(&mut self, depth: usize) -> Option<()> {
        if depth == DEPTH_MAX {
            return None;
        }
        self.at += 1;
        if self.peek()? == b'}' {
            self.at += 1;
            return Some(());
        }
        loop {
            self.peek()?;
            self.skip_string()?;
            self.expect(b':')?;
            self.skip(depth + 1)?;
            match self.peek()? {
                b',' => self.at += 1,
                b'}' => break,
                _ => return None,
            }
        }
        self.at += 1;
        Some(())
    }

    fn skip_array(&mut self, depth: usize) -> Option<()> {
        if depth == DEPTH_MAX {
            return None;
        }
        self.at += 1;
        if self.peek()? == b']' {
            self.at += 1;
            return Some(());
        }
        loop {
            self.skip(depth + 1)?;
            match self.peek()? {
                b',' => self.at += 1,
                b']' => break,
                _ => return None,
            }
        }
        self.at += 1;
        Some(())
    }

    fn skip_string(&mut self) -> Option<()> {
        if *self.text.get(self.at)? != b'"' {
            return None;
        }
        self.at += 1;
        loop {
            // Most strings have neither; the search looks at many bytes at a time.
            let found = memchr::memchr2(b'"', b'\\', &self.text[self.at..])?;
            let part = &self.text[self.at..self.at + found];
            if part.iter().fold(false, |is_bad, byte| is_bad | (*byte < 0x20)) {
                return None;
            }
            self.at += found + 1;
            if self.text[self.at - 1] == b'"' {
                return Some(());
            }
            match self.text.get(self.at)? {
                b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => self.at += 1,
                // Halves of pairs of characters are for Python to judge.
                b'u' => {
                    let digits = self.text.get(self.at + 1..self.at + 5)?;
                    let is_hex = digits.iter().all(u8::is_ascii_hexdigit);
                    if !is_hex || matches!(digits[0], b'd' | b'D') {
                        return None;
                    }
                    self.at += 5;
                }
                _ => return None,
            }
        }
    }

    fn number(&mut self) -> Option<()> {
        if *self.text.get(self.at)? == b'-' {
            self.at += 1;
        }
        match self.text.get(self.at)? {
            b'0' => self.at += 1,
            b'1'..=b'9' => self.digits(),
            _ => return None,
        }
        if self.text.get(self.at) == Some(&b'.') {
            self.at += 1;
            self.some_digits()?;
        }
        if matches!(self.text.get(self.at), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.text.get(self.at), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.some_digits()?;
        }
        Some(())
    }

    fn some_digits(&mut self) -> Option<()> {
        let begin = self.at;
        self.digits();
        (self.at > begin).then_some(())
    }

    fn digits(&mut self) {
        while matches!(self.text.get(self.at), Some(b'0'..=b'9')) {
            self.at += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str) -> Option<&str> {
        let mut cursor = Cursor::new(text.as_bytes(), 0);
        let range = cursor.value()?;
        cursor.end()?;
        Some(&text[range])
    }

    #[test]
    fn takes_valid_values_without_the_space_around_them() {
        for text in ["{}", "[]", "null", "-0.5e+10", r#"{"a": [1, {"b": "c\n\u00e9"}], "": true}"#]
        {
            assert_eq!(value(&format!(" {text}\n")), Some(text));
        }
    }

    #[test]
    fn leaves_everything_doubtful_to_python() {
        for text in [
            "",
            "{",
            "[1,]",
            "{\"a\":1,}",
            "01",
            "1.",
            "1e",
            "-",
            "+1",
            "nul",
            "\"\u{1}\"",
            r#""\x""#,
            r#""\u12g4""#,
            r#""\ud800""#,
            "{\"a\" 1}",
            "[1 2]",
            "NaN",
            "{} {}",
        ] {
            assert_eq!(value(text), None, "{text}");
        }
        let deep = "[".repeat(DEPTH_MAX + 1) + &"]".repeat(DEPTH_MAX + 1);
        assert_eq!(value(&deep), None);
    }

    #[test]
    fn integers_have_at_most_fifteen_digits() {
        assert_eq!(Cursor::new(b"-12,", 0).integer(), Some(-12));
        assert_eq!(Cursor::new(b"1234567890123456", 0).integer(), None);
        assert_eq!(Cursor::new(b"1.5", 0).integer(), None);
    }
}
