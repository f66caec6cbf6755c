//! Attention, forward and backward, and rotary positions.

use kernels::{AttentionShape, Rope, ScoreBias};

use crate::agreement::{Case, Outputs, Under, agrees};
use crate::inputs::Random;

/// Two products and a softmax over up to 300 keys in f32; the exponential of a
/// score s carries |s| * 2^-24, and scores here reach 6. Three times the worst
/// seen.
const TOLERANCE: f32 = 5e-6;

/// Scores of up to 200: the rounding of each, 2^-24 of it, moves the softmax by
/// 1e-5.
const LARGE_SCORES_TOLERANCE: f32 = 3e-5;

/// Sine and cosine of an angle of up to 300, itself rounded to f32.
const ROPE_TOLERANCE: f32 = 1e-5;

/// Angles of up to 30000 beyond the first pair, whose angle is whole: rounding
/// one to f32 moves it by 2^-10.
const FAR_ROPE_TOLERANCE: f32 = 1e-3;

#[derive(Debug, Clone, Copy)]
struct Attention {
    shape: AttentionShape,
    /// Tokens of room behind the last key.
    spare_tokens: usize,
    /// Multiplies the queries.
    query_factor: f32,
}

impl Case for Attention {
    fn run<D: Under>(&self, device: &D) -> Outputs {
        let AttentionShape {
            batch,
            num_queries,
            num_keys,
            heads,
            kv_heads,
            head_dim,
            ..
        } = self.shape;
        let random = &mut Random::new(2);
        let q_len = batch * num_queries * heads * head_dim;
        let k_len = (batch * num_keys + self.spare_tokens) * kv_heads * head_dim;
        let q = device.buffer(&random.scaled(q_len, self.query_factor));
        let k = device.buffer(&random.normals(k_len));
        let v = device.buffer(&random.normals(k_len));
        let mut y = device.empty(q_len);
        let mut lse = device.empty(batch * num_queries * heads);
        let full = "room in the arena";
        device
            .attention(&q, &k, &v, self.shape, &mut y, &mut lse)
            .expect(full);
        let mut outputs = vec![("y", device.numbers(&y)), ("lse", device.numbers(&lse))];
        if num_queries == num_keys && self.spare_tokens == 0 {
            let dy = device.buffer(&random.normals(q_len));
            let [mut dq, mut dk, mut dv] = [q_len, k_len, k_len].map(|len| device.empty(len));
            let gradients = [&mut dq, &mut dk, &mut dv];
            device
                .attention_backward([&q, &k, &v], &y, &lse, &dy, self.shape, gradients)
                .expect(full);
            outputs.push(("dq", device.numbers(&dq)));
            outputs.push(("dk", device.numbers(&dk)));
            outputs.push(("dv", device.numbers(&dv)));
        }
        outputs
    }

    /// With one key the softmax is 1 whatever the score: the gradients of query
    /// and key are differences of equal products of magnitude 1, which cancel
    /// to the bit only if both are summed in one order.
    fn least_magnitude(&self) -> f32 {
        let sees_one = self.shape.num_keys == 1 || self.shape.window == Some(1);
        if sees_one { 1.0 } else { 0.0 }
    }
}

fn shape(
    [batch, num_queries, num_keys]: [usize; 3],
    [heads, kv_heads, head_dim]: [usize; 3],
) -> AttentionShape {
    AttentionShape {
        batch,
        num_queries,
        num_keys,
        heads,
        kv_heads,
        head_dim,
        window: None,
        bias: ScoreBias::None,
    }
}

#[track_caller]
fn check(sizes: [usize; 3], heads: [usize; 3]) {
    check_shape(shape(sizes, heads));
}

#[track_caller]
fn check_shape(shape: AttentionShape) {
    let case = Attention {
        shape,
        spare_tokens: 0,
        query_factor: 1.0,
    };
    agrees(&case, TOLERANCE);
}

