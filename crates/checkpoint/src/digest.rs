//! A fingerprint of a tensor's bytes that ranks can compute in parts.
//!
//! Position-dependent and linear, so that the digest of a whole is the sum of the
//! digests of its ranges, however it is cut. Not cryptographic: it finds what
//! goes wrong by accident, not what someone hides.
//!
//! ```text
//! w[i]    bytes 8i .. 8i + 8 of the tensor as a little-endian number; bytes that
//!         a range does not have count as 0; w = 2^32 hi(w) + lo(w)
//! T[j]    64-bit constants with odd halves, j = 0 .. 1023
//! M[b]    odd 64-bit constants
//! S[b]    sum over j of lo(T[j]) lo(w[k]) + hi(T[j]) hi(w[k])   mod 2^64
//!         with k = 1024 b + j
//! digest  sum over b of M[b] S[b]                               mod 2^64
//! ```
//!
//! The product of two halves fits in 64 bits, so a change of one half word always
//! shows, and two changes cancel with a chance of about 2^-32. Beside the sum
//! stands the number of bytes, by which a range that was never read shows even
//! where it holds zeros.

#![expect(
    clippy::inline_always,
    reason = "a loop gets the vectors of the function that it is inlined into"
)]

use std::fmt;
use std::fs::File;
use std::io::Read as _;
use std::iter::Sum;
use std::ops::AddAssign;
use std::path::Path;
use std::str::FromStr;

use crate::error::{Result, io_error};

/// Words of a block.
const BLOCK_LEN: usize = 1024;
const WORD_BYTES: usize = 8;
const BLOCK_BYTES: usize = BLOCK_LEN * WORD_BYTES;

/// Bytes of a file that are held at a time.
const FILE_PIECE_BYTES: usize = 1 << 20;

static WORD_FACTORS: [u64; BLOCK_LEN] = word_factors();

/// The digest of a range of a tensor's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Digest {
    sum: u64,
    num_bytes: u64,
}

impl Digest {
    /// The digest of `bytes`, which begin at byte `begin` of their tensor.
    ///
    /// ```
    /// use checkpoint::Digest;
    ///
    /// let mut parts = Digest::of(3, b"defg");
    /// parts += Digest::of(0, b"abc");
    /// assert_eq!(parts, Digest::of(0, b"abcdefg"));
    /// assert_ne!(parts, Digest::of(0, b"abcdegf"));
    /// ```
    pub fn of(begin: u64, bytes: &[u8]) -> Self {
        Self {
            // The same plain loop, compiled for the vectors that this processor has.
            sum: pulp::Arch::new().dispatch(Blocks { begin, bytes }),
            num_bytes: bytes.len() as u64,
        }
    }

    /// The digest of a whole file.
    pub fn of_file(path: &Path) -> Result<Self> {
        let failed = io_error("read", path);
        let digest = || {
            let mut file = File::open(path)?;
            let (mut digest, mut buffer) = (Self::default(), vec![0; FILE_PIECE_BYTES]);
            loop {
                match file.read(&mut buffer)? {
                    0 => return Ok(digest),
                    len => digest += Self::of(digest.num_bytes, &buffer[..len]),
                }
            }
        };
        digest().map_err(failed)
    }

    /// How many bytes were taken in.
    pub fn num_bytes(self) -> u64 {
        self.num_bytes
    }

    /// Two numbers that add up over ranks, each modulo 2^64.
    pub fn parts(self) -> [u64; 2] {
        [self.sum, self.num_bytes]
    }

    /// The digest of these [`Digest::parts`].
    pub fn from_parts([sum, num_bytes]: [u64; 2]) -> Self {
        Self { sum, num_bytes }
    }
}

impl AddAssign for Digest {
    fn add_assign(&mut self, other: Self) {
        self.sum = self.sum.wrapping_add(other.sum);
        self.num_bytes = self.num_bytes.wrapping_add(other.num_bytes);
    }
}

impl Sum for Digest {
    fn sum<I: Iterator<Item = Self>>(digests: I) -> Self {
        digests.fold(Self::default(), |mut sum, digest| {
            sum += digest;
            sum
        })
    }
}

