//! Which part of a rendered conversation each assistant turn wrote.
//!
//! A template is a program that writes one text; nothing in it says where a
//! message begins. So the first messages are rendered alone and compared with
//! the whole:
//!
//! ```text
//! start of turn k = length of render(messages[..k], add_generation_prompt = true)
//! end of turn k   = length of render(messages[..=k])
//! ```
//!
//! Both must be prefixes of the whole text; a template that looks ahead or back
//! (and writes an early message differently once later ones exist) is refused.
//! The start lies after the role header, where generation would begin; the end
//! after whatever the template closes the turn with.
//!
//! A template that knows no generation prompt writes the header within the turn.
//! Its length is found by rendering a mark in place of the content. A header of
//! nothing but spaces (Llama 2) is left in the turn: the model has to produce it.

use std::ops::Range;

use super::{ChatTemplate, Message};
use crate::error::{DataError, Result};

/// A character of the private use area, which no template looks for.
const MARK: &str = "\u{f8ff}";

/// A conversation's text and the bytes in it that the assistant has to produce.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    /// The whole conversation.
    pub text: String,
    /// One range of bytes for each assistant message, in order.
    pub turns: Vec<Range<usize>>,
}

impl ChatTemplate {
    /// Renders a whole conversation and finds its assistant turns.
    pub fn render_turns(&self, messages: &[Message]) -> Result<Rendered> {
        let text = self.render(messages, false)?;
        let mut turns: Vec<Range<usize>> = Vec::new();
        let assistant = |(_, message): &(usize, &Message)| message.is_assistant();
        for (k, message) in messages.iter().enumerate().filter(assistant) {
            let start = self.turn_start(&text, messages, k, message)?;
            let end = if k + 1 == messages.len() {
                text.len()
            } else {
                self.prefix(&text, &messages[..=k], false, k)?.len()
            };
            let previous_end = turns.last().map_or(0, |turn| turn.end);
            if start > end || start < previous_end {
                return Err(self.not_splittable(k, "turns overlap".to_owned()));
            }
            turns.push(start..end);
        }
        Ok(Rendered { text, turns })
    }

    fn turn_start(
        &self,
        text: &str,
        messages: &[Message],
        k: usize,
        message: &Message,
    ) -> Result<usize> {
        let before = if k == 0 {
            String::new()
        } else {
            let before = self.prefix(text, &messages[..k], false, k)?;
            let prompt = self.prefix(text, &messages[..k], true, k)?;
            if prompt != before {
                return Ok(prompt.len());
            }
            before
        };
        let mut marked = messages[..=k].to_vec();
        marked[k] = Message {
            content: MARK.to_owned(),
            ..message.clone()
        };
        let probe = self.render_part(&marked, false, k)?;
        let header = probe
            .strip_prefix(&before)
            .and_then(|turn| turn.split_once(MARK))
            .map(|(header, _)| header)
            .filter(|header| text[before.len()..].starts_with(header))
            .ok_or_else(|| {
                self.not_splittable(k, "the turn's content cannot be found".to_owned())
            })?;
        let is_blank = header.trim().is_empty();
        Ok(before.len() + if is_blank { 0 } else { header.len() })
    }

    /// Renders the first messages, which must give the beginning of the whole.
    fn prefix(&self, text: &str, messages: &[Message], prompt: bool, k: usize) -> Result<String> {
        let part = self.render_part(messages, prompt, k)?;
        if text.starts_with(&part) {
            return Ok(part);
        }
        let count = messages.len();
        let with = if prompt {
            " with the generation prompt"
        } else {
            ""
        };
        Err(self.not_splittable(
            k,
            format!(
                "the first {count} messages{with} do not render to the beginning of the whole text"
            ),
        ))
    }

    fn render_part(&self, messages: &[Message], prompt: bool, k: usize) -> Result<String> {
        self.try_render(messages, prompt).map_err(|error| {
            let count = messages.len();
            self.not_splittable(
                k,
                format!("the first {count} messages alone are refused ({error})"),
            )
        })
    }

