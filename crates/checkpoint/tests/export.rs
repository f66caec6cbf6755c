//! What an export leaves on disk: whole folders or nothing.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use checkpoint::{
    CheckpointError, ExportPlan, Folder, StagedFiles, Staging, check_out_dir, init, inspect_file,
    write_atomically,
};
use proptest::prelude::*;
use safetensors::SafeTensors;
use spec::Preset;
use tempfile::TempDir;
use tensor::{Dtype, TensorMeta};

fn meta(name: &str, dtype: Dtype, shape: &[u64]) -> TensorMeta {
    TensorMeta {
        name: name.to_owned(),
        dtype,
        shape: shape.into(),
    }
}

fn plan(tensors: &[TensorMeta], max_file_bytes: u64) -> ExportPlan {
    ExportPlan::new(tensors, max_file_bytes).expect("a plan")
}

/// The bytes that a test writes as a tensor.
fn bytes_of(name: &str, len: u64) -> Vec<u8> {
    let first = name
        .bytes()
        .fold(7_u8, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte));
    (0..len)
        .map(|at| first.wrapping_add((at % 251) as u8))
        .collect()
}

/// Writes every tensor in pieces, dealt to `num_ranks` writers.
fn write_all(out: &Path, plan: &ExportPlan, num_ranks: usize) {
    let ranks: Vec<_> = (0..num_ranks)
        .map(|_| StagedFiles::open(out, plan).expect("staged files"))
        .collect();
    for tensor in plan.tensors() {
        let bytes = bytes_of(&tensor.meta.name, tensor.num_bytes());
        for (number, piece) in bytes.chunks(5).enumerate() {
            ranks[number % num_ranks]
                .write_at(tensor, 5 * number as u64, piece)
                .expect("a written piece");
        }
    }
    for rank in ranks {
        rank.sync().expect("synced files");
    }
}

fn names_in(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).expect("a folder");
    let mut names: Vec<_> = names
        .map(|item| {
            item.expect("an item")
                .file_name()
                .into_string()
                .expect("text")
        })
        .collect();
    names.sort();
    names
}

/// Another file of a folder, as a cache has it: read-only.
fn other_file(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    fs::write(&path, text).expect("a file");
    let mut permissions = fs::metadata(&path).expect("a file").permissions();
    permissions.set_readonly(true);
    fs::set_permissions(&path, permissions).expect("permissions");
    path
}

#[test]
fn one_file_has_the_plain_name_and_no_index() {
    let plan = plan(
        &[meta("a", Dtype::F32, &[3]), meta("b", Dtype::BF16, &[0])],
        1 << 30,
    );
    assert_eq!(plan.files().len(), 1);
    assert_eq!(plan.files()[0].name, "model.safetensors");
    assert!(plan.index().is_none());
    let header = String::from_utf8_lossy(&plan.files()[0].header[8..]);
    assert!(
        header.starts_with(r#"{"__metadata__":{"format":"pt"},"a":"#),
        "{header}"
    );
}

#[test]
fn files_are_cut_at_the_limit_and_the_index_names_every_tensor() {
    let tensors = ["d", "c", "b", "a"].map(|name| meta(name, Dtype::F32, &[10]));
    let plan = plan(&tensors, 80);
    let names: Vec<_> = plan.files().iter().map(|file| file.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors"
        ]
    );
    let (name, text) = plan.index().unwrap();
    assert_eq!(name, "model.safetensors.index.json");
    let index: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(index["metadata"]["total_size"], 160);
    assert_eq!(index["weight_map"]["d"], names[0]);
    assert_eq!(index["weight_map"]["a"], names[1]);
    assert_eq!(index["weight_map"].as_object().unwrap().len(), 4);
}

#[test]
fn a_tensor_over_the_limit_has_a_file_of_its_own() {
    let sizes = [1, 50, 1, 1].map(|len| meta(&format!("t{len}"), Dtype::U8, &[len]));
    let mut tensors = sizes.to_vec();
    tensors[2].name = "u".to_owned();
    tensors[3].name = "v".to_owned();
    let plan = plan(&tensors, 10);
    let bytes: Vec<_> = plan.files().iter().map(|file| file.data_bytes).collect();
    assert_eq!(bytes, [1, 50, 2]);
}

