//! What holds for every number, shape and world size.
#![expect(
    clippy::unwrap_used,
    clippy::float_cmp,
    reason = "in a test a failure may panic, and codes stand for exact numbers"
)]

use std::f32::consts::TAU;
use std::ops::Range;

use fp8::bf16::{round_nearest, widen};
use fp8::{
    Encoded, Format, Fp8Error, Headroom, MomentPlanes, NestedPlanes, Nesting, Random, Rounding,
    ScaleInv, TILE, amax, encode_in_place, quantize_rows, quantize_tiles, round_rows,
};
use proptest::prelude::*;

/// Any f32 by its bits, most of them in the range of the formats.
fn number() -> impl Strategy<Value = f32> {
    let near = (any::<bool>(), 0x3000_0000_u32..0x4900_0000);
    let near = near.prop_map(|(negative, bits)| f32::from_bits(u32::from(negative) << 31 | bits));
    prop_oneof![4 => near, 1 => any::<u32>().prop_map(f32::from_bits)]
}

/// Random bits that need no generator handed around.
fn bits(seed: u64, index: usize) -> u32 {
    let random = Random {
        seed,
        step: 0,
        parameter: 0,
    };
    random.bits(index >> 20, index & 0xF_FFFF)
}

/// Numbers in (0, 1).
fn uniform(seed: u64, index: usize) -> f32 {
    (bits(seed, index) >> 8) as f32 / 16_777_216.0 + 3e-8
}

/// Normally distributed numbers.
fn gaussian(seed: u64, len: usize) -> Vec<f32> {
    let pair = |index| {
        let radius = (-2.0 * uniform(seed, 2 * index).ln()).sqrt();
        radius * (TAU * uniform(seed, 2 * index + 1)).cos()
    };
    (0..len).map(pair).collect()
}

/// The same as bf16, with tails as heavy as `spread` binades.
fn heavy(seed: u64, len: usize, spread: f32) -> Vec<u16> {
    let numbers = gaussian(seed, len).into_iter().enumerate();
    let scaled = numbers.map(|(index, x)| x * (spread * (uniform(!seed, index) - 1.0)).exp2());
    scaled.map(round_nearest).collect()
}

