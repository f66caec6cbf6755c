//! How a rank's shard is filled: its own byte ranges of the files, nothing else.
//!
//! Bytes go file -> staging buffer -> plane, or straight into the plane where
//! the file's dtype is the plane's. The staging buffer is one mebibyte, whatever
//! the size of a tensor.

use std::ops::Range;

use checkpoint::{Folder, Located, Reader, Sources};
use half::bf16;
use kernels::{WeightFormat, split_master};
use tensor::{Account, Dtype, Ledger, as_bytes_mut, cast_mut, widen};

use crate::{RankWorld, TrainError};

/// Elements that are on their way from a file at a time.
pub(crate) const STAGING_LEN: usize = 128 * 1024;

/// A rank's buffer for elements between a file and their place: as stored, and
/// as f32.
#[derive(Debug)]
pub(crate) struct Staging {
    /// As stored, aligned for any float; holds half as many of 8 bytes.
    pub(crate) stored: Vec<u64>,
    pub(crate) wide: Vec<f32>,
    _reservation: tensor::Reservation,
}

impl Staging {
    pub(crate) fn new(ledger: &Ledger) -> Result<Self, TrainError> {
        let bytes = 2 * 4 * STAGING_LEN as u64;
        Ok(Self {
            _reservation: ledger.reserve(Account::Staging, bytes)?,
            stored: vec![0; STAGING_LEN / 2],
            wide: vec![0.0; STAGING_LEN],
        })
    }
}

/// Elements of a dtype that are staged at a time.
pub(crate) fn staged_len(dtype: Dtype) -> usize {
    let size = dtype.size_bytes().expect("sources are whole-byte floats");
    STAGING_LEN * 4 / size.max(4)
}

/// Fills this rank's planes from the checkpoint; gives the bytes read.
pub fn load(
    world: &mut RankWorld<'_>,
    folder: &Folder,
    sources: &Sources,
    ledger: &Ledger,
) -> Result<u64, TrainError> {
    let mut staging = Staging::new(ledger)?;
    let reader = folder.open_files()?;
    let rank = world.group.world().rank();
    let mut num_bytes = 0;
    for (index, bucket) in world.sharding.buckets.iter().enumerate() {
        let layout = &world.layouts[index][rank];
        let mut slot = world.window.own_mut(index)?;
        for (part_index, part) in bucket.runs[rank].parts.iter().enumerate() {
            let slice = &bucket.slices[part.slice];
            let source = sources.of(folder, bucket.unit, slice.tensor);
            let elements = element_range(&part.rows, slice.cols, part.num_elements);
            let mut part = PartInFile {
                reader: &reader,
                source,
                elements,
                staging: &mut staging,
            };
            let plane = &mut slot[layout.parts[part_index].clone()];
            let residual = match &mut world.optimizer {
                Some(optimizer) => optimizer.residual_mut(index, part_index),
                None => &mut [],
            };
            num_bytes += part.read(world.formats.of(bucket.unit, slice.tensor), plane, residual)?;
        }
    }
    Ok(num_bytes)
}

/// A part's elements of its tensor.
pub(crate) fn element_range(rows: &Range<usize>, cols: usize, num_elements: usize) -> Range<usize> {
    let begin = rows.start * cols;
    begin..begin + num_elements
}

/// A part of a rank's run, where its file has it.
struct PartInFile<'a> {
    reader: &'a Reader,
    source: &'a Located,
    elements: Range<usize>,
    staging: &'a mut Staging,
}

impl PartInFile<'_> {
    /// Reads the part into its planes; gives the bytes read.
    fn read(
        &mut self,
        format: WeightFormat,
        plane: &mut [u8],
        residual: &mut [i16],
    ) -> Result<u64, TrainError> {
        let dtype = self.source.meta.dtype;
        let straight = matches!(
            (dtype, format),
            (Dtype::F32, WeightFormat::F32) | (Dtype::BF16, WeightFormat::Bf16)
        );
        if straight {
            let size = format.size_bytes();
            let range = self.elements.start * size..self.elements.end * size;
            self.reader
                .read_at(self.source, range.start as u64..range.end as u64, plane)?;
            return Ok(plane.len() as u64);
        }
        let mut num_bytes = 0;
        let mut at = 0;
        while at < self.elements.len() {
            let len = staged_len(dtype).min(self.elements.len() - at);
            num_bytes += self.stage(dtype, at, len)?;
            let wide = &self.staging.wide[..len];
            match format {
                WeightFormat::F32 => {
                    aligned::<f32>(plane)[at..at + len].copy_from_slice(wide);
                }
                WeightFormat::Bf16 => {
                    let high = &mut aligned::<bf16>(plane)[at..at + len];
                    split(wide, high, residual.get_mut(at..at + len));
                }
            }
            at += len;
        }
        Ok(num_bytes)
    }

    /// Brings `len` elements from `at` of the part into `staging.wide`.
    fn stage(&mut self, dtype: Dtype, at: usize, len: usize) -> Result<u64, TrainError> {
        let size = dtype.size_bytes().expect("sources are whole-byte floats");
        let begin = (self.elements.start + at) * size;
        let bytes = begin as u64..(begin + len * size) as u64;
        let stored = &mut as_bytes_mut(&mut self.staging.stored)[..len * size];
        self.reader.read_at(self.source, bytes, stored)?;
        widen(dtype, stored, &mut self.staging.wide[..len])?;
        Ok((len * size) as u64)
    }
}

/// Splits f32 elements into the bf16 that computes and its low bits.
fn split(wide: &[f32], high: &mut [bf16], low: Option<&mut [i16]>) {
    match low {
        Some(low) => {
            for ((wide, high), low) in wide.iter().zip(high).zip(low) {
                (*high, *low) = split_master(*wide);
            }
        }
        None => {
            for (wide, high) in wide.iter().zip(high) {
                *high = split_master(*wide).0;
            }
        }
    }
}

/// A plane seen as numbers; parts begin at multiples of 64 bytes.
fn aligned<T: bytemuck::Pod>(plane: &mut [u8]) -> &mut [T] {
    cast_mut(plane).expect("parts are aligned and hold whole elements")
}