    fn not_splittable(&self, message: usize, reason: String) -> DataError {
        DataError::NotSplittable {
            template: self.name.clone(),
            message,
            reason,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::tests::small;

    fn chat(turns: &[(&str, &str)]) -> Vec<Message> {
        let turns = turns.iter();
        turns
            .map(|&(role, content)| Message::new(role, content))
            .collect()
    }

    fn try_turns(template: &str, turns: &[(&str, &str)]) -> Result<Vec<String>> {
        let template = small(template).chat_template()?;
        let rendered = template.render_turns(&chat(turns))?;
        let turns = rendered.turns.into_iter();
        Ok(turns.map(|turn| rendered.text[turn].to_owned()).collect())
    }

    const TWO: [(&str, &str); 4] = [
        ("user", "a"),
        ("assistant", "b"),
        ("user", "b"),
        ("assistant", "user: a"),
    ];
    const PLAIN: &str = "{% for m in messages %}{{ m.role }}: {{ m.content }};\n{% endfor %}";
    const PROMPT: &str = "{% if add_generation_prompt %}assistant: {% endif %}";

    #[track_caller]
    fn refuses(template: &str, turns: &[(&str, &str)], message: usize, words: &str) {
        let error = try_turns(template, turns).unwrap_err();
        let DataError::NotSplittable { message: at, .. } = error else {
            panic!("{error}");
        };
        assert_eq!(at, message);
        let text = error.to_string();
        assert!(text.contains("chat_template.jinja of testdata cannot be split into turns"));
        assert!(text.contains(words), "{text}");
    }

    #[test]
    fn a_template_that_loops_without_end_is_an_error() {
        let template =
            "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}";
        let error = try_turns(template, &TWO).unwrap_err();
        assert!(matches!(error, DataError::TemplateFailed { .. }), "{error}");
    }

    #[test]
    fn a_template_that_writes_without_end_is_an_error() {
        let a = "a".repeat(1 << 10);
        let long = format!("{{% for a in range(100000) %}}{a}{{% endfor %}}");
        let doubled = "{% set s %}{{ messages[0].content }}{% endset %}".to_owned()
            + &"{% set s %}{{ s }}{{ s }}{% endset %}".repeat(40);
        let nested = "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}";
        for (template, words) in [
            (long.as_str(), "writes more than 64 MiB"),
            (doubled.as_str(), "writes more than 64 MiB"),
            (nested, "recursion"),
        ] {
            let error = try_turns(template, &TWO).unwrap_err();
            let DataError::TemplateFailed { source, .. } = error else {
                panic!("{error}");
            };
            assert!(source.to_string().contains(words), "{source}");
        }
    }

    #[test]
    fn a_turn_follows_its_header_with_and_without_a_generation_prompt() {
        let expected = ["b;\n", "user: a;\n"];
        assert_eq!(
            try_turns(&format!("{PLAIN}{PROMPT}"), &TWO).unwrap(),
            expected
        );
        assert_eq!(try_turns(PLAIN, &TWO).unwrap(), expected);
    }

    #[test]
    fn an_assistant_may_speak_first_or_twice() {
        let turns = [("assistant", "a"), ("assistant", "b"), ("user", "c")];
        let template = format!("<s>{PLAIN}{PROMPT}");
        assert_eq!(try_turns(&template, &turns).unwrap(), ["a;\n", "b;\n"]);
    }

    #[test]
    fn a_template_that_rewrites_the_past_is_refused() {
        let counted = "{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}";
        refuses(counted, &TWO, 1, "do not render to the beginning");
        let closed = format!("{PLAIN}{{{{ 'end' }}}}");
        refuses(&closed, &TWO, 1, "do not render to the beginning");
        let thinks =
            format!("{PLAIN}{{% if add_generation_prompt %}}assistant: think{{% endif %}}");
        refuses(&thinks, &TWO, 1, "with the generation prompt");
    }

    #[test]
    fn a_template_that_refuses_a_beginning_is_quoted() {
        let even =
            "{% if messages | length is odd %}{{ raise_exception('pairs only') }}{% endif %}";
        refuses(&format!("{even}{PLAIN}"), &TWO, 1, "pairs only");
    }

    #[test]
    fn a_template_that_drops_the_content_is_refused() {
        refuses(
            "{% for m in messages %}{{ m.role }}{% endfor %}",
            &TWO,
            1,
            "cannot be found",
        );
    }

    #[test]
    fn a_refusal_of_the_whole_keeps_the_templates_words() {
        let error =
            try_turns("{{ raise_exception('System role not supported') }}", &TWO).unwrap_err();
        let DataError::TemplateFailed { source, .. } = error else {
            panic!("{error}");
        };
        assert!(
            source.to_string().contains("System role not supported"),
            "{source}"
        );
    }

    #[test]
    fn a_broken_template_is_refused_when_it_is_needed() {
        let found = try_turns("{% for %}", &TWO);
        assert!(matches!(found, Err(DataError::BadTemplate { .. })));
    }
}
