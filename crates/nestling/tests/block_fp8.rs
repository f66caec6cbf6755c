//! Checkpoints in block FP8: written, read again, trained on.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

use checkpoint::Folder;
use fp8::{Format, Headroom};
use nestling::{
    ConvertOptions, Converted, Dtype, Error, Event, InitOptions, Outcome, Precision, Settings,
    Target, TrainOptions, Verdict, convert, init, logits, train_model, verify, verify_two,
};
use plan::Recipe;
use serde_json::{Value, json};
use tempfile::TempDir;
use tensor::as_bytes_mut;

/// Sizes that are no multiples of a block, and three blocks, so that one is no end.
const SHAPE: &str = r#"{
  "model_type": "llama", "hidden_act": "silu", "hidden_size": 136,
  "intermediate_size": 200, "num_attention_heads": 2, "num_key_value_heads": 1,
  "num_hidden_layers": 3, "vocab_size": 40, "max_position_embeddings": 64,
  "rms_norm_eps": 1e-5, "tie_word_embeddings": false, "torch_dtype": "bfloat16"
}"#;

struct Place {
    folder: TempDir,
}

impl Place {
    /// With a random model in `source`.
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let place = Self { folder };
        fs::write(place.path("shape.json"), SHAPE).unwrap();
        let options = InitOptions {
            dtype: Dtype::BF16,
            seed: 5,
            sparse: false,
            max_file_bytes: 200_000,
        };
        let shape = place.path("shape.json");
        init(
            shape.to_str().unwrap(),
            &place.path("source"),
            options,
            &|_| std::ops::ControlFlow::Continue(()),
        )
        .unwrap();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn try_convert(&self, from: &str, to: &str, target: Target<'_>) -> Result<Converted, Error> {
        let options = ConvertOptions {
            target,
            max_file_bytes: 150_000,
            tokenizer: None,
            threads: 2,
        };
        convert(&self.path(from), &self.path(to), &options, &|_| {
            std::ops::ControlFlow::Continue(())
        })
    }

    #[track_caller]
    fn convert(&self, from: &str, to: &str, target: Target<'_>) -> Converted {
        self.try_convert(from, to, target).unwrap()
    }

    fn open(&self, name: &str) -> Folder {
        Folder::open(&self.path(name)).unwrap()
    }

    fn config(&self, name: &str) -> Value {
        let text = fs::read_to_string(self.path(name).join("config.json")).unwrap();
        serde_json::from_str(&text).unwrap()
    }
}

fn fp8_but(kept: &[&str]) -> Precision {
    let settings = Settings {
        recipe: "fp8".to_owned(),
        keep_bf16: kept.iter().map(ToString::to_string).collect(),
        ..Settings::default()
    };
    settings.precision().unwrap()
}

/// The values of a tensor as f32, and its bytes.
fn tensor(folder: &Folder, name: &str) -> (Vec<f32>, Vec<u8>) {
    let located = folder.find(name).unwrap();
    let reader = folder.open_files().unwrap();
    let mut bytes = vec![0; usize::try_from(located.num_bytes()).unwrap()];
    reader
        .read_at(located, 0..located.num_bytes(), &mut bytes)
        .unwrap();
    let len = located.meta.shape.num_elements().unwrap();
    let mut values = vec![0.0_f32; usize::try_from(len).unwrap()];
    if located.value_dtype() == Dtype::F32 {
        reader
            .read_values(located, 0..len, as_bytes_mut(&mut values), false)
            .unwrap();
    } else {
        tensor::widen(located.meta.dtype, &bytes, &mut values).unwrap();
    }
    (values, bytes)
}

#[test]
fn matrices_become_codes_and_scales_in_the_public_layout() {
    let place = Place::new();
    let precision = Precision::of(Recipe::Fp8);
    let done = place.convert("source", "fp8", Target::Fp8(&precision));
    assert_eq!(done.matrices.len(), 3 * 7 + 2);
    let (source, made) = (place.open("source"), place.open("fp8"));
    let mut num_coded = 0;
    for located in source.tensors() {
        let name = &located.meta.name;
        let is_coded = name.starts_with("model.layers.1.") && name.contains("_proj.");
        let line = done.matrices.iter().find(|line| line.name == *name);
        assert_eq!(line.is_some_and(|line| line.is_fp8), is_coded, "{name}");
        let ((values, bytes), (_, found)) = (tensor(&source, name), tensor(&made, name));
        if !is_coded {
            assert!(found == bytes, "{name}");
            continue;
        }
        num_coded += 1;
        let [rows, cols] = *located.meta.shape.dims() else {
            unreachable!("a matrix")
        };
        let wide = usize::try_from(cols).unwrap();
        let expected = fp8::quantize_tiles(&values, wide, Format::E4M3, Headroom::None);
        assert!(found == expected.codes, "{name}");
        let scales = made.find(&format!("{name}_scale_inv")).unwrap();
        assert_eq!(scales.meta.dtype, Dtype::F32);
        assert_eq!(
            scales.meta.shape.dims(),
            [rows.div_ceil(128), cols.div_ceil(128)]
        );
        let (scales, _) = tensor(&made, &scales.meta.name);
        let expected: Vec<f32> = expected.scales.iter().map(|scale| scale.to_f32()).collect();
        assert_eq!(scales, expected);
    }
    assert_eq!(num_coded, 7);
    assert_eq!(made.tensors().len(), source.tensors().len() + 7);
    let mut config = place.config("fp8");
    let mut quantization = config["quantization_config"].take();
    let kept = quantization["modules_to_not_convert"].take();
    assert_eq!(
        quantization,
        json!({"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
            "weight_block_size": [128, 128], "modules_to_not_convert": null})
    );
    let kept = kept.as_array().unwrap();
    assert_eq!(kept.len(), 2 * 7 + 1);
    for module in [
        "lm_head",
        "model.layers.0.mlp.up_proj",
        "model.layers.2.self_attn.q_proj",
    ] {
        assert!(kept.contains(&module.into()), "{module}");
    }
    config
        .as_object_mut()
        .unwrap()
        .remove("quantization_config");
    assert_eq!(config, place.config("source"));
    assert!(verify(&place.path("fp8")).unwrap().is_same());
}

