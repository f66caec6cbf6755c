//! What rounding to FP8 adds to the three products of a linear layer.

use fp8::Format;
use kernels::{Arena, Cpu, Scalar, WeightFormat};

use crate::agreement::{ARENA_BYTES, Under};
use crate::inputs::{Random, StoredWeight};

const TOKENS: usize = 256;
const OUTPUTS: usize = 384;
const INPUTS: usize = 320;

/// The products with rounded operands where the weight is in codes.
fn products<D: Under>(device: &D, format: WeightFormat, gradients: Format) -> [Vec<f32>; 3] {
    let random = &mut Random::new(21);
    let weight = random.scaled(OUTPUTS * INPUTS, 0.03);
    let weight = StoredWeight::new(&weight, OUTPUTS, format, 2);
    let x = random.normals(TOKENS * INPUTS);
    // Rows of gradients differ by up to 2^20.
    let mut dy = random.normals(TOKENS * OUTPUTS);
    for row in dy.chunks_mut(OUTPUTS) {
        let power = i32::try_from(random.below(20)).expect("small") - 20;
        for number in row {
            *number *= 2_f32.powi(power);
        }
    }
    let (mut x, plain_dy) = (device.buffer(&x), device.buffer(&dy));
    let mut dy = device.buffer(&dy);
    if format == WeightFormat::E4m3 {
        device.quantize(&mut x, INPUTS, Format::E4M3);
        device.quantize(&mut dy, OUTPUTS, gradients);
    }
    let mut y = device.empty(TOKENS * OUTPUTS);
    let mut dx = device.empty(TOKENS * INPUTS);
    let mut grad = device.empty(OUTPUTS * INPUTS);
    let full = "room in the arena";
    let weight = weight.on::<D>();
    device.linear(&x, &weight, None, &mut y, false).expect(full);
    device
        .linear_dgrad(&dy, &weight, &mut dx, false)
        .expect(full);
    device.linear_wgrad(&plain_dy, &x, TOKENS, &mut grad, 0, false);
    [&y, &dx, &grad].map(|buffer| device.numbers(buffer))
}

/// The mean over rows of their signal to noise, in dB.
fn mean_sqnr(expected: &[f32], found: &[f32], cols: usize) -> f64 {
    let rows = expected.chunks(cols).zip(found.chunks(cols));
    let of_rows = rows.map(|(expected, found)| {
        let power = |x: f32| f64::from(x) * f64::from(x);
        let signal: f64 = expected.iter().map(|&x| power(x)).sum();
        let noise: f64 = expected.iter().zip(found).map(|(a, b)| power(a - b)).sum();
        10.0 * (signal / noise).log10()
    });
    of_rows.sum::<f64>() / (expected.len() / cols) as f64
}

/// Two rounded operands are expected at 28.5 dB (24.6 with one in E5M2), one at 31.5: above the band a
/// number was not rounded at all, below it a scale is wrong.
#[test]
fn products_in_fp8_have_the_noise_of_their_operands() {
    let expected = products(&Scalar::<f64>::new(), WeightFormat::F32, Format::E4M3);
    for (gradients, dx_band) in [(Format::E4M3, 28.0..29.0), (Format::E5M2, 24.0..25.0)] {
        let arena = Arena::new(ARENA_BYTES).expect("address space");
        let found = products(&Cpu::new(arena, 2), WeightFormat::E4m3, gradients);
        let bands = [
            ("y", OUTPUTS, 28.0..29.0),
            ("dx", INPUTS, dx_band),
            ("grad", INPUTS, 30.0..32.5),
        ];
        for ((expected, found), (name, cols, band)) in expected.iter().zip(&found).zip(bands) {
            let noise = mean_sqnr(expected, found, cols);
            assert!(
                band.contains(&noise),
                "{gradients:?}, {name}: {noise:.2} dB"
            );
        }
    }
}
