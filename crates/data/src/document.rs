//! A record as token ids and the mask of those that count in the loss.
//!
//! - `text`: every token is a target; BOS stands in front only where the
//!   tokenizer's own post-processing puts it; EOS follows and is a target.
//! - `messages`: the tokens of assistant turns are targets. The whole text is
//!   tokenized once, without special tokens (the template writes BOS itself).
//!   **A token belongs to a turn if it begins inside it**, so a token that
//!   straddles the end of the header is not a target and one that straddles the
//!   end of the turn is. White space that a template writes after a turn's
//!   closing token is not a target: generation stops before it.
//! - `input_ids`: as given; targets are the `labels`, or all tokens.

use std::ops::Range;

use crate::chat::{ChatTemplate, Message};
use crate::error::{DataError, Result};
use crate::tokenizer::{Token, Tokenizer};

/// Token ids with a mask.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Document {
    /// The tokens.
    pub ids: Vec<u32>,
    /// For each token whether the model is to learn to produce it.
    pub in_loss: Vec<bool>,
}

impl Document {
    /// Plain text, all of it to be learnt.
    pub fn from_text(tokenizer: &Tokenizer, text: &str) -> Result<Self> {
        let mut ids = tokenizer.encode(text, true)?;
        let bos = tokenizer.bos_id();
        // The text may spell the BOS that post-processing adds.
        if ids.len() > 1 && bos.is_some() && ids[..2].iter().all(|&id| Some(id) == bos) {
            ids.remove(0);
        }
        let eos = tokenizer.eos_id();
        if ids.last().copied() != eos {
            ids.extend(eos);
        }
        let in_loss = vec![true; ids.len()];
        Ok(Self { ids, in_loss })
    }

    /// A conversation, of which the assistant's turns are to be learnt.
    pub fn from_messages(
        tokenizer: &Tokenizer,
        template: &ChatTemplate,
        messages: &[Message],
    ) -> Result<Self> {
        let rendered = template.render_turns(messages)?;
        let tokens = tokenizer.encode_with_offsets(&rendered.text)?;
        let mut in_loss = vec![false; tokens.len()];
        let mut from = 0;
        for turn in &rendered.turns {
            let range = tokens_in(&tokens, from, turn);
            from = range.end;
            let learnt = without_tail(&tokens, range, &rendered.text, tokenizer.eos_ids());
            in_loss[learnt].fill(true);
        }
        Ok(Self {
            ids: tokens.into_iter().map(|token| token.id).collect(),
            in_loss,
        })
    }

    /// Tokens that count in the loss.
    pub fn num_targets(&self) -> usize {
        self.in_loss.iter().filter(|&&counts| counts).count()
    }
}

/// The tokens, from index `from` on, that begin inside a span of the text.
fn tokens_in(tokens: &[Token], from: usize, span: &Range<usize>) -> Range<usize> {
    let first_at = |at: usize, from: usize| {
        let later = tokens[from..]
            .iter()
            .position(|token| token.span.start >= at);
        later.map_or(tokens.len(), |steps| from + steps)
    };
    let start = first_at(span.start, from);
    start..first_at(span.end, start)
}

/// Leaves out white space after an end token.
fn without_tail(
    tokens: &[Token],
    range: Range<usize>,
    text: &str,
    eos_ids: &[u32],
) -> Range<usize> {
    for at in range.clone().rev() {
        let token = &tokens[at];
        if eos_ids.contains(&token.id) {
            return range.start..at + 1;
        }
        let spelled = text.get(token.span.clone()).unwrap_or_default();
        if !spelled.trim().is_empty() {
            break;
        }
    }
    range
}

/// Checks that every id has a row in the embedding.
pub(crate) fn check_ids(ids: &[u32], vocab_size: u32, tokenizer: Option<&Tokenizer>) -> Result<()> {
    match ids.iter().find(|&&id| id >= vocab_size) {
        None => Ok(()),
        Some(&id) => Err(DataError::IdOutOfRange {
            id: i64::from(id),
            piece: tokenizer.and_then(|tokenizer| tokenizer.token_piece(id)),
            vocab_size,
            highest: tokenizer
                .map(|tokenizer| tokenizer.vocab_size().saturating_sub(1))
                .filter(|&highest| highest >= vocab_size),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::tests::small;

    fn pieces(document: &Document, tokenizer: &Tokenizer) -> (String, String) {
        let of = |wanted: bool| {
            let tokens = document.ids.iter().zip(&document.in_loss);
            let ids: Vec<u32> = tokens
                .filter(|(_, in_loss)| **in_loss == wanted)
                .map(|(&id, _)| id)
                .collect();
            tokenizer.decode(&ids, false).unwrap()
        };
        (of(false), of(true))
    }

    fn learnt(template: &str, answer: &str) -> (String, String) {
        let tokenizer = small(template);
        let messages = [Message::new("user", "a"), Message::new("assistant", answer)];
        let template = tokenizer.chat_template().unwrap();
        let document = Document::from_messages(&tokenizer, &template, &messages).unwrap();
        pieces(&document, &tokenizer)
    }

    #[test]
    fn text_begins_with_one_bos_and_ends_with_one_eos() {
        let tokenizer = small("");
        let plain = Document::from_text(&tokenizer, "yes").unwrap();
        assert_eq!((plain.ids[0], *plain.ids.last().unwrap()), (1, 2));
        for spelled in ["<s>yes", "yes</s>", "<s>yes</s>"] {
            assert_eq!(
                Document::from_text(&tokenizer, spelled).unwrap(),
                plain,
                "{spelled}"
            );
        }
        assert_eq!(plain.num_targets(), plain.ids.len());
    }

    #[test]
    fn a_token_that_straddles_the_header_is_not_a_target() {
        let template = "{% for m in messages %}{{ m.role ~ ':' }}{% if m.role == 'user' %} {{ m.content }}\n{% endif %}{% endfor %}{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}";
        let joined = template.replace(
            "{% endif %}{% endfor %}",
            "{% else %} {{ m.content ~ eos_token }}{% endif %}{% endfor %}",
        );
        // The vocabulary has a token " no", which begins with the header's space.
        let (not, yes) = learnt(&joined, "no yes");
        assert!(not.ends_with("assistant: no"), "{not:?}");
        assert_eq!(yes, " yes</s>");
    }

    #[test]
    fn white_space_after_an_end_token_is_not_a_target() {
        let template = "{% for m in messages %}{{ m.role ~ '>' ~ m.content ~ '</s>\\n\\n' }}{% endfor %}{% if add_generation_prompt %}assistant>{% endif %}";
        assert_eq!(learnt(template, "yes\n").1, "yes\n</s>");
        let without_end = template.replace("</s>", "");
        assert_eq!(learnt(&without_end, "yes").1, "yes\n\n");
    }

    #[test]
    fn an_end_token_in_the_content_ends_nothing() {
        let template = "{% for m in messages %}{{ m.role ~ '>' ~ m.content ~ '!' }}{% endfor %}{% if add_generation_prompt %}assistant>{% endif %}";
        assert_eq!(learnt(template, "yes</s> no").1, "yes</s> no!");
    }
}
