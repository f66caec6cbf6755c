//! N ranks train as one does, each with its own rows and its own bytes.

use std::fs;
use std::num::NonZeroUsize;

use plan::{Formats, Precision, Recipe};

use tensor::Dtype;
use train::{ClipMode, Event, Recompute, Settings};

use crate::fixture::{
    Fixture, NUM_ROWS, Opened, Run, SEQ, largest_difference, settings, small, two_buckets,
};

const WORLD_SIZES: [usize; 6] = [1, 2, 3, 4, 7, 8];

/// Of the loss, over ten steps (`numerics.md` 6). Measured: 5e-7.
const LOSS_TOLERANCE: f64 = 1.0e-5;

/// Of the gradient's norm. Measured: 1e-5, in bf16.
const NORM_TOLERANCE: f64 = 1.0e-4;

/// Elements of an export that may differ, by one ulp of bf16. Measured: 1e-4.
const DIFFERING: f64 = 0.005;

/// A hundredth of the learning rate.
const LEAST: f32 = 3.0e-6;

/// Where a sum in another order falls on the other side of a rounding to 8 bits, all
/// that follows of its token is rounded anew. A model this small that learns this
/// fast shows every one. With a micro-batch a rank there is no other order, see
/// [`with_a_micro_batch_a_rank_every_world_gives_the_same_bits`].
const LEAN_TOLERANCES: [f64; 2] = [5e-3, 5e-2];

const CLIPS: [ClipMode; 3] = [ClipMode::Off, ClipMode::Exact, ClipMode::Previous];

/// How far apart few weights may be whose gradient is little more than the rounding of
/// its sum: half a learning rate.
const FAR: f32 = 1.5e-4;

/// One weight of so many may be that far apart. Seen: 4 of 251,072.
const ELEMENTS_PER_FAR: u32 = 50_000;

#[track_caller]
fn curves_agree(found: &Run, expected: &Run, [of_losses, of_norms]: [f64; 2], what: &str) {
    let (found, expected) = (&found.outcome, &expected.outcome);
    let off = largest_difference(&found.losses, &expected.losses);
    assert!(off <= of_losses, "{what}: losses off by {off:e}");
    let off = largest_difference(&found.grad_norms, &expected.grad_norms);
    assert!(off <= of_norms, "{what}: norms off by {off:e}");
}

/// Rank `rank` takes its seventh of the rows, and one more if there is a rest.
#[track_caller]
fn ranks_took_their_own_rows(run: &Run, world_size: usize) {
    let world_size = world_size as u64;
    for (rank, outcome) in (0..).zip(&run.outcome.ranks) {
        let rows = NUM_ROWS / world_size + u64::from(rank < NUM_ROWS % world_size);
        let steps = run.outcome.steps;
        assert_eq!(outcome.num_tokens, steps * rows * SEQ as u64, "rank {rank}");
    }
}

#[track_caller]
pub(crate) fn every_world_agrees(config: &str, recipe: &str, clip: ClipMode) {
    let fixture = Fixture::new(config, Dtype::BF16);
    let rows = fixture.seven_rows();
    let run = |ranks| {
        let settings = Settings {
            recipe: recipe.to_owned(),
            clip,
            clip_norm: 0.2,
            ranks,
            ..settings()
        };
        fixture.train(&settings, &rows)
    };
    let alone = run(1);
    let is_lean = !matches!(recipe, "f32" | "bf16");
    let tolerances = if is_lean {
        LEAN_TOLERANCES
    } else {
        [LOSS_TOLERANCE, NORM_TOLERANCE]
    };
    let losses = &alone.outcome.losses;
    assert_eq!(losses.len(), 10);
    assert!(losses[9] < losses[0] / 1.2, "it learns: {losses:?}");
    for world_size in WORLD_SIZES {
        let what = format!("{recipe}, clip {clip:?}, {world_size} ranks");
        let together = run(world_size);
        curves_agree(&together, &alone, tolerances, &what);
        ranks_took_their_own_rows(&together, world_size);
        if world_size == 3 && !is_lean {
            exports_agree(&together, &alone, &what);
        }
    }
}

