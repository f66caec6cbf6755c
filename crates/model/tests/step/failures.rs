//! Steps that must not be taken, and ranks that have nothing to do.

use kernels::Scalar;
use model::{Clip, Exchange, GradientError, MicroBatch, StepError, StepSettings, train_step};
use spec::Role;

use crate::case::{CASES, Case, TIED, UNTIED, micro_batches, weight};
use crate::golden::settings;
use crate::world::World;

type F32 = Scalar<f32>;

/// The step of a model in which one element of the first parameter with `role`
/// is `value`.
fn step_with(
    case: Case,
    role: Role,
    value: f32,
) -> (StepError<kernels::ArenaFull>, Vec<crate::world::Update>) {
    let device = F32::new();
    let model = case.model();
    let mut world = World::new(&device, &model, weight);
    let place = model.units.iter().enumerate().find_map(|(unit, params)| {
        let mut params = params.params.iter();
        Some((unit, params.position(|param| param.role == role)?))
    });
    let (unit, param) = place.unwrap();
    world.set(unit, param, 0, value);
    let batches = micro_batches(model.spec.vocab, &[4]);
    let failed = train_step(
        &device,
        &model,
        &mut world,
        &batches,
        settings(Clip::Off, 0),
    );
    (failed.unwrap_err(), world.updates)
}

#[test]
fn a_loss_that_is_not_finite_stops_the_step_before_any_update() {
    for case in CASES {
        for (role, value) in [
            (Role::Output, f32::NAN),
            (Role::FinalNorm, f32::INFINITY),
            (Role::Down, f32::NAN),
        ] {
            let (error, updates) = step_with(case, role, value);
            let StepError::LossNotFinite { loss } = error else {
                panic!("{error}");
            };
            assert!(!loss.is_finite());
            assert!(updates.is_empty(), "{} {role:?}", case.name);
        }
    }
}

#[test]
fn a_gradient_that_is_not_finite_names_its_unit_and_ends_the_step() {
    let device = F32::new();
    let model = UNTIED.model();
    for unit in model.blocks() {
        let mut world = World::new(&device, &model, weight);
        let bucket = world.sharding().unit_buckets(unit).start;
        world.peers_overflow_in = Some(bucket);
        let batches = micro_batches(model.spec.vocab, &[4]);
        let settings = settings(Clip::Off, 0);
        let failed = train_step(&device, &model, &mut world, &batches, settings);
        let Err(StepError::Gradient(GradientError::NotFinite { unit: name, .. })) = failed else {
            panic!("{failed:?}");
        };
        assert_eq!(name, model.units[unit].name);
        assert!(world.updates.iter().all(|update| update.bucket > bucket));
    }
}

#[test]
fn where_nan_is_allowed_it_costs_its_own_update_only() {
    let device = F32::new();
    let model = UNTIED.model();
    let batches = micro_batches(model.spec.vocab, &[4]);
    for clip in [Clip::Off, Clip::Exact { max_norm: 1e-3 }] {
        let settings = StepSettings {
            allows_nan: true,
            ..settings(clip, 0)
        };
        let mut world = World::new(&device, &model, weight);
        let num_buckets = world.sharding().buckets.len();
        let unit = model.blocks().start;
        let bucket = world.sharding().unit_buckets(unit).start;
        world.peers_overflow_in = Some(bucket);
        let report = train_step(&device, &model, &mut world, &batches, settings).unwrap();
        assert_eq!(report.not_finite, [model.units[unit].name.clone()]);
        assert!(report.loss.is_finite() && report.grad_norm.is_finite());
        assert_eq!(world.updates.len(), num_buckets - 1);
        assert!(world.updates.iter().all(|update| update.bucket != bucket));

        let mut world = World::new(&device, &model, weight);
        let unit = model.units.len() - 1;
        let params = &model.units[unit].params;
        let norm = params
            .iter()
            .position(|param| param.role == Role::FinalNorm);
        world.set(unit, norm.unwrap(), 0, f32::NAN);
        let report = train_step(&device, &model, &mut world, &batches, settings).unwrap();
        assert!(report.loss.is_nan());
        assert!(world.updates.is_empty());
    }
}

#[test]
fn a_rank_without_rows_joins_with_zeros() {
    let device = F32::new();
    for case in CASES {
        let model = case.model();
        let mut world = World::new(&device, &model, weight);
        let none: [MicroBatch; 0] = [];
        let settings = settings(Clip::Off, 1);
        let report = train_step(&device, &model, &mut world, &none, settings).unwrap();
        assert_eq!((report.loss, report.grad_norm), (0.0, 0.0));
        let is_zero = |x: &f32| x.to_bits() == 0;
        for update in &world.updates {
            assert!(update.grad.iter().all(is_zero), "bucket {}", update.bucket);
        }
    }
}

#[test]
fn a_micro_batch_without_targets_adds_nothing() {
    let device = F32::new();
    let model = TIED.model();
    let gradients = |batches: &[MicroBatch]| {
        let mut world = World::new(&device, &model, weight);
        let settings = settings(Clip::Off, 1);
        let report = train_step(&device, &model, &mut world, batches, settings).unwrap();
        (report, world.updates)
    };
    let mut batches = micro_batches(model.spec.vocab, &[4]);
    let alone = gradients(&batches);
    let mut silent = batches[0].clone();
    silent.targets.fill(kernels::IGNORED);
    batches.push(silent);
    assert_eq!(gradients(&batches), alone);
}
