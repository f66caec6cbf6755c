//! Conversations as text, rendered by the checkpoint's own chat template.
//!
//! The template language is Jinja, set up as `transformers` does: blocks are
//! trimmed, loop controls are on, `raise_exception` and `strftime_now` exist,
//! `tojson` and printed values look as Python writes them, and Python's string
//! and dictionary methods work. `{% generation %}` markers are read and have no
//! effect: which tokens count is found without them, see [`Rendered`].
//!
//! A template comes with the model and is not trusted: instructions, calls within
//! calls, printed values and the whole text are limited. A value that is never
//! printed is not: the engine has no limit for what `~` makes.

mod bounded;
mod date;
mod python;
mod turns;

use std::time::SystemTime;

use minijinja::{Environment, Error, ErrorKind, Value, context};
use serde::Serialize;
use serde_json::{Map, Value as Json};

use bounded::Bounded;

use crate::error::{DataError, Result};
use crate::special::SpecialTexts;

pub use turns::Rendered;

/// The name under which the template stands in its environment.
const TEMPLATE: &str = "chat_template";

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Message {
    /// `system`, `user`, `assistant` or what else the template knows.
    pub role: String,
    /// What is said.
    pub content: String,
    /// Further fields, handed to the template as they are.
    #[serde(flatten)]
    pub extra: Map<String, Json>,
}

impl Message {
    /// A message without further fields.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self {
            role: role.into(),
            content: content.into(),
            extra: Map::new(),
        }
    }

    /// Whether this is a turn that the model is to learn.
    pub fn is_assistant(&self) -> bool {
        self.role == "assistant"
    }
}

/// A chat template, parsed and ready to render.
#[derive(Debug)]
pub struct ChatTemplate {
    /// Where it comes from, for messages.
    name: String,
    environment: Environment<'static>,
}

/// Instructions that one rendering may take. A conversation of a thousand turns
/// takes about a hundred thousand.
const FUEL: u64 = 20_000_000;
/// How often a template may repeat what is said; beyond [`LEAST_LIMIT_BYTES`].
const MOST_TIMES: usize = 16;
/// A rendering may always take as much: tools and documents take kilobytes.
const LEAST_LIMIT_BYTES: usize = 64 << 20;
/// Calls within calls, of macros and includes.
const MOST_NESTED: usize = 100;

impl ChatTemplate {
    /// Parses a template.
    ///
    /// `strftime_now` gives the moment of this call at every rendering, so that
    /// a conversation and its parts agree.
    pub(crate) fn new(name: String, source: &str, texts: &SpecialTexts) -> Result<Self> {
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_formatter(python::print);
        // A template comes with the model: one that loops without end is an error.
        environment.set_fuel(Some(FUEL));
        environment.set_recursion_limit(MOST_NESTED);
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_filter("tojson", python::to_json);
        environment.add_filter("string", python::to_string);
        environment.add_function("raise_exception", raise_exception);
        let now = SystemTime::now();
        environment.add_function("strftime_now", move |format: &str| {
            date::strftime(now, format)
        });
        for (global, text) in [
            ("bos_token", &texts.bos),
            ("eos_token", &texts.eos),
            ("pad_token", &texts.pad),
            ("unk_token", &texts.unk),
        ] {
            if let Some(text) = text {
                environment.add_global(global, text.clone());
            }
        }
        match environment.add_template_owned(TEMPLATE, python::without_generation_tags(source)) {
            Ok(()) => Ok(Self { name, environment }),
            Err(source) => Err(DataError::BadTemplate {
                template: name,
                source,
            }),
        }
    }

    /// Renders a conversation.
    ///
    /// With `add_generation_prompt` the text ends where the model is to answer.
    pub fn render(&self, messages: &[Message], add_generation_prompt: bool) -> Result<String> {
        self.try_render(messages, add_generation_prompt)
            .map_err(|source| DataError::TemplateFailed {
                template: self.name.clone(),
                source,
            })
    }

    /// Where the template comes from.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn try_render(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
    ) -> Result<String, Error> {
        let mut text = Bounded::new(most_bytes(messages));
        let template = self.environment.get_template(TEMPLATE)?;
        let context = context! {
            messages,
            add_generation_prompt,
            tools => Value::from(()),
            documents => Value::from(()),
        };
        match template.render_captured_to(context, &mut text) {
            Ok(_) => Ok(text.into_text()),
            Err(_) if text.is_full() => Err(bounded::too_long(text.limit_bytes())),
            Err(error) => Err(error),
        }
    }
}

/// What a conversation's text may take: a template writes what is said and words
/// of its own around it.
fn most_bytes(messages: &[Message]) -> usize {
    let said = messages.iter().map(|message| message.content.len());
    let said: usize = said.sum();
    said.saturating_mul(MOST_TIMES).max(LEAST_LIMIT_BYTES)
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message))
}
