//! Every backward of the reference against central differences in f64.
//!
//! The loss is `sum(dy * y)` with a random `dy`. An input `x` is moved in f64;
//! a weight is moved in its f32 bytes by a power of two, which is exact, and as
//! every output is linear in it, so is the difference.

use kernels::{
    AttentionShape, Device, Gelu, IGNORED, Numbers, Purpose, RmsNorm, Rope, RunningMax, Scalar,
    ScoreBias,
};

use crate::inputs::{Random, StoredWeight};

/// Step of an input: the difference errs by its square times the third
/// derivative, 1e-10, and by the loss's rounding over it, 1e-16 * 100 / 1e-5.
const STEP: f64 = 1e-5;

/// Ten times what the step's two errors come to.
const TOLERANCE: f64 = 1e-8;

/// Step of a weight; see [`Random::normal`].
const WEIGHT_STEP: f32 = 1.0 / 1024.0;

type Reference = Scalar<f64>;

fn buffer(numbers: &[f32]) -> Numbers<f64> {
    Numbers(numbers.iter().map(|&x| x.into()).collect())
}

fn empty(len: usize) -> Numbers<f64> {
    reference()
        .alloc(len, Purpose::Activation)
        .expect("the reference has room")
}

fn reference() -> Reference {
    Scalar::new()
}

fn zeroes(len: usize) -> Numbers<f64> {
    Numbers(vec![0.0; len])
}

fn weighted(y: &Numbers<f64>, dy: &Numbers<f64>) -> f64 {
    y.0.iter().zip(&dy.0).map(|(y, dy)| y * dy).sum()
}

#[track_caller]
fn assert_gradient(name: &str, gradient: &[f64], difference: impl Fn(usize) -> f64) {
    let largest = gradient.iter().fold(0.0_f64, |max, x| max.max(x.abs()));
    assert!(largest > 0.0, "{name}: a gradient of zeroes shows nothing");
    for (index, &found) in gradient.iter().enumerate() {
        let expected = difference(index);
        assert!(
            (found - expected).abs() <= TOLERANCE * largest.max(1.0),
            "{name}[{index}] is {found:e}, the difference {expected:e}"
        );
    }
}

/// Holds `gradient` against moving each number of `x`.
#[track_caller]
fn assert_input_gradient(
    name: &str,
    gradient: &Numbers<f64>,
    x: &Numbers<f64>,
    loss: impl Fn(&Numbers<f64>) -> f64,
) {
    assert_gradient(name, &gradient.0, |index| {
        let moved = |step| {
            let mut x = x.clone();
            x.0[index] += step;
            loss(&x)
        };
        (moved(STEP) - moved(-STEP)) / (2.0 * STEP)
    });
}

/// Holds `gradient` against moving each element of an f32 weight.
#[track_caller]
fn assert_weight_gradient(
    name: &str,
    gradient: &[f64],
    weight: &[f32],
    loss: impl Fn(&[f32]) -> f64,
) {
    assert_gradient(name, gradient, |index| {
        let moved = |step| {
            let mut weight = weight.to_vec();
            weight[index] += step;
            loss(&weight)
        };
        (moved(WEIGHT_STEP) - moved(-WEIGHT_STEP)) / (2.0 * f64::from(WEIGHT_STEP))
    });
}

const NORM: RmsNorm = RmsNorm {
    eps: 0.1,
    offset: 0.75,
};

