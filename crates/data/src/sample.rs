//! A row as a person can check it: tokens, mask and text.

use std::fmt::Write as _;

use crate::error::Result;
use crate::rows::{IGNORED, Rows};
use crate::tokenizer::Tokenizer;

/// One token of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// The token's id.
    pub id: u32,
    /// The text that is complete with it; all pieces together are the row's text.
    pub text: String,
    /// Whether the model is to learn to produce it.
    pub in_loss: bool,
}

/// A row, token by token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sample {
    /// Which row it is.
    pub row: u64,
    /// The tokens, without padding.
    pub pieces: Vec<Piece>,
    /// Positions that are padding.
    pub padded_tokens: usize,
}

/// Switches terminal colours on for targets, and off.
const COLOUR: (&str, &str) = ("\x1b[32m", "\x1b[0m");
/// Encloses targets where there are no colours.
const PLAIN: (&str, &str) = ("\u{ab}", "\u{bb}");

impl Sample {
    /// Reads a row; without a tokenizer the pieces have no text.
    pub fn read(rows: &Rows, row: u64, tokenizer: Option<&Tokenizer>) -> Result<Self> {
        let mut ids = vec![0; rows.seq()];
        let mut targets = vec![0; rows.seq()];
        let len = rows.row(row, &mut ids, &mut targets)?.len as usize;
        Self::new(row, &ids[..len.min(ids.len())], &targets, tokenizer)
    }

    fn new(row: u64, ids: &[u32], targets: &[u32], tokenizer: Option<&Tokenizer>) -> Result<Self> {
        let mut decoder = tokenizer.map(|tokenizer| tokenizer.stream_decoder(&[], false));
        let mut pieces: Vec<Piece> = Vec::with_capacity(ids.len());
        for (at, &id) in ids.iter().enumerate() {
            let text = match &mut decoder {
                Some(decoder) => decoder.push(id)?,
                None => None,
            };
            // The position before a token is the one that has it as its target.
            let in_loss = at > 0 && targets[at - 1] != IGNORED;
            let text = text.unwrap_or_default();
            pieces.push(Piece { id, text, in_loss });
        }
        let rest = decoder
            .map(crate::StreamDecoder::finish)
            .transpose()?
            .flatten();
        if let (Some(rest), Some(last)) = (rest, pieces.last_mut()) {
            last.text.push_str(&rest);
        }
        Ok(Self {
            row,
            padded_tokens: targets.len() - pieces.len(),
            pieces,
        })
    }

    /// Tokens that count in the loss.
    pub fn num_targets(&self) -> usize {
        self.pieces.iter().filter(|piece| piece.in_loss).count()
    }

    /// Writes the row for a person: a line of counts, the tokens with their
    /// mask, and the text with its targets marked.
    ///
    /// Targets are green with `colour`, and stand between « and » without.
    pub fn to_text(&self, colour: bool) -> String {
        let mut out = format!(
            "row {}: {} tokens, {} targets, {} padded\n",
            self.row,
            self.pieces.len(),
            self.num_targets(),
            self.padded_tokens
        );
        for (at, piece) in self.pieces.iter().enumerate() {
            let mask = if piece.in_loss { "target" } else { "  -   " };
            // Writing to a string cannot fail.
            let _ = writeln!(out, "{at:>6} {:>8} {mask} {:?}", piece.id, piece.text);
        }
        out.push_str(&self.marked_text(if colour { COLOUR } else { PLAIN }));
        out.push('\n');
        out
    }

    fn marked_text(&self, (open, close): (&str, &str)) -> String {
        let mut out = String::new();
        for run in self.pieces.chunk_by(|a, b| a.in_loss == b.in_loss) {
            let text: String = run.iter().map(|piece| piece.text.as_str()).collect();
            if run[0].in_loss {
                out.extend([open, &text, close]);
            } else {
                out.push_str(&text);
            }
        }
        out
    }
}
