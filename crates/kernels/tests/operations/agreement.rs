//! Runs a case on every device and compares.

use kernels::{Arena, Cpu, Device, Meta, Purpose, Scalar};

/// A device under test, which sees host bytes as its own (or, counting only,
/// does not look at them).
pub(crate) trait Under: Device + Sync {
    fn bytes(bytes: &[u8]) -> Self::Bytes<'_>;
    fn bytes_mut(bytes: &mut [u8]) -> Self::BytesMut<'_>;

    /// A buffer with these numbers.
    fn buffer(&self, numbers: &[f32]) -> Self::Buffer {
        let mut buffer = self.empty(numbers.len());
        self.write(numbers, &mut buffer, 0);
        buffer
    }

    /// A buffer that nothing was written to.
    fn empty(&self, len: usize) -> Self::Buffer {
        self.alloc(len, Purpose::Activation)
            .expect("room in the arena")
    }

    /// Every number of a buffer.
    fn numbers(&self, buffer: &Self::Buffer) -> Vec<f32> {
        let mut numbers = vec![0.0; self.len(buffer)];
        self.read(buffer, 0..numbers.len(), &mut numbers);
        numbers
    }
}

macro_rules! reads_host_bytes {
    ($($device:ty),*) => {$(
        impl Under for $device {
            fn bytes(bytes: &[u8]) -> Self::Bytes<'_> {
                bytes
            }
            fn bytes_mut(bytes: &mut [u8]) -> Self::BytesMut<'_> {
                bytes
            }
        }
    )*};
}

reads_host_bytes!(Scalar<f32>, Scalar<f64>, Cpu);

impl Under for Meta {
    fn bytes(_bytes: &[u8]) {}
    fn bytes_mut(_bytes: &mut [u8]) {}
}

/// What a case computed, by name.
pub(crate) type Outputs = Vec<Output>;

/// One result of a case.
pub(crate) type Output = (&'static str, Vec<f32>);

/// A sum as an output: compared to the digits of an f32.
#[expect(
    clippy::cast_possible_truncation,
    reason = "rounding to nearest is what is asked for"
)]
pub(crate) fn narrow(sum: f64) -> f32 {
    sum as f32
}

/// A sequence of operations.
pub(crate) trait Case: std::fmt::Debug + Sync {
    fn run<D: Under>(&self, device: &D) -> Outputs;

    /// What differences are at least relative to, where an output is a
    /// difference of numbers this large.
    fn least_magnitude(&self) -> f32 {
        0.0
    }
}

/// Thread counts that the fast device is tried with: alone, and more than a
/// small machine has, an odd number.
const NUM_THREADS: [usize; 2] = [1, 3];

/// Room for the largest case.
pub(crate) const ARENA_BYTES: usize = 64 << 20;

/// Holds every device against the reference in f64: see the crate's head.
///
/// `tolerance` bounds each difference relative to the output's largest
/// magnitude.
#[track_caller]
pub(crate) fn agrees(case: &impl Case, tolerance: f32) {
    let expected = case.run(&Scalar::<f64>::new());
    let scalar = case.run(&Scalar::<f32>::new());
    let least = case.least_magnitude();
    let bound = (tolerance, least);
    assert_close(&expected, &scalar, bound, &format!("{case:?}, scalar"));
    for num_threads in NUM_THREADS {
        let name = format!("{case:?}, {num_threads} threads");
        let arena = Arena::new(ARENA_BYTES).expect("address space");
        let cpu = Cpu::new(arena, num_threads);
        let first = case.run(&cpu);
        assert_close(&expected, &first, bound, &name);
        assert_counted(case, &cpu, num_threads, &name);
        poison(&cpu);
        let second = pool().install(|| case.run(&cpu));
        assert_same_bits(&first, &second, &name);
    }
}

/// Other threads than the tests', of another number: bits must not depend on
/// who computes.
fn pool() -> rayon::ThreadPool {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(5).build();
    pool.expect("threads")
}

/// Leaves NaN wherever the case had its buffers, so that a number that is read
/// before it is written shows.
fn poison(cpu: &Cpu) {
    let len = cpu.arena().high_water_bytes() / size_of::<f32>();
    let mut all = cpu.empty(len);
    cpu.fill(&mut all, f32::NAN);
}

#[track_caller]
fn assert_counted(case: &impl Case, cpu: &Cpu, num_threads: usize, name: &str) {
    let meta = Meta::new(num_threads);
    case.run(&meta);
    let arena = cpu.arena();
    assert_eq!(meta.high_water_bytes(), arena.high_water_bytes(), "{name}");
    assert_eq!(meta.peak_live_bytes(), arena.peak_live_bytes(), "{name}");
    assert_eq!(meta.held_at_peak(), arena.held_at_peak(), "{name}");
    assert_eq!(meta.peak_by_purpose(), arena.peak_by_purpose(), "{name}");
    assert_eq!([meta.live_bytes(), arena.live_bytes()], [0, 0], "{name}");
}

/// Holds every number of `found` against `expected`: a tolerance, relative to the
/// output's largest magnitude or the given one.
#[track_caller]
pub(crate) fn assert_close(
    expected: &[Output],
    found: &[Output],
    (tolerance, least): (f32, f32),
    name: &str,
) {
    assert_eq!(expected.len(), found.len(), "{name}");
    for ((output, expected), (_, found)) in expected.iter().zip(found) {
        assert_eq!(expected.len(), found.len(), "{name}: length of {output}");
        let largest = expected.iter().fold(least, |max, x| max.max(x.abs()));
        for (index, (&expected, &found)) in expected.iter().zip(found).enumerate() {
            // Written so that a NaN is not within any bound.
            let within = (found - expected).abs() <= tolerance * largest;
            assert!(
                within,
                "{name}: {output}[{index}] is {found:e}, not {expected:e} (largest {largest:e})"
            );
        }
    }
}

#[track_caller]
pub(crate) fn assert_same_bits(first: &[Output], second: &[Output], name: &str) {
    for ((output, first), (_, second)) in first.iter().zip(second) {
        let differs = first
            .iter()
            .zip(second)
            .position(|(first, second)| first.to_bits() != second.to_bits());
        assert_eq!(differs, None, "{name}: {output} differs between two runs");
    }
}
