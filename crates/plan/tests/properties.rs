//! What holds for the plan of every model, world and recipe.
#![expect(clippy::unwrap_used, reason = "in a test a failure may panic")]

use std::num::NonZeroUsize;
use std::sync::LazyLock;

use kernels::Purpose;
use model::{Clip, Transformer};
use plan::{
    Formats, Job, Kept, Patterns, Plan, Precision, RankPlan, Recipe, SlotLayout, held_logits,
    shard_model,
};
use spec::Preset;

const WORLD_SIZES: [usize; 7] = [1, 2, 3, 4, 7, 8, 64];

/// Bytes of a parameter at rest with its optimizer, where moments are f32.
const BYTES_PER_PARAMETER: u64 = 12;

const MIB: u64 = 1 << 20;

fn transformer(preset: &str) -> Transformer {
    Transformer::new(Preset::by_name(preset).unwrap().spec)
}

/// One micro-batch of a row on every rank, nothing clipped, no logits held.
fn job<'a>(model: &'a Transformer, precision: &'a Precision, world_size: usize) -> Job<'a> {
    Job {
        model,
        precision,
        world_size: NonZeroUsize::new(world_size).unwrap(),
        num_threads: 2,
        seq: 64,
        steps: vec![vec![vec![1]; world_size]],
        evals: Vec::new(),
        clip: Clip::Off,
        logits_room_bytes: 0,
        activations_room_bytes: 0,
    }
}

/// The recipe that most of these tests plan for.
fn f32() -> &'static Precision {
    static F32: LazyLock<Precision> = LazyLock::new(|| Precision::of(Recipe::F32));
    &F32
}

/// The most that a purpose holds in a plan of rank 0.
fn purpose_bytes(rank: &RankPlan, purpose: Purpose) -> u64 {
    let mut peaks = rank.arena.at_peak.iter();
    let peak = peaks.find(|peak| peak.purpose == purpose);
    peak.map_or(0, |peak| peak.bytes as u64)
}

#[test]
fn the_ranks_together_hold_twelve_bytes_a_parameter_at_any_world_size() {
    for preset in ["tiny", "135m", "7b"] {
        let model = transformer(preset);
        let exact = BYTES_PER_PARAMETER * model.spec.num_parameters();
        for recipe in [Recipe::F32, Recipe::Bf16] {
            let precision = Precision::of(recipe);
            for world_size in WORLD_SIZES {
                let plan = Plan::new(&job(&model, &precision, world_size));
                let num_parts: usize = plan
                    .sharding
                    .buckets
                    .iter()
                    .flat_map(|bucket| &bucket.runs)
                    .map(|run| run.parts.len())
                    .sum();
                let found: u64 = plan.ranks.iter().map(RankPlan::resident_bytes).sum();
                let padding = (num_parts * SlotLayout::ALIGNMENT) as u64;
                assert!(
                    (exact..=exact + padding).contains(&found),
                    "{preset} {recipe}, {world_size} ranks: {found} bytes, {exact} expected"
                );
            }
        }
    }
}

#[test]
fn no_rank_holds_more_than_its_fair_share_and_a_tile() {
    for preset in ["tiny", "135m", "7b"] {
        let model = transformer(preset);
        let total = BYTES_PER_PARAMETER * model.spec.num_parameters();
        let widest = model.spec.hidden.max(model.spec.intermediate);
        let tile = BYTES_PER_PARAMETER * (shard::TILE_ROWS * widest) as u64;
        for world_size in WORLD_SIZES {
            let precision = Precision::of(Recipe::F32);
            let plan = Plan::new(&job(&model, &precision, world_size));
            let padding = (plan.sharding.buckets.len() * 16 * SlotLayout::ALIGNMENT) as u64;
            let most = total / world_size as u64 + tile + padding;
            for (rank, own) in plan.ranks.iter().enumerate() {
                let bytes = own.resident_bytes();
                assert!(
                    bytes <= most,
                    "{preset}: rank {rank} of {world_size}: {bytes}"
                );
            }
        }
    }
}

