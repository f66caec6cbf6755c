//! The bytes of a weight as f32 numbers, where they lie or decoded.

use std::borrow::Cow;
use std::ops::Range;

use super::vector::{simd, widen_all};
use crate::fp8::decode_nested_panel;
use crate::weight::{nested_planes, tiled_codes};
use crate::{Segment, Weight, WeightFormat};

/// Some rows of a weight that lie together.
#[derive(Debug, Clone)]
pub(super) struct Piece<'a> {
    /// The rows, counted in the weight.
    pub(super) rows: Range<usize>,
    /// The rows, counted in the segment.
    in_segment: Range<usize>,
    /// The whole segment, whose tiles have their scales at its end.
    segment: &'a [u8],
    segment_rows: usize,
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
    let first = segment.rows.start;
    Piece {
        in_segment: rows.start - first..rows.end - first,
        rows,
        segment: segment.bytes,
        segment_rows: segment.rows.len(),
        format: weight.format,
        cols: weight.cols,
    }
}

impl<'a> Piece<'a> {
    /// The elements where they lie, if they are f32.
    pub(super) fn in_place(&self) -> Option<&'a [f32]> {
        (self.format == WeightFormat::F32)
            .then(|| tensor::cast(self.bytes()).expect("f32 weights are aligned to 4 bytes"))
    }

    /// The bytes of the rows, of a format without tiles.
    fn bytes(&self) -> &'a [u8] {
        let row_bytes = self.cols * self.format.size_bytes();
        &self.segment[self.in_segment.start * row_bytes..self.in_segment.end * row_bytes]
    }

    /// How the elements are stored.
    pub(super) fn format(&self) -> WeightFormat {
        self.format
    }

    /// The elements as pairs of bytes.
    pub(super) fn bf16(&self) -> &'a [[u8; 2]] {
        self.bytes().as_chunks().0
    }

    /// The bytes, row by row.
    pub(super) fn byte_rows(&self) -> impl Iterator<Item = &'a [u8]> {
        self.bytes()
            .chunks_exact(self.cols * self.format.size_bytes())
    }

    /// Decodes columns `cols`, densely, at the panel's beginning.
    pub(super) fn decode(&self, cols: Range<usize>, panel: &mut [f32]) {
        let panel = &mut panel[..self.rows.len() * cols.len()];
        let (segment, rows) = (self.segment, self.segment_rows);
        match self.format {
            WeightFormat::F32 => self.copy_f32(&cols, panel),
            WeightFormat::Bf16 => self.decode_bf16(cols, panel),
            WeightFormat::E4m3 => {
                tiled_codes(segment, rows, self.cols).decode(self.in_segment.clone(), cols, panel);
            }
            WeightFormat::Nested(nesting) => {
                let planes = nested_planes(segment, rows, self.cols, nesting);
                decode_nested_panel(&planes, self.in_segment.clone(), cols, panel);
            }
        }
    }

    fn copy_f32(&self, cols: &Range<usize>, panel: &mut [f32]) {
        let rows = self.in_place().unwrap_or_default();
        let rows = rows.chunks_exact(self.cols);
        for (row, out) in rows.zip(panel.chunks_exact_mut(cols.len())) {
            out.copy_from_slice(&row[cols.clone()]);
        }
    }

    fn decode_bf16(&self, cols: Range<usize>, panel: &mut [f32]) {
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
