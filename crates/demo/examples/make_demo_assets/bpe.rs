//! The demo's tokenizer: byte-level BPE over the demo's own language.

use demo::grammar::{Document, document, held_out};
use demo::lessons;
use tokenizers::models::bpe::{BPE, BpeTrainerBuilder};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, Result, TokenizerBuilder};

/// Special tokens; their place is their id.
const SPECIAL_TOKENS: &[&str] = &["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>"];

/// Tokens of all kinds; a multiple of 128, so that the table is whole row tiles.
const VOCAB_LEN: usize = 1280;

/// Documents to learn from.
const NUM_DOCUMENTS: u64 = 6000;

/// Learns the tokenizer; the text of `tokenizer.json`.
pub(crate) fn tokenizer_json() -> Result<String> {
    let byte_level = ByteLevel::new(false, true, true);
    let mut tokenizer = TokenizerBuilder::new()
        .with_model(BPE::default())
        .with_normalizer(None::<tokenizers::NormalizerWrapper>)
        .with_pre_tokenizer(Some(byte_level))
        .with_post_processor(None::<tokenizers::PostProcessorWrapper>)
        .with_decoder(Some(byte_level))
        .build()?;
    let special = |text: &&str| AddedToken::from(*text, true).normalized(false);
    let mut trainer = BpeTrainerBuilder::new()
        .show_progress(false)
        .vocab_size(VOCAB_LEN)
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .special_tokens(SPECIAL_TOKENS.iter().map(special).collect())
        .build();
    tokenizer.train(&mut trainer, texts().into_iter())?;
    tokenizer.to_string(true)
}

/// Everything between the special tokens of the training text and of the lessons.
fn texts() -> Vec<String> {
    let documents = (0..NUM_DOCUMENTS)
        .map(|index| document(lessons::SEED, index))
        .filter(|document| !held_out(document));
    documents.chain(lessons::train()).flat_map(parts).collect()
}

fn parts(document: Document) -> Vec<String> {
    match document {
        Document::Text(text) => vec![text],
        Document::Chat(messages) => messages
            .into_iter()
            .map(|message| format!("{}\n{}", message.role.name(), message.content))
            .collect(),
    }
}
