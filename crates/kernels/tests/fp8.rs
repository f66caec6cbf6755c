//! The fast codecs and updates give the bits of the reference in `fp8`, at every
//! shape; and an update does what plain bf16 cannot.
#![expect(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "in a test a failure may panic, and codes are low bytes"
)]

use std::ops::Range;

use fp8::moments::is_v_stochastic;
use fp8::random::low_half;
use fp8::{
    Format, Grid, Headroom, MomentPlanes, NestedPlanes, Nesting, Quantized, Random, Rounding,
    ScaleInv, TILE, amax, bf16,
};
use kernels::AdamW;
use kernels::fp8::{
    TiledCodes, Update, adamw_bf16, adamw_bf16_plus8, adamw_nested, decode_bf16, decode_moments,
    decode_nested, decode_rows, encode_bf16, encode_bf16_in_place, encode_moments, encode_nested,
    quantize_rows, quantize_tiles,
};

/// Rows and columns: whole tiles, short ones, single elements.
const SHAPES: [(usize, usize); 9] = [
    (1, 1),
    (3, 64),
    (8, 128),
    (128, 128),
    (130, 65),
    (257, 136),
    (129, 129),
    (64, 300),
    (300, 576),
];

fn random(parameter: u32) -> Random {
    Random {
        seed: 99,
        step: 4,
        parameter,
    }
}

/// Any bits: denormals, infinities and NaN too.
fn any_bits(parameter: u32, len: usize) -> Vec<f32> {
    (0..len)
        .map(|index| f32::from_bits(random(parameter).bits(index, 0)))
        .collect()
}

/// Numbers over `binades` below 1, of both signs.
fn numbers(parameter: u32, len: usize, binades: f32) -> Vec<f32> {
    let number = |index| {
        let bits = random(parameter).bits(index, 0);
        let exponent = -binades * (bits >> 16) as f32 / 65536.0;
        let sign = if bits & 1 == 0 { 1.0 } else { -1.0 };
        sign * (1.0 + (bits & 0xFFFF) as f32 / 65536.0) * exponent.exp2()
    };
    (0..len).map(number).collect()
}

/// Equal bits, but of NaN any.
#[track_caller]
fn same(found: &[f32], expected: &[f32], context: &str) {
    assert_eq!(found.len(), expected.len(), "{context}");
    for (index, (a, b)) in found.iter().zip(expected).enumerate() {
        let is_same = a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
        assert!(is_same, "{context}: element {index} is {a}, not {b}");
    }
}

#[test]
fn rows_are_quantized_and_decoded_as_by_the_reference() {
    for (rows, cols) in SHAPES {
        let len = rows * cols;
        for values in [any_bits(1, len), numbers(2, len, 12.0), vec![0.0; len]] {
            for format in Format::ALL {
                let expected = fp8::quantize_rows(&values, cols, format);
                let mut codes = vec![0; len];
                let mut scales = vec![0; rows * cols.div_ceil(TILE)];
                quantize_rows(&values, cols, format, &mut codes, &mut scales);
                assert!(codes == expected.codes, "{rows} x {cols} {format:?}");
                assert!(scales.iter().copied().eq(bytes(&expected.scales)));
                let mut decoded = vec![0.0; len];
                decode_rows(&codes, &scales, cols, format, &mut decoded);
                let context = format!("{rows} x {cols} {format:?}");
                same(&decoded, &expected.decode_rows(cols, format), &context);
            }
        }
    }
}

fn bytes(scales: &[ScaleInv]) -> impl Iterator<Item = u8> {
    scales.iter().map(|scale| scale.to_e8m0())
}

#[test]
fn every_bf16_is_cast_as_by_the_reference() {
    // Blocks of one number and a largest that makes the scale each power in turn.
    let mut values = Vec::new();
    for scale in [-126, -60, -9, 0, 5, 60, 119] {
        for bits in 0..=u16::MAX {
            let x = bf16::widen(bits);
            let limit = 448.0 * 2_f32.powi(scale);
            values.extend([if x.abs() <= limit { x } else { 0.0 }, limit]);
        }
    }
    let expected = fp8::quantize_rows(&values, 2, Format::E4M3);
    let mut codes = vec![0; values.len()];
    let mut scales = vec![0; values.len() / 2];
    quantize_rows(&values, 2, Format::E4M3, &mut codes, &mut scales);
    assert!(codes == expected.codes);
}

