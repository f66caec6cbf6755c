//! Malformed and odd files with the verdicts that a strict reader gives.

use super::archives::archive;
use super::headers;
use super::programs;

/// What a case is read as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// One safetensors file.
    File,
    /// A folder with an index.
    Folder,
    /// One `config.json`.
    Config,
    /// One checkpoint of torch.
    Pickle,
}

/// One malformed or odd input.
#[derive(Debug)]
pub(crate) struct Case {
    /// Its name in the corpus; a folder's files lie below it.
    pub(crate) name: String,
    /// What it is read as.
    pub(crate) kind: Kind,
    /// Paths below its name, or an empty one, and contents.
    pub(crate) files: Vec<(String, Vec<u8>)>,
    /// What the message says, or nothing where it is read.
    pub(crate) refused: &'static str,
    /// The point on which a strict reader refuses what the format's own accepts.
    pub(crate) stricter_on: &'static str,
}

/// The whole corpus, by kind and name.
pub(crate) fn all() -> Vec<Case> {
    let mut cases = headers::cases();
    cases.extend(folders());
    cases.extend(configs());
    cases.extend(programs::cases());
    cases
}

impl Case {
    pub(crate) fn of_one_file(
        kind: Kind,
        name: &str,
        bytes: Vec<u8>,
        refused: &'static str,
    ) -> Self {
        let ending = match kind {
            Kind::Config => "json",
            Kind::Pickle => "bin",
            Kind::File | Kind::Folder => "safetensors",
        };
        Self {
            name: format!("{name}.{ending}"),
            kind,
            files: vec![(String::new(), bytes)],
            refused,
            stricter_on: "",
        }
    }
}

/// Index, further files, what the message says.
type FolderRow = (
    &'static str,
    &'static str,
    &'static [&'static str],
    &'static str,
);

const FIRST: &str = "model-00001-of-00002.safetensors";
const SECOND: &str = "model-00002-of-00002.safetensors";

/// Folders hold [`FIRST`] with `a` and [`SECOND`] with `b` unless they say
/// otherwise; `1` and `2` in an index stand for the two names.
const FOLDERS: &[FolderRow] = &[
    (
        "index_plain",
        r#"{"weight_map":{"a":"1","b":"2"}}"#,
        &[],
        "",
    ),
    (
        "index_total_size_wrong",
        r#"{"metadata":{"total_size":9},"weight_map":{"a":"1","b":"2"}}"#,
        &[],
        "",
    ),
    (
        "index_total_size_text",
        r#"{"metadata":{"total_size":"2"},"weight_map":{"a":"1","b":"2"}}"#,
        &[],
        "",
    ),
    (
        "index_metadata_null",
        r#"{"metadata":null,"weight_map":{"a":"1","b":"2"}}"#,
        &[],
        "",
    ),
    (
        "index_file_below",
        r#"{"weight_map":{"a":"1","b":"2","c":"part b/x y.safetensors"}}"#,
        &["part b/x y.safetensors"],
        "",
    ),
    (
        "index_stray_file",
        r#"{"weight_map":{"a":"1","b":"2"}}"#,
        &["model.safetensors"],
        "",
    ),
    (
        "index_not_json",
        r#"{"weight_map":{"a":"1""#,
        &[],
        "not the JSON of an index",
    ),
    ("index_array", r"[]", &[], "not the JSON of an index"),
    (
        "index_empty",
        r#"{"weight_map":{}}"#,
        &[],
        "missing or empty",
    ),
    (
        "index_without_map",
        r#"{"metadata":{}}"#,
        &[],
        "missing or empty",
    ),
    (
        "index_two_maps",
        r#"{"weight_map":{"a":"1"},"weight_map":{"b":"2"}}"#,
        &[],
        "`weight_map` stands in it twice",
    ),
    (
        "index_two_metadata",
        r#"{"metadata":{},"weight_map":{"a":"1","b":"2"},"metadata":{}}"#,
        &[],
        "`metadata` stands in it twice",
    ),
    (
        "index_duplicate",
        r#"{"weight_map":{"a":"1","b":"2","a":"2"}}"#,
        &[],
        "`a` is mapped twice",
    ),
    (
        "index_duplicate_escaped",
        r#"{"weight_map":{"a":"1","b":"2","\u0061":"1"}}"#,
        &[],
        "`a` is mapped twice",
    ),
    (
        "index_file_not_text",
        r#"{"weight_map":{"a":1,"b":"2"}}"#,
        &[],
        "not the JSON of an index",
    ),
    (
        "index_file_above",
        r#"{"weight_map":{"a":"../1","b":"2"}}"#,
        &[],
        "not a plain path inside",
    ),
    (
        "index_file_above_below",
        r#"{"weight_map":{"a":"x/../../1","b":"2"}}"#,
        &[],
        "not a plain path inside",
    ),
    (
        "index_file_absolute",
        r#"{"weight_map":{"a":"/etc/passwd","b":"2"}}"#,
        &[],
        "not a plain path inside",
    ),
    (
        "index_file_without_name",
        r#"{"weight_map":{"a":"","b":"2"}}"#,
        &[],
        "not a plain path inside",
    ),
    (
        "index_file_backslash",
        r#"{"weight_map":{"a":"x\\1","b":"2"}}"#,
        &[],
        "not a plain path inside",
    ),
    (
        "index_file_nul",
        r#"{"weight_map":{"a":"1\u0000","b":"2"}}"#,
        &[],
        "not a plain path inside",
    ),
    (
        "index_file_absent",
        r#"{"weight_map":{"a":"1","b":"2","c":"3.safetensors"}}"#,
        &[],
        "names `3.safetensors`, which does not exist",
    ),
    (
        "index_tensor_absent",
        r#"{"weight_map":{"a":"1","b":"2","c":"2"}}"#,
        &[],
        "puts tensor `c` in",
    ),
    (
        "index_tensor_elsewhere",
        r#"{"weight_map":{"a":"2","b":"1"}}"#,
        &[],
        "puts tensor `a` in",
    ),
    (
        "index_tensor_in_two_files",
        r#"{"weight_map":{"a":"1","b":"2","c":"copy.safetensors"}}"#,
        &["copy.safetensors", "a"],
        "tensor `a` stands in",
    ),
    (
        "index_file_not_named",
        r#"{"weight_map":{"a":"1"}}"#,
        &[],
        "does not name `model-00002-of-00002.safetensors`",
    ),
];

