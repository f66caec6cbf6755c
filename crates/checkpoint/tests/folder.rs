//! Which folders are read, and what is said of those that are not.

use std::error::Error;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use checkpoint::{
    CachePolicy, CheckpointError, Folder, FollowLinks, ReadRules, Strictness, init, inspect_file,
    inspect_file_with,
};
use spec::{ModelSpec, Preset};
use tempfile::TempDir;
use tensor::Dtype;

const INDEX: &str = "model.safetensors.index.json";

/// A tiny model in files of at most `max_file_bytes`.
fn model(change: impl FnOnce(&mut ModelSpec), max_file_bytes: u64) -> TempDir {
    let folder = TempDir::new().expect("a temporary folder");
    let mut spec = Preset::by_name("tiny").expect("a preset").spec;
    change(&mut spec);
    let wanted = init::Init {
        spec: &spec,
        config_text: &spec.config_json(),
        dtype: Dtype::BF16,
        seed: 1,
        is_sparse: false,
        max_file_bytes,
        num_threads: 1,
    };
    init::write(folder.path(), &wanted, &|_| {
        std::ops::ControlFlow::Continue(())
    })
    .expect("a written model");
    folder
}

fn single() -> TempDir {
    model(|_| {}, u64::MAX)
}

/// A tiny model in three files and more.
fn split() -> TempDir {
    model(|spec| spec.tied = false, 100_000)
}

fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

/// Opens a folder and finds all of its model's tensors.
fn resolve(path: &Path) -> Result<Folder, CheckpointError> {
    let folder = Folder::open(path)?;
    let spec = folder.spec()?;
    folder.sources(&spec)?;
    Ok(folder)
}

#[track_caller]
fn refuses(path: &Path, words: &[&str]) {
    let message = chain(&resolve(path).expect_err("a folder with a fault"));
    for word in words {
        assert!(message.contains(word), "`{word}` is not in: {message}");
    }
}

/// Writes a file with the tensors of another one, changed as JSON text.
fn rewrite_header(path: &Path, change: impl FnOnce(&str) -> String) {
    let bytes = fs::read(path).expect("a file");
    let (prefix, rest) = bytes.split_first_chunk().expect("a length");
    let len = usize::try_from(u64::from_le_bytes(*prefix)).expect("small");
    let json = change(std::str::from_utf8(&rest[..len]).expect("text"));
    let prefix = (json.len() as u64).to_le_bytes();
    let file = [&prefix[..], json.as_bytes(), &rest[len..]].concat();
    fs::write(path, file).expect("a rewritten file");
}

fn edit(path: PathBuf, change: impl FnOnce(String) -> String) {
    let text = fs::read_to_string(&path).expect("a text");
    fs::write(path, change(text)).expect("an edited text");
}

#[test]
fn a_single_file_is_read() {
    let model = single();
    let folder = resolve(model.path()).unwrap();
    assert_eq!(folder.tensors().len(), 1 + 3 * 9 + 1);
    assert!(folder.warnings().is_empty());
    let norm = folder.find("model.norm.weight").unwrap();
    assert_eq!(norm.num_bytes(), 64 * 2);
    assert!(folder.find("model.norm").is_none());
}

#[test]
fn an_index_is_read_and_other_weights_are_left_alone() {
    let model = split();
    let num_files = resolve(model.path()).unwrap().files().len();
    assert!(num_files > 3, "{num_files} files");
    fs::copy(
        model.path().join("model-00001-of-00005.safetensors"),
        model.path().join("model.safetensors"),
    )
    .unwrap();
    fs::write(model.path().join("consolidated.00.pth"), b"PK").unwrap();
    let folder = resolve(model.path()).unwrap();
    assert_eq!(folder.files().len(), num_files);
    assert_eq!(folder.warnings(), ["not read: model.safetensors"]);
}