#[test]
fn tiles_are_quantized_as_by_the_reference() {
    for (rows, cols) in SHAPES {
        for headroom in [Headroom::None, Headroom::Binade] {
            let values = numbers(3, rows * cols, 14.0);
            let expected = fp8::quantize_tiles(&values, cols, Format::E4M3, headroom);
            let mut codes = vec![0; values.len()];
            let mut scales = vec![0; expected.scales.len()];
            quantize_tiles(&values, cols, headroom, &mut codes, &mut scales);
            assert!(codes == expected.codes, "{rows} x {cols}");
            assert!(scales.iter().copied().eq(bytes(&expected.scales)));
        }
    }
}

#[test]
fn panels_are_decoded_as_by_the_reference_straight_and_transposed() {
    for (rows, cols) in SHAPES {
        // Every code, NaN too, under scales of all kinds.
        let grid = Grid { rows, cols };
        let codes: Vec<u8> = (0..grid.len())
            .map(|at| (at * 7 + at / 256) as u8)
            .collect();
        let scales = (0..grid.num_tiles()).map(|tile| ScaleInv::from_e8m0((tile * 83 + 120) as u8));
        let reference = Quantized {
            codes: codes.clone(),
            scales: scales.collect(),
        };
        let values = reference.decode_tiles(cols, Format::E4M3);
        let scales: Vec<u8> = bytes(&reference.scales).collect();
        let tiled = TiledCodes {
            cols,
            codes: &codes,
            scales: &scales,
        };
        for (down, across) in panels(rows, cols) {
            let mut panel = vec![7.0; down.len() * across.len()];
            tiled.decode(down.clone(), across.clone(), &mut panel);
            let expected = down
                .clone()
                .flat_map(|row| &values[row * cols..][across.clone()]);
            let expected: Vec<f32> = expected.copied().collect();
            let context = format!("{rows} x {cols}, {down:?} x {across:?}");
            same(&panel, &expected, &context);
            tiled.decode_transposed(down.clone(), across.clone(), &mut panel);
            let column = |col| down.clone().map(move |row| (row, col));
            let expected = across.clone().flat_map(column);
            let expected: Vec<f32> = expected
                .map(|(row, col)| values[row * cols + col])
                .collect();
            same(&panel, &expected, &format!("{context}, transposed"));
        }
    }
}

/// The whole, and pieces that begin and end anywhere.
fn panels(rows: usize, cols: usize) -> Vec<(Range<usize>, Range<usize>)> {
    let cuts = |len: usize| {
        let cut = |part: usize| len * part / 7;
        [0..len, cut(1)..cut(5), cut(3)..len, 0..len.min(1)]
    };
    let pairs = cuts(rows).into_iter().zip([0, 1, 2, 3, 0, 1]);
    let pairs = pairs.map(|(rows, at): (_, usize)| (rows, cuts(cols)[at].clone()));
    let crossed = cuts(rows).into_iter().zip(cuts(cols).into_iter().rev());
    let panels = pairs.chain(crossed);
    panels
        .filter(|(rows, cols)| !rows.is_empty() && !cols.is_empty())
        .collect()
}

#[test]
fn every_n16_is_decoded_as_by_the_reference() {
    for scale in [1, 60, 127, 200, 247] {
        let mut planes = NestedPlanes::zeros(512, 128, Nesting::N16);
        for (index, (code, residual)) in planes
            .codes
            .iter_mut()
            .zip(&mut planes.residual)
            .enumerate()
        {
            (*code, *residual) = ((index / 256) as u8, index as u8);
        }
        planes.scales.fill(scale);
        let mut decoded = vec![0.0; 512 * 128];
        decode_nested(&planes.as_ref(), &mut decoded);
        same(&decoded, &planes.decode_f32(), "N16");
    }
}

#[test]
fn masters_are_encoded_and_decoded_as_by_the_reference() {
    for (rows, cols) in SHAPES {
        let values = numbers(5, rows * cols, 30.0);
        for nesting in [Nesting::N16, Nesting::N24] {
            let stochastic = Rounding::Stochastic {
                random: random(6),
                first_row: 384,
            };
            for rounding in [Rounding::Nearest, stochastic] {
                for headroom in [Headroom::None, Headroom::Binade] {
                    let mut expected = NestedPlanes::zeros(rows, cols, nesting);
                    let done = expected.as_mut().encode_f32(&values, headroom, rounding);
                    done.unwrap();
                    let mut planes = NestedPlanes::zeros(rows, cols, nesting);
                    encode_nested(&values, planes.as_mut(), headroom, rounding);
                    assert!(
                        planes == expected,
                        "{rows} x {cols} {nesting:?} {rounding:?}"
                    );
                    let mut decoded = vec![0.0; values.len()];
                    decode_nested(&planes.as_ref(), &mut decoded);
                    same(&decoded, &planes.decode_f32(), "masters");
                }
            }
        }
    }
}

