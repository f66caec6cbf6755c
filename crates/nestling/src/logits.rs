//! Logits of given tokens, to compare with other programs.

use kernels::Device;
use model::MicroBatch;
use plan::{Precision, Work};
use train::with_model;

use crate::{Error, ModelPath, OpenModel};

/// f32 logits, one row a position.
#[derive(Debug, Clone, PartialEq)]
pub struct Logits {
    /// Positions.
    pub rows: usize,
    /// The vocabulary's size.
    pub cols: usize,
    /// Row by row.
    pub values: Vec<f32>,
}

/// Computes the logits of every position of `ids`; with a precision, by the products
/// of training under it.
pub fn logits<'a>(
    model: impl Into<ModelPath<'a>>,
    ids: &[u32],
    threads: usize,
    precision: Option<&Precision>,
) -> Result<Logits, Error> {
    let opened = OpenModel::open(model)?;
    if ids.is_empty() {
        return Err(Error::Empty { what: "`--ids`" });
    }
    opened.check_ids(ids)?;
    let max_positions = opened.model.spec.max_positions;
    if ids.len() > max_positions {
        return Err(Error::TooManyTokens {
            found: ids.len(),
            max_positions,
        });
    }
    let (rows, cols) = (ids.len(), opened.model.spec.vocab);
    let batch = MicroBatch::new(rows, ids.to_vec(), vec![kernels::IGNORED; rows]);
    let works = [Work::Logits { num_tokens: rows }];
    let inference = opened.inference(threads, precision);
    let values = with_model(&inference, &works, |device, world| {
        let mut values = vec![0.0; rows * cols];
        model::logits(
            device,
            &opened.model,
            world,
            &batch,
            |first_row, logits_tv| {
                let width = device.len(logits_tv) / rows;
                for row in 0..rows {
                    let at = row * cols + first_row;
                    let from = row * width..(row + 1) * width;
                    device.read(logits_tv, from, &mut values[at..at + width]);
                }
            },
        )?;
        Ok(values)
    })?;
    Ok(Logits { rows, cols, values })
}

impl Logits {
    /// The logits of one position.
    pub fn row(&self, position: usize) -> &[f32] {
        &self.values[position * self.cols..(position + 1) * self.cols]
    }

    /// The rows as a `.npy` file, version 1.0 (`NumPy` Enhancement Proposal 1).
    #[expect(
        clippy::missing_panics_doc,
        reason = "a header of two numbers is short"
    )]
    pub fn to_npy(&self) -> Vec<u8> {
        let mut header = format!(
            "{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {}), }}",
            self.rows, self.cols
        );
        // Magic, version and length take 10 bytes; data begin at a multiple of 64.
        let padded = (header.len() + 11).next_multiple_of(64) - 10;
        header.push_str(&" ".repeat(padded - 1 - header.len()));
        header.push('\n');
        let len = u16::try_from(header.len()).expect("a header of two numbers is short");
        let mut file = b"\x93NUMPY\x01\x00".to_vec();
        file.extend(len.to_le_bytes());
        file.extend(header.as_bytes());
        file.extend(tensor::as_bytes(&self.values));
        file
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn npy_data_begin_at_a_multiple_of_64() {
        let logits = Logits {
            rows: 2,
            cols: 3,
            values: vec![1.0; 6],
        };
        let file = logits.to_npy();
        assert_eq!((file.len() - 24) % 64, 0);
        assert_eq!(&file[..8], b"\x93NUMPY\x01\x00");
        assert_eq!(file[file.len() - 25], b'\n');
    }
}
