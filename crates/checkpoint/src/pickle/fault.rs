//! What a `PyTorch` checkpoint can have that is not read.

/// What is wrong with a `PyTorch` checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PickleFault {
    /// No zip archive: the form of torch before 1.6, or something else.
    #[error("it is no zip archive: {found}")]
    NotAnArchive {
        /// What it looks like.
        found: &'static str,
    },
    /// A zip archive that is broken, or not as torch writes it.
    #[error("the zip archive is not as torch writes it: {reason}")]
    BadArchive {
        /// What is wrong.
        reason: &'static str,
    },
    /// An entry that is compressed, encrypted, or in another entry's bytes.
    #[error("entry `{entry}` of the zip archive {reason}")]
    BadEntry {
        /// The entry.
        entry: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// An entry that is not there.
    #[error("the zip archive has no entry `{entry}`")]
    NoEntry {
        /// The entry.
        entry: String,
    },
    /// A program, which is more than weights.
    #[error("it is a TorchScript program, not a dictionary of tensors")]
    TorchScript,
    /// Numbers of a machine that writes the highest byte first.
    #[error("its byte order is `{found}`, expected `little`")]
    ByteOrder {
        /// What the archive says.
        found: String,
    },
    /// A global outside the allowed list.
    #[error("it calls for `{name}`, which is not among the globals of a dictionary of tensors")]
    Global {
        /// Module and name.
        name: String,
    },
    /// An instruction that no dictionary of tensors needs.
    #[error(
        "its pickle has the instruction {code:#04x} at byte {at}, which no dictionary of tensors needs"
    )]
    Instruction {
        /// The instruction.
        code: u8,
        /// Where it stands.
        at: usize,
    },
    /// A pickle that ends early, or whose instructions do not fit together.
    #[error("its pickle is broken at byte {at}: {reason}")]
    Broken {
        /// What does not fit.
        reason: &'static str,
        /// Where.
        at: usize,
    },
    /// A pickle that asks for more memory than any dictionary of tensors.
    #[error("its pickle holds more than {limit} values")]
    TooManyValues {
        /// The limit.
        limit: usize,
    },
    /// Something else than a dictionary of tensors.
    #[error("it holds {found}, expected a dictionary from names to tensors")]
    NotADict {
        /// What it holds.
        found: &'static str,
    },
    /// An entry of the dictionary that is no tensor.
    #[error(
        "`{name}` is {found}, not a tensor; the tensors must stand at the top of the dictionary"
    )]
    NotATensor {
        /// The entry.
        name: String,
        /// What it is.
        found: &'static str,
    },
    /// An empty name, or one with control characters.
    #[error("tensor name {tensor:?} is empty or has control characters")]
    BadName {
        /// The name.
        tensor: String,
    },
    /// A name twice.
    #[error("tensor `{tensor}` appears twice")]
    DuplicateTensor {
        /// The name.
        tensor: String,
    },
    /// A tensor whose elements do not lie one after the other.
    #[error("tensor `{tensor}` does not lie in one piece (its strides are not those of its shape)")]
    Strided {
        /// The tensor.
        tensor: String,
    },
    /// A storage whose entry has another size.
    #[error("storage `{key}` needs {expected_bytes} bytes, its entry has {found_bytes}")]
    StorageLength {
        /// The storage's key.
        key: String,
        /// Bytes that its elements take.
        expected_bytes: u64,
        /// Bytes of its entry.
        found_bytes: u64,
    },
}

/// Text of a file as an error may show it: short, and without control characters.
pub(crate) fn shown(text: &str) -> String {
    const MOST: usize = 120;
    let mut shown: String = text
        .chars()
        .take(MOST)
        .flat_map(char::escape_debug)
        .collect();
    if text.chars().nth(MOST).is_some() {
        shown.push_str("...");
    }
    shown
}
