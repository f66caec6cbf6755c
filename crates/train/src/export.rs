//! How a shard is written out: every rank writes its own byte ranges into the
//! final files, in the names and dtypes of the source. No gather, no merge.

use checkpoint::{ExportPlan, Located, StagedFiles};
use half::bf16;
use kernels::{WeightFormat, join_master};
use model::Transformer;
use shard::{Bucket, Part};
use tensor::{Dtype, Ledger, as_bytes_mut, cast, narrow};

use crate::load::{Staging, element_range, staged_len};
use crate::{RankWorld, TrainError};

/// Writes this rank's part of every tensor; gives the bytes written.
///
/// # Panics
///
/// If the plan is another model's.
pub fn export(
    world: &RankWorld<'_>,
    model: &Transformer,
    plan: &ExportPlan,
    files: &StagedFiles,
    ledger: &Ledger,
) -> Result<u64, TrainError> {
    let mut staging = Staging::new(ledger)?;
    let rank = world.group.world().rank();
    let mut num_bytes = 0;
    for (index, bucket) in world.sharding.buckets.iter().enumerate() {
        let slot = world.window.own(index)?;
        let places = &world.own_layout(index).parts;
        for (part_index, part) in bucket.runs[rank].parts.iter().enumerate() {
            let residual = match &world.optimizer {
                Some(optimizer) => optimizer.residual(index, part_index),
                None => &[],
            };
            let tensor = bucket.slices[part.slice].tensor;
            let name = &model.units[bucket.unit].params[tensor].name;
            let mut part = PartToWrite {
                files,
                bucket,
                part,
                target: plan
                    .located(name)
                    .expect("the plan has every tensor of the model"),
                staging: &mut staging,
            };
            let format = world.formats.of(bucket.unit, tensor);
            num_bytes += part.write(format, &slot[places[part_index].clone()], residual)?;
        }
    }
    Ok(num_bytes)
}

/// Refuses a state that a file could not hold as numbers: a NaN, an infinity, or
/// what the source's dtype rounds to one.
pub fn check_finite(
    world: &RankWorld<'_>,
    model: &Transformer,
    plan: &ExportPlan,
    step: u64,
) -> Result<(), TrainError> {
    let rank = world.group.world().rank();
    for (index, bucket) in world.sharding.buckets.iter().enumerate() {
        let slot = world.window.own(index)?;
        let places = &world.own_layout(index).parts;
        for (part, place) in bucket.runs[rank].parts.iter().zip(places) {
            let tensor = bucket.slices[part.slice].tensor;
            let name = &model.units[bucket.unit].params[tensor].name;
            let dtype = plan.located(name).map(|located| located.meta.dtype);
            let limit = match dtype {
                Some(Dtype::F16) => F16_OVERFLOW,
                _ => f32::INFINITY,
            };
            let plane = &slot[place.clone()];
            let fits = match world.formats.of(bucket.unit, tensor) {
                WeightFormat::F32 => all_below(aligned::<f32>(plane).iter().copied(), limit),
                WeightFormat::Bf16 => {
                    let high = aligned::<bf16>(plane).iter();
                    all_below(high.map(|high| high.to_f32()), limit)
                }
            };
            if !fits {
                return Err(TrainError::WeightNotFinite {
                    step,
                    tensor: name.clone(),
                });
            }
        }
    }
    Ok(())
}

/// The least magnitude that rounds to infinity in f16.
const F16_OVERFLOW: f32 = 65520.0;

/// Whether every magnitude is below the limit; a NaN is not.
fn all_below(mut values: impl Iterator<Item = f32>, limit: f32) -> bool {
    values.all(|value| value.abs() < limit)
}

/// A part of a rank's run on its way to its file.
struct PartToWrite<'a> {
    files: &'a StagedFiles,
    bucket: &'a Bucket,
    part: &'a Part,
    target: &'a Located,
    staging: &'a mut Staging,
}

impl PartToWrite<'_> {
    /// Writes the part in the dtype of its source; gives the bytes written.
    fn write(
        &mut self,
        format: WeightFormat,
        plane: &[u8],
        residual: &[i16],
    ) -> Result<u64, TrainError> {
        let dtype = self.target.meta.dtype;
        if let (Dtype::F32, WeightFormat::F32) | (Dtype::BF16, WeightFormat::Bf16) = (dtype, format)
        {
            return self.write_at(0, plane);
        }
        let mut num_bytes = 0;
        let mut at = 0;
        while at < self.part.num_elements {
            let len = staged_len(dtype).min(self.part.num_elements - at);
            self.widen_master(format, plane, residual, at, len);
            let size = dtype.size_bytes().expect("sources are whole-byte floats");
            let mut stored = std::mem::take(&mut self.staging.stored);
            let bytes = &mut as_bytes_mut(&mut stored)[..len * size];
            narrow(dtype, &self.staging.wide[..len], bytes)?;
            num_bytes += self.write_at(at * size, bytes)?;
            self.staging.stored = stored;
            at += len;
        }
        Ok(num_bytes)
    }

    /// Brings `len` elements of the master from `at` on into `staging.wide`.
    fn widen_master(
        &mut self,
        format: WeightFormat,
        plane: &[u8],
        residual: &[i16],
        at: usize,
        len: usize,
    ) {
        let wide = &mut self.staging.wide[..len];
        match format {
            WeightFormat::F32 => wide.copy_from_slice(&aligned::<f32>(plane)[at..at + len]),
            WeightFormat::Bf16 => {
                let high = &aligned::<bf16>(plane)[at..at + len];
                for (index, (wide, &high)) in wide.iter_mut().zip(high).enumerate() {
                    let low = residual.get(at + index).copied().unwrap_or(0);
                    *wide = join_master(high, low);
                }
            }
        }
    }

    /// Writes bytes at an offset within the part; gives their number.
    fn write_at(&self, offset: usize, bytes: &[u8]) -> Result<u64, TrainError> {
        let slice = &self.bucket.slices[self.part.slice];
        let elements = element_range(&self.part.rows, slice.cols, self.part.num_elements);
        let size = self.target.meta.dtype.size_bytes();
        let begin = elements.start * size.expect("sources are whole-byte floats") + offset;
        self.files.write_at(self.target, begin as u64, bytes)?;
        Ok(bytes.len() as u64)
    }
}

/// A plane seen as numbers; parts begin at multiples of 64 bytes.
fn aligned<T: bytemuck::Pod>(plane: &[u8]) -> &[T] {
    cast(plane).expect("parts are aligned and hold whole elements")
}
