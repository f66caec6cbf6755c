//! What holds for every model and every world size.
#![expect(clippy::unwrap_used, reason = "in a test a failure may panic")]

use std::num::NonZeroUsize;

use proptest::prelude::*;
use shard::{BUCKET_BYTES, Bucket, Sharding, TILE_ROWS, TensorShape};

const MAX_WORLD_SIZE: usize = 9;

fn matrix(rows: usize, cols: usize) -> TensorShape {
    TensorShape {
        rows,
        cols,
        is_vector: false,
        is_table: false,
        is_frozen: false,
        bytes_per_element: 12,
    }
}

fn vector(len: usize) -> TensorShape {
    TensorShape {
        is_vector: true,
        ..matrix(1, len)
    }
}

fn table(rows: usize, cols: usize) -> TensorShape {
    TensorShape {
        is_table: true,
        is_frozen: false,
        ..matrix(rows, cols)
    }
}

/// A Llama block: norms, q, k, v, o, gate, up, down.
fn block(width: usize, kv: usize, hidden: usize) -> Vec<TensorShape> {
    vec![
        vector(width),
        matrix(width, width),
        matrix(kv, width),
        matrix(kv, width),
        matrix(width, width),
        vector(width),
        matrix(hidden, width),
        matrix(hidden, width),
        matrix(width, hidden),
    ]
}

fn llama(
    vocabulary: usize,
    blocks: usize,
    width: usize,
    kv: usize,
    hidden: usize,
) -> Vec<Vec<TensorShape>> {
    let mut units = vec![vec![table(vocabulary, width)]];
    units.extend((0..blocks).map(|_| block(width, kv, hidden)));
    units.push(vec![vector(width), table(vocabulary, width)]);
    units
}

fn shard(units: &[Vec<TensorShape>], world_size: usize) -> Sharding {
    Sharding::new(units, NonZeroUsize::new(world_size).unwrap())
}

/// Every promise of a sharding, checked element by element range.
#[track_caller]
fn check(units: &[Vec<TensorShape>], world_size: usize) -> Sharding {
    let sharding = shard(units, world_size);
    assert_eq!(sharding.world_size, world_size);
    assert_eq!(sharding.num_units(), units.len());
    for (unit, tensors) in units.iter().enumerate() {
        let buckets = &sharding.buckets[sharding.unit_buckets(unit)];
        assert!(buckets.iter().all(|bucket| bucket.unit == unit));
        slices_hold_every_row_once(tensors, buckets);
        for bucket in buckets {
            runs_tile(bucket, world_size);
            parts_tile(bucket, tensors);
        }
    }
    is_balanced(units, &sharding);
    sharding
}

#[track_caller]
fn slices_hold_every_row_once(tensors: &[TensorShape], buckets: &[Bucket]) {
    let mut next_row = vec![0; tensors.len()];
    for bucket in buckets {
        let mut at = 0;
        for slice in &bucket.slices {
            assert_eq!(slice.at, at);
            assert_eq!(slice.rows.start, next_row[slice.tensor]);
            next_row[slice.tensor] = slice.rows.end;
            at += slice.num_elements();
        }
        assert_eq!(bucket.num_elements, at);
        assert!(at > 0, "no bucket is empty");
    }
    for (tensor, &rows) in tensors.iter().zip(&next_row) {
        let is_empty = tensor.rows * tensor.cols == 0;
        let expected = if is_empty { 0 } else { tensor.rows };
        assert_eq!(rows, expected);
    }
}

#[track_caller]
fn runs_tile(bucket: &Bucket, world_size: usize) {
    assert_eq!(bucket.runs.len(), world_size);
    let mut at = 0;
    for range in bucket.ranges() {
        assert_eq!(range.start, at);
        at = range.end;
    }
    assert_eq!(at, bucket.num_elements);
}

