//! Whether what was read is what arrived.
//!
//! The digests of what was read know the places in the files; the digests of what
//! lies in the planes know the rows that a rank answers for. A range that was
//! never read, read twice, brought to another rank or to other rows, or changed on
//! its way makes the two differ. Where the folder has digests of its own, a file
//! that changed since they were written shows too.

use checkpoint::{Digest, Located};
use comm::{ProcessGroup, ReduceOp};
use tensor::Dtype;

use super::{Origin, Read, byte_range, element_range};
use crate::{RankWorld, TrainError};

/// The digests of whole tensors, from those of every rank's ranges.
pub(crate) fn over_ranks(
    group: &ProcessGroup,
    digests: &[Digest],
) -> Result<Vec<Digest>, TrainError> {
    let mut parts: Vec<u64> = digests.iter().flat_map(|digest| digest.parts()).collect();
    group.all_reduce_u64(&mut parts, ReduceOp::WrappingSum, "digests")?;
    let (parts, _) = parts.as_chunks();
    Ok(parts
        .iter()
        .map(|&parts| Digest::from_parts(parts))
        .collect())
}

/// Compares what was read with what arrived and with the folder's digests; gives
/// the digest of every tensor.
pub(super) fn check(
    world: &RankWorld<'_>,
    origin: &Origin<'_>,
    read: &Read,
) -> Result<Vec<Digest>, TrainError> {
    let sources = tensors_of(world, origin);
    let arrived = over_ranks(world.group, &read.arrived)?;
    let read = over_ranks(world.group, &read.digests)?;
    // One rank reads the folder's own digests; its error stops all.
    let known = match world.group.world().rank() {
        0 => origin.folder.digests()?,
        _ => None,
    };
    let sizes = expected_bytes(world, &sources);
    let digests = read.iter().zip(&arrived);
    for ((source, num_bytes), (&read, &arrived)) in sources.iter().zip(sizes).zip(digests) {
        let name = &source.meta.name;
        let file = || origin.folder.files()[source.file].path.clone();
        if read.num_bytes() != num_bytes {
            return Err(TrainError::NotRead {
                tensor: name.clone(),
                file: file(),
                expected_bytes: num_bytes,
                found_bytes: read.num_bytes(),
            });
        }
        if arrived != read {
            return Err(TrainError::Arrived {
                tensor: name.clone(),
                file: file(),
                expected: read,
                found: arrived,
            });
        }
        // An f64 was rounded when it was read; the folder's digest may be of more.
        let is_comparable = !world.is_alone() && source.meta.dtype != Dtype::F64;
        if let Some(known) = known.as_ref().filter(|_| is_comparable) {
            known.check(name, read, &file())?;
        }
    }
    Ok(read)
}

/// The bytes of every tensor that the ranks of the group answer for: all of them,
/// or its own ranges where a rank is alone.
fn expected_bytes(world: &RankWorld<'_>, sources: &[&Located]) -> Vec<u64> {
    if !world.is_alone() {
        return sources.iter().map(|source| source.num_bytes()).collect();
    }
    let mut bytes = vec![0; sources.len()];
    for bucket in &world.sharding.buckets {
        for part in &bucket.runs[world.rank].parts {
            let slice = &bucket.slices[part.slice];
            let tensor = world.sharding.tensor_number(bucket.unit, slice.tensor);
            let range = byte_range(sources[tensor].meta.dtype, &element_range(part, slice));
            bytes[tensor] += range.end - range.start;
        }
    }
    bytes
}

/// The tensors of the model in the order of their numbers.
fn tensors_of<'a>(world: &RankWorld<'_>, origin: &Origin<'a>) -> Vec<&'a Located> {
    let formats = world.formats;
    let units = 0..world.sharding.num_units();
    let numbered =
        units.flat_map(|unit| (0..formats.num_tensors(unit)).map(move |tensor| (unit, tensor)));
    let Origin {
        folder, sources, ..
    } = *origin;
    numbered
        .map(|(unit, tensor)| sources.of(folder, unit, tensor))
        .collect()
}
