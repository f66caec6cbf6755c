//! Loss, logits and every gradient against numbers from `PyTorch`.

use std::fmt::Debug;

use kernels::{Arena, Cpu, Device, Scalar};
use model::{Cache, Clip, StepReport, StepSettings, evaluate, forward_cached, logits, train_step};

use crate::case::{CASES, Case, NUM_TARGETS, ROWS, SEQ, batch, micro_batches, weight};
use crate::world::World;

/// The golden numbers are rounded to f32, and a step of the reference in f64 is read
/// in f32. Measured: no element differs.
const F64_TOLERANCE: f64 = 1.0e-7;

/// Sums of some hundred products in f32, through two blocks and back. Measured:
/// 2e-6 of the tensor's largest element at most.
const F32_TOLERANCE: f64 = 1.0e-5;

/// Every way to cut the batch, and to hold logits of the three buckets.
const MICRO_BATCHES: [&[usize]; 3] = [&[4], &[2, 2], &[1, 3]];
const HELD_LOGITS: [usize; 4] = [0, 1, 2, 100];
const KEPT_BLOCKS: [usize; 4] = [100, 0, 1, 2];

/// Scratch for any of the cases.
const ARENA_BYTES: usize = 4 << 20;

/// One step without an update; gives the world that recorded it.
#[track_caller]
pub(crate) fn step<'a, D>(
    device: &D,
    world: &mut World<'a, D>,
    rows: &[usize],
    settings: StepSettings,
) -> StepReport
where
    D: for<'b> Device<Bytes<'b> = &'b [u8]>,
{
    let model = world.model;
    let batches = micro_batches(model.spec.vocab, rows);
    train_step(device, model, world, &batches, settings).unwrap()
}

pub(crate) fn settings(clip: Clip, held_logits: usize) -> StepSettings {
    StepSettings {
        num_targets: NUM_TARGETS,
        clip,
        held_logits,
        kept_blocks: 0,
        allows_nan: false,
    }
}

#[track_caller]
fn close(found: &[f32], expected: &[f32], tolerance: f64, what: &dyn Debug) {
    assert_eq!(found.len(), expected.len(), "{what:?}");
    let largest = expected.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
    for (at, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        let off = f64::from((found - expected).abs());
        assert!(
            off <= tolerance * f64::from(largest),
            "{what:?} [{at}]: {found} is not {expected}, largest {largest}"
        );
    }
}

#[track_caller]
fn agrees<D>(device: &D, case: Case, tolerance: f64)
where
    D: for<'b> Device<Bytes<'b> = &'b [u8]>,
{
    let model = case.model();
    for rows in MICRO_BATCHES {
        for (held_logits, kept_blocks) in HELD_LOGITS.into_iter().zip(KEPT_BLOCKS) {
            let mut world = World::new(device, &model, weight);
            let settings = StepSettings {
                kept_blocks,
                ..settings(Clip::Off, held_logits)
            };
            let report = step(device, &mut world, rows, settings);
            let what = (case.name, rows, held_logits, kept_blocks);
            let off = (report.loss - case.loss()).abs() / case.loss();
            assert!(
                off <= tolerance,
                "{what:?}: loss {} off by {off}",
                report.loss
            );
            gradients_agree(&world, case, tolerance, &what);
        }
    }
    logits_agree(device, case, tolerance);
}

