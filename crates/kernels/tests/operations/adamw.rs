//! The `AdamW` update against its formula in f64, and against `PyTorch`.

use half::bf16;
use kernels::{AdamW, Arena, Cpu, Master, Moments, Scalar, split_master};

use crate::agreement::{Case, Outputs, Under, agrees, assert_close, narrow};
use crate::inputs::{Plane, Random};

/// A weight or moment after one update: three roundings of 2^-24 of its size.
const TOLERANCE: f32 = 2e-7;

/// `PyTorch` takes its betas in f64. 1 - 0.999 in f32 is 1.3e-5 off, and so is a
/// second moment; its bias correction is off by the same and takes it back, so
/// weights agree to rounding.
const TORCH_MOMENT_TOLERANCE: f32 = 2e-5;

const UPDATE: AdamW = AdamW {
    lr: 1e-3,
    beta1: 0.9,
    beta2: 0.999,
    eps: 1e-8,
    weight_decay: 0.1,
    step: 1,
    grad_scale: 1.0,
};

/// An update that rounds nothing by random bits.
fn plain(adamw: AdamW) -> kernels::fp8::Update {
    let random = fp8::Random {
        seed: 0,
        step: 0,
        parameter: 0,
    };
    kernels::fp8::Update {
        adamw,
        random,
        first_row: 0,
    }
}

/// Weights and moments of a run of elements, in f32.
#[derive(Debug, Clone)]
struct State {
    w: Vec<f32>,
    m: Vec<f32>,
    v: Vec<f32>,
}

impl State {
    fn random(len: usize, fresh: bool) -> Self {
        let random = &mut Random::new(30);
        let w = random.normals(len);
        let factor = if fresh { 0.0 } else { 0.1 };
        let m = random.scaled(len, factor);
        let v = random.scaled(len, factor).iter().map(|x| x * x).collect();
        Self { w, m, v }
    }

    fn outputs(&self) -> Outputs {
        vec![
            ("w", self.w.clone()),
            ("m", self.m.clone()),
            ("v", self.v.clone()),
        ]
    }

    /// The update as its documentation says it, in f64.
    fn updated_in_f64(&self, gradient: &[f32], update: AdamW) -> Self {
        let [lr, beta1, beta2, eps, decay, scale] = [
            update.lr,
            update.beta1,
            update.beta2,
            update.eps,
            update.weight_decay,
            update.grad_scale,
        ]
        .map(f64::from);
        let correction = |beta: f64| 1.0 - (update.step as f64 * beta.ln()).exp();
        let mut after = self.clone();
        for (index, &g) in gradient.iter().enumerate() {
            let g = scale * f64::from(g);
            let m = beta1 * f64::from(self.m[index]) + (1.0 - beta1) * g;
            let v = beta2 * f64::from(self.v[index]) + (1.0 - beta2) * g.powi(2);
            let root = (v / correction(beta2)).sqrt();
            let step = m / correction(beta1) / (root + eps);
            let w = f64::from(self.w[index]);
            after.w[index] = narrow(w - lr * decay * w - lr * step);
            after.m[index] = narrow(m);
            after.v[index] = narrow(v);
        }
        after
    }

    /// The update on a device, with the gradient between others.
    fn updated_on<D: Under>(
        &self,
        device: &D,
        gradient: &[f32],
        update: AdamW,
        split: bool,
    ) -> Self {
        let mut grad = device.empty(gradient.len() + 5);
        device.fill(&mut grad, f32::NAN);
        device.write(gradient, &mut grad, 3);
        let [mut w, mut m, mut v] = [&self.w, &self.m, &self.v].map(|x| Plane::f32(x));
        let moments = Moments::F32 {
            m: D::bytes_mut(m.bytes_mut()),
            v: D::bytes_mut(v.bytes_mut()),
        };
        let w = if split {
            let mut halves = SplitPlanes::new(&self.w);
            let master = Master::Bf16 {
                high: D::bytes_mut(halves.high.bytes_mut()),
                low: D::bytes_mut(halves.low.bytes_mut()),
            };
            device.adamw(master, moments, &grad, 3, &plain(update));
            halves.joined()
        } else {
            let master = Master::F32(D::bytes_mut(w.bytes_mut()));
            device.adamw(master, moments, &grad, 3, &plain(update));
            w.to_f32()
        };
        let [m, v] = [m, v].map(|plane| plane.to_f32());
        Self { w, m, v }
    }
}

/// The two halves of masters.
struct SplitPlanes {
    high: Plane,
    low: Plane,
}

impl SplitPlanes {
    fn new(masters: &[f32]) -> Self {
        let (high, low): (Vec<bf16>, Vec<i16>) = masters.iter().map(|&w| split_master(w)).unzip();
        Self {
            high: Plane::from_bytes(tensor::as_bytes(&high)),
            low: Plane::from_bytes(tensor::as_bytes(&low)),
        }
    }

    /// The masters, by the documented sum of integers.
    fn joined(&self) -> Vec<f32> {
        let high: &[u16] = tensor::cast(self.high.bytes()).expect("a plane of bf16");
        let low: &[i16] = tensor::cast(self.low.bytes()).expect("a plane of i16");
        high.iter()
            .zip(low)
            .map(|(&high, &low)| {
                let bits = (i64::from(high) << 16) + i64::from(low);
                f32::from_bits(u32::try_from(bits).expect("a finite master"))
            })
            .collect()
    }
}

#[derive(Debug)]
struct Update {
    len: usize,
    fresh: bool,
    split: bool,
    settings: AdamW,
}

impl Update {
    fn gradient(&self) -> Vec<f32> {
        let mut gradient = Random::new(31).normals(self.len);
        gradient[0] = 0.0;
        gradient
    }
}

