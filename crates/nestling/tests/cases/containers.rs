//! Single weight files: the good ones to the byte, the bad ones by name.

use std::collections::BTreeMap;

use checkpoint::{CachePolicy, inspect_file};
use nestling::inspect;
use serde_json::Map;

use crate::case::Case;
use crate::mentions::chain;
use crate::sha256::sha256_hex;
use crate::words::Words;

/// Checks each of `files`.
#[track_caller]
pub(crate) fn check(case: &Case, words: &mut Words) {
    let Some(files): Option<BTreeMap<String, Map<_, _>>> = words.take("files") else {
        return;
    };
    // The word of the whole says what that of each file says.
    let _: Option<String> = words.take("load");
    for (name, file) in files {
        let mut file = Words::new(file);
        let verdict: String = file.take("load").expect("each file has a verdict");
        if verdict == "ok" {
            holds(case, &name, &mut file);
        } else {
            is_refused(case, &name);
        }
    }
}

#[track_caller]
fn is_refused(case: &Case, name: &str) {
    let error = inspect(case.folder.join("files").join(name).as_path()).unwrap_err();
    let message = chain(&error);
    assert!(message.contains(name), "{name}: {message}");
}

/// Checks names, dtypes, shapes and bytes of a good file.
#[track_caller]
fn holds(case: &Case, name: &str, words: &mut Words) {
    let path = case.folder.join("files").join(name);
    let found = inspect(path.as_path()).unwrap();
    let tensors = &found.units[0].tensors;
    assert_eq!(Some(tensors.len()), words.take("tensors"), "{name}");
    let shapes = tensors.iter().map(|t| (t.name.clone(), t.shape.clone()));
    let dtypes = tensors.iter().map(|t| (t.name.clone(), t.dtype.clone()));
    let shapes: BTreeMap<_, _> = shapes.collect();
    let dtypes: BTreeMap<_, _> = dtypes.collect();
    assert_eq!(Some(shapes), words.take("shapes"), "{name}");
    assert_eq!(Some(dtypes), words.take("dtypes"), "{name}");

    let weights = inspect_file(&path).unwrap();
    let reader = weights.open_files(CachePolicy::default()).unwrap();
    let digests = weights.tensors().iter().map(|tensor| {
        let mut bytes = vec![0; usize::try_from(tensor.num_bytes()).unwrap()];
        reader
            .read_at(tensor, 0..tensor.num_bytes(), &mut bytes)
            .unwrap();
        (tensor.meta.name.clone(), sha256_hex(&bytes))
    });
    let digests: BTreeMap<_, _> = digests.collect();
    assert_eq!(Some(digests), words.take("sha256_of_raw_bytes"), "{name}");
}
