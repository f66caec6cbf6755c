//! Ctrl-C: the first ends the run at the next step boundary, the second at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::Relaxed};

use crate::error::CliError;
use crate::signals;

/// Whether and by which signal the run was asked to stop.
#[derive(Debug, Default)]
pub(crate) struct Stop {
    /// What the run looks at.
    pub(crate) flag: AtomicBool,
    signal: AtomicI32,
}

impl Stop {
    /// Listens from here on; `on_first` is called when the first signal comes,
    /// `on_second` before the second ends the program.
    pub(crate) fn listen(
        on_first: impl Fn() + Send + 'static,
        on_second: impl Fn() + Send + 'static,
    ) -> Result<Arc<Self>, CliError> {
        let stop = Arc::new(Self::default());
        let told = Arc::clone(&stop);
        signals::on_each(move |signal| {
            if told.flag.swap(true, Relaxed) {
                on_second();
                signals::end_by(signal);
            } else {
                told.signal.store(signal, Relaxed);
                on_first();
            }
        })?;
        Ok(stop)
    }

    /// The exit code of a program that was ended by the signal: 130 for Ctrl-C.
    pub(crate) fn exit_code(&self) -> u8 {
        u8::try_from(128 + self.signal.load(Relaxed)).unwrap_or(u8::MAX)
    }
}