#[test]
fn logits_of_all_buckets_are_never_held() {
    for preset in ["tiny", "135m", "1b", "70b"] {
        let model = transformer(preset);
        for world_size in [1, 3] {
            let formats = Formats::of(&model, &Precision::default());
            let sharding = shard_model(&model, NonZeroUsize::new(world_size).unwrap(), &formats);
            let table: Vec<_> = sharding
                .unit_buckets(model.head_table())
                .map(|bucket| &sharding.buckets[bucket].slices[0])
                .filter(|slice| !slice.is_vector)
                .collect();
            let bytes_of = |held: usize, num_tokens: usize| -> u64 {
                let last = table.iter().rev().take(held);
                last.map(|slice| (slice.rows.len() * num_tokens * 4) as u64)
                    .sum()
            };
            for num_tokens in [1, 512, 8192] {
                let mut before = 0;
                for room in [0, MIB, 64 * MIB, 1 << 30, u64::MAX] {
                    let held = held_logits(&model, &sharding, num_tokens, room);
                    assert!(held < table.len(), "{preset}: {held} of {}", table.len());
                    assert!(bytes_of(held, num_tokens) <= room);
                    assert!(held >= before, "more room never holds less");
                    before = held;
                }
                assert_eq!(before, table.len() - 1);
            }
        }
    }
}

#[test]
fn neither_all_logits_nor_a_tables_gradient_ever_exist() {
    let model = transformer("135m");
    let (vocab, hidden) = (model.spec.vocab as u64, model.spec.hidden as u64);
    for logits_room_bytes in [0, u64::MAX] {
        let plan = Plan::new(&Job {
            logits_room_bytes,
            seq: 512,
            ..job(&model, f32(), 4)
        });
        let rank = &plan.ranks[0];
        assert!(purpose_bytes(rank, Purpose::Logits) < 512 * vocab * 4);
        assert!(purpose_bytes(rank, Purpose::Gradient) < vocab * hidden * 4);
        let tied = purpose_bytes(rank, Purpose::TiedGradient);
        assert!(
            tied <= vocab * hidden * 4 / 4 + MIB,
            "a shard of it is kept"
        );
    }
}

#[test]
fn a_rank_without_rows_needs_room_for_its_gradient_shards_only() {
    for preset in ["tiny", "135m"] {
        let model = transformer(preset);
        for (clip, keeps_all) in [(Clip::Off, false), (Clip::Exact { max_norm: 1.0 }, true)] {
            let mut rows = vec![vec![1]; 3];
            rows[1] = Vec::new();
            let plan = Plan::new(&Job {
                steps: vec![rows],
                clip,
                ..job(&model, f32(), 3)
            });
            let runs: Vec<_> = plan
                .sharding
                .buckets
                .iter()
                .map(|bucket| 4 * bucket.runs[1].num_elements() as u64 + 64)
                .collect();
            let table = plan.sharding.unit_buckets(model.head_table());
            let tied: u64 = runs[table].iter().sum();
            let largest = runs.iter().max().unwrap();
            let kept = if keeps_all { runs.iter().sum() } else { tied };
            // Beside what is kept: a bucket's shard, and room that it leaves unused.
            let most = kept + 2 * largest;
            let (idle, busy) = (&plan.ranks[1].arena, &plan.ranks[0].arena);
            assert!(
                idle.capacity_bytes <= most,
                "{preset} {clip:?}: {} of {most} bytes",
                idle.capacity_bytes
            );
            assert!(idle.capacity_bytes < busy.capacity_bytes);
            assert_eq!(idle.flops, 0);
        }
    }
}

#[test]
fn exact_clipping_costs_four_bytes_a_parameter_and_previous_nothing() {
    let model = transformer("135m");
    for world_size in [1, 3] {
        let capacity = |clip| {
            let plan = Plan::new(&Job {
                clip,
                ..job(&model, f32(), world_size)
            });
            plan.ranks[0].arena.capacity_bytes
        };
        let off = capacity(Clip::Off);
        let previous = capacity(Clip::Previous {
            max_norm: 1.0,
            previous_norm: 0.0,
        });
        assert_eq!(previous, off);
        let more = capacity(Clip::Exact { max_norm: 1.0 }) - off;
        let kept = 4 * model.spec.num_parameters() / world_size as u64;
        // A tied table's shard is kept in any mode.
        let table = 4 * (model.spec.vocab * model.spec.hidden / world_size) as u64;
        assert!(more <= kept + MIB, "{more} of {kept}");
        assert!(more + table + MIB >= kept, "{more} of {kept}");
    }
}

/// The cost of accumulation: a unit's input for each unit, and the head's state.
#[test]
fn a_second_micro_batch_costs_its_unit_inputs_only() {
    for preset in ["tiny", "135m"] {
        let model = transformer(preset);
        let capacity = |rows: &[usize]| {
            let plan = Plan::new(&Job {
                steps: vec![vec![rows.to_vec()]],
                ..job(&model, f32(), 1)
            });
            plan.ranks[0].arena.capacity_bytes
        };
        let more = capacity(&[2, 2]) - capacity(&[2]);
        let input = (2 * 64 * model.spec.hidden * 4) as u64;
        let num_inputs = model.units.len() as u64 + 2;
        assert!(more <= num_inputs * input + MIB / 4, "{preset}: {more}");
    }
}

