//! Linear layers: forward, both gradients, and the bias's.

use kernels::WeightFormat;

use crate::agreement::{Case, Outputs, Under, agrees};
use crate::inputs::{FORMATS, Random, StoredWeight};

/// Sums of up to 1031 products of normal numbers in f32: each of n additions
/// rounds by 2^-24 of the partial sum, together about `sqrt(n)` * 2^-24 / 4 of
/// the sum's spread. Five times that.
const TOLERANCE: f32 = 2e-6;

#[derive(Debug, Clone, Copy)]
struct Linear {
    t: usize,
    o: usize,
    i: usize,
    num_segments: usize,
    format: WeightFormat,
    has_bias: bool,
    adds: bool,
}

impl Case for Linear {
    fn run<D: Under>(&self, device: &D) -> Outputs {
        let &Self { t, o, i, adds, .. } = self;
        let random = &mut Random::new(1);
        let weight = random.normals(o * i);
        let weight = StoredWeight::new(&weight, o, self.format, self.num_segments);
        let bias = StoredWeight::new(&random.normals(o), 1, self.format, 1);
        let bias = self.has_bias.then(|| bias.on::<D>());
        let x = device.buffer(&random.normals(t * i));
        let dy = device.buffer(&random.normals(t * o));
        let mut y = device.buffer(&random.normals(t * o));
        let mut dx = device.buffer(&random.normals(t * i));
        // Gradients lie between other gradients.
        let mut grad = device.buffer(&random.normals(5 + o * i + 2));
        let mut bias_grad = device.buffer(&random.normals(3 + o + 1));

        let full = "room in the arena";
        device
            .linear(&x, &weight.on::<D>(), bias.as_ref(), &mut y, adds)
            .expect(full);
        device
            .linear_dgrad(&dy, &weight.on::<D>(), &mut dx, adds)
            .expect(full);
        device.linear_wgrad(&dy, &x, t, &mut grad, 5, adds);
        device.bias_grad(&dy, t, &mut bias_grad, 3);
        vec![
            ("y", device.numbers(&y)),
            ("dx", device.numbers(&dx)),
            ("grad", device.numbers(&grad)),
            ("bias grad", device.numbers(&bias_grad)),
        ]
    }
}

/// Every combination of format, bias, adding and segments.
fn variants([t, o, i]: [usize; 3], num_segments: &[usize]) -> Vec<Linear> {
    let mut cases = Vec::new();
    for format in FORMATS {
        for (has_bias, adds) in [(false, false), (false, true), (true, false), (true, true)] {
            cases.extend(num_segments.iter().map(|&num_segments| Linear {
                t,
                o,
                i,
                num_segments,
                format,
                has_bias,
                adds,
            }));
        }
    }
    cases
}

#[test]
fn small_and_odd_shapes_agree_in_every_variant() {
    for shape in [[1, 1, 1], [1, 5, 3], [2, 17, 33], [3, 33, 16], [7, 2, 65]] {
        for case in variants(shape, &[1, 2, 3, 5]) {
            agrees(&case, TOLERANCE);
        }
    }
}

#[test]
fn shapes_around_tiles_agree_in_every_variant() {
    for shape in [[1, 300, 129], [63, 128, 64], [64, 127, 96], [65, 129, 130]] {
        for case in variants(shape, &[1, 3]) {
            agrees(&case, TOLERANCE);
        }
    }
}

#[test]
fn a_weight_of_several_panels_agrees() {
    for num_segments in [1, 2, 5] {
        for (t, format) in [
            (1, WeightFormat::Bf16),
            (3, WeightFormat::Bf16),
            (3, WeightFormat::F32),
        ] {
            agrees(
                &Linear {
                    t,
                    o: 517,
                    i: 1031,
                    num_segments,
                    format,
                    has_bias: true,
                    adds: false,
                },
                TOLERANCE,
            );
        }
    }
}

#[test]
fn many_tokens_agree() {
    for format in FORMATS {
        agrees(
            &Linear {
                t: 300,
                o: 97,
                i: 65,
                num_segments: 2,
                format,
                has_bias: true,
                adds: true,
            },
            TOLERANCE,
        );
    }
}
