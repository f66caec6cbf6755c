//! What lies in the shards is what the files have, however they are read, and a
//! load that went wrong does not pass.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "in a test a failure may panic"
)]

use std::fs::{self, OpenOptions};
use std::num::NonZeroUsize;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use checkpoint::init::Init;
use checkpoint::{CachePolicy, Digest, Folder, Located, MANIFEST_NAME, Manifest, Sources};
use comm::{RankFailure, Threads, run_threads};
use kernels::{Arena, Cpu};
use model::Transformer;
use plan::{Formats, Kept, Patterns, Precision, Recipe, shard_model};
use shard::Sharding;
use spec::ModelSpec;
use tempfile::TempDir;
use tensor::{Dtype, Ledger};
use train::{
    InferenceModel, LoadReport, LoadSettings, Origin, RankWorld, ReadWay, Rehearsal, TrainError,
    load, rehearse,
};

/// Odd widths, so that rows end inside the words of a digest.
const CONFIG: &str = r#"{
  "model_type": "llama", "hidden_act": "silu", "hidden_size": 42, "head_dim": 10,
  "intermediate_size": 301, "num_attention_heads": 3, "num_key_value_heads": 1,
  "num_hidden_layers": 3, "vocab_size": 701, "max_position_embeddings": 64,
  "rms_norm_eps": 1e-5, "tie_word_embeddings": false
}"#;

/// A random model on disk, opened.
struct Opened {
    place: TempDir,
    folder: Folder,
    sources: Sources,
    model: Transformer,
}

impl Opened {
    fn new(dtype: Dtype) -> Self {
        Self::of_config(CONFIG, dtype)
    }

    /// One whose table has six row tiles: three for each of two ranks.
    fn halved() -> Self {
        Self::of_config(&CONFIG.replace("701", "768"), Dtype::BF16)
    }

    fn of_config(config: &str, dtype: Dtype) -> Self {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("model");
        let init = Init {
            spec: &ModelSpec::from_config(config).unwrap(),
            config_text: config,
            dtype,
            seed: 3,
            is_sparse: false,
            max_file_bytes: 200_000,
            num_threads: 1,
        };
        checkpoint::init::write(&path, &init, &|_| std::ops::ControlFlow::Continue(())).unwrap();
        let folder = Folder::open(&path).unwrap();
        assert!(folder.files().len() > 1);
        let spec = folder.spec().unwrap();
        Self {
            sources: folder.sources(&spec).unwrap(),
            model: Transformer::new(spec),
            folder,
            place,
        }
    }

    fn inference(&self) -> InferenceModel<'_> {
        InferenceModel {
            folder: &self.folder,
            sources: &self.sources,
            model: &self.model,
            num_threads: 1,
            precision: None,
        }
    }

    fn rehearsal(&self, world_size: usize) -> Rehearsal<'_> {
        Rehearsal {
            model: self.inference(),
            settings: LoadSettings::default(),
            precision: None,
            world_size: NonZeroUsize::new(world_size).unwrap(),
            as_rank: None,
        }
    }

    /// The digests of the files' bytes, by another way than a load takes.
    fn expected(&self) -> Vec<(String, String)> {
        let params = self.model.params();
        params
            .map(|param| {
                let tensor = self.folder.find(&param.name).unwrap();
                let file = fs::read(&self.folder.files()[tensor.file].path).unwrap();
                let begin = usize::try_from(tensor.begin).unwrap();
                let end = begin + usize::try_from(tensor.num_bytes()).unwrap();
                let digest = Digest::of(0, &file[begin..end]);
                (param.name.clone(), digest.to_string())
            })
            .collect()
    }

    fn write_manifest(&self) {
        let digests = self.expected();
        let digests = digests
            .iter()
            .map(|(name, digest)| (name.as_str(), digest.parse().unwrap()));
        let path = self.place.path().join("model").join(MANIFEST_NAME);
        fs::write(path, Manifest::text(digests)).unwrap();
    }

    /// The file of a tensor, and where in it the tensor's last byte is.
    fn last_byte_of(&self, tensor: &str) -> (PathBuf, u64) {
        let tensor = self.folder.find(tensor).unwrap();
        let file = self.folder.files()[tensor.file].path.clone();
        (file, tensor.begin + tensor.num_bytes() - 1)
    }

    /// Loads with a sharding that may be wrong.
    fn load_by(&self, sharding: &Sharding) -> Result<(), TrainError> {
        let formats = Formats::of(&self.model, &Precision::of(Recipe::F32));
        let threads = Threads::of(NonZeroUsize::new(sharding.world_size).unwrap());
        let loaded = run_threads(threads, |group| {
            let ledger = Ledger::unlimited();
            let device = Cpu::new(Arena::new(0).unwrap(), 1);
            let mut world =
                RankWorld::new(&group, &device, sharding, &formats, None, &ledger).unwrap();
            let origin = Origin {
                folder: &self.folder,
                sources: &self.sources,
                settings: LoadSettings::default(),
            };
            load(&mut world, &origin, &ledger)
        });
        match loaded {
            Ok(_) => Ok(()),
            Err(RankFailure::Failed { source, .. }) => Err(source),
            Err(other) => panic!("{other}"),
        }
    }
}

