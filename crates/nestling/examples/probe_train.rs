//! scratch
use std::path::Path;
use std::sync::atomic::AtomicBool;
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let s = nestling::Settings {
        epochs: Some(10.0),
        seq: 256,
        micro_batch: 2,
        global_batch: 2,
        lr: 1e-5,
        recipe: args[4].clone(),
        ranks: args[5].parse().unwrap(),
        clip: toml::Value::String("off".into()).try_into().unwrap(),
        schedule: toml::Value::String("constant".into()).try_into().unwrap(),
        ..Default::default()
    };
    let o = nestling::train_model(nestling::TrainOptions {
        model: Path::new(&args[1]),
        data: Some(Path::new(&args[2])),
        out: Path::new(&args[3]),
        settings: &s,
        observer: &|e| println!("{e:?}"),
        stop: &AtomicBool::new(false),
    })
    .unwrap();
    println!("{:?}\n{:?}\n{:?}", o.losses, o.grad_norms, o.ranks);
}
