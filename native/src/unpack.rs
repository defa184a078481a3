//! Reading MessagePack; `None` stands for whatever Python has to look at.

/// Bodies are hardly nested; whatever is deeper is left to Python.
const DEPTH_MAX: usize = 32;

/// What is left of a value.
pub struct Unpacker<'a>(&'a [u8]);

impl<'a> Unpacker<'a> {
    pub fn new(data: &'a [u8]) -> Self {
        Self(data)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn take(&mut self, size: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(size)?;
        self.0 = rest;
        Some(taken)
    }

    fn digits<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn code(&mut self) -> Option<u8> {
        Some(self.digits::<1>()?[0])
    }

    /// A length of one, two or four bytes, by the last bits of a code.
    fn size(&mut self, width: u8) -> Option<usize> {
        match width {
            0 => Some(self.code()? as usize),
            1 => Some(u16::from_be_bytes(self.digits()?) as usize),
            _ => usize::try_from(u32::from_be_bytes(self.digits()?)).ok(),
        }
    }

    /// The head of an array: how many members follow.
    pub fn array(&mut self) -> Option<usize> {
        match self.code()? {
            code @ 0x90..=0x9f => Some((code & 0x0f) as usize),
            code @ 0xdc..=0xdd => self.size(code - 0xdb),
            _ => None,
        }
    }

    pub fn text(&mut self) -> Option<&'a str> {
        let size = match self.code()? {
            code @ 0xa0..=0xbf => (code & 0x1f) as usize,
            code @ 0xd9..=0xdb => self.size(code - 0xd9)?,
            _ => return None,
        };
        std::str::from_utf8(self.take(size)?).ok()
    }

    /// Pass over null; whether it was there.
    pub fn null(&mut self) -> bool {
        let is_null = self.0.first() == Some(&0xc0);
        if is_null {
            self.0 = &self.0[1..];
        }
        is_null
    }

    /// Any number.
    pub fn number(&mut self) -> Option<f64> {
        Some(match self.code()? {
            code @ 0x00..=0x7f => code as f64,
            code @ 0xe0..=0xff => code as i8 as f64,
            0xca => f32::from_be_bytes(self.digits()?) as f64,
            0xcb => f64::from_be_bytes(self.digits()?),
            0xcc => self.code()? as f64,
            0xcd => u16::from_be_bytes(self.digits()?) as f64,
            0xce => u32::from_be_bytes(self.digits()?) as f64,
            0xcf => u64::from_be_bytes(self.digits()?) as f64,
            0xd0 => self.code()? as i8 as f64,
            0xd1 => i16::from_be_bytes(self.digits()?) as f64,
            0xd2 => i32::from_be_bytes(self.digits()?) as f64,
            0xd3 => i64::from_be_bytes(self.digits()?) as f64,
            _ => return None,
        })
    }

    /// Pass over values of any type.
    pub fn skip(&mut self, values: usize) -> Option<()> {
        self.skip_nested(values, 0)
    }

