//! Random weights: the same from any side, and as random as asked for.

use checkpoint::{CheckpointError, Folder, init};
use proptest::prelude::*;
use spec::{Param, Preset, Role};
use tempfile::TempDir;
use tensor::{Dtype, as_bytes, cast};

fn param(name: &str, role: Role, len: usize) -> Param {
    Param {
        name: name.to_owned(),
        role,
        rows: 1,
        cols: len,
        is_vector: false,
    }
}

fn numbers(seed: u64, param: &Param, first: u64, len: usize) -> Vec<f32> {
    let mut numbers = vec![f32::NAN; len];
    init::fill(seed, param, first, 0.02, &mut numbers);
    numbers
}

proptest! {
    #[test]
    fn any_range_is_a_part_of_the_whole(first in 0_usize..100, len in 0_usize..100, seed: u64) {
        let param = param("w", Role::Query, 200);
        let whole = numbers(seed, &param, 0, 200);
        let part = numbers(seed, &param, first as u64, len);
        prop_assert_eq!(as_bytes(&part), as_bytes(&whole[first..first + len]));
    }
}

#[test]
fn seed_and_name_make_different_numbers() {
    let a = param("a", Role::Query, 8);
    let b = param("b", Role::Query, 8);
    assert_ne!(numbers(1, &a, 0, 8), numbers(2, &a, 0, 8));
    assert_ne!(numbers(1, &a, 0, 8), numbers(1, &b, 0, 8));
    assert_eq!(numbers(1, &a, 0, 8), numbers(1, &a, 0, 8));
}

#[test]
fn norms_are_one_and_biases_zero() {
    let all = |role, value: f32| {
        let found = numbers(5, &param("p", role, 4), 0, 4);
        assert!(
            found
                .iter()
                .all(|number| number.to_bits() == value.to_bits())
        );
    };
    all(Role::InputNorm, 1.0);
    all(Role::FinalNorm, 1.0);
    all(Role::QueryBias, 0.0);
}

#[test]
fn numbers_are_normal_with_the_deviation_asked_for() {
    const LEN: usize = 1 << 20;
    /// Five standard errors of each moment at this length.
    const TOLERANCE: f64 = 5.0 / 1024.0;
    let numbers = numbers(9, &param("w", Role::Query, LEN), 0, LEN);
    let moment = |power: i32| {
        let sum: f64 = numbers
            .iter()
            .map(|&x| (f64::from(x) / 0.02).powi(power))
            .sum();
        sum / LEN as f64
    };
    assert!(moment(1).abs() < TOLERANCE, "mean {}", moment(1));
    assert!(
        (moment(2) - 1.0).abs() < TOLERANCE * 2.0_f64.sqrt(),
        "variance {}",
        moment(2)
    );
    assert!(
        moment(3).abs() < TOLERANCE * 15.0_f64.sqrt(),
        "skew {}",
        moment(3)
    );
    assert!(
        (moment(4) - 3.0).abs() < TOLERANCE * 96.0_f64.sqrt(),
        "kurtosis {}",
        moment(4)
    );
    let neighbours: f64 = numbers
        .windows(2)
        .map(|pair| f64::from(pair[0]) * f64::from(pair[1]))
        .sum();
    assert!((neighbours / LEN as f64 / 4e-4).abs() < TOLERANCE);
}

#[test]
fn a_written_checkpoint_holds_the_numbers_in_each_dtype() {
    let preset = Preset::by_name("tiny").unwrap();
    for (dtype, num_threads) in [(Dtype::F32, 1), (Dtype::BF16, 3), (Dtype::F16, 2)] {
        let out = TempDir::new().unwrap();
        let wanted = init::Init {
            spec: &preset.spec,
            config_text: &preset.config_json(),
            dtype,
            seed: 3,
            is_sparse: false,
            max_file_bytes: 70_000,
            num_threads,
        };
        init::write(
            out.path(),
            &wanted,
            &|_| std::ops::ControlFlow::Continue(()),
        )
        .unwrap();
        let folder = Folder::open(out.path()).unwrap();
        folder.sources(&preset.spec).unwrap();
        let reader = folder.open_files().unwrap();
        for unit in preset.spec.units() {
            for param in &unit.params {
                let tensor = folder.find(&param.name).unwrap();
                assert_eq!(tensor.meta.dtype, dtype);
                let expected = numbers(3, param, 0, param.rows * param.cols);
                let mut bytes = vec![0; usize::try_from(tensor.num_bytes()).unwrap()];
                reader
                    .read_at(tensor, 0..tensor.num_bytes(), &mut bytes)
                    .unwrap();
                assert_eq!(
                    decoded(dtype, &bytes),
                    rounded(dtype, &expected),
                    "{}",
                    param.name
                );
            }
        }
    }
}

#[test]
fn norms_that_are_stored_minus_one_begin_at_zero() {
    let preset = Preset::by_name("tiny-gemma").unwrap();
    let out = TempDir::new().unwrap();
    let wanted = init::Init {
        spec: &preset.spec,
        config_text: &preset.config_json(),
        dtype: Dtype::BF16,
        seed: 3,
        is_sparse: false,
        max_file_bytes: u64::MAX,
        num_threads: 1,
    };
    init::write(
        out.path(),
        &wanted,
        &|_| std::ops::ControlFlow::Continue(()),
    )
    .unwrap();
    let folder = Folder::open(out.path()).unwrap();
    let reader = folder.open_files().unwrap();
    let units = preset.spec.units();
    let params = units.iter().flat_map(|unit| &unit.params);
    for param in params {
        let tensor = folder.find(&param.name).unwrap();
        let mut bytes = vec![1; usize::try_from(tensor.num_bytes()).unwrap()];
        reader
            .read_at(tensor, 0..tensor.num_bytes(), &mut bytes)
            .unwrap();
        let is_zero = bytes.iter().all(|&byte| byte == 0);
        assert_eq!(is_zero, param.role.is_norm(), "{}", param.name);
    }
}

fn decoded(dtype: Dtype, bytes: &[u8]) -> Vec<f32> {
    let halves = || bytes.chunks(2).map(|pair| [pair[0], pair[1]]);
    match dtype {
        Dtype::BF16 => halves()
            .map(|pair| half::bf16::from_le_bytes(pair).to_f32())
            .collect(),
        Dtype::F16 => halves()
            .map(|pair| half::f16::from_le_bytes(pair).to_f32())
            .collect(),
        _ => cast::<f32>(bytes).expect("aligned").to_vec(),
    }
}

fn rounded(dtype: Dtype, numbers: &[f32]) -> Vec<f32> {
    let round = |&number: &f32| match dtype {
        Dtype::BF16 => half::bf16::from_f32(number).to_f32(),
        Dtype::F16 => half::f16::from_f32(number).to_f32(),
        _ => number,
    };
    numbers.iter().map(round).collect()
}

#[test]
fn a_dtype_without_random_numbers_is_refused() {
    let preset = Preset::by_name("tiny").unwrap();
    let wanted = init::Init {
        spec: &preset.spec,
        config_text: "{}",
        dtype: Dtype::I8,
        seed: 0,
        is_sparse: false,
        max_file_bytes: 1,
        num_threads: 1,
    };
    let refused = init::write(std::path::Path::new("/nowhere"), &wanted, &|_| {
        std::ops::ControlFlow::Continue(())
    })
    .unwrap_err();
    assert!(matches!(
        refused,
        CheckpointError::InitDtype { found: Dtype::I8 }
    ));
}
