//! What operations are tried on: repeatable random numbers, and weights stored
//! as ranks hold them.

use std::ops::Range;

use fp8::{Format, Headroom, NestedPlanes, Nesting, Rounding};
use half::bf16;
use kernels::{Segment, Weight, WeightFormat};

use crate::agreement::Under;

/// The formats without tiles, which tables and vectors have.
pub(crate) const FORMATS: [WeightFormat; 2] = [WeightFormat::F32, WeightFormat::Bf16];

/// The formats of a linear layer's weight.
pub(crate) const MATRIX_FORMATS: [WeightFormat; 5] = [
    WeightFormat::F32,
    WeightFormat::Bf16,
    WeightFormat::E4m3,
    WeightFormat::Nested(Nesting::N16),
    WeightFormat::Nested(Nesting::N24),
];

/// Repeatable numbers (`SplitMix64`).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `limit`.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        let limit = u64::try_from(limit).expect("a usize has at most 64 bits");
        usize::try_from(self.bits() % limit).expect("below a usize")
    }

    /// Token ids below `limit`.
    pub(crate) fn ids(&mut self, len: usize, limit: usize) -> Vec<u32> {
        (0..len)
            .map(|_| u32::try_from(self.below(limit)).expect("a small vocabulary"))
            .collect()
    }

    /// About normal with variance 1: the sum of twelve uniform numbers, all
    /// multiples of 2^-12, so that a step of a power of two stays exact in f32.
    pub(crate) fn normal(&mut self) -> f32 {
        let sum: f32 = (0..12).map(|_| self.below(4096) as f32 / 4096.0).sum();
        sum - 6.0
    }

    pub(crate) fn normals(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.normal()).collect()
    }

    /// Normal numbers times `factor`.
    pub(crate) fn scaled(&mut self, len: usize, factor: f32) -> Vec<f32> {
        (0..len).map(|_| factor * self.normal()).collect()
    }
}

/// `len` rows in `num_segments` runs of uneven length; fewer where there are
/// not rows enough.
pub(crate) fn uneven_cuts(len: usize, num_segments: usize) -> Vec<Range<usize>> {
    let num_segments = num_segments.min(len);
    // Square numbers make each run longer than the one before.
    let bound = |index: usize| {
        let share = index * index * len / (num_segments * num_segments);
        if index == num_segments {
            len
        } else {
            share.max(index)
        }
    };
    (0..num_segments)
        .map(|index| bound(index)..bound(index + 1))
        .collect()
}

/// A weight's rows, each segment in a place of its own.
pub(crate) struct StoredWeight {
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) format: WeightFormat,
    segments: Vec<(Range<usize>, Plane)>,
}

/// Bytes that begin at a multiple of 4, as planes do.
pub(crate) struct Plane {
    words: Vec<u32>,
    num_bytes: usize,
}

impl Plane {
    pub(crate) fn f32(numbers: &[f32]) -> Self {
        Self::from_bytes(tensor::as_bytes(numbers))
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Self {
        let mut words = vec![0; bytes.len().div_ceil(4)];
        tensor::as_bytes_mut(&mut words)[..bytes.len()].copy_from_slice(bytes);
        Self {
            words,
            num_bytes: bytes.len(),
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &tensor::as_bytes(&self.words)[..self.num_bytes]
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut tensor::as_bytes_mut(&mut self.words)[..self.num_bytes]
    }

    pub(crate) fn to_f32(&self) -> Vec<f32> {
        tensor::cast(self.bytes()).expect("planes of f32").to_vec()
    }
}

impl StoredWeight {
    /// Stores `numbers` in `format` (to nearest), cut in `num_segments`.
    pub(crate) fn new(
        numbers: &[f32],
        rows: usize,
        format: WeightFormat,
        num_segments: usize,
    ) -> Self {
        let cols = numbers.len() / rows;
        let plane = |rows: &Range<usize>| {
            let numbers = &numbers[rows.start * cols..rows.end * cols];
            match format {
                WeightFormat::F32 => Plane::f32(numbers),
                WeightFormat::Bf16 => {
                    let halves: Vec<bf16> = numbers.iter().map(|&x| bf16::from_f32(x)).collect();
                    Plane::from_bytes(tensor::as_bytes(&halves))
                }
                WeightFormat::E4m3 => {
                    let quantized =
                        fp8::quantize_tiles(numbers, cols, Format::E4M3, Headroom::Binade);
                    let scales = quantized.scales.iter().map(|scale| scale.to_e8m0());
                    let bytes: Vec<u8> = quantized.codes.iter().copied().chain(scales).collect();
                    Plane::from_bytes(&bytes)
                }
                WeightFormat::Nested(nesting) => {
                    let mut planes = NestedPlanes::zeros(rows.len(), cols, nesting);
                    planes
                        .as_mut()
                        .encode_f32(numbers, Headroom::Binade, Rounding::Nearest)
                        .expect("finite numbers");
                    let low = planes.low.unwrap_or_default();
                    Plane::from_bytes(&[planes.codes, planes.residual, low, planes.scales].concat())
                }
            }
        };
        Self {
            rows,
            cols,
            format,
            segments: uneven_cuts(rows, num_segments)
                .into_iter()
                .map(|rows| (rows.clone(), plane(&rows)))
                .collect(),
        }
    }

    /// A vector in f32.
    pub(crate) fn vector(numbers: &[f32]) -> Self {
        Self::new(numbers, 1, WeightFormat::F32, 1)
    }

    /// The weight as device `D` sees it.
    pub(crate) fn on<D: Under>(&self) -> Weight<D::Bytes<'_>> {
        Weight {
            rows: self.rows,
            cols: self.cols,
            format: self.format,
            segments: self
                .segments
                .iter()
                .map(|(rows, plane)| Segment {
                    rows: rows.clone(),
                    bytes: D::bytes(plane.bytes()),
                })
                .collect(),
        }
    }
}

#[test]
fn cuts_are_uneven_and_cover_every_row_once() {
    for len in 1..300 {
        for num_segments in 1..6 {
            let cuts = uneven_cuts(len, num_segments);
            let rows: Vec<usize> = cuts.iter().cloned().flatten().collect();
            assert_eq!(rows, (0..len).collect::<Vec<_>>());
            assert!(cuts.iter().all(|cut| !cut.is_empty()));
        }
    }
}
