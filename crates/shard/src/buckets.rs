//! How a unit's tensors are cut into buckets and row tiles.
//!
//! A unit is one bucket, except that a table (embedding, `lm_head`) is cut into
//! buckets of at most [`BUCKET_BYTES`] of f32, so that neither its whole
//! gradient nor all logits ever exist at once. What else is in the unit of a
//! table (the final norm) is a bucket of its own before the table's. Matrices that
//! are not trained are a bucket apart, for which no gradient is made.

use std::ops::Range;

/// Rows of a row tile: no scale and no rank boundary lies inside one.
pub const TILE_ROWS: usize = 128;

/// The most f32 bytes of a bucket of a table, unless one tile has more.
pub const BUCKET_BYTES: usize = 16 << 20;

/// What sharding needs to know of a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorShape {
    /// Rows of the matrix; 1 for a vector.
    pub rows: usize,
    /// Elements of a row; the length of a vector.
    pub cols: usize,
    /// A vector is never cut.
    pub is_vector: bool,
    /// A vocabulary table is cut into several buckets.
    pub is_table: bool,
    /// Nothing of it is trained.
    pub is_frozen: bool,
    /// Bytes that one element rests in with all its state: what is balanced.
    pub bytes_per_element: usize,
}

/// Rows of one tensor that lie in one bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slice {
    /// Index of the tensor in its unit.
    pub tensor: usize,
    /// Rows of the tensor; `0..1` for a vector.
    pub rows: Range<usize>,
    /// Elements of a row.
    pub cols: usize,
    /// Whether the tensor is a vector.
    pub is_vector: bool,
    /// Whether nothing of it is trained. A vector still has a place in the gradient.
    pub is_frozen: bool,
    /// First element in the bucket.
    pub at: usize,
}

impl Slice {
    /// Elements of the slice.
    pub fn num_elements(&self) -> usize {
        self.rows.len() * self.cols
    }
}

/// A bucket that is not dealt yet.
#[derive(Debug, Default)]
pub(crate) struct Cut {
    pub(crate) slices: Vec<Slice>,
    pub(crate) num_elements: usize,
    pub(crate) tiles: Vec<RowTile>,
}

/// What is never cut further.
#[derive(Debug)]
pub(crate) struct RowTile {
    /// Index in the bucket's slices.
    pub(crate) slice: usize,
    /// Rows of the tensor.
    pub(crate) rows: Range<usize>,
    /// Elements of the tile.
    pub(crate) num_elements: usize,
    /// What it weighs in the balance.
    pub(crate) resident_bytes: usize,
}

/// Cuts one unit into buckets of row tiles. A unit without elements has none.
pub(crate) fn cut(tensors: &[TensorShape], bucket_bytes: usize) -> Vec<Cut> {
    let mut rest = Cut::default();
    let mut frozen = Cut::default();
    let mut tables = Vec::new();
    for (index, tensor) in tensors.iter().enumerate() {
        let rows = if tensor.is_vector { 1 } else { tensor.rows };
        if tensor.is_table {
            let step = table_rows(tensor.cols, bucket_bytes);
            for start in (0..rows).step_by(step) {
                let mut bucket = Cut::default();
                bucket.push(index, tensor, start..rows.min(start + step));
                tables.push(bucket);
            }
        } else if tensor.is_frozen && !tensor.is_vector {
            frozen.push(index, tensor, 0..rows);
        } else {
            rest.push(index, tensor, 0..rows);
        }
    }
    let mut buckets = vec![rest, frozen];
    buckets.append(&mut tables);
    buckets.retain(|bucket| bucket.num_elements > 0);
    buckets
}

/// Rows of a table's bucket: as many whole tiles as fit, at least one.
fn table_rows(cols: usize, bucket_bytes: usize) -> usize {
    let tile_bytes = TILE_ROWS * cols.max(1) * size_of::<f32>();
    (bucket_bytes / tile_bytes).max(1) * TILE_ROWS
}

impl Cut {
    /// Appends rows of a tensor.
    fn push(&mut self, tensor: usize, shape: &TensorShape, rows: Range<usize>) {
        let slice = Slice {
            tensor,
            rows,
            cols: if shape.is_vector {
                shape.rows * shape.cols
            } else {
                shape.cols
            },
            is_vector: shape.is_vector,
            is_frozen: shape.is_frozen,
            at: self.num_elements,
        };
        if slice.num_elements() == 0 {
            return;
        }
        let index = self.slices.len();
        self.tiles.extend(row_tiles(&slice).map(|rows| RowTile {
            slice: index,
            num_elements: rows.len() * slice.cols,
            resident_bytes: rows.len() * slice.cols * shape.bytes_per_element,
            rows,
        }));
        self.num_elements += slice.num_elements();
        self.slices.push(slice);
    }
}

fn row_tiles(slice: &Slice) -> impl Iterator<Item = Range<usize>> {
    let rows = slice.rows.clone();
    rows.clone()
        .step_by(TILE_ROWS)
        .map(move |start| start..rows.end.min(start + TILE_ROWS))
}
