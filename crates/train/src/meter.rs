//! The memory of each phase, by the kernel's own figures.
//!
//! `VmHWM` is the highest resident size since it was last set back, which
//! writing 5 to `clear_refs` does at the beginning of each phase. The split into
//! anonymous, shared and file pages comes from `smaps_rollup`.

use std::fs;
use std::time::Instant;

use serde::{Deserialize, Serialize};

const MIB: f64 = 1024.0 * 1024.0;

/// What the kernel says of this process at one moment, in MiB.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct MemorySnapshot {
    /// Resident pages of any kind.
    pub resident_mib: f64,
    /// The most resident since the beginning of the phase.
    pub peak_mib: f64,
    /// Pages that belong to no file.
    pub anonymous_mib: f64,
    /// Pages of shared memory.
    pub shared_mib: f64,
    /// Mapped pages of files.
    pub file_mib: f64,
}

impl MemorySnapshot {
    /// Reads `/proc/self`; zeros where there is none.
    pub fn now() -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let kib = |key| field_kib(&status, key) / 1024.0;
        Self {
            resident_mib: kib("VmRSS:"),
            peak_mib: kib("VmHWM:"),
            anonymous_mib: kib("RssAnon:"),
            shared_mib: kib("RssShmem:"),
            file_mib: kib("RssFile:"),
        }
    }

    /// As [`MemorySnapshot::now`], with anonymous pages from `smaps_rollup`, which
    /// walks the page tables and so misses no batched count.
    pub fn exact() -> Self {
        let rollup = fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
        let anonymous = field_kib(&rollup, "Anonymous:") / 1024.0;
        let resident = field_kib(&rollup, "Rss:") / 1024.0;
        let mut snapshot = Self::now();
        if resident > 0.0 {
            snapshot.resident_mib = resident;
            snapshot.anonymous_mib = anonymous;
            snapshot.peak_mib = snapshot.peak_mib.max(resident);
        }
        snapshot
    }
}

/// A phase of a run and its memory, in MiB.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PhaseRecord {
    /// `start`, `load`, `prepare`, `first step`, `steady step`, `eval`, `save`.
    pub phase: String,
    /// Its wall-clock seconds.
    pub seconds: f64,
    /// Resident at its beginning.
    pub before_mib: f64,
    /// Resident at its end, less that.
    pub consumed_mib: f64,
    /// The most resident within it.
    pub peak_mib: f64,
    /// At its end: pages that belong to no file.
    pub anonymous_mib: f64,
    /// At its end: pages of shared memory.
    pub shared_mib: f64,
    /// At its end: mapped pages of files.
    pub file_mib: f64,
}

impl PhaseRecord {
    /// Takes in a later stretch of the same phase: the memory is that of the
    /// stretch with the higher peak, the seconds are of both.
    pub(crate) fn extend(&mut self, later: &Self) {
        let seconds = self.seconds + later.seconds;
        if later.peak_mib > self.peak_mib {
            *self = later.clone();
        }
        self.seconds = seconds;
    }
}

/// Measures the phases of this process, one after the other.
#[derive(Debug)]
pub struct Meter {
    phase: String,
    began: Instant,
    before: MemorySnapshot,
}

impl Meter {
    /// Begins the first phase.
    pub fn begin(phase: &str) -> Self {
        // Where it cannot be set back, the peak is the highest so far: too
        // large, never too small.
        let _ = fs::write("/proc/self/clear_refs", "5");
        Self {
            phase: phase.to_owned(),
            began: Instant::now(),
            before: MemorySnapshot::exact(),
        }
    }

    /// Ends the phase and begins the next.
    pub fn next(&mut self, phase: &str) -> PhaseRecord {
        let record = self.end();
        *self = Self::begin(phase);
        record
    }

    /// What the phase took so far.
    pub fn end(&self) -> PhaseRecord {
        let after = MemorySnapshot::exact();
        PhaseRecord {
            phase: self.phase.clone(),
            seconds: self.began.elapsed().as_secs_f64(),
            before_mib: self.before.resident_mib,
            consumed_mib: after.resident_mib - self.before.resident_mib,
            peak_mib: after.peak_mib,
            anonymous_mib: after.anonymous_mib,
            shared_mib: after.shared_mib,
            file_mib: after.file_mib,
        }
    }
}

/// Bytes as MiB.
pub(crate) fn mib(bytes: u64) -> f64 {
    bytes as f64 / MIB
}

/// A `key: N kB` field of a `/proc` file; 0 if it is not there.
fn field_kib(text: &str, key: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(key));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::float_cmp, reason = "whole numbers of KiB are exact")]
    fn fields_are_found_by_name() {
        let text = "VmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\n";
        assert_eq!(field_kib(text, "VmRSS:"), 1024.0);
        assert_eq!(field_kib(text, "Absent:"), 0.0);
    }

    #[test]
    fn a_phase_sees_the_pages_it_touches() {
        let meter = Meter::begin("touch");
        let pages = vec![1_u8; 32 << 20];
        let record = meter.end();
        assert!(record.consumed_mib > 30.0, "{record:?}");
        assert!(record.peak_mib >= record.before_mib + 30.0, "{record:?}");
        drop(pages);
    }
}
