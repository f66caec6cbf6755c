//! Which weights decay, and by how much.

use tensor::Dtype;
use train::{DecayOn, Settings};

use crate::fixture::{Fixture, Opened, settings, small};

const LR: f64 = 0.01;
const WEIGHT_DECAY: f64 = 0.5;

/// An ulp of a weight of 1, which decay and update round to.
const TOLERANCE: f64 = 2.5e-7;

/// Each weight's difference after one step with and without decay, against the
/// weight's own share; by `is_decayed` of the tensor's name.
#[track_caller]
fn decays(on: DecayOn, is_decayed: impl Fn(&str) -> bool) {
    let fixture = Fixture::new(&small(false), Dtype::F32);
    let rows = fixture.seven_rows();
    let trained = |weight_decay| {
        let settings = Settings {
            steps: Some(1),
            lr: LR,
            weight_decay,
            weight_decay_on: on,
            ranks: 2,
            ..settings()
        };
        Opened::open(&fixture.train(&settings, &rows).out).tensors()
    };
    let before = Opened::open(&fixture.model_path()).tensors();
    let (with, without) = (trained(WEIGHT_DECAY), trained(0.0));
    for ((before, with), without) in before.iter().zip(&with).zip(&without) {
        let name = &before.0;
        let share = if is_decayed(name) {
            LR * WEIGHT_DECAY
        } else {
            0.0
        };
        let numbers = [before, with, without].map(|(_, bytes)| numbers(bytes));
        let [before, with, without] = numbers.each_ref();
        for ((before, with), without) in before.iter().zip(with).zip(without) {
            let off = (with - without + share * before).abs();
            assert!(
                off <= TOLERANCE,
                "{name}: {before} became {with}, {without} without"
            );
        }
    }
}

fn numbers(bytes: &[u8]) -> Vec<f64> {
    let numbers = bytes.chunks_exact(4);
    numbers
        .map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()).into())
        .collect()
}

#[test]
fn matrices_decay_and_norms_and_biases_do_not() {
    decays(DecayOn::Matrices, |name| {
        !name.contains("norm") && !name.ends_with("bias")
    });
}

#[test]
fn all_decay_where_asked() {
    decays(DecayOn::All, |_| true);
}