#[test]
fn bf16_is_converted_as_by_the_reference_and_comes_back() {
    let mut num_plain = 0;
    for (rows, cols) in SHAPES {
        for binades in [4.0, 60.0] {
            let source = numbers(14, rows * cols, binades);
            let source: Vec<u16> = source.iter().map(|&x| bf16::round_nearest(x)).collect();
            let halves: Vec<u8> = source.iter().flat_map(|half| half.to_le_bytes()).collect();
            for nesting in [Nesting::N16, Nesting::N24] {
                for headroom in [Headroom::None, Headroom::Binade] {
                    let mut expected = NestedPlanes::zeros(rows, cols, nesting);
                    let counts = expected.as_mut().encode_bf16(&source, headroom);
                    let mut planes = NestedPlanes::zeros(rows, cols, nesting);
                    let encoded = encode_bf16(&halves, planes.as_mut(), headroom);
                    assert_eq!(encoded, counts, "{rows} x {cols} {nesting:?}");
                    assert!(planes == expected, "{rows} x {cols} {nesting:?}");
                    num_plain += encoded.unwrap().num_plain;
                    let mut back = vec![0; halves.len()];
                    decode_bf16(&planes.as_ref(), &mut back);
                    assert!(back == halves, "{rows} x {cols} {nesting:?}");
                    if nesting == Nesting::N16 {
                        let mut bytes = halves.clone();
                        let mut scales = vec![0; planes.scales.len()];
                        let in_place =
                            encode_bf16_in_place(&mut bytes, cols, &mut scales, headroom);
                        assert_eq!(in_place, counts);
                        assert!(bytes == [&planes.codes[..], &planes.residual].concat());
                        assert!(scales == planes.scales);
                    }
                }
            }
        }
    }
    assert!(num_plain > 0, "some tile is kept plain");
}

#[test]
fn a_number_that_is_not_finite_is_refused_before_anything_is_written() {
    let mut halves = bf16::round_nearest(1.0).to_le_bytes().repeat(300 * 70);
    halves[2 * (299 * 70 + 3)..][..2].copy_from_slice(&bf16::round_nearest(f32::NAN).to_le_bytes());
    let before = halves.clone();
    let refused = encode_bf16_in_place(&mut halves, 70, &mut [0; 3], Headroom::None);
    assert!(matches!(
        refused,
        Err(fp8::Fp8Error::NotFinite {
            row: 299,
            col: 3,
            ..
        })
    ));
    assert!(halves == before);
}

#[test]
fn moments_are_encoded_and_decoded_as_by_the_reference() {
    for (rows, cols) in SHAPES {
        let len = rows * cols;
        let m = numbers(7, len, 60.0);
        let mut v: Vec<f32> = m.iter().map(|m| m * m).collect();
        v[0] = 0.0;
        for random in [None, Some((random(8), 128))] {
            for (m, v) in [(&m, &v), (&any_bits(9, len), &v)] {
                let expected = MomentPlanes::encode(m, v, cols, random);
                let mut planes = MomentPlanes::zeros(rows, cols);
                encode_moments(m, v, &mut planes.as_mut(), random);
                assert!(planes == expected, "{rows} x {cols}");
                let (mut m, mut v) = (vec![0.0; len], vec![0.0; len]);
                decode_moments(&planes.as_ref(), &mut m, &mut v);
                let [expected_m, expected_v] = planes.decode();
                same(&m, &expected_m, "m");
                same(&v, &expected_v, "v");
            }
        }
    }
    // Every code under scales of all kinds.
    for scale in [
        0_u16, 1, 0x0080, 0x1234, 0x3F80, 0x5F80, 0x7F7F, 0x7F80, 0x7FC0,
    ] {
        let mut planes = MomentPlanes::zeros(1, 256);
        planes.m = (0..=u8::MAX).collect();
        planes.v = (0..=u8::MAX).collect();
        planes.m_scales = scale.to_le_bytes().repeat(4);
        planes.v_scales = scale.to_le_bytes().repeat(4);
        let (mut m, mut v) = (vec![0.0; 256], vec![0.0; 256]);
        decode_moments(&planes.as_ref(), &mut m, &mut v);
        let [expected_m, expected_v] = planes.decode();
        same(&m, &expected_m, "m of every code");
        same(&v, &expected_v, "v of every code");
    }
}

