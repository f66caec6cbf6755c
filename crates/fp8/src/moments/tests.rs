//! Unit tests of the moment codec.

use super::*;

const RANDOM: Random = Random {
    seed: 5,
    step: 3,
    parameter: 2,
};

fn numbers(len: usize) -> Vec<f32> {
    // Eight orders of magnitude within a group.
    (0..len)
        .map(|index| {
            let spread = (index * 7919 % 97) as f32 / 12.0 - 8.0;
            let sign = if index % 3 == 0 { -1.0 } else { 1.0 };
            sign * 10_f32.powf(spread)
        })
        .collect()
}

#[test]
fn a_nonzero_v_never_decodes_to_zero() {
    for v in [1.0, 1e-20, 1e-38, f32::from_bits(1)] {
        for max in [v, 1.0, 1e30] {
            let root = v.sqrt();
            let scale = v_scale(&[root, max.sqrt()]);
            for code in [
                encode_v(root, scale),
                encode_v_stochastic(root, scale, 0),
                encode_v_stochastic(root, scale, 0xFFFF),
            ] {
                assert!(code > 0);
                assert!(decode_v(code, scale) > 0.0, "{v} {max}");
            }
        }
    }
    assert_eq!(encode_v_stochastic(0.0, v_scale(&[0.0, 1.0]), 0xFFFF), 0);
    for code in 1..=u8::MAX {
        for scale in [1, 0x0080, 0x3F80, 0x5F80] {
            assert!(decode_v(code, scale) > 0.0);
        }
    }
}

#[test]
fn zeros_stay_zeros() {
    let planes = MomentPlanes::encode(&[0.0; 130], &[0.0; 130], 65, Some((RANDOM, 0)));
    assert_eq!(planes, MomentPlanes::zeros(2, 65));
    assert_eq!(planes.decode(), [vec![0.0; 130], vec![0.0; 130]]);
}

#[test]
fn groups_restart_at_row_ends() {
    let m = numbers(3 * 100);
    let v: Vec<f32> = m.iter().map(|m| m * m).collect();
    let whole = MomentPlanes::encode(&m, &v, 100, Some((RANDOM, 0)));
    for row in 0..3 {
        let (elements, scales) = (row * 100..row * 100 + 100, row * 4..row * 4 + 4);
        let part = MomentPlanes::encode(
            &m[elements.clone()],
            &v[elements.clone()],
            100,
            Some((RANDOM, row)),
        );
        assert_eq!(part.m, whole.m[elements.clone()]);
        assert_eq!(part.v, whole.v[elements]);
        assert_eq!(part.m_scales, whole.m_scales[scales.clone()]);
        assert_eq!(part.v_scales, whole.v_scales[scales]);
    }
}

#[test]
fn a_root_is_off_by_half_a_code() {
    let m = numbers(640);
    let v: Vec<f32> = m.iter().map(|m| m * m).collect();
    let [m_decoded, v_decoded] = MomentPlanes::encode(&m, &v, 64, None).decode();
    for (group, start) in m.chunks(64).zip((0..).step_by(64)) {
        let largest = group.iter().fold(0.0_f32, |a, b| a.max(b.abs()));
        // The scale is at most 2^-7 above the largest root.
        let half_m = largest.sqrt() * 1.01 / 127.0 / 2.0;
        let half_v = largest.sqrt() * 1.01 / 255.0;
        for index in start..start + 64 {
            let root = |x: f32| x.abs().sqrt();
            assert!((root(m[index]) - root(m_decoded[index])).abs() <= half_m * 1.001);
            assert!(m_decoded[index] == 0.0 || m[index].signum() == m_decoded[index].signum());
            let error = (root(root(v[index])) - root(root(v_decoded[index]))).abs();
            assert!(error <= half_v * 1.001);
        }
    }
}

#[test]
fn encoding_again_changes_nothing() {
    let m = numbers(640);
    let v: Vec<f32> = m.iter().map(|m| m * m).collect();
    let planes = MomentPlanes::encode(&m, &v, 160, None);
    let [m, v] = planes.decode();
    let again = MomentPlanes::encode(&m, &v, 160, None);
    let [m_again, v_again] = again.decode();
    for (a, b) in m.iter().zip(&m_again).chain(v.iter().zip(&v_again)) {
        assert!((a - b).abs() <= 0.02 * a.abs(), "{a} {b}");
    }
}

#[test]
fn stochastic_rounding_lets_v_decay() {
    // At beta2 .999 a code moves by less than half a step: to nearest it stands.
    let (beta2, scale) = (0.999_f32, v_scale(&[1.0]));
    let (mut nearest, mut code) = (200, 200);
    for step in 0..4000 {
        let root = |code| (decode_v(code, scale) * beta2).sqrt();
        nearest = encode_v(root(nearest), scale);
        let random = Random { step, ..RANDOM };
        let bits = high_half(random.bits(0, 0));
        code = encode_v_stochastic(root(code), scale, bits);
    }
    assert_eq!(nearest, 200);
    // exp(-1) of the root, and its scatter.
    assert!((60..90).contains(&code), "{code}");
    assert!(is_v_stochastic(0.999) && !is_v_stochastic(0.95));
}

#[test]
fn what_is_not_finite_shows() {
    for bad in [f32::NAN, f32::INFINITY] {
        let [m, v] = MomentPlanes::encode(&[bad, 1.0], &[bad, 1.0], 2, None).decode();
        assert!(m.iter().chain(&v).all(|x| !x.is_finite()), "{m:?} {v:?}");
    }
}