#[test]
fn files_have_the_names_of_the_index_and_may_be_links() {
    let model = split();
    let path = model.path();
    fs::create_dir(path.join("blobs")).unwrap();
    fs::rename(
        path.join("model-00001-of-00005.safetensors"),
        path.join("blobs/f00"),
    )
    .unwrap();
    symlink("blobs/f00", path.join("part one.safetensors")).unwrap();
    fs::rename(
        path.join("model-00002-of-00005.safetensors"),
        path.join("blobs/x.safetensors"),
    )
    .unwrap();
    edit(path.join(INDEX), |text| {
        text.replace("model-00001-of-00005", "part one")
            .replace("model-00002-of-00005", "blobs/x")
    });
    resolve(path).unwrap();
}

/// Opens a folder with all that an export reads of it.
fn open_following(path: &Path, links: FollowLinks) -> Result<(), CheckpointError> {
    let strictness = Strictness::Strict;
    let folder = Folder::open_with(path, ReadRules { strictness, links })?;
    folder.spec()?;
    folder.other_files()?;
    Ok(())
}

#[track_caller]
fn follows_only(path: &Path, allowed: &[FollowLinks]) {
    for links in [FollowLinks::Any, FollowLinks::Cache, FollowLinks::None] {
        match open_following(path, links) {
            Ok(()) => assert!(allowed.contains(&links), "{links:?} follows"),
            Err(CheckpointError::LinkNotFollowed { .. }) => {
                assert!(!allowed.contains(&links), "{links:?} does not follow");
            }
            Err(other) => unreachable!("a folder is broken in another way: {other}"),
        }
    }
}

#[test]
fn links_of_a_cache_lead_to_its_blobs_and_to_no_other_place() {
    let cache = TempDir::new().unwrap();
    let model = split();
    let [repo, other] = ["models--a--b", "models--c--d"].map(|name| cache.path().join(name));
    let snapshot = repo.join("snapshots/0123abc");
    for folder in [&snapshot, &repo.join("blobs"), &other.join("blobs")] {
        fs::create_dir_all(folder).unwrap();
    }
    for item in fs::read_dir(model.path()).unwrap() {
        let item = item.unwrap();
        let blob = format!("../../blobs/{}", item.file_name().display());
        fs::copy(item.path(), snapshot.join(&blob)).unwrap();
        symlink(blob, snapshot.join(item.file_name())).unwrap();
    }
    let through_any = [FollowLinks::Any, FollowLinks::Cache];
    follows_only(&snapshot, &through_any);
    let linked = cache.path().join("by-a-link");
    symlink(&snapshot, &linked).unwrap();
    follows_only(&linked, &through_any);

    let weights = "model-00001-of-00005.safetensors";
    for name in ["config.json", INDEX, weights, "tokenizer.json"] {
        let (link, outside) = (snapshot.join(name), other.join("blobs").join(name));
        if name == "tokenizer.json" {
            fs::write(&outside, "{}").unwrap();
        } else {
            fs::copy(repo.join("blobs").join(name), &outside).unwrap();
            fs::remove_file(&link).unwrap();
        }
        symlink(&outside, &link).unwrap();
        follows_only(&snapshot, &[FollowLinks::Any]);
        let message = open_following(&snapshot, FollowLinks::Cache)
            .unwrap_err()
            .to_string();
        for word in [name, "models--c--d", "outside the folder"] {
            assert!(message.contains(word), "`{word}` is not in: {message}");
        }
        fs::remove_file(&link).unwrap();
        if name != "tokenizer.json" {
            symlink(format!("../../blobs/{name}"), &link).unwrap();
        }
    }
}

#[test]
fn links_within_the_folder_are_followed_unless_none_are() {
    let model = single();
    let path = model.path();
    follows_only(
        path,
        &[FollowLinks::Any, FollowLinks::Cache, FollowLinks::None],
    );
    fs::create_dir(path.join("weights")).unwrap();
    fs::rename(path.join("model.safetensors"), path.join("weights/w")).unwrap();
    symlink("weights/w", path.join("model.safetensors")).unwrap();
    follows_only(path, &[FollowLinks::Any, FollowLinks::Cache]);
}

