//! Data made ready for a model: rows of token ids in a file.

use std::fs;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use data::{DataError, Prepared, Rows, Sample, Source, Tokenizer};

use crate::temporary::temporary;
use crate::{DEMO, Error, ModelPath, OpenModel};

/// Writes the rows of the data at `path`.
pub(crate) fn prepare(
    opened: &OpenModel,
    data: &Path,
    seq: usize,
    seed: u64,
    path: &Path,
) -> Result<Prepared, Error> {
    prepare_unless(&AtomicBool::new(false), opened, data, (seq, seed), path)
}

/// As [`prepare`], until `stop` is set from outside.
pub(crate) fn prepare_unless(
    stop: &AtomicBool,
    opened: &OpenModel,
    data: &Path,
    (seq, seed): (usize, u64),
    path: &Path,
) -> Result<Prepared, Error> {
    let sources = Source::find(data)?;
    let vocab = opened.model.spec.vocab;
    let settings = data::Settings {
        seq,
        vocab_size: u32::try_from(vocab).expect("a vocabulary is smaller than 2^32"),
        seed,
        shuffle: true,
    };
    let tokenizer = tokenizer_if_there(opened)?;
    Prepared::build_unless(stop, &sources, tokenizer.as_ref(), &settings, path)
        .map_err(|error| no_tokenizer(opened, error))
}

/// Says beside a line that needs a tokenizer what the folder has instead of one.
fn no_tokenizer(opened: &OpenModel, source: DataError) -> Error {
    match opened.tokenizer() {
        Err(Error::Data(missing)) if source.needs_tokenizer() => {
            let missing = Box::new(missing);
            Error::NoTokenizer { missing, source }
        }
        _ => source.into(),
    }
}

/// The tokenizer of a folder that has one. Rows of ids need none, and text without
/// one is an error of the data; a tokenizer that is broken is one of the folder.
pub(crate) fn tokenizer_if_there(opened: &OpenModel) -> Result<Option<Tokenizer>, Error> {
    match opened.tokenizer() {
        Ok(tokenizer) => Ok(Some(tokenizer)),
        Err(Error::Data(DataError::NoTokenizer { .. })) => Ok(None),
        Err(error) => Err(error),
    }
}

/// One row as tokens, mask and text, to look at before training. Without data it
/// is a row of the demo's own.
pub fn show_sample<'a>(
    model: impl Into<ModelPath<'a>>,
    data: Option<&Path>,
    seq: usize,
    seed: u64,
    row: u64,
    colour: bool,
) -> Result<String, Error> {
    let model = model.into();
    let opened = OpenModel::open(model)?;
    let folder = temporary()?;
    let path = folder.path().join("rows");
    let of_demo = folder.path().join("demo-train.jsonl");
    let data = match data {
        Some(data) => data,
        None if model.path.as_os_str() == DEMO => {
            fs::write(&of_demo, demo::TRAIN_JSONL).map_err(Error::file("write", &of_demo))?;
            &of_demo
        }
        None => return Err(Error::NoData),
    };
    let prepared = prepare(&opened, data, seq, seed, &path)?;
    let rows = Rows::open(&prepared.path)?;
    let tokenizer = tokenizer_if_there(&opened)?;
    Ok(Sample::read(&rows, row, tokenizer.as_ref())?.to_text(colour))
}
