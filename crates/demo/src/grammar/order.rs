//! What comes after what: numbers, days, months, seasons.

use super::knowledge::{Pair, pair};
use super::rng::Rng;
use super::story::capital;

const NUMBERS: &[&str] = &[
    "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven",
    "twelve",
];

const DAYS: &[&str] = &[
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
];

const MONTHS: &[&str] = &[
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

const SEASONS: &[&str] = &["spring", "summer", "autumn", "winter"];

/// What comes before and after.
pub(super) fn next(rng: &mut Rng) -> Pair {
    let (what, names) = rng.pick(&[
        ("number", NUMBERS),
        ("day", DAYS),
        ("month", MONTHS),
        ("season", SEASONS),
    ]);
    let at = rng.below(names.len() - 1);
    let (earlier, later) = (names[at], names[at + 1]);
    if rng.chance(50) {
        pair(
            format!("What {what} comes after {earlier}?"),
            capital(&format!("{later} comes after {earlier}.")),
        )
    } else {
        pair(
            format!("What {what} comes before {later}?"),
            capital(&format!("{earlier} comes before {later}.")),
        )
    }
}

/// Counting up from one or down to it.
pub(super) fn count(rng: &mut Rng) -> Pair {
    let len = 2 + rng.below(NUMBERS.len() - 1);
    let mut numbers = NUMBERS[..len].to_vec();
    let last = NUMBERS[len - 1];
    let question = match rng.below(4) {
        0 => format!("Please count to {last}."),
        1 => format!("Can you count to {last}?"),
        2 => {
            numbers.reverse();
            format!("Count down from {last}.")
        }
        _ => format!("Count to {last}."),
    };
    pair(question, capital(&format!("{}.", numbers.join(", "))))
}

/// Counting from one number to another.
pub(super) fn count_from(rng: &mut Rng) -> Pair {
    let first = rng.below(NUMBERS.len() - 2);
    let last = first + 2 + rng.below(NUMBERS.len() - first - 2);
    pair(
        format!("Count from {} to {}.", NUMBERS[first], NUMBERS[last]),
        capital(&format!("{}.", NUMBERS[first..=last].join(", "))),
    )
}

/// Questions about the whole week or year.
pub(super) fn calendar(rng: &mut Rng) -> Pair {
    match rng.below(8) {
        0 => pair(
            "Name the days of the week.",
            format!(
                "The days of the week are {} and Sunday.",
                DAYS[..6].join(", ")
            ),
        ),
        1 => pair("How many days are in a week?", "A week has seven days."),
        2 => pair(
            "How many months are in a year?",
            "A year has twelve months.",
        ),
        3 => pair("How many seasons are there?", "There are four seasons."),
        4 => pair(
            "Name the seasons.",
            "The seasons are spring, summer, autumn and winter.",
        ),
        5 => pair(
            "What is the first day of the week?",
            "The first day of the week is Monday.",
        ),
        6 => pair(
            "What is the last month of the year?",
            "The last month of the year is December.",
        ),
        _ => pair(
            "What is the first month of the year?",
            "The first month of the year is January.",
        ),
    }
}

/// A season, what it is like, how one asks for what happens in it, what happens.
const SEASON_FACTS: &[(&str, &str, &str, &str)] = &[
    (
        "spring",
        "fresh and green",
        "do the flowers come out",
        "the flowers come out",
    ),
    (
        "spring",
        "fresh and green",
        "do the birds build nests",
        "the birds build nests",
    ),
    (
        "summer",
        "warm and bright",
        "do we swim in the lake",
        "we swim in the lake",
    ),
    (
        "summer",
        "warm and bright",
        "are the days long",
        "the days are long",
    ),
    (
        "autumn",
        "cool and golden",
        "do the leaves fall",
        "the leaves fall",
    ),
    (
        "autumn",
        "cool and golden",
        "do we pick the apples",
        "we pick the apples",
    ),
    (
        "winter",
        "cold and white",
        "does the snow fall",
        "the snow falls",
    ),
    (
        "winter",
        "cold and white",
        "are the nights long",
        "the nights are long",
    ),
];

/// What a season is like and what happens in it.
pub(super) fn season(rng: &mut Rng) -> Pair {
    let (name, like, asked, event) = rng.pick(SEASON_FACTS);
    match rng.below(3) {
        0 => pair(
            format!("What is {name} like?"),
            capital(&format!("{name} is {like}.")),
        ),
        1 => pair(
            format!("When {asked}?"),
            capital(&format!("in {name} {event}.")),
        ),
        _ => pair(
            format!("What happens in {name}?"),
            capital(&format!("in {name} {event}.")),
        ),
    }
}
