//! Text and hashes in words that several processes see.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// A text of bounded length: its bytes, then eight of them a word.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Text<'a>(pub(crate) &'a [AtomicU64]);

impl Text<'_> {
    /// Words that a text of `max_bytes` takes.
    pub(crate) const fn num_words(max_bytes: usize) -> usize {
        1 + max_bytes.div_ceil(8)
    }

    /// Writes as much of the text as there is room for.
    pub(crate) fn write(self, text: &str) {
        let room = 8 * (self.0.len() - 1);
        let text = &text[..text.floor_char_boundary(room)];
        self.0[0].store(text.len() as u64, Relaxed);
        for (word, bytes) in self.0[1..].iter().zip(text.as_bytes().chunks(8)) {
            let mut packed = [0; 8];
            packed[..bytes.len()].copy_from_slice(bytes);
            word.store(u64::from_le_bytes(packed), Relaxed);
        }
    }

    pub(crate) fn read(self) -> String {
        let words = self.0[1..].iter();
        let mut bytes: Vec<u8> = words
            .flat_map(|word| word.load(Relaxed).to_le_bytes())
            .collect();
        bytes.truncate(usize::try_from(self.0[0].load(Relaxed)).unwrap_or(usize::MAX));
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// The FNV-1a hash.
pub(crate) fn fnv(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_comes_back_as_far_as_there_is_room() {
        let words: Vec<_> = (0..Text::num_words(8)).map(|_| AtomicU64::new(0)).collect();
        let text = Text(&words);
        text.write("short");
        assert_eq!(text.read(), "short");
        text.write("1234567\u{e9}");
        assert_eq!(text.read(), "1234567");
    }

    #[test]
    fn the_hash_is_the_published_one() {
        assert_eq!(fnv(b"foobar".iter().copied()), 0x8594_4171_f739_67e8);
    }
}