proptest! {
    #[test]
    fn a_larger_number_has_no_smaller_code(a in number(), b in number()) {
        for format in Format::ALL {
            let [a, b] = [a.min(b), a.max(b)].map(|x| format.decode(format.encode(x)));
            prop_assert!(a <= b || a.is_nan());
        }
    }

    #[test]
    fn a_cast_is_idempotent_and_off_by_half_an_ulp(x in number()) {
        for format in Format::ALL {
            let code = format.encode(x);
            let y = format.decode(code);
            prop_assert_eq!(format.encode(y), if x.is_nan() { format.encode(y) } else { code });
            if x.abs() <= format.max_finite() {
                let (mantissa_bits, min_exponent) = match format {
                    Format::E4M3 => (3.0, -6.0),
                    Format::E5M2 => (2.0, -14.0),
                    Format::E4M3Fnuz => (3.0, -7.0),
                    Format::E5M2Fnuz => (2.0, -15.0),
                };
                let exponent = x.abs().log2().floor().max(min_exponent);
                let half_ulp = (exponent - mantissa_bits - 1.0_f32).exp2();
                prop_assert!((x - y).abs() <= half_ulp);
            } else if !x.is_nan() {
                prop_assert_eq!(y, format.max_finite().copysign(x));
            }
        }
    }

    #[test]
    fn a_transposed_matrix_has_the_transposed_codes(seed: u64, rows in 1..300_usize, cols in 1..300_usize) {
        let values = gaussian(seed, rows * cols);
        let transposed: Vec<f32> = (0..rows * cols)
            .map(|index| values[index % rows * cols + index / rows])
            .collect();
        let straight = quantize_tiles(&values, cols, Format::E4M3, Headroom::None);
        let across = quantize_tiles(&transposed, rows, Format::E4M3, Headroom::None);
        for (index, &code) in across.codes.iter().enumerate() {
            prop_assert_eq!(code, straight.codes[index % rows * cols + index / rows]);
        }
        let (tall, wide) = (rows.div_ceil(TILE), cols.div_ceil(TILE));
        for (index, &scale) in across.scales.iter().enumerate() {
            prop_assert_eq!(scale, straight.scales[index % tall * wide + index / tall]);
        }
    }

    #[test]
    fn a_conversion_is_lossless_at_every_shape(
        seed: u64,
        rows in 1..300_usize,
        cols in 1..300_usize,
        spread in 0.0_f32..80.0,
        is_n24: bool,
        is_roomy: bool,
    ) {
        let source = heavy(seed, rows * cols, spread);
        let nesting = if is_n24 { Nesting::N24 } else { Nesting::N16 };
        let headroom = if is_roomy { Headroom::Binade } else { Headroom::None };
        let mut planes = NestedPlanes::zeros(rows, cols, nesting);
        let encoded = planes.as_mut().encode_bf16(&source, headroom).unwrap();
        prop_assert!(planes.decode_bf16() == source);
        let is_plain = (0..planes.scales.len()).filter(|&tile| planes.scale_inv(tile).is_nan());
        prop_assert_eq!(is_plain.count(), encoded.num_plain);
        prop_assert_eq!(encoded.num_missed > 0, encoded.num_plain > 0);

        if nesting == Nesting::N16 {
            let mut bytes: Vec<u8> = source.iter().flat_map(|x| x.to_le_bytes()).collect();
            let mut scales = vec![0; planes.scales.len()];
            let in_place = encode_in_place(&mut bytes, cols, &mut scales, headroom).unwrap();
            prop_assert_eq!(in_place, encoded);
            prop_assert!(bytes == [&planes.codes[..], &planes.residual].concat());
            prop_assert!(scales == planes.scales);
        }

        // Clearing rounds just what was missed, by little.
        let before = planes.decode_f32();
        let cleared = planes.as_mut().clear_plain(headroom);
        prop_assert_eq!(cleared, encoded);
        prop_assert!(!planes.scales.contains(&255));
        let amax = fp8::amax(&before);
        for (a, b) in before.iter().zip(planes.decode_f32()) {
            prop_assert!((a - b).abs() <= amax * 2_f32.powi(-23));
        }
        let again = planes.as_mut().clear_plain(headroom);
        prop_assert_eq!(again, Encoded { num_plain: 0, num_missed: 0, ..encoded });
    }

    #[test]
    fn a_tile_that_moves_keeps_what_stays_normal(seed: u64, is_n24: bool) {
        let nesting = if is_n24 { Nesting::N24 } else { Nesting::N16 };
        let source = heavy(seed, TILE * TILE, 6.0);
        let mut planes = NestedPlanes::zeros(TILE, TILE, nesting);
        planes.as_mut().encode_bf16(&source, Headroom::None).unwrap();
        planes.as_mut().clear_plain(Headroom::None);
        let before = planes.clone();
        prop_assert_eq!(planes.as_mut().resplit(Headroom::None, Rounding::Nearest), 0);
        prop_assert!(planes == before);
        // Half the largest number: the tile moves by one binade, and back.
        let k = planes.scale_inv(0).exponent().unwrap();
        let wider = ScaleInv::of_exponent(k + 1);
        let tile = planes.grid().tiles().next().unwrap();
        let values = planes.decode_f32();
        planes.as_mut().encode_tile(&tile, &values, wider, Rounding::Nearest);
        let min_normal = 2_f32.powi(-6) * wider.to_f32();
        for (a, b) in values.iter().zip(planes.decode_f32()) {
            prop_assert!(*a == b || a.abs() < min_normal);
        }
        prop_assert_eq!(planes.as_mut().resplit(Headroom::None, Rounding::Nearest), 1);
        prop_assert_eq!(&planes.scales, &before.scales);
    }
}

/// Rows of each of `world_size` ranks: runs of whole row tiles.
fn runs(rows: usize, world_size: usize) -> impl Iterator<Item = Range<usize>> {
    let tiles = rows.div_ceil(TILE);
    let bound = move |rank: usize| rows.min(tiles * rank / world_size * TILE);
    (0..world_size).map(move |rank| bound(rank)..bound(rank + 1))
}

/// Every plane that can be made of some rows.
fn every_plane(rows: Range<usize>, cols: usize) -> Vec<Vec<u8>> {
    let len = rows.len() * cols;
    let first = rows.start * cols;
    let values = &gaussian(3, rows.end * cols)[first..];
    let bf16: Vec<u16> = values.iter().copied().map(round_nearest).collect();
    let squares: Vec<f32> = values.iter().map(|x| x * x).collect();
    let random = Random {
        seed: 1,
        step: 2,
        parameter: 3,
    };
    let rounding = Rounding::Stochastic {
        random,
        first_row: rows.start,
    };
    let mut planes = Vec::new();
    for quantized in [
        quantize_tiles(values, cols, Format::E4M3, Headroom::None),
        quantize_rows(values, cols, Format::E4M3),
    ] {
        planes.push(quantized.codes);
        planes.push(
            quantized
                .scales
                .iter()
                .map(|scale| scale.to_e8m0())
                .collect(),
        );
    }
    for nesting in [Nesting::N16, Nesting::N24] {
        let mut of_f32 = NestedPlanes::zeros(rows.len(), cols, nesting);
        let done = of_f32
            .as_mut()
            .encode_f32(values, Headroom::Binade, rounding);
        done.unwrap();
        let mut of_bf16 = NestedPlanes::zeros(rows.len(), cols, nesting);
        of_bf16.as_mut().encode_bf16(&bf16, Headroom::None).unwrap();
        for nested in [of_f32, of_bf16] {
            let low = nested.low.unwrap_or_default();
            planes.extend([nested.codes, nested.residual, low, nested.scales]);
        }
    }
    let moments = MomentPlanes::encode(values, &squares, cols, Some((random, rows.start)));
    planes.extend([moments.m, moments.v, moments.m_scales, moments.v_scales]);
    assert_eq!(planes[0].len(), len);
    planes
}

