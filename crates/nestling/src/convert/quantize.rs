//! Matrices on their way into FP8: E4M3 codes, and one f32 for each 128 x 128 block.
//!
//! A block's `scale_inv` is the smallest power of two with which its largest magnitude
//! is at most 448, as in training: a model that rests in FP8 has these very codes.
//!
//! A piece of the work is a row tile by [`STRIP`] columns, so that buffers do not
//! grow with a matrix.

use std::ops::Range;

use fp8::{Headroom, TILE, decode_e8m0};
use kernels::fp8::quantize_tiles;
use model::Transformer;
use plan::{Choice, Precision, choices};
use serde::Serialize;
use serde_json::{Map, Value, json};
use spec::Role;

use super::stream::PIECE_LEN;
use crate::Error;

/// What follows a tensor's name in the name of its scales.
pub(super) const SCALES: &str = "_scale_inv";

/// Columns of a piece: as many whole tiles as a buffer has room for.
const STRIP: usize = PIECE_LEN / TILE;

/// What became of a matrix.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ConvertedMatrix {
    /// Its name.
    pub name: String,
    /// Whether it is FP8 codes.
    pub is_fp8: bool,
    /// Why it is or is not, in words.
    pub choice: String,
    /// Its bytes in the source, without scales.
    pub source_bytes: u64,
    /// Its bytes and those of its scales as they were written.
    pub num_bytes: u64,
}

/// Every matrix and whether it gets codes; refuses a pattern that no name is like.
pub(super) fn chosen(
    model: &Transformer,
    precision: &Precision,
) -> Result<Vec<(String, Choice, Role)>, Error> {
    let names: Vec<&str> = model.params().map(|param| param.name.as_str()).collect();
    if let Some(pattern) = precision.kept.named.unused(&names).next() {
        let pattern = pattern.to_owned();
        let key = "keep-bf16";
        let error = train::SettingsError::NothingNamed { key, pattern };
        return Err(train::TrainError::from(error).into());
    }
    let all = choices(model, precision);
    Ok(all
        .map(|(param, choice)| (param.name.clone(), choice, param.role))
        .collect())
}

/// A config with `quantization_config`; every module that keeps its numbers is named,
/// as readers replace all others.
pub(super) fn with_quantization(config: &str, chosen: &[(String, Choice, Role)]) -> String {
    let Ok(Value::Object(mut keys)) = serde_json::from_str::<Value>(config) else {
        return config.to_owned();
    };
    let kept = chosen
        .iter()
        .filter(|(_, choice, role)| *choice != Choice::Codes && *role != Role::Embedding)
        .map(|(name, ..)| name.strip_suffix(".weight").unwrap_or(name));
    let mut kept: Vec<&str> = kept.collect();
    if !kept.contains(&"lm_head") {
        kept.push("lm_head");
    }
    let quantization: Map<String, Value> = [
        ("quant_method", json!("fp8")),
        ("fmt", json!("e4m3")),
        ("weight_block_size", json!([TILE, TILE])),
        ("activation_scheme", json!("dynamic")),
        ("modules_to_not_convert", json!(kept)),
    ]
    .into_iter()
    .map(|(key, value)| (key.to_owned(), value))
    .collect();
    keys.insert("quantization_config".to_owned(), quantization.into());
    format!("{:#}\n", Value::Object(keys))
}

/// A matrix in row tiles and strips.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Strips {
    pub(super) rows: u64,
    pub(super) cols: u64,
}

/// A row tile by some columns of a matrix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Strip {
    pub(super) rows: Range<u64>,
    pub(super) cols: Range<u64>,
    /// Columns of the matrix.
    of: u64,
}

impl Strips {
    fn across(self) -> u64 {
        self.cols.div_ceil(STRIP as u64)
    }

    pub(super) fn count(self) -> u64 {
        self.rows.div_ceil(TILE as u64) * self.across()
    }

    /// A piece by its number.
    pub(super) fn strip(self, number: u64) -> Strip {
        let row = number / self.across() * TILE as u64;
        let col = number % self.across() * STRIP as u64;
        Strip {
            rows: row..self.rows.min(row + TILE as u64),
            cols: col..self.cols.min(col + STRIP as u64),
            of: self.cols,
        }
    }
}

impl Strip {
    /// Columns.
    pub(super) fn width(&self) -> usize {
        usize::try_from(self.cols.end - self.cols.start).expect("a strip is narrow")
    }

    pub(super) fn len(&self) -> usize {
        let rows = usize::try_from(self.rows.end - self.rows.start);
        rows.expect("a row tile is short") * self.width()
    }

    /// Its runs of consecutive elements: where each begins in the matrix, and its
    /// place in the strip.
    pub(super) fn runs(&self) -> impl Iterator<Item = (u64, Range<usize>)> + use<> {
        let (width, len) = (self.width(), self.len());
        let step = if width as u64 == self.of { len } else { width };
        let first = self.rows.start * self.of + self.cols.start;
        let of = self.of;
        (0..len).step_by(step.max(1)).map(move |place| {
            let row = (place / width) as u64;
            (first + row * of, place..place + step)
        })
    }

    /// The number of its first scale in the matrix.
    pub(super) fn first_scale(&self) -> u64 {
        let across = self.of.div_ceil(TILE as u64);
        self.rows.start / TILE as u64 * across + self.cols.start / TILE as u64
    }

    /// Quantizes its numbers, which are all finite; gives the scales, and how many
    /// numbers that are not 0 became 0.
    pub(super) fn quantize(&self, values: &[f32], codes: &mut [u8]) -> (Vec<f32>, u64) {
        let width = self.width();
        let mut scales = vec![0; width.div_ceil(TILE)];
        quantize_tiles(values, width, Headroom::None, codes, &mut scales);
        let lost = values.iter().zip(codes);
        let lost = lost.filter(|(value, code)| **value != 0.0 && **code << 1 == 0);
        let lost = lost.count() as u64;
        (scales.into_iter().map(decode_e8m0).collect(), lost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_cover_a_matrix_once_and_scales_follow_one_another() {
        for (rows, cols) in [(1, 1), (128, 2048), (136, 200), (300, 5000), (129, 2049)] {
            let strips = Strips { rows, cols };
            let mut runs = Vec::new();
            let mut scales = Vec::new();
            for number in 0..strips.count() {
                let strip = strips.strip(number);
                assert!(strip.len() <= PIECE_LEN);
                runs.extend(
                    strip
                        .runs()
                        .map(|(begin, place)| (begin, place.len() as u64)),
                );
                let width = strip.width().div_ceil(TILE) as u64;
                scales.extend(strip.first_scale()..strip.first_scale() + width);
            }
            runs.sort_unstable();
            let mut end = 0;
            for (begin, len) in runs {
                assert_eq!(begin, end);
                end += len;
            }
            assert_eq!(end, rows * cols);
            scales.sort_unstable();
            let expected: Vec<u64> = (0..rows.div_ceil(128) * cols.div_ceil(128)).collect();
            assert_eq!(scales, expected);
        }
    }
}
