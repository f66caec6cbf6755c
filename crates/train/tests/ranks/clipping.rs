//! What clipping does to weights, by an optimizer whose update shows the gradient.
//!
//! With both betas 0 and eps 1 an update is `-lr g / (|g| + 1)`, so that a change of
//! weights tells its gradient `g`, and what the change would be if `g` were scaled.

use std::path::Path;

use tensor::Dtype;
use train::{ClipMode, Settings};

use crate::fixture::{Fixture, Opened, Run, settings, small};

/// Half an ulp of a weight of 1, twice, and what division makes of it.
const TOLERANCE: f64 = 4.0e-7;

fn transparent(clip: ClipMode, clip_norm: f64, steps: u64, lr: f64) -> Settings {
    Settings {
        steps: Some(steps),
        lr,
        beta1: 0.0,
        beta2: 0.0,
        eps: 1.0,
        clip,
        clip_norm,
        ..settings()
    }
}

/// Each weight's change from one folder to another.
fn change(from: &Path, to: &Path) -> Vec<f64> {
    let (from, to) = (Opened::open(from).f32s(), Opened::open(to).f32s());
    let pairs = from.into_iter().zip(to);
    pairs
        .map(|(from, to)| f64::from(to) - f64::from(from))
        .collect()
}

/// The gradients that made a change.
fn gradients(change: &[f64], lr: f64) -> Vec<f64> {
    let gradient = |change: &f64| -change / (lr - change.abs());
    change.iter().map(gradient).collect()
}

/// The change that scaled gradients would make, against the one found.
#[track_caller]
fn is_scaled(found: &[f64], gradients: &[f64], factor: f64, lr: f64) {
    assert_eq!(found.len(), gradients.len());
    for (at, (found, gradient)) in found.iter().zip(gradients).enumerate() {
        let scaled = factor * gradient;
        let expected = -lr * scaled / (scaled.abs() + 1.0);
        let off = (found - expected).abs();
        assert!(off <= TOLERANCE, "[{at}]: {found} is not {expected}");
    }
}

#[test]
fn exact_clipping_scales_every_gradient_to_the_norm() {
    for tied in [true, false] {
        let fixture = Fixture::new(&small(tied), Dtype::F32);
        let (rows, model) = (fixture.seven_rows(), fixture.model_path());
        let off = fixture.train(&transparent(ClipMode::Off, 1.0, 1, 1.0), &rows);
        let gradients = gradients(&change(&model, &off.out), 1.0);
        let norm = off.outcome.grad_norms[0];
        let sum: f64 = gradients.iter().map(|gradient| gradient.powi(2)).sum();
        assert!((sum.sqrt() / norm - 1.0).abs() < 1e-4, "the norm is told");

        let clip_norm = norm / 8.0;
        for ranks in [1, 3] {
            let settings = Settings {
                ranks,
                ..transparent(ClipMode::Exact, clip_norm, 1, 1.0)
            };
            let clipped = fixture.train(&settings, &rows);
            is_scaled(&change(&model, &clipped.out), &gradients, 0.125, 1.0);
            let told = clipped.outcome.grad_norms[0];
            assert!((told / norm - 1.0).abs() < 1e-6, "the norm before clipping");
        }
    }
}

#[test]
fn a_large_bound_changes_nothing() {
    let fixture = Fixture::new(&small(true), Dtype::F32);
    let rows = fixture.seven_rows();
    let weights = |clip| {
        let run: Run = fixture.train(&transparent(clip, 1e6, 2, 0.1), &rows);
        Opened::open(&run.out).tensors()
    };
    let off = weights(ClipMode::Off);
    assert!(weights(ClipMode::Exact) == off);
    assert!(weights(ClipMode::Previous) == off);
}

/// The second step is clipped by the first one's norm, where that is the larger.
#[test]
fn previous_clipping_scales_by_the_norm_of_the_step_before() {
    let lr = 0.02;
    let fixture = Fixture::new(&small(true), Dtype::F32);
    let rows = fixture.seven_rows();
    let norm = fixture
        .train(&transparent(ClipMode::Off, 1.0, 1, lr), &rows)
        .outcome
        .grad_norms[0];
    let settings = Settings {
        save_every: 1,
        ..transparent(ClipMode::Previous, 0.9 * norm, 2, lr)
    };
    let clipped = fixture.train(&settings, &rows);
    let [first, second] = clipped.outcome.grad_norms[..] else {
        panic!("two steps");
    };
    assert!(first > 1.01 * second, "the norm falls: {first} {second}");

    let between = clipped.out.join("checkpoints/step-1");
    let off = fixture
        .try_train(
            &between,
            &transparent(ClipMode::Off, 1.0, 1, lr),
            &rows,
            None,
        )
        .unwrap();
    let gradients = gradients(&change(&between, &off.out), lr);
    let factor = 0.9 * norm / first;
    is_scaled(&change(&between, &clipped.out), &gradients, factor, lr);
}
