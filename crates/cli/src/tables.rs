//! The tables after a run: memory of each phase, reservations of each rank.

use nestling::{Event, LedgerAccount, PhaseRecord};

use crate::format::{Align, table};

/// The kernel's figures for each phase of the process.
pub(crate) fn memory_table(phases: &[PhaseRecord]) -> String {
    let heads = [
        "phase",
        "before",
        "consumed",
        "peak",
        "anonymous",
        "shared",
        "file",
        "seconds",
    ];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    rows.extend(phases.iter().map(|phase| {
        let figures = [
            phase.before_mib,
            phase.consumed_mib,
            phase.peak_mib,
            phase.anonymous_mib,
            phase.shared_mib,
            phase.file_mib,
        ];
        let mut row = named(&phase.phase, &figures);
        row.push(format!("{:.2}", phase.seconds));
        row
    }));
    format!("memory of the process, MiB\n{}", indented(&rows))
}

/// What a rank held by name; none for another event.
pub(crate) fn ledger_table(event: &Event) -> Option<String> {
    let Event::Ledger {
        rank,
        accounts,
        peak_mib,
        arena_planned_mib,
        arena_used_mib,
    } = event
    else {
        return None;
    };
    let heads = ["account", "at the end", "peak"];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    rows.extend(accounts.iter().map(
        |LedgerAccount {
             name,
             held_mib,
             peak_mib,
         }| named(name, &[*held_mib, *peak_mib]),
    ));
    Some(format!(
        "reservations of rank {rank}, MiB: {peak_mib:.1} at most; \
         arena {arena_planned_mib:.1} planned, {arena_used_mib:.1} used\n{}",
        indented(&rows)
    ))
}

fn named(name: &str, figures: &[f64]) -> Vec<String> {
    let figures = figures.iter().map(|figure| format!("{figure:.1}"));
    std::iter::once(name.to_owned()).chain(figures).collect()
}

/// A name, then numbers; two spaces in.
fn indented(rows: &[Vec<String>]) -> String {
    let num_columns = rows.first().map_or(0, Vec::len);
    let mut columns = vec![Align::Right; num_columns];
    if let Some(first) = columns.first_mut() {
        *first = Align::Left;
    }
    let text = table(&columns, rows);
    text.split_inclusive('\n')
        .flat_map(|line| ["  ", line])
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_is_a_row_of_figures() {
        let phase = PhaseRecord {
            phase: "first step".to_owned(),
            seconds: 2.0,
            before_mib: 10.25,
            consumed_mib: -1.0,
            peak_mib: 120.0,
            anonymous_mib: 5.0,
            shared_mib: 4.0,
            file_mib: 0.25,
        };
        let expected = "\
memory of the process, MiB
  phase       before  consumed   peak  anonymous  shared  file  seconds
  first step    10.2      -1.0  120.0        5.0     4.0   0.2     2.00
";
        assert_eq!(memory_table(&[phase]), expected);
    }

    #[test]
    fn a_rank_has_a_row_for_each_account() {
        let account = |name: &str, held_mib, peak_mib| LedgerAccount {
            name: name.to_owned(),
            held_mib,
            peak_mib,
        };
        let ledger = Event::Ledger {
            rank: 1,
            accounts: vec![account("weights", 8.0, 8.0), account("staging", 0.0, 16.0)],
            peak_mib: 24.0,
            arena_planned_mib: 3.0,
            arena_used_mib: 2.75,
        };
        let expected = "\
reservations of rank 1, MiB: 24.0 at most; arena 3.0 planned, 2.8 used
  account  at the end  peak
  weights         8.0   8.0
  staging         0.0  16.0
";
        assert_eq!(ledger_table(&ledger).unwrap(), expected);
    }
}
