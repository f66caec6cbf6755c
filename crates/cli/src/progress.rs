//! Progress of the commands that take a while, on a terminal only.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

const TICK: Duration = Duration::from_millis(100);

/// Something that has no length, with the time it has taken.
pub(crate) fn spinner(what: &'static str) -> ProgressBar {
    let spinner = ProgressBar::new_spinner().with_message(what);
    spinner.set_style(style("{spinner} {msg} {elapsed}"));
    spinner.enable_steady_tick(TICK);
    spinner
}

/// `count` things.
pub(crate) fn counter(what: &'static str, num_things: u64) -> ProgressBar {
    let bar = ProgressBar::new(num_things).with_message(what);
    bar.set_style(style("{msg} {wide_bar} {human_pos}/{human_len} {eta}"));
    bar
}

/// Bytes being written.
pub(crate) fn bytes(what: &'static str, num_bytes: Option<u64>) -> ProgressBar {
    let bar = match num_bytes {
        Some(num_bytes) => ProgressBar::new(num_bytes),
        None => ProgressBar::no_length(),
    };
    let look = match num_bytes {
        Some(_) => {
            "{msg} {wide_bar} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta}"
        }
        None => "{spinner} {msg} {binary_bytes} {binary_bytes_per_sec}",
    };
    bar.with_message(what).with_style(style(look))
}

/// Steps of a run: its place in the prefix, its figures in the message.
pub(crate) fn steps(num_steps: u64) -> ProgressBar {
    let bar = ProgressBar::new(num_steps);
    bar.with_style(style("{wide_bar} {prefix}\n{msg}"))
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("the templates of this file are valid")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_template_is_valid() {
        for bar in [
            spinner("a"),
            counter("b", 3),
            bytes("c", Some(2)),
            bytes("d", None),
            steps(1),
        ] {
            bar.finish_and_clear();
        }
    }
}
