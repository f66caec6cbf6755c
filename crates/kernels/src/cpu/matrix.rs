//! Strided views of f32 matrices, and their product.
//!
//! Threads write disjoint blocks of one matrix, and a block's rows do not lie
//! together, so a mutable slice cannot say what a thread owns. [`MatrixMut`] can:
//! it is split, never copied.
#![expect(
    unsafe_code,
    reason = "disjoint column blocks of one matrix are written at once"
)]

use std::marker::PhantomData;
use std::ops::Range;

use gemm::Parallelism;

/// A matrix that is read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Matrix<'a> {
    /// From the first element on. The last element lies inside.
    data: &'a [f32],
    rows: usize,
    cols: usize,
    row_stride: usize,
    col_stride: usize,
}

impl<'a> Matrix<'a> {
    /// Rows of `cols` elements that begin `row_stride` apart.
    pub(super) fn new(data: &'a [f32], rows: usize, cols: usize, row_stride: usize) -> Self {
        assert!(
            fits(data.len(), rows, cols, row_stride),
            "the matrix lies in its data"
        );
        Self {
            data,
            rows,
            cols,
            row_stride,
            col_stride: 1,
        }
    }

    /// Rows and columns changed over.
    pub(super) fn transposed(self) -> Self {
        Self {
            rows: self.cols,
            cols: self.rows,
            row_stride: self.col_stride,
            col_stride: self.row_stride,
            ..self
        }
    }

    /// Some rows and columns.
    pub(super) fn block(self, rows: Range<usize>, cols: Range<usize>) -> Self {
        assert!(
            rows.end <= self.rows && cols.end <= self.cols,
            "the block lies in the matrix"
        );
        let first = rows.start * self.row_stride + cols.start * self.col_stride;
        let empty = rows.is_empty() || cols.is_empty();
        Self {
            data: if empty { &[] } else { &self.data[first..] },
            rows: rows.len(),
            cols: cols.len(),
            ..self
        }
    }

    /// Some rows.
    pub(super) fn rows(self, rows: Range<usize>) -> Self {
        self.block(rows, 0..self.cols)
    }

    /// Some columns.
    pub(super) fn cols(self, cols: Range<usize>) -> Self {
        self.block(0..self.rows, cols)
    }

    /// The number of rows.
    pub(super) fn num_rows(&self) -> usize {
        self.rows
    }

    /// The number of columns.
    pub(super) fn num_cols(&self) -> usize {
        self.cols
    }

    /// The elements of one row, where they lie together.
    pub(super) fn row(&self, row: usize) -> &'a [f32] {
        assert_eq!(self.col_stride, 1, "the elements of a row lie together");
        &self.data[row * self.row_stride..][..self.cols]
    }
}

fn fits(len: usize, rows: usize, cols: usize, row_stride: usize) -> bool {
    rows == 0 || cols == 0 || (rows - 1) * row_stride + cols <= len
}

/// A matrix that is written; the elements of a row lie together.
///
/// Its elements are those `rows * cols` ones, not what lies between its rows.
#[derive(Debug)]
pub(super) struct MatrixMut<'a> {
    /// The first element. All elements lie in one allocation that is borrowed
    /// for `'a`, and nothing else reaches them for as long.
    start: *mut f32,
    rows: usize,
    cols: usize,
    /// At least `cols`, so that rows do not overlap.
    row_stride: usize,
    borrowed: PhantomData<&'a mut [f32]>,
}

// SAFETY: a `MatrixMut` is the only way to its elements for `'a`, like
// `&mut [f32]`, which is `Send` because f32 is.
unsafe impl Send for MatrixMut<'_> {}

impl<'a> MatrixMut<'a> {
    /// Rows of `cols` elements that begin `row_stride` apart.
    pub(super) fn new(data: &'a mut [f32], rows: usize, cols: usize, row_stride: usize) -> Self {
        assert!(
            fits(data.len(), rows, cols, row_stride),
            "the matrix lies in its data"
        );
        assert!(rows <= 1 || cols <= row_stride, "rows do not overlap");
        Self {
            start: data.as_mut_ptr(),
            rows,
            cols,
            row_stride,
            borrowed: PhantomData,
        }
    }

