//! Lines of data into a file of rows, once, before training.
//!
//! Two passes, neither of which holds more than a line and a row. The first
//! tokenizes every line into a spool file beside the result; the second copies
//! the documents from there in shuffled order, one after another, and cuts the
//! stream into rows. What is kept in memory is where each document begins in the
//! spool: 8 bytes a document.
//!
//! - Documents (`text`, `messages`) run on: a row may hold the end of one and
//!   the beginning of the next, and the first token of a document is a target of
//!   the last position of the one before, as in the concatenation that
//!   `transformers` users know. Only the last row is padded.
//! - `input_ids` are rows by themselves, in the order of the lines, before the
//!   rows of documents. Longer ones are refused, shorter ones padded.

mod spool;
mod temporary;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::chat::{ChatTemplate, Message};
use crate::digest::Digest;
use crate::document::{Document, check_ids};
use crate::error::{DataError, Result};
use crate::input::Source;
use crate::order::Order;
use crate::record::Record;
use crate::rows::Header;
use crate::tokenizer::Tokenizer;

use spool::Spool;
use writer::RowWriter;

/// The label that stands for "no target" in `labels`.
const NO_LABEL: i64 = -100;

/// How rows are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Tokens of a row, at least 2.
    pub seq: usize,
    /// Rows of the embedding: every id has to be below.
    pub vocab_size: u32,
    /// What the order of documents is drawn from.
    pub seed: u64,
    /// Whether documents are shuffled before they are concatenated.
    pub shuffle: bool,
}

/// What was read and made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Lines that were used.
    pub documents: u64,
    /// Tokens in all rows, without padding.
    pub tokens: u64,
    /// Positions that have a target.
    pub targets: u64,
    /// Rows.
    pub rows: u64,
    /// Positions that are padding.
    pub padded_tokens: u64,
}

/// A finished file of rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prepared {
    /// The file, for [`Rows::open`](crate::Rows::open).
    pub path: PathBuf,
    /// What is in it.
    pub counts: Counts,
    /// A fingerprint of the inputs, the tokenizer and the settings.
    pub digest: u64,
}

impl Prepared {
    /// Reads all sources and writes their rows to `out_file`.
    ///
    /// The file appears under its name when it is whole. Without a tokenizer
    /// only `input_ids` can be read.
    pub fn build(
        sources: &[Source],
        tokenizer: Option<&Tokenizer>,
        settings: &Settings,
        out_file: &Path,
    ) -> Result<Self> {
        Self::build_unless(
            &AtomicBool::new(false),
            sources,
            tokenizer,
            settings,
            out_file,
        )
    }

    /// As [`Prepared::build`], but ends with [`DataError::Stopped`] soon after
    /// `stop` is set from outside.
    pub fn build_unless(
        stop: &AtomicBool,
        sources: &[Source],
        tokenizer: Option<&Tokenizer>,
        settings: &Settings,
        out_file: &Path,
    ) -> Result<Self> {
        settings.check()?;
        let mut pass = Tokenizing {
            stop,
            tokenizer,
            template: None,
            settings: *settings,
            digest: settings.digest(tokenizer),
            documents: 0,
            spool: Spool::create(out_file)?,
            rows: RowWriter::create(out_file, settings.seq)?,
        };
        for source in sources {
            pass.read(source)?;
        }
        pass.finish(sources, out_file)
    }
}

impl Settings {
    fn check(&self) -> Result<()> {
        let limit = u32::MAX as usize / 16;
        if (2..=limit).contains(&self.seq) {
            return Ok(());
        }
        Err(DataError::BadSetting {
            setting: "sequence length",
            expected: "at least 2 (one token and its successor) and below 2^28",
            found: self.seq.to_string(),
        })
    }

    fn digest(&self, tokenizer: Option<&Tokenizer>) -> Digest {
        Digest::new()
            .field(&self.seq.to_le_bytes())
            .field(&self.vocab_size.to_le_bytes())
            .field(&self.seed.to_le_bytes())
            .field(&[u8::from(self.shuffle), u8::from(tokenizer.is_some())])
            .field(&tokenizer.map_or(0, Tokenizer::digest).to_le_bytes())
    }

    fn document_order(&self, num_documents: u64) -> Order {
        if self.shuffle {
            Order::new(num_documents, self.seed)
        } else {
            Order::sequential(num_documents)
        }
    }
}