#[test]
fn rms_norm() {
    for (t, c) in [(1, 1), (1, 7), (5, 12)] {
        let random = &mut Random::new(20);
        let weight = random.normals(c);
        let x = buffer(&random.normals(t * c));
        let dy = buffer(&random.normals(t * c));
        let forward = |x: &Numbers<f64>, weight: &[f32]| {
            let (mut y, mut rstd) = (empty(t * c), empty(t));
            let weight = StoredWeight::vector(weight);
            reference().rms_norm(x, &weight.on::<Reference>(), NORM, &mut y, &mut rstd);
            (y, rstd)
        };
        let (_, rstd) = forward(&x, &weight);
        let (mut dx, mut grad) = (zeroes(t * c), zeroes(c));
        let stored = StoredWeight::vector(&weight);
        reference()
            .rms_norm_backward(
                &x,
                &stored.on::<Reference>(),
                NORM,
                &rstd,
                &dy,
                &mut dx,
                &mut grad,
                0,
            )
            .expect("the reference has room");
        assert_input_gradient("dx", &dx, &x, |x| weighted(&forward(x, &weight).0, &dy));
        assert_weight_gradient("weight", &grad.0, &weight, |weight| {
            weighted(&forward(&x, weight).0, &dy)
        });
    }
}

#[test]
fn layer_norm() {
    for (t, c) in [(1, 2), (1, 7), (5, 12)] {
        let random = &mut Random::new(27);
        let (weight, bias) = (random.normals(c), random.normals(c));
        let x = buffer(&random.normals(t * c));
        let dy = buffer(&random.normals(t * c));
        let forward = |x: &Numbers<f64>, weight: &[f32], bias: &[f32]| {
            let (mut y, mut stats) = (empty(t * c), empty(2 * t));
            let [weight, bias] = [weight, bias].map(StoredWeight::vector);
            let vectors = [&weight, &bias].map(|vector| vector.on::<Reference>());
            reference().layer_norm(x, &vectors[0], &vectors[1], 0.1, &mut y, &mut stats);
            (y, stats)
        };
        let (_, stats) = forward(&x, &weight, &bias);
        let (mut dx, mut grad) = (zeroes(t * c), zeroes(2 * c));
        let stored = StoredWeight::vector(&weight);
        let vector = stored.on::<Reference>();
        reference()
            .layer_norm_backward(&x, &vector, &stats, &dy, &mut dx, &mut grad, [0, c])
            .expect("the reference has room");
        let loss = |x: &Numbers<f64>, weight: &[f32], bias: &[f32]| {
            weighted(&forward(x, weight, bias).0, &dy)
        };
        let (weight_grad, bias_grad) = grad.0.split_at(c);
        assert_input_gradient("dx", &dx, &x, |x| loss(x, &weight, &bias));
        assert_weight_gradient("weight", weight_grad, &weight, |w| loss(&x, w, &bias));
        assert_weight_gradient("bias", bias_grad, &bias, |b| loss(&x, &weight, b));
    }
}

#[test]
fn linear() {
    let (t, o, i) = (3, 5, 4);
    let random = &mut Random::new(21);
    let (weight, bias) = (random.normals(o * i), random.normals(o));
    let x = buffer(&random.normals(t * i));
    let dy = buffer(&random.normals(t * o));
    let stored = |numbers: &[f32]| StoredWeight::new(numbers, o, kernels::WeightFormat::F32, 2);
    let loss = |x: &Numbers<f64>, weight: &[f32], bias: &[f32]| {
        let mut y = empty(t * o);
        let (weight, bias) = (stored(weight), StoredWeight::vector(bias));
        let bias = bias.on::<Reference>();
        reference()
            .linear(x, &weight.on::<Reference>(), Some(&bias), &mut y, false)
            .expect("the reference has room");
        weighted(&y, &dy)
    };
    let (mut dx, mut grad) = (empty(t * i), zeroes(o * i + o));
    reference()
        .linear_dgrad(&dy, &stored(&weight).on::<Reference>(), &mut dx, false)
        .expect("the reference has room");
    reference().linear_wgrad(&dy, &x, t, &mut grad, 0, true);
    reference().bias_grad(&dy, t, &mut grad, o * i);
    let (weight_grad, bias_grad) = grad.0.split_at(o * i);
    assert_input_gradient("dx", &dx, &x, |x| loss(x, &weight, &bias));
    assert_weight_gradient("weight", weight_grad, &weight, |w| loss(&x, w, &bias));
    assert_weight_gradient("bias", bias_grad, &bias, |b| loss(&x, &weight, b));
}

