//! Runs that end with an error leave no model behind.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use tensor::Dtype;
use train::{Event, Settings, TrainError};

use crate::fixture::{Failed, Fixture, Opened, settings, small};

/// Writes a number over the first element of a tensor of f32.
fn spoil(model: &Path, tensor: &str, value: f32) {
    let folder = Opened::open(model).folder;
    let place = folder.find(tensor).unwrap();
    let path = &folder.files()[place.file].path;
    let file = fs::File::options().write(true).open(path).unwrap();
    file.write_all_at(&value.to_le_bytes(), place.begin)
        .unwrap();
}

/// What lies in a folder.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

#[track_caller]
fn ends_in_step(error: &TrainError, expected: u64) {
    let TrainError::Rank { source, .. } = error else {
        panic!("{error:?}");
    };
    match **source {
        TrainError::LossNotFinite { step, loss } => {
            assert_eq!(step, expected);
            assert!(!loss.is_finite());
        }
        ref other => panic!("{other:?}"),
    }
    let message = source.to_string();
    assert!(
        message.contains(&format!("step {expected}: the loss")),
        "{message}"
    );
}

#[test]
fn a_loss_that_is_not_finite_names_the_step_and_saves_nothing() {
    for value in [f32::NAN, f32::INFINITY] {
        let fixture = Fixture::new(&small(true), Dtype::F32);
        spoil(&fixture.model_path(), "model.norm.weight", value);
        let rows = fixture.seven_rows();
        for ranks in [1, 3] {
            let settings = Settings {
                ranks,
                save_every: 1,
                ..settings()
            };
            let run = fixture.try_train(&fixture.model_path(), &settings, &rows, None);
            let Failed { error, out } = run.unwrap_err();
            ends_in_step(&error, 1);
            assert_eq!(names(&out), ["run"], "{ranks} ranks");
        }
    }
}

#[test]
fn where_nan_is_allowed_a_step_without_a_loss_changes_nothing() {
    let fixture = Fixture::new(&small(true), Dtype::F32);
    spoil(&fixture.model_path(), "model.norm.weight", f32::NAN);
    let rows = fixture.seven_rows();
    let settings = Settings {
        allow_nan: true,
        steps: Some(2),
        ranks: 2,
        ..settings()
    };
    let run = fixture.train(&settings, &rows);
    let warned = run.events.iter().filter(|event| {
        matches!(event, Event::Warning { message } if message.contains("nothing was updated"))
    });
    assert_eq!(warned.count(), 2);
    assert!(run.outcome.losses.is_empty());
    let bytes = |folder: &Path| fs::read(folder.join("model.safetensors")).unwrap();
    assert!(bytes(&run.out) == bytes(&fixture.model_path()));
}

/// A rate of 1e30 makes weights whose products overflow in the step after.
#[test]
fn a_run_that_diverges_keeps_its_last_checkpoint_only() {
    let fixture = Fixture::new(&small(true), Dtype::F32);
    let rows = fixture.seven_rows();
    let settings = Settings {
        lr: 1e30,
        warmup: 0,
        save_every: 1,
        ranks: 2,
        ..settings()
    };
    let run = fixture.try_train(&fixture.model_path(), &settings, &rows, None);
    let Failed { error, out } = run.unwrap_err();
    ends_in_step(&error, 2);
    assert_eq!(names(&out), ["checkpoints", "run"]);
    assert_eq!(names(&out.join("checkpoints")), ["latest", "step-1"]);
    Opened::open(&out.join("checkpoints/step-1"));
}

/// The files are cut after their headers were read, so that only the rank whose
/// bytes are gone finds out.
#[test]
fn a_load_error_of_one_rank_stops_all_with_its_message() {
    let fixture = Fixture::new(&small(false), Dtype::F32);
    let rows = fixture.seven_rows();
    let opened = Opened::open(&fixture.model_path());
    let file = &opened.folder.files()[0];
    let cut = fs::File::options().write(true).open(&file.path).unwrap();
    cut.set_len(file.num_bytes - 64).unwrap();
    for ranks in [1, 3, 8] {
        let settings = Settings {
            ranks,
            ..settings()
        };
        let run = fixture.try_train_opened(&opened, &settings, &rows);
        let Failed { error, out } = run.unwrap_err();
        let TrainError::Rank { source, .. } = &*error else {
            panic!("{error:?}");
        };
        assert!(matches!(**source, TrainError::Checkpoint(_)), "{source:?}");
        let message = source.to_string();
        assert!(message.contains("model.safetensors"), "{message}");
        assert_eq!(names(&out), ["run"]);
    }
}

#[test]
fn a_run_that_is_stopped_before_its_first_step_saves_nothing() {
    let fixture = Fixture::new(&small(true), Dtype::BF16);
    let rows = fixture.seven_rows();
    for ranks in [1, 3] {
        let settings = Settings {
            ranks,
            ..settings()
        };
        let Failed { error, out } = fixture.train_stopped(&settings, &rows);
        assert!(matches!(*error, TrainError::Stopped), "{error:?}");
        assert_eq!(names(&out), ["run"]);
    }
}