/// The first pass: lines to tokens.
struct Tokenizing<'t> {
    stop: &'t AtomicBool,
    tokenizer: Option<&'t Tokenizer>,
    template: Option<ChatTemplate>,
    settings: Settings,
    digest: Digest,
    documents: u64,
    spool: Spool,
    rows: RowWriter,
}

impl Tokenizing<'_> {
    fn read(&mut self, source: &Source) -> Result<()> {
        let mut lines = source.lines()?;
        while let Some((number, text)) = lines.next_line()? {
            refuse_if_stopped(self.stop)?;
            self.digest = self.digest.field(text.as_bytes());
            let record = Record::parse(text);
            record
                .and_then(|record| self.take(record))
                .map_err(|error| error.at(source.name(), number))?;
            self.documents += 1;
        }
        Ok(())
    }

    fn take(&mut self, record: Record) -> Result<()> {
        let document = match record {
            Record::Ids { ids, labels } => return self.take_ids(&ids, labels.as_deref()),
            Record::Text(text) => Document::from_text(self.need_tokenizer("text")?, &text)?,
            Record::Messages(messages) => self.converse(&messages)?,
        };
        check_ids(&document.ids, self.settings.vocab_size, self.tokenizer)?;
        self.spool.push(&document)
    }

    fn converse(&mut self, messages: &[Message]) -> Result<Document> {
        let tokenizer = self.need_tokenizer("messages")?;
        let template = match self.template.take() {
            Some(template) => template,
            None => tokenizer.chat_template()?,
        };
        let document = Document::from_messages(tokenizer, &template, messages);
        self.template = Some(template);
        let document = document?;
        if document.num_targets() == 0 {
            let roles: Vec<_> = messages.iter().map(|m| m.role.as_str()).collect();
            return Err(DataError::NoAssistantTurn {
                num_messages: messages.len(),
                roles: roles.join(", "),
            });
        }
        Ok(document)
    }

    fn need_tokenizer<'t>(&self, kind: &'static str) -> Result<&'t Tokenizer>
    where
        Self: 't,
    {
        self.tokenizer.ok_or(DataError::NeedsTokenizer { kind })
    }

    fn take_ids(&mut self, ids: &[i64], labels: Option<&[i64]>) -> Result<()> {
        let (seq, vocab_size) = (self.settings.seq, self.settings.vocab_size);
        if ids.len() > seq {
            let found = ids.len();
            return Err(DataError::TooLong { found, seq });
        }
        for (at, &id) in ids.iter().enumerate() {
            let id = checked_id(id, vocab_size)?;
            let target = match labels {
                None => Some(id),
                Some(labels) if labels[at] == NO_LABEL => None,
                Some(labels) => Some(checked_id(labels[at], vocab_size)?),
            };
            self.rows.push(id, target)?;
        }
        self.rows.end_row()
    }

    /// The second pass: tokens to rows, and the file to its name.
    fn finish(mut self, sources: &[Source], out_file: &Path) -> Result<Prepared> {
        let files = || {
            let names: Vec<_> = sources
                .iter()
                .map(|s| s.name().display().to_string())
                .collect();
            names.join(", ")
        };
        if self.documents == 0 {
            return Err(DataError::NoRecords { files: files() });
        }
        self.spool
            .copy_to(&mut self.rows, &self.settings, self.stop)?;
        let counts = Counts {
            documents: self.documents,
            ..self.rows.counts
        };
        if counts.targets == 0 {
            return Err(DataError::NoTargets {
                files: files(),
                num_tokens: counts.tokens,
            });
        }
        let digest = self.digest.value();
        self.rows.finish(
            Header {
                seq: u32::try_from(self.settings.seq).unwrap_or(u32::MAX),
                vocab_size: self.settings.vocab_size,
                digest,
                counts,
            },
            out_file,
        )?;
        Ok(Prepared {
            path: out_file.to_path_buf(),
            counts,
            digest,
        })
    }
}

fn refuse_if_stopped(stop: &AtomicBool) -> Result<()> {
    if stop.load(Relaxed) {
        return Err(DataError::Stopped);
    }
    Ok(())
}

fn checked_id(id: i64, vocab_size: u32) -> Result<u32> {
    match u32::try_from(id) {
        Ok(small) if small < vocab_size => Ok(small),
        _ => Err(DataError::IdOutOfRange {
            id,
            piece: None,
            vocab_size,
            highest: None,
        }),
    }
}

#[cfg(test)]
mod tests;
