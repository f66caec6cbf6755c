//! A run that goes on from a checkpoint is the run that never stopped.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use tensor::Dtype;
use train::{ClipMode, Event, Settings, whole_checkpoints};

use crate::fixture::{Failed, Fixture, Run, largest_difference, settings, small, two_buckets};

/// With a micro-batch a rank every number of ranks gives the same bits.
fn saving(recipe: &str, ranks: usize) -> Settings {
    Settings {
        recipe: recipe.to_owned(),
        global_batch: 2,
        micro_batch: 1,
        save_every: 2,
        ranks,
        ..settings()
    }
}

fn checkpoint(run: &Run, step: u64) -> PathBuf {
    run.out.join(format!("checkpoints/step-{step}"))
}

fn weights(run: &Run) -> Vec<u8> {
    fs::read(run.out.join("model.safetensors")).unwrap()
}

fn resumed(from: &Path, settings: Settings) -> Settings {
    Settings {
        resume: Some(from.display().to_string()),
        ..settings
    }
}

#[test]
fn a_resumed_run_has_the_bits_of_one_that_never_stopped_at_any_number_of_ranks() {
    for (config, recipe, clip) in [
        (small(true), "f32", ClipMode::Previous),
        (small(false), "bf16", ClipMode::Exact),
        (small(true), "bf16-lean", ClipMode::Off),
        (small(true), "fp8", ClipMode::Previous),
        (two_buckets(true), "fp8-lean", ClipMode::Previous),
    ] {
        let fixture = Fixture::new(&config, Dtype::BF16);
        let rows = fixture.seven_rows();
        let settings_of = |ranks| Settings {
            clip,
            clip_norm: 0.2,
            ..saving(recipe, ranks)
        };
        let whole = fixture.train(&settings_of(1), &rows);
        // 1 -> 3 -> 2 -> 4 ranks, by two and four steps.
        let mut last = fixture.train(&settings_of(1), &rows);
        for (ranks, step) in [(3, 2), (2, 4), (4, 8)] {
            let settings = resumed(&checkpoint(&last, step), settings_of(ranks));
            last = fixture.train(&settings, &rows);
            let (at, what) = (usize::try_from(step).unwrap(), (recipe, ranks));
            assert_eq!(last.outcome.losses, whole.outcome.losses[at..], "{what:?}");
            // A norm is summed rank by rank, in f64.
            let norms = &whole.outcome.grad_norms[at..];
            assert!(largest_difference(&last.outcome.grad_norms, norms) < 1e-12);
            assert!(weights(&last) == weights(&whole), "{what:?}");
            assert_eq!(last.outcome.steps, 10);
        }
        // The same ranks, micro-batches and all.
        let settings = || Settings {
            global_batch: 7,
            micro_batch: 2,
            ..settings_of(2)
        };
        let whole = fixture.train(&settings(), &rows);
        let last = fixture.train(&resumed(&checkpoint(&whole, 6), settings()), &rows);
        assert_eq!(last.outcome.losses, whole.outcome.losses[6..], "{recipe}");
        assert_eq!(last.outcome.grad_norms, whole.outcome.grad_norms[6..]);
        assert!(weights(&last) == weights(&whole), "{recipe}");
    }
}

#[test]
fn a_checkpoint_holds_the_weights_of_a_run_of_as_many_steps() {
    let fixture = Fixture::new(&small(true), Dtype::BF16);
    let rows = fixture.seven_rows();
    let run = fixture.train(&saving("fp8", 2), &rows);
    let short = Settings {
        steps: Some(6),
        ..saving("fp8", 2)
    };
    let short = fixture.train(&short, &rows);
    let saved = fs::read(checkpoint(&run, 6).join("model.safetensors")).unwrap();
    assert!(saved == weights(&short));
    assert_eq!(whole_checkpoints(&run.out), [2, 4, 6, 8]);
    let latest = fs::read_to_string(run.out.join("checkpoints/latest")).unwrap();
    assert_eq!(latest, "step-8\n");
}

