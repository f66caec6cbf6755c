//! How fast each operation is, at the shapes of a 135M model: `GFLOP/s` beside
//! what the `gemm` crate reaches on the plain product, GB/s for what waits for
//! memory.
//!
//! ```text
//! cargo bench -p kernels -- [NUM_THREADS] [PART_OF_A_NAME]
//! ```
#![expect(clippy::print_stdout, reason = "a table is what a bench is for")]

use std::time::{Duration, Instant};

use kernels::fp8::Update;
use kernels::{
    AdamW, Arena, AttentionShape, Buffer, Cpu, Device, Gelu, Master, Moments, Purpose, RmsNorm,
    Rope, RunningMax, ScoreBias, Weight, WeightFormat,
};

/// Tokens of a micro-batch.
const T: usize = 512;
/// Model width.
const C: usize = 576;
/// Width of the MLP.
const F: usize = 1536;
/// Rows of the vocabulary in one bucket.
const V: usize = 7168;
/// Elements of an optimizer run.
const RUN: usize = 4 << 20;

/// Each case runs at least this long.
const CASE_TIME: Duration = Duration::from_millis(150);

/// What a run of a case comes to.
enum Work {
    Flops(usize),
    Bytes(usize),
}

struct Bench {
    device: Cpu,
    filter: String,
    num_threads: usize,
}

impl Bench {
    /// Prints the best time of a case.
    fn case(&self, name: &str, work: &Work, mut run: impl FnMut()) {
        if !name.contains(&self.filter) {
            return;
        }
        run();
        let (start, mut best) = (Instant::now(), Duration::MAX);
        while start.elapsed() < CASE_TIME {
            let before = Instant::now();
            run();
            best = best.min(before.elapsed());
        }
        let rate = |amount: usize| amount as f64 / best.as_secs_f64() / 1e9;
        let rate = match *work {
            Work::Flops(flops) => format!("{:8.1} GFLOP/s", rate(flops)),
            Work::Bytes(bytes) => format!("{:8.1} GB/s", rate(bytes)),
        };
        println!("{name:44} {:9.3} ms {rate}", best.as_secs_f64() * 1e3);
    }

    fn buffer(&self, len: usize) -> Buffer {
        let mut buffer = self
            .device
            .alloc(len, Purpose::Activation)
            .expect("the arena holds every case");
        self.device.write(&numbers(len), &mut buffer, 0);
        buffer
    }
}

/// Small numbers of both signs.
fn numbers(len: usize) -> Vec<f32> {
    (0..len)
        .map(|index| (index * 7919 % 1000) as f32 / 1000.0 - 0.5)
        .collect()
}

/// The same as bytes in `format`.
fn bytes(len: usize, format: WeightFormat) -> Vec<u8> {
    let skip = 4 - format.size_bytes();
    numbers(len)
        .into_iter()
        .flat_map(|number| number.to_le_bytes().into_iter().skip(skip))
        .collect()
}

fn main() {
    let mut arguments = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with("--"));
    let num_threads = arguments
        .next()
        .map_or(2, |number| number.parse().expect("a number of threads"));
    let bench = Bench {
        device: Cpu::new(Arena::new(1 << 30).expect("address space"), num_threads),
        filter: arguments.next().unwrap_or_default(),
        num_threads,
    };
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(num_threads)
        .build()
        .expect("threads");
    pool.install(|| {
        products(&bench);
        linears(&bench);
        attentions(&bench);
        attention_variants(&bench);
        pointwise(&bench);
        loss(&bench);
        optimizer(&bench);
    });
}

/// The limit: plain products by the `gemm` crate's own threads.
fn products(bench: &Bench) {
    for (o, i) in [(F, C), (C, F), (C, C)] {
        let (x, w, mut y) = (numbers(T * i), numbers(o * i), vec![0.0; T * o]);
        let name = format!("gemm crate [{T}, {i}] x [{i}, {o}]");
        bench.case(&name, &Work::Flops(2 * T * o * i), || {
            product([T, o, i], &mut y, &x, &w, bench.num_threads);
        });
    }
}

