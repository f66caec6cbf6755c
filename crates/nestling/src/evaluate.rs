//! The loss of a model on data.

use std::path::Path;

use data::Rows;
use model::MicroBatch;
use plan::{Precision, Work};
use train::with_model;

use crate::prepare::prepare;
use crate::temporary::temporary;
use crate::{Error, ModelPath, OpenModel};

/// How a model is evaluated.
#[derive(Debug, Clone, Copy)]
pub struct EvalOptions<'a> {
    /// Tokens of a row.
    pub seq: usize,
    /// Threads to compute on; 0 is all cores.
    pub threads: usize,
    /// With one, products are those of training under it.
    pub precision: Option<&'a Precision>,
}

/// What an evaluation gave.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EvalReport {
    /// Mean loss over the target tokens.
    pub loss: f64,
    /// `exp(loss)`.
    pub perplexity: f64,
    /// Target tokens.
    pub num_targets: u64,
    /// Rows of data.
    pub num_rows: u64,
}

/// Mean loss and perplexity over the data, in rows of the same length.
pub fn evaluate<'a>(
    model: impl Into<ModelPath<'a>>,
    data: &Path,
    options: EvalOptions<'_>,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<EvalReport, Error> {
    let opened = OpenModel::open(model)?;
    let seq = options.seq;
    let max_positions = opened.model.spec.max_positions;
    if seq > max_positions {
        return Err(train::TrainError::TooLong { seq, max_positions }.into());
    }
    let folder = temporary()?;
    let path = folder.path().join("rows");
    let prepared = prepare(&opened, data, seq, 0, &path)?;
    let rows = Rows::open(&prepared.path)?;
    let works = [Work::Evaluate { rows: 1, seq }];
    let inference = opened.inference(options.threads, options.precision);
    let (sum, num_targets) = with_model(&inference, &works, |device, world| {
        let (mut sum, mut num_targets) = (0.0, 0);
        for row in 0..rows.num_rows() {
            let (mut ids, mut targets) = (vec![0; seq], vec![0; seq]);
            rows.row(row, &mut ids, &mut targets)?;
            let batch = [MicroBatch::new(seq, ids, targets)];
            sum += model::evaluate(device, &opened.model, world, &batch)?;
            num_targets += batch[0].num_targets();
            progress(row + 1, rows.num_rows());
        }
        Ok((sum, num_targets))
    })?;
    if num_targets == 0 {
        return Err(train::TrainError::NoTargets.into());
    }
    let loss = sum / num_targets as f64;
    Ok(EvalReport {
        loss,
        perplexity: loss.exp(),
        num_targets,
        num_rows: rows.num_rows(),
    })
}
