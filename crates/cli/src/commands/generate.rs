//! `nestling generate`: text from a model, printed as it comes.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use nestling::{Finish, GenerateOptions, Prompt, Sampling, generate};
use serde_json::json;

use crate::error::CliError;
use crate::output::{note, print, print_json, write_now};
use crate::products::Products;
use crate::progress;
use crate::reading::Reading;
use crate::tables::ledger_table;
use crate::values;

/// Text from a model.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("beginning").args(["prompt", "ids"]).required(true))]
#[command(allow_negative_numbers = true)]
pub(crate) struct Generate {
    /// A Hugging Face folder, or `demo`
    model: PathBuf,
    /// Text to go on from
    #[arg(long, value_name = "TEXT")]
    prompt: Option<String>,
    /// Token ids to go on from, separated by commas
    #[arg(long, value_delimiter = ',', conflicts_with = "chat")]
    ids: Option<Vec<u32>>,
    /// The prompt is a user's turn, in the model's chat template
    #[arg(long)]
    chat: bool,
    /// Tokens at most
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = values::num_tokens)]
    max_tokens: usize,
    /// How much chance there is in the choice of a token; 0 takes the likeliest
    #[arg(long, value_name = "T", default_value_t = 0.0, value_parser = temperature)]
    temperature: f32,
    /// Choose among this many likeliest tokens; 0 is all
    #[arg(long, value_name = "K", default_value_t = 0)]
    top_k: usize,
    /// Choose among the likeliest tokens that have this probability together
    #[arg(long, value_name = "P", default_value_t = 1.0, value_parser = probability)]
    top_p: f32,
    /// Seed of the choices
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Threads to compute on; 0 is all cores
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = values::threads)]
    threads: usize,
    /// Say on standard error what the model held in memory, by name
    #[arg(long)]
    memory: bool,
    /// Print tokens, text, why it ended and the memory as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    products: Products,
    #[command(flatten)]
    reading: Reading,
}

impl Generate {
    pub(crate) fn run(self) -> Result<(), CliError> {
        let model = self.reading.noted(&self.model)?;
        let spinner = progress::spinner("loading");
        let failed = Mutex::new(None);
        let say = |piece: &str| {
            spinner.finish_and_clear();
            if !self.json
                && let Err(source) = write_now(piece)
            {
                let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                failed.get_or_insert(CliError::Output { source });
            }
        };
        let generated = generate(model, self.beginning(), &self.options()?, &say)?;
        spinner.finish_and_clear();
        if self.json {
            return print_json(&json!({
                "prompt_ids": generated.prompt_ids,
                "new_ids": generated.new_ids,
                "text": generated.text,
                "finish": match generated.finish {
                    Finish::EndOfText => "end_of_text",
                    Finish::Length => "length",
                },
                "memory": generated.memory,
            }));
        }
        match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => return Err(error),
            None if generated.text.is_none() => print(&listed(&generated.new_ids))?,
            None => {}
        }
        print("\n")?;
        if self.memory
            && let Some(table) = ledger_table(&generated.memory)
        {
            note(table.trim_end());
        }
        Ok(())
    }

    fn beginning(&self) -> Prompt<'_> {
        match (&self.ids, &self.prompt) {
            (Some(ids), _) => Prompt::Ids(ids),
            (None, Some(prompt)) if self.chat => Prompt::Chat(prompt),
            (None, prompt) => Prompt::Text(prompt.as_deref().unwrap_or_default()),
        }
    }

    fn options(&self) -> Result<GenerateOptions, CliError> {
        Ok(GenerateOptions {
            max_tokens: self.max_tokens,
            sampling: Sampling {
                temperature: self.temperature,
                top_k: self.top_k,
                top_p: self.top_p,
                seed: self.seed,
            },
            threads: self.threads,
            precision: self.products.precision()?,
        })
    }
}

/// Ids as `--ids` takes them.
fn listed(ids: &[u32]) -> String {
    let ids: Vec<_> = ids.iter().map(u32::to_string).collect();
    ids.join(",")
}

fn temperature(text: &str) -> Result<f32, String> {
    number(text, |value| value.is_finite() && value >= 0.0)
        .ok_or_else(|| "expected a number, at least 0".to_owned())
}

fn probability(text: &str) -> Result<f32, String> {
    number(text, |value| value > 0.0 && value <= 1.0)
        .ok_or_else(|| "expected a number above 0, at most 1".to_owned())
}

fn number(text: &str, is_allowed: impl Fn(f32) -> bool) -> Option<f32> {
    text.parse().ok().filter(|&value| is_allowed(value))
}