#[test]
fn all_that_ranks_must_agree_on_is_in_the_hash() {
    let (tiny, other) = (transformer("tiny"), transformer("135m"));
    let [f32, bf16, fp8] = [Recipe::F32, Recipe::Bf16, Recipe::Fp8].map(Precision::of);
    let all_fp8 = Precision {
        kept: Kept {
            ends: false,
            named: Patterns::default(),
        },
        ..fp8.clone()
    };
    let jobs = [
        job(&tiny, &f32, 2),
        job(&tiny, &f32, 3),
        job(&other, &f32, 2),
        job(&tiny, &bf16, 2),
        job(&other, &fp8, 2),
        job(&other, &all_fp8, 2),
        Job {
            seq: 32,
            ..job(&tiny, &f32, 2)
        },
    ];
    let hashes = jobs.each_ref().map(|job| Plan::new(job).hash.0);
    for (at, hash) in hashes.iter().enumerate() {
        assert!(!hashes[..at].contains(hash), "job {at}");
    }
    assert_eq!(Plan::new(&jobs[0]).hash.0, hashes[0]);
}

/// The bar for a fine-tune of the 135M shape, of which the program itself and its
/// code must fit into what is left.
#[test]
fn the_135m_shape_at_512_tokens_fits_its_budget() {
    let model = transformer("135m");
    let num_parameters = model.spec.num_parameters();
    assert_eq!(num_parameters, 134_515_008);
    let budget = BYTES_PER_PARAMETER * num_parameters + (108 + 300) * MIB;
    for recipe in Recipe::ALL {
        let precision = Precision::of(recipe);
        for clip in [
            Clip::Off,
            Clip::Previous {
                max_norm: 1.0,
                previous_norm: 0.0,
            },
        ] {
            let plan = Plan::new(&Job {
                clip,
                seq: 512,
                logits_room_bytes: 64 * MIB,
                ..job(&model, &precision, 1)
            });
            let own = &plan.ranks[0];
            let bytes = own.resident_bytes() + own.arena.capacity_bytes;
            println!("{recipe} {clip:?}: {} MiB left", (budget - bytes) / MIB);
            assert!(bytes + 64 * MIB <= budget, "{recipe} {clip:?}: {bytes}");
        }
    }
}

/// The table of the design: bytes of a parameter at rest, scales with them.
/// What other ranks read of a block in FP8: its codes, a scale for each 128 x 128 of
/// them, and f32 vectors.
#[test]
fn an_unshard_in_fp8_gathers_a_byte_a_weight_and_its_scales() {
    let model = transformer("1b");
    for recipe in [Recipe::Fp8, Recipe::Fp8Lean] {
        let formats = Formats::of(&model, &Precision::of(recipe));
        for world_size in WORLD_SIZES {
            let sharding = shard_model(&model, world_size.try_into().unwrap(), &formats);
            // The first and the last block are kept.
            for unit in model.blocks().skip(1).take(model.blocks().len() - 2) {
                let buckets = &sharding.buckets[sharding.unit_buckets(unit)];
                let gathered = buckets.iter().flat_map(|bucket| {
                    let ranks = 0..world_size;
                    ranks.flat_map(|rank| SlotLayout::new(bucket, rank, &formats).parts)
                });
                let expected = model.units[unit].params.iter().map(|param| {
                    let tiles = param.rows.div_ceil(128) * param.cols.div_ceil(128);
                    let elements = param.rows * param.cols;
                    if param.is_vector {
                        4 * elements
                    } else {
                        elements + tiles
                    }
                });
                let gathered: usize = gathered.map(|part| part.len()).sum();
                assert_eq!(gathered, expected.sum::<usize>());
            }
        }
    }
}

#[test]
fn lean_recipes_rest_in_the_bytes_of_the_table() {
    let model = transformer("1b");
    let num_parameters = model.spec.num_parameters() as f64;
    for (recipe, expected) in [
        (Recipe::F32, 12.0),
        (Recipe::Bf16, 12.0),
        (Recipe::Bf16Lean, 4.06),
        (Recipe::Fp8, 5.06),
        (Recipe::Fp8Lean, 4.06),
    ] {
        let precision = Precision::of(recipe);
        for world_size in [1, 3] {
            let plan = Plan::new(&job(&model, &precision, world_size));
            let found: u64 = plan.ranks.iter().map(RankPlan::resident_bytes).sum();
            let found = found as f64 / num_parameters;
            println!("{recipe}, {world_size} ranks: {found:.4} bytes a parameter");
            assert!((found / expected - 1.0).abs() < 0.02, "{recipe}: {found}");
        }
    }
}
