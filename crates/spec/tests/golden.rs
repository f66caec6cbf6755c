//! Rotary frequencies against those of the reference implementation
//! (`testdata/inv_freq.py`).

use serde_json::Value;
use spec::ModelSpec;

/// The reference takes powers with a vector function that is good to 1 ulp; ours
/// are rounded once. The reciprocal and the blend of `llama3` can add one more.
const MOST_ULPS: u32 = 2;

#[test]
fn frequencies_agree_with_the_reference() {
    let cases: Vec<Value> =
        serde_json::from_str(include_str!("../testdata/inv_freq.json")).unwrap();
    let (mut worst, mut num_exact, mut num_all) = (0, 0, 0);
    for case in &cases {
        let spec = ModelSpec::from_config(&case["config"].to_string()).unwrap();
        let expected = case["bits"].as_array().unwrap();
        let found = spec.inv_freq();
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(expected) {
            let expected = u32::try_from(expected.as_u64().unwrap()).unwrap();
            let ulps = found.to_bits().abs_diff(expected);
            assert!(ulps <= MOST_ULPS, "{}: {ulps} ulps", case["config"]);
            worst = worst.max(ulps);
            num_exact += u32::from(ulps == 0);
            num_all += 1;
        }
    }
    println!("{num_exact} of {num_all} exact, worst {worst} ulps");
    assert!(cases.len() >= 15);
}
