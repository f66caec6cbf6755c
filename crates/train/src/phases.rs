//! What a run tells while it runs: its events, and the memory of its phases.

use comm::ProcessGroup;

use crate::metrics::Metrics;
use crate::{Event, Meter, Observer, PhaseRecord, TrainError};

/// Where events go: whoever watches, and the run's metrics.
#[derive(Clone, Copy)]
pub(crate) struct Report<'a> {
    observer: Observer<'a>,
    /// Absent in a rank that tells its launcher.
    metrics: Option<&'a Metrics>,
}

impl<'a> Report<'a> {
    pub(crate) fn new(observer: Observer<'a>, metrics: Option<&'a Metrics>) -> Self {
        Self { observer, metrics }
    }

    pub(crate) fn event(&self, event: &Event) -> Result<(), TrainError> {
        (self.observer)(event);
        match self.metrics {
            Some(metrics) => metrics.write(event),
            None => Ok(()),
        }
    }
}

/// The phases of the process, measured by its rank 0 between barriers.
pub(crate) struct Phases<'a> {
    report: &'a Report<'a>,
    meter: Option<Meter>,
    name: &'static str,
    done: Vec<PhaseRecord>,
}

impl<'a> Phases<'a> {
    pub(crate) fn begin(report: &'a Report<'a>, measures: bool, name: &'static str) -> Self {
        Self {
            report,
            meter: measures.then(|| Meter::begin(name)),
            name,
            done: Vec::new(),
        }
    }

    /// Ends the phase of all ranks and begins another; the same name goes on.
    pub(crate) fn next(
        &mut self,
        group: &ProcessGroup,
        name: &'static str,
    ) -> Result<(), TrainError> {
        if name == self.name {
            return Ok(());
        }
        group.barrier("end of phase")?;
        if let Some(meter) = &mut self.meter {
            let record = meter.next(name);
            self.report.event(&Event::Phase(record.clone()))?;
            self.take(record);
        }
        self.name = name;
        group.barrier("begin of phase")?;
        Ok(())
    }

    pub(crate) fn end(mut self, group: &ProcessGroup) -> Result<Vec<PhaseRecord>, TrainError> {
        self.next(group, "end")?;
        Ok(self.done)
    }

    /// Adds a record to the phase of its name.
    fn take(&mut self, record: PhaseRecord) {
        match self.done.iter_mut().find(|done| done.phase == record.phase) {
            Some(done) => done.extend(&record),
            None => self.done.push(record),
        }
    }
}