#[test]
fn a_folder_that_an_index_names_may_not_be_a_link_to_elsewhere() {
    let model = split();
    let elsewhere = TempDir::new().unwrap();
    let name = "model-00001-of-00005.safetensors";
    fs::rename(model.path().join(name), elsewhere.path().join("x")).unwrap();
    symlink(elsewhere.path(), model.path().join("part")).unwrap();
    edit(model.path().join(INDEX), |text| {
        text.replace(name, "part/x")
    });
    follows_only(model.path(), &[FollowLinks::Any]);
}

#[test]
fn lax_reading_leaves_out_what_does_not_belong_and_nothing_else() {
    let lax = ReadRules {
        strictness: Strictness::Lax,
        ..ReadRules::default()
    };
    let model = single();
    let path = model.path().join("model.safetensors");
    rewrite_header(&path, |json| {
        let more = r#","more":{"dtype":"U8","shape":[0],"data_offsets":[0,0],"note":{"a":[1]}}}"#;
        let json = json.replacen("\"dtype\"", "\"note\":null,\"dtype\"", 1);
        format!("{}{more}", json.trim_end().strip_suffix('}').unwrap())
    });
    refuses(model.path(), &["unknown field `note`"]);
    assert!(inspect_file(&path).is_err());
    let weights = inspect_file_with(&path, Strictness::Lax).unwrap();
    let unknown = &weights.unknown_fields()[0];
    assert!(unknown.contains("`note` (and 1 more)"), "{unknown}");

    let folder = Folder::open_with(model.path(), lax).unwrap();
    let sources = folder.sources(&folder.spec().unwrap()).unwrap();
    let names = |tensor: &checkpoint::Located| tensor.meta.name.clone();
    let unexpected: Vec<_> = sources.unexpected(&folder).map(names).collect();
    assert_eq!(unexpected, ["more"]);
    let exported = sources.exported(&folder);
    assert!(exported.iter().all(|meta| meta.name != "more"));

    rewrite_header(&path, |json| json.replace("norm.weight", "norm.height"));
    let folder = Folder::open_with(model.path(), lax).unwrap();
    let missing = folder.sources(&folder.spec().unwrap());
    assert!(matches!(
        missing,
        Err(CheckpointError::MissingTensors { .. })
    ));
}

#[test]
fn a_path_without_a_model_is_named() {
    let empty = TempDir::new().unwrap();
    refuses(
        &empty.path().join("nowhere"),
        &["nowhere", "does not exist"],
    );
    refuses(empty.path(), &["no weights", "model.safetensors"]);
    let file = empty.path().join("a.txt");
    fs::write(&file, "").unwrap();
    refuses(&file, &["a.txt", "a file, expected a folder"]);
    refuses(Path::new("/dev/null"), &["a device, expected a folder"]);
}

#[test]
fn weights_in_another_format_are_named() {
    for name in ["model-Q4.gguf", "consolidated.00.pth"] {
        let folder = TempDir::new().unwrap();
        fs::write(folder.path().join(name), b"PK\x03\x04").unwrap();
        refuses(folder.path(), &[name, "supported: safetensors"]);
    }
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("adapter_model.safetensors"), b"").unwrap();
    refuses(folder.path(), &["no weights"]);
}

#[test]
fn numbered_files_need_their_index() {
    let model = split();
    fs::remove_file(model.path().join(INDEX)).unwrap();
    refuses(model.path(), &["model-00001-of-00005.safetensors", INDEX]);
}

#[test]
fn an_absent_file_is_named_before_any_is_read() {
    let model = split();
    let path = model.path();
    fs::remove_file(path.join("model-00002-of-00005.safetensors")).unwrap();
    fs::write(path.join("model-00001-of-00005.safetensors"), b"broken").unwrap();
    refuses(
        path,
        &[INDEX, "model-00002-of-00005.safetensors", "does not exist"],
    );
}

#[test]
fn a_dangling_link_is_an_absent_file() {
    let model = split();
    let path = model.path().join("model-00002-of-00005.safetensors");
    fs::remove_file(&path).unwrap();
    symlink("../../blobs/gone", &path).unwrap();
    refuses(
        model.path(),
        &["model-00002-of-00005.safetensors", "does not exist"],
    );
}

