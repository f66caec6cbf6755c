//! The program: parse, run one command, report one error.

mod commands;
mod error;
mod format;
mod output;
mod products;
mod progress;
mod reading;
mod signals;
mod stop;
mod tables;
mod values;

use std::process::ExitCode;

use clap::Parser as _;

/// Fine-tunes Hugging Face language models; no rank ever holds more than its shard and one unit.
#[derive(Debug, clap::Parser)]
#[command(name = "nestling", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: commands::Command,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let ended = signals::refuse_large_files().and_then(|()| cli.command.run());
    ended.unwrap_or_else(|error| {
        signals::let_signals_end();
        // Whoever closed the pipe has seen enough.
        if error.is_broken_pipe() {
            return ExitCode::SUCCESS;
        }
        output::note(&format!("error: {}", error::one_line(&error)));
        ExitCode::FAILURE
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    const MANUAL: &str = include_str!("../../../docs/cli.md");

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_and_flag_stands_in_the_manual() {
        for command in Cli::command().get_subcommands() {
            let name = command.get_name();
            let section = section(name);
            for arg in command.get_arguments() {
                let said = match arg.get_long() {
                    Some(long) => format!("`--{long}"),
                    None => arg.get_id().as_str().to_uppercase(),
                };
                assert!(
                    section.contains(&said),
                    "{name}: {said} is not in docs/cli.md"
                );
            }
        }
    }

    #[test]
    fn every_flag_in_the_manual_is_there() {
        for command in Cli::command().get_subcommands() {
            let known: Vec<_> = command
                .get_arguments()
                .filter_map(clap::Arg::get_long)
                .collect();
            let flags = section(command.get_name()).split("--").skip(1);
            for flag in flags {
                let end = flag.find(|c: char| !c.is_ascii_alphanumeric() && c != '-');
                let flag = &flag[..end.unwrap_or(flag.len())];
                let is_word = flag.starts_with(|c: char| c.is_ascii_lowercase());
                assert!(
                    !is_word || known.contains(&flag),
                    "{}: there is no --{flag}",
                    command.get_name()
                );
            }
        }
    }

    /// The part of the manual about a command.
    fn section(name: &str) -> &'static str {
        let heading = format!("\n## `nestling {name}`");
        let (_, rest) = MANUAL
            .split_once(&heading)
            .unwrap_or_else(|| panic!("docs/cli.md has no section `nestling {name}`"));
        rest.split("\n## ").next().unwrap_or(rest)
    }
}
