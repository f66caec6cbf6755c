//! Text to token ids and back, as a checkpoint's own files define it.
//!
//! The `tokenizers` crate does the work; this file adds what stands beside
//! `tokenizer.json` (special tokens, end ids, chat template) and two
//! corrections: the truncation and padding that a `tokenizer.json` may carry
//! are switched off, as `transformers` does on each call, and offsets are taken
//! before post-processing, because the byte-level post-processor moves them
//! past a token's leading space.

use std::fmt;
use std::fs;
use std::ops::Range;
use std::path::Path;

use tokenizers::{Encoding, PostProcessor, PostProcessorWrapper};

use crate::chat::ChatTemplate;
use crate::digest::Digest;
use crate::error::{DataError, Result};
use crate::special::{IdFacts, SpecialTexts, TokenizerFacts};
use crate::stream::StreamDecoder;

/// The largest file that is taken for a part of a tokenizer (the largest known
/// is 35 MB).
const MAX_FILE_BYTES: u64 = 512 << 20;

/// The texts that a tokenizer is made of, for one that is not in a folder.
#[derive(Debug, Clone, Copy, Default)]
pub struct Parts<'a> {
    /// What to call it in messages.
    pub origin: &'a str,
    /// `tokenizer.json`.
    pub tokenizer_json: &'a [u8],
    /// `tokenizer_config.json`.
    pub tokenizer_config: Option<&'a str>,
    /// `special_tokens_map.json`, read for what `tokenizer_config` leaves open.
    pub special_tokens_map: Option<&'a str>,
    /// `chat_template.jinja`, which has precedence over `tokenizer_config`.
    pub chat_template: Option<&'a str>,
    /// `generation_config.json`.
    pub generation_config: Option<&'a str>,
    /// `config.json`.
    pub config: Option<&'a str>,
}

/// A token and the bytes of the text that it stands for.
///
/// Tokens that share one character (bytes of an emoji) all have its whole range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    /// The token's id.
    pub id: u32,
    /// Bytes of the text.
    pub span: Range<usize>,
}

