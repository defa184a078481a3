//! SHA-1, which the WebSocket handshake asks for; it protects nothing.

const BLOCK_BYTES: usize = 64;
const LENGTH_BYTES: usize = 8;
const START: [u32; 5] = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476, 0xc3d2_e1f0];

/// The digest of some bytes.
pub fn sha1(data: &[u8]) -> [u8; 20] {
    let mut padded = data.to_vec();
    padded.push(0x80);
    while padded.len() % BLOCK_BYTES != BLOCK_BYTES - LENGTH_BYTES {
        padded.push(0);
    }
    padded.extend_from_slice(&(data.len() as u64 * 8).to_be_bytes());
    let mut state = START;
    for block in padded.chunks_exact(BLOCK_BYTES) {
        add(&mut state, block);
    }
    let mut digest = [0; 20];
    for (bytes, word) in digest.chunks_exact_mut(4).zip(state) {
        bytes.copy_from_slice(&word.to_be_bytes());
    }
    digest
}

fn add(state: &mut [u32; 5], block: &[u8]) {
    let mut words = [0_u32; 80];
    for (word, bytes) in words.iter_mut().zip(block.chunks_exact(4)) {
        *word = u32::from_be_bytes(bytes.try_into().expect("four bytes"));
    }
    for at in 16..80 {
        words[at] =
            (words[at - 3] ^ words[at - 8] ^ words[at - 14] ^ words[at - 16]).rotate_left(1);
    }
    let mut mixed = *state;
    mix(&mut mixed, &words[..20], 0x5a82_7999, |b, c, d| (b & c) | (!b & d));
    mix(&mut mixed, &words[20..40], 0x6ed9_eba1, |b, c, d| b ^ c ^ d);
    mix(&mut mixed, &words[40..60], 0x8f1b_bcdc, |b, c, d| (b & c) | (b & d) | (c & d));
    mix(&mut mixed, &words[60..], 0xca62_c1d6, |b, c, d| b ^ c ^ d);
    for (word, more) in state.iter_mut().zip(mixed) {
        *word = word.wrapping_add(more);
    }
}

fn mix(state: &mut [u32; 5], words: &[u32], constant: u32, of: impl Fn(u32, u32, u32) -> u32) {
    let [mut a, mut b, mut c, mut d, mut e] = *state;
    for word in words {
        let sum = a.rotate_left(5).wrapping_add(of(b, c, d)).wrapping_add(e);
        (e, d, c, b) = (d, c, b.rotate_left(30), a);
        a = sum.wrapping_add(constant).wrapping_add(*word);
    }
    *state = [a, b, c, d, e];
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(data: &[u8]) -> String {
        sha1(data).iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn digests_the_examples_of_the_standard() {
        assert_eq!(hex(b""), "da39a3ee5e6b4b0d3255bfef95601890afd80709");
        assert_eq!(hex(b"abc"), "a9993e364706816aba3e25717850c26c9cd0d89d");
        let long = b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
        assert_eq!(hex(long), "84983e441c3bd26ebaae4aa1f95129e5e54670f1");
    }
}