#[test]
fn sequences_around_tile_sizes_agree() {
    for len in [1, 2, 63, 64, 65, 127, 128, 129, 300] {
        check([1, len, len], [2, 1, 16]);
    }
}

#[test]
fn every_sharing_of_keys_agrees() {
    for heads in [[1, 1], [4, 4], [4, 2], [3, 1], [9, 3]] {
        check([2, 70, 70], [heads[0], heads[1], 16]);
    }
}

#[test]
fn every_head_size_agrees() {
    for head_dim in [16, 64, 80, 128] {
        check([1, 130, 130], [2, 1, head_dim]);
    }
}

#[test]
fn sequences_of_a_batch_do_not_see_each_other() {
    for len in [1, 5, 65, 129] {
        check([3, len, len], [2, 2, 16]);
    }
}

#[test]
fn the_last_queries_see_all_earlier_keys() {
    for [queries, keys] in [[1, 2], [1, 64], [1, 129], [3, 130], [64, 65], [65, 300]] {
        for batch in [1, 2] {
            check([batch, queries, keys], [4, 2, 16]);
        }
        check([1, queries, keys], [2, 1, 80]);
    }
}

#[test]
fn keys_behind_the_last_are_not_seen() {
    for queries in [1, 7] {
        let case = Attention {
            shape: shape([1, queries, 77], [4, 2, 16]),
            spare_tokens: 100,
            query_factor: 1.0,
        };
        agrees(&case, TOLERANCE);
    }
}

#[test]
fn equal_and_large_scores_agree() {
    for query_factor in [0.0, 40.0] {
        let case = Attention {
            shape: shape([1, 140, 140], [2, 1, 64]),
            spare_tokens: 0,
            query_factor,
        };
        agrees(&case, LARGE_SCORES_TOLERANCE);
    }
}

/// Windows around tiles of keys: rows that see nothing of the first tile of their
/// queries, tiles that no row sees.
#[test]
fn a_window_hides_earlier_keys() {
    for len in [1, 5, 64, 129, 300] {
        for window in [1, 2, 63, 64, 65, 100, 128, 200, 1000] {
            let whole = shape([2, len, len], [4, 2, 16]);
            let window = Some(window);
            check_shape(AttentionShape { window, ..whole });
        }
    }
}

#[test]
fn a_window_hides_cached_keys() {
    for [queries, keys] in [[1, 300], [3, 130], [65, 300]] {
        for window in [1, 2, 64, 130, 299] {
            let whole = shape([1, queries, keys], [4, 2, 16]);
            let window = Some(window);
            check_shape(AttentionShape { window, ..whole });
        }
    }
}

#[test]
fn linear_biases_agree_for_any_number_of_heads() {
    for heads in [[1, 1], [4, 4], [6, 2], [7, 1]] {
        for sizes in [[2, 70, 70], [1, 300, 300], [1, 1, 290], [2, 3, 130]] {
            let plain = shape(sizes, [heads[0], heads[1], 16]);
            let bias = ScoreBias::Alibi;
            for window in [None, Some(90)] {
                let biased = AttentionShape {
                    bias,
                    window,
                    ..plain
                };
                let case = Attention {
                    shape: biased,
                    spare_tokens: 0,
                    query_factor: 1.0,
                };
                agrees(&case, LARGE_SCORES_TOLERANCE);
            }
        }
    }
}

#[derive(Debug)]
struct FusedHeads {
    /// Tokens times key heads.
    num_keys: usize,
    group: usize,
    head_dim: usize,
}

impl Case for FusedHeads {
    fn run<D: Under>(&self, device: &D) -> Outputs {
        let &Self {
            num_keys,
            group,
            head_dim,
        } = self;
        let fused = Random::new(5).normals(num_keys * (group + 2) * head_dim);
        let whole = device.buffer(&fused);
        let [mut q, mut k, mut v] =
            [group, 1, 1].map(|heads| device.empty(num_keys * heads * head_dim));
        device.split_heads(&whole, group, head_dim, [&mut q, &mut k, &mut v]);
        let mut again = device.empty(fused.len());
        device.merge_heads([&q, &k, &v], group, head_dim, &mut again);
        vec![
            ("q", device.numbers(&q)),
            ("k", device.numbers(&k)),
            ("v", device.numbers(&v)),
            ("fused", device.numbers(&again)),
        ]
    }
}