/// A checkpoint's tokenizer with its special tokens and chat template.
pub struct Tokenizer {
    /// Without post-processor, truncation and padding.
    inner: tokenizers::Tokenizer,
    post_processor: Option<PostProcessorWrapper>,
    origin: String,
    texts: SpecialTexts,
    bos_id: Option<u32>,
    eos_id: Option<u32>,
    pad_id: Option<u32>,
    eos_ids: Vec<u32>,
    chat_template: Option<(&'static str, String)>,
    vocab_size: u32,
    digest: u64,
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer")
            .field("origin", &self.origin)
            .field("vocab_size", &self.vocab_size)
            .field("bos_id", &self.bos_id)
            .field("eos_ids", &self.eos_ids)
            .finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// Reads the tokenizer of a Hugging Face folder.
    pub fn from_folder(folder: &Path) -> Result<Self> {
        let tokenizer_json =
            read(&folder.join("tokenizer.json"))?.ok_or_else(|| DataError::NoTokenizer {
                folder: folder.to_path_buf(),
                found: what_else_is_in(folder),
            })?;
        let text = |file: &str| read_text(&folder.join(file));
        let tokenizer_config = text("tokenizer_config.json")?;
        let special_tokens_map = text("special_tokens_map.json")?;
        let chat_template = text("chat_template.jinja")?;
        let generation_config = text("generation_config.json")?;
        let config = text("config.json")?;
        Self::from_parts(&Parts {
            origin: &folder.display().to_string(),
            tokenizer_json: &tokenizer_json,
            tokenizer_config: tokenizer_config.as_deref(),
            special_tokens_map: special_tokens_map.as_deref(),
            chat_template: chat_template.as_deref(),
            generation_config: generation_config.as_deref(),
            config: config.as_deref(),
        })
    }

    /// Makes a tokenizer of texts in memory.
    pub fn from_parts(parts: &Parts<'_>) -> Result<Self> {
        let mut inner =
            tokenizers::Tokenizer::from_bytes(parts.tokenizer_json).map_err(|source| {
                DataError::BadTokenizer {
                    origin: parts.origin.to_owned(),
                    source,
                }
            })?;
        let post_processor = inner.get_post_processor().cloned();
        inner.with_post_processor(None::<PostProcessorWrapper>);
        inner.with_padding(None);
        inner
            .with_truncation(None)
            .map_err(|source| DataError::BadTokenizer {
                origin: parts.origin.to_owned(),
                source,
            })?;

        let facts = TokenizerFacts::read(
            parts.origin,
            parts.tokenizer_config,
            parts.special_tokens_map,
        )?;
        let generation = IdFacts::read(
            parts.origin,
            "generation_config.json",
            parts.generation_config,
        )?;
        let config = IdFacts::read(parts.origin, "config.json", parts.config)?;
        let chat_template = match parts.chat_template {
            Some(template) => Some(("chat_template.jinja", template.to_owned())),
            None => facts
                .chat_template
                .map(|template| ("tokenizer_config.json", template)),
        };

        let own_eos = known_id(&inner, "eos_token", facts.texts.eos.as_deref())?;
        let own_bos = known_id(&inner, "bos_token", facts.texts.bos.as_deref())?;
        let mut eos_ids: Vec<u32> = Vec::new();
        add_new(
            &mut eos_ids,
            own_eos.into_iter().chain(generation.eos).chain(config.eos),
        );
        let digest = Digest::new()
            .field(parts.tokenizer_json)
            .field(parts.tokenizer_config.unwrap_or_default().as_bytes())
            .field(parts.special_tokens_map.unwrap_or_default().as_bytes())
            .field(parts.chat_template.unwrap_or_default().as_bytes());
        Ok(Self {
            vocab_size: ids_end(&inner),
            // A pad token outside the vocabulary is common and never needed:
            // padding is masked by position.
            pad_id: facts
                .texts
                .pad
                .as_deref()
                .and_then(|t| inner.token_to_id(t)),
            bos_id: own_bos.or(config.bos.first().copied()),
            eos_id: eos_ids.first().copied(),
            eos_ids,
            inner,
            post_processor,
            origin: parts.origin.to_owned(),
            texts: facts.texts,
            chat_template,
            digest: digest.value(),
        })
    }

    /// Turns text into ids.
    ///
    /// With `add_special` the tokenizer's own post-processing adds what it adds
    /// (for many models a BOS token, for others nothing).
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>> {
        let encode = || -> tokenizers::Result<Encoding> {
            let encoding = self.inner.encode_fast(text, false)?;
            match &self.post_processor {
                Some(post) if add_special => post.process(encoding, None, true),
                _ => Ok(encoding),
            }
        };
        let encoding = encode().map_err(|source| DataError::Encode {
            text_bytes: text.len(),
            source,
        })?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Turns text into tokens that know their place in it; adds no special token.
    pub fn encode_with_offsets(&self, text: &str) -> Result<Vec<Token>> {
        let encoding = self
            .inner
            .encode(text, false)
            .map_err(|source| DataError::Encode {
                text_bytes: text.len(),
                source,
            })?;
        let tokens = encoding.get_ids().iter().zip(encoding.get_offsets());
        Ok(tokens
            .map(|(&id, &(start, end))| Token {
                id,
                span: start..end,
            })
            .collect())
    }

    /// Turns ids into text.
    ///
    /// Ids that the vocabulary does not know (rows that pad an embedding) give
    /// no text; bytes that are not UTF-8 give U+FFFD.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String> {
        self.inner
            .decode(ids, skip_special)
            .map_err(|source| DataError::Decode {
                num_tokens: ids.len(),
                source,
            })
    }

    /// Decodes token by token, continuing the text of `context`.
    pub fn stream_decoder(&self, context: &[u32], skip_special: bool) -> StreamDecoder<'_> {
        StreamDecoder::new(self, context, skip_special)
    }

    /// The checkpoint's chat template, ready to render.
    pub fn chat_template(&self) -> Result<ChatTemplate> {
        let (file, source) =
            self.chat_template
                .as_ref()
                .ok_or_else(|| DataError::NoChatTemplate {
                    origin: self.origin.clone(),
                })?;
        ChatTemplate::new(format!("{file} of {}", self.origin), source, &self.texts)
    }

