//! Every kind of parameter's gradient against the loss itself, in f64.

use kernels::Scalar;
use model::{Clip, evaluate};

use crate::case::{CASES, Case, NUM_TARGETS, TIED, batch, weight};
use crate::golden::{settings, step};
use crate::world::World;

/// A step of the central difference. Weights are multiples of 2^-12, so they are
/// moved exactly.
const STEP: f32 = 1.0 / 2048.0;

/// What the fourth-order difference leaves, and the f32 that gradients are
/// recorded in. Measured: 6e-8 of the tensor's largest gradient.
const TOLERANCE: f64 = 4.0e-7;

/// Elements that are tried of each parameter, beside its largest gradient.
const NUM_ELEMENTS: usize = 3;

type F64 = Scalar<f64>;

/// The mean loss with one element moved by `step`.
fn loss_at(world: &mut World<'_, F64>, place: (usize, usize, usize), at: f32) -> f64 {
    let (unit, param, element) = place;
    world.set(unit, param, element, at);
    let batch = [batch(world.model.spec.vocab)];
    let sum = evaluate(&F64::new(), world.model, world, &batch).unwrap();
    sum / NUM_TARGETS as f64
}

/// Central differences over one and two steps, extrapolated to none.
fn difference(world: &mut World<'_, F64>, place: (usize, usize, usize), value: f32) -> f64 {
    let mut central = |step: f32| {
        let above = loss_at(world, place, value + step);
        let below = loss_at(world, place, value - step);
        (above - below) / (2.0 * f64::from(step))
    };
    let derivative = (4.0 * central(STEP) - central(2.0 * STEP)) / 3.0;
    let (unit, param, element) = place;
    world.set(unit, param, element, value);
    derivative
}

#[track_caller]
fn holds(case: Case) {
    let device = F64::new();
    let model = case.model();
    let mut world = World::new(&device, &model, weight);
    step(&device, &mut world, &[4], settings(Clip::Off, 0));
    for (unit, params) in model.units.iter().enumerate() {
        for (index, param) in params.params.iter().enumerate() {
            let gradient = world.gradient(unit, index);
            let size = |element: &usize| gradient[*element].abs();
            let largest = (0..gradient.len())
                .max_by(|a, b| size(a).total_cmp(&size(b)))
                .unwrap();
            let bound = TOLERANCE * f64::from(size(&largest));
            let weights = weight(param);
            let spread = (0..NUM_ELEMENTS).map(|number| number * 7919 % gradient.len());
            for element in spread.chain([largest]) {
                let expected = difference(&mut world, (unit, index, element), weights[element]);
                let off = (f64::from(gradient[element]) - expected).abs();
                assert!(
                    off <= bound,
                    "{} `{}` [{element}]: {} is not {expected}, off by {off}",
                    case.name,
                    param.name,
                    gradient[element]
                );
            }
        }
    }
}

#[test]
fn every_parameters_gradient_is_the_slope_of_the_loss() {
    for case in CASES {
        holds(case);
    }
}

/// A row that is embedded and one that only the head reads: both move the loss.
#[test]
fn a_tied_rows_gradient_is_the_slope_of_embedding_and_head_together() {
    let device = F64::new();
    let model = TIED.model();
    let mut world = World::new(&device, &model, weight);
    step(&device, &mut world, &[4], settings(Clip::Off, 0));
    let gradient = world.gradient(0, 0);
    let weights = weight(&model.units[0].params[0]);
    let ids = batch(model.spec.vocab).ids;
    let embedded = ids[0] as usize;
    let only_read = (0..model.spec.vocab)
        .find(|&row| !ids.iter().any(|&id| id as usize == row))
        .unwrap();
    for row in [embedded, only_read] {
        let element = row * model.spec.hidden + 5;
        let expected = difference(&mut world, (0, 0, element), weights[element]);
        assert!(expected.abs() > 1e-5, "row {row} moves the loss");
        let off = (f64::from(gradient[element]) - expected).abs();
        assert!(off <= 1e-8, "row {row}: off by {off}");
    }
}