/// `y = x w`.
#[expect(unsafe_code, reason = "the crate's interface is one unsafe function")]
fn product([m, n, k]: [usize; 3], y: &mut [f32], x: &[f32], w: &[f32], num_threads: usize) {
    assert_eq!([y.len(), x.len(), w.len()], [m * n, m * k, k * n]);
    let stride = |elements: usize| isize::try_from(elements).expect("a small matrix");
    // SAFETY: the three matrices are dense and row-major, of the sizes that were
    // just checked, initialised, and `y` overlaps neither operand.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            y.as_mut_ptr(),
            1,
            stride(n),
            false,
            x.as_ptr(),
            1,
            stride(k),
            w.as_ptr(),
            1,
            stride(n),
            1.0,
            1.0,
            false,
            false,
            false,
            gemm::Parallelism::Rayon(num_threads),
        );
    }
}

fn linears(bench: &Bench) {
    let device = &bench.device;
    for (o, i) in [(F, C), (C, F), (C, C), (192, C), (V, C)] {
        for t in [1, T] {
            let x = bench.buffer(t * i);
            let mut y = bench.buffer(t * o);
            let mut dx = bench.buffer(t * i);
            let mut grad = bench.buffer(o * i);
            for format in [WeightFormat::F32, WeightFormat::Bf16] {
                let stored = bytes(o * i, format);
                let weight = Weight::whole(o, i, format, &stored[..]);
                let work = match t {
                    1 => Work::Bytes(stored.len()),
                    _ => Work::Flops(2 * t * o * i),
                };
                let label = format!("{t}x{i}->{o} {format:?}");
                bench.case(&format!("linear {label}"), &work, || {
                    let done = device.linear(&x, &weight, None, &mut y, false);
                    done.expect("workspace");
                });
                bench.case(&format!("linear_dgrad {label}"), &work, || {
                    let done = device.linear_dgrad(&y, &weight, &mut dx, true);
                    done.expect("workspace");
                });
            }
            let work = Work::Flops(2 * t * o * i);
            bench.case(&format!("linear_wgrad {t}x{i}->{o}"), &work, || {
                device.linear_wgrad(&y, &x, t, &mut grad, 0, true);
            });
        }
    }
}

fn attentions(bench: &Bench) {
    let device = &bench.device;
    let shape = AttentionShape {
        batch: 1,
        num_queries: T,
        num_keys: T,
        heads: 9,
        kv_heads: 3,
        head_dim: 64,
        window: None,
        bias: ScoreBias::None,
    };
    for num_queries in [512, 2048] {
        let shape = AttentionShape {
            num_queries,
            num_keys: num_queries,
            ..shape
        };
        let [q, y, dy] = [(); 3].map(|()| bench.buffer(num_queries * 9 * 64));
        let mut dq = bench.buffer(q.len());
        let [k, v] = [(); 2].map(|()| bench.buffer(num_queries * 3 * 64));
        let [mut dk, mut dv] = [(); 2].map(|()| bench.buffer(k.len()));
        let (mut y, mut lse) = (y, bench.buffer(num_queries * 9));
        let pairs = 9 * num_queries * (num_queries + 1) / 2;
        let name = format!("attention {num_queries} tokens, 9 heads over 3");
        bench.case(&name, &Work::Flops(4 * pairs * 64), || {
            let done = device.attention(&q, &k, &v, shape, &mut y, &mut lse);
            done.expect("workspace");
        });
        let name = format!("attention_backward {num_queries} tokens");
        bench.case(&name, &Work::Flops(10 * pairs * 64), || {
            let (qkv, dqkv) = ([&q, &k, &v], [&mut dq, &mut dk, &mut dv]);
            let done = device.attention_backward(qkv, &y, &lse, &dy, shape, dqkv);
            done.expect("workspace");
        });
    }
    let shape = AttentionShape {
        num_queries: 1,
        num_keys: 4096,
        ..shape
    };
    let (q, mut y, mut lse) = (bench.buffer(576), bench.buffer(576), bench.buffer(9));
    let [k, v] = [(); 2].map(|()| bench.buffer(4096 * 192));
    let work = Work::Bytes(8 * 4096 * 192);
    bench.case("attention 1 token over 4096 keys", &work, || {
        let done = device.attention(&q, &k, &v, shape, &mut y, &mut lse);
        done.expect("workspace");
    });
}

