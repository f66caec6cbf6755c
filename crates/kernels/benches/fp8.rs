//! How fast codes, nested masters and 8-bit moments are made, read and updated:
//! GB/s of all bytes read and written, beside what copying memory reaches.
//!
//! ```text
//! cargo bench -p kernels --bench fp8 -- [NUM_THREADS] [PART_OF_A_NAME]
//! ```
//!
//! Rows, tiles, panels and moments run on one thread, masters and updates on all.
#![expect(clippy::print_stdout, reason = "a table is what a bench is for")]

use std::time::{Duration, Instant};

use fp8::bf16::round_nearest;
use fp8::{Format, Headroom, MomentPlanes, NestedPlanes, Nesting, Random, Rounding};
use kernels::AdamW;
use kernels::fp8::{
    TiledCodes, Update, adamw_bf16, adamw_bf16_plus8, adamw_nested, decode_bf16, decode_moments,
    decode_nested, decode_rows, encode_bf16, encode_moments, encode_nested, quantize_rows,
    quantize_tiles,
};
use rayon::prelude::*;

/// Columns of the matrix.
const COLS: usize = 512;

/// Its rows: one row tile, which stays in the second cache, and far more than any
/// cache holds.
const ROWS: [(&str, usize); 2] = [("in the cache", 128), ("from memory", 32768)];

/// Each case runs at least this long.
const CASE_TIME: Duration = Duration::from_millis(200);

struct Bench {
    filter: String,
    rows: usize,
}

impl Bench {
    fn len(&self) -> usize {
        self.rows * COLS
    }

    /// Prints the best rate of a case that moves so many bytes an element.
    fn case(&self, name: &str, bytes_per_element: f64, mut run: impl FnMut()) {
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
        let elements = self.len() as f64 / best.as_secs_f64() / 1e9;
        let bytes = elements * bytes_per_element;
        println!("{name:44} {elements:8.2} G elements/s {bytes:8.1} GB/s");
    }
}

/// Small numbers of both signs, over a few binades.
fn numbers(bench: &Bench) -> Vec<f32> {
    let number = |index: usize| (index * 7919 % 1000) as f32 / 1000.0 - 0.5;
    (0..bench.len())
        .map(|index| number(index) * number(index / 1000 + 3))
        .collect()
}

fn main() {
    let mut arguments = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with("--"));
    let num_threads = arguments
        .next()
        .map_or(2, |number| number.parse().expect("a number of threads"));
    let filter = arguments.next().unwrap_or_default();
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(num_threads)
        .build()
        .expect("threads");
    for (place, rows) in ROWS {
        println!("{rows} x {COLS}, {place}");
        let filter = filter.clone();
        let bench = Bench { filter, rows };
        pool.install(|| {
            copies(&bench);
            codes(&bench);
            masters(&bench);
            updates(&bench);
        });
    }
}

/// The limit.
fn copies(bench: &Bench) {
    let source = numbers(bench);
    let mut target = vec![0.0; bench.len()];
    bench.case("copy f32, one thread", 8.0, || {
        target.copy_from_slice(&source);
    });
    bench.case("copy f32, all threads", 8.0, || {
        let chunks = target.par_chunks_mut(1 << 16);
        chunks
            .zip(source.par_chunks(1 << 16))
            .for_each(|(target, source)| target.copy_from_slice(source));
    });
}

fn codes(bench: &Bench) {
    let mut values = numbers(bench);
    let mut codes = vec![0; bench.len()];
    let mut row_scales = vec![0; bench.len() / 128];
    let mut scales = vec![0; bench.len() / 128 / 128];
    for format in [Format::E4M3, Format::E5M2] {
        bench.case(&format!("quantize_rows {format:?}"), 5.0, || {
            quantize_rows(&values, COLS, format, &mut codes, &mut row_scales);
        });
        bench.case(&format!("decode_rows {format:?}"), 5.0, || {
            decode_rows(&codes, &row_scales, COLS, format, &mut values);
        });
    }
    bench.case("quantize_tiles", 5.0, || {
        quantize_tiles(&values, COLS, Headroom::None, &mut codes, &mut scales);
    });
    let tiled = TiledCodes {
        cols: COLS,
        codes: &codes,
        scales: &scales,
    };
    // As a product does: panels of a few tiles that stay in the cache.
    let mut panel = vec![0.0; 128 * COLS];
    for is_transposed in [false, true] {
        let name = if is_transposed {
            "decode panels, transposed"
        } else {
            "decode panels"
        };
        bench.case(name, 5.0, || {
            for row in (0..bench.rows).step_by(128) {
                let (rows, cols) = (row..row + 128, 0..COLS);
                if is_transposed {
                    tiled.decode_transposed(rows, cols, &mut panel);
                } else {
                    tiled.decode(rows, cols, &mut panel);
                }
            }
        });
    }
}

