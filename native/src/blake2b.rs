//! BLAKE2b (RFC 7693), for digests of up to 64 bytes.

const BLOCK_BYTES: usize = 128;
const IV: [u64; 8] = [
    0x6a09_e667_f3bc_c908,
    0xbb67_ae85_84ca_a73b,
    0x3c6e_f372_fe94_f82b,
    0xa54f_f53a_5f1d_36f1,
    0x510e_527f_ade6_82d1,
    0x9b05_688c_2b3e_6c1f,
    0x1f83_d9ab_fb41_bd6b,
    0x5be0_cd19_137e_2179,
];
const SIGMA: [[usize; 16]; 10] = [
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
    [14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3],
    [11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4],
    [7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8],
    [9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13],
    [2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9],
    [12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11],
    [13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10],
    [6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5],
    [10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0],
];

/// A digest that has not got all of its text yet.
#[derive(Clone)]
pub struct Blake2b<const N: usize> {
    state: [u64; 8],
    block: [u8; BLOCK_BYTES],
    filled: usize,
    counted: u64,
}

impl<const N: usize> Blake2b<N> {
    /// With a key of at most 64 bytes, which may be empty.
    pub fn new(key: &[u8]) -> Self {
        const { assert!(N > 0 && N <= 64) };
        assert!(key.len() <= 64, "a key has at most 64 bytes");
        let mut state = IV;
        state[0] ^= 0x0101_0000 ^ (key.len() as u64) << 8 ^ N as u64;
        let mut block = [0; BLOCK_BYTES];
        block[..key.len()].copy_from_slice(key);
        let filled = if key.is_empty() { 0 } else { BLOCK_BYTES };
        Self { state, block, filled, counted: 0 }
    }

    /// Text will follow, so that a full block is not the last one.
    pub fn begun(mut self) -> Self {
        if self.filled == BLOCK_BYTES {
            self.counted += BLOCK_BYTES as u64;
            compress(&mut self.state, &self.block, self.counted, false);
            self.filled = 0;
        }
        self
    }

    pub fn update(&mut self, text: &[u8]) {
        let mut rest = text;
        while !rest.is_empty() {
            // The last block is compressed differently, so a full one waits for more.
            if self.filled == BLOCK_BYTES {
                self.counted += BLOCK_BYTES as u64;
                compress(&mut self.state, &self.block, self.counted, false);
                self.filled = 0;
            }
            let size = rest.len().min(BLOCK_BYTES - self.filled);
            self.block[self.filled..self.filled + size].copy_from_slice(&rest[..size]);
            self.filled += size;
            rest = &rest[size..];
        }
    }

    /// The digest of the text so far, to which more can be added.
    pub fn digest(&self) -> [u8; N] {
        let (mut state, mut block) = (self.state, self.block);
        block[self.filled..].fill(0);
        compress(&mut state, &block, self.counted + self.filled as u64, true);
        let mut digest = [0; 64];
        for (bytes, word) in digest.chunks_exact_mut(8).zip(state) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        digest[..N].try_into().expect("at most the whole digest")
    }
}

/// The digest of `N` bytes of a text in parts, without a key.
pub fn blake2b<const N: usize>(parts: &[&[u8]]) -> [u8; N] {
    let mut digest = Blake2b::new(&[]);
    for part in parts {
        digest.update(part);
    }
    digest.digest()
}

fn compress(state: &mut [u64; 8], block: &[u8; BLOCK_BYTES], counted: u64, is_last: bool) {
    let mut words = [0; 16];
    for (word, bytes) in words.iter_mut().zip(block.chunks_exact(8)) {
        *word = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
    }
    let mut v = [0; 16];
    v[..8].copy_from_slice(state);
    v[8..].copy_from_slice(&IV);
    v[12] ^= counted;
    if is_last {
        v[14] = !v[14];
    }
    // One by one, so that it is known at compile time which words each takes.
    round::<0>(&mut v, &words);
    round::<1>(&mut v, &words);
    round::<2>(&mut v, &words);
    round::<3>(&mut v, &words);
    round::<4>(&mut v, &words);
    round::<5>(&mut v, &words);
    round::<6>(&mut v, &words);
    round::<7>(&mut v, &words);
    round::<8>(&mut v, &words);
    round::<9>(&mut v, &words);
    round::<0>(&mut v, &words);
    round::<1>(&mut v, &words);
    for at in 0..8 {
        state[at] ^= v[at] ^ v[at + 8];
    }
}

#[inline(always)]
fn round<const R: usize>(v: &mut [u64; 16], words: &[u64; 16]) {
    let s = const { &SIGMA[R] };
    mix(v, [0, 4, 8, 12], words[s[0]], words[s[1]]);
    mix(v, [1, 5, 9, 13], words[s[2]], words[s[3]]);
    mix(v, [2, 6, 10, 14], words[s[4]], words[s[5]]);
    mix(v, [3, 7, 11, 15], words[s[6]], words[s[7]]);
    mix(v, [0, 5, 10, 15], words[s[8]], words[s[9]]);
    mix(v, [1, 6, 11, 12], words[s[10]], words[s[11]]);
    mix(v, [2, 7, 8, 13], words[s[12]], words[s[13]]);
    mix(v, [3, 4, 9, 14], words[s[14]], words[s[15]]);
}

#[inline(always)]
fn mix(v: &mut [u64; 16], [a, b, c, d]: [usize; 4], x: u64, y: u64) {
    v[a] = v[a].wrapping_add(v[b]).wrapping_add(x);
    v[d] = (v[d] ^ v[a]).rotate_right(32);
    v[c] = v[c].wrapping_add(v[d]);
    v[b] = (v[b] ^ v[c]).rotate_right(24);
    v[a] = v[a].wrapping_add(v[b]).wrapping_add(y);
    v[d] = (v[d] ^ v[a]).rotate_right(16);
    v[c] = v[c].wrapping_add(v[d]);
    v[b] = (v[b] ^ v[c]).rotate_right(63);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(digest: &[u8]) -> String {
        digest.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn gives_the_digest_of_the_standard() {
        // RFC 7693, appendix A.
        let expected = "ba80a53f981c4d0d6a2797b69f12f6e94c212f14685ac4b74b12bb6fdbffa2d1\
                        7d87c5392aab792dc252d5de4533cc9518d38aa8dbf1925ab92386edd4009923";
        assert_eq!(hex(&blake2b::<64>(&[b"abc"])), expected);
    }

    #[test]
    fn does_not_care_how_the_text_is_divided() {
        let text: Vec<u8> = (0..300u16).map(|number| number as u8).collect();
        for size in [0, 1, 127, 128, 129, 255, 256, 257, 300] {
            let whole = blake2b::<10>(&[&text[..size]]);
            for at in 0..=size {
                assert_eq!(blake2b::<10>(&[&text[..at], &text[at..size]]), whole, "{size} {at}");
            }
        }
    }

    #[test]
    fn keys_are_part_of_the_digest() {
        // The second of the known answers of the reference implementation.
        let key: Vec<u8> = (0..64).collect();
        let mut digest = Blake2b::<64>::new(&key);
        digest.update(&[0]);
        let expected = "961f6dd1e4dd30f63901690c512e78e4b45e4742ed197c3c5e45c549fd25f2e4\
                        187b0bc9fe30492b16b0d0bc4ef9b0f34c7003fac09a5ef1532e69430234cebd";
        assert_eq!(hex(&digest.digest()), expected);
    }
}
