//! What works number by number or token by token: moving, adding, norms, gates.

use kernels::{Device, Gelu, RmsNorm, Scalar, WeightFormat};

use crate::agreement::{Case, Outputs, Under, agrees, narrow};
use crate::inputs::{FORMATS, Random, StoredWeight};

/// Sums of up to 576 squares, a root and a few products in f32, and a weight
/// gradient of up to 300 tokens.
const NORM_TOLERANCE: f32 = 2e-6;

/// One exponential of an argument of up to 30 and a few products in f32.
const SWIGLU_TOLERANCE: f32 = 2e-6;

/// As for the other norm, with a mean of up to three times the spread to take off.
const LAYER_NORM_TOLERANCE: f32 = 4e-6;

/// One exponential or polynomial and a few products in f32.
const GELU_TOLERANCE: f32 = 2e-6;

/// An f32 result of a sum in f64: its rounding.
const SUM_TOLERANCE: f32 = 1.2e-7;

#[derive(Debug, Clone, Copy)]
struct Norm {
    t: usize,
    c: usize,
    format: WeightFormat,
    factor: f32,
    offset: f32,
}

impl Case for Norm {
    fn run<D: Under>(&self, device: &D) -> Outputs {
        let &Self { t, c, .. } = self;
        let random = &mut Random::new(8);
        let weight = StoredWeight::new(&random.normals(c), 1, self.format, 1);
        let x = device.buffer(&random.scaled(t * c, self.factor));
        let dy = device.buffer(&random.normals(t * c));
        let mut y = device.empty(t * c);
        let mut rstd = device.empty(t);
        // Both gradients are added to what is there, of about their own size.
        let mut dx = device.buffer(&random.normals(t * c));
        let mut grad = device.buffer(&random.normals(c + 9));
        let weight = weight.on::<D>();
        let norm = RmsNorm {
            eps: 1e-5,
            offset: self.offset,
        };
        device.rms_norm(&x, &weight, norm, &mut y, &mut rstd);
        device
            .rms_norm_backward(&x, &weight, norm, &rstd, &dy, &mut dx, &mut grad, 3)
            .expect("room in the arena");
        vec![
            ("y", device.numbers(&y)),
            ("rstd", device.numbers(&rstd)),
            ("dx", device.numbers(&dx)),
            ("grad", device.numbers(&grad)),
        ]
    }
}