#[test]
fn only_the_last_checkpoints_are_kept_where_asked() {
    let fixture = Fixture::new(&small(true), Dtype::BF16);
    let settings = Settings {
        keep: 2,
        ..saving("bf16", 2)
    };
    let run = fixture.train(&settings, &fixture.seven_rows());
    assert_eq!(whole_checkpoints(&run.out), [6, 8]);
    assert_eq!(
        fs::read_dir(run.out.join("checkpoints")).unwrap().count(),
        3
    );
}

/// Flips a bit of a file.
fn flip(path: &Path, at: u64) {
    let file = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 4], at).unwrap();
}

#[track_caller]
fn refused(fixture: &Fixture, settings: &Settings, rows: &Path, words: &[&str]) {
    let Failed { error, .. } = fixture
        .try_train(&fixture.model_path(), settings, rows, None)
        .unwrap_err();
    let mut text = error.to_string();
    let mut source = std::error::Error::source(&*error);
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    for word in words {
        assert!(text.contains(word), "`{word}` is not in: {text}");
    }
}

#[test]
fn a_damaged_checkpoint_is_named() {
    let fixture = Fixture::new(&small(true), Dtype::BF16);
    let rows = fixture.seven_rows();
    let run = fixture.train(&saving("fp8-lean", 1), &rows);
    let at = |step| checkpoint(&run, step).join("state");
    let go_on = |step, ranks| resumed(&checkpoint(&run, step), saving("fp8-lean", ranks));

    let planes = at(2).join("model.safetensors");
    let len = fs::metadata(&planes).unwrap().len();
    flip(&planes, len - 1000);
    refused(
        &fixture,
        &go_on(2, 2),
        &rows,
        &["model.safetensors", "digest"],
    );

    let planes = at(4).join("model.safetensors");
    let file = fs::OpenOptions::new().write(true).open(&planes).unwrap();
    file.set_len(len - 8).unwrap();
    let sizes = [len.to_string(), (len - 8).to_string()];
    refused(&fixture, &go_on(4, 1), &rows, &[&sizes[0], &sizes[1]]);

    let text = fs::read_to_string(at(6).join("state.json")).unwrap();
    let text = text.replace("\"step\": 6", "\"step\": 7");
    fs::write(at(6).join("state.json"), text).unwrap();
    refused(&fixture, &go_on(6, 1), &rows, &["state.json", "digest"]);

    fs::remove_file(at(8).join("digests.json")).unwrap();
    refused(
        &fixture,
        &go_on(8, 1),
        &rows,
        &["digests.json", "does not exist"],
    );
}

#[test]
fn another_run_is_refused_and_what_may_change_is_listed() {
    let fixture = Fixture::new(&small(true), Dtype::BF16);
    let rows = fixture.seven_rows();
    let run = fixture.train(&saving("f32", 1), &rows);
    let from = checkpoint(&run, 4);
    let go_on = |settings| resumed(&from, settings);

    let other = Settings {
        seed: 7,
        recipe: "bf16".to_owned(),
        ..saving("f32", 1)
    };
    let words = ["`recipe` was \"f32\", is \"bf16\"", "`seed` was 0, is 7"];
    refused(&fixture, &go_on(other), &rows, &words);
    let other_rows = fixture.rows([1, 0, 2, 3, 4, 5, 6]);
    refused(
        &fixture,
        &go_on(saving("f32", 1)),
        &other_rows,
        &["7 sequences", "digest"],
    );
    refused(
        &fixture,
        &resumed(&fixture.model_path(), saving("f32", 1)),
        &rows,
        &["digests.json"],
    );

    let changed = Settings {
        lr: 1e-4,
        ..saving("f32", 2)
    };
    let run = fixture.train(&go_on(changed), &rows);
    let warnings = run.events.iter().filter_map(|event| match event {
        Event::Warning { message } => Some(message.as_str()),
        _ => None,
    });
    let listed: Vec<_> = warnings.collect();
    assert_eq!(listed, ["`lr` was 0.0003, is 0.0001"]);
}