#[test]
fn patterns_keep_matrices_and_one_that_names_nothing_is_refused() {
    let place = Place::new();
    let precision = fp8_but(&["*down_proj*"]);
    let done = place.convert("source", "fp8", Target::Fp8(&precision));
    let coded = done.matrices.iter().filter(|line| line.is_fp8);
    assert_eq!(coded.count(), 3 * 6);
    let down = done.matrices.iter().find(|line| line.name.contains("down"));
    assert!(down.unwrap().choice.contains("*down_proj*"));
    let precision = fp8_but(&["*no_such*"]);
    let error = place.try_convert("source", "none", Target::Fp8(&precision));
    assert!(error.unwrap_err().to_string().contains("*no_such*"));
    assert!(!place.path("none").exists());
}

#[test]
fn codes_come_back_from_numbers_as_they_were() {
    let place = Place::new();
    let precision = fp8_but(&["none"]);
    place.convert("source", "fp8", Target::Fp8(&precision));
    place.convert("fp8", "copy", Target::Source);
    place.convert("fp8", "bf16", Target::Dtype(Dtype::BF16));
    place.convert("bf16", "again", Target::Fp8(&precision));
    place.convert("fp8", "recoded", Target::Fp8(&precision));
    for other in ["copy", "again", "recoded"] {
        let report = verify_two(&place.path("fp8"), &place.path(other)).unwrap();
        let is_same = |verdict: &Verdict| *verdict == Verdict::Same;
        assert!(
            report.tensors.iter().all(|line| is_same(&line.verdict)),
            "{other}"
        );
        assert_eq!(report.tensors.len(), place.open("source").tensors().len());
        assert_eq!(place.config(other), place.config("fp8"), "{other}");
    }
    // A power of two times a code is a bf16, so nothing is lost on the way.
    let report = verify_two(&place.path("fp8"), &place.path("bf16")).unwrap();
    assert!(report.is_same(), "{report:?}");
    assert_eq!(report.tensors.len(), place.open("bf16").tensors().len());
    assert!(
        !verify_two(&place.path("fp8"), &place.path("source"))
            .unwrap()
            .is_same()
    );
    assert_eq!(place.config("bf16"), place.config("source"));
    // What is kept of a quantized folder becomes bf16.
    let ends = Precision::of(Recipe::Fp8);
    place.convert("fp8", "ends", Target::Fp8(&ends));
    let first = place.open("ends");
    let first = first.find("model.layers.0.mlp.up_proj.weight").unwrap();
    assert_eq!(first.meta.dtype, Dtype::BF16);
    let ids = [1, 5, 9];
    let of = |name: &str| logits(place.path(name).as_path(), &ids, 1, None).unwrap();
    for other in ["bf16", "ends"] {
        let (a, b) = (of("fp8"), of(other));
        assert!((0..3).all(|row| a.row(row) == b.row(row)), "{other}");
    }
}

