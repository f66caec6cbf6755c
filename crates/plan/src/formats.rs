//! How each tensor's gatherable plane is stored, and where its parts lie.

use std::ops::Range;

use kernels::WeightFormat;
use model::Transformer;
use shard::Bucket;
use spec::Param;

use crate::Recipe;

/// The stored format of every tensor of a model, by unit and tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Formats(Vec<Vec<WeightFormat>>);

impl Formats {
    /// Chooses each tensor's format, by unit and number in the unit.
    pub fn new(model: &Transformer, choose: impl Fn(usize, usize, &Param) -> WeightFormat) -> Self {
        let units = model.units.iter().enumerate();
        Self(
            units
                .map(|(unit, tensors)| {
                    let params = tensors.params.iter().enumerate();
                    params
                        .map(|(tensor, param)| choose(unit, tensor, param))
                        .collect()
                })
                .collect(),
        )
    }

    /// The formats of a training recipe.
    pub fn of_recipe(model: &Transformer, recipe: Recipe) -> Self {
        Self::new(model, |_, _, param| recipe.weight_format(param.is_vector))
    }

    /// The tensors of a unit.
    pub fn num_tensors(&self, unit: usize) -> usize {
        self.0[unit].len()
    }

    /// The format of one tensor of a unit.
    pub fn of(&self, unit: usize, tensor: usize) -> WeightFormat {
        self.0[unit][tensor]
    }
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
            let tensor = bucket.slices[part.slice].tensor;
            let len = part.num_elements * formats.of(bucket.unit, tensor).size_bytes();
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