#[test]
fn rope() {
    let (num_heads, positions) = (2, [0, 1, 7]);
    let inv_freq = [1.0, 0.3, 0.01];
    let rope = Rope {
        inv_freq: &inv_freq,
        scale: 1.2,
    };
    let random = &mut Random::new(22);
    let len = positions.len() * num_heads * 6;
    let x = buffer(&random.normals(len));
    let dy = buffer(&random.normals(len));
    let turned = |x: &Numbers<f64>, inverse| {
        let mut x = x.clone();
        reference().rope(&mut x, num_heads, &positions, rope, inverse);
        x
    };
    let dx = turned(&dy, true);
    assert_input_gradient("dx", &dx, &x, |x| weighted(&turned(x, false), &dy));
}

#[test]
fn attention() {
    const PLAIN: (Option<usize>, ScoreBias) = (None, ScoreBias::None);
    for ([batch, len, heads, kv_heads], (window, bias)) in [
        ([1, 1, 1, 1], PLAIN),
        ([2, 5, 2, 2], PLAIN),
        ([2, 4, 4, 2], PLAIN),
        ([1, 6, 3, 1], PLAIN),
        ([2, 6, 2, 1], (Some(3), ScoreBias::None)),
        ([2, 5, 6, 3], (None, ScoreBias::Alibi)),
        ([1, 7, 4, 1], (Some(4), ScoreBias::Alibi)),
    ] {
        let shape = AttentionShape {
            batch,
            num_queries: len,
            num_keys: len,
            heads,
            kv_heads,
            head_dim: 4,
            window,
            bias,
        };
        let random = &mut Random::new(23);
        let (q_len, k_len) = (batch * len * heads * 4, batch * len * kv_heads * 4);
        let [q, k, v, dy] = [q_len, k_len, k_len, q_len].map(|len| buffer(&random.normals(len)));
        let forward = |q: &Numbers<f64>, k: &Numbers<f64>, v: &Numbers<f64>| {
            let (mut y, mut lse) = (empty(q_len), empty(batch * len * heads));
            reference()
                .attention(q, k, v, shape, &mut y, &mut lse)
                .expect("the reference has room");
            (y, lse)
        };
        let (y, lse) = forward(&q, &k, &v);
        let [mut dq, mut dk, mut dv] = [q_len, k_len, k_len].map(empty);
        let gradients = [&mut dq, &mut dk, &mut dv];
        reference()
            .attention_backward([&q, &k, &v], &y, &lse, &dy, shape, gradients)
            .expect("the reference has room");
        assert_input_gradient("dv", &dv, &v, |v| weighted(&forward(&q, &k, v).0, &dy));
        if len > 1 {
            assert_input_gradient("dq", &dq, &q, |q| weighted(&forward(q, &k, &v).0, &dy));
            assert_input_gradient("dk", &dk, &k, |k| weighted(&forward(&q, k, &v).0, &dy));
        }
    }
}

#[test]
fn swiglu() {
    let random = &mut Random::new(24);
    let [gate, up, dy] = [0; 3].map(|_| buffer(&random.normals(20)));
    let forward = |gate: &Numbers<f64>, up: &Numbers<f64>| {
        let mut y = empty(20);
        reference().swiglu(gate, up, &mut y);
        y
    };
    let (mut dgate, mut dup, mut overwritten) = (gate.clone(), up.clone(), dy.clone());
    reference().swiglu_backward(&mut dgate, &mut dup, &mut overwritten);
    assert_eq!(overwritten, forward(&gate, &up));
    assert_input_gradient("dgate", &dgate, &gate, |g| weighted(&forward(g, &up), &dy));
    assert_input_gradient("dup", &dup, &up, |u| weighted(&forward(&gate, u), &dy));
}

const FORMS: [Gelu; 2] = [Gelu::Erf, Gelu::Tanh];