#[test]
fn norms_of_every_width_and_size_agree() {
    let shapes = [
        (1, 1),
        (1, 576),
        (3, 64),
        (7, 130),
        (128, 96),
        (129, 65),
        (300, 33),
    ];
    for (t, c) in shapes {
        for format in FORMATS {
            for factor in [1.0, 1e3, 1e-4, 0.0] {
                for offset in [0.0, 1.0] {
                    let case = Norm {
                        t,
                        c,
                        format,
                        factor,
                        offset,
                    };
                    agrees(&case, NORM_TOLERANCE);
                }
            }
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct LayerNorm {
    t: usize,
    c: usize,
    format: WeightFormat,
    /// Mean and spread of the numbers.
    middle: f32,
    spread: f32,
}

impl Case for LayerNorm {
    fn run<D: Under>(&self, device: &D) -> Outputs {
        let &Self { t, c, .. } = self;
        let random = &mut Random::new(11);
        let vectors = [0; 2].map(|_| StoredWeight::new(&random.normals(c), 1, self.format, 1));
        let [weight, bias] = vectors.each_ref().map(StoredWeight::on::<D>);
        let numbers = random.scaled(t * c, self.spread).into_iter();
        let numbers: Vec<f32> = numbers.map(|x| x + self.middle).collect();
        let x = device.buffer(&numbers);
        let dy = device.buffer(&random.normals(t * c));
        let mut y = device.empty(t * c);
        let mut stats = device.empty(2 * t);
        let mut dx = device.buffer(&random.normals(t * c));
        let mut grad = device.buffer(&random.normals(2 * c + 9));
        device.layer_norm(&x, &weight, &bias, 1e-5, &mut y, &mut stats);
        let at = [3 + c, 1];
        device
            .layer_norm_backward(&x, &weight, &stats, &dy, &mut dx, &mut grad, at)
            .expect("room in the arena");
        vec![
            ("y", device.numbers(&y)),
            ("stats", device.numbers(&stats)),
            ("dx", device.numbers(&dx)),
            ("grad", device.numbers(&grad)),
        ]
    }
}

#[test]
fn layer_norms_of_every_width_and_size_agree() {
    for (t, c) in [(1, 1), (1, 576), (3, 64), (7, 130), (129, 65), (300, 33)] {
        for format in FORMATS {
            for (middle, spread) in [(0.0, 1.0), (3.0, 1.0), (0.0, 1e3), (0.0, 1e-4), (0.0, 0.0)] {
                let case = LayerNorm {
                    t,
                    c,
                    format,
                    middle,
                    spread,
                };
                agrees(&case, LAYER_NORM_TOLERANCE);
            }
        }
    }
}

#[derive(Debug)]
struct Swiglu {
    len: usize,
    factor: f32,
}

impl Case for Swiglu {
    fn run<D: Under>(&self, device: &D) -> Outputs {
        let random = &mut Random::new(9);
        let mut gate = device.buffer(&random.scaled(self.len, self.factor));
        let mut up = device.buffer(&random.normals(self.len));
        let mut dy = device.buffer(&random.normals(self.len));
        let mut y = device.empty(self.len);
        device.swiglu(&gate, &up, &mut y);
        device.swiglu_backward(&mut gate, &mut up, &mut dy);
        vec![
            ("y", device.numbers(&y)),
            ("dgate", device.numbers(&gate)),
            ("dup", device.numbers(&up)),
            ("y of backward", device.numbers(&dy)),
        ]
    }
}

#[test]
fn gates_agree_from_flat_to_saturated() {
    for len in [1, 7, 16, 33, 1000, 70_001] {
        for factor in [0.0, 0.01, 1.0, 30.0] {
            agrees(&Swiglu { len, factor }, SWIGLU_TOLERANCE);
        }
    }
}

#[derive(Debug)]
struct Gates {
    len: usize,
    factor: f32,
    form: Gelu,
}

impl Case for Gates {
    fn run<D: Under>(&self, device: &D) -> Outputs {
        let (random, form) = (&mut Random::new(12), self.form);
        let mut gate = device.buffer(&random.scaled(self.len, self.factor));
        let mut alone = device.buffer(&device.numbers(&gate));
        let [mut up, mut dy, mut dy_alone] =
            [0; 3].map(|_| device.buffer(&random.normals(self.len)));
        let [mut y, mut gated] = [0; 2].map(|_| device.empty(self.len));
        device.gelu(&gate, form, &mut y);
        device.geglu(&gate, &up, form, &mut gated);
        device.gelu_backward(&mut alone, form, &mut dy_alone);
        device.geglu_backward(&mut gate, &mut up, form, &mut dy);
        vec![
            ("gelu", device.numbers(&y)),
            ("geglu", device.numbers(&gated)),
            ("dx", device.numbers(&alone)),
            ("gelu of backward", device.numbers(&dy_alone)),
            ("dgate", device.numbers(&gate)),
            ("dup", device.numbers(&up)),
            ("geglu of backward", device.numbers(&dy)),
        ]
    }
}

#[test]
fn both_forms_of_gelu_agree_from_flat_to_saturated() {
    for form in [Gelu::Erf, Gelu::Tanh] {
        for len in [1, 7, 33, 1000, 70_001] {
            for factor in [0.0, 0.01, 1.0, 30.0] {
                agrees(&Gates { len, factor, form }, GELU_TOLERANCE);
            }
        }
    }
}

#[test]
fn gelu_of_far_numbers_is_all_or_nothing() {
    let arena = kernels::Arena::new(1 << 20).expect("address space");
    let cpu = kernels::Cpu::new(arena, 1);
    for form in [Gelu::Erf, Gelu::Tanh] {
        let numbers = [-1e30, -40.0, 40.0, 1e30];
        let (mut x, mut dy) = (cpu.buffer(&numbers), cpu.buffer(&[1.0; 4]));
        cpu.gelu_backward(&mut x, form, &mut dy);
        let y = cpu.numbers(&dy);
        assert!(y[0].abs() < 1e-6 && y[1].abs() < 1e-6, "{form:?} {y:?}");
        assert_eq!(y[2..], numbers[2..], "{form:?}");
        let slopes = cpu.numbers(&x);
        assert_eq!(slopes, [0.0, 0.0, 1.0, 1.0], "{form:?}");
    }
}

#[derive(Debug)]
struct Moves {
    len: usize,
}

impl Case for Moves {
    fn run<D: Under>(&self, device: &D) -> Outputs {
        let len = self.len;
        let random = &mut Random::new(10);
        let x = device.buffer(&random.normals(len));
        let mut y = device.empty(len + 10);
        device.fill(&mut y, 0.5);
        device.copy(&x, len / 3..len, &mut y, 2);
        device.add(&x, &mut y, 7);
        device.write(&random.normals(3), &mut y, len + 6);
        let mut middle = vec![0.0; len];
        device.read(&y, 5..5 + len, &mut middle);
        vec![
            ("y", device.numbers(&y)),
            ("middle", middle),
            ("sum of squares", vec![narrow(device.sum_of_squares(&y))]),
        ]
    }
}

#[test]
fn moves_and_sums_agree() {
    for len in [1, 2, 17, 1000, 200_003] {
        agrees(&Moves { len }, SUM_TOLERANCE);
    }
}

#[test]
fn one_nan_makes_the_sum_of_squares_nan() {
    let sum = |len: usize, place: usize| {
        let mut numbers = vec![1.0; len];
        numbers[place] = f32::NAN;
        let arena = kernels::Arena::new(4 << 20).expect("address space");
        let cpu = kernels::Cpu::new(arena, 2);
        let scalar = Scalar::<f32>::new();
        [
            cpu.sum_of_squares(&cpu.buffer(&numbers)),
            scalar.sum_of_squares(&scalar.buffer(&numbers)),
        ]
    };
    for (len, place) in [(1, 0), (33, 32), (100_000, 0), (100_000, 77_777)] {
        assert!(sum(len, place).into_iter().all(f64::is_nan));
    }
}

#[test]
fn a_sum_of_squares_is_taken_in_f64() {
    // In f32, 2^24 + 1 would be 2^24.
    let numbers = [4096.0, 1.0];
    let arena = kernels::Arena::new(1 << 20).expect("address space");
    let cpu = kernels::Cpu::new(arena, 1);
    let sum = cpu.sum_of_squares(&cpu.buffer(&numbers));
    assert_eq!(sum.to_bits(), 16_777_217.0_f64.to_bits());
}
