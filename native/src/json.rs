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

/// May this be in a name as it is?
pub fn is_plain(name: &[u8]) -> bool {
    name.iter().all(|byte| PLAIN[*byte as usize])
}

const HIGH: u64 = spread(0x80);

/// The byte in all eight places.
const fn spread(byte: u8) -> u64 {
    byte as u64 * 0x0101_0101_0101_0101
}

/// The high bit of every byte that is zero, and perhaps of bytes after the first of them.
const fn zeros(word: u64) -> u64 {
    word.wrapping_sub(spread(1)) & !word & HIGH
}

/// A position in JSON text. Every method returns `None` for text that Python has to look at.
pub struct Cursor<'a> {
    text: &'a [u8],
    at: usize,
    has_wide: bool,
}

impl<'a> Cursor<'a> {
    /// Begin at `at`.
    pub fn new(text: &'a [u8], at: usize) -> Self {
        Self { text, at, has_wide: false }
    }

    /// Where it stands.
    pub fn at(&self) -> usize {
        self.at
    }

    /// Has a string had bytes that are not ASCII, so that UTF-8 must be checked?
    pub fn has_wide(&self) -> bool {
        self.has_wide
    }

    /// Skip exactly this text.
    pub fn literal(&mut self, text: &[u8]) -> Option<()> {
        let part = self.text.get(self.at..self.at + text.len())?;
        (part == text).then(|| self.at += text.len())
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
        let inside = self.inside()?;
        self.at += 1;
        Some(inside)
    }

    /// What such a string holds, up to the quote at its end.
    pub fn inside(&mut self) -> Option<Range<usize>> {
        let begin = self.at;
        let size = self.text.get(begin..)?.iter().position(|byte| !PLAIN[*byte as usize])?;
        self.at += size;
        (self.text[self.at] == b'"').then_some(begin..self.at)
    }

    /// Any value; return its text. The whole text must be valid UTF-8, which is not checked here.
    pub fn value(&mut self) -> Option<Range<usize>> {
        self.peek()?;
        let begin = self.at;
        self.skip(0)?;
        Some(begin..self.at)
    }

    /// A whole number of at most fifteen digits, and its text.
    pub fn integer(&mut self) -> Option<(i64, Range<usize>)> {
        let is_negative = self.peek()? == b'-';
        let begin = self.at;
        self.number()?;
        let digits = &self.text[begin + usize::from(is_negative)..self.at];
        if digits.len() > 15 {
            return None;
        }
        let mut value = 0;
        for digit in digits {
            if !digit.is_ascii_digit() {
                return None;
            }
            value = value * 10 + i64::from(digit - b'0');
        }
        Some((if is_negative { -value } else { value }, begin..self.at))
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
            let found = self.special()?;
            if self.text[self.at + found] < 0x20 {
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

    /// How far it is to the next quote, backslash or control character.
    fn special(&mut self) -> Option<usize> {
        let rest = &self.text[self.at..];
        let mut seen = 0;
        let mut found = None;
        for (number, chunk) in rest.chunks_exact(8).enumerate() {
            let word = u64::from_le_bytes(chunk.try_into().expect("eight bytes"));
            let special = zeros(word ^ spread(b'"'))
                | zeros(word ^ spread(b'\\'))
                | word.wrapping_sub(spread(0x20)) & !word & HIGH;
            seen |= word;
            if special != 0 {
                found = Some(number * 8 + special.trailing_zeros() as usize / 8);
                break;
            }
        }
        if found.is_none() {
            let tail = rest.len() - rest.len() % 8;
            let is_special = |byte: &u8| *byte == b'"' || *byte == b'\\' || *byte < 0x20;
            found = rest[tail..].iter().position(is_special).map(|at| tail + at);
            seen |= rest[tail..].iter().fold(0, |seen, byte| seen | u64::from(*byte));
        }
        self.has_wide |= seen & HIGH != 0;
        found
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
            "\"long enough\u{1} for words\"",
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
    fn strings_end_at_the_right_place_wherever_that_is() {
        for size in 0..40 {
            for end in ["\"", "\\\"\"", "\u{e9}\"", "\u{80}\u{ff}\""] {
                let text = format!("\"{}{end}", "x".repeat(size));
                let rest = format!("{text},\"more\" and more");
                let mut cursor = Cursor::new(rest.as_bytes(), 0);
                assert_eq!(cursor.value(), Some(0..text.len()), "{text}");
                // Wide bytes after the end may count, too.
                assert!(cursor.has_wide() || text.is_ascii());
            }
        }
    }

    #[test]
    fn integers_have_at_most_fifteen_digits() {
        assert_eq!(Cursor::new(b"-12,", 0).integer(), Some((-12, 0..3)));
        assert_eq!(Cursor::new(b"1234567890123456", 0).integer(), None);
        assert_eq!(Cursor::new(b"1.5", 0).integer(), None);
    }
}