/// At most one ulp of bf16 apart, in few elements; a handful may be further. A weight on its way through
/// zero is measured by the ulp of [`LEAST`]: its own would be finer than `AdamW`'s
/// updates agree.
#[track_caller]
fn exports_agree(found: &Run, expected: &Run, what: &str) {
    let (found, expected) = (Opened::open(&found.out), Opened::open(&expected.out));
    let (mut num_elements, mut num_differing, mut num_far) = (0_u32, 0_u32, 0_u32);
    for ((name, found), (other, expected)) in found.tensors().iter().zip(expected.tensors()) {
        assert_eq!(name, &other);
        for (found, expected) in found.chunks_exact(2).zip(expected.chunks_exact(2)) {
            let [found, expected] = [found, expected].map(bf16);
            let off = (found - expected).abs();
            let ulp = bf16_ulp(found.abs().max(expected.abs()).max(LEAST));
            let is_near = off <= ulp.max(FAR);
            assert!(is_near, "{what}: {name}: {found} is not {expected}");
            num_far += u32::from(off > ulp);
            num_elements += 1;
            num_differing += u32::from(off > 0.0);
        }
    }
    let share = f64::from(num_differing) / f64::from(num_elements);
    assert!(share <= DIFFERING, "{what}: {share} of the elements differ");
    let most = num_elements.div_ceil(ELEMENTS_PER_FAR);
    assert!(
        num_far <= most,
        "{what}: {num_far} of {num_elements} are far off"
    );
}

fn bf16(bytes: &[u8]) -> f32 {
    let bits = u16::from_le_bytes(bytes.try_into().unwrap());
    f32::from_bits(u32::from(bits) << 16)
}

/// The distance to the next bf16 of a positive number: 2^-7 of its power of two.
fn bf16_ulp(x: f32) -> f32 {
    f32::from_bits(x.to_bits() & 0x7f80_0000) / 128.0
}

#[test]
fn any_number_of_ranks_gives_the_losses_of_one_in_f32() {
    for (clip, tied) in CLIPS.into_iter().zip([true, false, true]) {
        every_world_agrees(&small(tied), "f32", clip);
    }
}

#[test]
fn any_number_of_ranks_gives_the_losses_of_one_in_bf16() {
    for (clip, tied) in CLIPS.into_iter().zip([false, true, false]) {
        every_world_agrees(&small(tied), "bf16", clip);
    }
}

#[test]
fn any_number_of_ranks_trains_in_eight_bits_as_one_does() {
    for recipe in ["bf16-lean", "fp8", "fp8-lean"] {
        every_world_agrees(&small(true), recipe, ClipMode::Previous);
    }
}

#[test]
fn eight_ranks_hold_nothing_of_some_units() {
    for tied in [true, false] {
        let fixture = Fixture::new(&small(tied), Dtype::BF16);
        let model = Opened::open(&fixture.model_path()).model;
        let eight = NonZeroUsize::new(8).unwrap();
        let formats = Formats::of(&model, &Precision::of(Recipe::F32));
        let sharding = plan::shard_model(&model, eight, &formats);
        let holds = |unit: usize, rank: usize| {
            let mut buckets = sharding.unit_buckets(unit);
            buckets.any(|bucket| sharding.buckets[bucket].runs[rank].num_elements() > 0)
        };
        for unit in [model.embedding(), model.head()] {
            let without = (0..8).filter(|&rank| !holds(unit, rank));
            assert!(without.count() > 0, "all ranks hold some of unit {unit}");
        }
    }
}

#[test]
fn other_rows_give_other_losses() {
    let fixture = Fixture::new(&small(true), Dtype::BF16);
    let first_loss = |rows: &[u64]| {
        let settings = Settings {
            steps: Some(1),
            ..settings()
        };
        let rows = fixture.rows(rows.iter().copied());
        fixture.train(&settings, &rows).outcome.losses[0]
    };
    let losses: Vec<_> = (0..NUM_ROWS).map(|row| first_loss(&[row])).collect();
    for (at, one) in losses.iter().enumerate() {
        for other in &losses[..at] {
            assert!(((one - other) / one).abs() > 1e-4, "{losses:?}");
        }
    }
}

#[test]
fn the_same_command_twice_is_the_same_run_bit_for_bit() {
    let fixture = Fixture::new(&small(true), Dtype::BF16);
    let rows = fixture.seven_rows();
    for (recipe, ranks, threads) in [
        ("f32", 1, 2),
        ("bf16", 3, 1),
        ("f32", 7, 2),
        ("bf16-lean", 2, 2),
        ("fp8", 3, 2),
        ("fp8-lean", 2, 1),
    ] {
        let settings = Settings {
            recipe: recipe.to_owned(),
            clip: ClipMode::Exact,
            ranks,
            threads,
            ..settings()
        };
        let [one, two] = [(); 2].map(|()| fixture.train(&settings, &rows));
        let bits = |curve: &[f64]| curve.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&one.outcome.losses), bits(&two.outcome.losses));
        assert_eq!(bits(&one.outcome.grad_norms), bits(&two.outcome.grad_norms));
        let file = |run: &Run| fs::read(run.out.join("model.safetensors")).unwrap();
        assert!(file(&one) == file(&two), "files differ");
    }
}

