//! Today's date, as templates ask for it with `strftime_now`.

use std::time::{SystemTime, UNIX_EPOCH};

/// Python's `strftime` for the codes that templates use, in UTC.
///
/// The standard library knows no time zones; a date that is off by some hours
/// is better than a dependency for it.
pub(super) fn strftime(now: SystemTime, format: &str) -> String {
    let date = Date::of(now);
    let mut out = String::new();
    let mut rest = format.chars();
    while let Some(c) = rest.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        match rest.next() {
            Some('-') => match rest.next() {
                Some(code) => {
                    let padded = date.field(code);
                    let bare = padded.trim_start_matches(['0', ' ']);
                    out.push_str(if bare.is_empty() { "0" } else { bare });
                }
                None => out.push_str("%-"),
            },
            Some(code) => out.push_str(&date.field(code)),
            None => out.push('%'),
        }
    }
    out
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
];

/// A moment in the calendar.
struct Date {
    year: u64,
    /// From 0.
    month: usize,
    /// From 1.
    day: u64,
    /// Days since the year began, from 1.
    day_of_year: u64,
    /// From Sunday, 0.
    weekday: usize,
    second_of_day: u64,
}

impl Date {
    /// Counts the years and months from 1970 on; earlier moments are 1970-01-01.
    fn of(now: SystemTime) -> Self {
        let seconds = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let days = seconds / 86_400;
        let mut year = 1970;
        let mut left = days;
        while left >= year_len(year) {
            left -= year_len(year);
            year += 1;
        }
        let day_of_year = left + 1;
        let mut month = 0;
        while left >= month_len(year, month) {
            left -= month_len(year, month);
            month += 1;
        }
        Self {
            year,
            month,
            day: left + 1,
            day_of_year,
            // The first of January 1970 was a Thursday.
            weekday: usize::try_from((days + 4) % 7).unwrap_or_default(),
            second_of_day: seconds % 86_400,
        }
    }

    fn field(&self, code: char) -> String {
        let (hour, minute, second) = (
            self.second_of_day / 3600,
            self.second_of_day / 60 % 60,
            self.second_of_day % 60,
        );
        let hour_12 = (hour + 11) % 12 + 1;
        let (month_name, day_name) = (MONTHS[self.month], DAYS[self.weekday]);
        match code {
            'Y' => self.year.to_string(),
            'y' => format!("{:02}", self.year % 100),
            'm' => format!("{:02}", self.month + 1),
            'd' => format!("{:02}", self.day),
            'e' => format!("{:2}", self.day),
            'j' => format!("{:03}", self.day_of_year),
            'B' => month_name.to_owned(),
            'b' | 'h' => month_name[..3].to_owned(),
            'A' => day_name.to_owned(),
            'a' => day_name[..3].to_owned(),
            'H' => format!("{hour:02}"),
            'I' => format!("{hour_12:02}"),
            'M' => format!("{minute:02}"),
            'S' => format!("{second:02}"),
            'p' => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            'F' => format!("{}-{:02}-{:02}", self.year, self.month + 1, self.day),
            'T' => format!("{hour:02}:{minute:02}:{second:02}"),
            'Z' => "UTC".to_owned(),
            '%' => "%".to_owned(),
            other => format!("%{other}"),
        }
    }
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400)
}

fn year_len(year: u64) -> u64 {
    365 + u64::from(is_leap(year))
}

fn month_len(year: u64, month: usize) -> u64 {
    match month {
        1 => 28 + u64::from(is_leap(year)),
        3 | 5 | 8 | 10 => 30,
        _ => 31,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[track_caller]
    fn on(seconds: u64, format: &str, expected: &str) {
        let moment = UNIX_EPOCH + Duration::from_secs(seconds);
        assert_eq!(strftime(moment, format), expected);
    }

    #[test]
    fn dates_are_written_as_python_writes_them() {
        on(0, "%d %b %Y, %A", "01 Jan 1970, Thursday");
        on(951_782_400, "%Y-%m-%d %j", "2000-02-29 060");
        on(
            1_735_689_599,
            "%B %-d, %Y %H:%M:%S %p",
            "December 31, 2024 23:59:59 PM",
        );
        on(1_735_689_599, "%-I %y %%", "11 24 %");
    }
}