#[test]
fn a_shard_has_the_bits_of_the_whole_at_every_world_size() {
    let (rows, cols) = (700, 136);
    let whole = every_plane(0..rows, cols);
    for world_size in 1..=9 {
        let mut joined = vec![Vec::new(); whole.len()];
        for run in runs(rows, world_size) {
            for (joined, part) in joined.iter_mut().zip(every_plane(run, cols)) {
                joined.extend(part);
            }
        }
        assert!(joined == whole, "{world_size} ranks");
    }
}

#[test]
fn zeros_stay_zeros_and_scales_stay_finite() {
    // A zero tensor, a zero row, a zero block, negative zeros.
    let cols = 300;
    let mut values = vec![1.0; 2 * cols];
    values[..cols].fill(0.0);
    values[cols + 128..cols + 256].fill(-0.0);
    let by_rows = quantize_rows(&values, cols, Format::E4M3);
    assert_eq!(by_rows.decode_rows(cols, Format::E4M3), values);
    assert!(by_rows.codes[..cols].iter().all(|&code| code == 0));
    assert_eq!(by_rows.scales[..3], [ScaleInv::ONE; 3]);
    assert_eq!(by_rows.scales[4], ScaleInv::ONE);
    let zeros = vec![0.0; 128 * 128];
    for headroom in [Headroom::None, Headroom::Binade] {
        let tiles = quantize_tiles(&zeros, 128, Format::E4M3, headroom);
        assert_eq!(
            (tiles.scales[0], tiles.codes),
            (ScaleInv::ONE, vec![0; 16384])
        );
    }
    for nesting in [Nesting::N16, Nesting::N24] {
        let mut planes = NestedPlanes::zeros(2, 2, nesting);
        let zeros = [0, 0x8000, 0, 0x8000];
        planes.as_mut().encode_bf16(&zeros, Headroom::None).unwrap();
        assert_eq!(planes.decode_bf16(), zeros);
    }
}

#[test]
fn a_weight_that_is_not_finite_is_an_error_with_its_place() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut source = vec![0x3F80; 300 * 130];
        source[200 * 130 + 129] = round_nearest(bad);
        let mut planes = NestedPlanes::zeros(300, 130, Nesting::N16);
        let refused = planes.as_mut().encode_bf16(&source, Headroom::None);
        let Err(Fp8Error::NotFinite {
            index: 26129,
            row: 200,
            col: 129,
            value,
        }) = refused
        else {
            panic!("{refused:?}");
        };
        assert_eq!(value.to_bits() >> 16, u32::from(round_nearest(bad)));
        let bytes: Vec<u8> = source.iter().flat_map(|x| x.to_le_bytes()).collect();
        let mut in_place = bytes.clone();
        assert!(encode_in_place(&mut in_place, 130, &mut [0; 6], Headroom::None).is_err());
        assert!(in_place == bytes, "nothing is written");
    }
}

#[test]
fn a_block_with_nan_or_infinity_decodes_to_nan_and_spoils_no_other() {
    for bad in [f32::NAN, f32::INFINITY] {
        let mut values = vec![1.0; 256];
        values[5] = bad;
        let quantized = quantize_rows(&values, 256, Format::E4M3);
        let decoded = quantized.decode_rows(256, Format::E4M3);
        assert!(decoded[..128].iter().all(|x| x.is_nan()));
        assert_eq!(decoded[128..], [1.0; 128]);
    }
}

