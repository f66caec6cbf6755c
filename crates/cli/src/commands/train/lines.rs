//! What happens in a run, each as a line for a person.

use nestling::{Event, MatrixRecord, StepRecord};

use crate::format::{clock, count, counted, size};

/// The line of an event; none where the tables at the end say it.
pub(crate) fn line(event: &Event) -> Option<String> {
    Some(match event {
        Event::Start {
            num_parameters,
            ranks,
            threads,
            recipe,
            num_steps,
            num_rows,
            seq,
            ..
        } => {
            let steps = counted(*num_steps, "step");
            format!(
                "{}, {recipe}; {} of {}; {steps} over {} of {}",
                counted(*num_parameters, "parameter"),
                counted(*ranks as u64, "rank"),
                counted(*threads as u64, "thread"),
                counted(*num_rows, "row"),
                counted(*seq as u64, "token"),
            )
        }
        Event::Eval {
            step,
            loss,
            perplexity,
            num_targets,
        } => format!(
            "after step {step}: eval loss {loss:.4}, perplexity {perplexity:.2} ({} targets)",
            count(*num_targets)
        ),
        Event::Precision { matrices } => precision_line(matrices),
        Event::Encoded {
            num_plain_tiles,
            num_rounded,
        } => format!(
            "{} had been kept as bf16, now encoded: {} rounded",
            counted(*num_plain_tiles, "tile"),
            counted(*num_rounded, "weight"),
        ),
        Event::Fallback {
            step,
            unit,
            layer,
            operand,
            underflow,
        } => format!(
            "step {step}: {unit} rounds its operands no more: {:.0} % of the {operand} of \
             {layer} became 0",
            100.0 * underflow
        ),
        Event::Resumed { path, step } => format!("goes on after step {step} from {path}"),
        Event::Saved { .. } => format!("saved {}", saved_line(event)?),
        Event::Warning { message } => format!("warning: {message}"),
        _ => return None,
    })
}

/// How many matrices have FP8 codes, and why the others have not.
fn precision_line(matrices: &[MatrixRecord]) -> String {
    let bytes = |of: fn(&MatrixRecord) -> u64| size(matrices.iter().map(of).sum());
    let num_fp8 = matrices.iter().filter(|matrix| matrix.is_fp8).count();
    let mut line = format!(
        "{num_fp8} of {} matrices in FP8; masters {} (in the files {}), {} of it gathered",
        matrices.len(),
        bytes(|matrix| matrix.master_bytes),
        bytes(|matrix| matrix.source_bytes),
        bytes(|matrix| matrix.gathered_bytes),
    );
    let mut reasons: Vec<(&str, usize)> = Vec::new();
    for matrix in matrices.iter().filter(|matrix| !matrix.is_fp8) {
        match reasons
            .iter_mut()
            .find(|(reason, _)| *reason == matrix.choice)
        {
            Some((_, count)) => *count += 1,
            None => reasons.push((&matrix.choice, 1)),
        }
    }
    let reasons = reasons.iter();
    let reasons = reasons.map(|(reason, count)| format!("; {count} {reason}"));
    line.extend(reasons);
    line
}

/// What was saved and where; none for another event.
pub(crate) fn saved_line(event: &Event) -> Option<String> {
    let Event::Saved {
        path,
        step,
        num_bytes,
    } = event
    else {
        return None;
    };
    Some(format!("{} in {path}, as of step {step}", size(*num_bytes)))
}

/// How far a run is after a step.
pub(crate) fn place(record: &StepRecord, seconds_left: f64) -> String {
    let left = clock(seconds_left);
    format!("step {}/{}  {left} left", record.step, record.num_steps)
}

/// The figures of a step.
pub(crate) fn figures(record: &StepRecord) -> String {
    format!(
        "loss {:.4}  lr {:.2e}  grad {:.3}  {} tokens/s",
        record.loss,
        record.lr,
        record.grad_norm,
        significant(record.tokens_per_second),
    )
}

/// What was kept of a run that was stopped.
pub(crate) fn stopped_line(step: u64, num_steps: u64, kept: &str) -> String {
    format!("stopped after step {step} of {num_steps}{kept}")
}

/// A rate: whole from 100 on, else with one decimal.
fn significant(rate: f64) -> String {
    if rate >= 100.0 {
        format!("{rate:.0}")
    } else {
        format!("{rate:.1}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_says_how_far_it_is_and_how_well() {
        let record = StepRecord {
            step: 7,
            num_steps: 60,
            loss: 2.345_67,
            lr: 9.5e-4,
            grad_norm: 1.25,
            num_tokens: 1024,
            num_targets: 1000,
            seconds: 0.5,
            tokens_per_second: 2048.4,
        };
        assert_eq!(place(&record, 75.0), "step 7/60  1:15 left");
        assert_eq!(
            figures(&record),
            "loss 2.3457  lr 9.50e-4  grad 1.250  2048 tokens/s"
        );
    }

    #[test]
    fn the_start_says_what_will_be_done() {
        let start = Event::Start {
            num_parameters: 1_234_567,
            ranks: 1,
            threads: 2,
            recipe: "bf16".to_owned(),
            num_steps: 60,
            num_rows: 1,
            seq: 128,
            flops: 9,
        };
        assert_eq!(
            line(&start).unwrap(),
            "1,234,567 parameters, bf16; 1 rank of 2 threads; 60 steps over 1 row of 128 tokens"
        );
    }

    #[test]
    fn an_evaluation_and_a_save_name_their_step() {
        let eval = Event::Eval {
            step: 20,
            loss: 1.5,
            perplexity: 4.4817,
            num_targets: 1270,
        };
        assert_eq!(
            line(&eval).unwrap(),
            "after step 20: eval loss 1.5000, perplexity 4.48 (1,270 targets)"
        );
        let saved = Event::Saved {
            path: "out/checkpoints/step-20".to_owned(),
            step: 20,
            num_bytes: 3 << 20,
        };
        assert_eq!(
            line(&saved).unwrap(),
            "saved 3.0 MiB in out/checkpoints/step-20, as of step 20"
        );
    }

    #[test]
    fn a_stopped_run_says_what_is_kept() {
        assert_eq!(
            stopped_line(3, 9, "; go on"),
            "stopped after step 3 of 9; go on"
        );
    }
}