/// 2048 tokens with a window of 512, with linear biases, and the fused heads of a
/// model that has them.
fn attention_variants(bench: &Bench) {
    const TOKENS: usize = 2048;
    const WINDOW: usize = 512;
    let device = &bench.device;
    let plain = AttentionShape {
        batch: 1,
        num_queries: TOKENS,
        num_keys: TOKENS,
        heads: 9,
        kv_heads: 3,
        head_dim: 64,
        window: None,
        bias: ScoreBias::None,
    };
    let windowed = AttentionShape {
        window: Some(WINDOW),
        ..plain
    };
    let biased = AttentionShape {
        bias: ScoreBias::Alibi,
        ..plain
    };
    let [mut q, mut y, dy, mut dq] = [(); 4].map(|()| bench.buffer(TOKENS * 9 * 64));
    let [mut k, mut v, mut dk, mut dv] = [(); 4].map(|()| bench.buffer(TOKENS * 3 * 64));
    let mut lse = bench.buffer(TOKENS * 9);
    let whole = TOKENS * (TOKENS + 1) / 2;
    let in_window = WINDOW * (WINDOW + 1) / 2 + (TOKENS - WINDOW) * WINDOW;
    for (name, shape, pairs) in [
        ("window of 512", windowed, 9 * in_window),
        ("linear biases", biased, 9 * whole),
    ] {
        let label = format!("attention {TOKENS} tokens, {name}");
        bench.case(&label, &Work::Flops(4 * pairs * 64), || {
            let done = device.attention(&q, &k, &v, shape, &mut y, &mut lse);
            done.expect("workspace");
        });
        let label = format!("attention_backward {TOKENS} tokens, {name}");
        bench.case(&label, &Work::Flops(10 * pairs * 64), || {
            let (qkv, dqkv) = ([&q, &k, &v], [&mut dq, &mut dk, &mut dv]);
            let done = device.attention_backward(qkv, &y, &lse, &dy, shape, dqkv);
            done.expect("workspace");
        });
    }
    let mut fused = bench.buffer(TOKENS * 15 * 64);
    let work = Work::Bytes(8 * TOKENS * 15 * 64);
    bench.case("split_heads", &work, || {
        device.split_heads(&fused, 3, 64, [&mut q, &mut k, &mut v]);
    });
    bench.case("merge_heads", &work, || {
        device.merge_heads([&q, &k, &v], 3, 64, &mut fused);
    });
}

fn pointwise(bench: &Bench) {
    let device = &bench.device;
    norms(bench);
    gelus(bench);
    let (x, mut y) = (bench.buffer(T * C), bench.buffer(T * C));
    bench.case("add", &Work::Bytes(12 * T * C), || {
        device.add(&x, &mut y, 0);
    });
    let inv_freq: Vec<f32> = (0..32)
        .map(|j| 10_000_f32.powf(-(j as f32) / 32.0))
        .collect();
    let positions: Vec<u32> = (0..512).collect();
    bench.case("rope", &Work::Bytes(8 * T * C), || {
        let rope = Rope {
            inv_freq: &inv_freq,
            scale: 1.0,
        };
        device.rope(&mut y, 9, &positions, rope, false);
    });
    let [mut gate, mut up, mut out] = [(); 3].map(|()| bench.buffer(T * F));
    bench.case("swiglu", &Work::Bytes(12 * T * F), || {
        device.swiglu(&gate, &up, &mut out);
    });
    bench.case("swiglu_backward", &Work::Bytes(24 * T * F), || {
        device.swiglu_backward(&mut gate, &mut up, &mut out);
    });
    let large = bench.buffer(RUN);
    bench.case("sum_of_squares", &Work::Bytes(4 * RUN), || {
        std::hint::black_box(device.sum_of_squares(&large));
    });
}

