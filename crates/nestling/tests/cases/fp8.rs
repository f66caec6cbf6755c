//! Checkpoints in FP8, and numbers on their way into it.

use std::collections::BTreeMap;

use ::fp8::{Format, Headroom, TILE, decode_e8m0};
use checkpoint::{Folder, inspect_file};
use kernels::fp8::quantize_tiles;
use nestling::OpenModel;
use serde::Deserialize;
use tensor::{as_bytes, as_bytes_mut};

use crate::case::{Case, does};
use crate::sha256::sha256_hex;
use crate::words::Words;

#[test]
fn partial_blocks_have_the_scales_of_their_rows_and_columns() {
    does("F801");
}

#[test]
fn a_scale_under_its_other_name_is_applied() {
    does("F804");
}

#[test]
fn zeros_stay_zeros() {
    does("F805");
}

#[test]
fn conversion_is_exact_both_ways() {
    does("F808");
}

#[test]
fn what_an_outlier_swallows_is_counted() {
    does("F809");
}

/// Checks what is said of codes of a model, of a table, of numbers to be quantized.
#[track_caller]
pub(crate) fn check(case: &Case, words: &mut Words) {
    check_values(case, words);
    check_table(case, words);
    let Some(verdict) = words.take::<String>("quantise") else {
        return;
    };
    assert_eq!(verdict, "ok");
    let granularities: Option<Vec<String>> = words.take("granularities");
    let losses: Option<BTreeMap<String, f64>> = words.take("per_tensor");
    let finer: Option<BTreeMap<String, f32>> = words.take("per_row");
    for (values, cols) in matrices(case) {
        check_quantized(&values, cols);
        let lost = share_of_zeros(&values, cols);
        if let Some(losses) = &losses {
            // A tile of 128 x 128 is all of this matrix, so it loses what a tensor does.
            let key = "fraction_of_rows_other_than_3_flushed_to_zero";
            assert!(lost >= losses[key] * 0.99, "{lost}");
        }
        if let Some(finer) = &finer {
            let key = "max_relative_error_rows_other_than_3_for_values_above_2pct_of_row_max";
            check_rows(&values, cols, finer[key]);
        }
    }
    assert!(granularities.is_none_or(|all| all.len() == 3));
}

/// Values of codes, to the bit.
#[track_caller]
fn check_values(case: &Case, words: &mut Words) {
    let Some(expected): Option<BTreeMap<String, String>> = words.take("dequantised_f32_sha256")
    else {
        return;
    };
    let opened = OpenModel::open(&case.model()).unwrap();
    for (name, sha) in expected {
        assert_eq!(
            sha256_hex(as_bytes(&values_of(&opened.folder, &name))),
            sha,
            "{name}"
        );
    }
}

/// The values of a tensor.
#[track_caller]
pub(crate) fn values_of(folder: &Folder, name: &str) -> Vec<f32> {
    let tensor = folder.find(name).unwrap_or_else(|| panic!("no `{name}`"));
    let len = tensor.meta.shape.num_elements().unwrap();
    let mut values = vec![0.0_f32; usize::try_from(len).unwrap()];
    let reader = folder.open_files().unwrap();
    reader
        .read_values(tensor, 0..len, as_bytes_mut(&mut values), false)
        .unwrap();
    values
}

