//! Every rank reads its own byte ranges, on a few threads with a staging buffer
//! each.

use checkpoint::{Digest, Reader};
use tensor::{Ledger, as_bytes_mut, round_stored};

use super::piece::Piece;
use super::threads::share_out;
use super::{LoadSettings, Read, Staging, ToFill, num_readers};
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
    let mut residuals = optimizer.map(Optimizer::residuals_mut);
    for (bucket, slot) in slots.iter_mut().enumerate() {
        let residuals = residuals.as_mut().and_then(Iterator::next);
        let own = shard.parts(bucket, slot, residuals.unwrap_or_default());
        parts.extend(own.into_iter().map(|(_, part)| part));
    }
    // As the files have them, which is how a disk reads fastest.
    parts.sort_by_key(|part| (part.source.file, part.source.begin + part.bytes().start));
    let states = share_out(
        num_readers(shard.sharding.world_size),
        parts.into_iter().flat_map(Piece::cut),
        || {
            let staging = Staging::for_reading(ledger, settings.cache)?;
            Ok((staging, Read::nothing(shard.sharding)))
        },
        |(staging, read), piece| read_piece(piece, &reader, staging, read, settings),
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
    settings: LoadSettings,
) -> Result<(), TrainError> {
    let (source, bytes) = (piece.source, piece.bytes());
    let len = usize::try_from(bytes.end - bytes.start).expect("a piece is small");
    read.num_bytes += len as u64;
    read.filled_bytes += piece.filled_bytes();
    let Staging { stored, wide, .. } = staging;
    let stored = &mut as_bytes_mut(stored)[..len];
    let checks = settings.checks_digests;
    let digest = |found: &[u8]| {
        let digest = checks.then(|| Digest::of(bytes.start, found));
        digest.unwrap_or_default()
    };
    let (digest, in_place) = if let Some(plane) = piece.plane_as_stored() {
        reader.read_at(source, bytes.clone(), plane)?;
        (digest(plane), true)
    } else {
        reader.read_at(source, bytes.clone(), stored)?;
        round_stored(source.meta.dtype, stored);
        piece.place(stored, wide)?;
        (digest(stored), false)
    };
    if checks {
        read.digests[piece.tensor] += digest;
        read.arrived[piece.tensor] += if in_place && piece.is_held_where_read() {
            digest
        } else {
            piece.arrived(staging)?
        };
    }
    Ok(())
}