/// `SUM:BYTES`, the sum in 16 hexadecimal digits.
impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}:{}", self.sum, self.num_bytes)
    }
}

/// A text that is no digest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no digest, expected 16 hexadecimal digits, a colon and a number of bytes")]
pub struct NotADigest(pub String);

impl FromStr for Digest {
    type Err = NotADigest;

    fn from_str(text: &str) -> Result<Self, NotADigest> {
        let refuse = || NotADigest(text.to_owned());
        let (sum, num_bytes) = text.split_once(':').ok_or_else(refuse)?;
        if sum.len() != 16 || sum.starts_with('+') {
            return Err(refuse());
        }
        Ok(Self {
            sum: u64::from_str_radix(sum, 16).map_err(|_| refuse())?,
            num_bytes: num_bytes.parse().map_err(|_| refuse())?,
        })
    }
}

/// A range of a tensor's bytes, to be summed block by block.
struct Blocks<'a> {
    begin: u64,
    bytes: &'a [u8],
}

impl pulp::NullaryFnOnce for Blocks<'_> {
    type Output = u64;

    #[inline(always)]
    fn call(self) -> u64 {
        let mut sum = 0_u64;
        let (mut at, mut rest) = (self.begin, self.bytes);
        while !rest.is_empty() {
            let block = at / BLOCK_BYTES as u64;
            let within = usize::try_from(at % BLOCK_BYTES as u64).expect("less than a block");
            let (here, after) = rest.split_at(rest.len().min(BLOCK_BYTES - within));
            let inner = block_sum(within, here);
            sum = sum.wrapping_add(inner.wrapping_mul(block_factor(block)));
            at += here.len() as u64;
            rest = after;
        }
        sum
    }
}

/// The inner sum of one block, of bytes that begin at byte `within` of it.
#[inline(always)]
fn block_sum(within: usize, bytes: &[u8]) -> u64 {
    let before = within % WORD_BYTES;
    let (head, rest) = if before == 0 {
        (&[][..], bytes)
    } else {
        bytes.split_at(bytes.len().min(WORD_BYTES - before))
    };
    let mut factors = &WORD_FACTORS[within / WORD_BYTES..];
    let mut sum = 0_u64;
    if !head.is_empty() {
        sum = products(factors[0], partial_word(before, head));
        factors = &factors[1..];
    }
    let (words, tail) = rest.as_chunks();
    if !tail.is_empty() {
        let word = partial_word(0, tail);
        sum = sum.wrapping_add(products(factors[words.len()], word));
    }
    sum.wrapping_add(sum_of_products(factors, words))
}

/// The products of whole words, in lanes that the compiler turns into vectors.
#[inline(always)]
fn sum_of_products(factors: &[u64], words: &[[u8; WORD_BYTES]]) -> u64 {
    const LANES: usize = 16;
    let mut sums = [0_u64; LANES];
    let (whole, rest) = words.as_chunks::<LANES>();
    let (whole_factors, _) = factors.as_chunks::<LANES>();
    for (words, factors) in whole.iter().zip(whole_factors) {
        for ((sum, word), &factor) in sums.iter_mut().zip(words).zip(factors) {
            *sum = sum.wrapping_add(products(factor, u64::from_le_bytes(*word)));
        }
    }
    let rest_factors = &factors[words.len() - rest.len()..];
    for ((sum, word), &factor) in sums.iter_mut().zip(rest).zip(rest_factors) {
        *sum = sum.wrapping_add(products(factor, u64::from_le_bytes(*word)));
    }
    sums.into_iter().fold(0, u64::wrapping_add)
}

#[inline(always)]
fn products(factor: u64, word: u64) -> u64 {
    const LOW: u64 = 0xffff_ffff;
    let low = (factor & LOW) * (word & LOW);
    low.wrapping_add((factor >> 32) * (word >> 32))
}

