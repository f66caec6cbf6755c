//! How each tensor rests, and where the parts of gatherable planes lie.

use std::ops::Range;

use fp8::Format;
use model::Transformer;
use shard::Bucket;
use spec::Param;

use crate::{Choice, Precision, Storage};

/// How every tensor of a model rests, by unit and tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Formats {
    storages: Vec<Vec<Storage>>,
    gradient_format: Format,
}

impl Formats {
    /// Chooses how each tensor rests, by unit and number in the unit.
    pub fn new(model: &Transformer, choose: impl Fn(usize, usize, &Param) -> Storage) -> Self {
        let units = model.units.iter().enumerate();
        let storages = units.map(|(unit, tensors)| {
            let params = tensors.params.iter().enumerate();
            params
                .map(|(tensor, param)| choose(unit, tensor, param))
                .collect()
        });
        Self {
            storages: storages.collect(),
            gradient_format: Format::E4M3,
        }
    }

    /// How tensors rest in training.
    pub fn of(model: &Transformer, precision: &Precision) -> Self {
        let storages = Self::new(model, |unit, _, param| {
            precision.storage(param, is_end(model, unit))
        });
        Self {
            gradient_format: precision.gradient_format,
            ..storages
        }
    }

    /// How tensors rest where products are a recipe's and nothing is trained.
    pub fn resting(model: &Transformer, precision: &Precision) -> Self {
        Self::new(model, |unit, _, param| {
            precision.resting(param, is_end(model, unit))
        })
    }

    /// What gradients are rounded to that codes are multiplied by.
    pub fn gradient_format(&self) -> Format {
        self.gradient_format
    }

    /// Whether any tensor is trained.
    pub fn trains(&self) -> bool {
        self.storages
            .iter()
            .flatten()
            .any(|storage| storage.is_trained())
    }

    /// Units of the model.
    pub fn num_units(&self) -> usize {
        self.storages.len()
    }

    /// The tensors of a unit.
    pub fn num_tensors(&self, unit: usize) -> usize {
        self.storages[unit].len()
    }

    /// How one tensor of a unit rests.
    pub fn storage(&self, unit: usize, tensor: usize) -> Storage {
        self.storages[unit][tensor]
    }
}

/// Every matrix with the reason why it has codes or not, in the order of the model.
pub fn choices<'m>(
    model: &'m Transformer,
    precision: &'m Precision,
) -> impl Iterator<Item = (&'m Param, Choice)> {
    model
        .units
        .iter()
        .enumerate()
        .flat_map(move |(unit, tensors)| {
            let matrices = tensors.params.iter().filter(|param| !param.is_vector);
            matrices.map(move |param| (param, precision.choice(param, is_end(model, unit))))
        })
}

/// Whether a unit is the first or the last block.
fn is_end(model: &Transformer, unit: usize) -> bool {
    let blocks = model.blocks();
    unit == blocks.start || unit + 1 == blocks.end
}

/// Where the parts of one rank's run of a bucket lie in its slot of the window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotLayout {
    /// The bytes of each part of the run, in order.
    pub parts: Vec<Range<usize>>,
    /// The slot's length.
    pub num_bytes: usize,
}

impl SlotLayout {
    /// Parts begin at multiples of this, so that any number type can be seen in place.
    pub const ALIGNMENT: usize = 64;

    /// Lays a run's parts out one after the other.
    pub fn new(bucket: &Bucket, rank: usize, formats: &Formats) -> Self {
        let mut num_bytes = 0;
        let parts = bucket.runs[rank].parts.iter().map(|part| {
            let slice = &bucket.slices[part.slice];
            let storage = formats.storage(bucket.unit, slice.tensor);
            let len = storage.weight_bytes(part.rows.len(), slice.cols);
            let begin = num_bytes;
            num_bytes = (begin + len).next_multiple_of(Self::ALIGNMENT);
            begin..begin + len
        });
        Self {
            parts: parts.collect(),
            num_bytes,
        }
    }
}