fn masters(bench: &Bench) {
    let mut values = numbers(bench);
    for (nesting, bytes) in [(Nesting::N16, 6.0), (Nesting::N24, 7.0)] {
        let mut planes = NestedPlanes::zeros(bench.rows, COLS, nesting);
        bench.case(&format!("encode_nested {nesting:?}"), bytes, || {
            let planes = planes.as_mut();
            encode_nested(&values, planes, Headroom::Binade, Rounding::Nearest);
        });
        bench.case(&format!("decode_nested {nesting:?}"), bytes, || {
            decode_nested(&planes.as_ref(), &mut values);
        });
    }
    let halves = values.iter().flat_map(|x| round_nearest(*x).to_le_bytes());
    let mut halves: Vec<u8> = halves.collect();
    let mut planes = NestedPlanes::zeros(bench.rows, COLS, Nesting::N16);
    bench.case("encode_bf16 N16", 4.0, || {
        encode_bf16(&halves, planes.as_mut(), Headroom::None).expect("finite numbers");
    });
    bench.case("decode_bf16 N16", 4.0, || {
        decode_bf16(&planes.as_ref(), &mut halves);
    });
    let mut squares: Vec<f32> = values.iter().map(|x| x * x).collect();
    let mut moments = MomentPlanes::zeros(bench.rows, COLS);
    let random = Some((RANDOM, 0));
    for (name, random) in [("nearest", None), ("stochastic", random)] {
        bench.case(&format!("encode_moments {name}"), 10.0, || {
            encode_moments(&values, &squares, &mut moments.as_mut(), random);
        });
    }
    bench.case("decode_moments", 10.0, || {
        decode_moments(&moments.as_ref(), &mut values, &mut squares);
    });
}

const RANDOM: Random = Random {
    seed: 1,
    step: 10,
    parameter: 0,
};

fn updates(bench: &Bench) {
    let grad: Vec<f32> = numbers(bench).iter().map(|x| x * 1e-3).collect();
    let mut moments = MomentPlanes::zeros(bench.rows, COLS);
    for beta2 in [0.95, 0.999] {
        let update = Update {
            adamw: AdamW {
                lr: 1e-4,
                beta1: 0.9,
                beta2,
                eps: 1e-8,
                weight_decay: 0.1,
                step: 10,
                grad_scale: 1.0,
            },
            random: RANDOM,
            first_row: 0,
        };
        for (nesting, bytes) in [(Nesting::N16, 12.0), (Nesting::N24, 14.0)] {
            let mut planes = NestedPlanes::zeros(bench.rows, COLS, nesting);
            encode_nested(
                &numbers(bench),
                planes.as_mut(),
                Headroom::Binade,
                Rounding::Nearest,
            );
            bench.case(
                &format!("adamw_nested {nesting:?}, beta2 {beta2}"),
                bytes,
                || {
                    adamw_nested(planes.as_mut(), moments.as_mut(), &grad, &update);
                },
            );
        }
        let (mut high, mut low) = (vec![0; 2 * bench.len()], vec![0; bench.len()]);
        bench.case(&format!("adamw_bf16, beta2 {beta2}"), 12.0, || {
            adamw_bf16(&mut high, moments.as_mut(), &grad, &update);
        });
        bench.case(&format!("adamw_bf16_plus8, beta2 {beta2}"), 14.0, || {
            adamw_bf16_plus8((&mut high, &mut low), moments.as_mut(), &grad, &update);
        });
    }
}