#[test]
fn a_numbered_file_that_the_index_leaves_out_is_refused() {
    let model = split();
    let path = model.path();
    fs::copy(
        path.join("model-00001-of-00005.safetensors"),
        path.join("model-00006-of-00005.safetensors"),
    )
    .unwrap();
    refuses(path, &["does not name", "model-00006-of-00005.safetensors"]);
}

#[test]
fn a_tensor_in_two_files_is_refused() {
    let model = split();
    let path = model.path();
    fs::copy(
        path.join("model-00001-of-00005.safetensors"),
        path.join("copy.safetensors"),
    )
    .unwrap();
    edit(path.join(INDEX), |text| {
        text.replacen(
            "\"weight_map\": {",
            "\"weight_map\": {\"x\": \"copy.safetensors\",",
            1,
        )
    });
    refuses(
        path,
        &[
            "stands in",
            "copy.safetensors",
            "model-00001-of-00005.safetensors",
        ],
    );
}

#[test]
fn a_tensor_that_its_file_lacks_is_refused() {
    let model = split();
    edit(model.path().join(INDEX), |text| {
        text.replacen(
            "\"weight_map\": {",
            "\"weight_map\": {\"ghost\": \"model-00001-of-00005.safetensors\",",
            1,
        )
    });
    refuses(
        model.path(),
        &[
            "`ghost`",
            "model-00001-of-00005.safetensors",
            "does not hold it",
        ],
    );
}

#[test]
fn what_the_index_gets_wrong_without_harm_is_a_warning() {
    let model = split();
    edit(model.path().join(INDEX), |text| {
        let start = text
            .find("\"model.layers.0.input_layernorm.weight\"")
            .unwrap();
        let end = text[start..].find(',').unwrap() + start + 1;
        let text = format!("{}{}", &text[..start], &text[end..]);
        text.replacen("\"total_size\": ", "\"total_size\": 1", 1)
    });
    let folder = resolve(model.path()).unwrap();
    assert_eq!(folder.warnings().len(), 2, "{:?}", folder.warnings());
    assert!(folder.warnings()[0].contains("`model.layers.0.input_layernorm.weight`"));
    assert!(folder.warnings()[1].contains("total_size"));
}

#[test]
fn an_index_that_leaves_the_folder_is_refused() {
    let model = split();
    edit(model.path().join(INDEX), |text| {
        text.replacen("model-00001", "../model-00001", 1)
    });
    refuses(
        model.path(),
        &[INDEX, "../model-00001-of-00005.safetensors"],
    );
}

#[test]
fn a_truncated_file_is_named_with_both_sizes() {
    let model = split();
    let path = model.path().join("model-00002-of-00005.safetensors");
    let len = fs::metadata(&path).unwrap().len();
    fs::File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(len - 301)
        .unwrap();
    let sizes = [len.to_string(), (len - 301).to_string()];
    refuses(
        model.path(),
        &["model-00002-of-00005.safetensors", &sizes[0], &sizes[1]],
    );
}

#[test]
fn every_flipped_bit_of_a_header_is_an_error_or_harmless() {
    let model = single();
    let path = model.path().join("model.safetensors");
    let whole = fs::read(&path).unwrap();
    let header_len = usize::try_from(u64::from_le_bytes(whole[..8].try_into().unwrap())).unwrap();
    let mut num_read = 0;
    for at in (0..8 + header_len).step_by(7) {
        let mut broken = whole.clone();
        broken[at] ^= 1 << (at % 8);
        fs::write(&path, broken).unwrap();
        num_read += usize::from(resolve(model.path()).is_ok());
    }
    // A letter of the metadata's text can flip without harm; nothing else.
    assert!(num_read < 5, "{num_read} read");
}

#[test]
fn what_is_no_file_is_refused_without_waiting_for_it() {
    for make in [make_folder as fn(&Path), make_pipe, link_to_device] {
        let model = single();
        let path = model.path().join("model.safetensors");
        fs::remove_file(&path).unwrap();
        make(&path);
        refuses(model.path(), &["model.safetensors", "expected a file"]);
        assert!(matches!(
            inspect_file(&path),
            Err(CheckpointError::NotAFile { .. })
        ));
    }
}

