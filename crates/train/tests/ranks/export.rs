//! A run of no steps writes the model that it read.

use std::fs;

use tensor::Dtype;
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
    for (recipe, ranks) in [("f32", 1), ("f32", 3), ("bf16", 1), ("bf16", 8)] {
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
