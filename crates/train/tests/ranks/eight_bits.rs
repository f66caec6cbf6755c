//! What made FP8 training of other programs fail: sizes, scales of other weights,
//! files that grow. Cases F810, F814 and F816 of public reports.

use std::fs;

use tensor::Dtype;
use train::{Event, Settings};

use crate::fixture::{Fixture, Run, settings, small};

fn run(fixture: &Fixture, recipe: &str, steps: u64) -> Run {
    let settings = Settings {
        recipe: recipe.to_owned(),
        steps: Some(steps),
        ..settings()
    };
    fixture.train(&settings, &fixture.seven_rows())
}

/// The loss of the first step: of what was loaded.
fn first_loss(fixture: &Fixture, recipe: &str) -> f64 {
    run(fixture, recipe, 1).outcome.losses[0]
}

/// No size of this model is a multiple of 16.
#[test]
fn odd_sizes_train_in_fp8_and_every_layer_does() {
    let config = small(false)
        .replace("\"hidden_size\": 64", "\"hidden_size\": 42")
        .replace("\"head_dim\": 24", "\"head_dim\": 10")
        .replace("\"intermediate_size\": 320", "\"intermediate_size\": 50")
        .replace("\"num_attention_heads\": 4", "\"num_attention_heads\": 5")
        .replace("\"num_key_value_heads\": 2", "\"num_key_value_heads\": 1");
    let fixture = Fixture::new(&config, Dtype::BF16);
    let expected = first_loss(&fixture, "f32");
    for recipe in ["fp8", "fp8-lean"] {
        let run = run(&fixture, recipe, 3);
        let losses = &run.outcome.losses;
        assert!((losses[0] - expected).abs() < 0.15, "{losses:?}");
        assert!(losses[2] < losses[0], "{losses:?}");
        let matrices = run.events.iter().find_map(|event| match event {
            Event::Precision { matrices } => Some(matrices),
            _ => None,
        });
        let in_codes = matrices.unwrap().iter().filter(|matrix| matrix.is_fp8);
        assert_eq!(in_codes.count(), 14);
    }
}

/// Scales follow from the weights that were loaded, before the first product.
#[test]
fn weights_far_smaller_than_usual_have_the_loss_of_f32_at_once() {
    for range in ["0.001", "10.0"] {
        let config = small(true).replace("\"initializer_range\": 0.1", "\"initializer_range\": X");
        let fixture = Fixture::new(&config.replace('X', range), Dtype::BF16);
        let expected = first_loss(&fixture, "f32");
        let found = first_loss(&fixture, "fp8");
        let off = (found / expected - 1.0).abs();
        assert!(off < 0.02, "range {range}: {found} is not {expected}");
    }
}

/// Nothing is appended from step to step.
#[test]
fn an_export_is_as_large_after_five_steps_as_after_one() {
    let fixture = Fixture::new(&small(true), Dtype::BF16);
    let size = |steps| {
        let entries = fs::read_dir(run(&fixture, "fp8", steps).out).unwrap();
        let files = entries.map(|entry| entry.unwrap().metadata().unwrap());
        let files = files.filter(fs::Metadata::is_file);
        files.map(|file| file.len()).sum::<u64>()
    };
    assert_eq!(size(5), size(1));
}
