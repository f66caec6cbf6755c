//! Every rank reads its own byte ranges, on a few threads with a staging buffer
//! each.

use checkpoint::{Digest, Reader};
use tensor::{Ledger, as_bytes_mut, round_stored};

use super::piece::Piece;
use super::threads::share_out;
use super::{Origin, Read, Staging, ToFill, num_readers};
use crate::{Optimizer, TrainError};

/// Fills this rank's planes.
pub(super) fn read(to_fill: ToFill<'_>, ledger: &Ledger) -> Result<Read, TrainError> {
    let ToFill {
        window,
        optimizer,
        shard,
        ..
    } = to_fill;
    let settings = shard.origin.settings;
    let reader = shard.origin.folder.open_files_with(settings.cache)?;
    let mut slots = (0..shard.sharding.buckets.len())
        .map(|bucket| window.own_mut(bucket))
        .collect::<Result<Vec<_>, _>>()?;
    let mut parts: Vec<Piece<'_>> = Vec::new();
    let mut rests = optimizer.map(Optimizer::rests_mut);
    for (bucket, slot) in slots.iter_mut().enumerate() {
        let rests = rests.as_mut().and_then(Iterator::next);
        let own = shard.parts(bucket, slot, rests.unwrap_or_default());
        parts.extend(own.into_iter().map(|(_, part)| part));
    }
    // As the files have them, which is how a disk reads fastest.
    parts.sort_by_key(|part| (part.source.file, part.source.begin + part.bytes().start));
    let largest = shard.largest_piece();
    let states = share_out(
        largest.num_threads(num_readers(shard.sharding.world_size)),
        parts.into_iter().flat_map(Piece::cut),
        || {
            let staging = Staging::for_reading(ledger, largest, settings.cache)?;
            Ok((staging, Read::nothing(shard.sharding)))
        },
        |(staging, read), piece| read_piece(piece, &reader, staging, read, shard.origin),
    )?;
    let mut sum = Read::nothing(shard.sharding);
    for (_, read) in &states {
        sum.add(read);
    }
    Ok(sum)
}

fn read_piece(
    mut piece: Piece<'_>,
    reader: &Reader,
    staging: &mut Staging,
    read: &mut Read,
    origin: &Origin<'_>,
) -> Result<(), TrainError> {
    let (source, bytes) = (piece.source, piece.bytes());
    let elements = piece.elements.start as u64..piece.elements.end as u64;
    let len = usize::try_from(bytes.end - bytes.start).expect("a piece is small");
    read.num_bytes += source.stored_bytes(elements.end - elements.start);
    read.filled_bytes += piece.filled_bytes();
    let Staging { stored, wide, .. } = staging;
    let stored = &mut as_bytes_mut(stored)[..len];
    let checks = origin.settings.checks_digests;
    let digest = |values: &[u8]| {
        let digest = checks.then(|| Digest::of(bytes.start, values));
        digest.unwrap_or_default()
    };
    let is_read_as_stored = source.scales.is_none();
    let (found, expected, in_place) = if let Some(plane) = piece.plane_as_stored() {
        let found = reader.read_values(source, elements, plane, checks)?;
        let expected = if is_read_as_stored {
            found
        } else {
            digest(plane)
        };
        (found, expected, true)
    } else {
        let found = reader.read_values(source, elements, stored, checks)?;
        let is_changed = round_stored(source.value_dtype(), stored);
        piece.place(origin, stored, wide)?;
        let is_rounded = checks && piece.round(stored, wide)?;
        let expected = if is_read_as_stored && !is_changed && !is_rounded {
            found
        } else {
            digest(stored)
        };
        (found, expected, false)
    };
    if checks {
        let arrived = if in_place && piece.is_held_where_read() {
            expected
        } else {
            piece.arrived(staging)?
        };
        read.count(piece.tensor, [found, expected, arrived]);
    }
    Ok(())
}
