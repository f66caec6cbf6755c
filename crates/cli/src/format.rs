//! How sizes, counts and tables look.

/// Bytes in the largest unit that leaves a number of at least one.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    // 1023.95 would be printed as 1024.0.
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// A count with its thousands apart.
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// `1 rank`, `2 ranks`.
pub(crate) fn counted(number: u64, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {noun}{plural}", count(number))
}

/// Seconds as `m:ss` or `h:mm:ss`.
pub(crate) fn clock(seconds: f64) -> String {
    let whole = std::time::Duration::try_from_secs_f64(seconds.round()).unwrap_or_default();
    let (hours, rest) = (whole.as_secs() / 3600, whole.as_secs() % 3600);
    let (minutes, seconds) = (rest / 60, rest % 60);
    match hours {
        0 => format!("{minutes}:{seconds:02}"),
        _ => format!("{hours}:{minutes:02}:{seconds:02}"),
    }
}

/// On which side of a column its text stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// Rows as lines of aligned columns, two spaces apart.
pub(crate) fn table(columns: &[Align], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(columns.iter().zip(&widths));
        let cells = cells.map(|(cell, (align, &width))| match align {
            Align::Left => format!("{cell:<width$}"),
            Align::Right => format!("{cell:>width$}"),
        });
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_one_decimal_and_the_unit_that_fits() {
        let sizes = [0, 1023, 1024, 1_048_575, 1 << 20, 3 << 29, 5 << 40].map(size);
        assert_eq!(
            sizes,
            [
                "0 B", "1023 B", "1.0 KiB", "1.0 MiB", "1.0 MiB", "1.5 GiB", "5.0 TiB"
            ]
        );
    }

    #[test]
    fn thousands_stand_apart() {
        assert_eq!(
            [7, 999, 1000, 1_234_567].map(count),
            ["7", "999", "1,000", "1,234,567"]
        );
        assert_eq!(counted(1, "rank"), "1 rank");
        assert_eq!(counted(0, "rank"), "0 ranks");
    }

    #[test]
    fn clocks_count_to_hours() {
        assert_eq!([0.4, 61.0, 3600.0].map(clock), ["0:00", "1:01", "1:00:00"]);
        assert_eq!(clock(f64::NAN), "0:00");
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [["name", "n"], ["a", "12"], ["long name", "3"]];
        let rows = rows.map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(
            table(&[Align::Left, Align::Right], &rows),
            "name        n\na          12\nlong name   3\n"
        );
    }
}
