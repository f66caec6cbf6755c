//! FP8 codes and the scales that make numbers of them.
//!
//! ```text
//! name behind the tensor's   value is        blocks                      written by
//! _scale_inv                 code * scale    weight_block_size           DeepSeek-V3 (README_WEIGHTS),
//!                                                                        transformers FineGrainedFP8Config
//! _scale                     code * scale    one a tensor, one a row,    compressed-tensors, ModelOpt,
//!                                            or as the config says       transformers FbgemmFp8Config, vLLM
//! ```
//!
//! Both multiply: `scale_inv` is the inverse of what the numbers were multiplied by
//! before the cast, and the `scale` of the others is that same inverse. Block `(i, j)`
//! has the scale `(i, j)`; the last blocks of rows and columns may be partial. How
//! large a block is stands in the config and is never guessed from the shapes: 136
//! columns with two scales could be blocks of 68 as well as of 128.

use fp8::{Format, decode_e4m3, decode_e8m0};
use tensor::{Dtype, Shape, as_bytes_mut, widen};

use crate::error::{CheckpointError, Result};
use crate::read::Reader;
use crate::weights::Located;

/// What follows a tensor's name in the name of its scales.
const SUFFIXES: [&str; 2] = ["_scale_inv", "_scale"];

/// What follows a module's name where something that is not a weight has a scale:
/// activations of a static recipe, and the cache of keys and values.
const OF_ACTIVATIONS: [&str; 5] = [
    ".input_scale",
    ".output_scale",
    ".activation_scale",
    ".k_scale",
    ".v_scale",
];

/// Scales that are read at once.
const SCALES_AT_ONCE: u64 = 16 << 10;

/// Codes that are decoded at once.
const CODES_AT_ONCE: usize = 256;

/// The scales of a tensor's codes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scales {
    /// The tensor of scales.
    pub located: Located,
    /// Rows and columns of a block.
    pub block: [u64; 2],
    /// Its number in the folder.
    pub(crate) number: usize,
    /// Columns of the codes.
    cols: u64,
}

/// Whether a dtype is 8-bit floats that need a scale.
pub(crate) fn is_codes(dtype: Dtype) -> bool {
    format(dtype).is_some()
}

fn format(dtype: Dtype) -> Option<Format> {
    Some(match dtype {
        Dtype::F8_E4M3 => Format::E4M3,
        Dtype::F8_E5M2 => Format::E5M2,
        Dtype::F8_E4M3FNUZ => Format::E4M3Fnuz,
        Dtype::F8_E5M2FNUZ => Format::E5M2Fnuz,
        _ => return None,
    })
}

/// The names that a tensor's scales may have.
pub(crate) fn names(tensor: &str) -> impl Iterator<Item = String> {
    SUFFIXES
        .iter()
        .map(move |suffix| format!("{tensor}{suffix}"))
}

/// The tensor whose scales a name is that of, by the name alone.
pub(crate) fn tensor_of(name: &str) -> Option<&str> {
    let mut suffixes = SUFFIXES.iter();
    let tensor = suffixes.find_map(|suffix| name.strip_suffix(suffix))?;
    tensor.ends_with("weight").then_some(tensor)
}

/// Whether a name is that of scales that no weight has.
pub(crate) fn is_of_activations(name: &str) -> bool {
    OF_ACTIVATIONS.iter().any(|suffix| name.ends_with(suffix))
}

impl Scales {
    /// The scales of a tensor; `block` is what the config says of the blocks.
    pub(crate) fn of(
        tensor: &Located,
        number: usize,
        scales: &Located,
        block: Option<[u64; 2]>,
    ) -> std::result::Result<Self, String> {
        let [rows, cols] = rows_and_cols(&tensor.meta.shape);
        let found = scales.meta.shape.dims();
        let num_scales: u64 = found.iter().product();
        let block = if num_scales == 1 && found.iter().all(|&dim| dim == 1) {
            if let Some(block) = block.filter(|&block| counts(rows, cols, block) != [1, 1]) {
                return Err(expected(rows, cols, block));
            }
            [rows.max(1), cols.max(1)]
        } else if let Some(block) = block {
            if found != counts(rows, cols, block) {
                return Err(expected(rows, cols, block));
            }
            block
        } else if found == [rows] || found == [rows, 1] {
            [1, cols.max(1)]
        } else {
            return Err(format!(
                "[1] for the tensor or [{rows}, 1] for its rows, as no weight_block_size is given"
            ));
        };
        let has_numbers = matches!(
            scales.meta.dtype,
            Dtype::F32 | Dtype::BF16 | Dtype::F16 | Dtype::F8_E8M0
        );
        if !has_numbers {
            return Err(format!(
                "dtype F32, BF16, F16 or F8_E8M0, found {}",
                scales.meta.dtype
            ));
        }
        Ok(Self {
            located: scales.clone(),
            block,
            number,
            cols: cols.max(1),
        })
    }

    fn blocks_per_row(&self) -> u64 {
        self.cols.div_ceil(self.block[1])
    }
}

