//! What rounding to FP8 does to what linear layers multiply.

use std::cell::Cell;

use fp8::Format;
use kernels::fp8::RowCounts;

/// What became of the operands of one linear layer in a step, on one rank.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OperandCounts {
    /// The layer's unit.
    pub unit: usize,
    /// Its weight among the unit's tensors.
    pub tensor: usize,
    /// Of the forward and of wgrad.
    pub input: RowCounts,
    /// The output's gradient, of dgrad.
    pub gradient: RowCounts,
}

/// Counts of a layer while its block is unsharded.
#[derive(Debug)]
pub(crate) struct Tally {
    /// The layer's weight among the unit's tensors.
    tensor: usize,
    /// What the output's gradient is rounded to.
    pub(crate) gradient_format: Format,
    input: Cell<RowCounts>,
    gradient: Cell<RowCounts>,
}

impl Tally {
    pub(crate) fn new(tensor: usize, gradient_format: Format) -> Self {
        Self {
            tensor,
            gradient_format,
            input: Cell::default(),
            gradient: Cell::default(),
        }
    }

    pub(crate) fn add_input(&self, counts: RowCounts) {
        self.input.set(self.input.get().and(counts));
    }

    pub(crate) fn add_gradient(&self, counts: RowCounts) {
        self.gradient.set(self.gradient.get().and(counts));
    }

    pub(crate) fn counts(&self, unit: usize) -> OperandCounts {
        OperandCounts {
            unit,
            tensor: self.tensor,
            input: self.input.get(),
            gradient: self.gradient.get(),
        }
    }
}
