//! What is trained is what is found in the folder afterwards.

use std::fs;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

use nestling::{
    Dtype, EvalOptions, Event, InitOptions, Settings, TrainOptions, evaluate, init, train_model,
};

const SEQ: usize = 32;

/// f32 weights lose nothing on their way through a file; rows are summed one by
/// one instead of three at once.
const TOLERANCE: f64 = 1.0e-6;

/// Training and evaluation load the weights on different ways, in different shapes
/// and worlds.
#[test]
fn the_last_evaluation_of_a_run_is_the_evaluation_of_its_result() {
    let folder = tempfile::tempdir().unwrap();
    let [model, data, out] = ["model", "rows.jsonl", "out"].map(|name| folder.path().join(name));
    let options = InitOptions {
        dtype: Dtype::F32,
        seed: 5,
        sparse: false,
        max_file_bytes: u64::MAX,
    };
    let num_parameters = init("tiny", &model, options, &|_| {
        std::ops::ControlFlow::Continue(())
    })
    .unwrap();
    let lines = (0..5).map(|row| {
        let ids: Vec<_> = (0..SEQ).map(|at| (row * 31 + at % 7 * 13) % 512).collect();
        format!("{{\"input_ids\": {ids:?}}}\n")
    });
    fs::write(&data, lines.collect::<String>()).unwrap();
    let settings = Settings {
        epochs: Some(3.0),
        seq: SEQ,
        micro_batch: 3,
        global_batch: 5,
        lr: 3e-3,
        recipe: "f32".to_owned(),
        ranks: 2,
        eval: Some(data.to_str().unwrap().to_owned()),
        ..Settings::default()
    };
    let events = Mutex::new(Vec::new());
    let outcome = train_model(TrainOptions {
        model: (&model).into(),
        data: Some(&data),
        out: &out,
        settings: &settings,
        processes: None,
        observer: &|event| events.lock().unwrap().push(event.clone()),
        stop: &AtomicBool::new(false),
    })
    .unwrap();
    let [before, after] = outcome.eval_losses[..] else {
        unreachable!("evaluated at the start and at the end");
    };
    assert!(after < before - 0.1, "it learns: {before} {after}");

    for (path, expected) in [(&model, before), (&out, after)] {
        let options = EvalOptions {
            seq: SEQ,
            threads: 1,
            precision: None,
        };
        let report = evaluate(path, &data, options, &|_, _| {}).unwrap();
        assert_eq!((report.num_rows, report.num_targets), (5, 5 * 31));
        let off = (report.loss / expected - 1.0).abs();
        assert!(
            off <= TOLERANCE,
            "{expected} is {} in the folder",
            report.loss
        );
    }
    let events = events.into_inner().unwrap();
    let start = events.iter().find_map(|event| match event {
        Event::Start { num_parameters, .. } => Some(*num_parameters),
        _ => None,
    });
    assert_eq!(start, Some(num_parameters));
}