fn adamw(lr: f32, beta2: f32, step: u64) -> AdamW {
    AdamW {
        lr,
        beta1: 0.9,
        beta2,
        eps: 1e-8,
        weight_decay: 0.1,
        step,
        grad_scale: 0.5,
    }
}

/// `AdamW` in f32, element by element, as the fast device computes it.
fn plain_adamw(update: &AdamW, g: f32, w: f32, m: &mut f32, v: &mut f32) -> f32 {
    let correction = |beta: f32| 1.0 - f64::from(beta).powf(update.step as f64);
    let lr = f64::from(update.lr);
    let keep = (1.0 - lr * f64::from(update.weight_decay)) as f32;
    let size = (lr / correction(update.beta1)) as f32;
    let root_correction = correction(update.beta2).sqrt() as f32;
    let g = update.grad_scale * g;
    *m = update.beta1 * *m + (1.0 - update.beta1) * g;
    *v = update.beta2 * *v + (1.0 - update.beta2) * (g * g);
    w * keep - size * *m / (v.sqrt() / root_correction + update.eps)
}

/// Decodes, updates and encodes moments; gives the new numbers of `w`.
fn plain_update(
    w: &[f32],
    moments: &mut MomentPlanes<Vec<u8>>,
    grad: &[f32],
    update: &Update,
) -> Vec<f32> {
    let [mut m, mut v] = moments.decode();
    let state = m.iter_mut().zip(&mut v);
    let w = w.iter().zip(grad).zip(state);
    let w = w.map(|((&w, &g), (m, v))| plain_adamw(&update.adamw, g, w, m, v));
    let w = w.collect();
    let is_stochastic = is_v_stochastic(update.adamw.beta2);
    let random = is_stochastic.then_some((update.random, update.first_row));
    *moments = MomentPlanes::encode(&m, &v, moments.cols, random);
    w
}

/// The reference of [`adamw_nested`].
fn plain_nested(
    planes: &mut NestedPlanes<Vec<u8>>,
    moments: &mut MomentPlanes<Vec<u8>>,
    grad: &[f32],
    update: &Update,
) -> usize {
    let w = plain_update(&planes.decode_f32(), moments, grad, update);
    let rounding = Rounding::Stochastic {
        random: update.random,
        first_row: update.first_row,
    };
    let mut num_moved = 0;
    for tile in planes.grid().tiles() {
        let numbers = tile.gather(&w, planes.cols);
        let present = planes.scale_inv(tile.index);
        let next = present.updated(amax(&numbers), Headroom::Binade);
        num_moved += usize::from(next != present);
        planes.as_mut().encode_tile(&tile, &numbers, next, rounding);
    }
    num_moved
}

fn update(lr: f32, beta2: f32, step: u64, first_row: usize) -> Update {
    Update {
        adamw: adamw(lr, beta2, step),
        random: Random { step, ..random(12) },
        first_row,
    }
}

fn gradient(step: u64, len: usize) -> Vec<f32> {
    numbers(20 + u32::try_from(step).unwrap(), len, 20.0)
}

fn nested(rows: usize, cols: usize, nesting: Nesting) -> NestedPlanes<Vec<u8>> {
    let values = numbers(10, rows * cols, 10.0);
    let mut planes = NestedPlanes::zeros(rows, cols, nesting);
    let done = planes
        .as_mut()
        .encode_f32(&values, Headroom::Binade, Rounding::Nearest);
    done.unwrap();
    planes
}

