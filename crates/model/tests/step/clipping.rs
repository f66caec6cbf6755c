//! The factors that clipping gives to updates, and when they are known.

use kernels::Scalar;
use model::{Clip, StepReport};

use crate::case::{CASES, Case, weight};
use crate::golden::{settings, step};
use crate::world::{Update, World};

/// Factors have 16 bits.
const TOLERANCE: f64 = 2.0e-5;

fn run(case: Case, clip: Clip) -> (StepReport, Vec<Update>) {
    let device = Scalar::<f32>::new();
    let model = case.model();
    let mut world = World::new(&device, &model, weight);
    let report = step(&device, &mut world, &[1, 3], settings(clip, 0));
    (report, world.updates)
}

fn sum_of_squares(update: &Update) -> f64 {
    update.grad.iter().map(|&x| f64::from(x).powi(2)).sum()
}

#[track_caller]
fn is_close(found: f64, expected: f64) {
    let off = (found - expected).abs() / expected;
    assert!(off < TOLERANCE, "{found} is not {expected}");
}

#[test]
fn every_mode_reports_the_norm_of_the_whole_gradient() {
    for case in CASES {
        for clip in [
            Clip::Off,
            Clip::Exact { max_norm: 0.5 },
            Clip::Previous {
                max_norm: 0.5,
                previous_norm: 3.0,
            },
        ] {
            let (report, updates) = run(case, clip);
            let sum: f64 = updates.iter().map(sum_of_squares).sum();
            is_close(report.grad_norm, sum.sqrt());
        }
    }
}

#[test]
fn without_clipping_and_below_the_bound_gradients_are_left_as_they_are() {
    for case in CASES {
        for clip in [
            Clip::Off,
            Clip::Exact { max_norm: 1e3 },
            Clip::Previous {
                max_norm: 1e3,
                previous_norm: 999.0,
            },
        ] {
            let (_, updates) = run(case, clip);
            let one = |update: &Update| update.grad_scale.to_bits() == 1_f32.to_bits();
            assert!(updates.iter().all(one), "{} {clip:?}", case.name);
        }
    }
}

#[test]
fn exact_clipping_gives_every_update_the_factor_of_the_whole_norm() {
    for case in CASES {
        let max_norm = 0.25;
        let (report, updates) = run(case, Clip::Exact { max_norm });
        assert!(report.grad_norm > max_norm);
        for update in &updates {
            is_close(update.grad_scale.into(), max_norm / report.grad_norm);
        }
        let clipped = updates
            .iter()
            .map(|update| sum_of_squares(update) * f64::from(update.grad_scale).powi(2));
        is_close(clipped.sum::<f64>().sqrt(), max_norm);
    }
}

/// `min(1, max_norm / max(norm of the previous step, norm of what is done))`.
#[test]
fn previous_clipping_knows_the_previous_step_and_what_is_done_of_this() {
    for case in CASES {
        let (max_norm, norm) = (0.25, run(case, Clip::Off).0.grad_norm);
        for previous_norm in [0.0, norm / 2.0, 2.0 * norm] {
            let (_, updates) = run(
                case,
                Clip::Previous {
                    max_norm,
                    previous_norm,
                },
            );
            let mut done = 0.0;
            let mut factors = Vec::new();
            for update in &updates {
                done += sum_of_squares(update);
                let factor = (max_norm / previous_norm.max(done.sqrt())).min(1.0);
                is_close(update.grad_scale.into(), factor);
                factors.push(factor);
            }
            let is_constant = factors.windows(2).all(|pair| pair[0] <= pair[1]);
            assert_eq!(
                is_constant,
                previous_norm > norm,
                "{} {factors:?}",
                case.name
            );
        }
    }
}