#[test]
fn names_that_no_reader_takes_are_refused() {
    for names in [["a", "a"], ["", "b"], ["__metadata__", "b"], ["a\n", "b"]] {
        let tensors = names.map(|name| meta(name, Dtype::F32, &[1]));
        let refused = ExportPlan::new(&tensors, 10);
        assert!(
            matches!(refused, Err(CheckpointError::BadName { .. })),
            "{names:?}"
        );
    }
    let refused = ExportPlan::new(&[meta("a", Dtype::F64, &[u64::MAX])], 10);
    assert!(matches!(refused, Err(CheckpointError::BadTensor { .. })));
}

proptest! {
    #[test]
    fn every_plan_is_a_valid_aligned_layout(
        tensors in prop::collection::vec(
            (prop::sample::select(vec![Dtype::F32, Dtype::BF16, Dtype::U8, Dtype::I64]), prop::collection::vec(0_u64..5, 0..3)),
            0..12,
        ),
        max_file_bytes in 1_u64..200,
    ) {
        let metas: Vec<_> = tensors.iter().enumerate().map(|(at, (dtype, shape))| meta(&format!("t{at}\""), *dtype, shape)).collect();
        let plan = plan(&metas, max_file_bytes);
        for (number, file) in plan.files().iter().enumerate() {
            prop_assert_eq!(file.header.len() % 8, 0);
            let mut bytes = file.header.clone();
            bytes.resize(usize::try_from(file.num_bytes()).unwrap(), 0);
            let read = SafeTensors::deserialize(&bytes).unwrap();
            for tensor in plan.tensors().iter().filter(|tensor| tensor.file == number) {
                let view = read.tensor(&tensor.meta.name).unwrap();
                prop_assert_eq!((view.data().as_ptr().addr() - bytes.as_ptr().addr()) as u64, tensor.begin);
                prop_assert_eq!(tensor.begin % (tensor.meta.dtype.bits() / 8), 0);
                prop_assert_eq!(plan.located(&tensor.meta.name), Some(tensor));
            }
        }
        let order: Vec<_> = plan.tensors().iter().map(|tensor| tensor.meta.clone()).collect();
        prop_assert_eq!(order, metas);
    }
}

#[test]
fn many_writers_make_one_whole_folder() {
    let source = TempDir::new().unwrap();
    let tensors: Vec<_> = (0..20)
        .map(|at| meta(&format!("t{at}"), Dtype::BF16, &[at, 7]))
        .collect();
    for num_ranks in [1, 3, 7] {
        let out = TempDir::new().unwrap();
        let plan = plan(&tensors, 150);
        assert!(plan.files().len() > 10, "more files than are kept open");
        let others = [
            other_file(source.path(), &format!("config{num_ranks}.json"), "{}"),
            other_file(
                source.path(),
                &format!("tokenizer{num_ranks}.json"),
                "\u{1F600}",
            ),
        ];
        let staging = Staging::create(out.path(), &plan, &others).unwrap();
        assert_eq!(names_in(out.path()), [".saving"]);
        write_all(out.path(), &plan, num_ranks);
        staging.commit().unwrap();
        let folder = Folder::open(out.path()).unwrap();
        assert!(folder.warnings().is_empty(), "{:?}", folder.warnings());
        let reader = folder.open_files().unwrap();
        for tensor in folder.tensors() {
            let mut bytes = vec![0; usize::try_from(tensor.num_bytes()).unwrap()];
            reader
                .read_at(tensor, 0..tensor.num_bytes(), &mut bytes)
                .unwrap();
            assert_eq!(bytes, bytes_of(&tensor.meta.name, tensor.num_bytes()));
        }
        assert_eq!(folder.tensors().len(), tensors.len());
        for path in others {
            let copy = out.path().join(path.file_name().unwrap());
            assert_eq!(fs::read(&copy).unwrap(), fs::read(path).unwrap());
            assert!(!fs::metadata(copy).unwrap().permissions().readonly());
        }
        assert!(!out.path().join(".saving").exists());
    }
}