fn make_folder(path: &Path) {
    fs::create_dir(path).expect("a folder");
}

fn make_pipe(path: &Path) {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    mknodat(CWD, path, FileType::Fifo, Mode::RWXU, 0).expect("a pipe");
}

fn link_to_device(path: &Path) {
    symlink("/dev/zero", path).expect("a link");
}

#[test]
fn a_config_that_is_absent_or_wrong_is_named() {
    let model = single();
    let config = model.path().join("config.json");
    fs::write(&config, "{").unwrap();
    refuses(model.path(), &["config.json", "not valid JSON"]);
    fs::write(&config, b"\xff").unwrap();
    refuses(model.path(), &["config.json", "not UTF-8"]);
    fs::remove_file(&config).unwrap();
    refuses(model.path(), &["no config.json"]);
    fs::File::create(&config).unwrap().set_len(1 << 30).unwrap();
    refuses(model.path(), &["config.json", "limit"]);
}

#[test]
fn a_missing_tensor_is_named() {
    let model = single();
    rewrite_header(&model.path().join("model.safetensors"), |json| {
        json.replace("layers.1.mlp.up_proj", "layers.1.mlp.xx_proj")
    });
    refuses(
        model.path(),
        &["`model.layers.1.mlp.up_proj.weight` is missing"],
    );
    let config = model.path().join("config.json");
    edit(config, |text| {
        text.replace("\"num_hidden_layers\": 3", "\"num_hidden_layers\": 4")
    });
    refuses(model.path(), &["(and 9 more)"]);
}

#[test]
fn a_head_is_missing_only_where_it_is_not_tied() {
    let model = single();
    edit(model.path().join("config.json"), |text| {
        text.replace(
            "\"tie_word_embeddings\": true",
            "\"tie_word_embeddings\": false",
        )
    });
    refuses(
        model.path(),
        &["`lm_head.weight` is missing", "tie_word_embeddings"],
    );
}

#[test]
fn an_unexpected_tensor_is_named() {
    let model = single();
    edit(model.path().join("config.json"), |text| {
        text.replace("\"num_hidden_layers\": 3", "\"num_hidden_layers\": 2")
    });
    refuses(
        model.path(),
        &["`model.layers.2.", "(and 8 more)", "does not belong"],
    );
}

#[test]
fn what_old_writers_saved_is_ignored() {
    let tied_twice = model(|spec| spec.tied = false, u64::MAX);
    edit(tied_twice.path().join("config.json"), |text| {
        text.replace(
            "\"tie_word_embeddings\": false",
            "\"tie_word_embeddings\": true",
        )
    });
    let path = tied_twice.path().join("model.safetensors");
    rewrite_header(&path, |json| {
        let empty = r#"{"dtype":"F32","shape":[0],"data_offsets":[0,0]}"#;
        let names = [
            "model.layers.0.self_attn.rotary_emb.inv_freq",
            "model.layers.0.attn.masked_bias",
        ];
        let more = names.map(|name| format!(",\"{name}\":{empty}")).concat();
        format!("{}{more}}}", json.trim_end().strip_suffix('}').unwrap())
    });
    let folder = resolve(tied_twice.path()).unwrap();
    let sources = folder.sources(&folder.spec().unwrap()).unwrap();
    assert_eq!(sources.ignored(&folder).count(), 3);
    let exported = sources.exported(&folder);
    assert_eq!(exported.len(), folder.tensors().len() - 3);
    assert!(exported.iter().all(|meta| meta.name != "lm_head.weight"));
}

#[test]
fn a_shape_that_is_not_the_configs_is_named_with_both() {
    let model = single();
    edit(model.path().join("config.json"), |text| {
        text.replace("\"vocab_size\": 512", "\"vocab_size\": 513")
    });
    refuses(
        model.path(),
        &[
            "model.embed_tokens.weight",
            "[512, 64]",
            "[513, 64]",
            "model.safetensors",
        ],
    );
}