#[test]
fn gelu() {
    for form in FORMS {
        let random = &mut Random::new(28);
        let [x, dy] = [0; 2].map(|_| buffer(&random.normals(20)));
        let forward = |x: &Numbers<f64>| {
            let mut y = empty(20);
            reference().gelu(x, form, &mut y);
            y
        };
        let (mut dx, mut overwritten) = (x.clone(), dy.clone());
        reference().gelu_backward(&mut dx, form, &mut overwritten);
        assert_eq!(overwritten, forward(&x));
        assert_input_gradient("dx", &dx, &x, |x| weighted(&forward(x), &dy));
    }
}

#[test]
fn geglu() {
    for form in FORMS {
        let random = &mut Random::new(29);
        let [gate, up, dy] = [0; 3].map(|_| buffer(&random.normals(20)));
        let forward = |gate: &Numbers<f64>, up: &Numbers<f64>| {
            let mut y = empty(20);
            reference().geglu(gate, up, form, &mut y);
            y
        };
        let (mut dgate, mut dup, mut overwritten) = (gate.clone(), up.clone(), dy.clone());
        reference().geglu_backward(&mut dgate, &mut dup, form, &mut overwritten);
        assert_eq!(overwritten, forward(&gate, &up));
        assert_input_gradient("dgate", &dgate, &gate, |g| weighted(&forward(g, &up), &dy));
        assert_input_gradient("dup", &dup, &up, |u| weighted(&forward(&gate, u), &dy));
    }
}

#[test]
fn fused_heads() {
    let (num_keys, group, head_dim) = (3, 2, 4);
    let random = &mut Random::new(30);
    let [q_len, k_len] = [group, 1].map(|heads| num_keys * heads * head_dim);
    let x = buffer(&random.normals(q_len + 2 * k_len));
    let dys = [q_len, k_len, k_len].map(|len| buffer(&random.normals(len)));
    let mut dx = empty(x.0.len());
    reference().merge_heads(dys.each_ref(), group, head_dim, &mut dx);
    assert_input_gradient("dx", &dx, &x, |x| {
        let [mut q, mut k, mut v] = [q_len, k_len, k_len].map(empty);
        reference().split_heads(x, group, head_dim, [&mut q, &mut k, &mut v]);
        let parts = [&q, &k, &v].into_iter().zip(&dys);
        parts.map(|(y, dy)| weighted(y, dy)).sum()
    });
}

#[test]
fn cross_entropy() {
    let (vocabulary, targets, scale) = (6, [2, 5, IGNORED, 0], 0.25);
    let logits = buffer(&Random::new(25).normals(targets.len() * vocabulary));
    let statistics = |logits: &Numbers<f64>| {
        let [max, sum, target] = [targets.len(); 3].map(empty);
        let mut running = RunningMax { max, sum, target };
        reference().cross_entropy(logits, 0, &targets, &mut running, true);
        running
    };
    let mut gradient = logits.clone();
    let running = statistics(&logits);
    reference().cross_entropy_backward(&mut gradient, 0, &targets, &running, scale);
    assert_input_gradient("dlogits", &gradient, &logits, |logits| {
        f64::from(scale) * reference().cross_entropy_loss(&statistics(logits), &targets)
    });
}

#[test]
fn embedding() {
    let (rows, cols, ids) = (6, 3, [4, 0, 4, 2, 5]);
    let random = &mut Random::new(26);
    let table = random.normals(rows * cols);
    let dy = buffer(&random.normals(ids.len() * cols));
    let mut grad = zeroes(rows * cols);
    let scale = 2.5;
    reference().embedding_backward(&ids, &dy, 0..rows, scale, &mut grad, 0);
    assert_weight_gradient("table", &grad.0, &table, |table| {
        let table = StoredWeight::new(table, rows, kernels::WeightFormat::F32, 3);
        let mut y = empty(ids.len() * cols);
        reference().embedding(&ids, &table.on::<Reference>(), 0, scale, &mut y);
        weighted(&y, &dy)
    });
}