/// Codes and numbers, as `tables.json` has them; no number is NaN.
#[derive(Debug, Deserialize)]
struct Tables {
    e4m3_decode: Vec<Option<Finite>>,
    e5m2_decode: Vec<Option<Finite>>,
    e4m3_encode: Vec<Encoded>,
    e5m2_encode: Vec<Encoded>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Finite {
    Number(f32),
    Infinity(String),
}

#[derive(Debug, Deserialize)]
struct Encoded {
    f32_bits: String,
    code: u8,
}

#[track_caller]
fn check_table(case: &Case, words: &mut Words) {
    let Some(verdict) = words.take::<String>("convert") else {
        return;
    };
    assert_eq!(verdict, "exact");
    let table: String = words.take("table").unwrap();
    let tables: Tables = serde_json::from_str(&case.read(&table)).unwrap();
    for (format, decode, encode) in [
        (Format::E4M3, tables.e4m3_decode, tables.e4m3_encode),
        (Format::E5M2, tables.e5m2_decode, tables.e5m2_encode),
    ] {
        assert_eq!(decode.len(), 256);
        for (code, expected) in (0..=u8::MAX).zip(decode) {
            let found = format.decode(code);
            match expected {
                None => assert!(found.is_nan()),
                Some(Finite::Infinity(text)) => {
                    let expected: f32 = text.parse().unwrap();
                    assert_eq!(found.to_bits(), expected.to_bits());
                }
                Some(Finite::Number(expected)) => {
                    assert_eq!(found.to_bits(), expected.to_bits());
                    assert_eq!(format.encode(found), code);
                }
            }
        }
        for Encoded { f32_bits, code } in encode {
            let bits = u32::from_str_radix(f32_bits.trim_start_matches("0x"), 16).unwrap();
            assert_eq!(format.encode(f32::from_bits(bits)), code, "{f32_bits}");
        }
    }
    // All codes of both formats, as a file has them.
    let path = case.folder.join("files/codes.safetensors");
    let weights = inspect_file(&path).unwrap();
    let reader = weights.reader().unwrap();
    for tensor in weights.tensors() {
        let mut codes = vec![0; 256];
        reader.read_at(tensor, 0..256, &mut codes).unwrap();
        assert!(codes.iter().copied().eq(0..=u8::MAX));
    }
}

/// The matrices of the case's file, and their columns.
#[track_caller]
fn matrices(case: &Case) -> Vec<(Vec<f32>, usize)> {
    let weights = inspect_file(&case.folder.join("files/t.safetensors")).unwrap();
    let reader = weights.reader().unwrap();
    let tensors = weights.tensors().iter().map(|tensor| {
        let len = tensor.meta.shape.num_elements().unwrap();
        let mut values = vec![0.0_f32; usize::try_from(len).unwrap()];
        let bytes = as_bytes_mut(&mut values);
        reader.read_values(tensor, 0..len, bytes, false).unwrap();
        let cols = *tensor.meta.shape.dims().last().unwrap();
        (values, usize::try_from(cols).unwrap())
    });
    tensors.collect()
}

/// Scales are finite and above 0, zeros stay zeros, and no code is NaN: of tiles, and
/// of rows.
#[track_caller]
fn check_quantized(values: &[f32], cols: usize) {
    let (codes, scales) = tiles(values, cols);
    let rows = ::fp8::quantize_rows(values, cols, Format::E4M3);
    let row_scales: Vec<f32> = rows.scales.iter().map(|scale| scale.to_f32()).collect();
    for (codes, scales) in [(codes, scales), (rows.codes, row_scales)] {
        assert!(scales.iter().all(|scale| scale.is_finite() && *scale > 0.0));
        for (value, code) in values.iter().zip(codes) {
            assert!(code & 0x7F != 0x7F, "NaN");
            assert!(*value != 0.0 || code << 1 == 0, "{value} became {code:#x}");
        }
    }
    let rounded = ::fp8::round_rows(values, cols, Format::E4M3);
    for (value, rounded) in values.iter().zip(rounded) {
        assert!(rounded.is_finite() && (*value != 0.0 || rounded == 0.0));
    }
}

fn tiles(values: &[f32], cols: usize) -> (Vec<u8>, Vec<f32>) {
    let rows = values.len() / cols;
    let mut codes = vec![0; values.len()];
    let mut scales = vec![0; rows.div_ceil(TILE) * cols.div_ceil(TILE)];
    quantize_tiles(values, cols, Headroom::None, &mut codes, &mut scales);
    (codes, scales.into_iter().map(decode_e8m0).collect())
}

/// The share of numbers that are not 0 and became 0.
fn share_of_zeros(values: &[f32], cols: usize) -> f64 {
    let (codes, _) = tiles(values, cols);
    let lost = values.iter().zip(&codes);
    let lost = lost.filter(|(value, code)| **value != 0.0 && **code << 1 == 0);
    lost.count() as f64 / values.len() as f64
}

/// With a scale a row, only the row of the outlier suffers.
#[track_caller]
fn check_rows(values: &[f32], cols: usize, most: f32) {
    let decoded = ::fp8::round_rows(values, cols, Format::E4M3);
    let rows = values.chunks(cols).zip(decoded.chunks(cols)).enumerate();
    for (_, (row, decoded)) in rows.filter(|(row, _)| *row != 3) {
        let amax = row
            .iter()
            .fold(0.0_f32, |amax, value| amax.max(value.abs()));
        for (value, decoded) in row.iter().zip(decoded) {
            let is_large = value.abs() > 0.02 * amax;
            assert!(!is_large || (value - decoded).abs() <= most * value.abs());
        }
    }
}