    /// The number of rows.
    pub(super) fn num_rows(&self) -> usize {
        self.rows
    }

    /// The number of columns.
    pub(super) fn num_cols(&self) -> usize {
        self.cols
    }

    /// The same matrix for a shorter time.
    pub(super) fn reborrow(&mut self) -> MatrixMut<'_> {
        MatrixMut {
            borrowed: PhantomData,
            ..*self
        }
    }

    /// The first `at` rows, and the others.
    pub(super) fn split_rows(self, at: usize) -> (Self, Self) {
        assert!(at <= self.rows, "the split lies in the matrix");
        let rest = Self {
            start: self.start.wrapping_add(at * self.row_stride),
            rows: self.rows - at,
            ..self
        };
        (Self { rows: at, ..self }, rest)
    }

    /// The first `at` columns, and the others.
    pub(super) fn split_cols(self, at: usize) -> (Self, Self) {
        assert!(at <= self.cols, "the split lies in the matrix");
        let rest = Self {
            start: self.start.wrapping_add(at),
            cols: self.cols - at,
            ..self
        };
        (Self { cols: at, ..self }, rest)
    }

    /// Blocks of `rows` rows, the last may be smaller.
    pub(super) fn row_chunks(self, rows: usize) -> Vec<Self> {
        chunks(self, |matrix| matrix.rows, rows, Self::split_rows)
    }

    /// Blocks of `cols` columns, the last may be smaller.
    pub(super) fn col_chunks(self, cols: usize) -> Vec<Self> {
        chunks(self, |matrix| matrix.cols, cols, Self::split_cols)
    }

    /// Some rows and columns, for a shorter time.
    pub(super) fn block(&mut self, rows: Range<usize>, cols: Range<usize>) -> MatrixMut<'_> {
        let (above, _) = self.reborrow().split_rows(rows.end);
        let (_, middle) = above.split_rows(rows.start);
        let (left, _) = middle.split_cols(cols.end);
        left.split_cols(cols.start).1
    }

    /// The elements of one row.
    pub(super) fn row(&mut self, row: usize) -> &mut [f32] {
        assert!(row < self.rows, "the row lies in the matrix");
        let start = self.start.wrapping_add(row * self.row_stride);
        // SAFETY: the row's `cols` elements are initialised elements of this
        // matrix: inside one live allocation (an empty row has length 0 and a
        // pointer made from one that is not null), aligned as f32 pointers made
        // from a slice are, and reached by nothing else while `self` is borrowed.
        unsafe { std::slice::from_raw_parts_mut(start, self.cols) }
    }

    /// Sets every element.
    pub(super) fn fill(&mut self, value: f32) {
        for row in 0..self.rows {
            self.row(row).fill(value);
        }
    }
}

/// Splits until nothing is left.
fn chunks<'a>(
    matrix: MatrixMut<'a>,
    len: impl Fn(&MatrixMut<'a>) -> usize,
    chunk: usize,
    split: impl Fn(MatrixMut<'a>, usize) -> (MatrixMut<'a>, MatrixMut<'a>),
) -> Vec<MatrixMut<'a>> {
    let mut rest = matrix;
    let mut parts = Vec::with_capacity(len(&rest).div_ceil(chunk));
    while len(&rest) > 0 {
        let at = chunk.min(len(&rest));
        let (part, next) = split(rest, at);
        parts.push(part);
        rest = next;
    }
    parts
}

/// Products that are summed before they are added to the output. `gemm` sums as many
/// at once where an output is large, and others where it is not.
const SUMMED: usize = 512;

