//! What lies in a rank's planes after a load is what the files have, whatever lay
//! there before.

use std::num::NonZeroUsize;
use std::path::Path;

use checkpoint::init::{self, Init};
use comm::{Threads, run_threads};
use kernels::Cpu;
use model::Transformer;
use plan::{Formats, Precision, Recipe, shard_model};
use spec::Preset;
use tensor::Dtype;

use super::*;
use crate::TrainError;
use crate::place::open_arena;

/// A rank's parts of the window and its low bits, after a load.
type Planes = (Vec<Vec<u8>>, Vec<Vec<u8>>);

struct Model {
    folder: Folder,
    sources: Sources,
    transformer: Transformer,
}

impl Model {
    fn random(path: &Path, dtype: Dtype) -> Self {
        let preset = Preset::by_name("tiny").unwrap();
        let init = Init {
            spec: &preset.spec,
            config_text: &preset.config_json(),
            dtype,
            seed: 3,
            is_sparse: false,
            max_file_bytes: u64::MAX,
            num_threads: 1,
        };
        init::write(path, &init, &|_| std::ops::ControlFlow::Continue(())).unwrap();
        let folder = Folder::open(path).unwrap();
        let spec = folder.spec().unwrap();
        Self {
            sources: folder.sources(&spec).unwrap(),
            transformer: Transformer::new(spec),
            folder,
        }
    }

    /// Fills all planes of the window with `poison`, loads, and gives what lies there then.
    fn load_over(&self, poison: u8, recipe: Recipe, ranks: usize, way: ReadWay) -> Vec<Planes> {
        let world_size = NonZeroUsize::new(ranks).unwrap();
        let formats = Formats::of(&self.transformer, &Precision::of(recipe));
        let sharding = shard_model(&self.transformer, world_size, &formats);
        let loaded = run_threads(Threads::of(world_size), |group| -> Result<_, TrainError> {
            let ledger = Ledger::unlimited();
            let (arena, _reservation) = open_arena(0, &ledger)?;
            let device = Cpu::new(arena, 1);
            let rank = group.world().rank();
            let settings = (&crate::Settings::default()).into();
            // Low bits begin as zeros, which is what a bf16 file has of them.
            let optimizer = Some(Optimizer::new(
                &sharding, rank, &formats, settings, &ledger,
            )?);
            let mut world =
                RankWorld::new(&group, &device, &sharding, &formats, optimizer, &ledger)?;
            for bucket in 0..sharding.buckets.len() {
                world.window.own_mut(bucket)?.fill(poison);
            }
            let origin = Origin {
                folder: &self.folder,
                sources: &self.sources,
                settings: LoadSettings {
                    way,
                    ..LoadSettings::default()
                },
            };
            load(&mut world, &origin, &ledger)?;
            planes(&world)
        });
        loaded.unwrap()
    }
}

fn planes(world: &RankWorld<'_>) -> Result<Planes, TrainError> {
    let (mut high, mut low) = (Vec::new(), Vec::new());
    for (bucket, layouts) in world.layouts.iter().enumerate() {
        let slot = world.window.own(bucket)?;
        for (part, place) in layouts[world.rank].parts.iter().enumerate() {
            high.push(slot[place.clone()].to_vec());
            let optimizer = world.optimizer.as_ref().expect("one was made");
            low.push(optimizer.rest(bucket, part).to_vec());
        }
    }
    Ok((high, low))
}

#[test]
fn every_byte_of_every_plane_comes_from_the_files() {
    for dtype in [Dtype::BF16, Dtype::F32, Dtype::F16] {
        let folder = tempfile::tempdir().unwrap();
        let model = Model::random(&folder.path().join("model"), dtype);
        for way in ReadWay::ALL {
            for recipe in Recipe::ALL {
                for ranks in [1, 3, 8] {
                    let [one, other] =
                        [0x5a, 0xa5].map(|poison| model.load_over(poison, recipe, ranks, way));
                    assert!(one == other, "{dtype:?}, {way}, {recipe:?}, {ranks} ranks");
                }
            }
        }
    }
}

#[test]
fn every_way_to_read_fills_the_same_planes() {
    let folder = tempfile::tempdir().unwrap();
    let model = Model::random(&folder.path().join("model"), Dtype::BF16);
    let [own, host, root] = ReadWay::ALL.map(|way| model.load_over(0, Recipe::Bf16, 3, way));
    assert!(own == host && host == root);
}