#[test]
fn what_no_scale_can_hold_is_refused_and_nothing_is_left() {
    let place = Place::new();
    place.convert("source", "wide", Target::Dtype(Dtype::F32));
    let name = "model.layers.1.mlp.up_proj.weight";
    let folder = place.open("wide");
    let located = folder.find(name).unwrap();
    let path = &folder.files()[located.file].path;
    let mut bytes = fs::read(path).unwrap();
    let at = usize::try_from(located.begin).unwrap() + 4 * 1000;
    bytes[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    fs::write(path, bytes).unwrap();
    fs::remove_file(place.path("wide/digests.json")).unwrap();
    let precision = Precision::of(Recipe::Fp8);
    let error = place
        .try_convert("wide", "fp8", Target::Fp8(&precision))
        .unwrap_err();
    let message = error.to_string();
    assert!(
        message.contains(name) && message.contains("element 1000"),
        "{message}"
    );
    assert!(!place.path("fp8").exists());
}

#[test]
fn numbers_that_an_outlier_swallows_are_counted() {
    let place = Place::new();
    place.convert("source", "wide", Target::Dtype(Dtype::F32));
    let name = "model.layers.1.self_attn.k_proj.weight";
    let folder = place.open("wide");
    let located = folder.find(name).unwrap();
    let path = &folder.files()[located.file].path;
    let mut bytes = fs::read(path).unwrap();
    let begin = usize::try_from(located.begin).unwrap();
    // One block of 68 x 128 and one of 68 x 8; the outlier lies in the first.
    for element in 0..68 * 136 {
        let value = if element == 5 { 1e4 } else { 1e-3_f32 };
        bytes[begin + 4 * element..][..4].copy_from_slice(&value.to_le_bytes());
    }
    fs::write(path, bytes).unwrap();
    fs::remove_file(place.path("wide/digests.json")).unwrap();
    let precision = Precision::of(Recipe::Fp8);
    let flushed = |name: &str| {
        let out = format!("fp8-of-{name}");
        place
            .convert(name, &out, Target::Fp8(&precision))
            .num_flushed
    };
    let others = flushed("source");
    assert!(others < 10);
    let found = flushed("wide");
    assert!((68 * 128 - 1..68 * 128 + 10).contains(&found), "{found}");
}

/// Trains, and gives the outcome and the warnings.
fn train(model: &Path, out: &Path, settings: &Settings) -> (Outcome, Vec<String>) {
    let data = out.with_extension("jsonl");
    fs::write(
        &data,
        "{\"input_ids\": [1, 5, 9, 2, 33, 7, 7, 13]}\n".repeat(4),
    )
    .unwrap();
    let warnings = Mutex::new(Vec::new());
    let outcome = train_model(TrainOptions {
        model: model.into(),
        data: Some(&data),
        out,
        processes: None,
        settings,
        observer: &|event| {
            if let Event::Warning { message } = event {
                warnings.lock().unwrap().push(message.clone());
            }
        },
        stop: &AtomicBool::new(false),
    });
    (outcome.unwrap(), warnings.into_inner().unwrap())
}

#[test]
fn a_base_in_fp8_trains_as_its_numbers_do() {
    let place = Place::new();
    place.convert("source", "fp8", Target::Fp8(&fp8_but(&["none"])));
    place.convert("fp8", "bf16", Target::Dtype(Dtype::BF16));
    let runs = [
        ("f32", vec![], 1, "own"),
        ("bf16", vec![], 2, "root"),
        ("fp8", vec!["*q_proj*".to_owned()], 2, "own"),
        ("fp8", vec!["*mlp*".to_owned()], 3, "host"),
    ];
    for (number, (recipe, frozen, ranks, read)) in runs.into_iter().enumerate() {
        let settings = Settings {
            recipe: recipe.to_owned(),
            freeze: frozen.clone(),
            ranks,
            read: read.to_owned(),
            steps: Some(2),
            seq: 8,
            global_batch: 2,
            lr: 1e-3,
            threads: 1,
            max_underflow: 1.0,
            ..Settings::default()
        };
        let outs = ["fp8", "bf16"].map(|base| format!("{base}-{number}"));
        let [(coded, warnings), (plain, _)] = ["fp8", "bf16"].map(|base| {
            train(
                &place.path(base),
                &place.path(&format!("{base}-{number}")),
                &settings,
            )
        });
        assert_eq!(
            coded.losses, plain.losses,
            "{recipe} over {ranks} by {read}"
        );
        assert!(
            warnings
                .iter()
                .any(|warning| warning.contains("quantization_config"))
        );
        let report = verify_two(&place.path(&outs[0]), &place.path(&outs[1])).unwrap();
        let is_same = report
            .tensors
            .iter()
            .all(|line| line.verdict == Verdict::Same);
        assert!(is_same, "{report:?}");
        assert_eq!(place.config(&outs[0]), place.config("source"));
        assert!(verify(&place.path(&outs[0])).unwrap().is_same());
        for pattern in &frozen {
            let part = pattern.trim_matches('*');
            let (base, made) = (place.open("bf16"), place.open(&outs[0]));
            let mut names = base.tensors().iter().map(|tensor| &tensor.meta.name);
            let name = names.find(|name| name.contains(part)).unwrap();
            assert!(tensor(&base, name).1 == tensor(&made, name).1, "{name}");
        }
    }
}

#[test]
fn a_scale_that_changed_since_its_digest_was_written_is_caught() {
    let place = Place::new();
    let precision = Precision::of(Recipe::Fp8);
    place.convert("source", "fp8", Target::Fp8(&precision));
    let name = "model.layers.1.mlp.up_proj.weight_scale_inv";
    let folder = place.open("fp8");
    let located = folder.find(name).unwrap();
    let path = &folder.files()[located.file].path;
    let mut bytes = fs::read(path).unwrap();
    let at = usize::try_from(located.begin).unwrap();
    bytes[at..at + 4].copy_from_slice(&0.25_f32.to_le_bytes());
    fs::write(path, bytes).unwrap();
    let error = logits(place.path("fp8").as_path(), &[1], 1, None).unwrap_err();
    assert!(error.to_string().contains(name), "{error}");
}
