//! SHA-256 (FIPS 180-4), to compare with digests that another program wrote.

/// The first 64 bits of the fractional parts of roots of the first primes, which
/// is where the standard takes its constants from.
fn fraction(prime: u32, root: f64) -> u32 {
    let root = f64::from(prime).powf(1.0 / root);
    let scaled = root.fract() * 4_294_967_296.0;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a fraction of 2^32"
    )]
    let bits = scaled as u32;
    bits
}

fn primes() -> impl Iterator<Item = u32> {
    (2..).filter(|n| (2..*n).all(|divisor| n % divisor != 0))
}

/// The digest of `bytes` in hexadecimal.
pub(crate) fn sha256_hex(bytes: &[u8]) -> String {
    let round: Vec<u32> = primes().take(64).map(|p| fraction(p, 3.0)).collect();
    let mut state: Vec<u32> = primes().take(8).map(|p| fraction(p, 2.0)).collect();
    let mut padded = bytes.to_vec();
    padded.push(0x80);
    padded.resize((padded.len() + 8).next_multiple_of(64) - 8, 0);
    padded.extend((bytes.len() as u64 * 8).to_be_bytes());
    for block in padded.chunks_exact(64) {
        add_block(&mut state, block, &round);
    }
    let words: Vec<_> = state.iter().map(|word| format!("{word:08x}")).collect();
    words.concat()
}

fn add_block(state: &mut [u32], block: &[u8], round: &[u32]) {
    let words = block.chunks_exact(4);
    let mut w: Vec<u32> = words
        .map(|word| u32::from_be_bytes(word.try_into().expect("four bytes")))
        .collect();
    for at in 16..64 {
        let (a, b) = (w[at - 15], w[at - 2]);
        let s0 = a.rotate_right(7) ^ a.rotate_right(18) ^ (a >> 3);
        let s1 = b.rotate_right(17) ^ b.rotate_right(19) ^ (b >> 10);
        let sum = w[at - 16].wrapping_add(s0).wrapping_add(w[at - 7]);
        w.push(sum.wrapping_add(s1));
    }
    let mut v = state.to_vec();
    for (&w, &k) in w.iter().zip(round) {
        let s1 = v[4].rotate_right(6) ^ v[4].rotate_right(11) ^ v[4].rotate_right(25);
        let chosen = (v[4] & v[5]) ^ (!v[4] & v[6]);
        let first = [s1, chosen, k, w].into_iter().fold(v[7], u32::wrapping_add);
        let s0 = v[0].rotate_right(2) ^ v[0].rotate_right(13) ^ v[0].rotate_right(22);
        let most = (v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]);
        v.rotate_right(1);
        v[4] = v[4].wrapping_add(first);
        v[0] = first.wrapping_add(s0).wrapping_add(most);
    }
    for (state, v) in state.iter_mut().zip(v) {
        *state = state.wrapping_add(v);
    }
}

#[test]
fn the_digest_of_abc_is_the_standards() {
    assert_eq!(
        sha256_hex(b"abc"),
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    );
}