#[test]
fn denormal_and_largest_numbers_keep_their_tiles() {
    // Every bf16 subnormal, then a tile of the largest bf16 alone.
    let subnormal: Vec<u16> = (0..128).flat_map(|bits| [bits, bits | 0x8000]).collect();
    for source in [subnormal, vec![0x7F7F; 256], vec![0x0001; 256]] {
        for nesting in [Nesting::N16, Nesting::N24] {
            let mut planes = NestedPlanes::zeros(2, 128, nesting);
            let encoded = planes
                .as_mut()
                .encode_bf16(&source, Headroom::None)
                .unwrap();
            assert_eq!(encoded.num_plain, 0);
            assert_eq!(planes.decode_bf16(), source);
        }
    }
    let largest = quantize_tiles(&[f32::MAX; 4], 2, Format::E5M2, Headroom::None);
    assert_eq!(largest.scales[0].exponent(), Some(113));
}

#[test]
fn one_outlier_costs_only_its_own_block() {
    let mut values: Vec<f32> = gaussian(2, 16 * 512).iter().map(|x| x * 1e-3).collect();
    values[7] = 1e4;
    let quantized = quantize_rows(&values, 512, Format::E4M3);
    let decoded = quantized.decode_rows(512, Format::E4M3);
    let lost = decoded.iter().filter(|&&x| x == 0.0).count();
    assert!(lost <= 127, "{lost}");
}

/// Signal to quantization noise in dB.
fn sqnr(values: &[f32], decoded: &[f32]) -> f64 {
    let square = |x: f32| f64::from(x) * f64::from(x);
    let signal: f64 = values.iter().copied().map(square).sum();
    let noise: f64 = values.iter().zip(decoded).map(|(a, b)| square(a - b)).sum();
    10.0 * (signal / noise).log10()
}

#[test]
fn the_noise_of_a_cast_is_that_of_its_format() {
    /// Expected, and the band about it.
    const BAND: f64 = 0.3;
    let (rows, cols) = (512, 512);
    // bf16 inputs, rows of widely varying scale.
    let mut values = gaussian(11, rows * cols);
    for (row, values) in values.chunks_mut(cols).enumerate() {
        let scale = (20.0 * uniform(12, row) - 10.0).exp2();
        for x in values {
            *x = widen(round_nearest(*x * scale));
        }
    }
    for (format, expected) in [(Format::E4M3, 31.5), (Format::E5M2, 25.6)] {
        let decoded = quantize_rows(&values, cols, format).decode_rows(cols, format);
        let by_row = values.chunks(cols).zip(decoded.chunks(cols));
        let mean = by_row.map(|(a, b)| sqnr(a, b)).sum::<f64>() / rows as f64;
        assert!((mean - expected).abs() < BAND, "{format:?}: {mean} dB");
        let rounded = round_rows(&values, cols, format);
        let by_row = values.chunks(cols).zip(rounded.chunks(cols));
        let mean = by_row.map(|(a, b)| sqnr(a, b)).sum::<f64>() / rows as f64;
        let better = expected + 0.3;
        assert!((mean - better).abs() < BAND, "{format:?}: {mean} dB");
        let even = gaussian(13, rows * cols);
        let tiles = quantize_tiles(&even, cols, format, Headroom::None);
        let tiles = sqnr(&even, &tiles.decode_tiles(cols, format));
        assert!((tiles - expected).abs() < BAND, "{format:?}: {tiles} dB");
    }
}

#[test]
fn the_largest_operand_of_a_block_stays_what_it_is() {
    let cols = 300;
    for format in Format::ALL {
        // Up to the largest and down below the smallest normal number.
        for exponent in [-149, -140, -126, -100, -8, 0, 60, 127] {
            let values: Vec<f32> = gaussian(14, 4 * cols)
                .into_iter()
                .map(|x| x.clamp(-3.0, 3.0) / 4.0 * 2_f32.powi(exponent))
                .collect();
            let rounded = round_rows(&values, cols, format);
            for (row, rounded) in values.chunks(cols).zip(rounded.chunks(cols)) {
                for (block, rounded) in row.chunks(TILE).zip(rounded.chunks(TILE)) {
                    let largest = amax(block);
                    let near = |a: f32, b: f32| (a - b).abs() <= 3e-7 * b.abs();
                    let place = block.iter().position(|x| x.abs() == largest).unwrap();
                    // The format has a number that large, unless the factors are at their end.
                    let is_normal = largest >= format.max_finite() * f32::MIN_POSITIVE;
                    assert!(!is_normal || near(rounded[place], block[place]));
                    assert!(near(amax(rounded), largest) || amax(rounded) < largest || !is_normal);
                    let is_whole = block.iter().zip(rounded).all(|(&x, &rounded)| {
                        let is_alike = x.is_sign_positive() == rounded.is_sign_positive();
                        rounded.is_finite() && (is_alike || rounded == 0.0)
                    });
                    assert!(is_whole, "{format:?} 2^{exponent}");
                }
            }
        }
    }
}
