//! Text from a model, token by token.

use data::{Message, Tokenizer, end_ids};
use model::{Cache, forward_cached};
use plan::{Precision, Work};
use train::{Event, Resting, TrainError, with_resting};

use crate::prepare::tokenizer_if_there;
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
#[derive(Debug, Clone, PartialEq)]
pub struct GenerateOptions {
    /// Tokens at most.
    pub max_tokens: usize,
    /// How each is chosen.
    pub sampling: Sampling,
    /// Threads to compute on; 0 is all cores.
    pub threads: usize,
    /// With one, products are those of training under it.
    pub precision: Option<Precision>,
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
#[derive(Debug, Clone, PartialEq)]
pub struct Generated {
    /// The tokens of the prompt.
    pub prompt_ids: Vec<u32>,
    /// The tokens that followed, the end token included.
    pub new_ids: Vec<u32>,
    /// Their text; none without a tokenizer.
    pub text: Option<String>,
    /// Why it ended.
    pub finish: Finish,
    /// What the model held by name while it wrote, the cache of keys and values
    /// among it: an [`Event::Ledger`].
    pub memory: Event,
}

/// Generates text and hands each piece to `on_text` as soon as it is whole.
///
/// From ids it also works without a tokenizer: then there is no text, and the ids
/// that end it are those of the model's configs.
pub fn generate<'a>(
    model: impl Into<ModelPath<'a>>,
    prompt: Prompt<'_>,
    options: &GenerateOptions,
    on_text: &(dyn Fn(&str) + Sync),
) -> Result<Generated, Error> {
    let opened = OpenModel::open(model)?;
    let tokenizer = match prompt {
        Prompt::Ids(_) => tokenizer_if_there(&opened)?,
        Prompt::Text(_) | Prompt::Chat(_) => Some(opened.tokenizer()?),
    };
    let prompt_ids = encode(tokenizer.as_ref(), prompt)?;
    check_prompt(&opened, &prompt_ids, options.max_tokens)?;
    let eos_ids = match &tokenizer {
        Some(tokenizer) => tokenizer.eos_ids().to_vec(),
        None => end_ids(opened.folder.path())?,
    };
    let writing = Writing {
        opened: &opened,
        tokenizer: tokenizer.as_ref(),
        prompt_ids: &prompt_ids,
        eos_ids: &eos_ids,
        options,
        on_text,
    };
    let works = [Work::Generate {
        prompt_tokens: prompt_ids.len(),
        max_tokens: writing.max_len(),
    }];
    let inference = opened.inference(options.threads, options.precision.as_ref());
    let (answer, memory) = with_resting(&inference, &works, |resting| {
        Ok((writing.write(resting)?, resting.memory()))
    })?;
    Ok(Generated {
        prompt_ids,
        new_ids: answer.ids,
        text: tokenizer.is_some().then_some(answer.text),
        finish: answer.finish,
        memory,
    })
}

/// Refuses a prompt that the model cannot go on from.
fn check_prompt(opened: &OpenModel, prompt_ids: &[u32], max_tokens: usize) -> Result<(), Error> {
    if prompt_ids.is_empty() {
        return Err(Error::Empty { what: "the prompt" });
    }
    opened.check_ids(prompt_ids)?;
    let total = prompt_ids.len().saturating_add(max_tokens);
    let max_positions = opened.model.spec.max_positions;
    if total > max_positions {
        return Err(Error::TooLong {
            prompt_tokens: prompt_ids.len(),
            max_tokens,
            max_positions,
        });
    }
    Ok(())
}

/// A text on its way, token by token.
struct Writing<'a> {
    opened: &'a OpenModel,
    tokenizer: Option<&'a Tokenizer>,
    prompt_ids: &'a [u32],
    eos_ids: &'a [u32],
    options: &'a GenerateOptions,
    on_text: &'a (dyn Fn(&str) + Sync),
}

impl Writing<'_> {
    /// Tokens of the prompt and of the longest answer.
    fn max_len(&self) -> usize {
        self.prompt_ids.len() + self.options.max_tokens
    }

    fn write(&self, resting: &Resting<'_>) -> Result<Answer, TrainError> {
        let &Resting { device, world, .. } = resting;
        let model = &self.opened.model;
        let mut caches = Cache::for_blocks(device, model, self.max_len())?;
        let mut logits = vec![0.0; model.spec.vocab];
        let tokenizer = self.tokenizer;
        let mut stream = tokenizer.map(|known| known.stream_decoder(self.prompt_ids, true));
        let mut answer = Answer::default();
        let mut next = self.prompt_ids.to_vec();
        while answer.ids.len() < self.options.max_tokens {
            forward_cached(device, model, world, &mut caches, &next, &mut logits)?;
            let position = self.prompt_ids.len() + answer.ids.len();
            if logits.iter().any(|logit| logit.is_nan()) {
                return Err(TrainError::LogitsNotFinite { position });
            }
            let id = self.options.sampling.choose(&logits, position);
            answer.ids.push(id);
            if self.eos_ids.contains(&id) {
                answer.finish = Finish::EndOfText;
                break;
            }
            if let Some(stream) = &mut stream {
                answer.say(stream.push(id)?, self.on_text);
            }
            next = vec![id];
        }
        if let Some(stream) = stream {
            answer.say(stream.finish()?, self.on_text);
        }
        Ok(answer)
    }
}

/// What was written so far.
struct Answer {
    ids: Vec<u32>,
    text: String,
    finish: Finish,
}

impl Default for Answer {
    fn default() -> Self {
        Self {
            ids: Vec::new(),
            text: String::new(),
            finish: Finish::Length,
        }
    }
}

impl Answer {
    fn say(&mut self, piece: Option<String>, on_text: &(dyn Fn(&str) + Sync)) {
        if let Some(piece) = piece {
            on_text(&piece);
            self.text.push_str(&piece);
        }
    }
}

/// The prompt as ids; only ids need no tokenizer.
fn encode(tokenizer: Option<&Tokenizer>, prompt: Prompt<'_>) -> Result<Vec<u32>, Error> {
    Ok(match (prompt, tokenizer) {
        (Prompt::Ids(ids), _) => ids.to_vec(),
        (Prompt::Text(text), Some(tokenizer)) => tokenizer.encode(text, true)?,
        (Prompt::Chat(user), Some(tokenizer)) => {
            let messages = [Message::new("user", user)];
            let text = tokenizer.chat_template()?.render(&messages, true)?;
            tokenizer.encode(&text, false)?
        }
        (Prompt::Text(_) | Prompt::Chat(_), None) => Vec::new(),
    })
}
