//! A run of no steps writes the model that it read.

use std::fs;
use std::path::Path;

use checkpoint::{ExportPlan, StagedFiles, Staging};
use tensor::{Dtype, as_bytes, as_bytes_mut, narrow, round_stored};
use train::Settings;

use crate::fixture::{Fixture, Opened, settings, small};

/// Files of a megabyte at most; the model below has two or three.
const MAX_FILE_SIZE: u64 = 1;

/// A table of half a million elements.
fn large(tied: bool) -> String {
    small(tied).replace("\"vocab_size\": 700", "\"vocab_size\": 8000")
}

#[track_caller]
fn is_written_as_read(tied: bool, dtype: Dtype) {
    let fixture = Fixture::in_files(&large(tied), dtype, 600_000);
    fs::write(
        fixture.model_path().join("tokenizer.json"),
        "{ \"of\": 1 }\n",
    )
    .unwrap();
    let rows = fixture.seven_rows();
    let source = Opened::open(&fixture.model_path());
    let exact = [("f32", 1), ("f32", 3), ("bf16", 1), ("bf16", 8)];
    // What is narrower than f32 keeps what it reads where that is bf16.
    let lean = [("bf16-lean", 3), ("fp8", 1), ("fp8", 3), ("fp8-lean", 8)];
    let lean = lean.into_iter().filter(|_| dtype == Dtype::BF16);
    for (recipe, ranks) in exact.into_iter().chain(lean) {
        let settings = Settings {
            steps: Some(0),
            recipe: recipe.to_owned(),
            ranks,
            max_file_size: MAX_FILE_SIZE,
            ..settings()
        };
        let run = fixture.train(&settings, &rows);
        let written = Opened::open(&run.out);
        let what = format!("{dtype:?}, tied {tied}, {recipe}, {ranks} ranks");
        assert!(written.folder.files().len() > 1, "{what}");
        let dtypes = written.folder.tensors().iter();
        assert!(
            dtypes
                .map(|tensor| tensor.meta.dtype)
                .all(|found| found == dtype)
        );
        assert!(written.tensors() == source.tensors(), "{what}");
        for file in ["config.json", "tokenizer.json"] {
            let read = |folder: &std::path::Path| fs::read(folder.join(file)).unwrap();
            assert_eq!(
                read(&run.out),
                read(&fixture.model_path()),
                "{what}: {file}"
            );
        }
    }
}

#[test]
fn every_tensor_is_written_as_it_was_read() {
    for dtype in [Dtype::BF16, Dtype::F32, Dtype::F16] {
        for tied in [true, false] {
            is_written_as_read(tied, dtype);
        }
    }
}

/// Writes the f32 model of `from` with every second tensor in f64, `more` added to
/// each of its elements.
fn mix_in_f64(from: &Path, out: &Path, more: f64) {
    let source = Opened::open(from);
    let mut metas = source.sources.exported(&source.folder);
    for meta in metas.iter_mut().step_by(2) {
        meta.dtype = Dtype::F64;
    }
    let plan = ExportPlan::new(&metas, u64::MAX).unwrap();
    let others = source.folder.other_files().unwrap();
    let staging = Staging::create(out, &plan, &others).unwrap();
    let files = StagedFiles::open(out, &plan).unwrap();
    for (name, bytes) in source.tensors() {
        let tensor = plan.located(&name).unwrap();
        if tensor.meta.dtype == Dtype::F64 {
            let f32s: Vec<f32> = bytes
                .chunks_exact(4)
                .map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()))
                .collect();
            let mut f64s = vec![0.0_f64; f32s.len()];
            narrow(Dtype::F64, &f32s, as_bytes_mut(&mut f64s)).unwrap();
            for element in &mut f64s {
                *element += more;
            }
            files.write_at(tensor, 0, as_bytes(&f64s)).unwrap();
        } else {
            files.write_at(tensor, 0, &bytes).unwrap();
        }
    }
    files.sync().unwrap();
    staging.commit().unwrap();
}

#[test]
fn f64_tensors_among_others_are_written_as_they_were_read() {
    let fixture = Fixture::new(&large(false), Dtype::F32);
    let mixed = fixture.model_path().with_file_name("mixed");
    mix_in_f64(&fixture.model_path(), &mixed, 0.0);
    let rows = fixture.seven_rows();
    for (recipe, ranks) in [("f32", 1), ("bf16", 3)] {
        let settings = Settings {
            steps: Some(0),
            recipe: recipe.to_owned(),
            ranks,
            ..settings()
        };
        let run = fixture.try_train(&mixed, &settings, &rows, None).unwrap();
        let (written, read) = (Opened::open(&run.out), Opened::open(&mixed));
        assert!(
            written.tensors() == read.tensors(),
            "{recipe}, {ranks} ranks"
        );
        let dtypes = |opened: &Opened| -> Vec<Dtype> {
            opened
                .folder
                .tensors()
                .iter()
                .map(|tensor| tensor.meta.dtype)
                .collect()
        };
        assert_eq!(dtypes(&written), dtypes(&read));
    }
}

/// What is added is less than half an ulp of most elements, and more of few.
#[test]
fn f64_tensors_are_rounded_to_f32_and_what_arrived_is_held_against_that() {
    let fixture = Fixture::new(&large(false), Dtype::F32);
    let mixed = fixture.model_path().with_file_name("mixed");
    mix_in_f64(&fixture.model_path(), &mixed, 1e-12);
    let rows = fixture.seven_rows();
    let read = Opened::open(&mixed);
    for read_way in ["own", "root"] {
        let settings = Settings {
            steps: Some(0),
            ranks: 2,
            read: read_way.to_owned(),
            ..settings()
        };
        let run = fixture.try_train(&mixed, &settings, &rows, None).unwrap();
        let written = Opened::open(&run.out).tensors().into_iter();
        for ((name, written), (_, mut stored)) in written.zip(read.tensors()) {
            let dtype = read.folder.find(&name).unwrap().meta.dtype;
            round_stored(dtype, &mut stored);
            assert!(written == stored, "{name}, read {read_way}");
        }
    }
}
