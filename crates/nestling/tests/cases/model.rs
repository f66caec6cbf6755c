//! A model that loads: what is in it, what it computes, what an export keeps.

use std::collections::BTreeMap;

use data::end_ids;
use nestling::{GenerateOptions, OpenModel, Prompt, Sampling, generate, inspect, logits};
use serde::Deserialize;

use crate::case::Case;
use crate::export;
use crate::words::Words;

/// Ids for models whose case names none.
const ANY_IDS: [u32; 3] = [1, 2, 3];

/// Logits that a model must give, and how nearly.
#[derive(Debug, Deserialize)]
struct Forward {
    ids: Vec<u32>,
    logits_file: String,
    atol: f32,
    rtol: f32,
}

/// Checks everything that is said of a model that loads.
#[track_caller]
pub(crate) fn check(case: &Case, words: &mut Words, opened: &OpenModel) {
    check_contents(words, opened);
    check_ends(case, words);
    let forward: Option<Forward> = words.take("forward");
    let ids = match &forward {
        Some(forward) => forward.ids.clone(),
        None => ANY_IDS.to_vec(),
    };
    let reference = forward.map(|forward| check_logits(case, &forward));
    check_generation(case, &ids, reference.as_deref());
    let worlds = words.take("worlds").unwrap_or_else(|| vec![2]);
    for ranks in worlds {
        export::comes_back(case, opened, &ids, ranks);
    }
    if let Some(mut kept) = words.under("export") {
        export::check(case, &mut kept, &ids);
    }
}

#[track_caller]
fn check_contents(words: &mut Words, opened: &OpenModel) {
    let tensors = opened.folder.tensors();
    let spec = &opened.model.spec;
    let used: usize = opened
        .model
        .units
        .iter()
        .map(|unit| unit.params.len())
        .sum();
    let stored: u64 = tensors.iter().map(checkpoint::Located::num_bytes).sum();
    same(words, "tensors", &tensors.len());
    same(words, "used_tensors", &used);
    same(words, "tied", &spec.tied);
    same(words, "parameters", &spec.num_parameters());
    same(words, "stored_bytes", &stored);
    let mut by_dtype: BTreeMap<String, u64> = BTreeMap::new();
    for tensor in tensors {
        *by_dtype.entry(tensor.meta.dtype.to_string()).or_default() += tensor.num_bytes();
    }
    same(words, "stored_bytes_by_dtype", &by_dtype);
}

#[track_caller]
fn same<T>(words: &mut Words, word: &str, found: &T)
where
    T: serde::de::DeserializeOwned + PartialEq + std::fmt::Debug,
{
    if let Some(expected) = words.take::<T>(word) {
        assert_eq!(found, &expected, "{word}");
    }
}

/// Ids that end a text, without any tokenizer.
#[track_caller]
fn check_ends(case: &Case, words: &mut Words) {
    let of_config: Option<Vec<u32>> = words.take("eos_from_config");
    let for_generation: Option<Vec<u32>> = words.take("eos_for_generation");
    if let (Some(of_config), Some(mut for_generation)) = (of_config, for_generation) {
        let mut found = end_ids(&case.model()).unwrap();
        assert!(of_config.iter().all(|id| found.contains(id)));
        found.sort_unstable();
        for_generation.sort_unstable();
        assert_eq!(found, for_generation);
    }
}

/// Compares the logits of every position; gives the reference.
#[track_caller]
fn check_logits(case: &Case, forward: &Forward) -> Vec<Vec<f32>> {
    let text = case.read(&forward.logits_file);
    let reference: Vec<Vec<f32>> = serde_json::from_str(&text).unwrap();
    let found = logits(case.model().as_path(), &forward.ids, 1, None).unwrap();
    assert_eq!(
        (found.rows, found.cols),
        (reference.len(), reference[0].len())
    );
    for (position, expected) in reference.iter().enumerate() {
        for (token, (found, expected)) in found.row(position).iter().zip(expected).enumerate() {
            let most = forward.atol + forward.rtol * expected.abs();
            let off = (found - expected).abs();
            assert!(
                off <= most,
                "position {position}, token {token}: {found} is not {expected}"
            );
        }
    }
    reference
}

/// Generates from ids, which needs no tokenizer; the first token is the likeliest.
#[track_caller]
fn check_generation(case: &Case, ids: &[u32], reference: Option<&[Vec<f32>]>) {
    let options = GenerateOptions {
        max_tokens: 2,
        sampling: Sampling::default(),
        threads: 1,
        precision: None,
    };
    let model = case.model();
    let generated = generate(model.as_path(), Prompt::Ids(ids), &options, &|_| {}).unwrap();
    if let Some(last) = reference.and_then(<[Vec<f32>]>::last) {
        let likeliest = last.iter().zip(0..).max_by(|a, b| a.0.total_cmp(b.0));
        let likeliest: Option<u32> = likeliest.map(|(_, token)| token);
        assert_eq!(generated.new_ids.first().copied(), likeliest);
    }
    // What a person looks at first works on every model that loads.
    inspect(model.as_path()).unwrap();
}