fn message(error: &TrainError) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

fn read_bytes(report: &LoadReport) -> u64 {
    report.ranks.iter().map(|rank| rank.read_bytes).sum()
}

#[test]
fn every_way_to_read_brings_the_bytes_of_the_files() {
    let recipes = Recipe::ALL.map(|recipe| Precision {
        kept: Kept {
            ends: false,
            named: Patterns::default(),
        },
        ..Precision::of(recipe)
    });
    for dtype in [Dtype::BF16, Dtype::F16, Dtype::F32] {
        let opened = Opened::new(dtype);
        let expected = opened.expected();
        for world_size in [1, 2, 3, 8] {
            for way in ReadWay::ALL {
                for precision in [None].into_iter().chain(recipes.iter().map(Some)) {
                    let mut rehearsal = opened.rehearsal(world_size);
                    rehearsal.settings.way = way;
                    rehearsal.precision = precision;
                    let report = rehearse(&rehearsal).unwrap();
                    assert_eq!(report.digests, expected, "{dtype} {world_size} {way}");
                }
            }
        }
    }
}

#[test]
fn every_byte_is_read_once_whatever_becomes_of_the_cache() {
    let opened = Opened::new(Dtype::BF16);
    let num_bytes: u64 = opened.folder.tensors().iter().map(Located::num_bytes).sum();
    for cache in CachePolicy::ALL {
        for way in ReadWay::ALL {
            let mut rehearsal = opened.rehearsal(5);
            rehearsal.settings.cache = cache;
            rehearsal.settings.way = way;
            let report = rehearse(&rehearsal).unwrap();
            assert_eq!(read_bytes(&report), num_bytes, "{cache} {way}");
            if way == ReadWay::Root {
                assert!(report.ranks[1..].iter().all(|rank| rank.read_bytes == 0));
            }
        }
    }
}

#[test]
fn the_ranks_of_a_world_one_by_one_are_the_world() {
    let opened = Opened::new(Dtype::BF16);
    let expected = opened.expected();
    for world_size in 1..=9 {
        let mut sums = vec![Digest::default(); expected.len()];
        for rank in 0..world_size {
            let mut rehearsal = opened.rehearsal(world_size);
            rehearsal.as_rank = Some(rank);
            let report = rehearse(&rehearsal).unwrap();
            assert_eq!(report.ranks.len(), 1);
            for (sum, (_, digest)) in sums.iter_mut().zip(&report.digests) {
                *sum += digest.parse().unwrap();
            }
        }
        for (sum, (name, digest)) in sums.iter().zip(&expected) {
            assert_eq!(&sum.to_string(), digest, "{name} of {world_size} ranks");
        }
    }
}