#[test]
fn nested_masters_are_updated_as_by_the_reference() {
    let mut num_moved = 0;
    for (rows, cols) in SHAPES {
        for nesting in [Nesting::N16, Nesting::N24] {
            for beta2 in [0.95, 0.999] {
                let mut planes = nested(rows, cols, nesting);
                let mut moments = MomentPlanes::zeros(rows, cols);
                let (mut expected, mut expected_moments) = (planes.clone(), moments.clone());
                for step in 1..=4 {
                    // So large a rate that tiles leave their binade.
                    let update = update(0.5, beta2, step, 256);
                    let grad = gradient(step, rows * cols);
                    let moved = adamw_nested(planes.as_mut(), moments.as_mut(), &grad, &update);
                    let expected_moved =
                        plain_nested(&mut expected, &mut expected_moments, &grad, &update);
                    let context = format!("{rows} x {cols} {nesting:?} {beta2} step {step}");
                    assert_eq!(moved, expected_moved, "{context}");
                    assert!(moments == expected_moments, "{context}");
                    assert!(planes == expected, "{context}");
                    num_moved += moved;
                }
            }
        }
    }
    assert!(num_moved > 0, "some tile is re-split");
}

#[test]
fn bf16_masters_are_updated_as_by_the_reference() {
    for (rows, cols) in SHAPES {
        for beta2 in [0.95, 0.999] {
            let len = rows * cols;
            let values = numbers(13, len, 10.0);
            let halves: Vec<u16> = values.iter().map(|&w| bf16::round_nearest(w)).collect();
            let to_bytes = |halves: &[u16]| {
                let bytes = halves.iter().flat_map(|half| half.to_le_bytes());
                bytes.collect::<Vec<u8>>()
            };
            let mut lean = to_bytes(&halves);
            let (mut high, mut low) = (lean.clone(), vec![0; len]);
            let mut moments = MomentPlanes::zeros(rows, cols);
            let mut more = moments.clone();
            let mut expected_moments = [moments.clone(), moments.clone()];
            let mut expected: Vec<f32> = halves.iter().map(|&half| bf16::widen(half)).collect();
            let mut expected_more = expected.clone();
            for step in 1..=3 {
                let update = update(1e-3, beta2, step, 128);
                let grad = gradient(step, len);
                adamw_bf16(&mut lean, moments.as_mut(), &grad, &update);
                let w = plain_update(&expected, &mut expected_moments[0], &grad, &update);
                let rounded = w.iter().enumerate().map(|(at, &w)| {
                    let bits = update.random.bits(128 + at / cols, at % cols);
                    bf16::round_stochastic(w, low_half(bits))
                });
                let rounded: Vec<u16> = rounded.collect();
                assert!(lean == to_bytes(&rounded), "{rows} x {cols}");
                assert!(moments == expected_moments[0]);
                expected = rounded.iter().map(|&half| bf16::widen(half)).collect();

                let both = (&mut high[..], &mut low[..]);
                adamw_bf16_plus8(both, more.as_mut(), &grad, &update);
                let w = plain_update(&expected_more, &mut expected_moments[1], &grad, &update);
                let split = w.iter().enumerate().map(|(at, &w)| {
                    let bits = update.random.bits(128 + at / cols, at % cols);
                    bf16::split_plus8_stochastic(w, low_half(bits))
                });
                let split: Vec<_> = split.collect();
                let halves: Vec<u16> = split.iter().map(|(half, _)| *half).collect();
                assert!(high == to_bytes(&halves), "{rows} x {cols}");
                assert!(
                    low.iter()
                        .copied()
                        .eq(split.iter().map(|(_, low)| low.cast_unsigned()))
                );
                assert!(more == expected_moments[1]);
                let joined = split.iter().map(|&(half, low)| bf16::join_plus8(half, low));
                expected_more = joined.collect();
            }
        }
    }
}

#[test]
fn an_update_of_shards_is_the_update_of_the_whole() {
    let (rows, cols) = (1000, 72);
    let grad = gradient(1, rows * cols);
    for nesting in [Nesting::N16, Nesting::N24] {
        let start = nested(rows, cols, nesting);
        let whole = {
            let mut planes = start.clone();
            let mut moments = MomentPlanes::zeros(rows, cols);
            adamw_nested(
                planes.as_mut(),
                moments.as_mut(),
                &grad,
                &update(1e-2, 0.999, 1, 0),
            );
            (planes, moments)
        };
        for world_size in 1..=9 {
            let (mut planes, mut moments) = (start.clone(), MomentPlanes::zeros(rows, cols));
            let tiles = rows.div_ceil(TILE);
            let (planes_mut, moments_mut) = (planes.as_mut(), moments.as_mut());
            let parts = planes_mut.into_row_tiles().into_iter();
            let parts = parts.zip(moments_mut.into_row_tiles()).enumerate();
            // Each rank's row tiles, one by one: they hold all that an update needs.
            for (row_tile, (planes, moments)) in parts {
                assert!(row_tile * world_size / tiles < world_size);
                let first_row = row_tile * TILE;
                let grad = &grad[first_row * cols..][..planes.codes.len()];
                adamw_nested(planes, moments, grad, &update(1e-2, 0.999, 1, first_row));
            }
            assert!((planes, moments) == whole, "{world_size} ranks");
        }
    }
}

