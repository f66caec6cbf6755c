//! The formats are those of the specifications, by digests of whole tables;
//! casts are those of `ml_dtypes`; planes are those of an independent program.
#![expect(clippy::unwrap_used, reason = "in a test a failure may panic")]

use std::fmt::Write;

use fp8::bf16::{round_nearest, widen};
use fp8::nested::{join_n16, join_n24, residual_of};
use fp8::{Encoded, Format, Headroom, NestedPlanes, Nesting, ScaleInv, decode_e8m0};
use sha2::{Digest, Sha256};

#[track_caller]
fn has_digest(table: &[u8], expected: &str) {
    let hex = Sha256::digest(table)
        .iter()
        .fold(String::new(), |mut hex, byte| {
            write!(hex, "{byte:02x}").unwrap();
            hex
        });
    assert_eq!(hex, expected);
}

/// 256 little-endian f32 in code order, every NaN written as 7FC00000.
fn decode_table(decode: impl Fn(u8) -> f32) -> Vec<u8> {
    let words = (0..=u8::MAX).map(|code| {
        let x = decode(code);
        if x.is_nan() { 0x7FC0_0000 } else { x.to_bits() }
    });
    words.flat_map(u32::to_le_bytes).collect()
}

/// A byte for each bf16 in order of its bits; a NaN as 7F with its sign.
fn encode_table(encode: impl Fn(f32) -> u8) -> Vec<u8> {
    let codes = (0..=u16::MAX).map(|bits| {
        let x = widen(bits);
        if x.is_nan() {
            assert_eq!(encode(x) & 0x7F, 0x7F);
            0x7F | (bits >> 8) as u8 & 0x80
        } else {
            encode(x)
        }
    });
    codes.collect()
}

#[test]
fn every_code_has_the_number_of_its_format() {
    let check = |format: Format, expected| {
        has_digest(&decode_table(|code| format.decode(code)), expected);
    };
    check(
        Format::E4M3,
        "422eccfaa21e72a6b26855bb10cdcfead6c1ce3262ecd813c99d8cbf9677f2e2",
    );
    check(
        Format::E5M2,
        "229a94c5f728edf2259da970a0e1dfb45cc1d69cce2b30e37659f3212ec4b8b9",
    );
    check(
        Format::E4M3Fnuz,
        "ac4866f772a7c08077713fde1fa54131d49c26339c885e971a24fc0fac6e33f4",
    );
    check(
        Format::E5M2Fnuz,
        "aac12d2730bf26ca53bfa107a7a6a8df192aba8cf58b971eec9126f83991e6d4",
    );
    has_digest(
        &decode_table(decode_e8m0),
        "2fb2732a956043772ccd2c1664ae5d2558c62f9c06780c04d95f1ff0050f2f2f",
    );
}

#[test]
fn every_bf16_has_the_code_of_its_format() {
    has_digest(
        &encode_table(|x| Format::E4M3.encode(x)),
        "556222ae80c3498b4da64795f283e77962f1045e2525faaededd4e0a5b1ae212",
    );
    has_digest(
        &encode_table(|x| Format::E4M3.encode_unsaturated(x)),
        "ecbb201b2182a3e8e84f521d57c51ff379e8e5ec61141119005be7d672db0d98",
    );
    has_digest(
        &encode_table(|x| Format::E5M2.encode(x)),
        "bd44828554535a84e590b2edbcf4fd86827bbc30b47efd62e4db3bc7c955dad5",
    );
    has_digest(
        &encode_table(|x| Format::E5M2.encode_unsaturated(x)),
        "875dd70a7c02e2f8dd7ba693a8764c02ec0242f5849d693f3e8e48f9f21d9ff7",
    );
}

#[test]
fn codes_of_random_numbers_are_those_of_ml_dtypes() {
    let (records, rest) = include_bytes!("../testdata/samples.bin").as_chunks::<9>();
    assert!(records.len() == 4096 && rest.is_empty());
    for &[
        a,
        b,
        c,
        d,
        e4m3,
        e5m2,
        unsaturated_e4m3,
        unsaturated_e5m2,
        fnuz,
    ] in records
    {
        let x = f32::from_le_bytes([a, b, c, d]);
        let found = [
            Format::E4M3.encode(x),
            Format::E5M2.encode(x),
            Format::E4M3.encode_unsaturated(x),
            Format::E5M2.encode_unsaturated(x),
            Format::E4M3Fnuz.encode(x),
        ];
        let expected = [e4m3, e5m2, unsaturated_e4m3, unsaturated_e5m2, fnuz];
        assert_eq!(found, expected, "{x}");
    }
}