#[test]
fn a_dropped_export_leaves_nothing() {
    let parent = TempDir::new().unwrap();
    let out = parent.path().join("deep/out");
    let plan = plan(&[meta("a", Dtype::F32, &[3])], 100);
    drop(Staging::create(&out, &plan, &[]).unwrap());
    assert!(!out.exists());
    fs::create_dir_all(out.join("run")).unwrap();
    Staging::create(&out, &plan, &[]).unwrap().abort().unwrap();
    assert_eq!(names_in(&out), ["run"]);
}

#[test]
fn a_commit_never_overwrites() {
    let out = TempDir::new().unwrap();
    let plan = plan(&[meta("a", Dtype::F32, &[3])], 100);
    let staging = Staging::create(out.path(), &plan, &[]).unwrap();
    fs::write(out.path().join("model.safetensors"), "mine").unwrap();
    let refused = staging.commit().unwrap_err().to_string();
    assert!(refused.contains("model.safetensors"), "{refused}");
    assert_eq!(
        fs::read(out.path().join("model.safetensors")).unwrap(),
        b"mine"
    );
    assert_eq!(names_in(out.path()), ["model.safetensors"]);
}

#[test]
fn a_name_that_is_taken_is_refused_before_the_run_and_not_after_it() {
    let source = TempDir::new().unwrap();
    let out = TempDir::new().unwrap();
    let plan = plan(&[meta("a", Dtype::F32, &[3])], 100);
    fs::create_dir(out.path().join("run")).unwrap();
    let others = [other_file(source.path(), "run", "a file of the model")];
    let refused = Staging::create(out.path(), &plan, &others).unwrap_err();
    assert!(refused.to_string().contains("`run`"), "{refused}");
    assert_eq!(names_in(out.path()), ["run"]);
}

#[test]
fn until_the_commit_no_folder_has_a_config() {
    let source = TempDir::new().unwrap();
    let out = TempDir::new().unwrap();
    let plan = plan(&[meta("a", Dtype::F32, &[3])], 100);
    let others = [other_file(source.path(), "config.json", "{}")];
    let staging = Staging::create(out.path(), &plan, &others).unwrap();
    assert!(!out.path().join(".saving/config.json").exists());
    write_all(out.path(), &plan, 1);
    staging.commit().unwrap();
    assert_eq!(names_in(out.path()), ["config.json", "model.safetensors"]);
}

#[test]
fn an_out_folder_is_absent_or_empty_but_for_a_crashed_export() {
    let parent = TempDir::new().unwrap();
    let out = parent.path().join("out");
    check_out_dir(&out).unwrap();
    fs::create_dir_all(out.join(".saving/x")).unwrap();
    check_out_dir(&out).unwrap();
    assert!(names_in(&out).is_empty());
    fs::create_dir(out.join("run")).unwrap();
    let refused = check_out_dir(&out).unwrap_err().to_string();
    assert!(
        refused.contains("not empty") && refused.contains("`run`"),
        "{refused}"
    );
    let file = parent.path().join("file");
    fs::write(&file, "").unwrap();
    assert!(matches!(
        check_out_dir(&file),
        Err(CheckpointError::NotAFolder { .. })
    ));
}

#[test]
fn an_out_folder_that_cannot_be_written_is_named() {
    let plan = plan(&[meta("a", Dtype::F32, &[3])], 100);
    // Nobody, not even root, makes folders there.
    let refused = Staging::create(Path::new("/proc/nestling"), &plan, &[]).unwrap_err();
    assert!(refused.to_string().contains("/proc/nestling"), "{refused}");
}