#[test]
fn a_flipped_bit_in_a_source_is_caught_by_its_digests() {
    for way in ReadWay::ALL {
        let opened = Opened::new(Dtype::BF16);
        opened.write_manifest();
        let mut rehearsal = opened.rehearsal(3);
        rehearsal.settings.way = way;
        rehearse(&rehearsal).unwrap();

        let name = "model.layers.1.mlp.down_proj.weight";
        let (path, offset) = opened.last_byte_of(name);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, offset).unwrap();
        file.write_all_at(&[byte[0] ^ 1], offset).unwrap();
        let error = message(&rehearse(&rehearsal).unwrap_err());
        assert!(
            error.contains(name) && error.contains("digests.json"),
            "{error}"
        );
        rehearsal.settings.checks_digests = false;
        rehearse(&rehearsal).unwrap();
    }
}

/// A right sharding in which two ranks hold parts of one size of one tensor: its
/// bucket, and the numbers of the parts.
fn with_twins(opened: &Opened) -> (Sharding, usize, [usize; 2]) {
    let formats = Formats::of(&opened.model, &Precision::of(Recipe::F32));
    let sharding = shard_model(&opened.model, NonZeroUsize::new(2).unwrap(), &formats);
    for (number, bucket) in sharding.buckets.iter().enumerate() {
        let [first, second] = &bucket.runs[..] else {
            panic!("two ranks");
        };
        for (a, left) in first.parts.iter().enumerate() {
            let twin = |right: &shard::Part| {
                right.slice == left.slice && right.num_elements == left.num_elements
            };
            if let Some(b) = second.parts.iter().position(twin) {
                return (sharding, number, [a, b]);
            }
        }
    }
    panic!("no tensor is shared out in equal parts");
}

#[test]
fn swapped_ranges_of_two_ranks_are_caught() {
    let opened = Opened::halved();
    let (mut sharding, bucket, [a, b]) = with_twins(&opened);
    opened.load_by(&sharding).unwrap();
    let runs = &mut sharding.buckets[bucket].runs;
    let rows = runs[0].parts[a].rows.clone();
    runs[0].parts[a].rows = runs[1].parts[b].rows.clone();
    runs[1].parts[b].rows = rows;
    let error = opened.load_by(&sharding).unwrap_err();
    assert!(matches!(error, TrainError::Arrived { .. }), "{error}");
}

#[test]
fn a_range_that_nobody_reads_is_caught() {
    let opened = Opened::halved();
    let (mut sharding, bucket, [_, b]) = with_twins(&opened);
    sharding.buckets[bucket].runs[1].parts.remove(b);
    let error = opened.load_by(&sharding).unwrap_err();
    assert!(matches!(error, TrainError::NotRead { .. }), "{error}");
}

#[test]
fn a_range_that_two_ranks_read_is_caught() {
    let opened = Opened::halved();
    let (mut sharding, bucket, [a, b]) = with_twins(&opened);
    let runs = &mut sharding.buckets[bucket].runs;
    runs[1].parts[b].rows = runs[0].parts[a].rows.clone();
    let error = opened.load_by(&sharding).unwrap_err();
    assert!(matches!(error, TrainError::Arrived { .. }), "{error}");
}

#[test]
fn a_file_cut_short_under_one_rank_stops_all_with_its_name() {
    for way in ReadWay::ALL {
        let opened = Opened::new(Dtype::BF16);
        let (path, last) = opened.last_byte_of("model.layers.2.mlp.up_proj.weight");
        let mut rehearsal = opened.rehearsal(3);
        rehearsal.settings.way = way;
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(last).unwrap();
        let error = message(&rehearse(&rehearsal).unwrap_err());
        let name = path.file_name().unwrap().to_str().unwrap();
        assert!(error.contains(name), "{error}");
    }
}
