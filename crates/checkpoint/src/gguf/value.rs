//! The values of a GGUF file's metadata, in memory no larger than in the file.

/// The keys of a file with their values.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Metadata {
    /// In the order of their names.
    pub(super) pairs: Vec<(String, Value)>,
}

impl Metadata {
    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&Value> {
        let at = self
            .pairs
            .binary_search_by(|(known, _)| known.as_str().cmp(key));
        at.ok().map(|at| &self.pairs[at].1)
    }

    /// All keys in the order of their names.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.pairs.iter().map(|(key, _)| key.as_str())
    }
}

/// A value of the metadata.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Value {
    /// An unsigned integer of any width.
    Unsigned(u64),
    /// A signed integer of any width.
    Signed(i64),
    /// Single precision.
    F32(f32),
    /// Double precision.
    F64(f64),
    /// A truth value.
    Bool(bool),
    /// A string.
    Text(String),
    /// An array of strings.
    Texts(Texts),
    /// An array of numbers or truth values.
    Numbers(Numbers),
    /// An array of arrays, which was checked and not kept: no key that is used has one.
    Nested,
}

impl Value {
    /// An integer that is not negative.
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Self::Unsigned(number) => Some(number),
            Self::Signed(number) => u64::try_from(number).ok(),
            _ => None,
        }
    }

    /// What it is, in words.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Unsigned(_) | Self::Signed(_) => "an integer",
            Self::F32(_) | Self::F64(_) => "a float",
            Self::Bool(_) => "a truth value",
            Self::Text(_) => "a string",
            Self::Texts(_) => "an array of strings",
            Self::Numbers(_) => "an array of numbers",
            Self::Nested => "an array of arrays",
        }
    }
}

/// An array of strings as one string and the ends of its parts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Texts {
    text: String,
    ends: Vec<u32>,
}

impl Texts {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The string of this number.
    pub fn get(&self, number: usize) -> Option<&str> {
        let end = *self.ends.get(number)? as usize;
        let begin = match number.checked_sub(1) {
            Some(before) => self.ends[before] as usize,
            None => 0,
        };
        self.text.get(begin..end)
    }

    /// All strings in order.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        (0..self.len()).filter_map(|number| self.get(number))
    }

    pub(super) fn push(&mut self, text: &str) {
        self.text.push_str(text);
        let end = u32::try_from(self.text.len()).expect("a header is at most 256 MiB");
        self.ends.push(end);
    }
}

/// The type of a number in a file, with the format's code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NumberType {
    U8 = 0,
    I8 = 1,
    U16 = 2,
    I16 = 3,
    U32 = 4,
    I32 = 5,
    F32 = 6,
    Bool = 7,
    U64 = 10,
    I64 = 11,
    F64 = 12,
}

impl NumberType {
    pub(super) fn of_code(code: u32) -> Option<Self> {
        const ALL: [NumberType; 11] = [
            NumberType::U8,
            NumberType::I8,
            NumberType::U16,
            NumberType::I16,
            NumberType::U32,
            NumberType::I32,
            NumberType::F32,
            NumberType::Bool,
            NumberType::U64,
            NumberType::I64,
            NumberType::F64,
        ];
        ALL.into_iter().find(|known| *known as u32 == code)
    }

    pub(super) fn num_bytes(self) -> usize {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
        }
    }

    /// Reads a number of [`num_bytes`](Self::num_bytes) bytes.
    pub(super) fn value(self, bytes: &[u8]) -> Value {
        let mut wide = [0; 8];
        wide[..bytes.len()].copy_from_slice(bytes);
        let bits = u64::from_le_bytes(wide);
        let unused = 64 - 8 * bytes.len();
        match self {
            Self::U8 | Self::U16 | Self::U32 | Self::U64 => Value::Unsigned(bits),
            Self::I8 | Self::I16 | Self::I32 | Self::I64 => {
                // The shifts bring the sign up and spread it.
                Value::Signed((bits << unused).cast_signed() >> unused)
            }
            Self::F32 => {
                let [a, b, c, d, ..] = wide;
                Value::F32(f32::from_le_bytes([a, b, c, d]))
            }
            Self::F64 => Value::F64(f64::from_bits(bits)),
            Self::Bool => Value::Bool(bits != 0),
        }
    }
}

/// An array of numbers, as it stands in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Numbers {
    pub(super) number_type: NumberType,
    pub(super) bytes: Vec<u8>,
}

impl Numbers {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.bytes.len() / self.number_type.num_bytes()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The number at a place.
    pub fn get(&self, number: usize) -> Option<Value> {
        let size = self.number_type.num_bytes();
        let begin = number.checked_mul(size)?;
        let bytes = self.bytes.get(begin..begin.checked_add(size)?)?;
        Some(self.number_type.value(bytes))
    }

    /// All numbers in order.
    pub fn iter(&self) -> impl Iterator<Item = Value> {
        let size = self.number_type.num_bytes();
        let parts = self.bytes.chunks_exact(size);
        parts.map(|bytes| self.number_type.value(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_their_sign() {
        assert_eq!(NumberType::I8.value(&[0xff]), Value::Signed(-1));
        assert_eq!(NumberType::U8.value(&[0xff]), Value::Unsigned(255));
        assert_eq!(
            NumberType::I64.value(&i64::MIN.to_le_bytes()),
            Value::Signed(i64::MIN)
        );
        assert_eq!(
            NumberType::F32.value(&1.5_f32.to_le_bytes()),
            Value::F32(1.5)
        );
    }

    #[test]
    fn strings_lie_one_after_the_other() {
        let mut texts = Texts::default();
        for text in ["a", "", "bc"] {
            texts.push(text);
        }
        assert_eq!(texts.iter().collect::<Vec<_>>(), ["a", "", "bc"]);
        assert_eq!(texts.get(3), None);
    }
}
