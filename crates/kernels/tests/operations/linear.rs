//! Linear layers: forward, both gradients, and the bias's.

use fp8::{Format, Nesting};
use kernels::{Arena, Cpu, WeightFormat};

use crate::agreement::{ARENA_BYTES, Case, Outputs, Under, agrees, assert_same_bits};
use crate::inputs::{MATRIX_FORMATS, Random, StoredWeight};

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
        let vector = if self.format.is_tiled() {
            WeightFormat::F32
        } else {
            self.format
        };
        let bias = StoredWeight::new(&random.normals(o), 1, vector, 1);
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
    for format in MATRIX_FORMATS {
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
            (1, WeightFormat::E4m3),
            (3, WeightFormat::E4m3),
            (3, WeightFormat::Nested(Nesting::N16)),
            (3, WeightFormat::Nested(Nesting::N24)),
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
fn no_bit_depends_on_where_a_weight_is_cut() {
    for (t, o, i) in [(1, 300, 129), (64, 517, 1031), (100, 1200, 40)] {
        for format in [WeightFormat::F32, WeightFormat::Bf16] {
            let [whole, cut @ ..] = [1, 2, 3, 5].map(|num_segments| {
                let case = Linear {
                    t,
                    o,
                    i,
                    num_segments,
                    format,
                    has_bias: true,
                    adds: true,
                };
                let arena = Arena::new(ARENA_BYTES).expect("address space");
                case.run(&Cpu::new(arena, 2))
            });
            for found in cut {
                assert_same_bits(&whole, &found, &format!("{t} {o} {i} {format:?}"));
            }
        }
    }
}

#[test]
fn many_tokens_agree() {
    for format in MATRIX_FORMATS {
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

/// Rows that are rounded to what FP8 weights are multiplied by.
#[derive(Debug)]
struct Quantize {
    rows: usize,
    cols: usize,
    format: Format,
}

impl Case for Quantize {
    fn run<D: Under>(&self, device: &D) -> Outputs {
        let random = &mut Random::new(2);
        let mut numbers = random.normals(self.rows * self.cols);
        for (index, number) in numbers.iter_mut().enumerate() {
            // Rows of many sizes, with numbers that are lost beside the largest.
            *number *= 2_f32.powi(i32::try_from(index % 37).expect("small") - 18);
        }
        let mut x = device.buffer(&numbers);
        let counts = device.quantize(&mut x, self.cols, self.format);
        let counted = [
            counts.num_elements as f32,
            counts.num_underflowed as f32,
            counts.num_nan_blocks as f32,
            counts.amax,
        ];
        vec![("x", device.numbers(&x)), ("counts", counted.to_vec())]
    }
}

#[test]
fn rows_are_rounded_to_eight_bits_alike() {
    for (rows, cols) in [(1, 1), (3, 127), (2, 128), (5, 300), (700, 193)] {
        for format in [Format::E4M3, Format::E5M2] {
            let case = Quantize { rows, cols, format };
            agrees(&case, 0.0);
        }
    }
}
