//! What keeps a GGUF file from becoming a Hugging Face folder.

use spec::SpecError;
use tensor::Shape;

/// Why a GGUF file, valid as it is, cannot be converted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportFault {
    /// A key that is needed.
    #[error("metadata have no `{key}`")]
    MissingKey {
        /// The key.
        key: String,
    },
    /// A key of another type than expected.
    #[error("metadata key `{key}` is {found}, expected {expected}")]
    BadKey {
        /// The key.
        key: String,
        /// What stands there.
        found: String,
        /// What is accepted.
        expected: &'static str,
    },
    /// A key whose meaning is not known or not implemented.
    #[error("metadata key `{key}` is {found}, supported: {supported}")]
    Unsupported {
        /// The key.
        key: String,
        /// Its value, or what it is.
        found: String,
        /// What works.
        supported: &'static str,
    },
    /// A key that belongs to the model's shape or computation and is not known.
    #[error("metadata key `{key}` is not understood, and it may change what the model computes")]
    UnknownKey {
        /// The key.
        key: String,
    },
    /// An array with another number of entries than there are tokens.
    #[error("metadata key `{key}` has {found} entries for {expected} tokens")]
    WrongCount {
        /// The key.
        key: &'static str,
        /// Its entries.
        found: usize,
        /// The tokens.
        expected: usize,
    },
    /// A token that stands in the vocabulary twice.
    #[error("token {token:?} stands in the vocabulary as {first} and as {second}")]
    DuplicateToken {
        /// The token.
        token: String,
        /// Its first id.
        first: u32,
        /// Its second id.
        second: u32,
    },
    /// A merge that is not two tokens that make a third.
    #[error("merge {number}, {merge:?}, does not make a token of two tokens")]
    BadMerge {
        /// Its number, from 0.
        number: usize,
        /// Its text.
        merge: String,
    },
    /// A special token outside the vocabulary.
    #[error("metadata key `{key}` is {id}, the vocabulary has {num_tokens} tokens")]
    BadId {
        /// The key.
        key: &'static str,
        /// The id.
        id: u64,
        /// The vocabulary's size.
        num_tokens: usize,
    },
    /// No tokenizer that can be made of the metadata.
    #[error(
        "no tokenizer can be made of the metadata; give a folder with a tokenizer.json (--tokenizer FOLDER)"
    )]
    NoTokenizer {
        /// What is missing or not known.
        #[source]
        source: Box<ImportFault>,
    },
    /// A folder given for its tokenizer that has none.
    #[error("no tokenizer.json in the folder given for the tokenizer")]
    NoTokenizerJson,
    /// A tensor that does not belong to the model.
    #[error("tensor `{tensor}` does not belong to the model of the metadata")]
    UnknownTensor {
        /// Its name in the file.
        tensor: String,
    },
    /// A tensor that the model needs.
    #[error("tensor `{tensor}` is missing, named as in a Hugging Face folder")]
    MissingTensor {
        /// Its name in a Hugging Face folder.
        tensor: String,
    },
    /// Two tensors that are one parameter.
    #[error("two tensors are `{tensor}` in a Hugging Face folder")]
    TwinTensors {
        /// Its name in a Hugging Face folder.
        tensor: String,
    },
    /// A tensor of another shape than the metadata call for.
    #[error("tensor `{tensor}` has shape {found}, the metadata call for {expected}")]
    WrongShape {
        /// Its name in the file.
        tensor: String,
        /// The metadata's.
        expected: Shape,
        /// The file's.
        found: Shape,
    },
    /// A GGUF file is not quantized again on its way.
    #[error("it cannot become FP8 at once: convert it to bf16, and the folder to fp8")]
    NotToFp8,
    /// Rotary factors that no known rule gives.
    #[error(
        "the factors of `rope_freqs.weight` are not those of the llama3 rule with its usual constants"
    )]
    RopeFactors,
    /// A model that is described and cannot be run.
    #[error("the model of the metadata is not supported")]
    Spec {
        /// Why.
        #[source]
        source: SpecError,
    },
}