#[track_caller]
fn parts_tile(bucket: &Bucket, tensors: &[TensorShape]) {
    for run in &bucket.runs {
        let mut at = 0;
        for part in &run.parts {
            let slice = &bucket.slices[part.slice];
            assert_eq!(part.at, at);
            assert_eq!(part.num_elements, part.rows.len() * slice.cols);
            assert!(part.num_elements > 0, "no part is empty");
            // Where the part is in the bucket, counted both ways.
            let in_slice = (part.rows.start - slice.rows.start) * slice.cols;
            assert_eq!(slice.at + in_slice, run.elements.start + part.at);
            assert_eq!(part.rows.start % TILE_ROWS, 0);
            let is_last = part.rows.end == tensors[slice.tensor].rows;
            assert!(is_last || part.rows.end.is_multiple_of(TILE_ROWS));
            at += part.num_elements;
        }
        assert_eq!(at, run.num_elements());
    }
    for (index, slice) in bucket.slices.iter().enumerate() {
        let mut row = slice.rows.start;
        for (rank, part) in bucket.parts_of(index) {
            assert!(bucket.runs[rank].parts.contains(part));
            assert_eq!(part.rows.start, row);
            row = part.rows.end;
        }
        assert_eq!(row, slice.rows.end);
    }
}

/// Bytes of the largest row tile.
fn largest_tile(units: &[Vec<TensorShape>]) -> usize {
    let tiles = units.iter().flatten().map(|tensor| {
        let rows = if tensor.is_vector {
            tensor.rows
        } else {
            tensor.rows.min(TILE_ROWS)
        };
        rows * tensor.cols * tensor.bytes_per_element
    });
    tiles.max().unwrap_or(0)
}

#[track_caller]
fn is_balanced(units: &[Vec<TensorShape>], sharding: &Sharding) {
    let mut rank_bytes = vec![0; sharding.world_size];
    for bucket in &sharding.buckets {
        for (bytes, run) in rank_bytes.iter_mut().zip(&bucket.runs) {
            for part in &run.parts {
                let tensor = &units[bucket.unit][bucket.slices[part.slice].tensor];
                *bytes += part.num_elements * tensor.bytes_per_element;
            }
        }
    }
    let total: usize = rank_bytes.iter().sum();
    for &bytes in &rank_bytes {
        // Times the world size, so that the fair share is a whole number.
        let off = (bytes * sharding.world_size).abs_diff(total);
        assert!(
            off <= largest_tile(units) * sharding.world_size,
            "{rank_bytes:?} is more than a tile from fair"
        );
    }
}

#[test]
fn every_row_count_to_forty_tiles_is_dealt_exactly_at_every_world_size() {
    for rows in 1..=40 * TILE_ROWS {
        for world_size in 1..=MAX_WORLD_SIZE {
            check(&[vec![matrix(rows, 1)]], world_size);
        }
    }
}

#[test]
fn every_row_count_of_a_table_is_dealt_exactly_at_every_world_size() {
    let cols = BUCKET_BYTES / 4 / TILE_ROWS / 3;
    for rows in (1..=40 * TILE_ROWS).step_by(61) {
        for world_size in 1..=MAX_WORLD_SIZE {
            check(&[vec![table(rows, cols)]], world_size);
        }
    }
}

#[test]
fn models_of_mixed_units_are_dealt_exactly_and_in_balance() {
    let models = [
        llama(640, 2, 64, 32, 160),
        llama(49152, 30, 576, 192, 1536),
        llama(128_256, 16, 2048, 512, 8192),
        llama(1000, 3, 129, 127, 385),
        vec![vec![vector(5)]; 23],
        vec![
            vec![],
            vec![matrix(0, 7)],
            vec![vector(3)],
            vec![table(0, 4)],
        ],
        vec![],
    ];
    for units in models {
        for world_size in 1..=MAX_WORLD_SIZE {
            check(&units, world_size);
        }
    }
}

#[test]
fn roundings_of_one_unit_are_made_good_in_the_next() {
    // Three tiles over two ranks: each unit alone would be 2 to 1.
    let units = vec![vec![matrix(3 * TILE_ROWS, 8)]; 10];
    let sharding = check(&units, 2);
    assert_eq!(sharding.rank_elements(0), sharding.rank_elements(1));
}

#[test]
fn a_rank_may_hold_nothing_of_a_unit_or_of_a_model() {
    let sharding = check(&[vec![vector(10)], vec![matrix(128, 10)]], 8);
    let holders = (0..8).filter(|&rank| sharding.rank_elements(rank) > 0);
    assert_eq!(holders.count(), 2);
    let idle = &sharding.buckets[0].runs[0];
    assert!(idle.parts.is_empty() || sharding.buckets[0].runs[1].parts.is_empty());
}

