//! The small files of a converted folder.

use std::path::{Path, PathBuf};

use serde_json::Value;
use tensor::Dtype;

use super::{ImportFault, Target};
use crate::Error;

/// Files that make up a tokenizer.
const TOKENIZER_FILES: [&str; 10] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "generation_config.json",
];

/// The tokenizer's files in a folder; `tokenizer.json` has to be there.
pub(super) fn tokenizer_files(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    if !folder.join(TOKENIZER_FILES[0]).is_file() {
        return Err(Error::Import {
            path: folder.to_owned(),
            source: Box::new(ImportFault::NoTokenizerJson),
        });
    }
    let paths = TOKENIZER_FILES.iter().map(|name| folder.join(name));
    Ok(paths.filter(|path| path.is_file()).collect())
}

/// Files with those of the tokenizer taken from another folder.
pub(super) fn with_tokenizer_of(files: Vec<PathBuf>, folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let mut all = tokenizer_files(folder)?;
    let is_theirs = |path: &Path| TOKENIZER_FILES.iter().any(|name| path.ends_with(name));
    all.extend(files.into_iter().filter(|path| !is_theirs(path)));
    Ok(all)
}

/// The name of a dtype in a config.
pub(super) fn dtype_name(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::F32 => "float32",
        Dtype::F16 => "float16",
        _ => "bfloat16",
    }
}

/// A config with the dtype under the names it has there; without one it gets the
/// name that every reader knows. What is no JSON object stays as it is.
pub(super) fn with_dtype(config: &str, target: Target<'_>) -> String {
    let Target::Dtype(dtype) = target else {
        return config.to_owned();
    };
    let text = config.trim_start_matches('\u{feff}');
    let Ok(Value::Object(mut keys)) = serde_json::from_str(text) else {
        return config.to_owned();
    };
    let value = Value::from(dtype_name(dtype));
    let has_new_name = keys.contains_key("dtype");
    if has_new_name {
        keys.insert("dtype".to_owned(), value.clone());
    }
    if !has_new_name || keys.contains_key("torch_dtype") {
        keys.insert("torch_dtype".to_owned(), value);
    }
    format!("{:#}\n", Value::Object(keys))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_config_says_the_dtype_under_the_name_that_it_had() {
        let f16 = Target::Dtype(Dtype::F16);
        let flat = |config| with_dtype(config, f16).replace([' ', '\n'], "");
        assert_eq!(
            flat(r#"{"b":1,"dtype":"float32","a":2}"#),
            r#"{"b":1,"dtype":"float16","a":2}"#
        );
        assert_eq!(
            flat(r#"{"torch_dtype":"float32"}"#),
            r#"{"torch_dtype":"float16"}"#
        );
        assert_eq!(flat(r#"{"a":1}"#), r#"{"a":1,"torch_dtype":"float16"}"#);
    }

    #[test]
    fn the_dtype_of_the_source_leaves_the_config_alone() {
        let config = r#"{ "torch_dtype":  "auto" }"#;
        assert_eq!(with_dtype(config, Target::Source), config);
    }
}
