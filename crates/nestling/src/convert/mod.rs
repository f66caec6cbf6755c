//! A checkpoint written again: in another dtype, or as a Hugging Face folder
//! where it was a GGUF file.
//!
//! ```text
//! folder      tensors keep their names; floats are cast to the target's dtype, or
//!             matrices become FP8 codes with a scale for each block; config.json says
//!             so, all other files are copied
//! GGUF file   metadata -> config.json, tokenizer.json and its companions
//!             blocks -> floats under the names of the family, rows of queries
//!             and keys put back into halves
//! ```
//!
//! Bytes go from file to file through fixed buffers; no tensor is ever whole.

mod fault;
mod files;
mod gguf;
mod gguf_config;
mod keys;
mod quantize;
mod stream;
mod tensors;
mod tokenizer;

use std::collections::BTreeSet;
use std::path::Path;

use checkpoint::{
    ExportPlan, Folder, Located, MANIFEST_NAME, Manifest, OnWritten, Staging, check_out_dir,
};
use model::Transformer;
use plan::{Choice, Precision};
use serde::Serialize;
use tensor::{Dtype, Ledger, TensorMeta};

use crate::opened::num_cores;
use crate::{DEMO, Error, OpenModel};

pub use fault::ImportFault;
pub use quantize::ConvertedMatrix;

use stream::{Move, Source, Work};

/// Threads that read, cast and write at once; more would wait for the disk.
const MAX_THREADS: usize = 8;

/// The element type of the weights that [`convert`] writes.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Target<'a> {
    /// That of the source. Of a GGUF file: F32 if any matrix is F32, F16 if all
    /// are, else BF16, which quantised blocks are rounded to.
    #[default]
    Source,
    /// This one: F32, BF16 or F16.
    Dtype(Dtype),
    /// E4M3 codes and one f32 for each 128 x 128 block, in the matrices that are FP8
    /// under this precision; all others keep their dtype.
    Fp8(&'a Precision),
}

/// What to write.
#[derive(Debug, Clone, Copy)]
pub struct ConvertOptions<'a> {
    /// The element type of the weights.
    pub target: Target<'a>,
    /// Bytes after which a weight file is followed by the next.
    pub max_file_bytes: u64,
    /// A folder whose tokenizer is copied instead of the one in a GGUF file.
    pub tokenizer: Option<&'a Path>,
    /// Threads; 0 is all cores.
    pub threads: usize,
}

/// What was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Converted {
    /// Tensors.
    pub num_tensors: u64,
    /// Elements of all tensors.
    pub num_elements: u64,
    /// Bytes of all tensors.
    pub num_bytes: u64,
    /// Bytes that were held on their way between files, at most.
    pub staging_peak_bytes: u64,
    /// Names of the files beside the weights, in the order of writing.
    pub other_files: Vec<String>,
    /// Every matrix, where some were to become FP8.
    pub matrices: Vec<ConvertedMatrix>,
    /// Elements that are not 0 and became 0 in FP8.
    pub num_flushed: u64,
}

/// Writes the checkpoint at `model` (a Hugging Face folder, a GGUF file, or
/// `demo`) to the folder `out`, which must be empty or not there.
pub fn convert(
    model: &Path,
    out: &Path,
    options: &ConvertOptions<'_>,
    on_written: OnWritten<'_>,
) -> Result<Converted, Error> {
    if let Target::Dtype(dtype) = options.target {
        check_target(dtype)?;
    }
    check_out_dir(out)?;
    if model.as_os_str() == DEMO {
        let demo = OpenModel::open(model)?;
        return convert_folder(&demo.folder, out, options, on_written);
    }
    if model.is_file() {
        let import = gguf::Import::open(model, options)?;
        return write(out, &import.contents(), options, on_written);
    }
    convert_folder(&Folder::open(model)?, out, options, on_written)
}

fn check_target(dtype: Dtype) -> Result<(), Error> {
    match dtype {
        Dtype::F32 | Dtype::BF16 | Dtype::F16 => Ok(()),
        found => Err(Error::TargetDtype { found }),
    }
}