fn partial_word(before: usize, bytes: &[u8]) -> u64 {
    let mut word = [0; WORD_BYTES];
    word[before..before + bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

const fn word_factors() -> [u64; BLOCK_LEN] {
    let mut factors = [0; BLOCK_LEN];
    let mut j = 0;
    while j < BLOCK_LEN {
        factors[j] = mix((j as u64 + 1).wrapping_mul(GAMMA)) | (1 << 32 | 1);
        j += 1;
    }
    factors
}

fn block_factor(block: u64) -> u64 {
    mix(block.wrapping_add(1).wrapping_mul(!GAMMA)) | 1
}

/// The finalizer of `SplitMix64` (Steele, Lea & Flood 2014).
const fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(len: usize) -> Vec<u8> {
        (0..len as u64).map(|at| mix(at).to_le_bytes()[0]).collect()
    }

    #[test]
    fn any_cut_gives_the_digest_of_the_whole() {
        let bytes = bytes(3 * BLOCK_BYTES + 13);
        let whole = Digest::of(5, &bytes);
        for step in [1, 7, 8, 64, 4099, BLOCK_BYTES, BLOCK_BYTES + 1] {
            let parts = bytes.chunks(step).enumerate();
            let sum: Digest = parts
                .map(|(part, chunk)| Digest::of(5 + (part * step) as u64, chunk))
                .sum();
            assert_eq!(sum, whole, "pieces of {step}");
        }
    }

    #[test]
    fn one_flipped_bit_shows_wherever_it_is() {
        let mut bytes = bytes(2 * BLOCK_BYTES + 3);
        let whole = Digest::of(0, &bytes);
        for bit in 0..bytes.len() * 8 {
            if bit % 97 == 0 || bit < 64 {
                bytes[bit / 8] ^= 1 << (bit % 8);
                assert_ne!(Digest::of(0, &bytes), whole, "bit {bit}");
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
        }
    }

    #[test]
    fn flipped_signs_of_two_numbers_do_not_cancel() {
        let mut bytes = bytes(4096);
        let whole = Digest::of(0, &bytes);
        for second in (15..4096).step_by(8) {
            bytes[7] ^= 0x80;
            bytes[second] ^= 0x80;
            assert_ne!(Digest::of(0, &bytes), whole, "signs at 7 and {second}");
            bytes[7] ^= 0x80;
            bytes[second] ^= 0x80;
        }
    }

    #[test]
    fn swapped_ranges_and_shifted_bytes_show() {
        let bytes = bytes(4 * BLOCK_BYTES);
        let (first, second) = bytes.split_at(2 * BLOCK_BYTES);
        assert_ne!(
            Digest::of(0, &[second, first].concat()),
            Digest::of(0, &bytes)
        );
        assert_ne!(Digest::of(2, &bytes), Digest::of(0, &bytes));
        let rotated = [&bytes[1..], &bytes[..1]].concat();
        assert_ne!(Digest::of(0, &rotated), Digest::of(0, &bytes));
    }

    #[test]
    fn zeros_that_were_never_read_are_missed_by_their_number() {
        assert_ne!(Digest::of(0, &[0; 16]), Digest::of(0, &[0; 24]));
    }

    #[test]
    fn the_formula_stays_as_it_is_written() {
        let halves = |j: usize| [WORD_FACTORS[j] & 0xffff_ffff, WORD_FACTORS[j] >> 32];
        let [low, high] = halves(0);
        let products = [low * 0x0403_0201, high * 0x0807_0605, halves(1)[0] * 9];
        let expected = products.into_iter().fold(0, u64::wrapping_add);
        let digest = Digest::of(0, &[1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(digest.sum, expected.wrapping_mul(block_factor(0)));
        assert_eq!(
            Digest::of(0, b"nestling").to_string(),
            "ee262f0d64d808b6:8",
            "manifests on disk depend on it"
        );
    }

    #[test]
    fn a_digest_comes_back_from_its_text_and_its_parts() {
        let digest = Digest::of(0, &bytes(100));
        assert_eq!(digest.to_string().parse(), Ok(digest));
        assert_eq!(Digest::from_parts(digest.parts()), digest);
        for bad in ["", "12:3", "+000000000000000:1", "zz:1"] {
            assert!(bad.parse::<Digest>().is_err(), "{bad}");
        }
    }
}
