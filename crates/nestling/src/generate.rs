//! Text from a model, token by token.

use data::{Message, Tokenizer};
use model::{Cache, forward_cached};
use plan::Work;
use train::with_model;

use crate::{Error, ModelPath, OpenModel, Sampling};

/// What a text begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prompt<'a> {
    /// Text as it is.
    Text(&'a str),
    /// A user's turn, in the model's chat template.
    Chat(&'a str),
    /// Token ids.
    Ids(&'a [u32]),
}

/// How to generate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GenerateOptions {
    /// Tokens at most.
    pub max_tokens: usize,
    /// How each is chosen.
    pub sampling: Sampling,
    /// Threads to compute on; 0 is all cores.
    pub threads: usize,
}

/// Why the text ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// The model said so.
    EndOfText,
    /// As many tokens as were asked for.
    Length,
}

/// A generated text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Generated {
    /// The tokens of the prompt.
    pub prompt_ids: Vec<u32>,
    /// The tokens that followed, the end token included.
    pub new_ids: Vec<u32>,
    /// Their text.
    pub text: String,
    /// Why it ended.
    pub finish: Finish,
}

/// Generates text and hands each piece to `on_text` as soon as it is whole.
pub fn generate<'a>(
    model: impl Into<ModelPath<'a>>,
    prompt: Prompt<'_>,
    options: GenerateOptions,
    on_text: &(dyn Fn(&str) + Sync),
) -> Result<Generated, Error> {
    let opened = OpenModel::open(model)?;
    let tokenizer = opened.tokenizer()?;
    let prompt_ids = encode(&tokenizer, prompt)?;
    if prompt_ids.is_empty() {
        return Err(Error::Empty { what: "the prompt" });
    }
    opened.check_ids(&prompt_ids)?;
    let total = prompt_ids.len().saturating_add(options.max_tokens);
    let max_positions = opened.model.spec.max_positions;
    if total > max_positions {
        return Err(Error::TooLong {
            prompt_tokens: prompt_ids.len(),
            max_tokens: options.max_tokens,
            max_positions,
        });
    }
    let works = [Work::Generate {
        prompt_tokens: prompt_ids.len(),
        max_tokens: total,
    }];
    let (new_ids, text, finish) = with_model(
        &opened.inference(options.threads),
        &works,
        |device, world| {
            let model = &opened.model;
            let mut caches = Cache::for_blocks(device, model, total)?;
            let mut logits = vec![0.0; model.spec.vocab];
            let mut stream = tokenizer.stream_decoder(&prompt_ids, true);
            let mut answer = Answer::default();
            let mut next = prompt_ids.clone();
            let mut finish = Finish::Length;
            while answer.ids.len() < options.max_tokens {
                forward_cached(device, model, world, &mut caches, &next, &mut logits)?;
                let position = prompt_ids.len() + answer.ids.len();
                if logits.iter().any(|logit| logit.is_nan()) {
                    return Err(train::TrainError::LogitsNotFinite { position });
                }
                let id = options.sampling.choose(&logits, position);
                answer.ids.push(id);
                if tokenizer.eos_ids().contains(&id) {
                    finish = Finish::EndOfText;
                    break;
                }
                answer.say(stream.push(id)?, on_text);
                next = vec![id];
            }
            answer.say(stream.finish()?, on_text);
            Ok((answer.ids, answer.text, finish))
        },
    )?;
    Ok(Generated {
        prompt_ids,
        new_ids,
        text,
        finish,
    })
}

#[derive(Default)]
struct Answer {
    ids: Vec<u32>,
    text: String,
}

impl Answer {
    fn say(&mut self, piece: Option<String>, on_text: &(dyn Fn(&str) + Sync)) {
        if let Some(piece) = piece {
            on_text(&piece);
            self.text.push_str(&piece);
        }
    }
}

fn encode(tokenizer: &Tokenizer, prompt: Prompt<'_>) -> Result<Vec<u32>, Error> {
    Ok(match prompt {
        Prompt::Text(text) => tokenizer.encode(text, true)?,
        Prompt::Chat(user) => {
            let messages = [Message::new("user", user)];
            let text = tokenizer.chat_template()?.render(&messages, true)?;
            tokenizer.encode(&text, false)?
        }
        Prompt::Ids(ids) => ids.to_vec(),
    })
}