#[test]
fn one_rank_holds_everything_in_order() {
    let sharding = check(&llama(640, 2, 64, 32, 160), 1);
    for bucket in &sharding.buckets {
        assert_eq!(bucket.runs[0].elements, 0..bucket.num_elements);
        assert_eq!(bucket.runs[0].parts.len(), bucket.slices.len());
    }
}

#[test]
fn a_block_is_one_bucket_and_a_table_several() {
    let sharding = shard(&llama(49152, 2, 576, 192, 1536), 4);
    let rows = 56 * TILE_ROWS; // the most whole tiles of 576 columns in 16 MiB
    assert_eq!(sharding.unit_buckets(0).len(), 49152_usize.div_ceil(rows));
    assert_eq!(sharding.unit_buckets(1).len(), 1);
    for bucket in &sharding.buckets[sharding.unit_buckets(0)] {
        assert_eq!(bucket.slices.len(), 1);
        assert!(bucket.num_elements * 4 <= BUCKET_BYTES);
    }
    assert_eq!(sharding.buckets[0].slices[0].rows, 0..rows);
}

#[test]
fn a_norm_beside_a_table_is_a_bucket_of_its_own_before_it() {
    let sharding = shard(&[vec![table(100, 8), vector(8)]], 2);
    let tensors: Vec<_> = sharding
        .buckets
        .iter()
        .map(|bucket| bucket.slices[0].tensor)
        .collect();
    assert_eq!(tensors, [1, 0]);
}

#[test]
fn a_tile_larger_than_a_bucket_is_a_bucket() {
    let sharding = check(&[vec![table(3 * TILE_ROWS, 40_000)]], 2);
    assert_eq!(sharding.buckets.len(), 3);
}

#[test]
fn smaller_buckets_cut_a_table_by_whole_tiles_and_nothing_else() {
    let units = llama(300, 1, 16, 8, 20);
    let two = NonZeroUsize::new(2).unwrap();
    let table_rows = |bucket_bytes: usize| {
        let sharding = Sharding::with_bucket_bytes(&units, two, bucket_bytes);
        assert_eq!(sharding.unit_buckets(1).len(), 1);
        let table = sharding.unit_buckets(0);
        let rows = table.map(|bucket| sharding.buckets[bucket].slices[0].rows.clone());
        rows.collect::<Vec<_>>()
    };
    assert_eq!(table_rows(0), [0..128, 128..256, 256..300]);
    assert_eq!(table_rows(2 * TILE_ROWS * 16 * 4), [0..256, 256..300]);
    assert_eq!(
        Sharding::with_bucket_bytes(&units, two, BUCKET_BYTES),
        Sharding::new(&units, two)
    );
}

#[test]
fn weightless_tensors_are_dealt_too() {
    let frozen = TensorShape {
        bytes_per_element: 0,
        ..matrix(300, 4)
    };
    let sharding = shard(&[vec![frozen]], 3);
    let dealt: usize = (0..3).map(|rank| sharding.rank_elements(rank)).sum();
    assert_eq!(dealt, 1200);
}

fn any_tensor() -> impl Strategy<Value = TensorShape> {
    (
        1..2000_usize,
        1..300_usize,
        any::<bool>(),
        any::<bool>(),
        1..13_usize,
    )
        .prop_map(
            |(rows, cols, is_vector, is_table, bytes_per_element)| TensorShape {
                rows: if is_vector { 1 } else { rows },
                cols,
                is_vector,
                is_table: is_table && !is_vector,
                is_frozen: false,
                bytes_per_element,
            },
        )
}

fn any_units() -> impl Strategy<Value = Vec<Vec<TensorShape>>> {
    prop::collection::vec(prop::collection::vec(any_tensor(), 0..6), 0..12)
}

proptest! {
    #[test]
    fn any_model_is_dealt_exactly_and_in_balance(units in any_units(), world_size in 1..70_usize) {
        check(&units, world_size);
    }
}
