//! A whole weight as a list of row segments.
//!
//! Ranks hold contiguous runs of rows. An unsharded weight is therefore the list
//! of the peers' runs, read where they lie; nothing is copied together.

use std::ops::Range;

/// How a weight's elements are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightFormat {
    /// f32, 4 bytes an element.
    F32,
    /// The upper half of an f32, 2 bytes an element.
    Bf16,
}

impl WeightFormat {
    /// Bytes of one element.
    pub fn size_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }
}

/// Consecutive rows of a weight that lie in one place.
#[derive(Debug, Clone)]
pub struct Segment<B> {
    /// The rows, counted in the weight they belong to.
    pub rows: Range<usize>,
    /// Their elements, row by row, in the weight's format.
    pub bytes: B,
}

/// A weight of `[rows, cols]`; a vector has one row.
#[derive(Debug, Clone)]
pub struct Weight<B> {
    /// Output features of a linear layer, tokens of a table.
    pub rows: usize,
    /// Input features.
    pub cols: usize,
    /// The element format of every segment.
    pub format: WeightFormat,
    /// The rows in order: the first begins at 0, each next where the one before
    /// ended, the last ends at `rows`. An empty segment does not occur.
    pub segments: Vec<Segment<B>>,
}

impl<B> Weight<B> {
    /// A weight that lies in one place.
    pub fn whole(rows: usize, cols: usize, format: WeightFormat, bytes: B) -> Self {
        Self {
            rows,
            cols,
            format,
            segments: vec![Segment {
                rows: 0..rows,
                bytes,
            }],
        }
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.rows * self.cols
    }

    /// Whether the weight has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
