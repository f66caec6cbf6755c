//! What a conversion of a resident model takes. A test binary of its own with a
//! single test, since its allocator counts for the whole process.

#[path = "../../checkpoint/tests/counting/mod.rs"]
mod counting;

use fp8::{Grid, Headroom};
use kernels::fp8::encode_bf16_in_place;

use counting::counted;

const MIB: usize = 1 << 20;

/// What a conversion may take beside the model.
const OVERHEAD: usize = 64 * MIB;

/// The matrices of a block of the 1.1B shape, and how often each is there.
const BLOCK: [(usize, usize, usize); 4] = [
    (2048, 2048, 2),
    (256, 2048, 2),
    (5632, 2048, 2),
    (2048, 5632, 1),
];

const NUM_BLOCKS: usize = 22;

/// bf16 numbers about 2^-6 as a model has them, little-endian: a random mantissa and
/// sign, and an exponent that falls off as a normal number's does.
fn halves(rows: usize, cols: usize, seed: u32) -> Vec<u8> {
    let mut state = seed;
    let mut halves = Vec::with_capacity(2 * rows * cols);
    for _ in 0..rows * cols {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        let exponent = 121 - (state >> 16).trailing_zeros().min(12);
        let bits = (state & 0x807F) | (exponent << 7);
        halves.extend_from_slice(&bits.to_le_bytes()[..2]);
    }
    halves
}

#[test]
fn the_1b_shape_is_converted_where_it_lies() {
    let mut model = Vec::new();
    for (seed, (rows, cols, count)) in (1..).zip(BLOCK) {
        let halves = halves(rows, cols, seed);
        model.extend((0..count * NUM_BLOCKS).map(|_| (cols, halves.clone())));
    }
    let resident: usize = model.iter().map(|(_, bytes)| bytes.len()).sum();
    assert!(resident > 1800 * MIB);
    let first = model[0].1.clone();
    let (encoded, peak, kept) = counted(|| {
        let convert = |(cols, bytes): &mut (usize, Vec<u8>)| {
            let rows = bytes.len() / (2 * *cols);
            let grid = Grid { rows, cols: *cols };
            let mut scales = vec![0; grid.num_tiles()];
            let encoded = encode_bf16_in_place(bytes, *cols, &mut scales, Headroom::Binade);
            (encoded.expect("finite numbers"), scales)
        };
        model.iter_mut().map(convert).collect::<Vec<_>>()
    });
    assert!(peak < OVERHEAD, "{peak} bytes beside {resident}");
    // A scale a tile and a line a matrix stay.
    assert!(kept < MIB, "{kept} bytes are left");
    assert!(encoded.iter().all(|(encoded, _)| encoded.num_plain == 0));
    // The first matrix comes back bit by bit.
    let (cols, bytes) = &model[0];
    let (codes, residual) = bytes.split_at(bytes.len() / 2);
    let planes = fp8::NestedPlanes {
        cols: *cols,
        codes,
        residual,
        low: None,
        scales: &encoded[0].1[..],
    };
    let back = planes.decode_bf16().into_iter();
    assert!(back.flat_map(u16::to_le_bytes).eq(first));
}