/// `y = factor * a b`, or adds that to `y`, on this thread.
///
/// An element's sum has the same order in every product that it can be part of, but
/// for those of one row or column, or of at most 256 elements.
pub(super) fn matmul(y: &mut MatrixMut<'_>, adds: bool, factor: f32, a: Matrix<'_>, b: Matrix<'_>) {
    let inner = a.cols;
    assert_eq!(inner, b.rows, "sizes of a product");
    let part = inner.div_ceil(inner.div_ceil(SUMMED).max(1)).max(1);
    for first in (0..inner.max(1)).step_by(part) {
        let range = first..inner.min(first + part);
        let (a, b) = (a.cols(range.clone()), b.rows(range));
        sum(y, adds || first > 0, factor, a, b);
    }
}

/// A product whose sums are short enough to be made at once.
fn sum(y: &mut MatrixMut<'_>, adds: bool, factor: f32, a: Matrix<'_>, b: Matrix<'_>) {
    let (m, n, k) = (y.rows, y.cols, a.cols);
    assert_eq!((a.rows, b.rows, b.cols), (m, k, n), "sizes of a product");
    // SAFETY: `gemm` reads `a` and `b` and writes `y` at exactly the elements
    // that sizes and strides name. Those of `a` and `b` lie in their slices (each
    // constructor checks, blocks only shrink), those of `y` in memory that `y`
    // alone reaches, by its invariant, so it overlaps neither operand. All are
    // initialised.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            y.start,
            1,
            stride(y.row_stride),
            adds,
            a.data.as_ptr(),
            stride(a.col_stride),
            stride(a.row_stride),
            b.data.as_ptr(),
            stride(b.col_stride),
            stride(b.row_stride),
            1.0,
            factor,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}

fn stride(elements: usize) -> isize {
    isize::try_from(elements).expect("a stride inside a slice")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whole numbers, so that every order of a sum gives the same.
    fn numbers(len: usize) -> Vec<f32> {
        (0..len)
            .map(|index| (index * 7 % 11) as f32 - 5.0)
            .collect()
    }

    #[test]
    fn blocks_written_by_themselves_make_the_whole_product() {
        let (m, n, k, stride) = (7, 10, 5, 13);
        let (a, b) = (numbers(m * k), numbers(n * k));
        let mut y = vec![100.0; m * stride];
        for (row, block) in MatrixMut::new(&mut y, m, n, stride)
            .row_chunks(3)
            .into_iter()
            .enumerate()
        {
            for (col, mut block) in block.col_chunks(4).into_iter().enumerate() {
                let rows = 3 * row..3 * row + block.num_rows();
                let cols = 4 * col..4 * col + block.num_cols();
                let a = Matrix::new(&a, m, k, k).rows(rows);
                let b = Matrix::new(&b, n, k, k).transposed().cols(cols);
                matmul(&mut block, true, 2.0, a, b);
            }
        }
        for (index, &found) in y.iter().enumerate() {
            let (row, col) = (index / stride, index % stride);
            let product = |at: usize| a[row * k + at] * b[col * k + at];
            let expected = if col < n {
                (0..k).map(product).sum()
            } else {
                0.0
            };
            assert!(
                (found - (100.0 + 2.0 * expected)).abs() < 1e-3,
                "{row} {col}"
            );
        }
    }

    #[test]
    fn a_block_of_a_block_writes_only_its_own_elements() {
        let mut data = vec![0.0; 20];
        let mut whole = MatrixMut::new(&mut data, 4, 5, 5);
        whole.block(1..4, 1..5).block(0..2, 2..4).fill(1.0);
        let ones = data.iter().enumerate().filter(|(_, x)| **x > 0.0);
        assert_eq!(
            ones.map(|(index, _)| index).collect::<Vec<_>>(),
            [8, 9, 13, 14]
        );
    }

    #[test]
    #[should_panic(expected = "the matrix lies in its data")]
    fn a_matrix_longer_than_its_data_panics() {
        let _ = Matrix::new(&[0.0; 11], 3, 4, 4);
    }

    #[test]
    #[should_panic(expected = "rows do not overlap")]
    fn overlapping_rows_are_not_writable() {
        let _ = MatrixMut::new(&mut [0.0; 11], 3, 4, 3);
    }
}