    /// Whether the checkpoint brings a chat template.
    pub fn has_chat_template(&self) -> bool {
        self.chat_template.is_some()
    }

    /// All ids that end a text: of the tokenizer, of `generation_config.json`
    /// and of `config.json`, in this order, each once.
    pub fn eos_ids(&self) -> &[u32] {
        &self.eos_ids
    }

    /// The id that is put after a document: the first of [`Self::eos_ids`].
    pub fn eos_id(&self) -> Option<u32> {
        self.eos_id
    }

    /// The id that begins a text, where there is one.
    pub fn bos_id(&self) -> Option<u32> {
        self.bos_id
    }

    /// The id that pads, where there is one; nothing here needs it.
    pub fn pad_id(&self) -> Option<u32> {
        self.pad_id
    }

    /// One more than the largest id; an embedding needs at least so many rows
    /// to take every token.
    pub fn vocab_size(&self) -> u32 {
        self.vocab_size
    }

    /// A token as the vocabulary spells it.
    pub fn token_piece(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// The id of a token in the vocabulary's spelling.
    pub fn token_id(&self, piece: &str) -> Option<u32> {
        self.inner.token_to_id(piece)
    }

    /// A fingerprint of the files that decide how text becomes tokens.
    pub fn digest(&self) -> u64 {
        self.digest
    }
}

/// The ids that end a text by `generation_config.json` and `config.json` of a
/// folder, each once: all that is known of them where there is no tokenizer.
pub fn end_ids(folder: &Path) -> Result<Vec<u32>> {
    let origin = folder.display().to_string();
    let mut ids: Vec<u32> = Vec::new();
    for file in ["generation_config.json", "config.json"] {
        let text = read_text(&folder.join(file))?;
        let facts = IdFacts::read(&origin, file, text.as_deref())?;
        add_new(&mut ids, facts.eos);
    }
    Ok(ids)
}

fn add_new(ids: &mut Vec<u32>, more: impl IntoIterator<Item = u32>) {
    for id in more {
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
}

/// The id of a configured token, which has to exist.
fn known_id(
    inner: &tokenizers::Tokenizer,
    role: &'static str,
    text: Option<&str>,
) -> Result<Option<u32>> {
    let Some(text) = text.filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    match inner.token_to_id(text) {
        Some(id) => Ok(Some(id)),
        None => Err(DataError::UnknownSpecialToken {
            role,
            token: text.to_owned(),
        }),
    }
}

/// One more than the largest id (ids may have holes, so this is not a count).
fn ids_end(inner: &tokenizers::Tokenizer) -> u32 {
    let vocab = inner.get_vocab(true);
    vocab
        .into_values()
        .max()
        .map_or(0, |id| id.saturating_add(1))
}

fn what_else_is_in(folder: &Path) -> &'static str {
    if folder.join("tokenizer.model").exists() {
        "there is a tokenizer.model (SentencePiece)"
    } else if folder.join("vocab.json").exists() {
        "there is a vocab.json of an older format"
    } else if folder.is_dir() {
        "no other tokenizer file was found"
    } else {
        "there is no such folder"
    }
}

/// Reads a file of moderate size; `None` where there is none.
fn read(path: &Path) -> Result<Option<Vec<u8>>> {
    let found_bytes = match fs::metadata(path) {
        Ok(metadata) => metadata.len(),
        Err(error) if is_absent(&error) => return Ok(None),
        Err(error) => return Err(DataError::io("read", path)(error)),
    };
    if found_bytes > MAX_FILE_BYTES {
        return Err(DataError::FileTooLarge {
            path: path.to_path_buf(),
            found_bytes,
            limit_bytes: MAX_FILE_BYTES,
        });
    }
    fs::read(path)
        .map(Some)
        .map_err(DataError::io("read", path))
}

fn read_text(path: &Path) -> Result<Option<String>> {
    let Some(bytes) = read(path)? else {
        return Ok(None);
    };
    let text = String::from_utf8(bytes).map_err(|error| {
        let kind = std::io::ErrorKind::InvalidData;
        DataError::io("read", path)(std::io::Error::new(kind, error))
    })?;
    Ok(Some(text))
}

fn is_absent(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{NotADirectory, NotFound};
    matches!(error.kind(), NotFound | NotADirectory)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const TOKENIZER: &[u8] = include_bytes!("../testdata/tokenizer.json");

    /// The tokenizer of `testdata/`, which puts `<s>` in front, with a template.
    pub(crate) fn small(template: &str) -> Tokenizer {
        Tokenizer::from_parts(&Parts {
            origin: "testdata",
            tokenizer_json: TOKENIZER,
            tokenizer_config: Some(r#"{"bos_token": "<s>", "eos_token": "</s>"}"#),
            chat_template: Some(template),
            generation_config: Some(r#"{"eos_token_id": [4, 2]}"#),
            config: Some(r#"{"eos_token_id": 7}"#),
            ..Parts::default()
        })
        .unwrap()
    }

    #[test]
    fn end_ids_come_from_every_file_once() {
        let tokenizer = small("");
        assert_eq!(tokenizer.eos_ids(), [2, 4, 7]);
        assert_eq!(tokenizer.eos_id(), Some(2));
        assert_eq!(tokenizer.bos_id(), Some(1));
        assert_eq!(tokenizer.token_piece(4).as_deref(), Some("<|im_end|>"));
        assert_eq!(tokenizer.token_id("<|im_end|>"), Some(4));
        assert_eq!(tokenizer.token_piece(tokenizer.vocab_size()), None);
        assert!(tokenizer.token_piece(tokenizer.vocab_size() - 1).is_some());
    }

    #[test]
    fn a_folder_without_tokenizer_json_says_what_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let error = Tokenizer::from_folder(folder.path()).unwrap_err();
        assert!(error.to_string().contains("no tokenizer.json"), "{error}");
        fs::write(folder.path().join("tokenizer.model"), "x").unwrap();
        let error = Tokenizer::from_folder(folder.path()).unwrap_err();
        assert!(error.to_string().contains("tokenizer.model"), "{error}");
    }

    #[test]
    fn a_folders_template_file_rules_over_the_config() {
        let folder = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &[u8]| fs::write(folder.path().join(file), text).unwrap();
        write("tokenizer.json", TOKENIZER);
        write("tokenizer_config.json", br#"{"chat_template": "config"}"#);
        let render = || {
            let tokenizer = Tokenizer::from_folder(folder.path()).unwrap();
            tokenizer
                .chat_template()
                .unwrap()
                .render(&[], true)
                .unwrap()
        };
        assert_eq!(render(), "config");
        write("chat_template.jinja", b"file");
        assert_eq!(render(), "file");
    }

    #[test]
    fn a_configured_token_must_exist() {
        let found = Tokenizer::from_parts(&Parts {
            tokenizer_json: TOKENIZER,
            tokenizer_config: Some(r#"{"eos_token": "<nowhere>"}"#),
            ..Parts::default()
        });
        let Err(DataError::UnknownSpecialToken { role, token }) = found else {
            panic!("{found:?}");
        };
        assert_eq!((role, token.as_str()), ("eos_token", "<nowhere>"));
    }

    #[test]
    fn what_is_not_a_tokenizer_is_refused() {
        for bytes in [&b""[..], b"{}", b"\xff"] {
            let found = Tokenizer::from_parts(&Parts {
                tokenizer_json: bytes,
                ..Parts::default()
            });
            assert!(matches!(found, Err(DataError::BadTokenizer { .. })));
        }
    }

    #[test]
    fn a_model_without_template_says_so() {
        let tokenizer = Tokenizer::from_parts(&Parts {
            origin: "plain",
            tokenizer_json: TOKENIZER,
            ..Parts::default()
        })
        .unwrap();
        assert!(!tokenizer.has_chat_template());
        let error = tokenizer.chat_template().unwrap_err();
        assert!(error.to_string().contains("plain has no chat template"));
    }
}