    fn skip_nested(&mut self, values: usize, depth: usize) -> Option<()> {
        if depth > DEPTH_MAX {
            return None;
        }
        for _ in 0..values {
            let (bytes, members) = match self.code()? {
                0x00..=0x7f | 0xe0..=0xff | 0xc0 | 0xc2 | 0xc3 => (0, 0),
                code @ 0x80..=0x8f => (0, 2 * (code & 0x0f) as usize),
                code @ 0x90..=0x9f => (0, (code & 0x0f) as usize),
                code @ 0xa0..=0xbf => ((code & 0x1f) as usize, 0),
                code @ 0xc4..=0xc6 => (self.size(code - 0xc4)?, 0),
                code @ 0xd9..=0xdb => (self.size(code - 0xd9)?, 0),
                0xcc | 0xd0 => (1, 0),
                0xcd | 0xd1 => (2, 0),
                0xca | 0xce | 0xd2 => (4, 0),
                0xcb | 0xcf | 0xd3 => (8, 0),
                code @ 0xdc..=0xdd => (0, self.size(code - 0xdb)?),
                code @ 0xde..=0xdf => (0, self.size(code - 0xdd)?.checked_mul(2)?),
                // Extension types, and what is invalid.
                _ => return None,
            };
            self.take(bytes)?;
            if members > 0 {
                self.skip_nested(members, depth + 1)?;
            }
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn skipped(data: &[u8]) -> Option<usize> {
        let mut unpacker = Unpacker::new(data);
        unpacker.skip(1)?;
        Some(data.len() - unpacker.0.len())
    }

    #[test]
    fn values_of_every_type_are_passed_over() {
        for (data, size) in [
            (&[0x7f][..], 1),
            (&[0xff], 1),
            (&[0xc0, 9], 1),
            (&[0xc3], 1),
            (&[0xcc, 1], 2),
            (&[0xcd, 1, 2], 3),
            (&[0xca, 1, 2, 3, 4], 5),
            (&[0xcb, 1, 2, 3, 4, 5, 6, 7, 8], 9),
            (&[0xa2, 1, 2, 3], 3),
            (&[0xd9, 1, 2, 3], 3),
            (&[0xda, 0, 1, 2], 4),
            (&[0xdb, 0, 0, 0, 1, 2], 6),
            (&[0xc4, 1, 2], 3),
            (&[0xc5, 0, 1, 2], 4),
            (&[0xc6, 0, 0, 0, 1, 2], 6),
            (&[0x92, 1, 0x91, 2, 3], 4),
            (&[0x81, 0xa1, 5, 6], 4),
            (&[0xdc, 0, 1, 7], 4),
            (&[0xdd, 0, 0, 0, 1, 7], 6),
            (&[0xde, 0, 1, 7, 8], 5),
            (&[0xdf, 0, 0, 0, 1, 7, 8], 7),
        ] {
            assert_eq!(skipped(data), Some(size), "{data:x?}");
            assert_eq!(skipped(&data[..size - 1]), None, "{data:x?}, truncated");
        }
    }

    #[test]
    fn what_is_invalid_unusual_or_deep_is_left_to_python() {
        assert_eq!(skipped(&[0xc1]), None);
        assert_eq!(skipped(&[0xd4, 1, 2]), None);
        assert_eq!(skipped(&[0xdf, 0xff, 0xff, 0xff, 0xff]), None);
        let nested = |depth: usize| [vec![0x91; depth], vec![0]].concat();
        assert_eq!(skipped(&nested(DEPTH_MAX)), Some(DEPTH_MAX + 1));
        assert_eq!(skipped(&nested(DEPTH_MAX + 1)), None);
        assert_eq!(Unpacker::new(&[0xa1, 0xff]).text(), None);
        assert_eq!(Unpacker::new(&[0xc4, 1, 65]).text(), None);
        assert_eq!(Unpacker::new(&[0xa1, 65]).number(), None);
        assert_eq!(Unpacker::new(&[0x81]).array(), None);
    }

    #[test]
    fn numbers_of_every_form_are_the_same() {
        for (data, value) in [
            (&[5][..], 5.0),
            (&[0xff], -1.0),
            (&[0xcc, 200], 200.0),
            (&[0xcd, 1, 0], 256.0),
            (&[0xce, 0, 1, 0, 0], 65_536.0),
            (&[0xcf, 0, 0, 1, 0, 0, 0, 0, 0], 1_099_511_627_776.0),
            (&[0xd0, 0x80], -128.0),
            (&[0xd1, 0xff, 0], -256.0),
            (&[0xd2, 0xff, 0xff, 0xff, 0], -256.0),
            (&[0xd3, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0], -256.0),
            (&[0xca, 0x3f, 0x80, 0, 0], 1.0),
            (&[0xcb, 0x3f, 0xf0, 0, 0, 0, 0, 0, 0], 1.0),
        ] {
            assert_eq!(Unpacker::new(data).number(), Some(value), "{data:x?}");
        }
        assert_eq!(Unpacker::new(&[0xdc, 1, 0]).array(), Some(256));
        assert_eq!(Unpacker::new(&[0xd9, 2, 0xc3, 0xab]).text(), Some("ë"));
    }
}