#[test]
fn a_rank_without_rows_has_nothing_to_do() {
    let update = update(1e-3, 0.999, 1, 0);
    let mut moments = MomentPlanes::zeros(0, 70);
    for nesting in [Nesting::N16, Nesting::N24] {
        let mut planes = NestedPlanes::zeros(0, 70, nesting);
        let encoded = encode_bf16(&[], planes.as_mut(), Headroom::None);
        assert_eq!(encoded, Ok(fp8::Encoded::default()));
        encode_nested(&[], planes.as_mut(), Headroom::None, Rounding::Nearest);
        decode_nested(&planes.as_ref(), &mut []);
        assert_eq!(
            adamw_nested(planes.as_mut(), moments.as_mut(), &[], &update),
            0
        );
    }
    adamw_bf16(&mut [], moments.as_mut(), &[], &update);
    adamw_bf16_plus8((&mut [], &mut []), moments.as_mut(), &[], &update);
    encode_bf16_in_place(&mut [], 70, &mut [], Headroom::None).unwrap();
    quantize_tiles(&[], 70, Headroom::None, &mut [], &mut []);
    quantize_rows(&[], 70, Format::E4M3, &mut [], &mut []);
}

/// Steps so small that none changes a bf16.
const SMALL_LR: f32 = 1e-5;

#[test]
fn plain_bf16_stalls_where_lean_masters_move() {
    let (rows, cols, steps) = (16, 128, 400);
    let len = rows * cols;
    let grad = vec![1.0; len];
    let start = 0.7_f32;
    let half = bf16::round_nearest(start);
    let start = bf16::widen(half);
    let mut planes = [Nesting::N16, Nesting::N24].map(|nesting| {
        let mut planes = NestedPlanes::zeros(rows, cols, nesting);
        let done = planes
            .as_mut()
            .encode_bf16(&vec![half; len], Headroom::Binade);
        done.unwrap();
        planes
    });
    let mut lean = half.to_le_bytes().repeat(len);
    let (mut high, mut low) = (lean.clone(), vec![0; len]);
    let mut moments = [(); 4].map(|()| MomentPlanes::zeros(rows, cols));
    let (mut stalled, mut m, mut v) = (start, 0.0, 0.0);
    for step in 1..=steps {
        let mut update = update(SMALL_LR, 0.999, step, 0);
        update.adamw.weight_decay = 0.0;
        for (planes, moments) in planes.iter_mut().zip(&mut moments) {
            adamw_nested(planes.as_mut(), moments.as_mut(), &grad, &update);
        }
        adamw_bf16(&mut lean, moments[2].as_mut(), &grad, &update);
        let both = (&mut high[..], &mut low[..]);
        adamw_bf16_plus8(both, moments[3].as_mut(), &grad, &update);
        let w = plain_adamw(&update.adamw, 1.0, stalled, &mut m, &mut v);
        stalled = bf16::widen(bf16::round_nearest(w));
    }
    assert!(
        (stalled - start).abs() < f32::EPSILON,
        "to nearest nothing moves"
    );
    let mean = |w: &[f32]| w.iter().sum::<f32>() / len as f32;
    let expected = start - SMALL_LR * steps as f32;
    let halves = |bytes: &[u8]| {
        let halves = bytes.as_chunks().0.iter();
        halves
            .map(|&half| bf16::widen(u16::from_le_bytes(half)))
            .collect::<Vec<f32>>()
    };
    let joined: Vec<f32> = high
        .as_chunks()
        .0
        .iter()
        .zip(&low)
        .map(|(&half, &low)| bf16::join_plus8(u16::from_le_bytes(half), low.cast_signed()))
        .collect();
    let found = [
        mean(&planes[0].decode_f32()),
        mean(&planes[1].decode_f32()),
        mean(&halves(&lean)),
        mean(&joined),
    ];
    for found in found {
        // Moments in 8 bits are off by 1 % and more; all move as far as they should.
        let share = (start - found) / (start - expected);
        assert!((0.9..1.1).contains(&share), "moved {share} of the way");
    }
}