#[test]
fn a_dtype_that_cannot_be_trained_is_named() {
    let model = single();
    rewrite_header(&model.path().join("model.safetensors"), |json| {
        json.replacen("BF16", "I16", 1)
    });
    refuses(model.path(), &["is I16", "F32, BF16, F16"]);
}

#[test]
fn sources_follow_units_and_parameters() {
    let model = split();
    let folder = resolve(model.path()).unwrap();
    let spec = folder.spec().unwrap();
    let sources = folder.sources(&spec).unwrap();
    for (at, unit) in spec.units().iter().enumerate() {
        for (number, param) in unit.params.iter().enumerate() {
            assert_eq!(sources.of(&folder, at, number).meta.name, param.name);
        }
    }
}

#[test]
fn other_files_are_those_without_weights() {
    let model = split();
    for name in [
        "tokenizer.json",
        "chat_template.jinja",
        ".gitattributes",
        "x.bin",
        "y.GGUF",
        "pytorch_model.bin.index.json",
    ] {
        fs::write(model.path().join(name), name).unwrap();
    }
    fs::create_dir(model.path().join("onnx")).unwrap();
    let files = Folder::open(model.path()).unwrap().other_files().unwrap();
    let names: Vec<_> = files.iter().map(|path| path.file_name().unwrap()).collect();
    assert_eq!(
        names,
        ["chat_template.jinja", "config.json", "tokenizer.json"]
    );
}

#[test]
fn ranges_are_read_to_the_byte_whatever_becomes_of_the_cache() {
    let model = split();
    let folder = resolve(model.path()).unwrap();
    for cache in CachePolicy::ALL {
        let reader = folder.open_files_with(cache).unwrap();
        for tensor in folder.tensors() {
            let file = fs::read(&folder.files()[tensor.file].path).unwrap();
            let len = tensor.num_bytes();
            for range in [0..len, 1..len - 1, len / 3..len / 2, len..len] {
                let mut bytes = vec![0; usize::try_from(range.end - range.start).unwrap()];
                reader.read_at(tensor, range.clone(), &mut bytes).unwrap();
                let at = usize::try_from(tensor.begin + range.start).unwrap();
                assert_eq!(bytes, file[at..at + bytes.len()], "{cache} {range:?}");
            }
        }
    }
}

#[test]
fn a_file_cut_while_open_is_an_error_with_both_sizes() {
    let model = single();
    let folder = resolve(model.path()).unwrap();
    let reader = folder.open_files().unwrap();
    let last = folder.tensors().last().unwrap();
    let mut bytes = vec![0; usize::try_from(last.num_bytes()).unwrap()];
    reader
        .read_at(last, 0..last.num_bytes(), &mut bytes)
        .unwrap();
    let path = &folder.files()[0].path;
    let len = folder.files()[0].num_bytes;
    fs::File::options()
        .write(true)
        .open(path)
        .unwrap()
        .set_len(len - 1)
        .unwrap();
    let error = reader
        .read_at(last, 0..last.num_bytes(), &mut bytes)
        .unwrap_err();
    let message = error.to_string();
    for word in [
        "model.safetensors",
        &last.meta.name,
        &len.to_string(),
        &(len - 1).to_string(),
    ] {
        assert!(message.contains(word), "`{word}` is not in: {message}");
    }
    assert!(matches!(
        folder.open_files(),
        Err(CheckpointError::Changed { .. })
    ));
}

#[test]
fn a_file_replaced_by_another_is_an_error() {
    let model = single();
    let folder = resolve(model.path()).unwrap();
    let path = &folder.files()[0].path;
    let other = model.path().join("other");
    fs::copy(path, &other).unwrap();
    fs::rename(other, path).unwrap();
    assert!(matches!(
        folder.open_files(),
        Err(CheckpointError::Changed { .. })
    ));
}

#[test]
fn a_folder_is_shared_by_ranks_and_a_reader_by_threads() {
    fn is_shared<T: Send + Sync>() {}
    is_shared::<Folder>();
    is_shared::<checkpoint::Reader>();
    is_shared::<checkpoint::StagedFiles>();
}
