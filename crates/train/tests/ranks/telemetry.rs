//! What rounding to FP8 did is counted, logged, and undone where it costs too much.

use tensor::Dtype;
use train::{Event, LayerRecord, Settings};

use crate::fixture::{Fixture, Run, settings, small};

/// The linear layers of the small model.
const NUM_LAYERS: usize = 14;

fn fp8(ranks: usize) -> Settings {
    Settings {
        recipe: "fp8".to_owned(),
        steps: Some(4),
        operands_every: 3,
        ranks,
        ..settings()
    }
}

fn logged(run: &Run) -> Vec<(u64, &[LayerRecord])> {
    let operands = run.events.iter().filter_map(|event| match event {
        Event::Operands { step, layers } => Some((*step, &layers[..])),
        _ => None,
    });
    operands.collect()
}

fn fallbacks(run: &Run) -> Vec<(u64, &str)> {
    let fallen = run.events.iter().filter_map(|event| match event {
        Event::Fallback { step, unit, .. } => Some((*step, unit.as_str())),
        _ => None,
    });
    fallen.collect()
}

#[test]
fn every_layer_is_counted_alike_at_any_number_of_ranks() {
    let fixture = Fixture::new(&small(true), Dtype::BF16);
    let rows = fixture.seven_rows();
    let alone = fixture.train(&fp8(1), &rows);
    let expected = logged(&alone);
    let steps: Vec<u64> = expected.iter().map(|(step, _)| *step).collect();
    assert_eq!(steps, [1, 3]);
    for (_, layers) in &expected {
        assert_eq!(layers.len(), NUM_LAYERS);
        for layer in *layers {
            assert!(layer.is_rounded);
            for operand in [layer.input, layer.gradient] {
                assert!(operand.amax > 0.0 && operand.amax.is_finite());
                assert!((0.0..0.5).contains(&operand.underflow), "{layer:?}");
                assert_eq!(operand.num_nan_blocks, 0);
            }
            assert!(layer.weight.amax > 0.0);
            assert_eq!(layer.weight.num_nans, 0);
        }
    }
    assert!(fallbacks(&alone).is_empty());
    // More ranks than rows: one has nothing to count.
    for ranks in [3, 8] {
        let together = fixture.train(&fp8(ranks), &rows);
        let (_, first) = logged(&together)[0];
        for (layer, expected) in first.iter().zip(expected[0].1) {
            let near = |a: f64, b: f64| (a - b).abs() <= 2e-3 * b.abs() + 1e-4;
            assert_eq!(layer.name, expected.name);
            let amax = |layer: &LayerRecord| f64::from(layer.gradient.amax);
            assert!(near(amax(layer), amax(expected)), "{layer:?} {expected:?}");
            assert!(near(layer.gradient.underflow, expected.gradient.underflow));
            assert!(near(layer.input.underflow, expected.input.underflow));
        }
    }
}

#[test]
fn a_block_that_loses_too_much_rounds_its_operands_no_more() {
    let fixture = Fixture::new(&small(true), Dtype::BF16);
    let rows = fixture.seven_rows();
    let run = |ranks, max_underflow| {
        let settings = Settings {
            max_underflow,
            ..fp8(ranks)
        };
        fixture.train(&settings, &rows)
    };
    let rounded = run(1, 1.0);
    for ranks in [1, 3] {
        let fallen = run(ranks, 0.0);
        assert_eq!(fallbacks(&fallen).len(), 2, "one of each block");
        let all = logged(&fallen);
        assert!(all[0].1.iter().all(|layer| !layer.is_rounded));
        let is_plain = |layer: &LayerRecord| layer.input.amax == 0.0 && layer.gradient.amax == 0.0;
        assert!(!all[0].1.iter().any(is_plain), "step 1 was rounded");
        assert!(all[1].1.iter().all(is_plain), "step 3 was not");
        let losses = &fallen.outcome.losses;
        let expected = &rounded.outcome.losses;
        assert!((losses[0] - expected[0]).abs() < 1e-6 * expected[0]);
        assert_ne!(losses[1].to_bits(), expected[1].to_bits());
        assert!((losses[3] - expected[3]).abs() < 1e-2 * expected[3]);
    }
}