/// A tile of a golden file and its planes by another program.
struct Golden {
    size: usize,
    bf16: Vec<u16>,
    /// Without headroom, then with: N16 codes, residuals, N24 codes, residuals.
    planes: [[Vec<u8>; 4]; 2],
    /// N16 without and with headroom, N24 without and with.
    exponents: [i32; 4],
}

impl Golden {
    fn read(file: &[u8], size: usize) -> Self {
        let len = size * size;
        let mut rest = file;
        let mut take = |num_bytes| {
            let (taken, left) = rest.split_at(num_bytes);
            rest = left;
            taken.to_vec()
        };
        let bf16 = take(2 * len);
        let bf16 = bf16.chunks(2).map(|b| u16::from_le_bytes([b[0], b[1]]));
        let golden = Self {
            size,
            bf16: bf16.collect(),
            planes: [(); 2].map(|()| [len, len, len, 2 * len].map(&mut take)),
            exponents: [(); 4].map(|()| i32::from_le_bytes(take(4).try_into().unwrap())),
        };
        assert!(rest.is_empty());
        golden
    }

    fn all() -> [Self; 3] {
        [
            Self::read(include_bytes!("../testdata/embed.bin"), 128),
            Self::read(include_bytes!("../testdata/short.bin"), 64),
            Self::read(include_bytes!("../testdata/flagged.bin"), 128),
        ]
    }
}

const HEADROOMS: [Headroom; 2] = [Headroom::None, Headroom::Binade];

#[test]
fn planes_of_real_tiles_are_those_of_another_program() {
    for golden in Golden::all() {
        for (h, headroom) in HEADROOMS.into_iter().enumerate() {
            let [code_16, residual_16, code_24, residual_24] = &golden.planes[h];
            let mut n16 = NestedPlanes::zeros(golden.size, golden.size, Nesting::N16);
            n16.as_mut().encode_bf16(&golden.bf16, headroom).unwrap();
            assert_eq!(n16.scale_inv(0), ScaleInv::of_exponent(golden.exponents[h]));
            assert!(n16.codes == *code_16 && n16.residual == *residual_16);

            let mut n24 = NestedPlanes::zeros(golden.size, golden.size, Nesting::N24);
            n24.as_mut().encode_bf16(&golden.bf16, headroom).unwrap();
            let exponent = golden.exponents[2 + h];
            assert_eq!(n24.scale_inv(0), ScaleInv::of_exponent(exponent));
            let high = residual_24.iter().skip(1).step_by(2).copied();
            let low = residual_24.iter().step_by(2).copied();
            assert_eq!(n24.codes, *code_24);
            assert!(n24.residual.iter().copied().eq(high));
            assert!(n24.low.unwrap().iter().copied().eq(low));
        }
    }
}

#[test]
fn planes_of_another_program_decode_to_the_source_bit_by_bit() {
    for golden in Golden::all() {
        for h in 0..2 {
            let [code_16, residual_16, code_24, residual_24] = &golden.planes[h];
            for (index, &bits) in golden.bf16.iter().enumerate() {
                let scale_inv = |k: i32| ScaleInv::of_exponent(k).to_f32();
                let n16 = join_n16(code_16[index], residual_16[index].cast_signed());
                let n16 = n16 * scale_inv(golden.exponents[h]);
                assert_eq!(round_nearest(n16), bits);
                let residual = residual_of(residual_24[2 * index + 1], residual_24[2 * index]);
                let n24 = join_n24(code_24[index], residual) * scale_inv(golden.exponents[2 + h]);
                assert_eq!((n24, round_nearest(n24)), (widen(bits), bits));
            }
        }
    }
}

#[test]
fn real_tiles_are_converted_without_a_plain_tile() {
    for golden in Golden::all() {
        for headroom in HEADROOMS {
            for nesting in [Nesting::N16, Nesting::N24] {
                let mut planes = NestedPlanes::zeros(golden.size, golden.size, nesting);
                let encoded = planes.as_mut().encode_bf16(&golden.bf16, headroom).unwrap();
                let expected = Encoded {
                    num_tiles: 1,
                    ..Encoded::default()
                };
                assert_eq!(encoded, expected);
                assert_eq!(planes.decode_bf16(), golden.bf16);
            }
        }
    }
}