#[test]
fn each_byte_of_the_model_is_read_by_one_rank() {
    for (dtype, size) in [(Dtype::BF16, 2), (Dtype::F32, 4), (Dtype::F16, 2)] {
        let fixture = Fixture::new(&small(false), dtype);
        let rows = fixture.seven_rows();
        let model = Opened::open(&fixture.model_path()).model;
        for world_size in WORLD_SIZES {
            let settings = Settings {
                steps: Some(0),
                ranks: world_size,
                ..settings()
            };
            let ranks = fixture.train(&settings, &rows).outcome.ranks;
            let world = NonZeroUsize::new(world_size).unwrap();
            let formats = Formats::of(&model, &Precision::of(Recipe::F32));
            let sharding = plan::shard_model(&model, world, &formats);
            for (rank, outcome) in ranks.iter().enumerate() {
                let own_bytes = (sharding.rank_elements(rank) * size) as u64;
                assert_eq!(outcome.read_bytes, own_bytes, "rank {rank} of {world_size}");
                assert_eq!(outcome.written_bytes, own_bytes);
            }
            let read_bytes: u64 = ranks.iter().map(|rank| rank.read_bytes).sum();
            assert_eq!(read_bytes, model.spec.num_parameters() * size as u64);
        }
    }
}

/// A table of several buckets; logits of the last may be held or made again.
#[test]
fn a_table_in_two_buckets_trains_the_same_on_any_ranks_and_with_held_logits() {
    for tied in [true, false] {
        let fixture = Fixture::new(&two_buckets(tied), Dtype::BF16);
        let rows = fixture.seven_rows();
        let run = |ranks, logits_room| {
            let settings = Settings {
                steps: Some(2),
                ranks,
                logits_room,
                ..settings()
            };
            fixture.train(&settings, &rows)
        };
        let alone = run(1, 0);
        let held = run(1, 64);
        assert_eq!(held.outcome.losses, alone.outcome.losses);
        let arena_bytes = |run: &Run| run.outcome.ranks[0].arena_bytes;
        assert!(arena_bytes(&held) > arena_bytes(&alone), "logits are held");
        let tolerances = [LOSS_TOLERANCE, NORM_TOLERANCE];
        curves_agree(&run(3, 64), &alone, tolerances, "3 ranks");
        exports_agree(&run(3, 0), &alone, "3 ranks");
    }
}

#[test]
fn what_is_kept_gives_the_bits_of_what_is_made_again() {
    let fixture = Fixture::new(&small(true), Dtype::BF16);
    let rows = fixture.seven_rows();
    for recipe in ["f32", "bf16", "fp8", "fp8-lean"] {
        let run = |recompute| {
            let settings = Settings {
                recipe: recipe.to_owned(),
                keep_bf16: vec!["none".to_owned()],
                operands_every: 1,
                recompute,
                ranks: 2,
                ..settings()
            };
            let run = fixture.train(&settings, &rows);
            let weights = fs::read(run.out.join("model.safetensors")).unwrap();
            let bytes = run.outcome.ranks[0].arena_bytes;
            let counts = run
                .events
                .iter()
                .filter(|event| matches!(event, Event::Operands { .. }));
            let counts: Vec<_> = counts.cloned().collect();
            ((run.outcome.losses, weights, counts), bytes)
        };
        let (made_again, least) = run(Recompute::Full);
        let (kept, most) = run(Recompute::None);
        assert!(kept == made_again, "{recipe}");
        assert!(most > least, "{recipe}: {most} and {least}");
    }
}

/// Decision 24: each micro-batch adds one number to a gradient, and ranks are added in
/// their order, so that two micro-batches are one sum on one rank and on several.
#[test]
fn with_a_micro_batch_a_rank_every_world_gives_the_same_bits() {
    for (config, recipe) in [
        (small(false), "f32"),
        (two_buckets(true), "f32"),
        (small(true), "bf16"),
        (small(false), "bf16-lean"),
        (small(true), "fp8"),
        (two_buckets(true), "fp8-lean"),
    ] {
        let fixture = Fixture::new(&config, Dtype::BF16);
        let rows = fixture.seven_rows();
        let run = |ranks| {
            let settings = Settings {
                recipe: recipe.to_owned(),
                global_batch: 2,
                micro_batch: 1,
                ranks,
                ..settings()
            };
            let run = fixture.train(&settings, &rows);
            let weights = fs::read(run.out.join("model.safetensors")).unwrap();
            (run.outcome.losses, weights)
        };
        let (losses, weights) = run(1);
        for world_size in [2, 3, 5] {
            let together = run(world_size);
            assert_eq!(together.0, losses, "{recipe}, {world_size} ranks");
            assert!(together.1 == weights, "{recipe}, {world_size} ranks");
        }
    }
}