impl Case for Update {
    fn run<D: Under>(&self, device: &D) -> Outputs {
        State::random(self.len, self.fresh)
            .updated_on(device, &self.gradient(), self.settings, self.split)
            .outputs()
    }
}

#[test]
fn updates_of_every_length_and_age_agree() {
    for len in [1, 7, 16, 33, 1000, 70_001] {
        for (fresh, step) in [(true, 1), (false, 1), (false, 1000)] {
            for (split, grad_scale) in [(false, 1.0), (true, 1.0), (true, 0.3)] {
                let update = AdamW {
                    step,
                    grad_scale,
                    ..UPDATE
                };
                let case = Update {
                    len,
                    fresh,
                    split,
                    settings: update,
                };
                agrees(&case, TOLERANCE);
                let formula = State::random(len, fresh).updated_in_f64(&case.gradient(), update);
                let reference = case.run(&Scalar::<f32>::new());
                assert_close(&formula.outputs(), &reference, (TOLERANCE, 0.0), "formula");
            }
        }
    }
}

#[test]
fn a_split_master_is_updated_to_the_bits_of_a_whole_one() {
    fn check<D: Under>(device: &D) {
        let state = State::random(5000, false);
        let gradient = Random::new(32).normals(5000);
        let [whole, split] =
            [false, true].map(|split| state.updated_on(device, &gradient, UPDATE, split));
        for (index, (whole, split)) in whole.w.iter().zip(&split.w).enumerate() {
            assert_eq!(whole.to_bits(), split.to_bits(), "master {index}");
        }
        assert_eq!((whole.m, whole.v), (split.m, split.v));
    }
    check(&Scalar::<f32>::new());
    check(&cpu());
}

fn cpu() -> Cpu {
    Cpu::new(Arena::new(1 << 20).expect("address space"), 2)
}

#[test]
fn the_high_half_is_the_nearest_bf16() {
    fn check<D: Under>(device: &D) {
        let state = State::random(5000, false);
        let gradient = Random::new(33).normals(5000);
        let after = state.updated_on(device, &gradient, UPDATE, false);
        let mut halves = SplitPlanes::new(&state.w);
        let [mut m, mut v] = [&state.m, &state.v].map(|x| Plane::f32(x));
        let master = Master::Bf16 {
            high: D::bytes_mut(halves.high.bytes_mut()),
            low: D::bytes_mut(halves.low.bytes_mut()),
        };
        let moments = Moments::F32 {
            m: D::bytes_mut(m.bytes_mut()),
            v: D::bytes_mut(v.bytes_mut()),
        };
        device.adamw(
            master,
            moments,
            &device.buffer(&gradient),
            0,
            &plain(UPDATE),
        );
        let expected = SplitPlanes::new(&after.w);
        assert_eq!(halves.high.bytes(), expected.high.bytes());
        assert_eq!(halves.low.bytes(), expected.low.bytes());
    }
    check(&Scalar::<f32>::new());
    check(&cpu());
}

/// One `case` of `testdata/adamw.txt`: its first step, the state before it, and
/// each step's gradient and state.
struct Golden {
    first: AdamW,
    before: State,
    steps: Vec<(Vec<f32>, State)>,
}

/// Every case of the file.
fn golden() -> Vec<Golden> {
    let text = include_str!("../../testdata/adamw.txt");
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let mut lines = lines
        .map(|line| line.split_once(' ').expect("a name and numbers"))
        .peekable();
    let mut cases = Vec::new();
    while let Some((_, settings)) = lines.next_if(|&(name, _)| name == "case") {
        let before = golden_state(&mut lines);
        let mut steps = Vec::new();
        while let Some((_, gradient)) = lines.next_if(|&(name, _)| name == "g") {
            steps.push((parsed(gradient), golden_state(&mut lines)));
        }
        cases.push(Golden {
            first: golden_settings(settings),
            before,
            steps,
        });
    }
    cases
}

fn parsed(numbers: &str) -> Vec<f32> {
    numbers
        .split(' ')
        .map(|x| x.parse().expect("a number"))
        .collect()
}

fn golden_settings(settings: &str) -> AdamW {
    let (settings, step) = settings.rsplit_once(' ').expect("several settings");
    let settings = parsed(settings).try_into();
    let [lr, beta1, beta2, eps, weight_decay] = settings.expect("five settings and a step");
    AdamW {
        lr,
        beta1,
        beta2,
        eps,
        weight_decay,
        step: step.parse().expect("a step"),
        grad_scale: 1.0,
    }
}

fn golden_state<'a>(lines: &mut impl Iterator<Item = (&'a str, &'a str)>) -> State {
    let [w, m, v] = ["w", "m", "v"].map(|expected| {
        let (name, numbers) = lines.next().expect("a whole state");
        assert_eq!(name, expected);
        parsed(numbers)
    });
    State { w, m, v }
}

#[test]
fn several_steps_agree_with_pytorch() {
    fn check<D: Under>(device: &D, name: &str) {
        let cases = golden();
        assert_eq!(cases.len(), 3, "cases in the file");
        for mut case in cases {
            for (index, (gradient, expected)) in case.steps.iter().enumerate() {
                let split = index % 2 == 1;
                case.before = case.before.updated_on(device, gradient, case.first, split);
                case.first.step += 1;
                let [expected, found] = [expected, &case.before].map(State::outputs);
                let [expected_w, found_w] = [&expected[..1], &found[..1]];
                assert_close(expected_w, found_w, (TOLERANCE, 0.0), name);
                assert_close(&expected, &found, (TORCH_MOMENT_TOLERANCE, 0.0), name);
            }
        }
    }
    check(&Scalar::<f32>::new(), "scalar");
    check(&Scalar::<f64>::new(), "scalar in f64");
    check(&cpu(), "cpu");
}
