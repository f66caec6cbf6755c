//! The demo's questions and what the model answers.

use std::path::Path;

use nestling::{DEMO_ANSWER_TOKENS, GenerateOptions, Prompt, Sampling, Settings};
use nestling::{demo_questions, generate};

use crate::error::CliError;
use crate::output::print;

/// Asks a model the demo's questions.
pub(crate) fn print_answers(when: &str, model: &Path, settings: &Settings) -> Result<(), CliError> {
    let options = GenerateOptions {
        max_tokens: DEMO_ANSWER_TOKENS,
        sampling: Sampling::default(),
        threads: settings.threads,
        precision: None,
    };
    let mut text = format!("{when}\n");
    for question in demo_questions() {
        let answer = generate(model, Prompt::Chat(question), &options, &|_| {})?;
        let said = answer.text.unwrap_or_default();
        text.push_str(&exchange(question, &said));
    }
    print(&format!("{text}\n"))
}

/// A question and its answer on a line each.
fn exchange(question: &str, answer: &str) -> String {
    let words: Vec<_> = answer.split_whitespace().collect();
    format!("  {question}\n    {}\n", words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_one_line() {
        assert_eq!(
            exchange("Who?", " I am\n\nPip. "),
            "  Who?\n    I am Pip.\n"
        );
    }
}
