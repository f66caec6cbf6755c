//! How rows become steps: accumulation, the last step of an epoch, evaluation.

use tensor::Dtype;
use train::{Event, Settings};

use crate::fixture::{
    Fixture, NUM_ROWS, Run, SEQ, largest_difference, num_targets, settings, small,
};

/// One sum over rows in another order, after a few steps.
const ACCUMULATION_TOLERANCE: f64 = 1.0e-6;

/// A mean of means of f32 losses against the mean of all.
const EVAL_TOLERANCE: f64 = 1.0e-6;

#[test]
fn a_batch_of_four_is_one_batch_however_it_is_cut() {
    for recipe in ["f32", "bf16"] {
        let fixture = Fixture::new(&small(true), Dtype::BF16);
        let rows = fixture.rows(0..4);
        let run = |micro_batch, ranks| {
            let settings = Settings {
                steps: Some(3),
                recipe: recipe.to_owned(),
                global_batch: 4,
                micro_batch,
                ranks,
                ..settings()
            };
            fixture.train(&settings, &rows).outcome.losses
        };
        let whole = run(4, 1);
        for (micro_batch, ranks) in [(2, 1), (1, 1), (3, 1), (1, 2), (2, 2)] {
            let off = largest_difference(&run(micro_batch, ranks), &whole);
            assert!(
                off <= ACCUMULATION_TOLERANCE,
                "{recipe}, micro-batch {micro_batch} on {ranks}: off by {off:e}"
            );
        }
    }
}

/// Tokens and target tokens of each step.
fn steps_of(run: &Run) -> Vec<(u64, u64)> {
    let steps = run.events.iter().filter_map(|event| match event {
        Event::Step(step) => Some((step.num_tokens, step.num_targets)),
        _ => None,
    });
    steps.collect()
}

#[test]
fn the_last_step_of_an_epoch_takes_the_rows_that_are_left() {
    let fixture = Fixture::new(&small(true), Dtype::BF16);
    let rows = fixture.rows(0..5);
    let seq = SEQ as u64;
    let run = |ranks| {
        let settings = Settings {
            steps: None,
            epochs: Some(2.0),
            global_batch: 2,
            ranks,
            ..settings()
        };
        fixture.train(&settings, &rows)
    };
    let alone = run(1);
    let steps = steps_of(&alone);
    let tokens: Vec<_> = steps.iter().map(|(tokens, _)| tokens / seq).collect();
    assert_eq!(tokens, [2, 2, 1, 2, 2, 1]);
    let targets = |steps: &[(u64, u64)]| steps.iter().map(|(_, targets)| targets).sum::<u64>();
    let all: u64 = (0..5).map(num_targets).sum();
    assert_eq!([targets(&steps[..3]), targets(&steps[3..])], [all, all]);
    for ranks in [2, 3] {
        let off = largest_difference(&run(ranks).outcome.losses, &alone.outcome.losses);
        assert!(off <= 1e-5, "{ranks} ranks: off by {off:e}");
    }
}

#[test]
fn a_run_is_as_long_as_its_steps_epochs_or_tokens_say() {
    let fixture = Fixture::new(&small(true), Dtype::BF16);
    let rows = fixture.rows(0..5);
    let seq = SEQ as u64;
    let run = |steps, epochs, tokens| {
        let settings = Settings {
            steps,
            epochs,
            tokens,
            global_batch: 2,
            ..settings()
        };
        let run = fixture.train(&settings, &rows);
        assert_eq!(run.outcome.steps, run.outcome.num_steps);
        let tokens: u64 = steps_of(&run).iter().map(|(tokens, _)| tokens).sum();
        assert_eq!(tokens, run.outcome.ranks[0].num_tokens);
        (run.outcome.steps, tokens / seq)
    };
    assert_eq!(run(Some(4), None, None), (4, 7));
    assert_eq!(run(None, Some(1.0), None), (3, 5));
    assert_eq!(run(None, Some(0.5), None), (2, 4));
    assert_eq!(run(None, None, None), (3, 5));
    assert_eq!(run(None, None, Some(3 * seq)), (2, 4));
    assert_eq!(run(None, None, Some(5 * seq)), (3, 5));
    assert_eq!(run(None, None, Some(5 * seq + 1)), (4, 7));
}

/// One run a row gives each row's own loss; the evaluation of all is their mean,
/// weighted by their targets.
#[test]
fn an_evaluation_is_the_mean_of_the_rows_own_losses() {
    let fixture = Fixture::new(&small(false), Dtype::BF16);
    let one_step = Settings {
        steps: Some(1),
        ..settings()
    };
    let sum: f64 = (0..NUM_ROWS)
        .map(|row| {
            let run = fixture.train(&one_step, &fixture.rows([row]));
            assert_eq!(steps_of(&run)[0].1, num_targets(row));
            run.outcome.losses[0] * num_targets(row) as f64
        })
        .sum();
    let all: u64 = (0..NUM_ROWS).map(num_targets).sum();
    let expected = sum / all as f64;
    for (ranks, recipe) in [(1, "f32"), (3, "f32"), (8, "f32"), (2, "bf16")] {
        let settings = Settings {
            steps: Some(2),
            eval_every: 1,
            ranks,
            recipe: recipe.to_owned(),
            ..settings()
        };
        let rows = fixture.seven_rows();
        let run = fixture
            .try_train(&fixture.model_path(), &settings, &rows, Some(&rows))
            .unwrap();
        let evals = &run.outcome.eval_losses;
        assert_eq!(evals.len(), 3, "before, between and after the steps");
        // All rows are one batch, so the loss before a step is the evaluation's.
        let pairs = evals.iter().zip(&run.outcome.losses);
        for (found, expected) in pairs.chain([(&evals[0], &expected)]) {
            let off = ((found - expected) / expected).abs();
            assert!(
                off <= EVAL_TOLERANCE,
                "{recipe}, {ranks} ranks: off by {off:e}"
            );
        }
    }
}