fn rows_and_cols(shape: &Shape) -> [u64; 2] {
    match shape.dims() {
        [rest @ .., cols] => [rest.iter().product(), *cols],
        [] => [1, 1],
    }
}

fn counts(rows: u64, cols: u64, [block_rows, block_cols]: [u64; 2]) -> [u64; 2] {
    [rows.div_ceil(block_rows), cols.div_ceil(block_cols)]
}

fn expected(rows: u64, cols: u64, block: [u64; 2]) -> String {
    let ([down, across], [block_rows, block_cols]) = (counts(rows, cols, block), block);
    format!("[{down}, {across}] for blocks of {block_rows} x {block_cols}")
}

/// Makes f32 of codes in place: `bytes` has 4 bytes an element, and the codes are
/// its last quarter.
///
/// `first` is the number of the first element in its tensor.
pub(crate) fn expand(
    reader: &Reader,
    tensor: &Located,
    scales: &Scales,
    first: u64,
    bytes: &mut [u8],
) -> Result<()> {
    let format = format(tensor.meta.dtype).expect("only codes have scales");
    let len = bytes.len() / 4;
    let mut window = Window::new(reader, tensor, scales);
    let mut at = 0;
    while at < len {
        let element = first + at as u64;
        let (row, col) = (element / scales.cols, element % scales.cols);
        let block_col = col / scales.block[1];
        let block_end = ((block_col + 1) * scales.block[1]).min(scales.cols);
        let run = usize::try_from(block_end - col).map_or(len - at, |run| run.min(len - at));
        let index = row / scales.block[0] * scales.blocks_per_row() + block_col;
        let scale = window.scale(index)?;
        for begin in (at..at + run).step_by(CODES_AT_ONCE) {
            let here = (at + run - begin).min(CODES_AT_ONCE);
            // Never behind the next code that is read: the codes end where the
            // numbers end.
            let mut codes = [0; CODES_AT_ONCE];
            codes[..here].copy_from_slice(&bytes[3 * len + begin..][..here]);
            let numbers = &mut bytes[4 * begin..][..4 * here];
            match format {
                Format::E4M3 => decode(numbers, &codes, scale, decode_e4m3),
                other => decode(numbers, &codes, scale, |code| other.decode(code)),
            }
        }
        at += run;
    }
    Ok(())
}

fn decode(numbers: &mut [u8], codes: &[u8], scale: f32, decode: impl Fn(u8) -> f32) {
    let numbers = numbers.as_chunks_mut::<4>().0;
    for (number, &code) in numbers.iter_mut().zip(codes) {
        *number = (decode(code) * scale).to_ne_bytes();
    }
}

/// Consecutive scales of a tensor, read when they are asked for.
struct Window<'a> {
    reader: &'a Reader,
    tensor: &'a Located,
    scales: &'a Scales,
    first: u64,
    values: Vec<f32>,
}

impl<'a> Window<'a> {
    fn new(reader: &'a Reader, tensor: &'a Located, scales: &'a Scales) -> Self {
        Self {
            reader,
            tensor,
            scales,
            first: 0,
            values: Vec::new(),
        }
    }

    fn scale(&mut self, index: u64) -> Result<f32> {
        let place = |first: u64| {
            let place = index.checked_sub(first)?;
            usize::try_from(place).ok()
        };
        if let Some(&scale) = place(self.first).and_then(|place| self.values.get(place)) {
            return Ok(scale);
        }
        self.read(index)?;
        Ok(self.values[0])
    }

    /// Reads the scales from `first` on, as many as are read at once.
    fn read(&mut self, first: u64) -> Result<()> {
        let located = &self.scales.located;
        let num_scales: u64 = located.meta.shape.dims().iter().product();
        let len = num_scales.saturating_sub(first).min(SCALES_AT_ONCE);
        let dtype = located.meta.dtype;
        let size = dtype.bits() / 8;
        let num_bytes = usize::try_from(len * size).expect("few scales are read at once");
        let mut stored = vec![0_u64; num_bytes.div_ceil(8)];
        let stored = &mut as_bytes_mut(&mut stored)[..num_bytes];
        let range = first * size..(first + len) * size;
        self.reader.read_at(located, range, stored)?;
        self.first = first;
        self.values.clear();
        self.values
            .resize(num_bytes / usize::try_from(size).expect("a few bytes"), 0.0);
        if dtype == Dtype::F8_E8M0 {
            for (value, &code) in self.values.iter_mut().zip(&*stored) {
                *value = decode_e8m0(code);
            }
        } else {
            widen(dtype, stored, &mut self.values).expect("scales of other dtypes were refused");
        }
        let is_bad = |scale: &f32| !(scale.is_finite() && *scale >= 0.0);
        match self.values.iter().position(is_bad) {
            None => Ok(()),
            Some(place) => Err(CheckpointError::BadScale {
                tensor: self.tensor.meta.name.clone(),
                scales: located.meta.name.clone(),
                index: first + place as u64,
                found: self.values[place],
            }),
        }
    }
}