/// A file system of 1 MiB, or why there is none.
fn small_disk() -> Result<Mounted, String> {
    let folder = TempDir::new().expect("a temporary folder");
    let output = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=1m", "nestling-test"])
        .arg(folder.path())
        .output()
        .map_err(|error| error.to_string())?;
    if output.status.success() {
        Ok(Mounted(folder))
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

/// A mounted file system, which goes even if its test fails.
struct Mounted(TempDir);

impl Drop for Mounted {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg(self.0.path()).status();
        assert!(unmounted.is_ok_and(|status| status.success()), "umount");
    }
}

#[test]
fn a_full_disk_is_named_with_the_bytes_needed_and_leaves_nothing() {
    let disk = match small_disk() {
        Ok(disk) => disk,
        Err(reason) => {
            println!("skipped: a small tmpfs cannot be mounted: {reason}");
            return;
        }
    };
    let out = disk.0.path().join("out");
    let large = plan(&[meta("a", Dtype::F32, &[1 << 20])], u64::MAX);
    let refused = Staging::create(&out, &large, &[]).unwrap_err();
    let needed = large.files()[0].num_bytes();
    assert!(
        matches!(refused, CheckpointError::DiskFull { needed_bytes, .. } if needed_bytes == needed),
        "{refused:?}"
    );
    let message = refused.to_string();
    assert!(
        message.contains("model.safetensors") && message.contains(&needed.to_string()),
        "{message}"
    );
    assert!(!out.exists());
    let small = plan(&[meta("a", Dtype::F32, &[1 << 10])], u64::MAX);
    let source = TempDir::new().unwrap();
    let big_file = other_file(source.path(), "tokenizer.json", &"x".repeat(2 << 20));
    let refused = Staging::create(&out, &small, &[big_file])
        .unwrap_err()
        .to_string();
    assert!(
        refused.contains("tokenizer.json") && refused.contains(&(2 << 20).to_string()),
        "{refused}"
    );
    Staging::create(&out, &small, &[])
        .unwrap()
        .commit()
        .unwrap();
}

#[test]
fn a_small_file_is_replaced_whole() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("plan.json");
    for text in ["{}", "{\"a\": 1}"] {
        write_atomically(&path, text).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
    }
    assert_eq!(names_in(folder.path()), ["plan.json"]);
}

#[test]
fn a_sparse_checkpoint_of_a_large_shape_costs_no_disk() {
    let out = TempDir::new().unwrap();
    let preset = Preset::by_name("70b").unwrap();
    let wanted = init::Init {
        spec: &preset.spec,
        config_text: &preset.config_json(),
        dtype: Dtype::BF16,
        seed: 0,
        is_sparse: true,
        max_file_bytes: 5_000_000_000,
        num_threads: 2,
    };
    init::write(
        out.path(),
        &wanted,
        &|_| std::ops::ControlFlow::Continue(()),
    )
    .unwrap();
    let folder = Folder::open(out.path()).unwrap();
    let spec = folder.spec().unwrap();
    folder.sources(&spec).unwrap();
    let apparent: u64 = folder.files().iter().map(|file| file.num_bytes).sum();
    assert!(apparent > 2 * spec.num_parameters());
    let blocks: u64 = folder
        .files()
        .iter()
        .map(|file| fs::metadata(&file.path).unwrap().blocks())
        .sum();
    assert!(blocks * 512 < 16 << 20, "{} bytes on disk", blocks * 512);
    let norm = folder
        .find("model.layers.79.input_layernorm.weight")
        .unwrap();
    let mut one = [0; 2];
    folder
        .open_files()
        .unwrap()
        .read_at(norm, 2..4, &mut one)
        .unwrap();
    assert_eq!(
        half::bf16::from_le_bytes(one).to_f32().to_bits(),
        1.0_f32.to_bits()
    );
}

#[test]
fn a_single_file_can_be_inspected_alone() {
    let folder = TempDir::new().unwrap();
    let plan = plan(
        &[meta("b", Dtype::BF16, &[3]), meta("a", Dtype::F32, &[2])],
        100,
    );
    Staging::create(folder.path(), &plan, &[])
        .unwrap()
        .commit()
        .unwrap();
    let weights = inspect_file(&folder.path().join("model.safetensors")).unwrap();
    assert_eq!(weights.find("b"), plan.located("b"));
    assert_eq!(weights.files()[0].num_bytes, plan.files()[0].num_bytes());
}

#[test]
fn a_folder_that_is_being_written_is_nobody_else_s() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let plan = ExportPlan::new(&[], u64::MAX).unwrap();
    let staging = Staging::create(&out, &plan, &[]).unwrap();
    for refused in [
        checkpoint::check_out_dir(&out),
        Staging::create(&out, &plan, &[]).map(drop),
    ] {
        assert!(matches!(refused, Err(CheckpointError::OutInUse { .. })));
    }
    staging.commit().unwrap();
    assert!(out.join("model.safetensors").is_file());
}
