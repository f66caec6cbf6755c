//! Changes of foreign bytes by chance: what a disk, a network or an enemy does.

/// Numbers by chance, the same for the same seed on any machine (`SplitMix64`).
#[derive(Debug, Clone)]
pub(crate) struct Chance(u64);

impl Chance {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit`, which is not 0.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit as u64).expect("below a usize")
    }

    pub(crate) fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}

/// Numbers at which arithmetic goes wrong.
const NUMBERS: [u64; 14] = [
    0,
    1,
    7,
    8,
    22,
    46,
    255,
    65_535,
    100_000_000,
    100_000_001,
    u32::MAX as u64,
    1 << 40,
    i64::MAX as u64,
    u64::MAX,
];

/// Changes `bytes` in one to three ways; `words` are pieces of their language and
/// `others` other inputs to take from.
pub(crate) fn mutate(
    bytes: &mut Vec<u8>,
    words: &[&[u8]],
    others: &[Vec<u8>],
    chance: &mut Chance,
) {
    // Half of the inputs are changed once.
    for _ in 0..=chance.below(4).saturating_sub(1) {
        change(bytes, words, others, chance);
    }
}

fn change(bytes: &mut Vec<u8>, words: &[&[u8]], others: &[Vec<u8>], chance: &mut Chance) {
    if bytes.is_empty() {
        bytes.push(0);
    }
    let at = chance.below(bytes.len());
    let rest = bytes.len() - at;
    let len = 1 + chance.below(rest.min(32));
    match chance.below(11) {
        0 => bytes[at] ^= 1 << chance.below(8),
        1 => bytes[at] = u8::try_from(chance.below(256)).expect("a byte"),
        2 => bytes.truncate(at),
        3 => drop(bytes.drain(at..at + len)),
        4 => {
            let copy = bytes[at..at + len].to_vec();
            let times = 1 + chance.below(8);
            insert(bytes, at, &copy.repeat(times));
        }
        5 => insert(bytes, at, chance.pick::<&[u8]>(words)),
        6 => replace(bytes, at, chance.pick::<&[u8]>(words)),
        7 => {
            let number = chance.pick(&NUMBERS).to_le_bytes();
            replace(bytes, at, &number[..1 << chance.below(4)]);
        }
        8 => {
            let number = chance.pick(&NUMBERS).to_string();
            replace_digits(bytes, at, number.as_bytes());
        }
        9 => {
            let other = chance.pick(others);
            let from = chance.below(other.len().max(1));
            let len = chance.below(other.len() - from.min(other.len()) + 1);
            insert(bytes, at, &other[from..from + len]);
        }
        _ => {
            let to = chance.below(bytes.len());
            bytes.swap(at, to);
        }
    }
}

fn insert(bytes: &mut Vec<u8>, at: usize, more: &[u8]) {
    drop(bytes.splice(at..at, more.iter().copied()));
}

fn replace(bytes: &mut Vec<u8>, at: usize, by: &[u8]) {
    let end = bytes.len().min(at + by.len());
    drop(bytes.splice(at..end, by.iter().copied()));
}

/// Replaces the next whole number in decimal digits.
fn replace_digits(bytes: &mut Vec<u8>, at: usize, by: &[u8]) {
    let is_digit = |byte: &u8| byte.is_ascii_digit();
    let Some(begin) = bytes[at..].iter().position(is_digit) else {
        return;
    };
    let begin = at + begin;
    let len = bytes[begin..]
        .iter()
        .take_while(|byte| is_digit(byte))
        .count();
    drop(bytes.splice(begin..begin + len, by.iter().copied()));
}