/// Every parameter's gradient, and the norm of all.
#[track_caller]
fn gradients_agree<D>(world: &World<'_, D>, case: Case, tolerance: f64, what: &dyn Debug)
where
    D: for<'b> Device<Bytes<'b> = &'b [u8]>,
{
    let mut num_gradients = 0;
    for (unit, params) in world.model.units.iter().enumerate() {
        for (index, param) in params.params.iter().enumerate() {
            let found = world.gradient(unit, index);
            let expected = case.gradient(&param.name);
            close(&found, &expected, tolerance, &(what, &param.name));
            num_gradients += 1;
        }
    }
    assert_eq!(num_gradients, case.num_gradients(), "{what:?}");
}

/// The logits of the rows' last tokens, and the loss of an evaluation.
#[track_caller]
fn logits_agree<D>(device: &D, case: Case, tolerance: f64)
where
    D: for<'b> Device<Bytes<'b> = &'b [u8]>,
{
    let model = case.model();
    let world = World::new(device, &model, weight);
    let vocab = model.spec.vocab;
    let batch = batch(vocab);
    let mut last = vec![0.0; ROWS * vocab];
    logits(device, &model, &world, &batch, |first_row, logits_tv| {
        let width = device.len(logits_tv) / batch.num_tokens();
        for row in 0..ROWS {
            let token = (row + 1) * SEQ - 1;
            let part = &mut last[row * vocab + first_row..][..width];
            device.read(logits_tv, token * width..(token + 1) * width, part);
        }
    })
    .unwrap();
    close(&last, &case.last_logits(), tolerance, &case.name);

    let sum = evaluate(device, &model, &world, &[batch]).unwrap();
    let off = (sum / NUM_TARGETS as f64 - case.loss()).abs() / case.loss();
    assert!(off <= tolerance, "{}: evaluated off by {off}", case.name);
}

#[test]
fn the_reference_in_f64_agrees_to_the_last_digit_that_is_stored() {
    for case in CASES {
        agrees(&Scalar::<f64>::new(), case, F64_TOLERANCE);
    }
}

#[test]
fn the_reference_in_f32_agrees() {
    for case in CASES {
        agrees(&Scalar::<f32>::new(), case, F32_TOLERANCE);
    }
}

#[test]
fn the_fast_device_agrees_on_any_number_of_threads() {
    for num_threads in [1, 2, 3] {
        for case in CASES {
            let device = Cpu::new(Arena::new(ARENA_BYTES).unwrap(), num_threads);
            agrees(&device, case, F32_TOLERANCE);
            assert_eq!(device.arena().live_bytes(), 0, "all scratch is given back");
        }
    }
}

/// Five tokens at once, then one after the other: the whole row's logits come out.
#[track_caller]
fn cached_tokens_agree<D>(device: &D, case: Case, tolerance: f64)
where
    D: for<'b> Device<Bytes<'b> = &'b [u8]>,
{
    const AT_ONCE: usize = 5;
    let model = case.model();
    let world = World::new(device, &model, weight);
    let vocab = model.spec.vocab;
    let ids = batch(vocab).ids;
    let mut last = vec![0.0; ROWS * vocab];
    for (row, ids) in ids.chunks_exact(SEQ).enumerate() {
        let mut caches = Cache::for_blocks(device, &model, SEQ).unwrap();
        let place = &mut last[row * vocab..][..vocab];
        let pieces = std::iter::once(&ids[..AT_ONCE]).chain(ids[AT_ONCE..].chunks(1));
        for ids in pieces {
            forward_cached(device, &model, &world, &mut caches, ids, place).unwrap();
        }
    }
    close(&last, &case.last_logits(), tolerance, &case.name);
}

#[test]
fn tokens_after_cached_ones_have_the_logits_of_the_whole_sequence() {
    for case in CASES {
        cached_tokens_agree(&Scalar::<f64>::new(), case, F64_TOLERANCE);
        let device = Cpu::new(Arena::new(ARENA_BYTES).unwrap(), 2);
        cached_tokens_agree(&device, case, F32_TOLERANCE);
    }
}

#[test]
fn a_unit_is_unsharded_twice_and_reduced_once_however_many_micro_batches() {
    let device = Scalar::<f32>::new();
    for case in CASES {
        let model = case.model();
        let counts = |rows| {
            let mut world = World::new(&device, &model, weight);
            step(&device, &mut world, rows, settings(Clip::Off, 0));
            (world.num_unsharded.get(), world.num_reduced.get())
        };
        let blocks = model.spec.num_layers;
        // Three buckets of a table: two passes of the head, one of the embedding;
        // a gradient from either. Then the final norm.
        let expected = (3 * 3 + 2 * blocks + 2, 3 * 2 + blocks + 1);
        for rows in MICRO_BATCHES {
            assert_eq!(counts(rows), expected, "{} {rows:?}", case.name);
        }
    }
}

#[test]
fn a_tied_table_is_updated_once_with_both_gradients() {
    let device = Scalar::<f32>::new();
    let model = crate::case::TIED.model();
    let mut world = World::new(&device, &model, weight);
    step(&device, &mut world, &[4], settings(Clip::Off, 0));
    let mut buckets: Vec<_> = world.updates.iter().map(|update| update.bucket).collect();
    let num_updates = buckets.len();
    buckets.sort_unstable();
    buckets.dedup();
    assert_eq!(buckets.len(), num_updates);
    assert_eq!(num_updates, 3 + model.spec.num_layers + 1);
}
