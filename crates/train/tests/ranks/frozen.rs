//! Parameters that are not trained: they stay what they were, cost what their plane
//! costs, and the others learn the same on any number of ranks.

use tensor::Dtype;
use train::{ClipMode, Event, Settings, SettingsError, TrainError};

use crate::fixture::{Fixture, Opened, largest_difference, settings, small};
use crate::memory::{holds_what_was_planned, plan};

fn frozen(recipe: &str, names: &[&str]) -> Settings {
    Settings {
        recipe: recipe.to_owned(),
        freeze: names.iter().map(|&name| name.to_owned()).collect(),
        steps: Some(3),
        clip: ClipMode::Previous,
        ..settings()
    }
}

/// Matrices of all blocks, a norm, and the table.
const SOME: [&str; 3] = ["model.layers.*_proj.weight", "*input_layernorm*", "*embed*"];

#[test]
fn what_is_frozen_is_written_as_it_was_read_and_the_rest_learns() {
    for dtype in [Dtype::BF16, Dtype::F32] {
        let fixture = Fixture::new(&small(false), dtype);
        let rows = fixture.seven_rows();
        let source = Opened::open(&fixture.model_path());
        for (recipe, ranks) in [("f32", 3), ("bf16", 1), ("fp8", 3), ("fp8-lean", 2)] {
            let settings = Settings {
                ranks,
                ..frozen(recipe, &SOME)
            };
            let written = Opened::open(&fixture.train(&settings, &rows).out);
            let pairs = source.tensors().into_iter().zip(written.tensors());
            for ((name, before), (_, after)) in pairs {
                let is_frozen = name.ends_with("_proj.weight")
                    || name.contains("input_layernorm")
                    || name.contains("embed");
                // A norm's weight of 1 may not move by a place of its bf16 in 3 steps.
                let may_stay = is_frozen || name.contains("norm");
                assert!(before == after || !is_frozen, "{recipe} {dtype:?}: {name}");
                assert!(before != after || may_stay, "{recipe} {dtype:?}: {name}");
            }
        }
    }
}

#[test]
fn a_frozen_base_rests_in_its_codes_alone() {
    let fixture = Fixture::new(&small(false), Dtype::BF16);
    let rows = fixture.seven_rows();
    for ranks in [1, 3] {
        let settings = Settings {
            ranks,
            ..frozen("fp8", &["model.layers.*_proj.weight"])
        };
        let run = fixture.train(&settings, &rows);
        let planned = plan(&fixture, &settings);
        holds_what_was_planned(&run, &planned);
        let is_frozen = |bucket: &&shard::Bucket| !bucket.has_gradient();
        let frozen = planned.sharding.buckets.iter().filter(is_frozen);
        let (mut num_buckets, mut num_bytes, mut num_elements) = (0, 0, 0);
        for bucket in frozen {
            num_buckets += 1;
            num_elements += bucket.num_elements;
            num_bytes += (0..ranks)
                .map(|rank| plan::SlotLayout::new(bucket, rank, &planned.formats))
                .map(|layout| layout.num_bytes)
                .sum::<usize>();
        }
        assert_eq!(num_buckets, 2, "one a block");
        let per_element = num_bytes as f64 / f64::from(u32::try_from(num_elements).unwrap());
        assert!((1.0..1.02).contains(&per_element), "{per_element} bytes");
    }
}

#[test]
fn ranks_agree_about_the_rest() {
    let fixture = Fixture::new(&small(true), Dtype::BF16);
    let rows = fixture.seven_rows();
    let run = |ranks| {
        let settings = Settings {
            ranks,
            ..frozen("f32", &["model.layers.0.*", "*o_proj*"])
        };
        fixture.train(&settings, &rows).outcome
    };
    let alone = run(1);
    for ranks in [2, 8] {
        let together = run(ranks);
        assert!(largest_difference(&together.losses, &alone.losses) < 1e-5);
        assert!(largest_difference(&together.grad_norms, &alone.grad_norms) < 1e-4);
    }
}

#[test]
fn a_name_that_is_nobodys_and_a_model_without_a_rest_are_refused() {
    let fixture = Fixture::new(&small(true), Dtype::BF16);
    let rows = fixture.seven_rows();
    let refused = |names: &[&str]| {
        let settings = frozen("bf16", names);
        let failed = fixture.try_train(&fixture.model_path(), &settings, &rows, None);
        *failed.unwrap_err().error
    };
    assert!(matches!(
        refused(&["*no_such*"]),
        TrainError::Settings(SettingsError::NothingNamed { key: "freeze", .. })
    ));
    assert!(matches!(
        refused(&["*"]),
        TrainError::Settings(SettingsError::AllFrozen)
    ));
}

#[test]
fn every_matrix_is_reported_with_the_reason_for_its_format() {
    let fixture = Fixture::new(&small(false), Dtype::BF16);
    let rows = fixture.seven_rows();
    let settings = Settings {
        keep_bf16: vec!["*down_proj*".to_owned()],
        ..frozen("fp8", &[])
    };
    let run = fixture.train(&settings, &rows);
    let matrices = run.events.iter().find_map(|event| match event {
        Event::Precision { matrices } => Some(matrices),
        _ => None,
    });
    let matrices = matrices.unwrap();
    let count = |choice: &str| {
        matrices
            .iter()
            .filter(|found| found.choice == choice)
            .count()
    };
    assert_eq!(matrices.len(), 16);
    assert_eq!(count("FP8"), 12);
    assert_eq!(count("kept: a table"), 2);
    assert_eq!(count("kept: named by `*down_proj*`"), 2);
    let fp8 = matrices.iter().find(|found| found.is_fp8).unwrap();
    assert!(fp8.gathered_bytes * 2 <= fp8.source_bytes + 4);
}