fn norms(bench: &Bench) {
    let device = &bench.device;
    let (x, dy) = (bench.buffer(T * C), bench.buffer(T * C));
    let [mut y, mut dx] = [(); 2].map(|()| bench.buffer(T * C));
    let (mut rstd, mut stats) = (bench.buffer(T), bench.buffer(2 * T));
    let mut grad = bench.buffer(2 * C);
    let stored = bytes(C, WeightFormat::F32);
    let weight = Weight::whole(1, C, WeightFormat::F32, &stored[..]);
    let norm = RmsNorm {
        eps: 1e-5,
        offset: 0.0,
    };
    bench.case("rms_norm", &Work::Bytes(8 * T * C), || {
        device.rms_norm(&x, &weight, norm, &mut y, &mut rstd);
    });
    bench.case("rms_norm_backward", &Work::Bytes(16 * T * C), || {
        let done = device.rms_norm_backward(&x, &weight, norm, &rstd, &dy, &mut dx, &mut grad, 0);
        done.expect("workspace");
    });
    bench.case("layer_norm", &Work::Bytes(8 * T * C), || {
        device.layer_norm(&x, &weight, &weight, 1e-5, &mut y, &mut stats);
    });
    bench.case("layer_norm_backward", &Work::Bytes(16 * T * C), || {
        let at = [0, C];
        let done = device.layer_norm_backward(&x, &weight, &stats, &dy, &mut dx, &mut grad, at);
        done.expect("workspace");
    });
}

/// A backward overwrites its inputs, and what is overwritten again and again becomes
/// subnormal, which is slow: so each has numbers of its own, and comes last.
fn gelus(bench: &Bench) {
    const BYTES: usize = 4 * T * F;
    let device = &bench.device;
    for form in [Gelu::Erf, Gelu::Tanh] {
        let [mut x, mut up, mut y] = [(); 3].map(|()| bench.buffer(T * F));
        bench.case(&format!("gelu {form:?}"), &Work::Bytes(2 * BYTES), || {
            device.gelu(&x, form, &mut y);
        });
        bench.case(&format!("geglu {form:?}"), &Work::Bytes(3 * BYTES), || {
            device.geglu(&x, &up, form, &mut y);
        });
        let [mut gate, mut dy] = [(); 2].map(|()| bench.buffer(T * F));
        let label = format!("gelu_backward {form:?}");
        bench.case(&label, &Work::Bytes(4 * BYTES), || {
            device.gelu_backward(&mut gate, form, &mut dy);
        });
        let label = format!("geglu_backward {form:?}");
        bench.case(&label, &Work::Bytes(6 * BYTES), || {
            device.geglu_backward(&mut x, &mut up, form, &mut y);
        });
    }
}

fn loss(bench: &Bench) {
    let device = &bench.device;
    let mut logits = bench.buffer(T * V);
    let targets: Vec<u32> = (0..512).map(|token| token * 13).collect();
    let mut running = RunningMax {
        max: bench.buffer(T),
        sum: bench.buffer(T),
        target: bench.buffer(T),
    };
    bench.case("cross_entropy", &Work::Bytes(4 * T * V), || {
        device.cross_entropy(&logits, 0, &targets, &mut running, true);
    });
    bench.case("cross_entropy_backward", &Work::Bytes(8 * T * V), || {
        device.cross_entropy_backward(&mut logits, 0, &targets, &running, 1.0);
    });
}

fn optimizer(bench: &Bench) {
    let device = &bench.device;
    let grad = bench.buffer(RUN);
    let update = Update {
        adamw: AdamW {
            lr: 1e-3,
            beta1: 0.9,
            beta2: 0.95,
            eps: 1e-8,
            weight_decay: 0.1,
            step: 10,
            grad_scale: 1.0,
        },
        random: fp8::Random {
            seed: 0,
            step: 10,
            parameter: 0,
        },
        first_row: 0,
    };
    let (mut m, mut v) = (vec![0; 4 * RUN], vec![0; 4 * RUN]);
    let mut whole = bytes(RUN, WeightFormat::F32);
    let mut high = bytes(RUN, WeightFormat::Bf16);
    let mut low = vec![0; 2 * RUN];
    bench.case("adamw f32", &Work::Bytes(28 * RUN), || {
        let moments = Moments::F32 {
            m: &mut m[..],
            v: &mut v[..],
        };
        device.adamw(Master::F32(&mut whole[..]), moments, &grad, 0, &update);
    });
    bench.case("adamw bf16 + 16 bits", &Work::Bytes(28 * RUN), || {
        let moments = Moments::F32 {
            m: &mut m[..],
            v: &mut v[..],
        };
        let master = Master::Bf16 {
            high: &mut high[..],
            low: &mut low[..],
        };
        device.adamw(master, moments, &grad, 0, &update);
    });
}
