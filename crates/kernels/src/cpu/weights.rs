//! The bytes of a weight as f32 numbers, where they lie or decoded.

use std::borrow::Cow;
use std::ops::Range;

use super::vector::{simd, widen_all};
use crate::{Segment, Weight, WeightFormat};

/// Some rows of a weight that lie together.
#[derive(Debug, Clone)]
pub(super) struct Piece<'a> {
    /// The rows, counted in the weight.
    pub(super) rows: Range<usize>,
    bytes: &'a [u8],
    format: WeightFormat,
    cols: usize,
}

/// The pieces of `rows`, in order, at most `max_rows` long.
pub(super) fn pieces<'a>(
    weight: &Weight<&'a [u8]>,
    rows: Range<usize>,
    max_rows: usize,
) -> impl Iterator<Item = Piece<'a>> {
    weight.segments.iter().flat_map(move |segment| {
        let start = rows.start.max(segment.rows.start);
        let end = rows.end.min(segment.rows.end);
        (start..end).step_by(max_rows).map(move |first| {
            piece(
                weight,
                segment,
                first..end.min(first.saturating_add(max_rows)),
            )
        })
    })
}

fn piece<'a>(
    weight: &Weight<&'a [u8]>,
    segment: &Segment<&'a [u8]>,
    rows: Range<usize>,
) -> Piece<'a> {
    let row_bytes = weight.cols * weight.format.size_bytes();
    let first = (rows.start - segment.rows.start) * row_bytes;
    Piece {
        bytes: &segment.bytes[first..first + rows.len() * row_bytes],
        rows,
        format: weight.format,
        cols: weight.cols,
    }
}

impl<'a> Piece<'a> {
    /// The elements where they lie, if they are f32.
    pub(super) fn in_place(&self) -> Option<&'a [f32]> {
        (self.format == WeightFormat::F32)
            .then(|| tensor::cast(self.bytes).expect("f32 weights are aligned to 4 bytes"))
    }

    /// How the elements are stored.
    pub(super) fn format(&self) -> WeightFormat {
        self.format
    }

    /// The elements as pairs of bytes.
    pub(super) fn bf16(&self) -> &'a [[u8; 2]] {
        self.bytes.as_chunks().0
    }

    /// The bytes, row by row.
    pub(super) fn byte_rows(&self) -> impl Iterator<Item = &'a [u8]> {
        self.bytes
            .chunks_exact(self.cols * self.format.size_bytes())
    }

    /// Decodes columns `cols` of bf16 rows, densely.
    pub(super) fn decode(&self, cols: Range<usize>, panel: &mut [f32]) {
        let bytes = 2 * cols.start..2 * cols.end;
        simd(
            #[inline(always)]
            || {
                for (row, out) in self.byte_rows().zip(panel.chunks_exact_mut(cols.len())) {
                    widen_all(row[bytes.clone()].as_chunks().0, out);
                }
            },
        );
    }
}

/// A vector's elements: a vector is one tile and so never split.
pub(super) fn vector<'a>(weight_c: &Weight<&'a [u8]>) -> Cow<'a, [f32]> {
    let piece = piece(weight_c, &weight_c.segments[0], 0..1);
    if let Some(elements) = piece.in_place() {
        return elements.into();
    }
    let mut elements = vec![0.0; weight_c.cols];
    piece.decode(0..weight_c.cols, &mut elements);
    elements.into()
}

/// A vector's elements, each plus `offset`.
pub(super) fn vector_plus<'a>(weight_c: &Weight<&'a [u8]>, offset: f32) -> Cow<'a, [f32]> {
    let mut elements = vector(weight_c);
    if offset != 0.0 {
        for element in elements.to_mut() {
            *element += offset;
        }
    }
    elements
}

/// Copies row `row` of a table to `out`.
pub(super) fn copy_row(table: &Weight<&[u8]>, row: usize, out: &mut [f32]) {
    for piece in pieces(table, row..row + 1, 1) {
        match piece.in_place() {
            Some(elements) => out.copy_from_slice(elements),
            None => piece.decode(0..table.cols, out),
        }
    }
}
