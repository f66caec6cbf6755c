//! What reads leave in the page cache.
//!
//! On a file system that cannot say what is cached, or that is nothing but cache,
//! the tests say so and pass.
#![expect(clippy::unwrap_used, reason = "in a test a failure may panic")]
#![expect(clippy::print_stderr, reason = "a test that skips says so")]

use std::fs::{self, File};
use std::path::Path;

use checkpoint::{CachePolicy, Located, Weights, inspect_file, resident_share};

const DATA_BYTES: u64 = 24 << 20;

/// A file of three tensors, on disk and out of the cache; `None` where that
/// cannot be had.
fn uncached(folder: &Path) -> Option<Weights> {
    let third = DATA_BYTES / 3;
    let entry = |number: u64| {
        let (begin, end) = (number * third, (number + 1) * third);
        format!(r#""t{number}":{{"dtype":"U8","shape":[{third}],"data_offsets":[{begin},{end}]}}"#)
    };
    let header = format!("{{{},{},{}}}", entry(0), entry(1), entry(2));
    let data = (0..DATA_BYTES).map(|at| (at / 4096 * 31 + at).to_le_bytes()[0]);
    let header_len = (header.len() as u64).to_le_bytes();
    let bytes: Vec<u8> = header_len
        .into_iter()
        .chain(header.bytes())
        .chain(data)
        .collect();
    let path = folder.join("cache.safetensors");
    fs::write(&path, bytes).unwrap();
    File::open(&path).unwrap().sync_all().unwrap();
    let weights = inspect_file(&path).unwrap();
    read_all(&weights, CachePolicy::Keep);
    let kept = share(&weights);
    read_all(&weights, CachePolicy::Drop);
    let left = share(&weights);
    if kept < 0.9 || left > 0.5 {
        eprintln!("SKIPPED: the cache holds {kept} of a file that was read, {left} after a drop");
        return None;
    }
    Some(weights)
}

fn share(weights: &Weights) -> f64 {
    let entry = &weights.files()[0];
    resident_share(&File::open(&entry.path).unwrap(), entry.num_bytes)
}

/// Reads all tensors in pieces of an odd length and checks every byte.
fn read_all(weights: &Weights, cache: CachePolicy) {
    const PIECE: u64 = 300_001;
    let reader = weights.open_files(cache).unwrap();
    for tensor in weights.tensors() {
        let mut begin = 0;
        while begin < tensor.num_bytes() {
            let end = tensor.num_bytes().min(begin + PIECE);
            let mut bytes = vec![0; usize::try_from(end - begin).unwrap()];
            reader.read_at(tensor, begin..end, &mut bytes).unwrap();
            assert!(is_right(tensor, begin, &bytes), "{cache} from {begin}");
            begin = end;
        }
    }
}

fn is_right(tensor: &Located, begin: u64, bytes: &[u8]) -> bool {
    let number: u64 = tensor.meta.name[1..].parse().unwrap();
    let first = number * (DATA_BYTES / 3) + begin;
    let expected = (first..).map(|at| (at / 4096 * 31 + at).to_le_bytes()[0]);
    bytes.iter().copied().eq(expected.take(bytes.len()))
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

#[test]
fn a_file_that_nobody_had_cached_is_not_cached_after_a_load() {
    let folder = folder();
    let Some(weights) = uncached(folder.path()) else {
        return;
    };
    read_all(&weights, CachePolicy::Auto);
    assert!(share(&weights) < 0.1, "{}", share(&weights));
}

#[test]
fn a_cached_file_stays_cached() {
    let folder = folder();
    let Some(weights) = uncached(folder.path()) else {
        return;
    };
    read_all(&weights, CachePolicy::Keep);
    read_all(&weights, CachePolicy::Auto);
    assert!(share(&weights) > 0.9, "{}", share(&weights));
}

#[test]
fn direct_reads_leave_nothing_and_give_the_same_bytes() {
    let folder = folder();
    let Some(weights) = uncached(folder.path()) else {
        return;
    };
    read_all(&weights, CachePolicy::Direct);
    assert!(share(&weights) < 0.1, "{}", share(&weights));
}
