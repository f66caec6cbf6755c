//! Ctrl-C, SIGTERM and SIGHUP: the first ends a run at its next step boundary, or what
//! is being written at its next piece; the second ends the program at once.

use std::ops::ControlFlow;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::Relaxed};

use nestling::{discard_staged, discard_temporary};

use crate::error::CliError;
use crate::output::note;
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

    /// Listens for the sake of what is being written to `out`.
    pub(crate) fn writing_to(out: &Path) -> Result<Arc<Self>, CliError> {
        let out = out.to_owned();
        Self::listen(
            || {},
            move || {
                discard_staged(&out);
                discard_temporary();
            },
        )
    }

    /// Breaks off once a signal came.
    pub(crate) fn asked(&self) -> ControlFlow<()> {
        if self.flag.load(Relaxed) {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }

    /// Says that nothing was kept; gives the exit code.
    pub(crate) fn ended(&self) -> ExitCode {
        note("stopped; nothing was kept");
        ExitCode::from(self.exit_code())
    }

    /// The exit code of a program that was ended by the signal: 130 for Ctrl-C.
    pub(crate) fn exit_code(&self) -> u8 {
        signals::exit_code(self.signal.load(Relaxed))
    }
}
