//! Ctrl-C, SIGTERM and SIGHUP: what is removed before the program ends by them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;

use nestling::discard_temporary;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use crate::error::CliError;

/// The signals that ask a program to end.
pub(crate) const ENDING: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];

/// Whether a signal is about to end the program.
static IS_ENDING: AtomicBool = AtomicBool::new(false);

/// Makes a write beyond `ulimit -f` an error like any other, where a signal would end the
/// program without a word.
pub(crate) fn refuse_large_files() -> Result<(), CliError> {
    let registered = signal_hook::flag::register(SIGXFSZ, Arc::default());
    registered.map_err(|source| CliError::Signals { source })?;
    Ok(())
}

/// Removes the temporary files when a signal ends the program.
pub(crate) fn clean_up_when_ended() -> Result<(), CliError> {
    on_each(|signal| {
        IS_ENDING.store(true, SeqCst);
        discard_temporary();
        end_by(signal);
    })
}

/// Does not return if a signal is ending the program: an error for want of a file that
/// was removed for it is none to report.
pub(crate) fn let_signals_end() {
    while IS_ENDING.load(SeqCst) {
        thread::park();
    }
}

/// Calls `act` on a thread of its own for every signal that comes.
pub(crate) fn on_each(mut act: impl FnMut(i32) + Send + 'static) -> Result<(), CliError> {
    let failed = |source| CliError::Signals { source };
    let mut signals = Signals::new(ENDING).map_err(failed)?;
    let listener = move || {
        for signal in signals.forever() {
            act(signal);
        }
    };
    let named = thread::Builder::new().name("signals".to_owned());
    named.spawn(listener).map_err(failed)?;
    Ok(())
}

/// Ends the process as the signal would have; it can only fail for other signals.
pub(crate) fn end_by(signal: i32) {
    drop(emulate_default_handler(signal));
}

/// The exit code of a program that `signal` has ended. It is 0 where another rank got one,
/// and that rank does not say which: then the code is that of SIGTERM.
pub(crate) fn exit_code(signal: i32) -> u8 {
    let signal = if signal == 0 { SIGTERM } else { signal };
    u8::try_from(128 + signal).unwrap_or(u8::MAX)
}
