//! Text while it is generated, token by token.
//!
//! A token alone has no text: half a character, or a leading space that only
//! shows after another token. So the last piece that was shown is decoded again
//! together with what is new, and the difference is the new text.

use crate::error::Result;
use crate::tokenizer::Tokenizer;

/// Tokens of the context that are kept: enough to show a leading space.
const CONTEXT_LEN: usize = 8;

/// Decodes one token after another.
#[derive(Debug)]
pub struct StreamDecoder<'t> {
    tokenizer: &'t Tokenizer,
    skip_special: bool,
    /// The last tokens that were shown, then those that were not.
    ids: Vec<u32>,
    num_shown: usize,
}

impl<'t> StreamDecoder<'t> {
    pub(crate) fn new(tokenizer: &'t Tokenizer, context: &[u32], skip_special: bool) -> Self {
        let ids = context[context.len().saturating_sub(CONTEXT_LEN)..].to_vec();
        Self {
            tokenizer,
            skip_special,
            num_shown: ids.len(),
            ids,
        }
    }

    /// Takes a token and gives the text that is complete with it.
    pub fn push(&mut self, id: u32) -> Result<Option<String>> {
        self.ids.push(id);
        let new = self.not_shown()?;
        if new.is_empty() || new.ends_with(char::REPLACEMENT_CHARACTER) {
            return Ok(None);
        }
        self.ids.drain(..self.num_shown);
        self.num_shown = self.ids.len();
        Ok(Some(new))
    }

    /// Gives what was held back: bytes that never became a character.
    pub fn finish(self) -> Result<Option<String>> {
        let rest = self.not_shown()?;
        Ok(Some(rest).filter(|rest| !rest.is_empty()))
    }

    fn not_shown(&self) -> Result<String> {
        let shown = &self.ids[..self.num_shown];
        let shown = self.tokenizer.decode(shown, self.skip_special)?;
        let all = self.tokenizer.decode(&self.ids, self.skip_special)?;
        Ok(all.get(shown.len()..).unwrap_or_default().to_owned())
    }
}

#[cfg(test)]
mod tests {
    use crate::tokenizer::tests::small;

    fn streamed(text: &str, context: &str) -> Vec<String> {
        let tokenizer = small("");
        let context = tokenizer.encode(context, false).unwrap();
        let mut decoder = tokenizer.stream_decoder(&context, true);
        let mut pieces = Vec::new();
        for id in tokenizer.encode(text, false).unwrap() {
            pieces.extend(decoder.push(id).unwrap());
        }
        pieces.extend(decoder.finish().unwrap());
        pieces
    }

    #[test]
    fn pieces_together_are_the_text() {
        for text in ["The river is cold.", "naïve ☕ 𝄞 ✓", "a\n\n b", "", " x"] {
            assert_eq!(streamed(text, "").concat(), text);
            assert_eq!(streamed(text, "The user").concat(), text);
        }
    }

    #[test]
    fn a_character_is_never_shown_in_part() {
        assert_eq!(streamed("☕☕", ""), ["☕", "☕"]);
    }

    #[test]
    fn special_tokens_are_left_out() {
        assert_eq!(streamed("yes</s><s> no", "").concat(), "yes no");
    }

    #[test]
    fn what_never_became_a_character_is_shown_at_the_end() {
        let tokenizer = small("");
        let ids = tokenizer.encode("☕", false).unwrap();
        let mut decoder = tokenizer.stream_decoder(&[], false);
        assert_eq!(decoder.push(ids[0]).unwrap(), None);
        assert_eq!(decoder.finish().unwrap().as_deref(), Some("\u{fffd}"));
    }
}
