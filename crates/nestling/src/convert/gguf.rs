//! A GGUF file taken for a model: its config, its tensors, its tokenizer.

use std::path::{Path, PathBuf};

use checkpoint::gguf::GgufFile;
use spec::ModelSpec;
use tensor::{Dtype, TensorMeta};

use super::gguf_config::{Arch, config, generation_config};
use super::keys::Keys;
use super::stream::{Move, Source};
use super::{Contents, ConvertOptions, ImportFault, Target, files, tensors, tokenizer};
use crate::Error;

/// A GGUF file and what it becomes.
pub(super) struct Import {
    file: GgufFile,
    metas: Vec<TensorMeta>,
    moves: Vec<Move>,
    texts: Vec<(&'static str, String)>,
    copied: Vec<PathBuf>,
}

impl Import {
    /// Reads the header of a file and decides everything; no tensor but the small
    /// one with the rotary factors is read.
    pub(super) fn open(path: &Path, options: &ConvertOptions<'_>) -> Result<Self, Error> {
        let file = GgufFile::open(path)?;
        let refuse = |source| Error::Import {
            path: path.to_owned(),
            source: Box::new(source),
        };
        let factors = rope_factors(&file)?;
        let dtype = match options.target {
            Target::Source => tensors::natural_dtype(file.tensors()),
            Target::Dtype(dtype) => dtype,
            Target::Fp8(_) => {
                return Err(refuse(ImportFault::NotToFp8));
            }
        };
        let decided = decide(&file, factors.as_deref(), dtype).map_err(refuse)?;
        let mut texts = vec![
            ("generation_config.json", decided.generation_config),
            ("config.json", decided.config),
        ];
        let copied = match options.tokenizer {
            Some(folder) => files::tokenizer_files(folder)?,
            None => Vec::new(),
        };
        texts.retain(|(name, _)| !copied.iter().any(|path| path.ends_with(name)));
        if options.tokenizer.is_none() {
            let made = tokenizer::files(Keys(file.metadata()));
            let made = made.map_err(Box::new);
            texts.extend(made.map_err(|source| refuse(ImportFault::NoTokenizer { source }))?);
        }
        Ok(Self {
            metas: decided.metas,
            moves: decided.moves,
            file,
            texts,
            copied,
        })
    }

    /// What the output folder shall hold.
    pub(super) fn contents(self: &Import) -> Contents<'_> {
        Contents {
            source: Source::Gguf(&self.file),
            metas: self.metas.clone(),
            moves: self.moves.clone(),
            texts: self.texts.clone(),
            copied: self.copied.clone(),
        }
    }
}

/// What the metadata and the tensors' names decide.
struct Decided {
    config: String,
    generation_config: String,
    metas: Vec<TensorMeta>,
    moves: Vec<Move>,
}

fn decide(file: &GgufFile, factors: Option<&[f32]>, dtype: Dtype) -> Result<Decided, ImportFault> {
    let keys = Keys(file.metadata());
    let arch = Arch::of(keys)?;
    let config = config(arch, keys, file.tensors(), factors, dtype)?;
    let spec = ModelSpec::from_config(&config).map_err(|source| ImportFault::Spec { source })?;
    let (metas, moves) = tensors::of_gguf(file, &spec, dtype, arch.has_rotary_pairs())?;
    Ok(Decided {
        config,
        generation_config: generation_config(keys)?,
        metas,
        moves,
    })
}

/// The most rotary factors that a head could have.
const MAX_FACTORS: u64 = 1 << 16;

/// The factors that divide the rotary frequencies, if the file has some.
fn rope_factors(file: &GgufFile) -> Result<Option<Vec<f32>>, Error> {
    let mut tensors = file.tensors().iter();
    let Some(tensor) = tensors.find(|tensor| tensor.name == tensors::ROPE_FACTORS) else {
        return Ok(None);
    };
    let len = tensor.num_elements.min(MAX_FACTORS);
    let mut factors = vec![0.0; usize::try_from(len).expect("few factors")];
    if len == tensor.num_elements {
        file.open_data()?.read(tensor, 0, &mut factors)?;
    }
    Ok(Some(factors))
}