fn folders() -> Vec<Case> {
    let folder = |&(name, index, more, refused): &FolderRow| {
        let index = index.replace("\"1\"", &format!("\"{FIRST}\""));
        let index = index.replace("\"2\"", &format!("\"{SECOND}\""));
        let mut files = vec![
            (
                "model.safetensors.index.json".to_owned(),
                index.into_bytes(),
            ),
            (FIRST.to_owned(), headers::one_byte("a")),
            (SECOND.to_owned(), headers::one_byte("b")),
        ];
        // A further file holds `c`, or what is named after it.
        if let Some((path, tensor)) = more.split_first() {
            let tensor = tensor.first().unwrap_or(&"c");
            files.push(((*path).to_owned(), headers::one_byte(tensor)));
        }
        Case {
            name: name.to_owned(),
            kind: Kind::Folder,
            files,
            refused,
            stricter_on: "",
        }
    };
    FOLDERS.iter().map(folder).collect()
}

/// Changes of a valid config: what is replaced, by what, and what the message says.
const CONFIGS: &[(&str, &str, &str, &str)] = &[
    ("config_plain", "", "", ""),
    ("config_cut", "true}", "tr", "JSON"),
    ("config_not_an_object", "{", "[{", "JSON"),
    ("config_unknown_family", "llama", "alpaca", "alpaca"),
    (
        "config_without_family",
        "\"model_type\": \"llama\", ",
        "",
        "model_type",
    ),
    ("config_unknown_activation", "silu", "sigh", "sigh"),
    (
        "config_without_size",
        "\"hidden_size\": 8, ",
        "",
        "hidden_size",
    ),
    (
        "config_negative_size",
        "\"hidden_size\": 8",
        "\"hidden_size\": -8",
        "hidden_size",
    ),
    (
        "config_broken_size",
        "\"hidden_size\": 8",
        "\"hidden_size\": 8.5",
        "hidden_size",
    ),
    (
        "config_text_size",
        "\"hidden_size\": 8",
        "\"hidden_size\": \"8\"",
        "hidden_size",
    ),
    (
        "config_zero_heads",
        "\"num_attention_heads\": 2",
        "\"num_attention_heads\": 0",
        "num_attention_heads",
    ),
    (
        "config_huge_size",
        "\"hidden_size\": 8",
        "\"hidden_size\": 9223372036854775807",
        "hidden_size",
    ),
    (
        "config_no_layers",
        "\"num_hidden_layers\": 1",
        "\"num_hidden_layers\": 0",
        "num_hidden_layers",
    ),
    (
        "config_unknown_rope",
        "\"rope_theta\": 1e4",
        "\"rope_scaling\": {\"rope_type\": \"spiral\", \"factor\": 2.0}",
        "spiral",
    ),
];

const CONFIG: &str = "{\"model_type\": \"llama\", \"hidden_act\": \"silu\", \"hidden_size\": 8, \
    \"intermediate_size\": 12, \"num_attention_heads\": 2, \"num_key_value_heads\": 1, \
    \"num_hidden_layers\": 1, \"vocab_size\": 20, \"max_position_embeddings\": 32, \
    \"rms_norm_eps\": 1e-5, \"rope_theta\": 1e4, \"tie_word_embeddings\": true}";

fn configs() -> Vec<Case> {
    let config = |&(name, from, to, refused): &(&str, &str, &str, &'static str)| {
        let text = CONFIG.replacen(from, to, 1);
        Case::of_one_file(Kind::Config, name, text.into_bytes(), refused)
    };
    CONFIGS.iter().map(config).collect()
}

/// An archive with a program and storages `0` of 24 and `1` of 8 bytes.
pub(crate) fn with_program(program: &[u8]) -> Vec<u8> {
    let entries: [(&str, &[u8]); 4] = [
        ("data.pkl", program),
        ("version", b"3\n"),
        ("data/0", &[1; 24]),
        ("data/1", &[2; 8]),
    ];
    archive("pytorch_model", &entries)
}
