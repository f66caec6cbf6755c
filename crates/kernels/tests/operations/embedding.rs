//! Rows of a table by token id, and their gradients.

use kernels::WeightFormat;

use crate::agreement::{Case, Outputs, Under, agrees};
use crate::inputs::{FORMATS, Random, StoredWeight, uneven_cuts};

/// Rows are copied, and gradients of up to 130 equal ids added in one order:
/// sums of up to 130 normal numbers in f32.
const TOLERANCE: f32 = 1e-6;

#[derive(Debug)]
struct Embedding {
    ids: Vec<u32>,
    rows: usize,
    cols: usize,
    num_buckets: usize,
    num_segments: usize,
    format: WeightFormat,
    scale: f32,
}

impl Case for Embedding {
    fn run<D: Under>(&self, device: &D) -> Outputs {
        let &Self { rows, cols, .. } = self;
        let random = &mut Random::new(6);
        let table = random.normals(rows * cols);
        let mut y = device.buffer(&random.normals(self.ids.len() * cols));
        let dy = device.buffer(&random.normals(self.ids.len() * cols));
        let mut grad = device.buffer(&random.normals(rows * cols + 7));
        // The first bucket's rows are left out of the forward.
        for (index, bucket) in uneven_cuts(rows, self.num_buckets).into_iter().enumerate() {
            let numbers = &table[bucket.start * cols..bucket.end * cols];
            let part = StoredWeight::new(numbers, bucket.len(), self.format, self.num_segments);
            if index > 0 || self.num_buckets == 1 {
                device.embedding(&self.ids, &part.on::<D>(), bucket.start, self.scale, &mut y);
            }
            let at = 4 + bucket.start * cols;
            let scale = self.scale;
            device.embedding_backward(&self.ids, &dy, bucket, scale, &mut grad, at);
        }
        vec![("y", device.numbers(&y)), ("grad", device.numbers(&grad))]
    }
}

#[test]
fn tables_in_buckets_and_segments_agree() {
    for (rows, cols) in [(1, 1), (5, 3), (300, 33), (129, 128)] {
        for t in [1, 7, 130] {
            for (num_buckets, num_segments) in [(1, 1), (1, 3), (2, 2), (4, 5)] {
                for (format, scale) in FORMATS.into_iter().zip([1.0, 55.5]) {
                    let case = Embedding {
                        ids: Random::new(7).ids(t, rows),
                        rows,
                        cols,
                        num_buckets,
                        num_segments,
                        format,
                        scale,
                    };
                    agrees(&case, TOLERANCE);
                }
            }
        }
    }
}

#[test]
fn ids_of_no_bucket_leave_everything_as_it_was() {
    let case = Embedding {
        ids: vec![9, 4, u32::MAX, 5, 4],
        rows: 5,
        cols: 3,
        num_buckets: 1,
        num_segments: 1,
        format: WeightFormat::F32,
        scale: 1.0,
    };
    agrees(&case, TOLERANCE);
}