fn convert_folder(
    folder: &Folder,
    out: &Path,
    options: &ConvertOptions<'_>,
    on_written: OnWritten<'_>,
) -> Result<Converted, Error> {
    let copied = match options.tokenizer {
        Some(tokenizer) => files::with_tokenizer_of(folder.other_files()?, tokenizer)?,
        None => folder.other_files()?,
    };
    let is_config = |path: &std::path::PathBuf| path.ends_with("config.json");
    let (_config, copied) = copied.into_iter().partition(is_config);
    let chosen = match options.target {
        Target::Fp8(precision) => {
            let spec = folder.spec()?;
            // Shapes and scales are the model's, or it is refused here.
            folder.sources(&spec)?;
            quantize::chosen(&Transformer::new(spec), precision)?
        }
        _ => Vec::new(),
    };
    let coded = chosen
        .iter()
        .filter(|(_, choice, _)| *choice == Choice::Codes);
    let coded: BTreeSet<&str> = coded.map(|(name, ..)| name.as_str()).collect();
    let (metas, moves) = tensors::of_folder(folder, options.target, |name| coded.contains(name))?;
    let without_codes = match options.target {
        Target::Source => None,
        _ => folder.config_without_codes()?,
    };
    let config = without_codes.map_or_else(|| folder.config_text(), Ok)?;
    let config = match options.target {
        Target::Fp8(_) => quantize::with_quantization(&config, &chosen),
        target => files::with_dtype(&config, target),
    };
    let matrices = chosen.iter().map(|(name, choice, _)| {
        let written = metas.iter().skip_while(|meta| meta.name != *name);
        let is_fp8 = *choice == Choice::Codes;
        let written = written.take(if is_fp8 { 2 } else { 1 });
        ConvertedMatrix {
            name: name.clone(),
            is_fp8,
            choice: choice.to_string(),
            source_bytes: folder.find(name).map_or(0, Located::num_bytes),
            num_bytes: written.filter_map(|meta| meta.num_bytes().ok()).sum(),
        }
    });
    let matrices = matrices.collect();
    let contents = Contents {
        source: Source::Folder(folder),
        metas,
        moves,
        texts: vec![("config.json", config)],
        copied,
    };
    let written = write(out, &contents, options, on_written)?;
    Ok(Converted {
        matrices,
        ..written
    })
}

/// All that an output folder shall hold.
struct Contents<'a> {
    source: Source<'a>,
    /// The tensors as they shall be.
    metas: Vec<TensorMeta>,
    /// Where each comes from, in the same order.
    moves: Vec<Move>,
    /// Small files that are made.
    texts: Vec<(&'static str, String)>,
    /// Files that are copied byte for byte.
    copied: Vec<std::path::PathBuf>,
}

fn write(
    out: &Path,
    contents: &Contents<'_>,
    options: &ConvertOptions<'_>,
    on_written: OnWritten<'_>,
) -> Result<Converted, Error> {
    let plan = ExportPlan::new(&contents.metas, options.max_file_bytes)?;
    let mut staging = Staging::create(out, &plan, &contents.copied)?;
    for (name, text) in &contents.texts {
        staging.add_text(name, text)?;
    }
    let ledger = Ledger::unlimited();
    let num_threads = match options.threads {
        0 => num_cores(),
        threads => threads,
    };
    let (digests, num_flushed) = Work {
        out,
        plan: &plan,
        source: &contents.source,
        moves: &contents.moves,
        ledger: &ledger,
        num_threads: num_threads.min(MAX_THREADS),
        on_written,
    }
    .run()?;
    let names = contents.metas.iter().map(|meta| meta.name.as_str());
    staging.add_text(MANIFEST_NAME, &Manifest::text(names.zip(digests)))?;
    staging.commit()?;
    let made = contents.texts.iter().map(|(name, _)| (*name).to_owned());
    let copied = contents.copied.iter().filter_map(|path| path.file_name());
    let copied = copied.map(|name| name.to_string_lossy().into_owned());
    Ok(Converted {
        num_tensors: contents.metas.len() as u64,
        num_elements: contents.moves.iter().map(|each| each.num_elements).sum(),
        num_bytes: plan.total_bytes(),
        staging_peak_bytes: ledger.peak_bytes(),
        other_files: copied.chain(made).collect(),
        matrices: Vec::new(),
        num_flushed,
    })
}