#[test]
fn fused_heads_are_split_and_merged() {
    for num_keys in [1, 3, 130] {
        for (group, head_dim) in [(1, 2), (1, 64), (4, 6), (71, 8)] {
            let case = FusedHeads {
                num_keys,
                group,
                head_dim,
            };
            agrees(&case, 0.0);
        }
    }
}

/// Two key heads of two query heads, one token: queries first in each group.
#[test]
fn fused_rows_hold_group_by_group_queries_then_key_then_value() {
    let device = kernels::Scalar::<f32>::new();
    let whole = device.buffer(&[0.0, 1.0, 20.0, 30.0, 2.0, 3.0, 21.0, 31.0]);
    let [mut q, mut k, mut v] = [4, 2, 2].map(|len| device.empty(len));
    let parts = [&mut q, &mut k, &mut v];
    kernels::Device::split_heads(&device, &whole, 2, 1, parts);
    assert_eq!(q.0, [0.0, 1.0, 2.0, 3.0]);
    assert_eq!((k.0, v.0), (vec![20.0, 21.0], vec![30.0, 31.0]));
}

#[derive(Debug)]
struct Rotation {
    num_heads: usize,
    head_dim: usize,
    positions: Vec<u32>,
    scale: f32,
    inverse: bool,
}

impl Case for Rotation {
    fn run<D: Under>(&self, device: &D) -> Outputs {
        let len = self.positions.len() * self.num_heads * self.head_dim;
        let mut x = device.buffer(&Random::new(3).normals(len));
        let inv_freq = inv_freq(self.head_dim);
        let rope = Rope {
            inv_freq: &inv_freq,
            scale: self.scale,
        };
        device.rope(&mut x, self.num_heads, &self.positions, rope, self.inverse);
        vec![("x", device.numbers(&x))]
    }
}

/// The frequencies of a common model.
fn inv_freq(head_dim: usize) -> Vec<f32> {
    (0..head_dim / 2)
        .map(|j| 10_000_f32.powf(-2.0 * j as f32 / head_dim as f32))
        .collect()
}

#[test]
fn rotations_agree() {
    for (head_dim, num_heads) in [(2, 1), (16, 3), (64, 9), (80, 1), (128, 2)] {
        for (inverse, scale) in [(false, 1.0), (true, 1.0), (false, 1.25), (true, 1.25)] {
            for positions in [vec![0], vec![5, 3, 300], (0..130).collect()] {
                let case = Rotation {
                    num_heads,
                    head_dim,
                    positions,
                    scale,
                    inverse,
                };
                agrees(&case, ROPE_TOLERANCE);
            }
        }
    }
}

#[test]
fn far_positions_agree_as_far_as_their_angles_do() {
    let case = Rotation {
        num_heads: 2,
        head_dim: 64,
        positions: vec![4095, 32_767, 39_999],
        scale: 1.0,
        inverse: false,
    };
    agrees(&case, FAR_ROPE_TOLERANCE);
}

#[test]
fn turning_back_undoes_a_rotation() {
    let device = kernels::Scalar::<f64>::new();
    let numbers = Random::new(4).normals(3 * 2 * 16);
    let mut x = device.buffer(&numbers);
    let inv_freq = inv_freq(16);
    let rope = Rope {
        inv_freq: &inv_freq,
        scale: 1.0,
    };
    for inverse in [false, true] {
        kernels::Device::rope(&device, &mut x, 2, &[0, 9, 1000], rope, inverse);
    }
    assert_eq!(device.numbers(&x), numbers);
}
